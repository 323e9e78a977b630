"""Batches: the one at step t is a pure function of (seed, t), whatever the number of worker
processes.

The order is the permutations of all epochs end to end, and batch t is positions (t - 1) B to t B of
it: epochs have no seam, every example comes once in each, and B may be larger than the data set.
What augmentation does to an example is decided by (seed, epoch, example). So a run is continued by
its step number alone, with any number of workers.

Where examples can only be read many together (row groups of large parquet files, remote shards), a
permutation goes through windows of some of these chunks: which chunks meet in a window, and the
order inside it, are random.

Legend: B batch, C channels, N examples, K classes, h w pixels.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.data.augmentation.draws import augment, preload
from vitkit.data.augmentation.settings import Augmentation, check_fits
from vitkit.data.images.preprocessing import Preprocessing
from vitkit.data.loading.resident import (
    DeviceImages,
    Layout,
    batches_in_order,
    can_augment_on_device,
    device_batches,
)
from vitkit.data.loading.workers import in_order
from vitkit.data.sources.source import Source
from vitkit.data.sources.stores import Arrays
from vitkit.system.machine import cpus

MAX_WORKERS = 16
# What a stream of random numbers is for.
SHUFFLE = 0
AUGMENT = 1


class Batch(NamedTuple):
    """What a training or evaluation step gets."""

    images: Tensor
    """(B, C, h, w): uint8, or float32 of a preprocessing whose values are that. Or (B, M): in evaluation,
    images at their own proportions (data/images/native.py)."""
    targets: Tensor
    """int64 (B,) for a class; float32 (B, K), ones and zeros, for several; float32 (B,) for a
    number; int64 (B,), all -1, for data without targets."""
    real: Tensor
    """bool (B,): False on the rows that fill up the last evaluation batch."""
    indices: Tensor
    """int64 (B,): which examples of the source these are."""


def default_workers(source: Source | None = None) -> int:
    """Worker processes that suit this machine's CPU quota, one being left to the model; 0 if
    nothing is to be decoded."""
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
    """Batches after + 1, after + 2, ... without end, of `batch` examples, augmented.

    Close it to end its workers.

    workers: processes that prepare batches; 0 is none besides this one.
    share: (rank, world size) yields this rank's equal part of every batch, so that all ranks
    together see what one would.
    device: that of the model; images that are decoded already and need no resize are kept, and
    augmented, there, and for a GPU others go into page-locked memory.
    Raises ValueError for settings that cannot go together, and while it runs BadImage with the
    image's name.
    """
    # Refuse what cannot be done before the first batch.
    check_fits(augmentation, preprocessing)
    if not len(source):
        raise ValueError("there are no images to train on")
    if seed < 0 or after < 0:
        raise ValueError(f"seed is {seed} and after is {after}; both are 0 or more")
    _check_workers(workers)
    rank_rows = _rank_rows(batch, share)
    device = device or torch.device("cpu")
    on_gpu = device.type == "cuda"
    steps = _TrainingRows(source, batch, seed, rank_rows, after)

    # Small images that are decoded already: whole batches are made on the device.
    if can_augment_on_device(source, augmentation, preprocessing):
        images = DeviceImages.of(source, augmentation, preprocessing, device)
        random_at = Stream(seed, AUGMENT).at
        drawing_workers = workers if on_gpu else 0  # drawn ahead while a GPU computes
        batches = device_batches(
            images, augmentation, preprocessing, random_at, steps, drawing_workers
        )
        return (_batch(source, images, examples.numpy()) for images, examples in batches)

    # All others: image by image, in worker processes.
    preload(augmentation)
    source.prepare()
    fill = partial(_training_batch, source, augmentation, preprocessing, seed)
    layout = Layout.of(preprocessing, len(rank_rows))
    other_bytes = len(rank_rows) * _target_bytes(source)
    return batches_in_order(fill, steps, workers, layout, on_gpu, other_bytes)


def eval_batches(
    source: Source,
    preprocessing: Preprocessing,
    batch: int,
    workers: int,
    share: tuple[int, int] = (0, 1),
    pin: bool = False,
) -> "EvalBatches":
    """Every example once, in order, in batches of `batch`; can be gone through again and again.

    The last batch is filled up with rows whose `real` is False.

    share: as in train_batches; every rank gets the same number of batches.
    pin: into page-locked memory.
    Raises ValueError for a batch that cannot be, and while it runs BadImage with the image's name.
    """
    _check_workers(workers)
    return EvalBatches(source, preprocessing, batch, workers, _rank_rows(batch, share), pin)


@dataclass(frozen=True, eq=False)
class EvalBatches:
    """What eval_batches returns: it has a length, and each iteration begins anew."""

    source: Source
    preprocessing: Preprocessing
    batch: int
    workers: int
    rank_rows: range
    """Which rows of a batch this rank builds."""
    pin: bool = False

    def __len__(self) -> int:
        return -(-len(self.source) // self.batch)

    def __iter__(self) -> Iterator[Batch]:
        self.source.prepare()
        indices = range(self.rank_rows.start, len(self) * self.batch, self.batch)
        fill = partial(_evaluation_batch, self.source, self.preprocessing)
        workers = min(self.workers, len(self))
        layout = Layout.of(self.preprocessing, len(self.rank_rows))
        other_bytes = len(self.rank_rows) * _target_bytes(self.source)
        return batches_in_order(fill, indices, workers, layout, self.pin, other_bytes)


@dataclass(frozen=True, eq=False)
class WholePictures:
    """Every example of a source once, in batches of one image, uint8 (1, 3, height, width),
    upright. It has a length, and each iteration begins anew."""

    source: Source
    workers: int
    share: tuple[int, int]
    """This rank, and how many there are; all get equally many batches."""

    def __len__(self) -> int:
        return -(-len(self.source) // self.share[1])

    def __iter__(self) -> Iterator[Batch]:
        self.source.prepare()
        rank, world_size = self.share
        indices = range(rank, len(self) * world_size, world_size)
        return in_order(partial(_whole, self.source), indices, min(self.workers, len(self)))


# The order of training, and the random numbers of each example


class Stream:
    """Random numbers of their own for every example in every epoch.

    Philox makes its numbers from a key and a counter, so numbers at other counters are other
    numbers, and none has to be drawn to reach the next.
    """

    def __init__(self, seed: int, purpose: int):
        self.bits = np.random.Philox(key=(seed, purpose))
        self.random = np.random.Generator(self.bits)
        self.state = self.bits.state

    def at(self, epoch: int, index: int) -> np.random.Generator:
        """The generator, at the beginning of what an example in an epoch has. To be used up before
        the next call."""
        # The generator counts up in the first two words; the last two are the epoch's and the
        # example's own.
        self.state["state"]["counter"][:] = 0, 0, epoch, index
        self.bits.state = self.state
        return self.random


def permutation(
    count: int, seed: int, epoch: int, chunks: tuple[np.ndarray, int] | None = None
) -> np.ndarray:
    """The permutation of `count` examples in an epoch, counted from 0: int64 (N,).

    chunks: which chunk each example lies in, int64 (N,), and how many of them make a window; None
    if each is read alone.
    """
    random = Stream(seed, SHUFFLE).at(epoch, 0)
    shuffled = random.permutation(count)
    if chunks is None:
        return shuffled
    chunk_of, chunks_in_window = chunks
    place_of_chunk = random.permutation(int(chunk_of.max()) + 1)
    window_of = place_of_chunk[chunk_of] // chunks_in_window
    return shuffled[np.argsort(window_of[shuffled], kind="stable")]


@dataclass(frozen=True, eq=False)
class _TrainingRows:
    """For every step after `after`, the (epoch, example) of each row: int64 (rows, 2). Endless.

    Made in the main process, for all workers.
    """

    source: Source
    batch: int
    seed: int
    rank_rows: range
    """The rows of a batch that this rank builds."""
    after: int

    def __iter__(self) -> Iterator[np.ndarray]:
        count = len(self.source)
        chunks = self.source.chunks()
        orders: dict[int, np.ndarray] = {}
        for step in itertools.count(self.after):
            # Where in the endless row of epochs the batch lies.
            positions = step * self.batch + np.arange(self.rank_rows.start, self.rank_rows.stop)
            epochs, positions = np.divmod(positions, count)

            # Which examples these are.
            rows = np.stack([epochs, positions], axis=1)
            for epoch in np.unique(epochs).tolist():
                if epoch not in orders:  # the one before is over
                    orders = {epoch: permutation(count, self.seed, epoch, chunks)}
                in_epoch = epochs == epoch
                rows[in_epoch, 1] = orders[epoch][positions[in_epoch]]
            yield rows


# What is in a batch


def _training_batch(
    source: Source,
    augmentation: Augmentation,
    preprocessing: Preprocessing,
    seed: int,
    images: Tensor,
    rows: np.ndarray,
) -> Batch:
    """The batch of a step, its pictures written into `images`. rows: (epoch, example) of each row,
    int64 (B, 2). Raises BadImage."""
    stream = Stream(seed, AUGMENT)
    for row, (epoch, index) in enumerate(rows.tolist()):
        random = stream.at(epoch, index)
        images[row] = augment(source.picture(index), augmentation, preprocessing, random)
    return _batch(source, images, rows[:, 1])


def _evaluation_batch(
    source: Source, preprocessing: Preprocessing, images: Tensor, first: int
) -> Batch:
    """The batch of the examples from `first` on, their pictures written into `images`; rows behind
    the last example are padding. Raises BadImage."""
    indices = np.arange(first, first + len(images))
    is_padding = indices >= len(source)
    for row, index in enumerate(indices[~is_padding].tolist()):
        preprocessing.put(preprocessing(source.picture(index)), images[row])

    # A padding row has a black image, the target 0, and the index of the last example.
    batch = _batch(source, images, indices.clip(max=len(source) - 1))
    padding = torch.from_numpy(is_padding)
    batch.images[padding] = 0
    batch.targets[padding] = 0
    batch.real[padding] = False
    return batch


def _target_bytes(source: Source) -> int:
    """How much memory the target of an example takes, if it is much: a float32 row of ones and
    zeros."""
    if source.target_kind == "classes":
        return 4 * len(source.labels)
    return 0


def _batch(source: Source, images: Tensor, indices: np.ndarray) -> Batch:
    """A batch of these examples, all of them real."""
    targets = torch.from_numpy(source.targets_of(indices))
    real = torch.ones(len(indices), dtype=torch.bool)
    return Batch(images, targets, real, torch.from_numpy(indices))


def _rank_rows(batch: int, share: tuple[int, int]) -> range:
    """Which rows of every batch a rank builds. Raises ValueError if they cannot be shared out
    equally."""
    rank, world_size = share
    if batch < 1 or not 0 <= rank < world_size or batch % world_size:
        raise ValueError(
            f"a batch of {batch} cannot be shared equally: this is rank {rank} of {world_size}"
        )
    rows = batch // world_size
    return range(rows * rank, rows * (rank + 1))


def _check_workers(workers: int) -> None:
    if workers < 0:
        raise ValueError(f"workers is {workers}; it is 0 or more")


def _whole(source: Source, index: int) -> Batch:
    """The batch of an example; behind the last one, the last again as padding. Raises BadImage."""
    is_real = index < len(source)
    index = min(index, len(source) - 1)
    colours = Preprocessing().decode(source.picture(index))  # red, green and blue, of 8 bits
    pixels = np.ascontiguousarray(colours.transpose(2, 0, 1))
    batch = _batch(source, torch.from_numpy(pixels)[None], np.array([index]))
    batch.real[:] = is_real
    return batch
