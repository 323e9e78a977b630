"""How far along its schedule a run is. With a deadline, the schedule ends in time.

A recipe's schedules, of the learning rate above all, are functions of the step and the number of
steps. How many steps fit into a time is known only while they are made: a machine is busy for a
minute, or faster than it was when a step was measured. So the last step of a run with a deadline is
planned anew as its pace comes to be known, and what is left of the schedule is stretched or
compressed to end there.

A plan is written down before it is followed. A run that was killed follows the same plans again, step
by step, and ends with the same bits.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from vitkit.system.processes.ranks import from_rank_0
from vitkit.system.storage.files import write_whole
from vitkit.training.state.sealed import read_sealed, sealed

Say = Callable[[str], None]
FILE = "schedule.json"  # in the run's directory
TIMES = 20  # that a run looks at its pace, beside those at its beginning
CHANGE = 0.05  # share of the remaining steps by which a new plan differs at least,
FEWEST = 2  # and steps


class Deadline(NamedTuple):
    """When a run ends, done or not."""

    at: float
    """As time.monotonic() gives it."""
    most: int
    """Steps that a run may make, however fast it is."""


class Plan(NamedTuple):
    """From `step` on, the run ends at the step `last`."""

    step: int
    last: int


class Schedule:
    """The last step of a run, and how far along its schedule another step is."""

    def __init__(self, run_dir: Path, length: int, deadline: Deadline | None, say: Say):
        """For a run of so many steps, by the plans that it had before it was interrupted."""
        self.path = run_dir / FILE
        self.length = length
        self.deadline = deadline
        self.plans = [Plan(0, length), *from_rank_0(lambda: _read(self.path, say))]
        self.times = []
        """When a step was done, (step, seconds of a clock): the first of this call, whose workers are
        just beginning, and those at which the pace was looked at."""

    @property
    def last(self) -> int:
        """The step after which the run is done, as far as is known."""
        return self.plans[-1].last

    def position(self, step: int) -> float:
        """The step of an undisturbed run of the full length that is as far along its schedule. It is
        the same number if nothing was planned anew."""
        position = 0.0
        followed = [plan for plan in self.plans if plan.step < step] or self.plans[:1]
        for plan, following in pairwise([*followed, Plan(step, step)]):
            share = (self.length - position) / (plan.last - plan.step)
            position += (following.step - plan.step) * share
        return position

    def follow(self, step: int) -> None:
        """Look at the pace now and then, and plan anew if the deadline asks for it. Every rank calls
        it after every step."""
        if self.deadline is None:
            return
        if not self.times:
            self.times.append((step, time.monotonic()))
            return
        if not self._looks_at(step):
            return
        plan = from_rank_0(lambda: self._plan(step))
        if plan is not None:
            self.plans.append(plan)

    def _looks_at(self, step: int) -> bool:
        """Whether this step is one at which the pace is looked at: those at the beginning, at ever
        longer intervals, and TIMES others. The last plan decides which, so that all ranks agree."""
        if step <= self.plans[-1].step or step >= self.last:
            return False
        is_power_of_2 = step & (step - 1) == 0
        return is_power_of_2 or step % max(self.last // TIMES, 1) == 0

    def _plan(self, step: int) -> Plan | None:
        """Another plan, written down; None if the present one will do."""
        # The pace of the later half of the steps, with the evaluations among them
        now = time.monotonic()
        middle = (self.times[0][0] + step) // 2
        since, began = [each for each in self.times if each[0] <= middle][-1]
        seconds = max(now - began, 1e-6) / (step - since)
        self.times.append((step, now))

        # What fits into the time that is left, after one more step at least
        fitting = int(max(self.deadline.at - now, 0) / seconds)
        last = min(step + max(fitting, 1), max(self.deadline.most, step + 1))
        if abs(last - self.last) < max(CHANGE * (self.last - step), FEWEST):
            return None
        plan = Plan(step, last)
        write_whole(self.path, sealed({"plans": [*self.plans[1:], plan]}).encode())
        return plan


def _read(path: Path, say: Say) -> list[Plan]:
    """The plans in a run's directory; none if there are none, or they are damaged, which is said."""
    try:
        return [Plan(*plan) for plan in read_sealed(path)["plans"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError):
        say(f"{path} is damaged: the steps after the last checkpoint are planned anew")
        return []
