"""What ends a run: its last step, a time, a scheduler, or a person; and how far along its schedule
it is. With a deadline, the schedule ends in time.

A recipe's schedules, of the learning rate above all, are functions of the step and the number of
steps. How many steps fit into a time is known only while they are made: a machine is busy for a
minute, or faster than it was when a step was measured. So the last step of a run with a deadline is
planned again as its speed is measured, and what is left of the schedule is stretched or
compressed to end there.

A plan is written down before it is followed. A run that was killed follows the same plans again,
step by step, and ends with the same bits. A run that is asked to stop does so between two steps, so
that it can be continued.
"""

import contextvars
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from vitkit.recipes import Say
from vitkit.system.console.messages import say
from vitkit.system.errors import Interrupted
from vitkit.system.processes.ranks import any_rank, from_rank_0, on_rank_0, world
from vitkit.system.processes.signals import signals_are_ours
from vitkit.system.processes.watchdog import watchdog
from vitkit.training.state.checkpoints import read_sealed, write_sealed

SCHEDULE = "schedule.json"  # in the run's directory
TIMES = 20  # that a run looks at its pace, beside those at its beginning
BEFORE_THE_END = ("SIGUSR1", "SIGUSR2")  # what schedulers send before they end a job
CHANGE = 0.05  # share of the remaining steps by which a new plan differs at least,
FEWEST = 2  # and steps
PATIENT = 2.0  # seconds that a stop may take before a sentence says that the run waits for its step
STOPPING = "asked to stop: this step is computed to its end, then the run saves itself and stops"
REPEATED = 5.0  # seconds after a run has stopped in which a scheduler's signal may come once more
T = TypeVar("T")


class Deadline(NamedTuple):
    """The time at which a run ends, finished or not."""

    at: float
    """As time.monotonic() gives it."""
    most: int
    """Steps that a run may make, however fast it is."""


class PlannedEnd(NamedTuple):
    """From `step` on, the run ends at the step `last`."""

    step: int
    last: int


