"""Batches of examples, made by worker processes or on the model's device.

The augmentation of an example is a function of (seed, epoch, example), and order.py decides which
examples a batch has. So a run is continued by its step number, with any number of workers.

Legend: B batch, C channels, N examples, K classes, h w pixels.
"""

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.data.augmentation.draws import augment, augment_with_mask, preload
from vitkit.data.augmentation.settings import Augmentation, check_fits
from vitkit.data.images.preprocessing import Preprocessing
from vitkit.data.loading.order import AUGMENT, Stream, TrainingRows, rank_rows, split
from vitkit.data.loading.resident import (
    DeviceImages,
    Fill,
    MemoryLayout,
    are_prepared,
    batches_in_order,
    can_augment_on_device,
    device_batches,
    prepared,
)
from vitkit.data.loading.workers import AHEAD, in_order, may_start_workers
from vitkit.data.sources.source import Source, is_elsewhere
from vitkit.data.sources.stores import Arrays
from vitkit.system.errors import BadSettings
from vitkit.system.machine import cpus

MAX_WORKERS = 16


class Batch(NamedTuple):
    """The input of a training or evaluation step."""

    images: Tensor
    """(B, C, h, w): uint8, or float32 if these are the values of the preprocessing. In evaluation, images in
    their own aspect ratios are (B, M) (data/images/native.py)."""
    targets: Tensor
    """int64 (B,) for a class; float32 (B, K) of ones and zeros for several classes; float32 (B,) for a
    number; uint8 (B, h, w) for masks in training, the class of every pixel, IGNORED where it does not count;
    int64 (B,) of -1 for data without targets, and for masks in evaluation."""
    real: Tensor
    """bool (B,): False on rows of padding in the last evaluation batch."""
    indices: Tensor
    """int64 (B,): index of each example in the source."""


def default_workers(source: Source | None = None) -> int:
    """Number of worker processes for this machine's CPU quota, which leaves one CPU to the model; 0 if
    nothing needs decoding, or if this process may not start any."""
    if source is not None and isinstance(source.store, Arrays):
        return 0
    if not may_start_workers():
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
    readers: int = 1,
) -> Generator[Batch, None, None]:
    """Augmented training batches of `batch` examples: batches after + 1, after + 2, ... without end.

    Close the generator to end its workers.

    workers: number of processes that prepare batches; 0 prepares them in this process.
    share: (rank, world size) yields this rank's equal part of every batch, so that all ranks together
        see the batches of a single one.
    device: the model's device. Images that are already decoded and need no resize are stored and
        augmented there. For a GPU, other images are written to page-locked memory.
    readers: number of processes that share the chunks of a remote source (order.py). It must not change
        during a run.
    Raises VitkitError for settings that cannot be combined, and during iteration BadImage with the
    image's name.
    """
    # Refuse invalid settings before the first batch
    check_fits(augmentation, preprocessing)
    if not len(source):
        raise BadSettings("there are no images to train on")
    if seed < 0 or after < 0:
        raise BadSettings(f"seed is {seed} and after is {after}; both are 0 or more")
    _check_workers(workers)
    if readers < 1:
        raise BadSettings(f"readers is {readers}; it is 1 or more")
    own_rows = rank_rows(batch, share)
    device = device or torch.device("cpu")
    on_gpu = device.type == "cuda"
    steps = TrainingRows(source, batch, seed, own_rows, after, min(readers, batch))

    # Small decoded images: whole batches are made on the device
    masks = source.target_kind == "mask"  # must move with their images
    if can_augment_on_device(source, augmentation, preprocessing) and not masks:
        images = DeviceImages.of(source, augmentation, preprocessing, device)
        random_at = Stream(seed, AUGMENT).at
        drawing_workers = workers if on_gpu else 0  # draw ahead while a GPU computes
        batches = device_batches(
            images, augmentation, preprocessing, random_at, steps, drawing_workers
        )
        return (_batch(source, images, examples.numpy()) for images, examples in batches)

    # All other images: one by one, in worker processes
    preload(augmentation)
    source.prepare()
    if readers > 1 and source.chunks() is not None:
        return _read_by_workers(steps, augmentation, preprocessing, workers, on_gpu)
    fill = partial(_training_batch, source, augmentation, preprocessing, seed)
    layout = MemoryLayout.of(preprocessing, len(own_rows))
    other_bytes = len(own_rows) * _target_bytes(source, preprocessing)
    return batches_in_order(fill, steps, workers, layout, on_gpu, other_bytes)


