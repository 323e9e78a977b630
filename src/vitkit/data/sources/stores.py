"""Stores of encoded images: files below a folder, and arrays in memory. Stores of other kinds are defined
with their formats.

A store is sent to worker processes. So it contains no list of a million Python strings (every reference
count that a worker changes would copy a page of them), and opens files again in each process.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from stat import S_ISREG
from typing import Any, Protocol

import numpy as np

from vitkit.system.console.progress import bar
from vitkit.system.console.text import printable_name, quoted
from vitkit.system.errors import BadImage
from vitkit.system.storage import remote
from vitkit.system.storage.addresses import shown_address
from vitkit.system.storage.files import impossible

KEEP = 2 << 30  # bytes of the largest store that is kept in memory, in its compressed form
WINDOW = 512 << 20  # bytes of a larger store that a process keeps
LEAST = 4  # fewest chunks in a window, however large they are
DATA_URL = "data:image/"  # the beginning of an image in the text of a web page
MAX_FILE = 1 << 30  # bytes of the largest image file; larger files are disk images and similar


class Store(Protocol):
    """The methods of every store."""

    def read(self, row: int) -> bytes | np.ndarray:
        """The image, as a file's bytes or as an array. Raises BadImage, and OSError if reading may
        succeed later."""

    def name(self, row: int) -> str:
        """The name of the image in messages."""

    def identity(self, row: int) -> str:
        """Identifies the image without reading it: its name below the data set's own folder, and the size of
        it or of the file that contains it. It is equal on every machine, however the path of that folder is
        written."""

    # For stores that are faster when rows are read together. Other stores inherit these defaults.

    def prepare(self, rows: np.ndarray) -> None:
        """Load data into memory that processes forked from this one should share."""
        return  # with an empty body, type checkers would consider it abstract

    def chunks(self, rows: np.ndarray) -> tuple[np.ndarray, int] | None:
        """The chunk of each row, int64 (rows,), and the number of chunks that fit in memory. None if rows
        are read individually."""
        return None

    def keeping(self, chunks: int) -> "Store":
        """A copy of the store whose readers keep this many chunks in memory."""
        return self


@dataclass(frozen=True, eq=False)
class RowRanges:
    """The rows of a store that belong to each of several consecutive tables.

    Legend: T tables.
    """

    starts: np.ndarray
    """int64 (T + 1,): the first row of each table, and the total number of rows."""

    @classmethod
    def of(cls, counts: Sequence[int]) -> "RowRanges":
        """Tables with these numbers of rows."""
        return cls(np.cumsum([0, *counts]))

    def __len__(self) -> int:
        """The total number of rows."""
        return int(self.starts[-1])

    def tables(self, rows: np.ndarray | int) -> np.ndarray:
        """The number of the table that contains each row."""
        return np.searchsorted(self.starts, rows, side="right") - 1

    def locate(self, row: int) -> tuple[int, int]:
        """The number of the table that contains a row, and the number of the row in this table."""
        table = int(self.tables(row))
        return table, row - int(self.starts[table])


@dataclass(frozen=True, eq=False)
class Names:
    """Many strings in one block of bytes."""

    block: bytes
    ends: np.ndarray
    """End of each string in the block."""

    @classmethod
    def of(cls, names: Sequence[str]) -> "Names":
        block = bytearray()
        ends = np.zeros(len(names), dtype=np.int64)
        for row, name in enumerate(names):
            block += _encoded(name)
            ends[row] = len(block)
        return cls(bytes(block), ends)

    @classmethod
    def concatenate(cls, several: Sequence["Names"]) -> "Names":
        """Concatenate several Names."""
        block = b"".join(names.block for names in several)
        ends = []
        start = 0
        for names in several:
            ends.append(names.ends + start)
            start += len(names.block)
        return cls(block, np.concatenate(ends))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> str:
        start = int(self.ends[row - 1]) if row else 0
        return os.fsdecode(self.block[start : int(self.ends[row])])


def _encoded(name: str) -> bytes:
    """The bytes of a file's name, with escapes in place of characters that no file name can have."""
    try:
        return os.fsencode(name)
    except UnicodeEncodeError:
        return name.encode("utf-8", "backslashreplace")


@dataclass(frozen=True, eq=False)
class Arrays(Store):
    """Pictures in memory: uint8 (N, h, w) or (N, h, w, 3)."""

    title: str
    array: np.ndarray

    def read(self, row: int) -> np.ndarray:
        return self.array[row]

    def name(self, row: int) -> str:
        """The name of the image in messages, such as "digits image 3"."""
        return f"{self.title} image {row}"

    def identity(self, row: int) -> str:
        """The name of the image, which identifies it."""
        return self.name(row)

    @property
    def one_represents_all(self) -> bool:
        """Whether one picture represents all when they are checked: they have the same shape, and with 8
        bits every value is a level."""
        return self.array.dtype == np.uint8


