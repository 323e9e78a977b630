"""Batches of images that worker processes write into memory which this process has already.

A tensor that a worker sends lies in fresh shared memory: the system clears every page of it, and
maps it twice. Here workers write into a few buffers, one after the other, which they share with
this process since they were forked. A batch is copied out of its buffer before it is handed on, so
it is the caller's own.
"""

import math
import mmap
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitkit.data.images.preprocessing import Preprocessing
from vitkit.data.loading.workers import AHEAD, forked, in_order

Fill = Callable[[Tensor, Any], NamedTuple]
"""(images, item) -> a named tuple of tensors, whose first is `images`, filled."""


class Layout(NamedTuple):
    """The images of a batch in memory."""

    shape: tuple[int, ...]
    """(B, C, h, w)"""
    dtype: torch.dtype

    @classmethod
    def of(cls, preprocessing: Preprocessing, rows: int) -> "Layout":
        """So many images, as a preprocessing makes them."""
        shape = (rows, preprocessing.channels, *preprocessing.size)
        return cls(shape, getattr(torch, preprocessing.values))

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def batches_in_order(
    fill: Fill,
    items: Iterable,
    workers: int,
    layout: Layout,
    pin: bool = False,
    other_bytes: int = 0,
) -> Iterator:
    """fill(images, item) for every item, in order, prepared by worker processes, as in_order does;
    images are laid out as `layout` says, and not cleared.

    other_bytes: of a batch's other tensors.
    """
    # Page-locked memory is another copy, which a thread of the loader makes
    if not workers or not forked() or pin:
        task = partial(_into_new_memory, fill, layout)
        return in_order(task, items, workers, pin, layout.bytes + other_bytes)
    return _through_buffers(fill, items, workers, layout)


def _through_buffers(fill: Fill, items: Iterable, workers: int, layout: Layout) -> Iterator:
    # Workers are at most AHEAD batches each beyond the one that was asked for last
    count = AHEAD * workers + 1
    # Anonymous memory: none of /dev/shm
    memory = mmap.mmap(-1, count * layout.bytes)
    buffers = list(torch.frombuffer(memory, dtype=layout.dtype).view(count, *layout.shape))

    task = partial(_into_buffer, fill, buffers)
    try:
        with closing(in_order(task, enumerate(items), workers)) as batches:
            for number, batch in batches:
                images = _copy(buffers[number % count])
                yield type(batch)(images, *map(torch.from_numpy, batch[1:]))
    finally:
        buffers.clear()  # the loader is in a cycle, and would keep the memory until that is found


def _into_buffer(
    fill: Fill, buffers: list[Tensor], numbered: tuple[int, Any]
) -> tuple[int, NamedTuple]:
    """Work in a worker: the number of the batch, and all of it but the images. As arrays it travels
    in the message; each tensor would have a piece of shared memory."""
    number, item = numbered
    batch = fill(buffers[number % len(buffers)], item)
    return number, type(batch)(None, *(tensor.numpy() for tensor in batch[1:]))


def _copy(images: Tensor) -> Tensor:
    """A copy in memory of its own, which goes back to the system with it. In the C library's heap
    batches would lie between small things, and leave holes of several batches."""
    memory = mmap.mmap(-1, images.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=images.dtype).view(images.shape).copy_(images)


def _into_new_memory(fill: Fill, layout: Layout, item: Any) -> NamedTuple:
    return fill(torch.empty(layout.shape, dtype=layout.dtype), item)
