"""The function that writes a data set as shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Unpack

from vitkit.curation.functions.next_step import training_step
from vitkit.curation.packing import Packed, Packing
from vitkit.curation.packing import pack_shards as packed_to
from vitkit.data import Columns, one_per_cpu, parts_at
from vitkit.system.console.messages import say
from vitkit.system.console.text import printable
from vitkit.system.errors import BadData
from vitkit.system.functions.arguments import status_of
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Result
from vitkit.system.functions.types import DataLike, Messages, PathLike

LISTED = 10  # printed names of images that were left out


@dataclass(frozen=True, repr=False)
class PackedData(Result):
    """The shards of a data set."""

    path: Path
    """The directory of the shards."""
    packed: Packed
    """Counts of the images that were written, and a list of those that were left out."""
    images: int
    """Number of images in the data set."""
    target_kind: str
    ok_if_unreadable: bool = False
    """Whether the exit status is 0 even if images could not be read."""

    @property
    def status(self) -> int:
        """The exit status of the command: 3 if images could not be read."""
        return status_of(len(self.packed.left_out), self.ok_if_unreadable)

    def shown(self) -> Iterator[str]:
        """The output: the number of images that were written, and those that were left out."""
        packed = self.packed
        sentence = (
            f"{packed.written:,} of {self.images:,} images in {self.path}, "
            f"{packed.bytes / 1e6:,.1f} MB"
        )
        if packed.shrunk:
            sentence += f"; {packed.shrunk:,} made smaller"
        yield sentence
        for line in packed.left_out[:LISTED]:
            yield f"left out: {printable(line)}"
        if packed.left_out:
            list_file = self.path / "left-out.txt"
            yield f"{len(packed.left_out):,} images were left out; all are listed in {list_file}"
        yield f"next: {training_step(self.path, self.target_kind, self.packed.written)}"


@public
def pack(
    source: DataLike,
    dest: PathLike,
    *,
    format: Literal["tar", "parquet"] = "tar",
    shard: int = 5000,
    side: int = 0,
    quality: int = 95,
    shuffle: bool = True,
    columns: Columns = Columns(),
    workers: int = -1,
    ok_if_unreadable: bool = False,
    **messages: Unpack[Messages],
) -> PackedData:
    """Write a data set as shards. After an interruption, run the same command to continue.

    Args:
        source: A folder, a manifest, parquet files, tar shards, an address (https://, s3://, gs://),
            hf:NAME on the Hugging Face hub, file.py:function, or digits.
        dest: Directory for the shards, classes.txt and left-out.txt.
        format: Format of the shards. tar: can be read in any order, from a disk or an address. parquet:
            is shown by the hub, and can be queried as a table.
        shard: Examples in a shard.
        side: Images with a longer side are made smaller to this many pixels, shape kept; 0 keeps every
            byte.
        quality: Quality of a JPEG file that had to be made smaller; PNG and other lossless formats stay
            lossless.
        shuffle: Put examples in random order, so that classes are spread over all shards; otherwise the
            order stays.
        columns: Columns of a table that hold the image and its label. Default: found by their usual
            names.
        workers: Processes that write shards, one each; -1 follows the CPU quota.
        ok_if_unreadable: Let the command end with the exit status 0, and not 3, if images could not be
            read; they are still named.
        **messages: Where messages go.

    Raises:
        BadSettings: If a setting has a value that is not allowed, or the directory holds other files.
        BadData: If the data set cannot be read, or its classes are incomplete.
        BadRun: If the directory holds shards of other images or settings.
    """
    packing = Packing(format, shard, side, quality, shuffle)
    parts, notes, unlearned = parts_at(source, columns, typed=True)
    if unlearned:  # shards list all classes as learned ones: the difference would be lost
        raise BadData(f"{unlearned}; rename or remove it")
    for note in notes:
        say(note)
    if workers < 0:
        workers = one_per_cpu()
    try:
        packed = packed_to(parts, dest, packing, workers, "packing")
    except KeyboardInterrupt:
        say("stopped; run the same command to continue")
        raise
    images = sum(map(len, parts.values()))
    target_kind = next(iter(parts.values())).target_kind
    return PackedData(dest, packed, images, target_kind, ok_if_unreadable)
