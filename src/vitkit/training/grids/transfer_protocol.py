"""The paper's transfer protocol (Section 4.1, App. B.1.1): choose a learning rate on held-out
images, and optionally the regularisation (Section 4.3); then train on all but the test part and test, with
several seeds.

The runs are a grid, so an interrupted protocol continues where it was.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from vitkit.evaluation import Metric
from vitkit.evaluation.metrics.metric import plain_number
from vitkit.recipes import Recipe, check_numbers
from vitkit.system.errors import BadSettings, VitkitError
from vitkit.system.processes.ranks import from_rank_0
from vitkit.system.storage.files import write_json
from vitkit.training.grids.grid import Cell, finished, run_grid
from vitkit.training.grids.rows import Setting
from vitkit.training.grids.selection import (
    SELECT,
    Regularisation,
    best,
    by_text,
    rate_cells,
    regularisation_cells,
    regularised,
    select,
    select_regularisation,
    with_recorded_best,
)
from vitkit.training.run import refuse_occupied
from vitkit.training.state.checkpoints import Occupied

OWN = Regularisation()  # no choice: the recipe's own regularisation


class Transfer(NamedTuple):
    """The results of the protocol: the primary metrics of its runs."""

    lr: float
    """The learning rate of the final runs."""
    selection: dict[float, Metric | None]
    """Held-out result of each learning rate, None if its run failed; empty if the rate was not chosen."""
    runs: dict[int, Metric | None]
    """Result of the final run of each seed; None if it has no evaluator."""
    regularised: str = ""
    """The chosen regularisation of the final runs; empty if none was chosen."""
    regularisation: tuple[tuple[str, Metric | None], ...] = ()
    """Held-out result of each regularisation, None if its run failed; the recipe's own comes first."""

    def mean(self) -> tuple[float, float]:
        """Mean and sample standard deviation over seeds (0 for one); NaN if one is not finite, or was not
        measured."""
        values = [metric.value if metric else math.nan for metric in self.runs.values()]
        if not all(map(math.isfinite, values)):
            return math.nan, math.nan
        if len(values) == 1:
            return values[0], 0.0
        return statistics.fmean(values), statistics.stdev(values)


def transfer(
    recipe: Recipe,
    run_dir: Path | str,
    rates: Sequence[float] = (),
    seeds: int = 1,
    device: str = "auto",
    regularisation: Regularisation = OWN,
) -> Transfer:
    """Run a recipe with `seeds` seeds: the recipe's own in `run_dir` itself, the others in
    `run_dir`/seed-N.

    With `rates` the learning rate is chosen first, by `select`, with `regularisation` weight decay,
    dropout and label smoothing after it, and the final runs train on all but the test part. If the
    recipe's `best` is a metric of the val part, they leave that part out too, to choose their weights
    by it. The outcome is written to `run_dir`/transfer.json, and every metric to
    `run_dir`/results.parquet.

    Raises, before any run, Occupied if the directories of the final runs are occupied, whatever will be
    chosen, and VitkitError for a `best` on the test part; later VitkitError if a final run fails while
    others work, and the errors of `select` and `train`.
    """
    if seeds < 1:
        raise BadSettings(f"`seeds` is {seeds}; it is the number of final runs, at least 1")
    check_numbers(recipe)
    run_dir = Path(run_dir)

    # Refuse what can be refused before anything runs
    if rates or regularisation:
        _refuse_a_look_at_the_test_part(recipe)
        _refuse_occupied(recipe, run_dir, rates, seeds, regularisation)

    # Choose the learning rate
    selection = {}
    if rates:
        selection = select(recipe, run_dir, rates, device)
        recipe = replace(recipe, optim=replace(recipe.optim, lr=best(selection)))

    # Choose the regularisation
    tried = {}
    text = ""
    if regularisation:
        tried = select_regularisation(recipe, run_dir, regularisation, device)
        text = best(tried)
        recipe = by_text(recipe, regularisation)[text]
    if rates or regularisation or recipe.data.parts == "final":
        recipe = _on_all_but_test(recipe)

    # The final runs
    cells = _final_cells(recipe, seeds)
    try:
        rows = run_grid(cells, run_dir, device, alike=True)
    except Occupied as error:
        if not selection and not tried:
            raise
        raise Occupied(_with_selection(error, run_dir)) from None
    for row in rows:
        if row.error is not None:
            raise VitkitError(f"seed {row.settings['seed']} failed: {row.error}")

    # The results
    runs: dict[int, Metric | None] = dict.fromkeys(range(recipe.seed, recipe.seed + seeds))
    for row in rows:
        if row.primary:
            runs[int(row.settings["seed"])] = row.metric
    outcome = Transfer(recipe.optim.lr, selection, runs, text, tuple(tried.items()))
    from_rank_0(lambda: write_json(run_dir / "transfer.json", _to_json(outcome)))
    return outcome


