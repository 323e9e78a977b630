"""What `vitkit data stats` prints of masks."""

from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from vitkit.system.console.text import counted, printable, printable_name

SHOWN = 40  # classes that are printed


def mask_tables(masks: dict) -> Iterator[str | Table]:
    """The description of `MaskReport.to_json` as tables and sentences."""
    for note in masks["notes"]:
        yield printable(note)
    parts = masks["parts"]
    yield _parts_table(parts)
    for name, part in parts.items():
        if part["classes"]:
            yield _classes_table(name, part)
    problems = 0
    for name, part in {"": {"problems": masks["problems"]}, **parts}.items():
        inside = f"in {name}: " if name else ""
        for sentence in part["problems"]:
            problems += 1
            yield printable(f"warning: {inside}{sentence}")
    if problems:
        yield f"training would refuse or leave out what is named in {counted(problems, 'warning')}"


def _parts_table(parts: dict) -> Table:
    """A table with a column for every part."""
    table = Table("masks", *map(escape, parts))
    columns = [_column(part) for part in parts.values()]
    for title in columns[0]:
        table.add_row(title, *(column[title] for column in columns))
    return table


def _column(part: dict) -> dict[str, str]:
    """The values of a part, by titles, which are the same for all parts."""
    regions = 0
    small = 0
    for of_class in part["classes"].values():
        regions += of_class["regions"]
        small += of_class["regions smaller than a patch"]
    alone = [
        f"{printable_name(label)} {count:,}" for label, count in part["masks of one class"].items()
    ]
    return {
        "images": f"{part['images']:,}",
        "with a mask that training takes": f"{part['masks']:,}",
        "height: least, median, most": ", ".join(f"{side:,}" for side in part["height"]),
        "width": ", ".join(f"{side:,}" for side in part["width"]),
        "pixels that are ignored": f"{part['ignored']:.1%}",
        "masks that ignore every pixel": f"{len(part['masks that ignore every pixel']):,}",
        "masks of one class alone": ", ".join(alone) or "0",
        "connected regions": f"{regions:,}",
        "regions smaller than a patch": f"{small:,}",
        "warnings": f"{len(part['problems']):,}",
    }


def _classes_table(name: str, part: dict) -> Table:
    """A table of the classes of a part, the most frequent first."""
    title = "class"
    if name:
        title = f"class, in {name}"
    table = Table(escape(title), "pixels", "images", "regions", "smaller than a patch")
    for column in table.columns[1:]:
        column.justify = "right"
    ordered = sorted(part["classes"].items(), key=lambda item: -item[1]["share"])
    for label, of_class in ordered[:SHOWN]:
        table.add_row(
            Text(printable_name(label)),
            f"{of_class['share']:.2%}",
            f"{of_class['images']:,}",
            f"{of_class['regions']:,}",
            f"{of_class['regions smaller than a patch']:,}",
        )
    if len(ordered) > SHOWN:
        table.add_row(f"and {len(ordered) - SHOWN:,} more")
    return table
