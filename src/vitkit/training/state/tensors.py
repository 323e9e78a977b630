"""The tensors of a checkpoint as files: each rank writes what it holds, and any number of ranks
reads it.

Which rank writes what follows from how the tensors are sharded, so nothing has to be planned or
agreed: a rank's file has its shards, and says where they lie in the whole tensors. What several
ranks hold alike is written by the first of them. To read, one rank reads the header of each file,
and tells the others; then each opens the files that have something of its own shards.

A file is as PyTorch's HuggingFaceStorageWriter makes it, which wrote the checkpoints of earlier
runs, and its HuggingFaceStorageReader opens it.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitkit.system.errors import BadRun, Unavailable
from vitkit.system.processes.ranks import part_of, world
from vitkit.system.storage.files import parse_json, sync

ONE_FILE = "state.safetensors"  # of a run of one process
OFFSETS = "DCP_SHARDING_INFO"  # in the metadata of a file of shards: where they lie


class PartsToWrite(NamedTuple):
    """The parts of a checkpoint's tensors that a rank writes, by name."""

    tensors: dict[str, Tensor]
    offsets: dict[str, list[int]]
    """Where each begins in the whole tensor: an index for each dimension."""


class Piece(NamedTuple):
    """The part of a tensor in a file."""

    file: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


def parts_to_write(tensors: dict[str, Tensor]) -> PartsToWrite:
    """The parts of these tensors that this rank writes: not copied if they are on the CPU
    already."""
    parts = PartsToWrite({}, {})
    for name, tensor in tensors.items():
        part = part_of(tensor)
        if part.is_first and part.values.numel() > 0:
            parts.tensors[name] = part.values
            parts.offsets[name] = list(part.offsets)
    return parts


def copied(parts: PartsToWrite) -> PartsToWrite:
    """A copy on the CPU, while the training may continue with the originals.

    Into ordinary memory: page-locked memory is copied to faster, but gigabytes of it take seconds
    to get, and stay with the process.
    """
    copies = {name: tensor.to("cpu", copy=True) for name, tensor in parts.tensors.items()}
    return PartsToWrite(copies, parts.offsets)


def write(folder: Path, parts: PartsToWrite) -> Path | None:
    """Write this rank's file of a checkpoint, and wait until it is on the disk; returns its path,
    or None if the rank has nothing to write. Raises OSError."""
    if not parts.tensors:
        return None
    rank, world_size = world()
    path = folder / ONE_FILE
    metadata = None
    if world_size > 1:
        path = folder / f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"
        offsets = {name: {"saved_offsets": each} for name, each in parts.offsets.items()}
        metadata = {"format": "pt", "DCP_VERSION": "1.0", OFFSETS: json.dumps(offsets)}

    on_cpu = {name: tensor.cpu().contiguous() for name, tensor in parts.tensors.items()}
    try:
        save_file(on_cpu, path, metadata)
    except SafetensorError as error:  # safetensors' name for a full disk
        raise Unavailable(str(error)) from error
    path.chmod(folder.stat().st_mode & 0o666)  # the library's files are for their owner alone
    sync(path)
    return path


