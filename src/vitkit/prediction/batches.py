"""Batches of images: prepared by worker processes while the model computes, also for names that arrive
through a pipe or as files in a watched folder.

Legend: B images of a batch, C channels, h w pixels of the model's input.
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
    """A batch of images, ready for the model."""

    images: np.ndarray
    """(B, C, h, w), uint8 or float32: the readable images; (B, M) if images keep their own proportions
    and differ in size (data/images/native.py). A NumPy array, because a worker sends it through a pipe;
    a tensor would need /dev/shm."""
    rows: list[int]
    """Index of the item of each image."""
    errors: dict[int, str]
    """Error message of each unreadable item, by its index."""


Batches = Generator[tuple[Sequence[Item], Prepared], None, None]


def from_sequence(
    items: Sequence[Item], preprocessing: Preprocessing, batch: int, workers: int
) -> Batches:
    """The items in batches, in order. workers: as in `predict`; each worker has all items."""
    chunks = ranges(len(items), batch)
    if len(chunks) < 2 and workers < 0:  # a single batch has no computation to overlap with
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
    """A stream of batches of items (possibly empty), in order. Each batch is sent to a worker while the
    next ones are requested."""
    if workers < 0:
        from vitkit.data import default_workers

        workers = default_workers()
    stream = _InFlight(chunks)
    with closing(in_order(partial(prepare, preprocessing), stream, workers)) as prepared:
        for each in prepared:
            yield stream.travelling.popleft(), each
    if stream.error is not None:
        raise stream.error


class _InFlight:
    """A stream of batches sent to workers that keeps the items of the batches in flight."""

    def __init__(self, chunks: Iterable[Sequence[Item]]):
        self.chunks = chunks
        self.travelling: deque[Sequence[Item]] = deque()
        self.error: Exception | None = None
        """The exception that the stream raised. The stream ends there instead of raising it, because an
        exception in a worker's input would look like the death of a worker."""

    def __iter__(self) -> Iterator[Sequence[Item]]:
        try:
            for chunk in self.chunks:
                self.travelling.append(chunk)
                yield chunk
        except Exception as error:  # raised again when all batches have come back
            self.error = error


def _prepare_rows(items: Sequence[Item], preprocessing: Preprocessing, rows: range) -> Prepared:
    """Prepare the items with these indices; a worker has all items."""
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
    """The image as (C, h, w), uint8 or float32. Raises BadImage with a readable message."""
    try:
        return preprocessing.array(open_image(item.read(), item.name))
    except OSError as error:
        raise BadImage(f"{item.name} cannot be read: {error}") from error


# Streams of names: they yield lists, and an empty list whenever nothing has arrived for a moment, so
# that the caller can do other work meanwhile

MOMENT = 0.05  # seconds to wait for another name
POLL = 0.5  # seconds between two scans of a folder
REST = 5  # shortest pause between two scans, in durations of a scan
EMPTY = 5  # seconds after which an empty file counts as complete


def names_from(file: int, batch: int) -> Iterator[list[str]]:
    """The lines of an open file, given by its descriptor, in lists of at most `batch`, as soon as they
    arrive. Empty lines are skipped."""
    lines: Queue[str | None] = Queue(
        maxsize=100 * batch
    )  # bounded: a sender of more lines has to wait
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
    """Put every line into the queue, and None at the end. Reads without Python's buffers: a thread that
    blocks in a read at interpreter exit would hold a buffer's lock forever."""
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

    A file is listed once its size and time are equal in two scans, so not while it is being written, and
    again after it has changed. Raises VitkitError if the folder cannot be read.
    """
    settled: dict[str, tuple[int, int]] = {}  # size and time of each listed file
    seen: dict[str, tuple[int, int]] = {}  # size and time of each file in the last scan
    folders = [left_out.resolve() for left_out in leave_out]
    next_look = 0.0
    for note in note_left_out(_images(folder)[1]):
        say(f"{printable(folder)}: {note}")
    while True:
        if time.monotonic() < next_look:
            time.sleep(MOMENT)
            yield []
            continue

        # Scan
        begun = time.monotonic()
        states = _states(folder, folders)
        ready = []
        for name, state in states.items():
            if seen.get(name) == state != settled.get(name) and not _is_recent_and_empty(state):
                ready.append(name)
                settled[name] = state
        seen = states
        settled = {name: state for name, state in settled.items() if name in states}
        took = time.monotonic() - begun
        next_look = time.monotonic() + max(POLL, REST * took)

        # Yield the new files
        for start in range(0, len(ready), batch):
            yield ready[start : start + batch]


def _states(folder: str, leave_out: Sequence[Path]) -> dict[str, tuple[int, int]]:
    """The size and modification time of every image below a folder, by name."""
    states = {}
    for name in _images(folder)[0]:
        path = Path(folder, name)
        try:
            state = path.stat()
            parent = path.parent.resolve()
        except OSError:
            continue  # deleted since the scan
        if not any(parent.is_relative_to(left_out) for left_out in leave_out):
            states[str(path)] = (state.st_size, state.st_mtime_ns)
    return states


def _images(folder: str) -> tuple[list[str], Counter]:
    """The images below a folder, and counts of other files. Raises VitkitError if the folder cannot be
    read, but not for a subfolder that is deleted during the scan."""
    try:
        return find_images(folder)
    except (ValueError, OSError):
        if not Path(folder).is_dir():
            raise BadData(f"{printable(folder)} is not a folder any more") from None
        return [], Counter()


def _is_recent_and_empty(state: tuple[int, int]) -> bool:
    """Whether a file is empty and recent, so its writer may not have begun."""
    size, changed = state
    return size == 0 and time.time() - changed / 1e9 < EMPTY


def pixels_of(item: Item) -> np.ndarray | None:
    """The upright image, uint8 (height, width, 3); None if it cannot be read."""
    try:
        return np.ascontiguousarray(open_image(item.read(), item.name).pixels())
    except (BadImage, OSError):
        return None


def prepared_images(
    preprocessing: Preprocessing, items: Sequence[Item]
) -> tuple[np.ndarray, list[Item]]:
    """The readable images, uint8 (N, 3, h, w), and their items."""
    prepared = prepare(preprocessing, items)
    return prepared.images, [items[row] for row in prepared.rows]
