"""`vitkit data pack`: a data set written as shards."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitkit.curation import Packed, Packing
from vitkit.data import Columns
from vitkit.system.console.text import as_word, printable
from vitkit.verbs import Data, DataColumns

LISTED = 10  # images left out that are printed


@dataclass
class Pack:
    """Write a data set as shards. After an interruption, run the same command to continue."""

    source: Data
    dest: Annotated[Positional[Path], arg(metavar="DEST")]
    """Directory for the shards, classes.txt and left-out.txt."""
    packing: Annotated[Packing, arg(name="")] = field(default_factory=Packing)
    columns: DataColumns = field(default_factory=Columns)
    workers: int = -1
    """Processes, each writing a shard; -1 follows the CPU quota."""


def pack(command: Pack) -> int:
    """`vitkit data pack`. Prints a sentence when it is interrupted, and raises KeyboardInterrupt
    again."""
    from vitkit.curation import pack
    from vitkit.data import open_parts
    from vitkit.system.machine import cpus

    # Write the shards
    parts, notes, unlearned = open_parts(command.source, command.columns)
    if unlearned:  # shards declare their classes: nothing could tell it of them any more
        raise ValueError(f"{unlearned}; rename or remove it")
    for note in notes:
        print(printable(note))
    workers = command.workers
    if workers < 0:
        workers = cpus()
    try:
        packed = pack(parts, command.dest, command.packing, workers, "packing")
    except KeyboardInterrupt:
        print("stopped; run the same command to continue", file=sys.stderr)
        raise

    # Say what was written
    images = sum(map(len, parts.values()))
    target_kind = next(iter(parts.values())).target_kind
    _print_packed(packed, images, command.dest)
    print(f"next: {training_command(command.dest, target_kind)}")
    return 0


def _print_packed(packed: Packed, images: int, dest: Path) -> None:
    """Print how many of `images` images were written, and which were not."""
    sentence = f"{packed.written:,} of {images:,} images in {dest}, {packed.bytes / 1e6:,.1f} MB"
    if packed.shrunk:
        sentence += f"; {packed.shrunk:,} made smaller"
    print(sentence)
    for line in packed.left_out[:LISTED]:
        print(f"left out: {printable(line)}")
    if packed.left_out:
        list_file = dest / "left-out.txt"
        print(f"{len(packed.left_out):,} images were left out; all are listed in {list_file}")


def training_command(source: Path | str, target: str) -> str:
    """The command that trains on a data set whose targets are of this kind."""
    if target == "none":
        return f"vitkit train mae.B16 --data.source {as_word(source)}"
    command = f"vitkit train scratch --data.source {as_word(source)}"
    if target == "number":
        command += " --data.columns.target number"
    return command
