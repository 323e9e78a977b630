"""Files that are a data set alone or together, on this machine or by address: parquet files and tar
shards."""

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
# By suffix: what reads {file: the part it belongs to, or ""} as one table.
SHARDED: dict[str, Callable[[dict[str, str], Columns], Table]] = {
    ".parquet": read_parquet,
    ".tar": read_tars,
}


def read_shards(where: str, columns: Columns) -> Table | None:
    """A file, a folder of files, NAME for NAME-train*.parquet and its siblings, a pattern, or an
    address of any of these. Returns None if it is none of them. Raises VitkitError for files that do
    not belong to one data set."""
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
    siblings = _families_in(path.parent).get(path.name)
    if not siblings:
        return None
    return _read_files(where, list(siblings), columns)


def named_beside(where: str) -> list[str]:
    """The data sets of several files that lie in the folder where one was looked for."""
    return sorted(filter(None, _families_in(Path(where).parent)))


def _families_in(folder: Path) -> dict[str, dict[str, str]]:
    """The data sets of several files in a folder, as `_families` has them; {} if there is no such
    folder."""
    if not folder.is_dir():
        return {}
    return _families(str(file) for file in _files_in(folder))


def _files_in(folder: Path) -> list[Path]:
    """Every parquet file or tar shard in a folder."""
    files = [refuse_special(file) for file in folder.glob("*") if file.suffix.lower() in SHARDED]
    return sorted(file for file in files if not file.name.startswith("."))


def _read_folder(path: Path, columns: Columns) -> Table | None:
    """The files in a folder, or in "data" below it, as the hub has them; None if there are none."""
    for folder in (path, path / "data"):
        named = _families_in(folder)
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
    """These files of a folder. Others of their kind are noted; class folders are refused, as they
    may be what is meant."""
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
    note = f"left out, as their names say no part: {some(others)}"
    return table._replace(notes=(*table.notes, note))


def _read_files(where: str, files: list[str], columns: Columns) -> Table:
    """Files of one kind, each of a part if all their names say so."""
    files = [file for file in files if remote.suffix(file) in SHARDED]
    kinds = {remote.suffix(file) for file in files}
    if len(kinds) != 1:
        present = " and ".join(sorted(kinds)) or f"no {' or '.join(SHARDED)}"
        raise BadData(f"{where} holds {present} files; expected one kind")
    named = _families(files)
    if len(named) > 1:
        raise BadData(f"{where} holds several data sets: {', '.join(sorted(named))}; name one")
    read = SHARDED[kinds.pop()]
    no_parts = dict.fromkeys(files, "")
    if files == [where]:  # a file that is asked for alone is all there is
        return read(no_parts, columns)
    _check_complete(files)
    parts = next(iter(named.values()), {})
    if len(parts) < len(files):  # a name does not say its part
        parts = no_parts
    return read(parts, columns)


# What the names of files say


def _families(files: Iterable[str]) -> dict[str, dict[str, str]]:
    """The data sets among files that are named by part, by the name that their files share.

    Each is {file: part}. The name is "" for files like train-000.tar.
    """
    by_name: dict[str, dict[str, str]] = {}
    for file in sorted(files):
        match = _FILE.fullmatch(Path(remote.without_query(file)).stem)
        if match and not Path(file).name.startswith("."):
            parts = by_name.setdefault(match["name"] or "", {})
            parts[file] = PARTS[match["part"].lower()]
    return by_name


def _check_complete(files: Iterable[str]) -> None:
    """Raises VitkitError if a shard of several is missing or is there twice. Without this, half a
    data set would train without a complaint."""
    # The shards of each name, by number; two of a number in one folder are one too many.
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

    # A number without a shard.
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
    """Where a file lies; a signature in its address, which may have a slash, is no part of that."""
    return remote.without_query(file).rpartition("/")[0] or "."
