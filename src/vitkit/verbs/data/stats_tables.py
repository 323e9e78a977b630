"""What `stats` saw, as tables and sentences.

A `description` is what `describe` returns and --json prints; a `part` is one of its
parts.
"""

from collections.abc import Iterator, Sequence

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from vitkit.system.console.text import printable, printable_name

SHOWN = 20  # classes whose counts are printed; of more classes, the largest and the smallest
LISTED = 10  # broken images and duplicates that are printed


def tables(description: dict, same_classes: Sequence[str]) -> Iterator[str | Table]:
    """A description for people. same_classes: the parts that have the data set's own classes."""
    yield _parts_table(description)
    if description["classes"]:
        yield _classes_table(description, same_classes)
    for name, part in description["parts"].items():
        for sentence in part["broken"][:LISTED]:
            yield printable(f"broken, in {name}: {sentence}")
    for pair in description["pairs"]:
        yield from _pairs(pair)


def _parts_table(description: dict) -> Table:
    """A table with a column for every part."""
    parts = description["parts"]
    columns = [_column(part, description) for part in parts.values()]
    table = Table("", *map(escape, parts))
    for title in columns[0]:
        table.add_row(title, *(column[title] for column in columns))
    return table


def _column(part: dict, description: dict) -> dict[str, str]:
    """The values of a part, by their titles, which are the same for all parts."""
    target = description["target"]
    copies = sum(len(group) - 1 for group in part["same files"])
    formats = [f"{count:,} {kind}" for kind, count in part["formats"].items()]
    column = {
        "images": f"{part['images']:,}",
        "MB": f"{part['bytes'] / 1e6:,.1f}",
        "formats": ", ".join(formats),
        "height: least, median, most": ", ".join(f"{side:,}" for side in part["height"]),
        "width": ", ".join(f"{side:,}" for side in part["width"]),
    }
    if description["classes"]:
        counts = part["classes"] or [0]  # another data set's part may have no classes
        occurring = sum(count > 0 for count in counts)
        column["classes that occur"] = f"{occurring:,} of {len(part['classes']):,}"
        column["images per class: least, most"] = f"{min(counts):,}, {max(counts):,}"
    if target == "number":
        column["number: least, median, most"] = ", ".join(f"{x:g}" for x in part["numbers"])
    column["broken"] = f"{len(part['broken']):,}"
    column["extra copies of the same file"] = f"{copies:,}"
    if target not in ("none", "number"):
        column["same file, other class"] = f"{part['same file, other class']:,}"
    return column


def _classes_table(description: dict, same_classes: Sequence[str]) -> Table:
    """A table of how many images each class has, the largest first; of many classes, both ends."""
    labels = description["classes"]
    counts_of = {name: description["parts"][name]["classes"] for name in same_classes}
    first_part = next(iter(counts_of.values()))
    by_size = sorted(range(len(labels)), key=lambda k: -first_part[k])

    table = Table("class", *map(escape, counts_of))
    for rank, k in enumerate(by_size):
        is_large = rank < SHOWN // 2
        is_small = rank >= len(by_size) - SHOWN // 2
        if is_large or is_small:
            numbers = [f"{counts[k]:,}" for counts in counts_of.values()]
            table.add_row(Text(printable_name(labels[k])), *numbers)
        elif rank == SHOWN // 2:
            table.add_row("...")
    return table


def _pairs(pair: dict) -> Iterator[str]:
    """What two parts have in common, and the first images of it by name."""
    first, second = pair["parts"]
    same = pair["same"]
    alike = len(pair["pairs"]) - same
    yield (
        f"{first} and {second}: files in both: {same:,}; "
        f"near-duplicates in {first} of an image in {second}: {alike:,}"
    )
    for name, other, bits, count in pair["pairs"][:LISTED]:
        sentence = f"{name} is {same_or_like(bits)} {other}"
        if count > 1:
            sentence += f" and {count - 1:,} more"
        yield f"  {printable(sentence)}"
    if pair["other class"]:
        yield (
            f"warning: pairs with different classes: {pair['other class']:,}; a label is wrong, or "
            "they are not duplicates: look at them with --sheet FILE"
        )


def same_or_like(bits: int) -> str:
    """How alike two images are whose fingerprints differ in so many bits; -1 is the same file."""
    if bits < 0:
        return "the same as"
    return "like"
