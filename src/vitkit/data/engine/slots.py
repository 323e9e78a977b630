"""Batches that worker processes write into memory which this process has already.

A tensor that a worker sends lies in fresh shared memory: the system clears every page of it, and maps it twice. For
small photographs that takes a fifth as long as all the rest. Here workers write into a few pieces of memory that they
share with this process since they were forked, and a piece is used again as soon as nobody holds a tensor in it.
"""

import math
import mmap
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vitkit.data.engine.workers import in_order

SPARE = 3  # pieces beside those that workers may be filling: for the batch in use, the next one, and one to ask for


def in_slots(build, steps, workers: int, ahead: int, shape: tuple[int, ...]) -> Iterator:
    """As in_order, for forked workers and a build with fill(images, step): a named tuple of tensors, first these images.

    The images handed out are uint8 of `shape`, and theirs who get them, for as long as they are held.
    """
    slots = Slots(shape, workers * ahead + SPARE)
    for slot, batch in in_order(
        _Filling(build, slots), _Asking(steps, slots), workers, ahead=ahead
    ):
        yield (
            batch
            if slot is None
            else type(batch)(slots.hand_out(slot), *map(torch.from_numpy, batch[1:]))
        )


class Slots:
    """`count` pieces of memory for a uint8 tensor of `shape` each, shared with processes that are forked afterwards."""

    def __init__(self, shape: tuple[int, ...], count: int):
        self.shape, self.size = shape, math.prod(shape)
        self.memory = mmap.mmap(
            -1, count * self.size
        )  # anonymous: nothing of /dev/shm, and gone with its last user
        self.free = list(range(count))

    def take(self) -> int | None:
        """A piece that nobody uses; None where there is none, because many batches are being held."""
        return self.free.pop() if self.free else None

    def open(self, slot: int | None) -> Tensor:
        """Where a worker writes: a piece, or for None memory of its own."""
        if slot is None:
            return torch.empty(self.shape, dtype=torch.uint8)
        flat = torch.frombuffer(
            self.memory, dtype=torch.uint8, count=self.size, offset=slot * self.size
        )
        return flat.view(self.shape)

    def hand_out(self, slot: int) -> Tensor:
        """A piece as a tensor. The piece is free again when no tensor or array looks into it any more."""
        part = memoryview(self.memory)[slot * self.size : (slot + 1) * self.size]
        weakref.finalize(
            part, self.free.append, slot
        ).atexit = False  # the memory of a tensor holds on to `part`
        return torch.frombuffer(part, dtype=torch.uint8).view(self.shape)


@dataclass(frozen=True, eq=False)
class _Asking:
    """(a free piece, step) for every step, at the moment when a worker is asked for it."""

    steps: object
    slots: Slots

    def __iter__(self) -> Iterator[tuple[int | None, int]]:
        return ((self.slots.take(), step) for step in self.steps)


@dataclass(frozen=True, eq=False)
class _Filling:
    """(piece, step) -> the piece, and the batch without what lies there. Works in a worker."""

    build: object
    slots: Slots

    def __getitem__(self, asked: tuple[int | None, int]):
        slot, step = asked
        batch = self.build.fill(self.slots.open(slot), step)
        if isinstance(batch, Exception):
            return batch
        # The rest is small: as arrays it travels in the message, without a piece of shared memory for each.
        return slot, batch if slot is None else type(batch)(
            None, *(tensor.numpy() for tensor in batch[1:])
        )
