"""Train, val and test: what people call them, in the names of files and in a column."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from vitkit.system.remote import plain

# What people call the parts of a data set, and what they are called here.
PARTS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val"}
PARTS |= {"dev": "val", "test": "test", "testing": "test"}

# A name, a part and a shard, of which the part is needed:
# NAME-train.parquet, train-00000-of-00004.parquet, NAME-train-000.tar
_FILE = re.compile(
    rf"(?:(?P<name>.+)[-_.])??(?P<part>{'|'.join(PARTS)})(?:[-_]\d+(?:-of-\d+(?:-[0-9a-f]+)?)?)?",
    re.IGNORECASE,
)
_SHARD = re.compile(r"(?P<name>.+)[-_](?P<shard>\d+)-of-(?P<shards>\d+)(?:-[0-9a-f]+)?")


def families(files: Iterable[str]) -> dict[str, dict[str, str]]:
    """The data sets among files that are named by part, by the name that their files share.

    Each is {file: part}. The name is "" for files like train-000.tar.
    """
    by_name: dict[str, dict[str, str]] = {}
    for file in sorted(files):
        match = _FILE.fullmatch(Path(plain(file)).stem)
        if match and not Path(file).name.startswith("."):
            parts = by_name.setdefault(match["name"] or "", {})
            parts[file] = PARTS[match["part"].lower()]
    return by_name


def complete(files: Iterable[str]) -> None:
    """Raises ValueError if a shard of several is missing or is there twice.

    Without this, half a data set would train without a complaint.
    """
    shards: dict[tuple[str, int], dict[int, str]] = {}
    for file in files:
        match = _SHARD.fullmatch(Path(plain(file)).stem)
        if not match:
            continue
        numbered = shards.setdefault((match["name"], int(match["shards"])), {})
        before = numbered.setdefault(int(match["shard"]), file)
        if before != file and Path(before).parent == Path(file).parent:
            raise ValueError(
                f"{before} and {Path(file).name} are the same shard of {match['name']}; remove one"
            )
    for (name, count), numbered in shards.items():
        missing = sorted(set(range(min(count, 100_000))) - set(numbered))
        if missing and count <= 100_000:
            folder = next(iter(numbered.values())).rpartition("/")[0] or "."
            raise ValueError(
                f"{folder} has {len(numbered)} of {count} {name} files; "
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
            f"{where} row {row} belongs to the split {values[row]!r}; "
            f"the splits are {', '.join(PARTS)}"
        )
    return np.array(parts, dtype=object)
