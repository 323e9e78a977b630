"""Stopping a run so that it can be continued: the signals of schedulers and people, heard between
steps."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from vitkit.system.errors import Interrupted
from vitkit.system.ranks import any_rank, world
from vitkit.system.watchdog import watchdog


class Stop:
    """Whether someone asked the run to stop (SIGTERM of a scheduler, Ctrl-C), of any rank: they
    stop at the same step."""

    def __init__(self):
        self.asked = False

    def raise_if_asked(self) -> None:
        """Raises Interrupted, on every rank. All of them ask at the same places."""
        watchdog.heartbeat()
        if any_rank(self.asked):
            raise Interrupted

    def watch(self, items) -> Iterator:
        """The same items, until someone asks."""
        for item in items:
            self.raise_if_asked()
            yield item


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Turn SIGTERM and SIGINT into a question that the loop asks itself; only in the main thread,
    as signals go.

    Ctrl-C again stops a run of one process at once. SIGTERM again does not, for SLURM sends it
    twice in a moment; nor does either stop one of several: torchrun and the scheduler both pass the
    same signal on, and kill what takes too long.
    """
    stop, before = Stop(), {}

    def ask(number, frame):
        stop.asked = True
        if number == signal.SIGINT and world().world_size == 1:
            signal.signal(number, before[number] or signal.SIG_DFL)

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, ask)
    except ValueError:  # not the main thread
        pass
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