def pieces_of(path: Path) -> dict[str, Piece]:
    """The part of each tensor in a file, by name: only the header is read. Raises VitkitError if
    it is not such a file, and OSError."""
    pieces = {}
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            known = parse_json(metadata.get(OFFSETS, "{}"))
            for name in file.keys():  # noqa: SIM118 it is no dictionary
                shape = tuple(file.get_slice(name).get_shape())
                offsets = (0,) * len(shape)
                if known:
                    offsets = tuple(map(int, known[name]["saved_offsets"]))
                if len(offsets) != len(shape) or min(offsets, default=0) < 0:
                    raise BadRun(f"{name} has {len(shape)} dimensions and begins at {offsets}")
                pieces[name] = Piece(path.name, offsets, shape)
    except (SafetensorError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BadRun(f"{path.name} is no file of a checkpoint: {error}") from error
    return pieces


def collected(of_ranks: Iterable[list[dict[str, Piece]]]) -> dict[str, list[Piece]]:
    """The pieces of every tensor, by its name, from what each rank has read of some files."""
    pieces: dict[str, list[Piece]] = {}
    for files in of_ranks:
        for of_file in files:
            for name, piece in of_file.items():
                pieces.setdefault(name, []).append(piece)
    return pieces


def whole_shape(pieces: Iterable[Piece]) -> torch.Size:
    """The shape of the tensor that these are the pieces of."""
    ends = [_ends(piece) for piece in pieces]
    return torch.Size(map(max, zip(*ends, strict=True)))


class Copy(NamedTuple):
    """A box of a tensor that is read from a file into a part of it."""

    name: str
    source: tuple[slice, ...]
    """Position within the piece of the tensor that the file holds."""
    target: tuple[slice, ...]
    """Position within this rank's part of the tensor."""


def copies_to_make(
    tensors: dict[str, Tensor], pieces: dict[str, list[Piece]]
) -> dict[str, list[Copy]]:
    """The copies that this rank reads from each file, by the file's name, to fill its parts of
    these tensors. Raises VitkitError if something of them is in no file.
    """
    copies: dict[str, list[Copy]] = {}
    for name, tensor in tensors.items():
        part = part_of(tensor)
        missing = part.values.numel()
        for piece in _nearest_first(pieces[name], part.offsets):
            if not missing:
                break
            box = _overlap(part.offsets, part.values.shape, piece)
            if box is None:
                continue
            source = _slices(box, piece.offsets)
            target = _slices(box, part.offsets)
            copies.setdefault(piece.file, []).append(Copy(name, source, target))
            missing -= _size(box)
        if missing:
            raise BadRun(f"{missing:,} numbers of {name} are in none of its files")
    return copies


def _nearest_first(pieces: list[Piece], offsets: tuple[int, ...]) -> list[Piece]:
    """Orders the pieces of a tensor: first those from the last one on that begins before a part of it,
    where what the part needs is, unless a file is cut otherwise than by rows."""
    in_order = sorted(pieces, key=lambda piece: piece.offsets)
    after = bisect_right(in_order, offsets[:1], key=lambda piece: piece.offsets[:1])
    first = max(after - 1, 0)
    return in_order[first:] + in_order[:first]


def read(folder: Path, tensors: dict[str, Tensor], copies: dict[str, list[Copy]]) -> None:
    """Fill this rank's parts of these tensors, in place."""
    for file_name, of_file in copies.items():
        with safe_open(folder / file_name, framework="pt") as file:
            for each in of_file:
                values = part_of(tensors[each.name]).values
                values[each.target].copy_(file.get_slice(each.name)[each.source])


# Boxes: a range, (start, stop), in each dimension of a tensor


def _ends(piece: Piece) -> list[int]:
    return [start + size for start, size in zip(piece.offsets, piece.shape, strict=True)]


def _overlap(
    offsets: tuple[int, ...], shape: tuple[int, ...], piece: Piece
) -> list[tuple[int, int]] | None:
    """The box that a part of a tensor and a piece of it have in common; None if there is none."""
    box = []
    for start, size, other, other_size in zip(
        offsets, shape, piece.offsets, piece.shape, strict=True
    ):
        first = max(start, other)
        last = min(start + size, other + other_size)
        if first >= last:
            return None
        box.append((first, last))
    return box


def _slices(box: list[tuple[int, int]], offsets: tuple[int, ...]) -> tuple[slice, ...]:
    """A box within what begins at these offsets."""
    return tuple(
        slice(first - offset, last - offset)
        for (first, last), offset in zip(box, offsets, strict=True)
    )


def _size(box: list[tuple[int, int]]) -> int:
    size = 1
    for first, last in box:
        size *= last - first
    return size
