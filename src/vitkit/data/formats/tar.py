"""Tar shards in the webdataset convention: the members of one example have equal names up to the
first dot.

"n0153/0001.jpg" is an image and "n0153/0001.cls" its class (a number, or a name); a "json" member
may hold the class instead. An index of each shard holds the offsets of its images (index.py), so
images are read individually, in any order. Nothing is unpacked, so the name of a member is never
used as a path; links, devices and sparse members are no images.
The lines of a file "classes.txt" beside the shards are the names of numbered classes.
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
RANGE = 32 << 20  # bytes of a remote shard that are fetched together


@dataclass(frozen=True, eq=False)
class TarMembers:
    """Images in tar shards, found by their offsets.

    Local images are read one by one, remote ones in ranges of RANGE bytes.

    Legend: N images.
    """

    files: tuple[str, ...]
    file: np.ndarray
    """(N,): number of the shard."""
    offsets: np.ndarray
    """(N,): offset of the image in its shard; ascending in each shard."""
    sizes: np.ndarray
    """(N,): bytes."""
    names: Names
    titles: Sequence[str]
    """Name of each shard in messages."""
    cache: ChunkCache
    """By range of a remote shard: the offset of its first image, and the bytes from there."""

    def read(self, row: int) -> bytes:
        """The image's bytes. Raises BadImage if the shard has become shorter, OSError if it cannot be read."""
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
        """The ranges of these rows in remote shards, unless all fit in memory; None for local shards."""
        if not self._remote:
            return None
        return self.cache.windows(self._ranges_of(rows))

    def keeping(self, chunks: int) -> "TarMembers":
        return replace(self, cache=self.cache.keeping(chunks))

    def prepare(self, rows: np.ndarray) -> None:
        """Fetch the ranges of these rows in remote shards, if all fit in memory."""
        if self._remote:
            self.cache.fill(self._ranges_of(rows), self._load)

    @cached_property
    def _remote(self) -> bool:
        return any(map(remote.is_address, self.files))

    def _ranges_of(self, rows: np.ndarray | int) -> np.ndarray:
        """The range that an image begins in: the number of the shard in the upper 32 bits, and the number of
        the range within the shard in the lower 32 bits."""
        return (self.file[rows].astype(np.int64) << 32) + self.offsets[rows] // RANGE

    def _load(self, number: int) -> tuple[int, bytes]:
        """Fetch all images that begin in a range: their first offset, and their bytes."""
        file, range_in_file = divmod(number, 1 << 32)
        # The images of the shard, and the first and the last of them that begin in the range
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

    # Positions of the images
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

    # Parts of the images, and what was left out
    parts = np.repeat(np.array(list(files.values()), dtype=object), counts)
    notes = note_left_out(sum((index.left_out for index in indices), Counter()))

    # Labels: either all examples have one, or none has
    texts = list(chain.from_iterable(index.labels for index in indices))
    values = {text: parse_json(text) for text in set(texts)}
    if set(values) == {NO_LABEL}:
        note = (
            f"{shards[0]} is unlabelled: no example has a .cls member or a label in .json; if another "
            "extension or field of .json holds it, name it with `data.columns.label`"
        )
        if columns.target not in ("auto", "none"):
            raise BadData(note)
        if columns.target == "auto":
            notes += (note,)
        return Table(store, None, parts, None, notes)
    if NO_LABEL in values:
        raise BadData(
            f"{store.name(texts.index(NO_LABEL))} has no label, but others have one; expected a "
            ".cls or .json member, or name the extension or field of .json that holds it with "
            "`data.columns.label`"
        )
    labels = [values[text] for text in texts]
    row_labels = as_row_labels(labels, shards[0], columns.target, columns.separator)
    return Table(store, row_labels, parts, _class_names(shards[0]), notes)


def _class_names(shard: str) -> tuple[str, ...] | None:
    """The lines of classes.txt beside a shard; None if it does not exist."""
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