@dataclass(frozen=True, eq=False)
class Files(Store):
    """Image files below a folder, by their relative names."""

    root: str
    names: Names

    @classmethod
    def of(cls, root: Path | str, names: Sequence[str]) -> "Files":
        """The files of these names below a folder."""
        return cls(str(root), Names.of(names))

    def read(self, row: int) -> bytes:
        """The file's bytes. Raises BadImage if there is no such file."""
        return read_file(self.name(row))

    def name(self, row: int) -> str:
        """The path of the file, as the user wrote it."""
        return f"{self.root}{os.sep}{self.names[row]}"

    def identity(self, row: int) -> str:
        """The path of the file below the folder, with its size, so that a replaced file has another
        identity."""
        try:
            size = os.stat(self.name(row)).st_size  # noqa: PTH116
        except (OSError, ValueError):  # reading the file raises it again
            size = None
        return f"{self.names[row]} {size}"


def read_file(path: str) -> bytes:
    """The bytes of an image file. Raises BadImage if it is missing, too large, or not a file."""
    if not path:
        raise BadImage("the name of an image is empty; give its path")
    if path.startswith(DATA_URL):
        raise BadImage(
            f"{printable_name(path)} is an image in a data URL; give its bytes: "
            "base64.b64decode(url.partition(',')[2])"
        )
    try:
        state = os.stat(path)  # noqa: PTH116 pathlib would take longer than reading the file
        if not S_ISREG(state.st_mode):  # reading a pipe would block forever
            raise BadImage(f"{path} is not a file")
        if state.st_size > MAX_FILE:
            raise BadImage(f"{path} is larger than {MAX_FILE:,} bytes, which no image file is")
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            return file.readall()
    except BadImage:  # a ValueError, too
        raise
    except FileNotFoundError:
        raise BadImage(f"{path} is missing") from None
    except OSError as error:
        if impossible(path):
            path = printable_name(path)
        raise BadImage(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError:
        raise BadImage(f"{quoted(path)} cannot be read: it is not the name of a file") from None


# Stores that are read in chunks


@dataclass(eq=False)
class ChunkCache:
    """The chunks of a store (row groups of parquet files, ranges of shards) that a process keeps.

    A store of at most KEEP bytes is read completely before worker processes are forked, and examples are
    read in any order. Of a larger store, a process keeps a window of chunks, and the order of training
    visits one window after another (loading/order.py).
    """

    files: Sequence[str]
    bytes: int
    """Size of the whole store."""
    density: tuple[int, int]
    """(bytes, chunks): a number of bytes, and the number of chunks that contain them."""
    limit: int | None = None
    """Number of chunks to keep; None for a window, or all. With 0 a store reads rows individually, if it
    supports that."""
    chunks: OrderedDict = field(default_factory=OrderedDict)
    """Chunks by number, the most recently used last."""

    @property
    def window(self) -> int | None:
        """The number of chunks that are kept; None if all are kept."""
        if self.bytes <= KEEP:
            return None
        size, count = self.density
        return max(LEAST, WINDOW * count // max(size, 1))

    def get(self, number: int, load: Callable[[int], Any]) -> Any:
        """A chunk from the cache, where load(number) puts a missing one in place of the least recently used."""
        if number not in self.chunks:
            most = self.window
            if self.limit is not None:
                most = max(self.limit, 1)
            while most is not None and len(self.chunks) >= most:
                self.chunks.popitem(last=False)  # the least recently used
            self.chunks[number] = load(number)
        self.chunks.move_to_end(number)
        return self.chunks[number]

    def fill(self, numbers: np.ndarray, load: Callable[[int], Any]) -> None:
        """Load these chunks if the whole store is kept, so that processes forked from this one share them.
        Shows a progress bar if they are fetched from an address."""
        if self.window is not None:
            return
        numbers = np.unique(numbers)
        fetched: Iterable[Any] = numbers
        if any(map(remote.is_address, self.files)):
            fetched = bar("fetching")(numbers, len(numbers))
        for number in fetched:
            self.get(int(number), load)

    def windows(self, numbers: np.ndarray) -> tuple[np.ndarray, int] | None:
        """The result of `Store.chunks` for rows in these chunks."""
        if self.window is None:
            return None
        return numbers, self.window

    def keeping(self, chunks: int) -> "ChunkCache":
        """An empty cache that keeps this many chunks."""
        return replace(self, limit=chunks, chunks=OrderedDict())

    def clear(self) -> None:
        """Drop all chunks."""
        self.chunks.clear()

    def __len__(self) -> int:
        return len(self.chunks)

    def __getstate__(self) -> dict:
        """Pickle the cache without its chunks."""
        return {**self.__dict__, "chunks": OrderedDict()}


def titles(files: Sequence[str]) -> list[str]:
    """The name of each file in messages: its file name, or, if two are equal, its path below the folder
    that contains all files."""
    # An address may contain a password or a signature, which must not be shown
    shown = map(shown_address, map(remote.without_query, files))
    paths = [file.replace(os.sep, "/").split("/") for file in shown]
    names = [path[-1] for path in paths]
    if len(set(names)) == len(names):
        return names
    common = 0  # folders that all paths begin with
    for folders in zip(*paths, strict=False):
        if len(set(folders)) > 1:
            break
        common += 1
    return ["/".join(path[common:]) for path in paths]