def _read_by_workers(
    steps: TrainingRows,
    augmentation: Augmentation,
    preprocessing: Preprocessing,
    workers: int,
    pin: bool,
) -> Generator[Batch, None, None]:
    """Batches whose rows come from several readers. Each worker builds the same rows of every batch, so no
    two workers fetch the same chunk."""
    pieces = _rows_of_workers(steps.rank_rows, workers)
    ends = np.cumsum([len(rows) for rows in pieces])
    items = (piece for rows in steps for piece in np.split(rows, ends[:-1]))
    source = steps.source.keeping(max(steps.chunks_in_use(rows) for rows in pieces))
    fill = partial(_training_batch, source, augmentation, preprocessing, steps.seed)
    return _in_pieces(fill, items, pieces, workers, source, preprocessing, pin)


def _rows_of_workers(rows: range, workers: int) -> list[range]:
    """The rows of this rank that each worker builds in every batch."""
    return split(rows, max(1, min(workers, len(rows))))


def _in_pieces(
    fill: Fill,
    items: Iterable,
    pieces: list[range],
    workers: int,
    source: Source,
    preprocessing: Preprocessing,
    pin: bool,
) -> Generator[Batch, None, None]:
    """Batches that consist of pieces with these rows: fill(images, item) makes a piece of each item.

    Workers take items in turn, so the k-th worker makes the k-th piece of every batch.
    """
    # As many rows are prepared ahead as if workers built whole batches, so that while one worker waits
    # for a chunk, there are batches of the others
    most = max(len(rows) for rows in pieces)
    made = batches_in_order(
        fill,
        items,
        min(workers, len(pieces)),
        MemoryLayout.of(preprocessing, most),
        other_bytes=most * _target_bytes(source, preprocessing),
        ahead=AHEAD * len(pieces),
    )
    return _joined(made, len(pieces), pin)


def _joined(
    pieces: Generator[Batch, None, None], count: int, pin: bool
) -> Generator[Batch, None, None]:
    """Join `count` pieces to a batch each; with `pin`, the images are in page-locked memory."""
    with closing(pieces):
        while parts := list(islice(pieces, count)):
            rows = sum(len(part.indices) for part in parts)
            images = [part.images[: len(part.indices)] for part in parts]
            together = torch.empty(
                rows, *images[0].shape[1:], dtype=images[0].dtype, pin_memory=pin
            )
            torch.cat(images, out=together)
            others = [
                torch.cat(tensors) for tensors in zip(*[part[1:] for part in parts], strict=True)
            ]
            if pin:
                others = [tensor.pin_memory() for tensor in others]
            yield Batch(together, *others)


def eval_batches(
    source: Source,
    preprocessing: Preprocessing,
    batch: int,
    workers: int,
    share: tuple[int, int] = (0, 1),
    pin: bool = False,
) -> "EvalBatches":
    """Evaluation batches: every example once, in batches of `batch`. They can be iterated repeatedly.

    A single rank gets the examples in order, unless several workers fetch them in chunks: then each
    worker reads a part of its own. Batches are padded with rows whose `real` is False.

    share: see train_batches; every rank gets the same number of batches.
    pin: write images to page-locked memory.
    Raises VitkitError for a batch that cannot be shared, and during iteration BadImage with the image's
    name.
    """
    _check_workers(workers)
    return EvalBatches(source, preprocessing, batch, workers, rank_rows(batch, share), pin)


