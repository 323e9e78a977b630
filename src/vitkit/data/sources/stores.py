"""Where the bytes of examples lie: files below a folder, arrays in memory; other kinds beside their
formats.

A store travels to worker processes, so it keeps no list of a million Python strings (every
reference count that a worker touches would copy a page of them) and opens files anew where it
lands.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Protocol

import numpy as np

from vitkit.data.images.files import BadImage

MAX_FILE = 1 << 30  # bytes; larger files are disk images and the like


class Store(Protocol):
    """What every kind of store can do."""

    def read(self, row: int) -> bytes | np.ndarray:
        """The image, as a file's bytes or as an array.

        Raises BadImage, and OSError if reading may succeed later.
        """

    def name(self, row: int) -> str:
        """What a user would call it."""

    def identity(self, row: int) -> str:
        """What tells it from others without being read: its name below the data set's own folder,
        and the size of it, or of what it lies in. It is the same on every machine, however the path
        of that folder is written."""

    def prepare(self, rows: np.ndarray) -> None:
        """Bring into memory what processes that are forked from this one are to share."""

    def chunks(self, rows: np.ndarray) -> tuple[np.ndarray, int] | None:
        """The chunk that each row lies in, int64 (rows,), and how many chunks stay in memory.

        None if rows are read one at a time.
        """


@dataclass(frozen=True, eq=False)
class RowRanges:
    """Which rows of a store belong to each of several tables, that lie in it one after the other.

    Legend: T tables.
    """

    starts: np.ndarray
    """int64 (T + 1,): the first row of each table, and the number of all rows."""

    @classmethod
    def of(cls, counts: Sequence[int]) -> "RowRanges":
        """Tables of so many rows each."""
        return cls(np.cumsum([0, *counts]))

    def __len__(self) -> int:
        """How many rows there are in all tables."""
        return int(self.starts[-1])

    def tables(self, rows: np.ndarray | int) -> np.ndarray:
        """The number of the table that each row lies in."""
        return np.searchsorted(self.starts, rows, side="right") - 1

    def locate(self, row: int) -> tuple[int, int]:
        """The number of the table that a row lies in, and which row of this table it is."""
        table = int(self.tables(row))
        return table, row - int(self.starts[table])


@dataclass(frozen=True, eq=False)
class Names:
    """Many strings in one block of bytes."""

    block: bytes
    ends: np.ndarray
    """Where each string ends."""

    @classmethod
    def of(cls, names: Sequence[str]) -> "Names":
        block = bytearray()
        ends = np.zeros(len(names), dtype=np.int64)
        for row, name in enumerate(names):
            block += os.fsencode(name)
            ends[row] = len(block)
        return cls(bytes(block), ends)

    @classmethod
    def concatenate(cls, several: Sequence["Names"]) -> "Names":
        """The strings of several, one after the other."""
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


@dataclass(frozen=True, eq=False)
class Arrays:
    """Pictures in memory: uint8 (N, h, w) or (N, h, w, 3)."""

    title: str
    array: np.ndarray

    def read(self, row: int) -> np.ndarray:
        return self.array[row]

    def name(self, row: int) -> str:
        """What a user would call it, such as "digits image 3"."""
        return f"{self.title} image {row}"

    def identity(self, row: int) -> str:
        """Its name: arrays do not move."""
        return self.name(row)

    def prepare(self, rows: np.ndarray) -> None:
        """Nothing has to be fetched."""

    def chunks(self, rows: np.ndarray) -> None:
        """One is read as quickly as another."""


@dataclass(frozen=True, eq=False)
class Files:
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
        """Its path, as it was written."""
        return f"{self.root}{os.sep}{self.names[row]}"

    def identity(self, row: int) -> str:
        """Its path below the folder, with its size: a file that was replaced is another one."""
        try:
            size = os.stat(self.name(row)).st_size  # noqa: PTH116
        except OSError:  # reading it will raise this again
            size = None
        return f"{self.names[row]} {size}"

    def prepare(self, rows: np.ndarray) -> None:
        """Nothing has to be fetched."""

    def chunks(self, rows: np.ndarray) -> None:
        """One is read as quickly as another."""


def read_file(path: str) -> bytes:
    """The bytes of an image file. Raises BadImage for what is missing, too large, or no file."""
    try:
        state = os.stat(path)  # noqa: PTH116 pathlib would take longer than reading the file
        if not S_ISREG(state.st_mode):  # a pipe would wait for ever
            raise BadImage(f"{path} is not a file")
        if state.st_size > MAX_FILE:
            raise BadImage(f"{path} is larger than {MAX_FILE:,} bytes, which no image file is")
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            return file.readall()
    except FileNotFoundError:
        raise BadImage(f"{path} is missing") from None
    except OSError as error:
        raise BadImage(f"{path} cannot be read: {error.strerror or error}") from error
