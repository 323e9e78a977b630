"""Local and remote files: paths, and addresses (https://, s3://, gs://, hf:// ...), which fsspec opens.

A pattern may name several files. Braces are expanded, whether the files exist or not:
"train-{000..146}.tar", "a/{x,y}.parquet". Wildcards ("*", "?", "[...]") match existing files.
"""

import glob
import io
import re
from pathlib import Path

from vitkit.system.errors import BadData, Forbidden, Unavailable
from vitkit.system.storage.addresses import shown_address
from vitkit.system.storage.retries import is_missing, with_retries

BLOCK = 8 << 20  # bytes per request for a remote file that is read from start to end
MOST_FILES = 100_000  # limit of the files of a pattern
MOST_CHARACTERS = 1 << 27  # limit of all their names: an untrusted pattern must not fill the memory
LONGEST_SHOWN = 300  # characters of a pattern in an error
MOST_DIGITS = 18  # limit of the digits of a number between braces
WILDCARDS = "*?["
_BRACES = re.compile(r"\{([^{}]*)\}")  # innermost braces
_ADDRESS = re.compile(r"[a-z][a-z0-9+.\-]+://", re.IGNORECASE)
_RANGE = re.compile(r"(\d+)\.\.(\d+)")  # 000..146


def is_address(where: str) -> bool:
    """Whether a text is an address, which fsspec reads: it has a scheme, such as s3://."""
    return bool(_ADDRESS.match(where))


def is_pattern(where: str) -> bool:
    """Whether a name may be a pattern for several files. It may also be the name of one file, so callers
    check first whether that exists."""
    return any(sign in where for sign in "{" + WILDCARDS)


def without_query(where: str) -> str:
    """A web address without its query, such as a signature, where "?" is not a wildcard. Other names
    unchanged."""
    if where.lower().startswith(("http://", "https://")):
        return where.partition("?")[0]
    return where


def suffix(where: str) -> str:
    """The suffix of a path or an address in lower case, such as ".parquet"; "" if there is none."""
    return Path(without_query(where)).suffix.lower()


def expand(where: str) -> list[str]:
    """The files of a path, an address or a pattern, sorted.

    The address of a folder means all files in it. Raises VitkitError for a pattern without matches, OSError
    for an address that does not respond.
    """
    files = []
    for name in expand_braces(where):
        if is_address(name):
            files += _remote_files(name)
        elif _has_wildcards(name):
            files += glob.glob(name)  # noqa: PTH207 the user's pattern, absolute or not
        else:
            files.append(name)
    if not files:
        raise BadData(f"{shown_address(where)} matches no file")
    return sorted(set(files))


def _has_wildcards(name: str) -> bool:
    return any(sign in name for sign in WILDCARDS)


def expand_braces(where: str) -> list[str]:
    """Expand the braces of a pattern to all of its names. Raises VitkitError for too many."""
    names = []
    to_expand = [where]
    written = 0  # characters
    while to_expand:
        name = to_expand.pop()
        match = _BRACES.search(name)
        if not match:
            names.append(name)
            continue
        before = name[: match.start()]
        after = name[match.end() :]
        count = _count(match[1])
        written += count * len(name)
        if len(names) + len(to_expand) + count > MOST_FILES:
            raise BadData(f"{_shown(where)} represents more than {MOST_FILES:,} files")
        if written > MOST_CHARACTERS:
            raise BadData(f"{_shown(where)} represents too many or too long names")
        to_expand += [before + choice + after for choice in _choices(match[1])]
    return names


def _shown(where: str) -> str:
    """A pattern for an error, shortened if it is long."""
    shown = shown_address(where)
    if len(shown) > LONGEST_SHOWN:
        return f"{shown[:LONGEST_SHOWN]}..."
    return shown


def _count(braces: str) -> int:
    """The number of choices between braces."""
    match = _RANGE.fullmatch(braces)
    if not match:
        return braces.count(",") + 1
    if max(map(len, match.groups())) > MOST_DIGITS:
        return MOST_FILES + 1  # int() refuses thousands of digits
    first, last = map(int, match.groups())
    return max(0, last + 1 - first)


def _choices(braces: str) -> list[str]:
    """The choices between braces: "x,y" is ["x", "y"], "08..10" is ["08", "09", "10"]."""
    match = _RANGE.fullmatch(braces)
    if not match:
        return braces.split(",")
    first, last = match.groups()
    digits = len(first)  # keeps leading zeros
    return [f"{number:0{digits}d}" for number in range(int(first), int(last) + 1)]


