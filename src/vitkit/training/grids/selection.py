"""The choice of settings on held-out images: learning rates (App. B.1.1), and weight decay, dropout and label
smoothing, as the paper does for its smaller pre-training sets (Section 4.3, Figure 3). Each candidate has a run
in the folder select/ of the final run's directory. The test part is not used.

The paper does not state which regularisations it tried. The default values are those of its Table 3, with and
without label smoothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import TypeVar

from vitkit.evaluation import Metric
from vitkit.models import ViTConfig
from vitkit.objectives import Supervised
from vitkit.recipes import Recipe
from vitkit.system.errors import BadSettings, Diverged
from vitkit.system.processes.ranks import from_rank_0
from vitkit.training.grids.grid import Cell, run_grid
from vitkit.training.grids.rows import METRICS, Setting
from vitkit.training.record.metrics import primary_of, read_metrics
from vitkit.training.state.checkpoints import earlier_call

Key = TypeVar("Key", float, str)
SELECT = "select"  # folder of the candidates' runs


@dataclass(frozen=True)
class Regularisation:
    """Values to choose from; a setting without values keeps the recipe's own."""

    weight_decays: tuple[float, ...] = ()
    """Values of the optimiser's `weight_decay`."""
    dropouts: tuple[float, ...] = ()
    """Values of the model's `dropout`; a ResNet has none."""
    label_smoothings: tuple[float, ...] = ()
    """Values of the objective's `label_smoothing`."""

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))


USUAL = Regularisation((0.03, 0.1, 0.3), (0.0, 0.1), (0.0, 0.1))
"""Table 3: weight decay 0.03 on ImageNet-21k, 0.1 on JFT and 0.3 on ImageNet, dropout 0.1 or none."""


def regularised(recipe: Recipe, values: Regularisation) -> list[Recipe]:
    """The recipe itself, then its variants with every other combination of the values. Dropout is left out
    for a model without it, and label smoothing for an objective without it.

    Raises VitkitError for a value outside of its range, for dropouts of a model that has none, for label
    smoothing without labels, and for values that are all the recipe's own.
    """
    if values != USUAL and values.dropouts and not isinstance(recipe.model, ViTConfig):
        raise BadSettings(
            f"`dropouts` are given, and a {type(recipe.model).__name__} has no dropout; leave them out"
        )
    if values != USUAL and values.label_smoothings and _of_classes(recipe) is None:
        raise BadSettings(
            "`label_smoothings` are given, and the objective has no classes to smooth; leave them out"
        )
    recipes = [recipe]
    decays = values.weight_decays or (recipe.optim.weight_decay,)
    models = [recipe.model]
    if isinstance(recipe.model, ViTConfig) and values.dropouts:
        models = [replace(recipe.model, dropout=dropout) for dropout in values.dropouts]
    objectives = [recipe.objective]
    supervised = _of_classes(recipe)
    if supervised is not None and values.label_smoothings:
        objectives = [
            replace(supervised, label_smoothing=smoothing) for smoothing in values.label_smoothings
        ]
    for decay, model, objective in product(decays, models, objectives):
        optim = replace(recipe.optim, weight_decay=decay)
        changed = replace(recipe, optim=optim, model=model, objective=objective)
        if changed not in recipes:
            recipes.append(changed)
    if len(recipes) == 1:
        raise BadSettings(
            f"there is nothing to choose from: the recipe has {regularisation_text(regularisation_of(recipe))}"
            " as it is; give another value"
        )
    return recipes


def regularisation_of(recipe: Recipe) -> dict[str, Setting]:
    """The regularisation of a recipe, as columns of a table."""
    settings: dict[str, Setting] = {"weight decay": recipe.optim.weight_decay}
    if isinstance(recipe.model, ViTConfig):
        settings["dropout"] = recipe.model.dropout
    supervised = _of_classes(recipe)
    if supervised is not None:
        settings["label smoothing"] = supervised.label_smoothing
    return settings


def _of_classes(recipe: Recipe) -> Supervised | None:
    """The objective, if its targets are classes, to which label smoothing applies; else None."""
    if isinstance(recipe.objective, Supervised) and recipe.objective.loss != "squared":
        return recipe.objective
    return None


