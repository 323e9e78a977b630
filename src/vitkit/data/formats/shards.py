"""Parquet files and tar shards, local or remote: each is a data set alone, or together with others."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from vitkit.data.formats.folder import folder_of_images
from vitkit.data.formats.parquet import read_parquet
from vitkit.data.formats.tar import read_tars
from vitkit.data.sources.tables import PARTS, Columns, Table
from vitkit.system.console.text import some
from vitkit.system.errors import BadData
from vitkit.system.storage import remote
from vitkit.system.storage.files import refuse_special

MAX_SHARDS = 100_000  # a larger number in a name is not a number of shards

# Names of files of a data set, without suffix; only the part is required.
# NAME-train, NAME-train-000, train-00000-of-00004, train-00000-of-00004-HASH
_FILE = re.compile(
    r"(?:(?P<name>.+)[-_.])??"
    rf"(?P<part>{'|'.join(PARTS)})"
    r"(?:[-_]\d+(?:-of-\d+(?:-[0-9a-f]+)?)?)?",
    re.IGNORECASE,
)
_SHARD = re.compile(r"(?P<name>.+)[-_](?P<shard>\d+)-of-(?P<shards>\d+)(?:-[0-9a-f]+)?")
# By suffix: the function that reads {file: its part, or ""} as one table
SHARDED: dict[str, Callable[[dict[str, str], Columns], Table]] = {
    ".parquet": read_parquet,
    ".tar": read_tars,
}


def read_shards(where: str, columns: Columns) -> Table | None:
    """Read a file, a folder of files, NAME for NAME-train*.parquet and its siblings, a pattern, or an
    address of any of these. Returns None for anything else. Raises VitkitError for files that do not
    belong to one data set."""
    path = Path(where)
    if path.is_dir():
        return _read_folder(path, columns)
    if path.is_file():
        read = SHARDED.get(path.suffix.lower())
        if read is None:
            return None
        return read({where: ""}, columns)
    if remote.is_address(where) or remote.is_pattern(where):
        return _read_files(where, remote.expand(where), columns)
    siblings = _data_sets_in(path.parent).get(path.name)
    if not siblings:
        return None
    return _read_files(where, list(siblings), columns)


def named_beside(where: str) -> list[str]:
    """The names of data sets of several files in the folder that `where` would lie in."""
    return sorted(filter(None, _data_sets_in(Path(where).parent)))


def _data_sets_in(folder: Path) -> dict[str, dict[str, str]]:
    """The data sets of several files in a folder (`_data_sets`); {} if the folder does not exist."""
    if not folder.is_dir():
        return {}
    return _data_sets(str(file) for file in _files_in(folder))


def _files_in(folder: Path) -> list[Path]:
    """Every parquet file or tar shard in a folder."""
    files = [refuse_special(file) for file in folder.glob("*") if file.suffix.lower() in SHARDED]
    return sorted(file for file in files if not file.name.startswith("."))


def _read_folder(path: Path, columns: Columns) -> Table | None:
    """Read the files in a folder, or in "data" below it, as on the hub; None if there are none."""
    for folder in (path, path / "data"):
        named = _data_sets_in(folder)
        if len(named) > 1:
            names = ", ".join(str(folder / name) for name in sorted(named))
            raise BadData(f"{path} holds several data sets; name one: {names}")
        if named:
            return _read_beside(folder, list(next(iter(named.values()))), columns)
    unnamed = [str(file) for file in _files_in(path)]
    if not unnamed:
        return None
    return _read_beside(path, unnamed, columns)


def _read_beside(folder: Path, files: list[str], columns: Columns) -> Table:
    """Read these files of a folder. Other files of the same kind are noted. Class folders beside them
    are refused, because they may be the data set that the user means."""
    inner = folder_of_images(folder)
    if inner:
        raise BadData(
            f"{folder} holds {Path(files[0]).name} and folders of images ({inner}); "
            f"give the file, or move one of them"
        )
    table = _read_files(str(folder), files, columns)
    others = [file.name for file in _files_in(folder) if str(file) not in files]
    if not others:
        return table
    note = f"left out, as their names contain no part: {some(others)}"
    return table._replace(notes=(*table.notes, note))


def _read_files(where: str, files: list[str], columns: Columns) -> Table:
    """Read files of one kind. They belong to parts if all of their names contain one."""
    files = [file for file in files if remote.suffix(file) in SHARDED]
    kinds = {remote.suffix(file) for file in files}
    if len(kinds) != 1:
        present = " and ".join(sorted(kinds)) or f"no {' or '.join(SHARDED)}"
        raise BadData(f"{where} holds {present} files; expected one kind")
    named = _data_sets(files)
    if len(named) > 1:
        raise BadData(f"{where} holds several data sets: {', '.join(sorted(named))}; name one")
    read = SHARDED[kinds.pop()]
    no_parts = dict.fromkeys(files, "")
    if files == [where]:  # a single file is complete without its siblings
        return read(no_parts, columns)
    _check_complete(files)
    parts = next(iter(named.values()), {})
    if len(parts) < len(files):  # a name contains no part
        parts = no_parts
    return read(parts, columns)


# Parts and numbers in the names of files


def _data_sets(files: Iterable[str]) -> dict[str, dict[str, str]]:
    """Group files that are named by part into data sets: {shared name: {file: part}}.

    The shared name of files like train-000.tar is "".
    """
    by_name: dict[str, dict[str, str]] = {}
    for file in sorted(files):
        match = _FILE.fullmatch(Path(remote.without_query(file)).stem)
        if match and not Path(file).name.startswith("."):
            parts = by_name.setdefault(match["name"] or "", {})
            parts[file] = PARTS[match["part"].lower()]
    return by_name


def _check_complete(files: Iterable[str]) -> None:
    """Raise VitkitError if one of several numbered shards is missing or exists twice. Without this check,
    half a data set would train without any error."""
    # The shards of each name, by number. Two of a number in one folder are an error.
    shards: dict[tuple[str, int], dict[int, str]] = {}
    for file in files:
        match = _SHARD.fullmatch(Path(remote.without_query(file)).stem)
        if not match:
            continue
        by_number = shards.setdefault((match["name"], int(match["shards"])), {})
        other = by_number.setdefault(int(match["shard"]), file)
        if other != file and _folder_of(other) == _folder_of(file):
            name = Path(remote.without_query(file)).name
            raise BadData(f"{other} and {name} are the same shard of {match['name']}; remove one")

    # Missing numbers
    for (name, count), by_number in shards.items():
        if count > MAX_SHARDS:
            continue
        missing = sorted(set(range(count)) - set(by_number))
        if missing:
            folder = _folder_of(next(iter(by_number.values())))
            raise BadData(
                f"{folder} has {len(by_number)} of {count} {name} files; "
                f"number {missing[0]:05d} is missing"
            )


def _folder_of(file: str) -> str:
    """The folder of a file. The query of an address, which may contain slashes, is no part of it."""
    return remote.without_query(file).rpartition("/")[0] or "."
