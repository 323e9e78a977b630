"""Files on this machine: written completely or not at all; and the cache of downloads and indices."""

import errno
import hashlib
import json
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any

from vitkit.system.errors import BadRun, BadSettings, Unavailable
from vitkit.system.storage.addresses import shown_address, values_without_credentials
from vitkit.system.values import fits

if TYPE_CHECKING:
    import numpy as np


def cache_dir() -> Path:
    """The folder for downloads and indices: $VITKIT_CACHE, or vitkit in the user's cache
    directory."""
    if own := os.environ.get("VITKIT_CACHE"):
        return Path(own)
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user_cache) / "vitkit"


def on_this_machine(path: Path) -> Path:
    """Return the path. Raises VitkitError for an address such as s3://bucket: results are written to this
    machine, and Path would create a folder named "s3:"."""
    if re.match(r"[a-z][a-z0-9+.\-]+:/", str(path), re.IGNORECASE):
        address = shown_address(str(path).replace(":/", "://", 1))  # Path merges two slashes
        raise BadSettings(
            f"{address} is an address, and results are written to a folder of this machine or of a "
            "file system that it has mounted; give such a folder, and copy it afterwards"
        )
    return path


def impossible(path: Path | str) -> str:
    """Why no file or folder can have this path, as the end of a sentence: "which is ..."; "" if one can. pathlib
    and `open` raise exceptions of several types for these paths. Addresses are not checked."""
    if "://" in str(path):
        return ""
    if path == "":
        return "which is empty"
    try:
        os.lstat(path)
    except ValueError:
        return "which contains a character that no file name can have"
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return "which is longer than the name of a file can be"
    return ""


def refuse_special(path: Path) -> Path:
    """Return the path. Raises VitkitError for a pipe, a device or a socket, because reading one may never
    end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise BadSettings(f"{path} is a pipe, a device or a socket; give a file or a directory")
    return path


START = 512  # bytes that are enough to recognise a page or a pointer
# A page, or the XML error of a store such as S3; an SVG image is XML too, but not one of these
PAGE = re.compile(rb"(<\?xml[^>]*>\s*)?<(!doctype html|html|error\b)", re.IGNORECASE)


def what_came_instead(file: Path | bytes) -> str:
    """If a download or a clone fetched something else instead of a file: what it is, and what to do, such as "a
    web page; ...". "" for any other file. The argument is the file or its first bytes."""
    if isinstance(file, Path):
        with file.open("rb") as opened:
            start = opened.read(START)
    else:
        start = file
    if start.startswith(b"version https://git-lfs"):
        return (
            "a pointer of Git LFS, which replaces the file in a clone; fetch the file itself: git lfs "
            "pull, in that clone"
        )
    if PAGE.match(start[:START].removeprefix(b"\xef\xbb\xbf").lstrip()):
        return (
            "a web page, which was downloaded in place of the file; download the file itself (at Hugging "
            "Face its address has /resolve/ in it, and not /blob/)"
        )
    return ""


def nearest(path: Path | str) -> str:
    """Return "; did you mean PATH?" with an existing file or folder of a similar name, for the message that
    there is none; "" without a similar name. Each parent folder may be misspelt too."""
    from difflib import get_close_matches

    missing = Path(path)
    if missing.exists():
        return ""
    near = Path(missing.anchor)
    for part in missing.relative_to(missing.anchor).parts:
        if (near / part).exists() or part == "..":
            near = near / part
            continue
        try:
            names = [path.name for path in near.iterdir()]
        except OSError:  # a file, or a folder without permission
            return ""
        by_case = {name.lower(): name for name in names}
        close = get_close_matches(part.lower(), by_case, 1, 0.7)
        if not close:
            return ""
        near = near / by_case[close[0]]
    return f"; did you mean {near}?"


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path to write to. At the end of the context, when its content is on the disk, it is renamed
    to `path`; after an error it is deleted.

    Its name is random, so that several processes can write the same file. Raises OSError.
    """
    new = path.with_name(f"{path.name}.{token_hex(4)}.new")
    try:
        with _full_disk_named(path, new):
            yield new
            with new.open("r+b") as file:
                os.fsync(file.fileno())
            new.replace(path)
    finally:
        new.unlink(missing_ok=True)


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk without space, a quota that is used up, and a file that is too large for a file system."""
LEAST_FREE = 1 << 20  # bytes; a disk with less is full


