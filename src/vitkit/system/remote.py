"""Files wherever they lie: local paths, and addresses (https://, s3://, gs://, hf:// ...) that fsspec opens.

Patterns: "train-{000..146}.tar" and "a/{x,y}.parquet" are written out, "*", "?" and "[...]" match what is there.
"""

import glob
import io
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

ATTEMPTS = 4  # at reading from elsewhere, 1, 2 and 4 seconds apart
BLOCK = (
    8 << 20
)  # bytes that are fetched at once where a remote file is read from its beginning to its end
_BRACES = re.compile(r"\{([^{}]*)\}")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.\-]+://", re.IGNORECASE)
_NUMBERS = re.compile(r"(\d+)\.\.(\d+)")
_MOST = 100_000  # files of a pattern


def is_address(where: str) -> bool:
    """Whether this is read through fsspec: anything with a scheme."""
    return bool(_ADDRESS.match(where))


def is_pattern(where: str) -> bool:
    """Whether this may name several files, where no file or folder of that very name is there."""
    return any(mark in where for mark in "{*?[")


def plain(where: str) -> str:
    """The same without what follows "?" in an address of the web, such as a signature; there it is no mark of a pattern."""
    return where.partition("?")[0] if where.lower().startswith(("http://", "https://")) else where


def suffix(where: str) -> str:
    """ ".parquet" and the like, of a file or an address; "" where there is none."""
    return Path(plain(where)).suffix.lower()


def expand(where: str) -> list[str]:
    """The files that a path, an address or a pattern of either names, sorted; a folder is all the files in it.

    Raises ValueError for a pattern that matches nothing, OSError for an address that does not answer.
    """
    found = []
    for name in _written_out(where):
        if is_address(name):
            found += _remote_files(name)
        elif any(mark in name for mark in "*?["):
            found += glob.glob(name)  # noqa: PTH207 a pattern as the user wrote it, absolute or not
        else:
            found.append(name)
    if not found:
        raise ValueError(f"{where} matches no file")
    return sorted(dict.fromkeys(found))


def _written_out(where: str) -> list[str]:
    """The names that braces stand for."""
    done, left = [], [where]
    while left:
        name = left.pop()
        if not (match := _BRACES.search(name)):
            done.append(name)
        elif numbers := _NUMBERS.fullmatch(match[1]):
            first, last = int(numbers[1]), int(numbers[2])
            width = len(numbers[1])
            left += [
                f"{name[: match.start()]}{i:0{width}d}{name[match.end() :]}"
                for i in range(first, last + 1)[: _MOST + 1]
            ]
        else:
            left += [
                name[: match.start()] + one + name[match.end() :] for one in match[1].split(",")
            ]
        if len(done) + len(left) > _MOST:
            raise ValueError(f"{where} stands for more than {_MOST:,} files")
    return done


def _remote_files(address: str) -> list[str]:
    def list_them(system, path: str) -> list[str]:
        if any(mark in plain(path) for mark in "*?["):
            found = system.glob(path)
        elif suffix(path) and not address.endswith(
            "/"
        ):  # a file; asking first would cost an answer for each
            return [address]
        elif system.isdir(path):
            found = [one for one in system.ls(path, detail=False) if Path(one).suffix]
        elif system.exists(path):
            found = [path]
        else:
            raise FileNotFoundError
        return [system.unstrip_protocol(one) for one in found]

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
        self.address, self.at = address, 0
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
    return (
        _patiently(lambda system, name: system.isfile(name), path)
        if is_address(path)
        else Path(path).is_file()
    )


def state_of(path: str) -> str:
    """What changes when a file does: its place, size, times and whatever else a server tells, as text. Raises OSError."""
    if not is_address(path):
        found = Path(path).stat()
        # copies and downloads may keep the time of the original, but not the time of the change nor the place on the disk
        return f"{Path(path).absolute()} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"
    info = _patiently(lambda system, name: system.info(name), path)
    return " ".join([path, *(str(info[key]) for key in _MARKS if info.get(key) is not None)])


# As http, s3, gs, abfs, hf and others name them.
_MARKS = (
    "size",
    "ETag",
    "etag",
    "Content-MD5",
    "md5Hash",
    "generation",
    "blob_id",
    "Last-Modified",
    "LastModified",
)
_MARKS += ("last_modified", "updated", "mtime", "created")


def _patiently(act: Callable, address: str):
    """act(file system, path), tried again where the network may be to blame. Raises OSError, ValueError for no such scheme."""
    for attempt in range(ATTEMPTS):
        try:
            import fsspec

            return act(*fsspec.core.url_to_fs(address))
        except FileNotFoundError as error:
            if not isinstance(
                error.__cause__, OSError
            ):  # which is how the one for https says that no one answers
                raise FileNotFoundError(f"there is no {address}") from None
            failure: Exception = error.__cause__
        except (
            ImportError,
            ValueError,
        ) as error:  # a scheme that is unknown, or whose package is not installed
            said = str(error).splitlines()[0]
            raise ValueError(
                f"{address} cannot be opened: {said}; try pip install 'vitkit[remote]'"
            ) from None
        except PermissionError as error:
            raise PermissionError(f"{address} may not be read: {error}") from None
        except Exception as error:  # every file system has failures of its own
            failure = error
        if attempt < ATTEMPTS - 1:
            time.sleep(2**attempt)
    said = (str(failure) or type(failure).__name__).splitlines()[0]
    raise OSError(f"{address} cannot be read, after {ATTEMPTS} attempts: {said}") from failure


def join(folder: str, name: str) -> str:
    """A file in a folder, of either kind."""
    return f"{folder.rstrip('/')}/{name}" if is_address(folder) else os.path.join(folder, name)  # noqa: PTH118
