"""How much a study may spend, and how long its runs are for it.

A budget is a time ("30m", "2h", "90s"), operations ("0.5exaflops"), or the steps of each run
("500steps"). Time and operations are those of all runs together.
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
OVERHEAD = 4.0  # seconds of a run beside its steps: opening the images, saving
EVALUATION = 1 / 3  # a forward pass, of a step's forward and backward pass
READING = 1.15  # what reading images adds to the steps, beside what is measured
TRIAL = 100  # steps of the grid whose cost is counted; the cost of others is in proportion
ENOUGH = 1.1  # times the least budget is named as one that is enough: the next measurement differs
LEAST = 20  # steps, below which a run says nothing


@dataclass(frozen=True)
class Budget:
    """The budget of a study."""

    amount: float
    """How much."""
    unit: str
    """Of what: "seconds" and "exaflops" of all runs together, or "steps" of each."""

    def __str__(self) -> str:
        if self.unit != "seconds":
            return f"{self.amount:g} {self.unit}"
        return duration(self.amount)

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """The budget of a text such as "30m", "2h", "0.5exaflops" or "500steps". Raises VitkitError
        for any other text."""
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
            f"a budget of {text!r} says nothing; write it like 30m, 2h, 500steps or 0.5exaflops"
        )


class BudgetPlan(NamedTuple):
    """The plan that follows from a budget."""

    steps: int
    """Steps of an ordinary run of the study; its grid may have shorter and longer ones."""
    runs: int
    """How many there are."""
    exaflops: float
    """Operations of all training, in units of 10^18."""
    seconds: float
    """What they are expected to take here, one after the other."""


def plan(
    cells_for: Callable[[int], Sequence[Cell]], budget: Budget, splits: Splits, device: str
) -> BudgetPlan:
    """The length of the runs of a grid, for a budget: `cells_for(steps)` is the grid. A few steps
    of every model are made here, to know how long they take. Raises VitkitError for a budget that
    leaves nothing to train for."""
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
    """How many runs it has."""
    exaflops: float
    """Operations of their steps."""
    seconds: float
    """The time of their steps, one after the other."""
    fixed: float
    """What does not depend on the number of steps: evaluations, measurements, opening and saving."""


def _cost(grid: Sequence[Cell], splits: Splits, device: str) -> GridCost:
    """What the cells of a grid cost, by a few steps of each model."""
    assert splits.train is not None  # as refuse_without_classes has checked
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

    # The runs, with what is measured in them
    for recipe in runs.values():
        resolved = resolve(recipe, facts)
        exaflops += operations(resolved, resolved.length.n * recipe.batch)
        step = _seconds(resolved, known, device)
        seconds += READING * step * resolved.length.n
        images = _images_measured(resolved, splits)
        fixed += OVERHEAD + step * EVALUATION * images / recipe.batch

    # What is measured beside them: forward passes of an earlier cell's model
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
    """How many images a run's evaluators read in all, those that they learn from included."""
    held_out = sum(len(part) for part in (splits.val, splits.test) if part is not None)
    total = 0
    assert splits.train is not None  # as refuse_without_classes has checked
    for each in recipe.evals:
        assert each.every is not None  # as `resolve` has filled it in
        images = held_out
        if learns(each.evaluator):
            images += min(len(splits.train), WHOLE)
        if each.data:
            images = _images_of(each)
        total += images * math.ceil(recipe.length.n / each.every.n)
    return total


@cache  # every run of a grid has the same
def _images_of(each: Eval) -> int:
    """How many other images an evaluator looks at."""
    parts = open_others((each,)).values()
    return sum(min(len(part), WHOLE) for part in parts)


def _seconds(recipe: Recipe, known: dict, device: str) -> float:
    """What a step of a recipe takes: measured once for each model and batch."""
    key = (recipe.model, recipe.batch, recipe.micro_batch, recipe.precision)
    if key not in known:
        place = pick_device(device)
        precision = pick_precision(recipe.precision, place).precision
        model = create(recipe.model, place, 0)
        known[key] = seconds_of_a_step(model, replace(recipe, precision=precision), place)
    return known[key]


def duration(seconds: float) -> str:
    """A time for people: "40 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