@contextmanager
def _full_disk_named(path: Path, new: Path) -> Iterator[None]:
    """A context in which errors of a full disk name the file or directory that was to be written. new: its
    temporary path."""
    try:
        yield
    except OSError as error:
        is_about_it = error.filename is None or str(error.filename).startswith(str(new))
        if error.errno in FULL and is_about_it:
            error.filename = str(path)
        raise
    except RuntimeError as error:  # libraries in C++ do not say that the disk is full
        free = LEAST_FREE
        with suppress(OSError):
            free = shutil.disk_usage(new.parent).free
        if type(error) is RuntimeError and free < LEAST_FREE:  # errors of vitkit say what they are
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of `whole` and `whole_files` that a killed process left in a folder.
    No other process may write there at the same time."""
    for path in folder.glob("*.new"):
        if not re.search(r"\.[0-9a-f]{8}\.new$", path.name):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, completely or not at all. Raises OSError."""
    with whole(path) as new:
        new.write_bytes(data)


METADATA = 1 << 20  # bytes at the end of a parquet file that are searched for its metadata
MARK = "written by vitkit"
"""Included near the beginning, or in the metadata, of every file that a command writes to a path from the
user: such a file may be replaced."""


def mark_of(content: bytes) -> str:
    """The mark for a line of a text file before this content, with a hash: the file may be replaced only if
    the content has not been edited."""
    return f"{MARK}: {hashlib.sha256(content).hexdigest()[:16]}"


def _is_ours(file: Path) -> bool:
    """Whether vitkit wrote a file, and, if its mark has a hash, it has not been edited since."""
    with file.open("rb") as opened:
        beginning = opened.read(4096)
        if beginning.startswith(b"PAR1"):  # parquet, whose metadata is at its end
            opened.seek(max(0, file.stat().st_size - METADATA))
            return MARK.encode() in opened.read()
        if MARK.encode() not in beginning:
            return False
        if not re.search(MARK.encode() + rb": [0-9a-f]{16}\n", beginning):
            return True
        opened.seek(0)
        line, _, content = opened.read().partition(b"\n")
    return line.endswith(mark_of(content).encode())


def check_replaceable(path: Path) -> None:
    """Raise VitkitError if a file cannot be written, or if it would replace one that vitkit did not write.
    Called before the computation of the file's content."""
    if path.is_dir():
        raise BadSettings(f"{path} is a directory; give the name of a file in it")
    if path.exists() and not path.is_file():
        raise BadSettings(f"{path} is no ordinary file; give another name")
    if path.is_file() and path.stat().st_size > 0 and not _is_ours(path):
        raise BadSettings(
            f"{path} is there, and is not as vitkit wrote it, so it is not replaced; give "
            "another name, or remove it"
        )

    check_can_be_made(path)


def check_can_be_made(path: Path) -> None:
    """Raise VitkitError if a file or directory cannot be created at a path, because its folder, or the folder
    where that would be created, is not writable."""
    folder = on_this_machine(path).absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise Unavailable(
            f"{path} could not be written: {folder} is no folder that you may write to"
        )


def write_where_said(path: Path, data: bytes) -> None:
    """Write a file to a path from the user, completely or not at all, also through a link; creates missing
    folders. Raises OSError, and VitkitError for an existing file that vitkit did not write."""
    check_replaceable(path)
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)


def parse_json(text: bytes | str, kind: type[dict] = dict) -> Any:
    """Parse JSON, with its objects as this kind of dict. Raises only VitkitError, also if it is nested too
    deeply for Python."""
    hook = None if kind is dict else kind
    try:
        return json.loads(text, object_hook=hook)
    except RecursionError:
        raise BadRun("it is nested too deeply") from None


Types = dict[str, Any]
"""The types of values in an object, by name."""
NUMBER = float
"""Includes whole numbers."""


