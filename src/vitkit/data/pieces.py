"""Stores that are read in pieces, of which each process keeps a few: row groups of parquet files, parts of tar shards.

What fits in KEEP bytes is read once, whole, before worker processes are forked, and any order is as good as another. Of
larger ones a process keeps a window of pieces, and the order of training goes from window to window (see loader.py).
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile

import numpy as np

from vitkit.data.images import BadImage
from vitkit.data.stores import Names
from vitkit.system import remote
from vitkit.system.progress import bar

KEEP = 2 << 30  # bytes: what is smaller is kept in memory, compressed as it is
WINDOW = 512 << 20  # bytes of larger ones that a process keeps
LEAST = 4  # pieces in a window, however large they are
PIECE = 32 << 20  # bytes of a remote shard that are fetched at once


def together(size: int, count: int) -> int:
    """How many of `count` pieces, `size` bytes in all, make a window."""
    return max(LEAST, WINDOW * count // max(size, 1))


@dataclass(frozen=True, eq=False)
class ParquetRows:
    """The image column of parquet files. Row groups that have been read are kept, within a bound."""

    files: tuple[str, ...]
    column: str
    groups: np.ndarray  # (G, 2): file and row group
    starts: np.ndarray  # (G + 1,): the first row of each group, and the number of rows
    firsts: np.ndarray  # (files,): the first row of each file
    sizes: np.ndarray  # (G,): bytes of the column in each group
    kept: OrderedDict = field(
        default_factory=OrderedDict
    )  # group -> its arrow array, the most recently used last

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
        return f"{self._titles[file]} row {row - int(self.firsts[file])}"

    def mark(self, row: int) -> str:
        return f"{self.name(row)} {self.sizes[self._groups_of(row)]}"

    @property
    def size(self) -> int:
        """Bytes of the whole column."""
        return int(self.sizes.sum())

    @cached_property
    def _titles(self) -> list[str]:
        return titles(self.files)

    def pieces(self, rows: np.ndarray) -> tuple[np.ndarray, int] | None:
        """Row groups, if not all of them are kept."""
        return (
            None
            if self.size <= KEEP
            else (self._groups_of(rows), together(self.size, len(self.groups)))
        )

    def prepare(self, rows: np.ndarray) -> None:
        """Read what these rows need, if all of it fits in memory: processes forked from this one then share it."""
        if self.size <= KEEP:
            for group in _fetched(np.unique(self._groups_of(rows)), self.files):
                self._group(int(group))

    def _groups_of(self, rows: np.ndarray | int) -> np.ndarray:
        return np.searchsorted(self.starts, rows, side="right") - 1

    def _group(self, group: int):
        return recalled(
            self.kept,
            group,
            self._load,
            None if self.size <= KEEP else together(self.size, len(self.groups)),
        )

    def _load(self, group: int):
        import pyarrow as pa

        file, index = self.groups[group]
        path = self.files[file]
        try:
            with remote.parquet_file(path) as opened:
                return opened.read_row_group(
                    int(index), columns=[self.column], use_threads=False
                ).column(0)
        except (pa.ArrowException, OSError) as error:
            if remote.is_address(path) and isinstance(error, OSError):
                raise  # not to be had now, which is no damage
            raise BadImage(f"{path} is damaged: {str(error).splitlines()[0]}") from error

    def __getstate__(self) -> dict:
        return {**self.__dict__, "kept": OrderedDict()}


@dataclass(frozen=True, eq=False)
class TarMembers:
    """Images in tar shards, by where they begin. Local ones are read one at a time, remote ones PIECE bytes at once."""

    files: tuple[str, ...]
    file: np.ndarray  # (N,): which shard
    offsets: np.ndarray  # (N,): where the image begins in it; ascending in a shard
    sizes: np.ndarray  # (N,): bytes
    names: Names
    kept: OrderedDict = field(
        default_factory=OrderedDict
    )  # piece of a remote shard -> where it begins, and its bytes

    def read(self, row: int) -> bytes:
        """The image's bytes. Raises BadImage where the shard is shorter than it was, OSError where it cannot be read."""
        path, start, size = self.files[self.file[row]], int(self.offsets[row]), int(self.sizes[row])
        if remote.is_address(path):
            begin, data = self._piece(int(self._pieces_of(row)))
            data = data[start - begin : start - begin + size]
        else:
            with open(path, "rb", buffering=0) as shard:  # noqa: PTH123 as in Files
                shard.seek(start)
                data = shard.read(size)
        if len(data) != size:
            raise BadImage(
                f"{self.name(row)} is cut off: the shard has changed since it was indexed"
            )
        return data

    def name(self, row: int) -> str:
        return f"{self._titles[self.file[row]]} {self.names[row]}"

    def mark(self, row: int) -> str:
        return f"{self.name(row)} {self.sizes[row]}"

    @cached_property
    def _titles(self) -> list[str]:
        return titles(self.files)

    @property
    def size(self) -> int:
        """Bytes of all images."""
        return int(self.sizes.sum())

    def pieces(self, rows: np.ndarray) -> tuple[np.ndarray, int] | None:
        """None for local shards, and for remote ones that are kept whole."""
        if not any(map(remote.is_address, self.files)) or self.size <= KEEP:
            return None
        return self._pieces_of(rows), max(LEAST, WINDOW // PIECE)

    def prepare(self, rows: np.ndarray) -> None:
        """Fetch what these rows need of remote shards, if all of it fits in memory."""
        if any(map(remote.is_address, self.files)) and self.size <= KEEP:
            for piece in _fetched(np.unique(self._pieces_of(rows)), self.files):
                self._piece(int(piece))

    def _pieces_of(self, rows: np.ndarray | int) -> np.ndarray:
        """The number of a piece: 2^32 times its shard, and its place in it."""
        return (self.file[rows].astype(np.int64) << 32) + self.offsets[rows] // PIECE

    def _piece(self, piece: int) -> tuple[int, bytes]:
        return recalled(
            self.kept, piece, self._load, None if self.size <= KEEP else max(LEAST, WINDOW // PIECE)
        )

    def _load(self, piece: int) -> tuple[int, bytes]:
        """All images that begin in a piece."""
        file, place = divmod(piece, 1 << 32)
        first, after = np.searchsorted(self.file, [file, file + 1])
        offsets = self.offsets[first:after]
        one, last = first + np.searchsorted(offsets, [place * PIECE, (place + 1) * PIECE]) - [0, 1]
        begin, end = int(self.offsets[one]), int(self.offsets[last] + self.sizes[last])
        return begin, remote.read_range(self.files[file], begin, end)

    def __getstate__(self) -> dict:
        return {**self.__dict__, "kept": OrderedDict()}


def titles(files: Sequence[str]) -> list[str]:
    """What to call each file: its name, or where two have the same, its path from the folder on that holds all of them."""
    paths = [
        remote.plain(file).replace(os.sep, "/").split("/") for file in files
    ]  # a signature is for no one to read
    if len({path[-1] for path in paths}) == len(paths):
        return [path[-1] for path in paths]
    common = sum(
        1 for _ in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    )
    return ["/".join(path[common:]) for path in paths]


def recalled(kept: OrderedDict, key: int, load: Callable, most: int | None):
    """load(key), or what it gave before: at most `most` are kept, the last used."""
    if key in kept:
        kept.move_to_end(key)
        return kept[key]
    while most is not None and len(kept) >= most:
        kept.popitem(last=False)
    kept[key] = load(key)
    return kept[key]


def _fetched(pieces: np.ndarray, files: tuple[str, ...]) -> Iterable:
    """The same pieces, under a progress bar where they come from elsewhere."""
    return bar("fetching")(pieces, len(pieces)) if any(map(remote.is_address, files)) else pieces