def _remote_files(address: str) -> list[str]:
    """The files of an address: those of a pattern, those in a folder, or one file. Raises OSError."""

    def list_files(system, path: str) -> list[str]:
        if _has_wildcards(without_query(path)):
            paths = system.glob(path)
        elif suffix(path) and not address.endswith("/"):
            return [address]  # a file: checking whether it exists would take a request for each
        elif system.isdir(path):
            listed = system.ls(path, detail=False)
            paths = [entry for entry in listed if Path(entry).suffix]  # without folders
        else:
            system.info(path)  # raises an error with the reason, unlike `exists`
            paths = [path]
        return [system.unstrip_protocol(path) for path in paths]

    return with_retries(list_files, address)


def open_file(path: str):
    """Open a local or remote file for reading bytes. A remote one is fetched in BLOCKs. Raises OSError."""
    if not is_address(path):
        return open(path, "rb")  # noqa: PTH123 the caller closes it
    return io.BufferedReader(_Remote(path), BLOCK)


def parquet_file(path: str):
    """Open a local or remote parquet file with pyarrow, for use in a `with`. Raises OSError, and pyarrow's
    own errors."""
    import pyarrow.parquet as pq

    if not is_address(path):
        return pq.ParquetFile(path, memory_map=True)
    # Without our blocks: pyarrow reads the footer and whole columns by offset, and blocks would also fetch
    # the bytes between them
    return pq.ParquetFile(_Remote(path), pre_buffer=True)


class _Remote(io.RawIOBase):
    """A remote file with Python's file interface. Every read is a request for a range of bytes, with several
    attempts: fsspec's own files may fail halfway and then stay broken."""

    def __init__(self, address: str):
        self.address = address
        self.position = 0
        self.size = size_of(address)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        origins = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}
        self.position = origins[whence] + offset
        return self.position

    def tell(self) -> int:
        return self.position

    def readinto(self, buffer) -> int:
        count = max(0, min(len(buffer), self.size - self.position))
        if count:
            buffer[:count] = read_range(self.address, self.position, self.position + count)
        self.position += count
        return count


def size_of(path: str) -> int:
    """The size of a local or remote file in bytes. Raises OSError, also if a server does not give it."""
    if not is_address(path):
        return Path(path).stat().st_size
    size = with_retries(lambda system, name: system.info(name)["size"], path)
    if size is None:
        raise Unavailable(
            f"{shown_address(path)} cannot be read in parts: the server does not say how large it is"
        )
    return size


def read_range(address: str, start: int, end: int) -> bytes:
    """The bytes from `start` up to `end` of a local or remote file. Raises OSError, also if a server
    ignores the range and sends another number of bytes."""
    if not is_address(address):
        with Path(address).open("rb") as file:
            file.seek(start)
            return file.read(end - start)
    data = with_retries(lambda system, name: system.cat_file(name, start=start, end=end), address)
    if len(data) != end - start:
        raise Unavailable(
            f"{shown_address(address)}: asked for {end - start:,} bytes from {start:,}, {len(data):,} came: the "
            "file is shorter than it was, or the server does not serve parts of files"
        )
    return data


def exists(path: str) -> bool:
    """Whether a file exists. Raises OSError for an address that does not respond. False for a forbidden file:
    some object stores return that error for files that do not exist."""
    if not is_address(path):
        return Path(path).is_file()

    def is_file(system, name: str) -> bool:
        # `system.isfile` would also be False while a server is busy
        try:
            return system.info(name)["type"] == "file"
        except FileNotFoundError as error:
            if is_missing(error):
                return False
            raise

    try:
        return with_retries(is_file, path)
    except Forbidden:
        return False


def state_of(path: str) -> str:
    """A text that changes when the file does: its path, size, times and other data from a server.
    Raises OSError."""
    if not is_address(path):
        stat = Path(path).stat()
        # A copy may keep the original's size and mtime, but has a ctime and an inode of its own
        numbers = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
        return " ".join([str(Path(path).absolute()), *map(str, numbers)])
    info = with_retries(lambda system, name: system.info(name), path)
    known = [str(info[key]) for key in _STATE if info.get(key) is not None]
    return " ".join([path, *known])


# Attributes that change with a file, by the names of http, s3, gs, abfs, hf and others
_STATE = (
    "size", "ETag", "etag", "Content-MD5", "md5Hash", "generation", "blob_id",
    "Last-Modified", "LastModified", "last_modified", "updated", "mtime", "created",
)  # fmt: skip