class Record(dict):
    """An object of a JSON file that this program wrote. A missing key raises VitkitError with a sentence
    instead of KeyError: the file is damaged, or of another version."""

    def __missing__(self, name: str):
        raise BadRun(
            f"{name!r} is missing in what was written down, which is damaged or of another version"
        )


LARGEST = 1 << 63  # limit of numbers in records; Python also reads larger ones, NaN and Infinity


def check_types(values: dict, types: Types) -> None:
    """Raise VitkitError if an existing value has none of its types. Names may refer to inner objects:
    "data.source". Numbers must be finite and below 2^63, and True and False are not numbers."""
    for name, expected in types.items():
        value: Any = values
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is None:
            continue
        is_too_large = isinstance(value, int | float) and not abs(value) < LARGEST  # also NaN
        if not fits(expected, value) or is_too_large:
            raise BadRun(f"{name} is {repr(value)[:100]}, which is not what was written")


def as_utf8(text: str) -> bytes:
    """A text as UTF-8, with escapes ("\\udce9") for bytes of a name that is not UTF-8: JSON restores the name
    when it is read."""
    return text.encode("utf-8", "backslashreplace")


def as_text(name: str) -> str:
    """A name that UTF-8 can represent: other bytes become escapes ("\\udce9")."""
    return as_utf8(name).decode()


def write_json(path: Path, value: dict) -> None:
    """Write a JSON file, completely or not at all, without credentials in its addresses. Raises OSError."""
    text = json.dumps(values_without_credentials(value), indent=1, ensure_ascii=False)
    write_whole(path, as_utf8(text))


@contextmanager
def whole_files(
    path: Path, first: str = "", last: str = "", named: Path | None = None
) -> Iterator[Path]:
    """A temporary directory to write files to. At the end of the context they are moved to the directory
    `path`, the file named `first` before and the one named `last` after the others. They replace files of the
    same names; other files stay, and so does the directory itself, which may be a link, a mounted disk, or
    have its own permissions.

    After an error, the new files are deleted, and `path` is unchanged. Raises OSError, which names `named`, or
    else `path`, if the disk is full.
    """
    is_new = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    new = path / f".{token_hex(4)}.new"  # on the same disk, so that files can be renamed
    new.mkdir()
    try:
        with _full_disk_named(named or path, new):
            yield new
            for file in new.iterdir():
                sync(file)
            for file in sorted(
                new.iterdir(), key=lambda file: (file.name == last, file.name != first)
            ):
                file.replace(path / file.name)
            sync(path)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        if is_new:
            with suppress(OSError):  # some of the files are already in it
                path.rmdir()
        raise
    new.rmdir()


def save_npz(file: Path | IO[bytes], arrays: Mapping[str, "np.ndarray"]) -> None:
    """Like numpy.savez, but without the time that it stores with each array, so that equal runs write equal
    files. Pickles nothing. Raises OSError, and VitkitError for arrays of objects."""
    import numpy as np

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # with 1980, the first date in ZIP files
            with archive.open(member, "w", force_zip64=True) as opened:
                np.lib.format.write_array(opened, np.asanyarray(array), allow_pickle=False)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A temporary folder on the disk of `path`, which need not exist yet, during a context. Raises
    VitkitError if that disk is not writable."""
    nearest = path.absolute().parent
    while not nearest.exists():
        nearest = nearest.parent
    try:
        folder = TemporaryDirectory(prefix=".", suffix=".new", dir=nearest)
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be written: {nearest} takes no new files ({error.strerror})"
        ) from error
    with folder as name, _full_disk_named(path, Path(name)):
        yield Path(name)


def sync(path: Path) -> None:
    """Wait until a file or directory is physically on the disk. Raises OSError."""
    flags = os.O_RDONLY
    if sys.platform == "win32":  # it cannot open directories, and syncs only writable files
        if path.is_dir():
            return
        flags = os.O_RDWR
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def give_usual_permissions(file: Path) -> None:
    """Give a file that a library made readable only for its owner the permissions of a new file, according to
    the user's umask."""
    mask = os.umask(0o077)
    os.umask(mask)  # setting it is the only way to read it
    file.chmod(0o666 & ~mask)
