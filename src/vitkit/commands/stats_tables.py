"""What `vitkit data stats` saw, as tables and sentences."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

SHOWN = 20  # classes whose counts are printed; of more the ends
LISTED = 10  # broken images and duplicates that are printed


def print_tables(description: dict, same_classes: list[str]) -> None:
    """Print what `describe` made of a data set; same_classes: the parts whose classes are the data set's own."""
    _print_parts(description)
    _print_classes(description, same_classes)
    for name, part in description["parts"].items():
        for sentence in part["broken"][:LISTED]:
            print(f"broken, in {name}: {sentence}")
    for pair in description["pairs"]:
        _print_pairs(pair)


def _print_parts(description: dict) -> None:
    """A column for every part."""
    parts = description["parts"]
    columns = [_column(part, description) for part in parts.values()]
    table = Table("", *map(escape, parts))
    for title in columns[0]:
        table.add_row(title, *(column[title] for column in columns))
    Console().print(table)


def _column(part: dict, description: dict) -> dict[str, str]:
    """What there is to say of a part, by title; the titles are the same for all parts."""
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
        counts = part["classes"] or [0]  # another data set may have none
        occur = sum(count > 0 for count in counts)
        column["classes that occur"] = f"{occur:,} of {len(part['classes']):,}"
        column["images a class: least, most"] = f"{min(counts):,}, {max(counts):,}"
    if target == "number":
        column["number: least, median, most"] = ", ".join(f"{x:g}" for x in part["numbers"])
    column["broken"] = f"{len(part['broken']):,}"
    column["more copies of the same file"] = f"{copies:,}"
    if target not in ("none", "number"):
        column["same file, other class"] = f"{part['same file, other class']:,}"
    return column


def _print_classes(description: dict, same_classes: list[str]) -> None:
    """How many images each class has, the most first; of many classes the ends."""
    labels = description["classes"]
    if not labels:
        return
    counts = {name: description["parts"][name]["classes"] for name in same_classes}
    first = next(iter(counts.values()))
    order = sorted(range(len(labels)), key=lambda k: -first[k])
    table = Table("class", *map(escape, counts))
    for place, k in enumerate(order):
        from_end = len(order) - place
        if place < SHOWN // 2 or from_end <= SHOWN // 2:
            table.add_row(Text(labels[k]), *(f"{of_part[k]:,}" for of_part in counts.values()))
        elif place == SHOWN // 2:
            table.add_row("...")
    Console().print(table)


def _print_pairs(pair: dict) -> None:
    """What two parts have in common, and the first of it by name."""
    first, second = pair["parts"]
    same = pair["same"]
    alike = len(pair["pairs"]) - same
    print(
        f"{first} and {second}: files in both: {same:,}; others of {first} that look like one of {second}: {alike:,}"
    )
    for name, other, bits, count in pair["pairs"][:LISTED]:
        likeness = "the same as" if bits < 0 else "like"
        more = f" and {count - 1:,} more" if count > 1 else ""
        print(f"  {name} is {likeness} {other}{more}")
    if pair["other class"]:
        print(
            f"warning: of another class than what they are like: {pair['other class']:,}; a label is wrong, or these are "
            f"no duplicates: look at them with --sheet FILE"
        )