@dataclass(frozen=True, eq=False)
class EvalBatches:
    """The result of eval_batches. It has a length, and every iteration starts from the beginning."""

    source: Source
    preprocessing: Preprocessing
    batch: int
    workers: int
    rank_rows: range
    """The rows of a batch that this rank builds."""
    pin: bool = False

    def __len__(self) -> int:
        return -(-len(self.source) // self.batch)

    def __iter__(self) -> Iterator[Batch]:
        self.source.prepare()
        if is_elsewhere(self.source) and self.source.chunks() is not None:
            return self._read_by_workers()
        firsts = range(self.rank_rows.start, len(self) * self.batch, self.batch)
        items = [range(first, first + len(self.rank_rows)) for first in firsts]
        already_prepared = are_prepared(self.source, self.preprocessing)
        fill = partial(_evaluation_batch, self.source, self.preprocessing, already_prepared)
        workers = min(self.workers, len(self))
        layout = MemoryLayout.of(self.preprocessing, len(self.rank_rows))
        other_bytes = 0
        if self.source.target_kind != "mask":  # these are not read in evaluation
            other_bytes = len(self.rank_rows) * _target_bytes(self.source, self.preprocessing)
        return batches_in_order(fill, items, workers, layout, self.pin, other_bytes)

    def _read_by_workers(self) -> Generator[Batch, None, None]:
        """Batches in which each worker of each rank reads a contiguous part of the examples, so that two
        workers fetch the same chunk only at the ends of their parts."""
        pieces = _rows_of_workers(self.rank_rows, self.workers)
        items = []
        for number in range(len(self)):
            for rows in pieces:
                first = rows.start * len(self) + number * len(rows)
                items.append(range(first, first + len(rows)))
        source = self.source.keeping(1)
        fill = partial(_evaluation_batch, source, self.preprocessing, False)
        return _in_pieces(fill, items, pieces, self.workers, source, self.preprocessing, self.pin)


@dataclass(frozen=True, eq=False)
class WholePictures:
    """Every example of a source once, in batches of one image, uint8 (1, 3, height, width),
    upright. It has a length, and every iteration starts from the beginning."""

    source: Source
    workers: int
    share: tuple[int, int]
    """(rank, world size); all ranks get the same number of batches."""

    def __len__(self) -> int:
        return -(-len(self.source) // self.share[1])

    def __iter__(self) -> Iterator[Batch]:
        self.source.prepare()
        rank, world_size = self.share
        indices = range(rank, len(self) * world_size, world_size)
        return in_order(partial(_whole, self.source), indices, min(self.workers, len(self)))


# Contents of a batch


def _training_batch(
    source: Source,
    augmentation: Augmentation,
    preprocessing: Preprocessing,
    seed: int,
    images: Tensor,
    rows: np.ndarray,
) -> Batch:
    """The batch of a step, with its augmented pictures written into `images`. rows: (epoch, example) of
    each row, int64 (B, 2). Raises BadImage."""
    stream = Stream(seed, AUGMENT)
    batch = _batch(source, images, rows[:, 1])
    if source.target_kind == "mask":
        batch = batch._replace(
            targets=torch.empty(len(rows), *preprocessing.size, dtype=torch.uint8)
        )
    for row, (epoch, index) in enumerate(rows.tolist()):
        random = stream.at(epoch, index)
        picture = source.picture(index)
        if source.target_kind == "mask":
            mask = source.mask(index, picture.size)
            images[row], batch.targets[row] = augment_with_mask(
                picture, mask, augmentation, preprocessing, random
            )
        else:
            images[row] = augment(picture, augmentation, preprocessing, random)
    return batch


def _evaluation_batch(
    source: Source,
    preprocessing: Preprocessing,
    already_prepared: bool,
    images: Tensor,
    examples: range,
) -> Batch:
    """The batch of these examples, with their pictures written into `images`. Indices beyond the last
    example are padding. already_prepared: the source's pictures are prepared images. Raises BadImage."""
    images = images[: len(examples)]
    indices = np.arange(examples.start, examples.stop)
    is_padding = indices >= len(source)
    real = indices[~is_padding]
    if already_prepared:
        images[: len(real)] = prepared(source, preprocessing, real)
    else:
        for row, index in enumerate(real.tolist()):
            preprocessing.put(preprocessing(source.picture(index)), images[row])

    # A padding row has a black image, the target 0, and the index of the last example.
    batch = _batch(source, images, indices.clip(max=len(source) - 1))
    padding = torch.from_numpy(is_padding)
    batch.images[padding] = 0
    batch.targets[padding] = 0
    batch.real[padding] = False
    return batch


def _target_bytes(source: Source, preprocessing: Preprocessing) -> int:
    """Bytes of an example's target if they are many: a float32 row of ones and zeros, or a mask; otherwise 0."""
    if source.target_kind == "classes":
        return 4 * len(source.labels)
    if source.target_kind == "mask":
        return preprocessing.size[0] * preprocessing.size[1]
    return 0


def _batch(source: Source, images: Tensor, indices: np.ndarray) -> Batch:
    """A batch of these examples, all of them real."""
    targets = torch.from_numpy(source.targets_of(indices))
    real = torch.ones(len(indices), dtype=torch.bool)
    return Batch(images, targets, real, torch.from_numpy(indices))


def _check_workers(workers: int) -> None:
    if workers < 0:
        raise BadSettings(f"workers is {workers}; it is 0 or more")


def _whole(source: Source, index: int) -> Batch:
    """A batch of one whole picture; beyond the last example, that example as padding. Raises BadImage."""
    is_real = index < len(source)
    index = min(index, len(source) - 1)
    colours = Preprocessing().decode(source.picture(index))  # red, green and blue, of 8 bits
    pixels = np.ascontiguousarray(colours.transpose(2, 0, 1))
    batch = _batch(source, torch.from_numpy(pixels)[None], np.array([index]))
    batch.real[:] = is_real
    return batch
