"""Batches: the one at step t is a pure function of (seed, t), whatever the number of worker processes.

The order is the permutations of all epochs end to end, and batch t is positions (t - 1) B to t B of it: epochs have no
seam, every example comes once in each, and B may be larger than the data set. What augmentation does to an example is
decided by (seed, epoch, example). So a run is continued by its step number alone, with any number of workers.

Where examples can only be read many together (row groups of large parquet files, remote shards), a permutation goes
through windows of some of these chunks: which chunks meet in a window, and the order inside it, are random.

Legend: B batch, N examples, h w pixels.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.data.engine.resident import Drawing, Stack, gathered, stackable
from vitkit.data.engine.slots import in_slots
from vitkit.data.engine.workers import AHEAD, batches_ahead, forked, in_order
from vitkit.data.images import BadImage, open_image
from vitkit.data.sources import Source
from vitkit.data.stores import Arrays
from vitkit.data.transforms import Augmentation, Preprocessing, augment, policies, suit
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
    """Worker processes that suit this machine's CPU quota, one being left to the model; 0 where nothing is decoded."""
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
    place: torch.device | None = None,
) -> Iterator[Batch]:
    """Batches after + 1, after + 2, ... without end, of `batch` examples, augmented. Close it to end its workers.

    workers: processes that prepare batches; 0 is none besides this one. share: (rank, ranks) yields this rank's equal
    part of every batch, so that all ranks together see what one would. place: where the model is; images that are decoded
    already and need no resize are kept, and augmented, there, and for a GPU others go into page-locked memory.
    Raises ValueError for settings that cannot go together, and while it runs BadImage with the image's name.
    """
    suit(augmentation, preprocessing)
    if not len(source):
        raise ValueError("there are no images to train on")
    if seed < 0 or after < 0:
        raise ValueError(f"seed is {seed} and after is {after}; both are 0 or more")
    part = _part(batch, share)
    policies(
        augmentation, preprocessing.mean
    )  # imports what they need once here, rather than in every worker
    rows = _Rows(source, batch, seed, part, after)
    if stackable(source, augmentation, preprocessing) and workers >= 0:
        stack = Stack.of(source, augmentation, preprocessing, place or torch.device("cpu"))
        drawing = Drawing(augmentation, preprocessing.size, _Stream(seed, _AUGMENT))
        return _stacked(
            gathered(stack, drawing, rows, workers if place and place.type == "cuda" else 0), source
        )
    build = _Training(source, augmentation, preprocessing, seed, part)
    pin = place is not None and place.type == "cuda"
    return _stream(build, rows, source, preprocessing, part, workers, pin)


def eval_batches(
    source: Source,
    preprocessing: Preprocessing,
    batch: int,
    workers: int,
    share: tuple[int, int] = (0, 1),
    pin: bool = False,
) -> "EvalBatches":
    """Every example once, in order, in batches of `batch`; can be gone through again and again.

    The last batch is filled up with rows whose `real` is False. share and pin: as in train_batches; every rank gets
    as many batches. Raises ValueError for a batch that cannot be, and while it runs BadImage with the image's name.
    """
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
        return _stream(
            build, range(len(self)), self.source, self.preprocessing, self.part, workers, self.pin
        )


