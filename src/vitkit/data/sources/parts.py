"""Train, val and test: what people call them, in the names of files and in a column."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from vitkit.system.storage.remote import without_query

# What people call the parts of a data set, and what they are called here.
PARTS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
MAX_SHARDS = 100_000  # a larger number in a name is a mistake, or no number of shards

# What files of a data set are called, without suffix; only the part is needed.
# NAME-train, NAME-train-000, train-00000-of-00004, train-00000-of-00004-HASH
_FILE = re.compile(
    r"(?:(?P<name>.+)[-_.])??"
    rf"(?P<part>{'|'.join(PARTS)})"
    r"(?:[-_]\d+(?:-of-\d+(?:-[0-9a-f]+)?)?)?",
    re.IGNORECASE,
)
_SHARD = re.compile(r"(?P<name>.+)[-_](?P<shard>\d+)-of-(?P<shards>\d+)(?:-[0-9a-f]+)?")


def families(files: Iterable[str]) -> dict[str, dict[str, str]]:
    """The data sets among files that are named by part, by the name that their files share.

    Each is {file: part}. The name is "" for files like train-000.tar.
    """
    by_name: dict[str, dict[str, str]] = {}
    for file in sorted(files):
        match = _FILE.fullmatch(Path(without_query(file)).stem)
        if match and not Path(file).name.startswith("."):
            parts = by_name.setdefault(match["name"] or "", {})
            parts[file] = PARTS[match["part"].lower()]
    return by_name


def check_complete(files: Iterable[str]) -> None:
    """Raises ValueError if a shard of several is missing or is there twice.

    Without this, half a data set would train without a complaint.
    """
    # The shards of each name, by number; two of a number in one folder are one too many.
    shards: dict[tuple[str, int], dict[int, str]] = {}
    for file in files:
        match = _SHARD.fullmatch(Path(without_query(file)).stem)
        if not match:
            continue
        by_number = shards.setdefault((match["name"], int(match["shards"])), {})
        other = by_number.setdefault(int(match["shard"]), file)
        if other != file and Path(other).parent == Path(file).parent:
            raise ValueError(
                f"{other} and {Path(file).name} are the same shard of {match['name']}; remove one"
            )

    # A number without a shard.
    for (name, count), by_number in shards.items():
        if count > MAX_SHARDS:
            continue
        missing = sorted(set(range(count)) - set(by_number))
        if missing:
            folder = next(iter(by_number.values())).rpartition("/")[0] or "."
            raise ValueError(
                f"{folder} has {len(by_number)} of {count} {name} files; "
                f"number {missing[0]:05d} is missing"
            )


def as_parts(values: Sequence, where: str) -> np.ndarray:
    """The part of every row, by any of its usual names: (N,) objects.

    Raises ValueError, with the row, for a name that is not one of them.
    """
    parts = [PARTS.get(str(value).lower(), "") for value in values]
    if "" in parts:
        row = parts.index("")
        raise ValueError(
            f"{where} row {row} belongs to the part {values[row]!r}; "
            f"the parts are {', '.join(PARTS)}"
        )
    return np.array(parts, dtype=object)
