"""Images in memory: small data sets that are decoded once and shared with workers, or stored on the
model's device if that needs no workers; and the buffers that workers fill with batches of other images.

None of these changes a batch: a box of a decoded image equals the decoded box, and the same function
draws from the same random numbers. So a run may be continued with or without them.

Legend: B batch, C channels, N examples, h w pixels.
"""

import math
import mmap
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data.augmentation.draws import draw
from vitkit.data.augmentation.settings import Augmentation
from vitkit.data.images.preprocessing import Preprocessing
from vitkit.data.loading.workers import AHEAD, forked, in_order, ranges, worth_starting
from vitkit.data.sources.source import Source
from vitkit.data.sources.stores import Arrays, Store
from vitkit.system.console.progress import Shown, silent

CHUNK = 64  # images that a worker decodes before it returns them
PHOTOGRAPHS = Preprocessing()  # three channels of 8 bits
SAMPLE = 50  # number of images whose sizes are used to estimate the memory of all

RandomAt = Callable[[int, int], np.random.Generator]
"""(epoch, example) -> the example's random numbers in this epoch."""
Fill = Callable[[Tensor, Any], NamedTuple]
"""(images, item) -> a named tuple of tensors. Its first is `images`, which the function has filled."""


# Data sets decoded once


@dataclass(frozen=True, eq=False)
class Pixels(Store):
    """Decoded pictures of any sizes in one array. Row i is example i."""

    origin: Store
    """The store of the encoded pictures, for names and identities."""
    rows: np.ndarray
    """(N,): row of each picture in the origin."""
    block: np.ndarray
    """uint8 or float32: the values of all pictures, one picture after the other."""
    channels: int
    """C, of every picture."""
    starts: np.ndarray
    """(N,): index in the block of each picture's first value."""
    sizes: np.ndarray
    """(N, 2): height and width of each picture."""

    def read(self, row: int) -> np.ndarray:
        """The picture (h, w, C) as a view: do not write to it."""
        height, width = self.sizes[row].tolist()
        start = int(self.starts[row])
        end = start + height * width * self.channels
        return self.block[start:end].reshape(height, width, self.channels)

    def name(self, row: int) -> str:
        """The name of the picture in its origin."""
        return self.origin.name(int(self.rows[row]))

    def identity(self, row: int) -> str:
        """The identity of the picture in its origin."""
        return self.origin.identity(int(self.rows[row]))


def decoded(
    source: Source,
    limit: int,
    workers: int,
    shown: Shown = silent,
    preprocessing: Preprocessing = PHOTOGRAPHS,
) -> Source:
    """Decode the examples of a source into memory, with `workers` processes.

    Returns the source itself if that would take more than `limit` bytes, or if workers are not forked
    and so could not share the memory. The preprocessing determines the channels and the type of the
    values. Raises BadImage with the image's name.
    """
    limit = limit // preprocessing.dtype.itemsize  # number of values
    if not _worth_decoding(source, limit, preprocessing.channels):
        return source
    source.prepare()

    # Decode chunk by chunk, writing one image after the other into the block
    block = np.empty(limit, preprocessing.dtype)  # pages that are not written to take no memory
    sizes = np.zeros((len(source), 2), np.int32)
    end = 0
    chunks = ranges(len(source), CHUNK)
    task = partial(_decode, source, preprocessing)
    results = in_order(task, chunks, worth_starting(workers, len(chunks)))
    for indices, images in zip(chunks, shown(results, len(chunks)), strict=True):
        for i, image in zip(indices, images, strict=True):
            if end + image.size > limit:
                return source
            block[end : end + image.size] = image.ravel()
            sizes[i] = image.shape[:2]
            end += image.size

    # Release the encoded images
    cache = getattr(source.store, "cache", None)
    if cache is not None:
        cache.clear()
    channels = preprocessing.channels
    lengths = sizes.prod(axis=1, dtype=np.int64) * channels
    starts = np.cumsum(lengths) - lengths
    store = Pixels(source.store, source.rows, block[:end], channels, starts, sizes)
    return replace(source, store=store, rows=np.arange(len(source)))


