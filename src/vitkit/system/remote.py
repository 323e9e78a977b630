"""Files wherever they lie: local paths, and addresses (https://, s3://, gs://, hf:// ...) that fsspec opens.

Patterns: "train-{000..146}.tar" and "a/{x,y}.parquet" are written out, "*", "?" and "[...]" match what is there.
"""

import glob
import io
import re
import time
from collections.abc import Callable
from pathlib import Path

ATTEMPTS = 4  # at reading from elsewhere, 1, 2 and 4 seconds apart
BLOCK = 8 << 20  # bytes fetched at once of a remote file that is read from its beginning to its end
MOST_FILES = 100_000  # of a pattern
WILDCARDS = "*?["
_BRACES = re.compile(r"\{([^{}]*)\}")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.\-]+://", re.IGNORECASE)
_NUMBERS = re.compile(r"(\d+)\.\.(\d+)")


def is_address(where: str) -> bool:
    """Whether this is read through fsspec: anything with a scheme."""
    return bool(_ADDRESS.match(where))


def is_pattern(where: str) -> bool:
    """Whether this may name several files, unless a file or folder of that very name is there."""
    return any(sign in where for sign in "{" + WILDCARDS)


def plain(where: str) -> str:
    """The same without what follows "?" in an address of the web, such as a signature; there it is no wildcard."""
    if where.lower().startswith(("http://", "https://")):
        return where.partition("?")[0]
    return where


def suffix(where: str) -> str:
    """ ".parquet" and the like, of a file or an address; "" where there is none."""
    return Path(plain(where)).suffix.lower()


def expand(where: str) -> list[str]:
    """The files that a path, an address or a pattern of either names, sorted; a folder is all the files in it.

    Raises ValueError for a pattern that matches nothing, OSError for an address that does not answer.
    """
    files = []
    for name in _written_out(where):
        if is_address(name):
            files += _remote_files(name)
        elif _has_wildcards(name):
            files += glob.glob(name)  # noqa: PTH207 a pattern as the user wrote it, absolute or not
        else:
            files.append(name)
    if not files:
        raise ValueError(f"{where} matches no file")
    return sorted(dict.fromkeys(files))


def _has_wildcards(name: str) -> bool:
    return any(sign in name for sign in WILDCARDS)


def _written_out(where: str) -> list[str]:
    """The names that braces stand for. Raises ValueError for too many."""
    done = []
    waiting = [where]
    while waiting:
        name = waiting.pop()
        match = _BRACES.search(name)
        if not match:
            done.append(name)
            continue
        before, after = name[: match.start()], name[match.end() :]
        waiting += [before + choice + after for choice in _choices(match[1])]
        if len(done) + len(waiting) > MOST_FILES:
            raise ValueError(f"{where} stands for more than {MOST_FILES:,} files")
    return done


def _choices(braces: str) -> list[str]:
    """What "000..146" or "x,y" stands for."""
    numbers = _NUMBERS.fullmatch(braces)
    if not numbers:
        return braces.split(",")
    first, last = int(numbers[1]), int(numbers[2])
    width = len(numbers[1])
    return [f"{i:0{width}d}" for i in range(first, last + 1)[: MOST_FILES + 1]]


def _remote_files(address: str) -> list[str]:
    """The files that an address names: a pattern, a file, or all in a folder. Raises OSError."""

    def list_them(system, path: str) -> list[str]:
        if _has_wildcards(plain(path)):
            paths = system.glob(path)
        elif suffix(path) and not address.endswith("/"):
            return [address]  # a file; asking first would cost an answer for each
        elif system.isdir(path):
            paths = [inner for inner in system.ls(path, detail=False) if Path(inner).suffix]
        elif system.exists(path):
            paths = [path]
        else:
            raise FileNotFoundError
        return [system.unstrip_protocol(path) for path in paths]

    return _patiently(list_them, address)


