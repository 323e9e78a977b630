"""Jobs of many threads, done together by one: a batch is faster than its images one by one.

    batcher = Batcher(compute, batch=32, delay=0.01)
    batcher.expect(1)
    batcher.put(job)  # its future gets what compute([..., job, ...]) says of it
    batcher.close()

A batch begins as soon as the thread is free and a job is there, unless others are expected: for them
it waits, `delay` seconds at most since its first job came. So somebody alone never waits, and under
load batches fill by themselves while the one before them is computed.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class Job:
    """One of a batch."""

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
        """Do all jobs that are there or expected, and end the thread."""
        with self.changed:
            self.closing = True
            self.changed.notify()
        self.thread.join()

    def _run(self) -> None:
        while jobs := self._next_batch():
            self.busy_since = time.monotonic()
            self._do(jobs)
            self.busy_since = None

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

    def _do(self, jobs: list[Job]) -> None:
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
