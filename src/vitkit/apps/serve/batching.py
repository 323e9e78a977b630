"""Batched inference for concurrent requests: several threads decode images, one computes batches,
and the number of images in memory is limited.

Legend: B images of a batch, h w pixels of the model's input.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vitkit.apps.serve.masks import classes_of_pixels, classifies_pixels, values_of
from vitkit.data import open_image
from vitkit.prediction import Item, Prediction, prepare
from vitkit.prediction.batches import Prepared
from vitkit.prediction.predictions import predictions_of
from vitkit.runtimes import Runtime
from vitkit.system.errors import BadImage

if TYPE_CHECKING:
    from vitkit.apps.serve.models import Served


class Sent(NamedTuple):
    """An image from a request."""

    name: str
    data: bytes
    """A file's."""


class Asked(NamedTuple):
    """What is wanted of an image."""

    top: int = 5
    """Number of classes to name."""
    smallest: int = 16
    """Of a model that classifies every pixel: pixels of the smallest region to list."""


class Choice(NamedTuple):
    """The attention to show. Layers, heads, rows and columns are numbered from 1."""

    layer: int | None = None
    """One layer, or None for Attention Rollout through all layers."""
    head: int | None = None
    """One attention head of the layer, or None for the mean of all heads."""
    patch: tuple[int, int] | None = None
    """Row and column of the patch that attends; None for the tokens that the model's head reads."""


class Room:
    """Limits the number of images that a server holds, and the bytes of their files. Thread-safe."""

    def __init__(self, images: int, size: int):
        """images: largest number of images. size: largest total size of their files, bytes."""
        self.images = images
        self.size = size
        self.held_images = 0
        self.held_bytes = 0
        self.changed: Callable[[int, int], None] | None = None
        """Called with the held images and bytes, whenever they change."""
        self.lock = threading.Lock()

    def take(self, images: int = 0, size: int = 0) -> bool:
        """Reserve room for this many more. Returns False, and reserves nothing, if there is no
        room."""
        with self.lock:
            if self.held_images + images > self.images or self.held_bytes + size > self.size:
                return False
            self._hold(images, size)
            return True

    def give_back(self, images: int = 0, size: int = 0) -> None:
        """Release the room of this many."""
        with self.lock:
            self._hold(-images, -size)

    def _hold(self, images: int, size: int) -> None:
        """Change the held images and bytes, and call `changed`. The caller has the lock."""
        self.held_images += images
        self.held_bytes += size
        if self.changed is not None:
            self.changed(self.held_images, self.held_bytes)


class Wanted(NamedTuple):
    """A prepared image, ready for the model."""

    name: str
    prepared: np.ndarray
    """uint8 (3, h, w)"""
    size: tuple[int, int]
    """Height and width of the image itself."""
    asked: Asked


class ServedModel:
    """A served model with the thread that computes its batches. When another model replaces it, it
    is closed after answering its accepted images."""

    def __init__(
        self,
        served: "Served",
        decoders: Executor,
        batch: int,
        delay: float,
        computed: Callable[[int, float], None],
    ):
        """decoders: threads for decoding. batch, delay: as in Batcher.

        computed: called after each batch with its number of images and its duration in seconds.
        """
        self.served = served
        self.decoders = decoders
        self.computed = computed
        if served.has_masks:  # images differ in size, and each takes long
            self.batcher = Batcher(self._compute_masks, 1, 0.0)
        else:
            self.batcher = Batcher(self._compute, batch, delay)

    def accept(self, images: Sequence[Sent], asked: Asked, room: Room) -> list[Future]:
        """Futures with the predictions of these images, or with the values of masks (`values_of`) if the model
        classifies every pixel; BadImage for one that cannot be read.

        room: holds each image and the bytes of its file until it is answered, cancelled or
        refused.
        """
        answers = []
        self.batcher.expect(len(images))
        for image in images:
            answer: Future[Any] = Future()
            leave = partial(room.give_back, 1, len(image.data))
            self.decoders.submit(self._decode, image, asked, answer, leave)
            answers.append(answer)
        return answers

    def close(self) -> None:
        """Answer the accepted images, and end the thread."""
        self.batcher.close()

    def _decode(self, image: Sent, asked: Asked, answer: Future, leave: Callable[[], None]) -> None:
        """Prepare an image, and put it into the model's queue."""
        try:
            if answer.cancelled():  # the request was cancelled
                wanted = None
            else:
                wanted = _wanted(self.served.runtime, image, asked)
        except Exception as error:  # raised by the future
            wanted = None
            if answer.set_running_or_notify_cancel():
                answer.set_exception(error)
        if wanted is None:
            leave()
            self.batcher.expect(-1)
            return
        self.batcher.put(Job(wanted, answer, leave))

    def _compute(self, wanted: Sequence[Wanted]) -> list[Prediction]:
        """The predictions of a batch."""
        began = time.monotonic()
        most = max(each.asked.top for each in wanted)
        # (B, 3, h, w), or one row per image if their sizes differ
        images = self.served.runtime.preprocessing.together([each.prepared for each in wanted])
        items = [Item(each.name, _no_file) for each in wanted]
        prepared = Prepared(images, list(range(len(wanted))), {})
        predictions = predictions_of(self.served.runtime, items, prepared, most)
        self.computed(len(wanted), time.monotonic() - began)
        answers = []
        for each, prediction in zip(wanted, predictions, strict=True):
            labels = prediction.labels[: each.asked.top]
            probabilities = prediction.probabilities[: each.asked.top]
            answers.append(replace(prediction, labels=labels, probabilities=probabilities))
        return answers

    def _compute_masks(self, wanted: Sequence[Wanted]) -> list[dict[str, Any]]:
        """The classes of the pixels of a batch's images."""
        began = time.monotonic()
        runtime = self.served.runtime
        answers = []
        for each in wanted:
            mask = classes_of_pixels(runtime, each.prepared, each.size)
            answers.append(values_of(each.name, mask, tuple(runtime.labels), each.asked.smallest))
        self.computed(len(wanted), time.monotonic() - began)
        return answers


