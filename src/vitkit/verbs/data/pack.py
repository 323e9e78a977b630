"""A data set written as shards."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitkit.curation import Packed, Packing
from vitkit.curation import pack as packed_to
from vitkit.data import Columns, parts_at
from vitkit.system.console.messages import say
from vitkit.system.console.text import as_word, printable
from vitkit.system.errors import BadData
from vitkit.system.machine import cpus
from vitkit.verbs.arguments import Data, DataColumns, OkIfUnreadable, status_of
from vitkit.verbs.definition import result, verb

LISTED = 10  # images left out that are printed


@dataclass(frozen=True)
class Pack:
    """Write a data set as shards. After an interruption, run the same command to continue."""

    source: Data
    dest: Annotated[Positional[Path], arg(metavar="DEST")]
    """Directory for the shards, classes.txt and left-out.txt."""
    packing: Annotated[Packing, arg(name="")] = field(default_factory=Packing)
    columns: DataColumns = field(default_factory=Columns)
    workers: int = -1
    """Processes that write shards, one each; -1 follows the CPU quota."""
    ok_if_unreadable: OkIfUnreadable = False


@result
@dataclass(frozen=True)
class PackedData:
    """The shards of a data set."""

    settings: Pack
    packed: Packed
    """What was written, and what was left out."""
    images: int
    """How many images the data set has."""
    target_kind: str

    @property
    def path(self) -> Path:
        """The directory of the shards."""
        return self.settings.dest

    @property
    def status(self) -> int:
        """The exit status of the command: 3 if images could not be read."""
        return status_of(len(self.packed.left_out), self.settings.ok_if_unreadable)

    def shown(self) -> Iterator[str]:
        """The output: the number of images that were written, and the images that were not."""
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
        yield f"next: {training_command(self.path, self.target_kind)}"


@verb
def pack(settings: Pack) -> PackedData:
    """Write a data set as shards; the same call continues after an interruption.

    Raises ValueError for a data set that shards cannot express, and for a directory that holds
    other shards.
    """
    parts, notes, unlearned = parts_at(settings.source, settings.columns, typed=True)
    if unlearned:  # shards declare their classes: nothing could tell it of them any more
        raise BadData(f"{unlearned}; rename or remove it")
    for note in notes:
        say(note)
    workers = settings.workers
    if workers < 0:
        workers = cpus()
    try:
        packed = packed_to(parts, settings.dest, settings.packing, workers, "packing")
    except KeyboardInterrupt:
        say("stopped; run the same command to continue")
        raise
    images = sum(map(len, parts.values()))
    return PackedData(settings, packed, images, next(iter(parts.values())).target_kind)


def training_command(source: Path | str, target: str) -> str:
    """The command that trains on a data set whose targets are of this kind."""
    if target == "none":
        return f"vitkit train mae.B16 --data.source {as_word(source)}"
    command = f"vitkit train scratch --data.source {as_word(source)}"
    if target == "number":
        command += " --data.columns.target number"
    return command
