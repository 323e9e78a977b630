"""Kinds of data sets, one file each. A new one is a file in this room and a line in a table: here, or SHARDED in shards.py."""

from collections.abc import Callable
from pathlib import Path

from vitkit.data.formats import manifest
from vitkit.data.formats.digits import read_digits
from vitkit.data.formats.folder import read_folder
from vitkit.data.formats.hub import read_hub
from vitkit.data.formats.manifest import read_manifest
from vitkit.data.formats.shards import SHARDED, named_beside, read_shards
from vitkit.data.tables import Columns, Table

# Each reads what a path, an address or a name stands for, or returns None if that is another kind. The first that reads
# it counts: a folder of shards is no folder of images.
FORMATS: tuple[Callable[[str, Columns], Table | None], ...] = (
    read_digits,
    read_hub,
    read_manifest,
    read_shards,
    read_folder,
)
SUFFIXES = (*manifest.SUFFIXES, *SHARDED)  # of files that are data sets


def read_table(where: str, columns: Columns) -> Table:
    """A data set of any kind, as a table. Raises ValueError, in one sentence, for what is not there or malformed."""
    for read in FORMATS:
        table = read(where, columns)
        if table is not None:
            return table
    if Path(where).is_file():
        known = ", ".join(SUFFIXES[:-1])
        raise ValueError(
            f"{where} is no {known} or {SUFFIXES[-1]} file; give one, or a folder of images"
        )
    names = named_beside(where)
    nearby = f"; beside it there are {', '.join(names)}" if names else ""
    raise ValueError(f"there is no folder, file or data set {where!r}{nearby}")