class Schedule:
    """The last step of a run, and how far along its schedule another step is."""

    def __init__(self, run_dir: Path, length: int, deadline: Deadline | None, say: Say):
        """Schedule of a run of `length` steps, with the plans saved before an interruption."""
        self.path = run_dir / SCHEDULE
        self.length = length
        self.deadline = deadline
        self.plans = [PlannedEnd(0, length), *from_rank_0(lambda: _read_plans(self.path, say))]
        self.times: list[tuple[int, float]] = []
        """When a step was done, (step, seconds of a clock): the first of this call, whose workers
        are just beginning, and those at which the pace was looked at."""

    @property
    def last(self) -> int:
        """The step after which the run is done, as far as is known."""
        return self.plans[-1].last

    def position(self, step: int) -> float:
        """The position of a step along its schedule, as a step of a run of the full length. It is
        the same number if nothing was planned again."""
        # Each plan divides what was left of the schedule evenly over the steps up to its last
        position = 0.0
        followed = [plan for plan in self.plans if plan.step < step] or self.plans[:1]
        for plan, following in pairwise([*followed, PlannedEnd(step, step)]):
            share = (self.length - position) / (plan.last - plan.step)
            position += (following.step - plan.step) * share
        return position

    def follow(self, step: int) -> None:
        """Check the pace now and then, and plan again if the deadline requires it. Every rank
        calls it after every step."""
        deadline = self.deadline
        if deadline is None:
            return
        if not self.times:
            self.times.append((step, time.monotonic()))
            return
        if step <= self.plans[-1].step or step >= self.last:
            return

        # At the beginning at ever longer intervals, and TIMES times more. The last plan decides
        # when, so that all ranks agree
        is_power_of_2 = step & (step - 1) == 0
        if is_power_of_2 or step % max(self.last // TIMES, 1) == 0:
            plan = from_rank_0(lambda: self._plan(step, deadline))
            if plan is not None:
                self.plans.append(plan)

    def _plan(self, step: int, deadline: Deadline) -> PlannedEnd | None:
        """Another plan, written down; None if the present one will do."""
        # The pace of the later half of the steps, with the evaluations among them
        now = time.monotonic()
        middle = (self.times[0][0] + step) // 2
        since, began = [each for each in self.times if each[0] <= middle][-1]
        seconds = max(now - began, 1e-6) / (step - since)
        self.times.append((step, now))

        # What fits into the time that is left, after one more step at least
        fitting = int(max(deadline.at - now, 0) / seconds)
        last = min(step + max(fitting, 1), max(deadline.most, step + 1))
        if abs(last - self.last) < max(CHANGE * (self.last - step), FEWEST):
            return None
        plan = PlannedEnd(step, last)
        write_sealed(self.path, {"plans": [*self.plans[1:], plan]})
        return plan


def _read_plans(path: Path, say: Say) -> list[PlannedEnd]:
    """The plans in a run's directory, if there are any. Says so if they are damaged."""
    try:
        return [PlannedEnd(*plan) for plan in read_sealed(path)["plans"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError):
        say(f"{path} is damaged: the steps after the last checkpoint are planned anew")
        return []


# Stopping


class Ends(NamedTuple):
    """What ends a run of one process before its last step, as if it were done: what it has learned
    so far is saved as its model. By default nothing does."""

    by_a_person: bool = False
    """Whether Ctrl-C does."""
    deadline: Deadline | None = None
    """Its schedule ends at that time, as far as the pace can be known, and the run in any case;
    None for no time."""


LAST_STEP = Ends()  # nothing else ends a run


class Stop:
    """Whether someone asked the run to stop: a scheduler by SIGTERM, SIGUSR1 or SIGUSR2, a person by
    Ctrl-C; or whether its time is over."""

    def __init__(self, ends: Ends = LAST_STEP):
        self.ends = ends
        self.asked = False
        """Whether this rank was asked."""
        self.by_a_person = False
        """Whether it was by Ctrl-C."""

    def is_due(self, agreed: bool) -> bool:
        """Whether the run stops before its next step: on all ranks at the same one, once they have
        `agreed`, from what an earlier step told them, that one of them was asked."""
        watchdog.heartbeat()
        if world().world_size > 1:
            return agreed
        return self.asked or self.time_is_over()

    def raise_if_asked(self) -> None:
        """Raises Interrupted on every rank if any of them was asked, so that they stop at the same
        place, between batches of an evaluation. All ranks call it at the same places."""
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
        """Yields the items; raises if a stop is requested."""
        for item in items:
            self.raise_if_asked()
            yield item


@contextmanager
def stoppable(ends: Ends = LAST_STEP) -> Iterator[Stop]:
    """Within it SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 do not end the process: they are noted, and the
    loop looks at the note between steps. Nothing changes outside the main thread, which alone can
    catch signals, or if the calling program handles them itself."""
    stop = Stop(ends)
    handlers_before: dict[int, Any] = {}
    received = set()

    # A step may take minutes on a small machine: say that the signal was heard
    context = contextvars.copy_context()
    waiting = threading.Timer(PATIENT, lambda: context.run(say, STOPPING))
    waiting.daemon = True

    def note(number, frame):
        is_first = not stop.asked
        stop.asked = True
        if is_first and on_rank_0():  # another signal may come while the thread starts
            waiting.start()
        received.add(number)
        stop.by_a_person = number == signal.SIGINT
        # Ctrl-C a second time ends a run of one process at once. Not so what SLURM sends, which may
        # come twice in a moment; nor several processes, to which torchrun and the scheduler both pass
        # the same signal on, and which they kill if that takes too long.
        if number == signal.SIGINT and world().world_size == 1:
            signal.signal(number, handlers_before[number] or signal.SIG_DFL)

    with suppress(ValueError):  # not the main thread
        for number in _to_catch():
            handlers_before[number] = _own_removed(signal.signal(number, note))
    try:
        yield stop
    finally:
        waiting.cancel()
        for caught, handler in handlers_before.items():
            if caught in received and caught != signal.SIGINT:
                handler = _AfterAWhile(handler)
            signal.signal(caught, handler)


def _to_catch() -> list[signal.Signals]:
    """The signals that ask a run to stop. SLURM (`--signal=USR1@300`) and submitit send SIGUSR1 or
    SIGUSR2 before a job's time is over; a program that handles these has a use of its own for them."""
    if not signals_are_ours():
        return []
    signals = [signal.SIGTERM, signal.SIGINT]
    for name in BEFORE_THE_END:
        number = getattr(signal, name, None)  # Windows has none
        if number is None:
            continue
        if _own_removed(signal.getsignal(number)) == signal.SIG_DFL:
            signals.append(number)
    return signals


class _AfterAWhile:
    """A signal's handler that does nothing for REPEATED seconds, and then is the given one.

    A small run has saved itself and is about to return its status when SLURM's second signal comes,
    which would end it with another status.
    """

    def __init__(self, handler):
        self.handler = handler
        self.until = time.monotonic() + REPEATED

    def __call__(self, number, frame):
        if time.monotonic() > self.until:
            signal.signal(number, self.handler or signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _own_removed(handler):
    """The program's handler, where an earlier run of this process has left its own around it."""
    if isinstance(handler, _AfterAWhile):
        return handler.handler
    return handler
