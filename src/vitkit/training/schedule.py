"""The end of a run, by its last step, a deadline, a scheduler, or Ctrl-C; and the position of a step in its
schedule.

A recipe's schedules, such as that of the learning rate, are functions of the step and the number of steps.
How many steps fit into a deadline is known only while they run, because the speed of a machine varies. So the
last step of a run with a deadline is planned again and again from the measured speed, and the rest of the
schedule is stretched or compressed to end there.

A plan is written to a file before it takes effect. A run that was killed repeats the same plans step by step,
and ends with the same bits. A run that is asked to stop does so between two steps, so that it can continue.
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

SCHEDULE = "schedule.json"  # file of the plans, in the run's directory
TIMES = 20  # number of times that a run measures its speed, besides those at its beginning
BEFORE_THE_END = ("SIGUSR1", "SIGUSR2")  # signals of schedulers before they end a job
# A new plan must differ by this share of the remaining steps, and by this number of steps
CHANGE = 0.05
FEWEST = 2
PATIENT = 2.0  # seconds before a message says that a stop waits for the end of a step
STOPPING = "asked to stop: the run finishes this step, saves its state and stops"
REPEATED = 5.0  # seconds after the end of a run in which a repeated signal is ignored
T = TypeVar("T")


class Deadline(NamedTuple):
    """The time at which a run ends, finished or not."""

    at: float
    """The time in seconds of time.monotonic()."""
    most: int
    """Largest number of steps, however fast the run is."""


class PlannedEnd(NamedTuple):
    """A plan that was made after `step`: the run ends at the step `last`."""

    step: int
    last: int


class Schedule:
    """The last step of a run, and the positions of its steps in the schedule."""

    def __init__(self, run_dir: Path, length: int, deadline: Deadline | None, say: Say):
        """length: number of steps. Reads the plans that were made before an interruption."""
        self.path = run_dir / SCHEDULE
        self.length = length
        self.deadline = deadline
        self.plans = [PlannedEnd(0, length), *from_rank_0(lambda: _read_plans(self.path, say))]
        self.times: list[tuple[int, float]] = []
        """Steps, and the times at which they ended, in seconds of time.monotonic(): the first step of this
        call, and those at which the speed was measured."""

    @property
    def last(self) -> int:
        """The last step of the run, by the latest plan."""
        return self.plans[-1].last

    def position(self, step: int) -> float:
        """The position of a step in the schedule, as a step of a run of the full length; the step itself
        if no plan has changed the length."""
        # Each plan divides the rest of the schedule evenly over the steps up to its last one
        position = 0.0
        followed = [plan for plan in self.plans if plan.step < step] or self.plans[:1]
        for plan, following in pairwise([*followed, PlannedEnd(step, step)]):
            share = (self.length - position) / (plan.last - plan.step)
            position += (following.step - plan.step) * share
        return position

    def follow(self, step: int) -> None:
        """Measure the speed now and then, and make a new plan if the deadline requires it. Every rank calls
        this after every step."""
        deadline = self.deadline
        if deadline is None:
            return
        if not self.times:
            self.times.append((step, time.monotonic()))
            return
        if step <= self.plans[-1].step or step >= self.last:
            return

        # Measure at powers of 2, and TIMES more times. These steps depend on the plans alone, so all ranks
        # agree on them
        is_power_of_2 = step & (step - 1) == 0
        if is_power_of_2 or step % max(self.last // TIMES, 1) == 0:
            plan = from_rank_0(lambda: self._plan(step, deadline))
            if plan is not None:
                self.plans.append(plan)

    def _plan(self, step: int, deadline: Deadline) -> PlannedEnd | None:
        """A new plan, written to the file; None if the current one is good enough."""
        # The speed over the later half of the steps, including evaluations
        now = time.monotonic()
        middle = (self.times[0][0] + step) // 2
        since, began = [each for each in self.times if each[0] <= middle][-1]
        seconds = max(now - began, 1e-6) / (step - since)
        self.times.append((step, now))

        # The number of steps that fit into the remaining time, but at least one
        fitting = int(max(deadline.at - now, 0) / seconds)
        last = min(step + max(fitting, 1), max(deadline.most, step + 1))
        if abs(last - self.last) < max(CHANGE * (self.last - step), FEWEST):
            return None
        plan = PlannedEnd(step, last)
        write_sealed(self.path, {"plans": [*self.plans[1:], plan]})
        return plan


def _read_plans(path: Path, say: Say) -> list[PlannedEnd]:
    """The plans in a run's directory; none if there is no file. Prints a message if it is damaged."""
    try:
        return [PlannedEnd(*plan) for plan in read_sealed(path)["plans"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError):
        say(f"{path} is damaged: the steps after the last checkpoint are planned again")
        return []


# Stopping


class Ends(NamedTuple):
    """Events that end a run of one process before its last step as if it were finished: its model is saved.
    By default there are none."""

    by_a_person: bool = False
    """Whether Ctrl-C ends the run."""
    deadline: Deadline | None = None
    """Time at which the run ends, and towards which its schedule is planned; None for no deadline."""


LAST_STEP = Ends()  # a run ends at its last step only


class Stop:
    """Requests to stop a run: from a scheduler by SIGTERM, SIGUSR1 or SIGUSR2, from the user by Ctrl-C, or
    because the deadline has passed."""

    def __init__(self, ends: Ends = LAST_STEP):
        self.ends = ends
        self.asked = False
        """Whether this rank was asked to stop."""
        self.by_a_person = False
        """Whether the request was Ctrl-C."""

    def is_due(self, agreed: bool) -> bool:
        """Whether the run stops before its next step. Several ranks stop at the same step: `agreed` is
        whether the outcome of an earlier step, which all have read, says that one of them was asked."""
        watchdog.heartbeat()
        if world().world_size > 1:
            return agreed
        return self.asked or self.time_is_over()

    def raise_if_asked(self) -> None:
        """Raises Interrupted on every rank if any of them was asked, so that all stop between the same two
        batches of an evaluation. All ranks call it at the same places."""
        watchdog.heartbeat()
        if any_rank(self.asked) or self.time_is_over():
            raise Interrupted

    def time_is_over(self) -> bool:
        """Whether the deadline has passed; always False with several processes, whose clocks differ."""
        if self.ends.deadline is None or world().world_size > 1:
            return False
        return time.monotonic() > self.ends.deadline.at

    def is_an_end(self) -> bool:
        """Whether the stop ends the run as if it were finished, instead of interrupting it."""
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
    """Context in which SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 do not end the process: they set the Stop, which
    the loop checks between steps. It changes nothing outside the main thread, which alone can handle signals,
    or if the calling program handles the signals itself."""
    stop = Stop(ends)
    handlers_before: dict[int, Any] = {}
    received = set()

    # A step may take minutes on a small machine, so acknowledge the signal
    context = contextvars.copy_context()
    waiting = threading.Timer(PATIENT, lambda: context.run(say, STOPPING))
    waiting.daemon = True

    def note(number, frame):
        is_first = not stop.asked
        stop.asked = True
        if is_first and on_rank_0():  # the thread can be started only once
            waiting.start()
        received.add(number)
        stop.by_a_person = number == signal.SIGINT
        # A second Ctrl-C ends a run of one process immediately. SLURM's signals do not, because they may
        # come twice; nor does Ctrl-C with several processes, which get it from torchrun and from the
        # scheduler, and are killed by them if they take too long.
        if number == signal.SIGINT and world().world_size == 1:
            signal.signal(number, handlers_before[number] or signal.SIG_DFL)

    with suppress(ValueError):  # raised outside the main thread
        for number in _stop_signals():
            handlers_before[number] = _own_removed(signal.signal(number, note))
    try:
        yield stop
    finally:
        waiting.cancel()
        for caught, handler in handlers_before.items():
            if caught in received and caught != signal.SIGINT:
                handler = _AfterAWhile(handler)
            signal.signal(caught, handler)


def _stop_signals() -> list[signal.Signals]:
    """The signals that ask a run to stop. SLURM (`--signal=USR1@300`) and submitit send SIGUSR1 or SIGUSR2
    before the end of a job; a program that handles these itself keeps its handlers."""
    if not signals_are_ours():
        return []
    signals = [signal.SIGTERM, signal.SIGINT]
    for name in BEFORE_THE_END:
        number = getattr(signal, name, None)  # missing on Windows
        if number is None:
            continue
        if _own_removed(signal.getsignal(number)) == signal.SIG_DFL:
            signals.append(number)
    return signals


class _AfterAWhile:
    """A signal handler that does nothing for REPEATED seconds, and then restores the given handler.

    SLURM may repeat its signal when a small run has already saved its state and is about to return its exit
    status; the second signal would end it with another status.
    """

    def __init__(self, handler):
        self.handler = handler
        self.until = time.monotonic() + REPEATED

    def __call__(self, number, frame):
        if time.monotonic() > self.until:
            signal.signal(number, self.handler or signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _own_removed(handler):
    """The program's own handler, without the wrapper of an earlier run in this process."""
    if isinstance(handler, _AfterAWhile):
        return handler.handler
    return handler
