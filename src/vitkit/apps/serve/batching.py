"""A model that answers the images of many people at once: decoded by some threads, computed together
by one, and never more of them than there is room for.

Legend: B images of a batch, h w pixels of what the model gets.
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

from vitkit.prediction import Item, Prediction, prepare
from vitkit.prediction.batches import Prepared
from vitkit.prediction.predictions import predictions_of
from vitkit.runtimes import Runtime
from vitkit.system.errors import BadImage

if TYPE_CHECKING:
    from vitkit.apps.serve.models import Served


class Sent(NamedTuple):
    """An image that somebody sent."""

    name: str
    data: bytes
    """A file's."""


class Choice(NamedTuple):
    """The attention to show. Layers, heads, rows and columns are numbered from 1."""

    layer: int | None = None
    """One layer, or None for Attention Rollout through all layers."""
    head: int | None = None
    """One attention head of the layer, or None for the mean of all heads."""
    patch: tuple[int, int] | None = None
    """Row and column of the patch that attends; None for the tokens that the model's head reads."""


class Room:
    """The room of a server: how much it holds at once. All threads may ask."""

    def __init__(self, images: int, size: int):
        """images: at most. size: bytes of what was sent, at most."""
        self.images = images
        self.size = size
        self.held_images = 0
        self.held_bytes = 0
        self.changed: Callable[[int, int], None] | None = None
        """Called with the images and bytes that are held, whenever they change."""
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
        """Hold so many more, or less, and say so; by whoever has the lock."""
        self.held_images += images
        self.held_bytes += size
        if self.changed is not None:
            self.changed(self.held_images, self.held_bytes)


class Wanted(NamedTuple):
    """An image ready for the model."""

    name: str
    prepared: np.ndarray
    """uint8 (3, h, w)"""
    top: int
    """Classes to name."""


class ServedModel:
    """A served model with the thread that computes its batches. When another takes its place, it
    is closed, and finishes what it has."""

    def __init__(
        self,
        served: "Served",
        decoders: Executor,
        batch: int,
        delay: float,
        computed: Callable[[int, float], None],
    ):
        """decoders: threads that decode. batch and delay: as Batcher has them.

        computed: called after each batch with its images, and the seconds that they took.
        """
        self.served = served
        self.decoders = decoders
        self.computed = computed
        self.batcher = Batcher(self._compute, batch, delay)

    def accept(self, images: Sequence[Sent], top: int, room: Room) -> list["Future[Prediction]"]:
        """The answers that these images will get; BadImage for one that cannot be read.

        room: where each image is held until it is answered, given up or refused: one, and the bytes
        of its file.
        """
        answers = []
        self.batcher.expect(len(images))
        for image in images:
            answer: Future[Prediction] = Future()
            leave = partial(room.give_back, 1, len(image.data))
            self.decoders.submit(self._decode, image, top, answer, leave)
            answers.append(answer)
        return answers

    def close(self) -> None:
        """Answer the accepted requests, and end."""
        self.batcher.close()

    def _decode(self, image: Sent, top: int, answer: Future, leave: Callable[[], None]) -> None:
        """Prepare an image, and put it among those that wait for the model."""
        try:
            if answer.cancelled():  # nobody waits for it any more
                prepared = None
            else:
                prepared = _prepared(self.served.runtime, image)
        except Exception as error:  # whoever asked gets it
            prepared = None
            if answer.set_running_or_notify_cancel():
                answer.set_exception(error)
        if prepared is None:
            leave()
            self.batcher.expect(-1)
            return
        self.batcher.put(Job(Wanted(image.name, prepared, top), answer, leave))

    def _compute(self, wanted: Sequence[Wanted]) -> list[Prediction]:
        """Answers to a batch."""
        began = time.monotonic()
        most = max(each.top for each in wanted)
        # (B, 3, h, w), or rows of images of several sizes
        images = self.served.runtime.preprocessing.together([each.prepared for each in wanted])
        items = [Item(each.name, _no_file) for each in wanted]
        prepared = Prepared(images, list(range(len(wanted))), {})
        predictions = predictions_of(self.served.runtime, items, prepared, most)
        self.computed(len(wanted), time.monotonic() - began)
        answers = []
        for each, prediction in zip(wanted, predictions, strict=True):
            labels = prediction.labels[: each.top]
            probabilities = prediction.probabilities[: each.top]
            answers.append(replace(prediction, labels=labels, probabilities=probabilities))
        return answers


def _prepared(runtime: Runtime, image: Sent) -> np.ndarray:
    """An image as the model gets it, uint8 (3, h, w). Raises BadImage, with a sentence."""
    item = Item(image.name, lambda: image.data)
    prepared = prepare(runtime.preprocessing, [item])
    if prepared.errors:
        raise BadImage(prepared.errors[0])
    return prepared.images[0]


def _no_file() -> bytes:
    raise AssertionError("these images are prepared")


# Jobs of many threads, done together by one: a batch is faster than its images one by one


@dataclass(frozen=True, eq=False)
class Job:
    """One item of a batch."""

    given: Any
    """What there is to do, for `compute`."""
    answer: Future
    """Gets the result, or what went wrong. Whoever cancels it before its batch begins takes the job
    back."""
    done: Callable[[], None]
    """Called once when the job holds nothing any more: answered, failed or taken back."""
    came: float = field(default_factory=time.monotonic)


class Batcher:
    """A thread that does jobs in batches, in the order in which they come."""

    def __init__(
        self, compute: Callable[[Sequence[Any]], Sequence[Any]], batch: int, delay: float
    ) -> None:
        """compute: what is given of some jobs, at most `batch`, to a result for each.

        delay: seconds that a job waits, at most, for others while the thread is free.
        """
        self.compute = compute
        self.batch = batch
        self.delay = delay
        self.waiting: deque[Job] = deque()
        self.expected = 0
        """Jobs that were announced and have not come."""
        self.busy_since: float | None = None
        """When the batch that is being computed began; None if there is none."""
        self.closing = False
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self.thread.start()

    def expect(self, count: int) -> None:
        """So many jobs are on their way: each is to be `put`, or taken back by `expect(-1)`."""
        with self.changed:
            self.expected += count
            self.changed.notify()

    def put(self, job: Job) -> None:
        """A job that was expected is there."""
        with self.changed:
            self.expected -= 1
            self.waiting.append(job)
            self.changed.notify()

    def close(self) -> None:
        """Do all jobs that have arrived or are expected, and end the thread."""
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
        """Compute a batch, and answer its jobs."""
        wanted = []
        for job in jobs:
            if job.answer.set_running_or_notify_cancel():
                wanted.append(job)
        try:
            if wanted:
                results = self.compute([job.given for job in wanted])
                for job, result in zip(wanted, results, strict=True):
                    job.answer.set_result(result)
        except Exception as error:  # the next batch may go well, and these must not wait for ever
            for job in wanted:
                if not job.answer.done():
                    job.answer.set_exception(error)
        finally:
            for job in jobs:
                job.done()

    def _next_batch(self) -> list[Job]:
        """Wait for jobs, and for more. Returns none when there will be none."""
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