def _refuse_a_look_at_the_test_part(recipe: Recipe) -> None:
    """Raises VitkitError if the weights would be chosen on the test part."""
    if recipe.best.startswith("test/"):
        raise BadSettings(
            f"`best={recipe.best!r}` chooses weights on the test part, which must not be used for choices; "
            f"give `best='val/{recipe.best.removeprefix('test/')}'`"
        )


def _refuse_occupied(
    recipe: Recipe,
    run_dir: Path,
    rates: Sequence[float],
    seeds: int,
    regularisation: Regularisation,
) -> None:
    """Raises Occupied if the directory of a final run holds another run, whatever will be chosen."""
    # All recipes that may be chosen
    possible = [recipe]
    if rates:
        by_rate = rate_cells(recipe, rates)
        first = list(by_rate.values())
        possible = [replace(recipe, optim=replace(recipe.optim, lr=rate)) for rate in by_rate]
    else:
        first = list(regularisation_cells(recipe, regularisation).values())
    if regularisation:
        possible = [other for each in possible for other in regularised(each, regularisation)]

    # The directories of their final runs
    finals = [_final_recipes(_on_all_but_test(each), seeds) for each in possible]
    try:
        for name in finals[0]:
            refuse_occupied(run_dir / name, [recipes[name] for recipes in finals])
    except Occupied as error:
        if _are_ours(first, run_dir):
            raise Occupied(_with_selection(error, run_dir)) from None
        raise


def _are_ours(cells: Sequence[Cell], run_dir: Path) -> bool:
    """Whether some of these runs have finished, and the directory has none with other settings."""
    if not (run_dir / SELECT).is_dir():
        return False
    try:
        return bool(finished([with_recorded_best(cell, run_dir) for cell in cells], run_dir))
    except Occupied:
        return False


def _with_selection(error: Occupied, run_dir: Path) -> str:
    """The message about an occupied directory of a final run, with a way to keep the candidates' runs."""
    return f"{error}. To keep the runs of the selection, copy {run_dir / SELECT} into the other one first"


def _on_all_but_test(recipe: Recipe) -> Recipe:
    """The recipe, trained on all but the test part, and but the val part if that chooses the weights."""
    data = replace(recipe.data, parts="final")
    if recipe.best.startswith("val/"):
        data = replace(recipe.data, parts="three")
    return replace(recipe, data=data)


def _final_cells(recipe: Recipe, seeds: int) -> list[Cell]:
    """The final runs as cells of a grid."""
    cells = []
    for name, final in _final_recipes(recipe, seeds).items():
        settings: dict[str, Setting] = {"lr": final.optim.lr, "seed": final.seed}
        cells.append(Cell(name, final, settings, f"seed {final.seed}"))
    return cells


def _final_recipes(recipe: Recipe, seeds: int) -> dict[str, Recipe]:
    """The recipes of the final runs, one for each seed, by directory; the first has the grid's own."""
    recipes = {".": recipe}
    for seed in range(recipe.seed + 1, recipe.seed + seeds):
        recipes[f"seed-{seed}"] = replace(recipe, seed=seed)
    return recipes


def _to_json(outcome: Transfer) -> dict:
    """The content of transfer.json."""
    values = {
        "lr": outcome.lr,
        "selection": {f"{rate:g}": _named(metric) for rate, metric in outcome.selection.items()},
        "runs": {seed: _named(metric) for seed, metric in outcome.runs.items()},
    }
    if outcome.regularised:
        tried = {text: _named(metric) for text, metric in outcome.regularisation}
        values |= {"regularised": outcome.regularised, "regularisation": tried}
    if None not in outcome.runs.values():
        mean, std = outcome.mean()
        values["mean"], _ = plain_number(mean)  # null if it is NaN
        values["std"], _ = plain_number(std)
    return values


def _named(metric: Metric | None) -> dict | None:
    """A metric with its name as plain values, for JSON."""
    if metric is None:
        return None
    return {"metric": metric.name, **metric.to_json()}