def _wanted(runtime: Runtime, image: Sent, asked: Asked) -> Wanted:
    """An image as model input. Raises BadImage with a readable message."""
    item = Item(image.name, lambda: image.data)
    prepared = prepare(runtime.preprocessing, [item])
    if prepared.errors:
        raise BadImage(prepared.errors[0])
    size = (0, 0)
    if classifies_pixels(runtime):
        size = open_image(image.data, image.name).size  # its header alone
    return Wanted(image.name, prepared.images[0], size, asked)


def _no_file() -> bytes:
    raise AssertionError("these images are prepared")


# Batches of jobs from several threads, computed by one thread


@dataclass(frozen=True, eq=False)
class Job:
    """One item of a batch."""

    given: Any
    """Input for `compute`."""
    answer: Future
    """Future of the result or error. Cancelling it before the batch begins removes the
    job."""
    done: Callable[[], None]
    """Called once, when the job is answered, failed or cancelled."""
    came: float = field(default_factory=time.monotonic)


class Batcher:
    """A thread that computes jobs in batches, in order of arrival."""

    def __init__(
        self, compute: Callable[[Sequence[Any]], Sequence[Any]], batch: int, delay: float
    ) -> None:
        """compute: function from the inputs of at most `batch` jobs to a result for each.

        delay: longest time in seconds that a job waits for others while the thread is free.
        """
        self.compute = compute
        self.batch = batch
        self.delay = delay
        self.waiting: deque[Job] = deque()
        self.expected = 0
        """Number of announced jobs that have not arrived."""
        self.busy_since: float | None = None
        """Start of the batch that is being computed; None if there is none."""
        self.closing = False
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self.thread.start()

    def expect(self, count: int) -> None:
        """Announce this many jobs: each must then be `put`, or withdrawn by `expect(-1)`."""
        with self.changed:
            self.expected += count
            self.changed.notify()

    def put(self, job: Job) -> None:
        """Add a job that was announced by `expect`."""
        with self.changed:
            self.expected -= 1
            self.waiting.append(job)
            self.changed.notify()

    def close(self) -> None:
        """Compute all jobs that have arrived or are expected, and end the thread."""
        with self.changed:
            self.closing = True
            self.changed.notify()
        self.thread.join()

    def _run(self) -> None:
        while jobs := self._next_batch():
            self.busy_since = time.monotonic()
            self._answer(jobs)
            self.busy_since = None

    def _answer(self, jobs: list[Job]) -> None:
        """Compute a batch, and set its futures."""
        wanted = []
        for job in jobs:
            if job.answer.set_running_or_notify_cancel():
                wanted.append(job)
        try:
            if wanted:
                results = self.compute([job.given for job in wanted])
                for job, result in zip(wanted, results, strict=True):
                    job.answer.set_result(result)
        except (
            Exception
        ) as error:  # these jobs must not wait forever, and the next batch may succeed
            for job in wanted:
                if not job.answer.done():
                    job.answer.set_exception(error)
        finally:
            for job in jobs:
                job.done()

    def _next_batch(self) -> list[Job]:
        """Wait for the next batch. Returns an empty list when the batcher is closed."""
        with self.changed:
            while not self.waiting:
                if self.closing and not self.expected:
                    return []
                self.changed.wait()
            while len(self.waiting) < self.batch and self.expected:
                patience = self.waiting[0].came + self.delay - time.monotonic()
                if patience <= 0:
                    break
                self.changed.wait(patience)
            return [self.waiting.popleft() for _ in range(min(self.batch, len(self.waiting)))]
