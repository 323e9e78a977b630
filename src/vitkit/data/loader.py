"""Batches: the one at step t is a pure function of (seed, t), whatever the number of worker processes.

The order is the permutations of all epochs end to end, and batch t is positions (t - 1) B to t B of it: epochs have no
seam, every example comes once in each, and B may be larger than the data set. What augmentation does to an example is
decided by (seed, epoch, example). So a run is continued by its step number alone, with any number of workers.

Where examples can only be read many together (row groups of large parquet files, remote shards), a permutation goes
through windows of some of these chunks: which chunks meet in a window, and the order inside it, are random.

Legend: B batch, N examples, K classes, h w pixels.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.data.augmentation import Augmentation, augment, suit, warm_up
from vitkit.data.engine.resident import Drawing, Stack, gathered, stackable
from vitkit.data.engine.workers import in_order
from vitkit.data.images import BadImage, open_image
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.sources import Source
from vitkit.data.stores import Arrays
from vitkit.system.machine import cpus

MAX_WORKERS = 16

_ORDER, _AUGMENT = 0, 1  # what a stream of random numbers is for


class Batch(NamedTuple):
    """What a training or evaluation step gets."""

    images: Tensor
    """uint8 (B, 3, h, w)"""
    targets: Tensor
    """int64 (B,) for a class; float32 (B, K), ones and zeros, for several; float32 (B,) for a number; int64 (B,), all -1,
    for data without targets."""
    real: Tensor
    """bool (B,): False on the rows that fill up the last evaluation batch."""
    indices: Tensor
    """int64 (B,): which examples of the source these are."""


def default_workers(source: Source | None = None) -> int:
    """Worker processes that suit this machine's CPU quota, one being left to the model; 0 if nothing is to be decoded."""
    if source is not None and isinstance(source.store, Arrays):
        return 0
    return max(1, min(MAX_WORKERS, cpus() - 1))


def train_batches(
    source: Source,
    augmentation: Augmentation,
    preprocessing: Preprocessing,
    batch: int,
    seed: int,
    after: int,
    workers: int,
    share: tuple[int, int] = (0, 1),
    device: torch.device | None = None,
) -> Iterator[Batch]:
    """Batches after + 1, after + 2, ... without end, of `batch` examples, augmented. Close it to end its workers.

    workers: processes that prepare batches; 0 is none besides this one. share: (rank, world_size) yields this rank's equal
    part of every batch, so that all ranks together see what one would. device: that of the model; images that are decoded
    already and need no resize are kept, and augmented, there, and for a GPU others go into page-locked memory.
    Raises ValueError for settings that cannot go together, and while it runs BadImage with the image's name.
    """
    suit(augmentation, preprocessing)
    if not len(source):
        raise ValueError("there are no images to train on")
    if seed < 0 or after < 0:
        raise ValueError(f"seed is {seed} and after is {after}; both are 0 or more")
    _check_workers(workers)
    part = _part(batch, share)
    device = device or torch.device("cpu")
    rows = _Rows(source, batch, seed, part, after)
    if stackable(source, augmentation, preprocessing):
        stack = Stack.of(source, augmentation, preprocessing, device)
        drawing = Drawing(augmentation, preprocessing, _Stream(seed, _AUGMENT))
        ahead = workers if device.type == "cuda" else 0
        return _stacked(gathered(stack, drawing, rows, ahead), source)
    warm_up(augmentation)
    build = _Training(source, augmentation, preprocessing, seed, part)
    return _prepared(build, rows, workers, pin=device.type == "cuda")


def eval_batches(
    source: Source,
    preprocessing: Preprocessing,
    batch: int,
    workers: int,
    share: tuple[int, int] = (0, 1),
    pin: bool = False,
) -> "EvalBatches":
    """Every example once, in order, in batches of `batch`; can be gone through again and again.

    The last batch is filled up with rows whose `real` is False. share: as in train_batches; every rank gets as many
    batches. pin: into page-locked memory. Raises ValueError for a batch that cannot be, and while it runs BadImage with
    the image's name.
    """
    _check_workers(workers)
    return EvalBatches(source, preprocessing, batch, workers, _part(batch, share), pin)


