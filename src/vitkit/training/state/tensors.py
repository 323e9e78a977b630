"""The tensors of a checkpoint as files: each rank writes its shards, and any number of ranks can read them.

The sharding of the tensors decides which rank writes which part, so the ranks need no plan: a rank's file has its
shards, and their offsets in the whole tensors. Replicated parts are written by the first rank that holds them. To
read a checkpoint, each header is read by one rank and sent to the others; then each rank opens the files with
parts of its own shards.

The files have the format of PyTorch's HuggingFaceStorageWriter, which wrote the checkpoints of earlier versions,
and its HuggingFaceStorageReader opens them.
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

ONE_FILE = "state.safetensors"  # file of a run of one process
OFFSETS = "DCP_SHARDING_INFO"  # key in the metadata of a file of shards: their offsets


class PartsToWrite(NamedTuple):
    """The parts of a checkpoint's tensors that a rank writes, by name."""

    tensors: dict[str, Tensor]
    offsets: dict[str, list[int]]
    """Offset of each part in the whole tensor, for each dimension."""


class Piece(NamedTuple):
    """The part of a tensor that a file holds."""

    file: str
    """Name of the file."""
    offsets: tuple[int, ...]
    """Offset of the part in the whole tensor, for each dimension."""
    shape: tuple[int, ...]
    """Shape of the part."""


def parts_to_write(tensors: dict[str, Tensor]) -> PartsToWrite:
    """The parts of these tensors that this rank writes, not copied."""
    parts = PartsToWrite({}, {})
    for name, tensor in tensors.items():
        part = part_of(tensor)
        if part.is_first and part.values.numel() > 0:
            parts.tensors[name] = part.values
            parts.offsets[name] = list(part.offsets)
    return parts


def copied(parts: PartsToWrite) -> PartsToWrite:
    """A copy of the parts on the CPU, so that training may change the originals.

    It is in pageable memory: copies to pinned memory are faster, but allocating gigabytes of it takes seconds,
    and the process keeps it.
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
    except SafetensorError as error:  # raised for a full disk
        raise Unavailable(str(error)) from error
    # The library makes files readable for their owner only
    path.chmod(folder.stat().st_mode & 0o666)
    sync(path)
    return path


def pieces_of(path: Path) -> dict[str, Piece]:
    """The part of each tensor in a file, by name; only the header is read. Raises OSError, and VitkitError if
    it is not a file of a checkpoint."""
    pieces = {}
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            known = parse_json(metadata.get(OFFSETS, "{}"))
            for name in file.keys():  # noqa: SIM118 not a dictionary
                shape = tuple(file.get_slice(name).get_shape())
                offsets = (0,) * len(shape)
                if known:
                    offsets = tuple(map(int, known[name]["saved_offsets"]))
                if len(offsets) != len(shape) or min(offsets, default=0) < 0:
                    raise BadRun(f"{name} has {len(shape)} dimensions and begins at {offsets}")
                pieces[name] = Piece(path.name, offsets, shape)
    except (SafetensorError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BadRun(f"{path.name} is not a file of a checkpoint: {error}") from error
    return pieces


def collected(of_ranks: Iterable[list[dict[str, Piece]]]) -> dict[str, list[Piece]]:
    """The pieces of every tensor by name, from the files that each rank has read."""
    pieces: dict[str, list[Piece]] = {}
    for files in of_ranks:
        for of_file in files:
            for name, piece in of_file.items():
                pieces.setdefault(name, []).append(piece)
    return pieces


def whole_shape(pieces: Iterable[Piece]) -> torch.Size:
    """The shape of a whole tensor, from all of its pieces."""
    ends = [_ends(piece) for piece in pieces]
    return torch.Size(map(max, zip(*ends, strict=True)))


class Copy(NamedTuple):
    """A copy of a box of a tensor from a file to this rank's part of it."""

    name: str
    """Name of the tensor."""
    source: tuple[slice, ...]
    """Position of the box in the file's piece of the tensor."""
    target: tuple[slice, ...]
    """Position of the box in this rank's part of the tensor."""


def copies_to_make(
    tensors: dict[str, Tensor], pieces: dict[str, list[Piece]]
) -> dict[str, list[Copy]]:
    """The copies that fill this rank's parts of these tensors, by the name of the file. Raises VitkitError if
    the files do not cover the parts.
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
    """The pieces of a tensor, sorted so that those that overlap a part at these offsets come first, if the tensor
    is sharded by rows."""
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


# Boxes: a range (start, stop) for each dimension of a tensor


def _ends(piece: Piece) -> list[int]:
    return [start + size for start, size in zip(piece.offsets, piece.shape, strict=True)]


def _overlap(
    offsets: tuple[int, ...], shape: tuple[int, ...], piece: Piece
) -> list[tuple[int, int]] | None:
    """The intersection of a part of a tensor with a piece of it; None if it is empty."""
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
    """The slices of a box within a part that begins at these offsets."""
    return tuple(
        slice(first - offset, last - offset)
        for (first, last), offset in zip(box, offsets, strict=True)
    )


def _size(box: list[tuple[int, int]]) -> int:
    size = 1
    for first, last in box:
        size *= last - first
    return size
