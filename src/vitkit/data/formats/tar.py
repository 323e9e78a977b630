"""Tar shards in the webdataset convention: what belongs to one example is named alike up to the
first dot.

"n0153/0001.jpg" is an image and "n0153/0001.cls" its class (a number, or a name); a "json" member
may hold it instead. Of each shard there is an index of where its images begin (index.py), by which
every image is read on its own, in any order. Nothing is ever unpacked, so a member's name is only a
name; links, devices and sparse members are no images.
Names of numbered classes are the lines of a file "classes.txt" beside the shards.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np

from vitkit.data.formats.index import indices_of
from vitkit.data.formats.tar_shard import NO_LABEL
from vitkit.data.sources.stores import ChunkCache, Names, titles
from vitkit.data.sources.tables import Columns, Table, note_left_out
from vitkit.data.sources.targets import as_row_labels
from vitkit.system.errors import BadData, BadImage
from vitkit.system.storage import remote
from vitkit.system.storage.files import parse_json

CLASSES = "classes.txt"
RANGE = 32 << 20  # bytes of a remote shard that are fetched at once


@dataclass(frozen=True, eq=False)
class TarMembers:
    """Images in tar shards, found by their offsets.

    Local ones are read one at a time, remote ones RANGE bytes at once.

    Legend: N images.
    """

    files: tuple[str, ...]
    file: np.ndarray
    """(N,): which shard."""
    offsets: np.ndarray
    """(N,): where the image begins in it; ascending in a shard."""
    sizes: np.ndarray
    """(N,): bytes."""
    names: Names
    titles: Sequence[str]
    """What to call each shard."""
    cache: ChunkCache
    """Of each range of a remote shard: where its first image begins, and the bytes from there."""

    def read(self, row: int) -> bytes:
        """The image's bytes. Raises BadImage if the shard is shorter than it was, OSError if it
        cannot be read."""
        path = self.files[self.file[row]]
        start = int(self.offsets[row])
        size = int(self.sizes[row])
        if remote.is_address(path) and self.cache.limit == 0:
            data = remote.read_range(path, start, start + size)
        elif remote.is_address(path):
            begin, data = self.cache.get(int(self._ranges_of(row)), self._load)
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
        return f"{self.titles[self.file[row]]} {self.names[row]}"

    def identity(self, row: int) -> str:
        return f"{self.name(row)} {self.sizes[row]}"

    def chunks(self, rows: np.ndarray) -> tuple[np.ndarray, int] | None:
        """Ranges of remote shards, unless all of them stay in memory; None for local shards."""
        if not self._remote:
            return None
        return self.cache.windows(self._ranges_of(rows))

    def keeping(self, chunks: int) -> "TarMembers":
        return replace(self, cache=self.cache.keeping(chunks))

    def prepare(self, rows: np.ndarray) -> None:
        """Fetch what these rows need of remote shards, if all of it fits in memory."""
        if self._remote:
            self.cache.fill(self._ranges_of(rows), self._load)

    @cached_property
    def _remote(self) -> bool:
        return any(map(remote.is_address, self.files))

    def _ranges_of(self, rows: np.ndarray | int) -> np.ndarray:
        """The number of the range that an image begins in: the shard's number in the upper 32 bits,
        and in the lower ones which of its ranges it is."""
        return (self.file[rows].astype(np.int64) << 32) + self.offsets[rows] // RANGE

    def _load(self, number: int) -> tuple[int, bytes]:
        """All images that begin in a range."""
        file, range_in_file = divmod(number, 1 << 32)
        # The images of the shard, and of these the first and the last that begin in the range.
        shard_first, shard_end = np.searchsorted(self.file, [file, file + 1])
        offsets = self.offsets[shard_first:shard_end]
        first = shard_first + np.searchsorted(offsets, range_in_file * RANGE)
        last = shard_first + np.searchsorted(offsets, (range_in_file + 1) * RANGE) - 1
        begin = int(self.offsets[first])
        end = int(self.offsets[last] + self.sizes[last])
        return begin, remote.read_range(self.files[file], begin, end)


def read_tars(files: dict[str, str], columns: Columns) -> Table:
    """The table of tar shards, given the part that each belongs to ("" for none).

    `columns` name the extensions of image and label ("png", "cls"), or the label's field in "json".
    Raises VitkitError if a shard is damaged or compressed, and if only some examples have a label.
    """
    shards = list(files)
    indices = indices_of(shards, columns)

    # Where their images lie.
    counts = [len(index.names) for index in indices]
    if not sum(counts):
        raise BadData(
            f"{', '.join(shards[:3])} holds no images; "
            f"expected KEY.jpg and KEY.cls for each example"
        )
    store = TarMembers(
        files=tuple(shards),
        file=np.repeat(np.arange(len(shards), dtype=np.int32), counts),
        offsets=np.concatenate([index.offsets for index in indices]),
        sizes=np.concatenate([index.sizes for index in indices]),
        names=Names.concatenate([index.names for index in indices]),
        titles=titles(shards),
        cache=ChunkCache(shards, sum(int(index.sizes.sum()) for index in indices), (RANGE, 1)),
    )

    # Their parts, and what was left out.
    parts = np.repeat(np.array(list(files.values()), dtype=object), counts)
    notes = note_left_out(sum((index.left_out for index in indices), Counter()))

    # Their labels: all examples have one, or none has.
    texts = list(chain.from_iterable(index.labels for index in indices))
    values = {text: parse_json(text) for text in set(texts)}
    if set(values) == {NO_LABEL}:
        note = (
            f"{shards[0]} is unlabelled: no example has a .cls member or a label in .json; if an "
            "extension or a field of .json holds it, say which with `data.columns.label`"
        )
        if columns.target not in ("auto", "none"):
            raise BadData(note)
        if columns.target == "auto":
            notes += (note,)
        return Table(store, None, parts, None, notes)
    if NO_LABEL in values:
        raise BadData(
            f"{store.name(texts.index(NO_LABEL))} has no label, and others have one; expected a "
            ".cls or .json member, or say which extension or field of .json holds it with "
            "`data.columns.label`"
        )
    labels = [values[text] for text in texts]
    row_labels = as_row_labels(labels, shards[0], columns.target, columns.separator)
    return Table(store, row_labels, parts, _class_names(shards[0]), notes)


def _class_names(shard: str) -> tuple[str, ...] | None:
    """The lines of classes.txt beside a shard, if it is there."""
    if remote.is_address(shard):
        path = f"{remote.without_query(shard).rpartition('/')[0]}/{CLASSES}"
    else:
        path = str(Path(shard).parent / CLASSES)
    if not remote.exists(path):
        return None
    with remote.open_file(path) as file:
        try:
            text = file.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BadData(
                f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8"
            ) from None
    return tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n"))
