"""A cell of a grid: a run, a measurement, or a run that depends on what other cells reached."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from vitkit.evaluation import Metric
from vitkit.studies.rows import Setting, read_rows
from vitkit.training import Recipe


class Measurement(Protocol):
    """What a cell does if nothing is trained in it: a frozen dataclass of settings."""

    def measure(self, device: str) -> list[Metric]:
        """What it measures; cells are compared by the first. Every rank calls it. Raises ValueError
        and FloatingPointError as a run does."""


class Passes(NamedTuple):
    """Forward passes, as a cost."""

    recipe: Recipe
    """Of this run's model, in batches as large,"""
    images: int
    """and of so many images."""


@runtime_checkable
class Priced(Protocol):
    """A measurement that takes more than a few seconds, and says how much."""

    def passes(self, before: Recipe) -> Passes:
        """What it computes, if `before` is the run that it comes after."""


@dataclass(frozen=True)
class Best:
    """A run whose recipe depends on which of some earlier cells reached the best."""

    recipes: tuple[tuple[str, Recipe], ...]
    """The names of those cells, and what runs if it was that one; of equal ones the first."""

    def recipe(self, grid_dir: Path) -> Recipe:
        """What runs. Raises ValueError if none of the cells has a value."""
        reached = {}
        for name, _ in self.recipes:
            for row in read_rows(grid_dir / name):
                if row.primary and row.cell == ".":
                    reached[name] = row.metric
        best = None
        for name, metric in reached.items():
            if best is None or metric.beats(reached[best]):
                best = name
        if best is None:
            raise ValueError(
                f"it follows the best of {len(self.recipes)} cells, and none of them has a value"
            )
        return dict(self.recipes)[best]


@dataclass(frozen=True)
class Cell:
    """One run of a grid, or one measurement."""

    name: str
    """Its directory within the grid's, "lr-0.01/seed-1" for example; "." is the grid's own."""
    recipe: Recipe | Best | Measurement
    """What runs there, or is measured."""
    settings: dict[str, Setting] = field(default_factory=dict)
    """What distinguishes it from the other cells, {"lr": 0.01, "seed": 1} for example: each is a
    column of the table."""
    title: str = ""
    """What the terminal says when it begins; its name by default."""
    after: str = ""
    """Name of an earlier cell that it needs, for its model or for what it reached: the same shard runs
    both. Empty is none."""

    def follows(self) -> list[str]:
        """The names of the cells that its recipe depends on."""
        if isinstance(self.recipe, Best):
            return [name for name, _ in self.recipe.recipes]
        return []

    def run(self) -> Recipe | None:
        """The run, or one like it in model and length if which it is depends on others; None for a
        measurement."""
        if isinstance(self.recipe, Best):
            return self.recipe.recipes[0][1]
        if isinstance(self.recipe, Recipe):
            return self.recipe
        return None
