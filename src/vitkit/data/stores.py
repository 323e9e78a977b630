"""Where the bytes of examples lie: files below a folder, arrays in memory, rows of parquet files.

A store answers read(row), name(row) and prepare(rows). It travels to worker processes, so it keeps no list of a million
Python strings (every reference count that a worker touches would copy a page of them) and opens files anew where it lands.
"""

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG

import numpy as np

from vitkit.data.images import BadImage

MAX_FILE = 1 << 30  # bytes of an image file; a device or a disk image is none
KEEP = 2 << 30  # bytes: images of parquet files that fit in this are kept in memory, compressed as they are
GROUPS = 4  # row groups that a process keeps of larger ones


@dataclass(frozen=True, eq=False)
class Arrays:
    """Pictures in memory: uint8 (N, h, w) or (N, h, w, 3)."""

    title: str
    array: np.ndarray

    def read(self, row: int) -> np.ndarray:
        return self.array[row]

    def name(self, row: int) -> str:
        return f"{self.title} image {row}"

    def prepare(self, rows: np.ndarray) -> None:
        """Nothing to do."""


@dataclass(frozen=True, eq=False)
class Files:
    """Image files below a folder, by their relative names; `of` makes one."""

    root: str
    block: bytes  # all names, one after the other
    ends: np.ndarray  # where in `block` each name ends

    @classmethod
    def of(cls, root: Path | str, names: Sequence[str]) -> "Files":
        encoded = [os.fsencode(name) for name in names]
        return cls(str(root), b"".join(encoded), np.cumsum([len(name) for name in encoded], dtype=np.int64))

    def read(self, row: int) -> bytes:
        """The file's bytes. Raises BadImage where there is no such file."""
        path = self.name(row)
        try:
            found = os.stat(path)  # noqa: PTH116 pathlib would take longer than reading the file
            if not S_ISREG(found.st_mode):  # a pipe would wait for ever
                raise BadImage(f"{path} is no file")
            if found.st_size > MAX_FILE:
                raise BadImage(f"{path} is larger than {MAX_FILE:,} bytes, which no image file is")
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                return file.readall()
        except FileNotFoundError:
            raise BadImage(f"{path} is missing") from None
        except OSError as error:
            raise BadImage(f"{path} cannot be read: {error.strerror or error}") from error

    def name(self, row: int) -> str:
        start = int(self.ends[row - 1]) if row else 0
        return f"{self.root}{os.sep}{os.fsdecode(self.block[start : int(self.ends[row])])}"

    def prepare(self, rows: np.ndarray) -> None:
        """Nothing to do."""


@dataclass(frozen=True, eq=False)
class ParquetRows:
    """The image column of parquet files. Row groups that have been read are kept, within a bound."""

    files: tuple[str, ...]
    column: str
    groups: np.ndarray  # (G, 2): file and row group
    starts: np.ndarray  # (G + 1,): the first row of each group, and the number of rows
    firsts: np.ndarray  # (files,): the first row of each file
    size: int  # bytes of the whole column
    kept: OrderedDict = field(default_factory=OrderedDict)  # group -> its arrow array, the most recently used last

    def read(self, row: int) -> bytes:
        """The image's bytes. Raises BadImage for a row that has none, or a file that is damaged there."""
        group = int(np.searchsorted(self.starts, row, side="right")) - 1
        value = self._group(group)[row - int(self.starts[group])].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        if not data:
            raise BadImage(f"{self.name(row)} has no image: column {self.column!r} is empty there")
        return data

    def name(self, row: int) -> str:
        file = int(np.searchsorted(self.firsts, row, side="right")) - 1
        return f"{Path(self.files[file]).name} row {row - int(self.firsts[file])}"

    def prepare(self, rows: np.ndarray) -> None:
        """Read what these rows need, if all of it fits in memory: processes forked from this one then share it."""
        if self.size <= KEEP:
            for group in np.unique(np.searchsorted(self.starts, rows, side="right") - 1):
                self._group(int(group))

    def _group(self, group: int):
        if group in self.kept:
            self.kept.move_to_end(group)
            return self.kept[group]
        import pyarrow as pa
        import pyarrow.parquet as pq

        file, index = self.groups[group]
        try:
            with pq.ParquetFile(self.files[file], memory_map=True) as opened:
                column = opened.read_row_group(int(index), columns=[self.column], use_threads=False).column(0)
        except (pa.ArrowException, OSError) as error:
            raise BadImage(f"{self.files[file]} is damaged: {str(error).splitlines()[0]}") from error
        while self.size > KEEP and len(self.kept) >= GROUPS:
            self.kept.popitem(last=False)
        self.kept[group] = column
        return column

    def __getstate__(self) -> dict:
        return {**self.__dict__, "kept": OrderedDict()}


Store = Arrays | Files | ParquetRows