@dataclass(frozen=True, eq=False)
class EvalBatches:
    """What eval_batches returns: it has a length and can be iterated, each time from the beginning."""

    source: Source
    preprocessing: Preprocessing
    batch: int
    workers: int
    part: range
    pin: bool = False

    def __len__(self) -> int:
        return -(-len(self.source) // self.batch)

    def __iter__(self) -> Iterator[Batch]:
        build = _Evaluation(self.source, self.preprocessing, self.batch, self.part)
        workers = min(self.workers, len(self))
        return _prepared(build, range(len(self)), workers, self.pin)


def order(
    count: int, seed: int, epoch: int, chunks: tuple[np.ndarray, int] | None = None
) -> np.ndarray:
    """The permutation of `count` examples in an epoch, counted from 0: int64 (count,).

    chunks: which chunk each example lies in, int64 (count,), and how many of them make a window; None if each is read
    alone.
    """
    random = _Stream(seed, _ORDER).at(epoch, 0)
    plain = random.permutation(count)
    if chunks is None:
        return plain
    chunk, together = chunks
    window = random.permutation(int(chunk.max()) + 1)[chunk] // together
    return plain[np.argsort(window[plain], kind="stable")]


@dataclass(frozen=True, eq=False)
class _Rows:
    """For every step after `after`, the (epoch, example) of each row: int64 (B, 2). Made in one process for all workers."""

    source: Source
    batch: int
    seed: int
    part: range
    after: int

    def __iter__(self) -> Iterator[np.ndarray]:
        count = len(self.source)
        chunks = self.source.chunks()
        orders: dict[int, np.ndarray] = {}
        for step in itertools.count(self.after):
            positions = step * self.batch + np.arange(self.part.start, self.part.stop)
            epochs, positions = np.divmod(positions, count)
            rows = np.stack([epochs, positions], axis=1)
            for epoch in np.unique(epochs).tolist():
                if epoch not in orders:
                    orders = {epoch: order(count, self.seed, epoch, chunks)}
                here = epochs == epoch
                rows[here, 1] = orders[epoch][positions[here]]
            yield rows


@dataclass(frozen=True, eq=False)
class _Training:
    """(epoch, example) of every row -> Batch, or what is wrong with an image. Works in a worker."""

    source: Source
    augmentation: Augmentation
    preprocessing: Preprocessing
    seed: int
    part: range

    def __getitem__(self, rows: np.ndarray) -> "Batch | Exception":
        images = torch.empty(len(rows), 3, *self.preprocessing.size, dtype=torch.uint8)
        stream = _Stream(self.seed, _AUGMENT)
        for row, (epoch, index) in enumerate(rows.tolist()):
            try:
                picture = open_image(self.source[index][0], self.source.name(index))
                random = stream.at(epoch, index)
                images[row] = augment(picture, self.augmentation, self.preprocessing, random)
            except (BadImage, OSError) as error:
                return error
        return _batch(self.source, images, rows[:, 1])


@dataclass(frozen=True, eq=False)
class _Evaluation:
    """Number of a batch, counted from 0 -> Batch, or what is wrong with an image. Works in a worker."""

    source: Source
    preprocessing: Preprocessing
    batch: int
    part: range

    def __getitem__(self, number: int) -> "Batch | Exception":
        indices = number * self.batch + np.arange(self.part.start, self.part.stop)
        count = len(self.source)
        images = torch.zeros(len(indices), 3, *self.preprocessing.size, dtype=torch.uint8)
        for row, index in enumerate(indices[indices < count].tolist()):
            try:
                picture = open_image(self.source[index][0], self.source.name(index))
                images[row] = self.preprocessing(picture)
            except (BadImage, OSError) as error:
                return error
        batch = _batch(self.source, images, indices.clip(max=count - 1))
        padding = torch.from_numpy(indices >= count)
        batch.targets[padding] = 0
        batch.real[padding] = False
        return batch


def _prepared(
    build: _Training | _Evaluation, steps: object, workers: int, pin: bool
) -> Iterator[Batch]:
    """The batch of every step, prepared by worker processes."""
    build.source.prepare()
    example = 3 * math.prod(build.preprocessing.size)
    if build.source.target == "classes":
        example += 4 * len(build.source.labels)  # a row of ones and zeros
    return in_order(build, steps, workers, pin, size=len(build.part) * example)


def _stacked(parts: Iterator[tuple[Tensor, Tensor]], source: Source) -> Iterator[Batch]:
    for images, indices in parts:
        yield _batch(source, images, indices.numpy())


def _batch(source: Source, images: Tensor, indices: np.ndarray) -> Batch:
    """A batch of these examples, all of them real."""
    targets = torch.from_numpy(source.targets_of(indices))
    real = torch.ones(len(indices), dtype=torch.bool)
    return Batch(images, targets, real, torch.from_numpy(indices))


def _part(batch: int, share: tuple[int, int]) -> range:
    """Which rows of every batch a rank builds. Raises ValueError if they cannot be shared out equally."""
    rank, world_size = share
    if batch < 1 or not 0 <= rank < world_size or batch % world_size:
        raise ValueError(
            f"a batch of {batch} cannot be shared equally: this is rank {rank} of {world_size}"
        )
    return range(batch // world_size * rank, batch // world_size * (rank + 1))


def _check_workers(workers: int) -> None:
    if workers < 0:
        raise ValueError(f"workers is {workers}; it is 0 or more")


class _Stream:
    """Random numbers of their own for everything that is ever drawn: Philox counts in its key's name, so none overlap."""

    def __init__(self, seed: int, purpose: int):
        self.bits = np.random.Philox(key=(seed, purpose))
        self.random = np.random.Generator(self.bits)
        self.state = self.bits.state

    def at(self, epoch: int, index: int) -> np.random.Generator:
        """The generator, at the beginning of what an example in an epoch has. To be used up before the next call."""
        self.state["state"]["counter"][:] = 0, 0, epoch, index
        self.bits.state = self.state
        return self.random