def order(
    count: int, seed: int, epoch: int, chunks: tuple[np.ndarray, int] | None = None
) -> np.ndarray:
    """The permutation of `count` examples in an epoch, counted from 0: int64 (count,).

    chunks: which chunk each example lies in, int64 (count,), and how many of them make a window; None if each is read alone.
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
        count, chunks = len(self.source), self.source.chunks()
        orders: dict[int, np.ndarray] = {}
        for step in itertools.count(self.after):
            epochs, places = np.divmod(
                step * self.batch + np.arange(self.part.start, self.part.stop), count
            )
            rows = np.stack([epochs, places], axis=1)
            for epoch in np.unique(epochs).tolist():
                if epoch not in orders:
                    orders = {epoch: order(count, self.seed, epoch, chunks)}
                here = epochs == epoch
                rows[here, 1] = orders[epoch][places[here]]
            yield rows


@dataclass(frozen=True, eq=False)
class _Training:
    """(epoch, example) of every row -> Batch."""

    source: Source
    augmentation: Augmentation
    preprocessing: Preprocessing
    seed: int
    part: range

    def __getitem__(self, rows: np.ndarray) -> "Batch | Exception":
        return self.fill(_images(self.part, self.preprocessing), rows)

    def fill(self, images: Tensor, rows: np.ndarray) -> "Batch | Exception":
        """The batch whose images are written into `images`."""
        batch = _empty(rows[:, 1].tolist(), self.source, images)
        stream = _Stream(self.seed, _AUGMENT)
        for row, (epoch, index) in enumerate(rows.tolist()):
            try:
                picture = open_image(self.source[index][0], self.source.name(index))
                random = stream.at(epoch, index)
                batch.images[row] = augment(picture, self.augmentation, self.preprocessing, random)
            except (BadImage, OSError) as error:
                return error
        return batch


@dataclass(frozen=True, eq=False)
class _Evaluation:
    """Number of a batch, counted from 0 -> Batch."""

    source: Source
    preprocessing: Preprocessing
    batch: int
    part: range

    def __getitem__(self, number: int) -> "Batch | Exception":
        return self.fill(_images(self.part, self.preprocessing), number)

    def fill(self, images: Tensor, number: int) -> "Batch | Exception":
        """The batch whose images are written into `images`."""
        places = [number * self.batch + i for i in self.part]
        last = len(self.source) - 1
        batch = _empty([min(place, last) for place in places], self.source, images)
        for row, place in enumerate(places):
            if place > last:
                batch.images[row], batch.targets[row], batch.real[row] = 0, 0, False
                continue
            try:
                batch.images[row] = self.preprocessing(
                    open_image(self.source[place][0], self.source.name(place))
                )
            except (BadImage, OSError) as error:
                return error
        return batch


def _stream(
    build, steps, source: Source, preprocessing: Preprocessing, part: range, workers: int, pin: bool
) -> Iterator[Batch]:
    if workers < 0:
        raise ValueError(f"workers is {workers}; it is 0 or more")
    source.prepare()
    shape = (len(part), 3, *preprocessing.size)
    if workers and forked() and not pin:  # pinning copies a batch anyway, in a thread of its own
        return in_slots(build, steps, workers, AHEAD, shape)
    return in_order(build, steps, workers, pin, batches_ahead(workers, math.prod(shape)))


def _stacked(parts: Iterator[tuple[Tensor, Tensor]], source: Source) -> Iterator[Batch]:
    for images, indices in parts:
        targets = torch.from_numpy(source.targets_of(indices.numpy()))
        yield Batch(images, targets, torch.ones(len(indices), dtype=torch.bool), indices)


def _part(batch: int, share: tuple[int, int]) -> range:
    """Which rows of every batch a rank builds. Raises ValueError where they cannot be shared out equally."""
    rank, ranks = share
    if batch < 1 or not 0 <= rank < ranks or batch % ranks:
        raise ValueError(
            f"a batch of {batch} cannot be shared equally: this is rank {rank} of {ranks}"
        )
    return range(batch // ranks * rank, batch // ranks * (rank + 1))


def _images(part: range, preprocessing: Preprocessing) -> Tensor:
    return torch.empty(len(part), 3, *preprocessing.size, dtype=torch.uint8)


def _empty(indices: list[int], source: Source, images: Tensor) -> Batch:
    """A batch of these examples; what is in `images` is still to be written."""
    targets = torch.from_numpy(source.targets_of(np.asarray(indices)))
    return Batch(images, targets, torch.ones(len(indices), dtype=torch.bool), torch.tensor(indices))


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
