"""Items prepared for a model, a batch at a time, by other processes while the model computes.

Legend: B images of a batch, C channels, h w pixels of what the model gets.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

import numpy as np

from vitkit.data import BadImage, Preprocessing, in_order, open_image, ranges
from vitkit.prediction.items import Item


class Prepared(NamedTuple):
    """The images of a batch of items, ready for the model."""

    images: np.ndarray
    """(B, C, h, w), uint8 or float32: those that could be read. An array, not a tensor: it travels from a worker
    through a pipe, without /dev/shm."""
    rows: list[int]
    """Which of the items each is."""
    errors: dict[int, str]
    """By the number of each other item, what is wrong with it."""


Batches = Iterator[tuple[Sequence[Item], Prepared]]


def from_sequence(
    items: Sequence[Item], preprocessing: Preprocessing, batch: int, workers: int
) -> Batches:
    """The items in batches, in order. workers: as `predict` has it; each has all items."""
    chunks = ranges(len(items), batch)
    if len(chunks) < 2 and workers < 0:  # while one batch is decoded there is nothing to compute
        workers = 0
    if workers < 0:
        from vitkit.data import default_workers

        workers = default_workers()
    task = partial(_prepare_rows, items, preprocessing)
    with closing(in_order(task, chunks, min(workers, len(chunks)))) as prepared:
        for rows, each in zip(chunks, prepared, strict=True):
            yield [items[i] for i in rows], each


def from_stream(
    chunks: Iterable[Sequence[Item]], preprocessing: Preprocessing, workers: int
) -> Batches:
    """Items that come in batches, some of them empty, in order. Each travels to a worker; those
    that follow it are asked for meanwhile."""
    if workers < 0:
        from vitkit.data import default_workers

        workers = default_workers()
    stream = _Remembered(chunks)
    with closing(in_order(partial(prepare, preprocessing), stream, workers)) as prepared:
        for each in prepared:
            yield stream.travelling.popleft(), each
    if stream.error is not None:
        raise stream.error


class _Remembered:
    """A stream on its way to workers, which remembers what has not come back."""

    def __init__(self, chunks: Iterable[Sequence[Item]]):
        self.chunks = chunks
        self.travelling: deque[Sequence[Item]] = deque()
        self.error: Exception | None = None
        """What the stream raised. It seems to end there: among the workers, an error would be taken
        for the death of one."""

    def __iter__(self) -> Iterator[Sequence[Item]]:
        try:
            for chunk in self.chunks:
                self.travelling.append(chunk)
                yield chunk
        except Exception as error:
            self.error = error


def _prepare_rows(items: Sequence[Item], preprocessing: Preprocessing, rows: range) -> Prepared:
    """Some of the items, by their numbers: a worker has all of them."""
    return prepare(preprocessing, [items[i] for i in rows])


def prepare(preprocessing: Preprocessing, items: Iterable[Item]) -> Prepared:
    """Read, decode and resize the images of a batch."""
    images = []
    rows = []
    errors = {}
    for i, item in enumerate(items):
        try:
            images.append(_prepare(item, preprocessing))
            rows.append(i)
        except BadImage as error:
            errors[i] = str(error)
    return Prepared(np.array(images, dtype=preprocessing.dtype), rows, errors)


def _prepare(item: Item, preprocessing: Preprocessing) -> np.ndarray:
    """The image as (C, h, w), uint8 or float32. Raises BadImage, with a sentence, if it cannot be read."""
    try:
        return preprocessing.array(open_image(item.read(), item.name))
    except OSError as error:
        raise BadImage(f"{item.name} cannot be read: {error}") from error
