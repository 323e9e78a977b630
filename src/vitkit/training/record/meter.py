"""How fast a run is, and how long it waits for its images."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Pace(NamedTuple):
    """How fast a run is."""

    images_per_second: float
    data_wait: float
    """Share of the time spent waiting for data."""
    seconds_left: float


class Meter:
    """The speed of the training since it was last read, without what is not training."""

    def __init__(self, step: int):
        self._begin(step, time.perf_counter())

    def _begin(self, step: int, now: float) -> None:
        self.step = step
        self.since = now
        self.waited = 0.0
        """Seconds spent waiting for data."""
        self.paused = 0.0
        """Seconds spent on evaluation and checkpoints."""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count what happens within it as waiting for data."""
        began = time.perf_counter()
        yield
        self.waited += time.perf_counter() - began

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Do not count what happens within it as training."""
        began = time.perf_counter()
        yield
        self.paused += time.perf_counter() - began

    def so_far(self, step: int, images: int, total: int) -> Pace:
        """The pace since the last reading; `images` is those of one step."""
        steps = step - self.step
        seconds = max(time.perf_counter() - self.since - self.paused, 1e-9)
        seconds_left = (total - step) * seconds / max(steps, 1)
        return Pace(steps * images / seconds, self.waited / seconds, seconds_left)

    def read(self, step: int, images: int, total: int) -> Pace:
        """The same, and the next reading begins here."""
        pace = self.so_far(step, images, total)
        self._begin(step, time.perf_counter())
        return pace
