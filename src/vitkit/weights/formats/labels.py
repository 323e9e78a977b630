"""Names of a head's outputs, in the notations of other libraries' files."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from vitkit.system.console.text import some
from vitkit.weights.outputs import counted_classes

NUMBER = r"[0-9]{1,9}"  # of an output, as text


def named_outputs(
    field: str, written: object, classes: int
) -> tuple[tuple[str, ...] | None, list[str]]:
    """A unique name for every output, and a note if names were changed; None if there are no readable
    names.

    `written` is the value of this field: a list of names, {number: name}, or {name: number}. Numbers may
    begin at 1. An output without a name gets its number, and equal names get their numbers appended.
    Transformers' generated names, LABEL_0 and so on, do not count.
    """
    if not written or not classes:
        return None, []
    names = _by_number(written, names_first=field == "label2id")
    if names is None:
        note = f"labels: numbers, because {field} does not map outputs to names"
        return None, [note]
    names = {number: name for number, name in names.items() if name != f"LABEL_{number}"}
    if not names:
        return None, []

    # Numbers that the head's outputs do not have
    remarks = []
    if names.keys() == set(range(1, classes + 1)):
        names = {number - 1: name for number, name in names.items()}
        remarks.append(f"{field} counts from 1, so its 1 names the first output")
    if max(names) >= classes:
        note = (
            f"labels: numbers, because {field} names an output {max(names)}, but the head has "
            f"{counted_classes(classes)}, counted from 0"
        )
        return None, [note]

    # Outputs without a name, and names of several outputs
    unnamed = [str(number) for number in range(classes) if number not in names]
    if unnamed:
        remarks.append(
            f"{field} names {len(names):,} of {classes:,} outputs; the others have their number "
            f"({some(unnamed, 3)})"
        )
    counts = Counter(names.values())
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        remarks.append(
            f"{field} has equal names for several outputs, which get their number ({some(repeated, 3)})"
        )
    labels = []
    for number in range(classes):
        label = names.get(number, str(number))
        if counts[label] > 1:
            label = f"{label} ({number})"
        labels.append(label)
    if len(set(labels)) < classes:  # another class is already named "3", or "crane (134)"
        return None, [f"labels: numbers, because the names in {field} are not unique"]
    notes = []
    if remarks:
        notes = [f"labels: {'; '.join(remarks)}"]
    return tuple(labels), notes


def _by_number(written: object, names_first: bool) -> dict[int, str] | None:
    """The names by the number of the output; None if the value has another form. A number with several
    names is left out. names_first: whether an ambiguous object is {name: number}."""
    pairs: list[tuple[int, Any]] | None = None
    if isinstance(written, list | tuple):
        pairs = list(enumerate(written))
    elif isinstance(written, Mapping):
        readings = [list(written.items()), [(value, key) for key, value in written.items()]]
        if names_first:
            readings.reverse()
        numbered = [[(_number(key), value) for key, value in reading] for reading in readings]
        complete = [[(n, value) for n, value in each if n is not None] for each in numbered]
        pairs = next((each for each in complete if len(each) == len(written)), None)
    if pairs is None:
        return None
    counts = Counter(number for number, _ in pairs)
    names = {}
    for number, value in pairs:
        name = _name(value)
        if name is not None and counts[number] == 1:
            names[number] = name
    return names


def _number(value: object) -> int | None:
    """The number of an output, which is text in keys of JSON; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and re.fullmatch(NUMBER, value):
        return int(value)
    return None


def _name(value: object) -> str | None:
    """A name as text; None for a value that is not a name."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    return str(value) or None
