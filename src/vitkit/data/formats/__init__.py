"""Kinds of data sets, one file each.

A new one is a file in this folder and a line in a table: FORMATS here, or SHARDED in shards.py.
"""

from collections.abc import Callable
from pathlib import Path

from vitkit.data.formats.folder import read_folder
from vitkit.data.formats.hub import read_hub
from vitkit.data.formats.manifest import (
    MANIFEST_SUFFIXES,
    images_of_selection,
    read_lists,
    read_manifest,
    read_selection,
    select,
)
from vitkit.data.formats.published import read_digits, read_published
from vitkit.data.formats.shards import SHARDED, named_beside, read_shards
from vitkit.data.sources.tables import Columns, Table
from vitkit.system.console.text import quoted
from vitkit.system.errors import BadData
from vitkit.system.storage.files import impossible, nearest, refuse_special

# Each reads the data set at a path, an address or a name, or returns None if it is of another kind.
# The order matters, because the first that reads it wins: a folder of shards is not read as images.
FORMATS: tuple[Callable[[str, Columns], Table | None], ...] = (
    read_digits,
    read_hub,
    read_manifest,
    read_lists,
    read_published,
    read_shards,
    read_folder,
)
DATA_SUFFIXES = (*MANIFEST_SUFFIXES, *SHARDED)  # of files that are data sets


def read_table(where: str, columns: Columns) -> Table:
    """Read a data set of any kind as a table. Raises VitkitError if it does not exist or is malformed."""
    if reason := impossible(where):
        raise BadData(f"the data set is {quoted(where)}, {reason}; give another name")
    refuse_special(Path(where))
    selection = read_selection(where, columns)
    if selection is not None:
        everything = read_table(images_of_selection(where, selection), Columns(target="none"))
        return select(where, selection, everything)
    for read in FORMATS:
        table = read(where, columns)
        if table is None:
            continue
        if columns.group is not None and table.groups is None:
            raise BadData(
                f"{where} has no column {columns.group!r} that says which images belong together: a "
                "manifest or a parquet file may have one; leave out `groups`"
            )
        return table
    if Path(where).is_file():
        known = ", ".join(DATA_SUFFIXES[:-1])
        raise BadData(
            f"{where} is not a {known} or {DATA_SUFFIXES[-1]} file; give one, or a folder of images"
        )
    message = f"there is no folder, file or data set {where!r}{nearest(where)}"
    nearby = named_beside(where)
    if nearby:
        message += f"; beside it there are {', '.join(nearby)}"
    raise BadData(message)
