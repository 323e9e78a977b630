"""The budget of a study, and the length of its runs that follows.

A budget is a time ("30m", "2h", "90s"), a number of operations ("0.5exaflops"), or the steps of each run
("500steps"). Time and operations are totals over all runs.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from vitkit.data import Splits
from vitkit.evaluation import Eval, learns
from vitkit.evaluation.probes.fewshot import WHOLE
from vitkit.models import create
from vitkit.recipes import Facts, Recipe, resolve
from vitkit.system.errors import BadSettings
from vitkit.system.machine import pick_device, pick_precision
from vitkit.training import Cell, operations, seconds_of_a_step
from vitkit.training.data import open_others
from vitkit.training.grids.grid import Priced

FORM = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?)\s*([a-z]+)\s*")
SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
OVERHEAD = 4.0  # seconds of a run besides its steps: opening the images, saving
EVALUATION = 1 / 3  # cost of a forward pass, in training steps
READING = 1.15  # factor for reading images, which the measured step does not include
TRIAL = 100  # steps for which the cost of the grid is computed; other lengths cost in proportion
ENOUGH = (
    1.1  # factor of the smallest budget that a message suggests, as the next measurement differs
)
LEAST = 20  # fewest steps of a meaningful run


@dataclass(frozen=True)
class Budget:
    """The budget of a study."""

    amount: float
    """How much."""
    unit: str
    """Unit of the amount: "seconds" or "exaflops" of all runs together, or "steps" of each run."""

    def __str__(self) -> str:
        if self.unit != "seconds":
            return f"{self.amount:g} {self.unit}"
        return duration(self.amount)

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Parse a text such as "30m", "2h", "0.5exaflops" or "500steps". Raises VitkitError for any other
        text."""
        match = FORM.fullmatch(text.lower())
        if match is not None and 0 < float(match[1]) < math.inf:
            amount = float(match[1])
            unit = match[2]
            if unit in SECONDS:
                return cls(amount * SECONDS[unit], "seconds")
            if unit in ("exaflop", "exaflops"):
                return cls(amount, "exaflops")
            if unit in ("step", "steps"):
                return cls(amount, "steps")
        raise BadSettings(
            f"a budget cannot be {text!r}; write it like 30m, 2h, 500steps or 0.5exaflops"
        )


class BudgetPlan(NamedTuple):
    """The plan that follows from a budget."""

    steps: int
    """Steps of an ordinary run of the study; its grid may have shorter and longer ones."""
    runs: int
    """Number of runs."""
    exaflops: float
    """Training operations of all runs, in units of 10^18."""
    seconds: float
    """Expected duration here, if the runs are made one after the other."""


def plan(
    cells_for: Callable[[int], Sequence[Cell]], budget: Budget, splits: Splits, device: str
) -> BudgetPlan:
    """The length of the runs of a grid for a budget. cells_for: returns the grid for a number of steps.
    Times a few steps of every model. Raises VitkitError for a budget that leaves too few
    steps."""
    cost = _cost(cells_for(TRIAL), splits, device)
    if budget.unit == "steps":
        steps = budget.amount
    elif budget.unit == "exaflops":
        steps = TRIAL * budget.amount / cost.exaflops
    else:
        steps = TRIAL * (budget.amount - cost.fixed) / cost.seconds
    steps = int(steps)
    if steps < LEAST:
        needed = {
            "steps": f"{LEAST}steps",
            "exaflops": f"{ENOUGH * cost.exaflops * LEAST / TRIAL:.2g}exaflops",
            "seconds": f"{math.ceil(ENOUGH * (cost.fixed + cost.seconds * LEAST / TRIAL) / 60)}m",
        }
        raise BadSettings(
            f"a budget of {budget} leaves {cost.runs} runs {max(steps, 0)} steps each, and fewer "
            f"than {LEAST} say nothing; give {needed[budget.unit]} or more, fewer `seeds`, or a "
            "smaller `recipe`"
        )
    share = steps / TRIAL
    return BudgetPlan(steps, cost.runs, cost.exaflops * share, cost.fixed + cost.seconds * share)


class GridCost(NamedTuple):
    """The cost of a grid."""

    runs: int
    """Number of runs."""
    exaflops: float
    """Operations of the runs' steps, in units of 10^18."""
    seconds: float
    """Duration of the runs' steps, one after the other."""
    fixed: float
    """Duration of everything that does not depend on the number of steps: evaluations, opening,
    saving."""


def _cost(grid: Sequence[Cell], splits: Splits, device: str) -> GridCost:
    """The cost of a grid, from a few timed steps of each model."""
    assert splits.train is not None  # refuse_without_classes requires it
    facts = Facts(len(splits.train), splits.labels, splits.target_kind)
    runs = {}
    for cell in grid:
        run = cell.run()
        if run is not None:
            runs[cell.name] = run
    exaflops = 0.0
    seconds = 0.0
    fixed = 0.0
    known: dict = {}  # seconds of a step, by model and batch

    # Training runs, with their evaluations
    for recipe in runs.values():
        resolved = resolve(recipe, facts)
        exaflops += operations(resolved, resolved.length.n * recipe.batch)
        step = _seconds(resolved, known, device)
        seconds += READING * step * resolved.length.n
        images = _images_measured(resolved, splits)
        fixed += OVERHEAD + step * EVALUATION * images / recipe.batch

    # Other measurements: forward passes of an earlier cell's model
    for cell in grid:
        if cell.name in runs:
            continue
        fixed += OVERHEAD
        if isinstance(cell.recipe, Priced):
            passes = cell.recipe.passes(runs[cell.after])
            recipe = resolve(passes.recipe, facts)
            step = _seconds(recipe, known, device)
            fixed += step * EVALUATION * passes.images / recipe.batch
    return GridCost(len(runs), exaflops, seconds, fixed)


def _images_measured(recipe: Recipe, splits: Splits) -> int:
    """Number of images that all of a run's evaluations read, including those that evaluators learn
    from."""
    held_out = sum(len(part) for part in (splits.val, splits.test) if part is not None)
    total = 0
    assert splits.train is not None  # refuse_without_classes requires it
    for each in recipe.evals:
        assert each.every is not None  # `resolve` has filled it in
        images = held_out
        if learns(each.evaluator):
            images += min(len(splits.train), WHOLE)
        if each.data:
            images = _images_of(each)
        total += images * math.ceil(recipe.length.n / each.every.n)
    return total


@cache  # equal for every run of a grid
def _images_of(each: Eval) -> int:
    """Number of images of an evaluator that has a data set of its own."""
    parts = open_others((each,)).values()
    return sum(min(len(part), WHOLE) for part in parts)


def _seconds(recipe: Recipe, known: dict, device: str) -> float:
    """Seconds per step of a recipe, measured once for each model and batch size."""
    key = (recipe.model, recipe.batch, recipe.micro_batch, recipe.precision)
    if key not in known:
        place = pick_device(device)
        precision = pick_precision(recipe.precision, place).precision
        model = create(recipe.model, place, 0)
        known[key] = seconds_of_a_step(model, replace(recipe, precision=precision), place)
    return known[key]


def duration(seconds: float) -> str:
    """A duration as text: "40 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