def regularisation_text(settings: dict[str, Setting]) -> str:
    """Settings of a regularisation as text: "weight decay 0.1, dropout 0, label smoothing 0.1"."""
    return ", ".join(f"{name} {value:g}" for name, value in settings.items())


def folder_of(settings: dict[str, Setting]) -> str:
    """Settings of a regularisation as the name of a directory: "decay-0.1-dropout-0-smoothing-0.1"."""
    return "-".join(f"{name.split()[-1]}-{value:g}" for name, value in settings.items())


# The candidates' runs


def select(
    recipe: Recipe, run_dir: Path, rates: Sequence[float], device: str = "auto"
) -> dict[float, Metric | None]:
    """The result of a recipe on held-out images with each learning rate; None if its run failed. The runs
    are in `run_dir`/select.

    A run from earlier with another `best` is used too: all its evaluations are logged, and the best by this
    recipe's `best` counts. An error in the settings ends the selection at the first run.

    Raises FloatingPointError if every rate diverges, and the errors of `train`.
    """
    cells = rate_cells(recipe, rates)
    try:
        return _reached(recipe, cells, run_dir, device)
    except FloatingPointError as error:
        tried = ", ".join(f"{rate:g}" for rate in cells)
        raise Diverged(f"no learning rate of {tried} works; try lower `rates` ({error})") from error


def select_regularisation(
    recipe: Recipe, run_dir: Path, regularisation: Regularisation, device: str = "auto"
) -> dict[str, Metric | None]:
    """The result of a recipe on held-out images with each regularisation, as `select` for learning rates."""
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
    """The recipe with each regularisation, by the regularisation as text."""
    recipes = regularised(recipe, regularisation)
    return {regularisation_text(regularisation_of(each)): each for each in recipes}


def best(selection: dict[Key, Metric | None]) -> Key:
    """The key with the best metric; the first of equal ones, or if all are NaN. Raises VitkitError if
    nothing was measured, and for metrics that cannot be compared."""
    measured = [(key, metric) for key, metric in selection.items() if metric is not None]
    if not measured:
        raise BadSettings(
            "the recipe has no evaluator for held-out images, so nothing can be chosen; add one to `evals`"
        )
    chosen, highest = measured[0]
    for key, metric in measured[1:]:
        if metric.beats(highest):
            chosen, highest = key, metric
    return chosen


def with_recorded_best(cell: Cell, run_dir: Path) -> Cell:
    """The cell with the `best` of the run in its directory, so that the run can be used. `best` decides which
    weights a run saves, which do not matter here; it affects the steps only with `early_stop`."""
    if not isinstance(cell.recipe, Recipe) or cell.recipe.early_stop:
        return cell
    earlier = earlier_call(run_dir / cell.name)
    if not earlier.trained:
        return cell
    ran = earlier.recipe.get("best", cell.recipe.best)
    return replace(cell, recipe=replace(cell.recipe, best=ran))


def _on_held_out(recipe: Recipe) -> Recipe:
    """The recipe, evaluated on held-out training images."""
    return replace(recipe, data=replace(recipe.data, parts="select"))


def _reached(
    recipe: Recipe, cells: dict[Key, Cell], run_dir: Path, device: str
) -> dict[Key, Metric | None]:
    """Run the cells; returns the primary metric of each at its best evaluation by `best`, or at its last."""
    grid = [with_recorded_best(cell, run_dir) for cell in cells.values()]
    rows = run_grid(grid, run_dir, device, alike=True)
    ended = {row.cell for row in rows if row.error is None}
    reached: dict[Key, Metric | None] = {}
    for key, cell in cells.items():
        reached[key] = None
        if cell.name in ended:
            lines = _lines(run_dir / cell.name)
            reached[key] = primary_of(lines, recipe.best)
    return reached


def _lines(run_dir: Path) -> list[dict]:
    """The lines of a run's metrics.jsonl; every rank gets the same."""
    return from_rank_0(lambda: read_metrics(run_dir / METRICS))
