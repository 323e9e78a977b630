"""Settings chosen on held-out images (App. B.1.1, Section 4.3): a run for each candidate, in the folder
select/ of the final run's directory. The test part is not used."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from vitkit.evaluation import Metric
from vitkit.studies.cell import Cell
from vitkit.studies.grid import run_grid
from vitkit.studies.regularising import (
    Regularisation,
    folder_of,
    regularisation_of,
    regularisation_text,
    regularised,
)
from vitkit.studies.rows import METRICS
from vitkit.system.processes.ranks import from_rank_0
from vitkit.training import Recipe, earlier_call, primary_of, read_metrics

Key = TypeVar("Key", float, str)
SELECT = "select"  # the folder of the runs that choose


def select(
    recipe: Recipe, run_dir: Path, rates: Sequence[float], device: str = "auto"
) -> dict[float, Metric | None]:
    """What a recipe reaches on held-out images with each learning rate, None if it fails. Each is a
    run in `run_dir`/select.

    A run that is there with another `best` is taken as it is: all its evaluations are written down,
    and the one that counts is the best by the recipe's own. An error of the settings ends all at
    the first run.

    Raises FloatingPointError if every rate diverges, and what else `train` raises.
    """
    cells = rate_cells(recipe, rates)
    try:
        return _reached(recipe, cells, run_dir, device)
    except FloatingPointError as error:
        tried = ", ".join(f"{rate:g}" for rate in cells)
        raise FloatingPointError(
            f"no learning rate of {tried} works; try lower --rates ({error})"
        ) from error


def select_regularisation(
    recipe: Recipe, run_dir: Path, regularisation: Regularisation, device: str = "auto"
) -> dict[str, Metric | None]:
    """What a recipe reaches on held-out images with each regularisation, as `select` does with each
    rate."""
    return _reached(recipe, regularisation_cells(recipe, regularisation), run_dir, device)


def rate_cells(recipe: Recipe, rates: Sequence[float]) -> dict[float, Cell]:
    """The runs that try learning rates."""
    cells = {}
    for rate in sorted(set(rates)):
        cells[rate] = Cell(
            name=f"{SELECT}/lr-{rate:g}",
            recipe=replace(_on_held_out(recipe), optim=replace(recipe.optim, lr=rate)),
            settings={"lr": rate, "seed": recipe.seed},
            title=f"learning rate {rate:g} on held-out images",
        )
    return cells


def regularisation_cells(recipe: Recipe, regularisation: Regularisation) -> dict[str, Cell]:
    """The runs that try regularisations."""
    cells = {}
    for text, changed in by_text(recipe, regularisation).items():
        settings = regularisation_of(changed)
        cells[text] = Cell(
            name=f"{SELECT}/{folder_of(settings)}",
            recipe=_on_held_out(changed),
            settings={"lr": recipe.optim.lr, **settings, "seed": recipe.seed},
            title=f"{text}, on held-out images",
        )
    return cells


def by_text(recipe: Recipe, regularisation: Regularisation) -> dict[str, Recipe]:
    """The recipe with every regularisation that is tried, by what people read."""
    recipes = regularised(recipe, regularisation)
    return {regularisation_text(regularisation_of(each)): each for each in recipes}


def best(selection: dict[Key, Metric | None]) -> Key:
    """The key whose metric is best; the first of equal ones, or if all are NaN.

    Raises ValueError if nothing was measured, and if of two values none is better.
    """
    chosen = None
    for key, metric in selection.items():
        if metric is None:
            continue
        if chosen is None or metric.beats(selection[chosen]):
            chosen = key
    if chosen is None:
        raise ValueError(
            "the recipe measures nothing on held-out images, so nothing can be chosen by it"
        )
    return chosen


def as_it_ran(cell: Cell, run_dir: Path) -> Cell:
    """A cell with the `best` of the run that its directory holds. It decides which weights a run saves,
    which nobody reads here, and no step of it, unless the run ends by it (`early_stop`)."""
    if cell.recipe.early_stop:
        return cell
    earlier = earlier_call(run_dir / cell.name)
    if not earlier.trained:
        return cell
    ran = earlier.recipe.get("best", cell.recipe.best)
    return replace(cell, recipe=replace(cell.recipe, best=ran))


def _on_held_out(recipe: Recipe) -> Recipe:
    """The recipe, measured on training images that are held out."""
    return replace(recipe, data=replace(recipe.data, parts="select"))


def _reached(
    recipe: Recipe, cells: dict[Key, Cell], run_dir: Path, device: str
) -> dict[Key, Metric | None]:
    """Run the cells; returns what each reached, at the evaluation that is best by the recipe's `best`,
    or at the last one."""
    as_they_ran = [as_it_ran(cell, run_dir) for cell in cells.values()]
    rows = run_grid(as_they_ran, run_dir, device, alike=True)
    ended = {row.cell for row in rows if row.error is None}
    reached = {}
    for key, cell in cells.items():
        reached[key] = None
        if cell.name in ended:
            lines = _lines(run_dir / cell.name)
            reached[key] = primary_of(lines, recipe.best)
    return reached


def _lines(run_dir: Path) -> list[dict]:
    """What a run has written down; every rank gets the same."""
    return from_rank_0(lambda: read_metrics(run_dir / METRICS))