def open_file(path: str):
    """A file opened for reading bytes, from anywhere; of remote ones a BLOCK is fetched at once. Raises OSError."""
    if not is_address(path):
        return open(path, "rb")  # noqa: PTH123 the caller's to close
    return io.BufferedReader(_Remote(path), BLOCK)


def parquet_file(path: str):
    """A parquet file opened by pyarrow, from anywhere, to be used in a `with`. Raises OSError, and pyarrow's own errors."""
    import pyarrow.parquet as pq

    if not is_address(path):
        return pq.ParquetFile(path, memory_map=True)
    # pyarrow asks for the footer and for whole columns by their place: blocks ahead would fetch what lies between
    return pq.ParquetFile(_Remote(path), pre_buffer=True)


class _Remote(io.RawIOBase):
    """A remote file, of which every read asks for a part, patiently: file systems' own files may fail halfway."""

    def __init__(self, address: str):
        self.address = address
        self.at = 0
        self.size = _patiently(lambda system, name: system.info(name)["size"], address)
        if self.size is None:
            raise OSError(
                f"{address} cannot be read in parts: the server does not say how large it is"
            )

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer) -> int:
        count = max(0, min(len(buffer), self.size - self.at))
        if count:
            buffer[:count] = read_range(self.address, self.at, self.at + count)
        self.at += count
        return count


def read_range(address: str, start: int, end: int) -> bytes:
    """Bytes start to end of a remote file. Raises OSError, also for a server that sends something else."""
    data = _patiently(lambda system, name: system.cat_file(name, start=start, end=end), address)
    if len(data) != end - start:
        raise OSError(
            f"{address}: asked for {end - start:,} bytes from {start:,}, {len(data):,} came: {_RANGES}"
        )
    return data


_RANGES = "the file is shorter than it was, or the server does not serve parts of files"


def exists(path: str) -> bool:
    """Whether there is such a file. Raises OSError for an address that does not answer."""
    if is_address(path):
        return _patiently(lambda system, name: system.isfile(name), path)
    return Path(path).is_file()


def state_of(path: str) -> str:
    """What changes when a file does: its place, size, times and whatever else a server tells, as text. Raises OSError."""
    if not is_address(path):
        state = Path(path).stat()
        # copies and downloads may keep the time of the original, but not the time of the change nor the place on the disk
        numbers = (state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)
        return " ".join([str(Path(path).absolute()), *map(str, numbers)])
    info = _patiently(lambda system, name: system.info(name), path)
    return " ".join([path, *(str(info[key]) for key in _STATE if info.get(key) is not None)])


# What changes with a file, as http, s3, gs, abfs, hf and others name it.
_STATE = (
    *("size", "ETag", "etag", "Content-MD5", "md5Hash", "generation", "blob_id"),
    *("Last-Modified", "LastModified", "last_modified", "updated", "mtime", "created"),
)


def _patiently(act: Callable, address: str):
    """act(file system, path), tried again if the network may be to blame.

    Raises OSError, and ValueError for a scheme that is unknown.
    """
    for attempt in range(ATTEMPTS):
        try:
            import fsspec

            return act(*fsspec.core.url_to_fs(address))
        except FileNotFoundError as error:
            # the file system for https says so too if no one answers, with that as the cause
            if not isinstance(error.__cause__, OSError):
                raise FileNotFoundError(f"there is no {address}") from None
            failure: Exception = error.__cause__
        except (ImportError, ValueError) as error:
            # a scheme that is unknown, or whose package is not installed
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{address} cannot be opened: {reason}; try pip install 'vitkit[remote]'"
            ) from None
        except PermissionError as error:
            raise PermissionError(f"{address} may not be read: {error}") from None
        except Exception as error:  # every file system has failures of its own
            failure = error
        if attempt < ATTEMPTS - 1:
            time.sleep(2**attempt)
    reason = (str(failure) or type(failure).__name__).splitlines()[0]
    raise OSError(f"{address} cannot be read, after {ATTEMPTS} attempts: {reason}") from failure