def _worth_decoding(source: Source, limit: int, channels: int) -> bool:
    """Whether the examples are encoded, lie in memory or on a disk, and probably have at most `limit` values
    when decoded."""
    if limit <= 0 or not len(source) or not forked():
        return False
    if isinstance(source.store, Arrays | Pixels):
        return False
    if source.chunks() is not None:  # the encoded images do not fit in memory
        return False
    sample = range(0, len(source), -(-len(source) // SAMPLE))
    pixels = 0
    for i in sample:
        height, width = source.picture(i).size
        pixels += height * width
    return channels * pixels / len(sample) * len(source) <= limit


def _decode(source: Source, preprocessing: Preprocessing, indices: range) -> list[np.ndarray]:
    """The pixels of these images. Raises BadImage, and OSError."""
    return [preprocessing.decode(source.picture(i)) for i in indices]


# Decoded pictures of the right size: batches are slices of one array


def are_prepared(source: Source, preprocessing: Preprocessing) -> bool:
    """Whether the pictures of a source are stored as prepared images: decoded, with the size that the model
    reads."""
    if preprocessing.resize or preprocessing.is_native:
        return False
    height, width = preprocessing.size
    # The rule "shorter" resizes the image to the longer side
    if preprocessing.rule == "shorter" and height != width:
        return False
    store = source.store
    if isinstance(store, Pixels):
        return bool((store.sizes == preprocessing.size).all())
    if not isinstance(store, Arrays):
        return False
    # Values of another type would be converted
    if store.array.dtype != np.uint8 or preprocessing.values != "uint8":
        return False
    # Grey can be repeated for three colours, but a fourth channel is alpha
    channels: tuple[int, ...] = (1, 3)
    if store.array.ndim == 4:
        channels = (store.array.shape[3],)
    return preprocessing.channels in channels and store.array.shape[1:3] == preprocessing.size


def prepared(source: Source, preprocessing: Preprocessing, examples: np.ndarray | slice) -> Tensor:
    """These examples of a source for which `are_prepared` is True: (N, C, h, w), or (N, 1, h, w) for grey."""
    height, width = preprocessing.size
    if isinstance(source.store, Pixels):
        # All have the same size, so the block can be reshaped
        arrays = source.store.block.reshape(-1, height, width, preprocessing.channels)
    else:
        assert isinstance(source.store, Arrays)
        arrays = source.store.array
    arrays = arrays[source.rows[examples]]
    if arrays.ndim == 3:
        arrays = arrays[..., None]  # (N, h, w, 1 or C)
    return torch.from_numpy(arrays).permute(0, 3, 1, 2)


# Batches made on the model's device


def can_augment_on_device(
    source: Source, augmentation: Augmentation, preprocessing: Preprocessing
) -> bool:
    """Whether whole batches can be made on the model's device: the pictures are prepared images, and the
    augmentation at most shifts and mirrors them."""
    if augmentation.crop not in ("none", "pad_crop") or augmentation.changes_colours:
        return False
    return are_prepared(source, preprocessing)


@dataclass(frozen=True, eq=False)
class DeviceImages:
    """All images as one padded tensor on a device, from which whole batches are indexed."""

    images: Tensor
    """(N, C, h + 2 pad, w + 2 pad): the padded images."""
    size: tuple[int, int]
    """(h, w): the size of a crop."""

    @classmethod
    def of(
        cls,
        source: Source,
        augmentation: Augmentation,
        preprocessing: Preprocessing,
        device: torch.device,
    ) -> "DeviceImages":
        """Copy the images of a source to a device, if `can_augment_on_device` is True for it."""
        images = prepared(source, preprocessing, slice(None)).to(device)
        images = images.expand(-1, preprocessing.channels, -1, -1)  # (N, C, h, w)
        pad = augmentation.pad if augmentation.crop == "pad_crop" else 0
        return cls(F.pad(images, [pad] * 4).contiguous(), preprocessing.size)

    def batch(self, crops: Tensor) -> Tensor:
        """Crops as `_draw_crops` returns them, int64 (B, 4) -> images (B, C, h, w)."""
        device = self.images.device
        height, width = self.size
        example, top, left, flip = crops.to(device, non_blocking=True).T[..., None]  # (B, 1) each
        y = torch.arange(height, device=device)
        x = torch.arange(width, device=device)
        rows = top + y  # (B, h)
        columns = left + torch.where(flip.bool(), width - 1 - x, x)  # (B, w)

        # One index for each axis of the result (B, C, h, w)
        example = example[:, :, None, None]  # (B, 1, 1, 1)
        channel = torch.arange(self.images.shape[1], device=device)[:, None, None]  # (C, 1, 1)
        row = rows[:, None, :, None]  # (B, 1, h, 1)
        column = columns[:, None, None, :]  # (B, 1, 1, w)
        return self.images[example, channel, row, column]


def device_batches(
    images: DeviceImages,
    augmentation: Augmentation,
    preprocessing: Preprocessing,
    random_at: RandomAt,
    batches: Iterable[np.ndarray],
    workers: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (images (B, C, h, w) on the device, examples int64 (B,)) for every batch.

    batches: (epoch, example) of each row, int64 (B, 2).
    workers: if positive, one worker draws ahead.
    """
    task = partial(_draw_crops, augmentation, preprocessing, random_at)
    for crops in in_order(task, batches, min(workers, 1)):
        yield images.batch(crops), crops[:, 0]


def _draw_crops(
    augmentation: Augmentation, preprocessing: Preprocessing, random_at: RandomAt, rows: np.ndarray
) -> Tensor:
    """Draw the crops and flips of a batch: (example, top, left, flip) of each row, int64 (B, 4).

    rows: (epoch, example) of each row, int64 (B, 2).
    """
    crops = np.zeros((len(rows), 4), np.int64)
    for row, (epoch, example) in enumerate(rows.tolist()):
        random = random_at(epoch, example)
        drawn = draw(None, augmentation, preprocessing, random)
        crops[row, 0] = example
        if drawn.box:
            crops[row, 1:3] = drawn.box[:2]  # top, left
        crops[row, 3] = drawn.flip
    return torch.from_numpy(crops)


# Buffers. A tensor that a worker sends is in new shared memory, whose pages the system clears and maps
# twice. Instead, workers write into a few buffers in turn, which they share with this process because
# they were forked. A batch is copied out of its buffer before it is yielded, so the caller owns it.


class MemoryLayout(NamedTuple):
    """Shape and type of the images of a batch in memory."""

    shape: tuple[int, ...]
    """(B, C, h, w), or (B, M) for images of several sizes."""
    dtype: torch.dtype

    @classmethod
    def of(cls, preprocessing: Preprocessing, rows: int) -> "MemoryLayout":
        """The layout of `rows` images that a preprocessing prepares."""
        shape = (rows, *preprocessing.row_shape)
        return cls(shape, getattr(torch, preprocessing.values))

    @property
    def bytes(self) -> int:
        """Size of the images in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def batches_in_order(
    fill: Fill,
    items: Iterable,
    workers: int,
    layout: MemoryLayout,
    pin: bool = False,
    other_bytes: int = 0,
    ahead: int = AHEAD,
) -> Generator[Any, None, None]:
    """Yield fill(images, item) for every item, in order, prepared by worker processes (`in_order`). The
    images passed to `fill` are uninitialised.

    other_bytes: size of the other tensors of a batch.
    ahead: number of batches that each worker prepares in advance.
    """
    # Page-locked memory requires a copy anyway, which a thread of the loader makes
    if not workers or not forked() or pin:
        task = partial(_into_new_memory, fill, layout)
        return in_order(task, items, workers, pin, layout.bytes + other_bytes, ahead)
    return _through_buffers(fill, items, workers, layout, ahead)


def _through_buffers(
    fill: Fill, items: Iterable, workers: int, layout: MemoryLayout, ahead: int
) -> Generator[Any, None, None]:
    """`batches_in_order` with buffers that forked workers share with this process."""
    # Workers are at most `ahead` batches each ahead of the batch that was requested last
    count = ahead * workers + 1
    # Anonymous memory, which does not count as /dev/shm
    memory = mmap.mmap(-1, count * layout.bytes)
    buffers = list(torch.frombuffer(memory, dtype=layout.dtype).view(count, *layout.shape))

    task = partial(_into_buffer, fill, buffers)
    try:
        with closing(in_order(task, enumerate(items), workers, ahead=ahead)) as batches:
            for number, batch in batches:
                images = _copy(buffers[number % count])
                yield type(batch)(images, *map(torch.from_numpy, batch[1:]))
    finally:
        buffers.clear()  # the loader is in a reference cycle, which would keep the memory alive


def _into_buffer(
    fill: Fill, buffers: list[Tensor], numbered: tuple[int, Any]
) -> tuple[int, NamedTuple]:
    """In a worker: fill a buffer, and return the number of the batch and all of it but the images.
    Arrays are sent in the message itself, whereas each tensor would need shared memory of its own."""
    number, item = numbered
    batch = fill(buffers[number % len(buffers)], item)
    return number, batch._make([None, *(tensor.numpy() for tensor in batch[1:])])


def _copy(images: Tensor) -> Tensor:
    """A copy of images in a mapping of its own, which the system gets back when it is deleted. In the
    heap of the C library, batches would lie between small objects and leave large holes."""
    memory = mmap.mmap(-1, images.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=images.dtype).view(images.shape).copy_(images)


def _into_new_memory(fill: Fill, layout: MemoryLayout, item: Any) -> NamedTuple:
    """Fill new memory with a batch."""
    return fill(torch.empty(layout.shape, dtype=layout.dtype), item)
