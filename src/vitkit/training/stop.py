"""Stopping a run between two steps, so that it can be continued, when a scheduler or a person asks
for it."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeVar

from vitkit.system.errors import Interrupted
from vitkit.system.processes.ranks import any_rank, world
from vitkit.system.processes.signals import signals_are_ours
from vitkit.system.processes.watchdog import watchdog
from vitkit.training.schedule import Deadline

T = TypeVar("T")
Handler = Callable | int | None
"""What `signal.signal` takes and returns."""
REPEATED = 5.0  # seconds after a run has stopped in which SIGTERM may come once more


class Ends(NamedTuple):
    """What ends a run of one process before its last step, as if it were done: what it has learned so
    far is saved as its model. By default nothing does."""

    by_a_person: bool = False
    """Whether Ctrl-C does."""
    deadline: Deadline | None = None
    """Its schedule ends at that time, as far as the pace can be known, and the run in any case; None
    for no time."""


LAST_STEP = Ends()  # nothing else ends a run


class Stop:
    """Whether someone asked the run to stop: a scheduler by SIGTERM, a person by Ctrl-C; or whether
    its time is over."""

    def __init__(self, ends: Ends = LAST_STEP):
        self.ends = ends
        self.asked = False
        """Whether this rank was asked."""
        self.by_a_person = False
        """Whether it was by Ctrl-C."""

    def raise_if_asked(self) -> None:
        """Raises Interrupted on every rank if any of them was asked, so that they stop at the same
        step. All ranks call it at the same places."""
        watchdog.heartbeat()
        if any_rank(self.asked) or self.time_is_over():
            raise Interrupted

    def time_is_over(self) -> bool:
        """Whether the run has had its time; never with several processes, whose clocks differ."""
        if self.ends.deadline is None or world().world_size > 1:
            return False
        return time.monotonic() > self.ends.deadline.at

    def is_an_end(self) -> bool:
        """Whether a run that was stopped is done, instead of waiting to be continued."""
        if world().world_size > 1:
            return False
        by_a_person = self.by_a_person and self.ends.by_a_person
        return by_a_person or (self.time_is_over() and not self.asked)

    def watch(self, items: Iterable[T]) -> Iterator[T]:
        """The same items, until someone asks."""
        for item in items:
            self.raise_if_asked()
            yield item


@contextmanager
def stoppable(ends: Ends = LAST_STEP) -> Iterator[Stop]:
    """Within it SIGTERM and SIGINT do not end the process: they are noted, and the loop looks at
    the note between steps. Only the main thread can catch signals; elsewhere, and where they are the
    calling program's, nothing changes."""
    stop = Stop(ends)
    handlers_before = {}

    def note(number, frame):
        stop.asked = True
        stop.by_a_person = number == signal.SIGINT
        # Ctrl-C a second time ends a run of one process at once. Not so SIGTERM, which SLURM sends
        # twice in a moment; nor several processes, to which torchrun and the scheduler both pass
        # the same signal on, and which they kill if that takes too long.
        if number == signal.SIGINT and world().world_size == 1:
            signal.signal(number, handlers_before[number] or signal.SIG_DFL)

    caught = (signal.SIGTERM, signal.SIGINT) if signals_are_ours() else ()
    with suppress(ValueError):  # not the main thread
        for number in caught:
            handlers_before[number] = signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in handlers_before.items():
            if stop.asked and number == signal.SIGTERM:
                handler = _after(REPEATED, handler)
            signal.signal(number, handler)


def _after(seconds: float, handler: Handler) -> Handler:
    """A handler that does nothing for so many seconds, and then is the given one.

    A small run has saved itself and is about to return its status when SLURM's second SIGTERM
    comes, which would end it with another status.
    """
    until = time.monotonic() + seconds

    def wait(number, frame):
        if time.monotonic() > until:
            signal.signal(number, handler or signal.SIG_DFL)
            os.kill(os.getpid(), number)

    return wait
