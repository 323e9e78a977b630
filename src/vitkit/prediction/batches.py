"""Batches of images: prepared by other processes while the model computes, and made of names that
come meanwhile, through a pipe or as files in a folder.

Legend: B images of a batch, C channels, h w pixels of what the model gets.
"""

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from typing import NamedTuple

import numpy as np

from vitkit.data import Preprocessing, find_images, in_order, note_left_out, open_image, ranges
from vitkit.prediction.items import Item
from vitkit.system.console.messages import say
from vitkit.system.console.text import printable
from vitkit.system.errors import BadData, BadImage


class Prepared(NamedTuple):
    """The images of a batch of items, ready for the model."""

    images: np.ndarray
    """(B, C, h, w), uint8 or float32: those that could be read; (B, M) if they keep their own proportions
    and these differ (data/images/native.py). An array, not a tensor: it travels from a worker through a
    pipe, without /dev/shm."""
    rows: list[int]
    """Which of the items each is."""
    errors: dict[int, str]
    """By the number of each other item, what is wrong with it."""


Batches = Generator[tuple[Sequence[Item], Prepared], None, None]


def from_sequence(
    items: Sequence[Item], preprocessing: Preprocessing, batch: int, workers: int
) -> Batches:
    """The items in batches, in order. workers: as in `predict`; each has all items."""
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
        except Exception as error:  # raised when the stream has ended
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
    return Prepared(preprocessing.together(images), rows, errors)


def _prepare(item: Item, preprocessing: Preprocessing) -> np.ndarray:
    """The image as (C, h, w), uint8 or float32. Raises BadImage, with a sentence, if it cannot be read."""
    try:
        return preprocessing.array(open_image(item.read(), item.name))
    except OSError as error:
        raise BadImage(f"{item.name} cannot be read: {error}") from error


# Names that come: lists of them, and an empty one whenever nothing came for a moment, so that who
# waits for more can meanwhile do something else

MOMENT = 0.05  # seconds to wait for another name
POLL = 0.5  # seconds between two looks at a folder
REST = 5  # times as long as a look takes, at least, before the next
EMPTY = 5  # seconds after which an empty file is one that stays empty


def names_from(file: int, batch: int) -> Iterator[list[str]]:
    """The lines that come from an open file, by its descriptor, in lists of at most `batch`, as soon
    as they come. Empty lines are left out."""
    lines: Queue[str | None] = Queue(maxsize=100 * batch)  # a million names may wait elsewhere
    threading.Thread(target=_read_lines, args=(file, lines), daemon=True).start()
    ended = False
    while not ended:
        names: list[str] = []
        until = time.monotonic() + MOMENT
        while len(names) < batch and not ended:
            try:
                name = lines.get(timeout=max(0.001, until - time.monotonic()))
            except Empty:
                break
            ended = name is None
            if name:
                names.append(name)
        yield names


def _read_lines(file: int, lines: "Queue[str | None]") -> None:
    """Put every line into the queue, and None at the end. Without Python's buffers: their lock would
    be held for ever by a thread that waits here when the program ends."""
    rest = b""
    while data := os.read(file, 1 << 16):
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            lines.put(os.fsdecode(line.rstrip(b"\r")))
    lines.put(os.fsdecode(rest))
    lines.put(None)


def arrivals(folder: str, batch: int, leave_out: Sequence[Path] = ()) -> Iterator[list[str]]:
    """The images below a folder, existing ones and those that arrive, in lists of at most `batch`,
    without end. Images in a folder of `leave_out` are left out.

    A file comes when its size and time are the same at two looks, so not while it is written; and
    again when they have changed since. Raises VitkitError if the folder cannot be read.
    """
    settled: dict[str, tuple[int, int]] = {}  # by name, the size and time of what came
    seen: dict[str, tuple[int, int]] = {}  # at the last look
    folders = [left_out.resolve() for left_out in leave_out]
    next_look = 0.0
    for note in note_left_out(_images(folder)[1]):
        say(f"{printable(folder)}: {note}")
    while True:
        if time.monotonic() < next_look:
            time.sleep(MOMENT)
            yield []
            continue

        # Look
        begun = time.monotonic()
        states = _states(folder, folders)
        ready = []
        for name, state in states.items():
            if seen.get(name) == state != settled.get(name) and not _may_grow(state):
                ready.append(name)
                settled[name] = state
        seen = states
        settled = {name: state for name, state in settled.items() if name in states}
        took = time.monotonic() - begun
        next_look = time.monotonic() + max(POLL, REST * took)

        # Hand over
        for start in range(0, len(ready), batch):
            yield ready[start : start + batch]


def _states(folder: str, leave_out: Sequence[Path]) -> dict[str, tuple[int, int]]:
    """The size and time of every image below a folder, by its name."""
    states = {}
    for name in _images(folder)[0]:
        path = Path(folder, name)
        try:
            state = path.stat()
            parent = path.parent.resolve()
        except OSError:
            continue  # it has gone since
        if not any(parent.is_relative_to(left_out) for left_out in leave_out):
            states[str(path)] = (state.st_size, state.st_mtime_ns)
    return states


def _images(folder: str) -> tuple[list[str], Counter]:
    """The images below a folder, and what was left out. Raises VitkitError if it cannot be read, but not
    for one inside it that goes while it is looked at: the next look will tell."""
    try:
        return find_images(folder)
    except (ValueError, OSError):
        if not Path(folder).is_dir():
            raise BadData(f"{printable(folder)} is not a folder any more") from None
        return [], Counter()


def _may_grow(state: tuple[int, int]) -> bool:
    """Whether a file is empty because its writer has not begun."""
    size, changed = state
    return size == 0 and time.time() - changed / 1e9 < EMPTY


def pixels_of(item: Item) -> np.ndarray | None:
    """The picture, upright, uint8 (height, width, 3); None for one that cannot be read."""
    try:
        return np.ascontiguousarray(open_image(item.read(), item.name).pixels())
    except (BadImage, OSError):
        return None


def prepared_images(
    preprocessing: Preprocessing, items: Sequence[Item]
) -> tuple[np.ndarray, list[Item]]:
    """The images that can be read, uint8 (N, 3, h, w), and their items."""
    prepared = prepare(preprocessing, items)
    return prepared.images, [items[row] for row in prepared.rows]
