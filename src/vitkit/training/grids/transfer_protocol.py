"""The paper's transfer protocol (Section 4.1, App. B.1.1): choose a learning rate on held-out
images, and the regularisation if asked (Section 4.3); then train on all but the test part and test,
with several seeds.

The runs are a grid, so a protocol that was interrupted goes on where it was.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from vitkit.evaluation import Metric
from vitkit.evaluation.metrics.metric import plain_number
from vitkit.recipes import Recipe
from vitkit.system.errors import BadSettings, VitkitError
from vitkit.system.processes.ranks import from_rank_0
from vitkit.system.storage.files import write_json
from vitkit.training.grids.grid import Cell, finished, run_grid
from vitkit.training.grids.rows import Setting
from vitkit.training.grids.selection import (
    SELECT,
    Regularisation,
    as_it_ran,
    best,
    by_text,
    rate_cells,
    regularisation_cells,
    regularised,
    select,
    select_regularisation,
)
from vitkit.training.run import refuse_occupied
from vitkit.training.state.checkpoints import Occupied

OWN = Regularisation()  # nothing to choose: the recipe's own


class Transfer(NamedTuple):
    """The results of the protocol, by the metric by which runs are compared
    (training.primary_of)."""

    lr: float
    """The learning rate of the final runs."""
    selection: dict[float, Metric | None]
    """What each learning rate reached on held-out images, None if it failed; empty if the rate was
    not chosen but given."""
    runs: dict[int, Metric | None]
    """What the final run of each seed reached; None if it measures nothing."""
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

    Raises, before any run, Occupied if the final ones cannot be written where they belong, whatever is
    chosen, and VitkitError for a `best` that would look at the test part; FloatingPointError if a
    final run fails while others work, and what `select` and `train` raise.
    """
    if seeds < 1:
        raise BadSettings(f"`seeds` is {seeds}; it is the number of final runs, at least 1")
    run_dir = Path(run_dir)

    # What can be refused before anything runs
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

    # What they reached
    runs: dict[int, Metric | None] = dict.fromkeys(range(recipe.seed, recipe.seed + seeds))
    for row in rows:
        if row.primary:
            runs[int(row.settings["seed"])] = row.metric
    outcome = Transfer(recipe.optim.lr, selection, runs, text, tuple(tried.items()))
    from_rank_0(lambda: write_json(run_dir / "transfer.json", _to_json(outcome)))
    return outcome


def _refuse_a_look_at_the_test_part(recipe: Recipe) -> None:
    """Raises VitkitError if the weights would be chosen by the test part."""
    if recipe.best.startswith("test/"):
        raise BadSettings(
            f"`best={recipe.best!r}` looks at the test part, and what is chosen must not; give "
            f"`best='val/{recipe.best.removeprefix('test/')}'`"
        )


def _refuse_occupied(
    recipe: Recipe,
    run_dir: Path,
    rates: Sequence[float],
    seeds: int,
    regularisation: Regularisation,
) -> None:
    """Raises Occupied if the directory of a final run holds another, whatever will be chosen."""
    # What may be chosen
    possible = [recipe]
    if rates:
        by_rate = rate_cells(recipe, rates)
        first = list(by_rate.values())
        possible = [replace(recipe, optim=replace(recipe.optim, lr=rate)) for rate in by_rate]
    else:
        first = list(regularisation_cells(recipe, regularisation).values())
    if regularisation:
        possible = [other for each in possible for other in regularised(each, regularisation)]

    # Where it would run
    finals = [_final_recipes(_on_all_but_test(each), seeds) for each in possible]
    try:
        for name in finals[0]:
            refuse_occupied(run_dir / name, [recipes[name] for recipes in finals])
    except Occupied as error:
        if _are_ours(first, run_dir):
            raise Occupied(_with_selection(error, run_dir)) from None
        raise


def _are_ours(cells: Sequence[Cell], run_dir: Path) -> bool:
    """Whether some of these runs have finished, and none in the directory is of other settings."""
    if not (run_dir / SELECT).is_dir():
        return False
    try:
        return bool(finished([as_it_ran(cell, run_dir) for cell in cells], run_dir))
    except Occupied:
        return False


def _with_selection(error: Occupied, run_dir: Path) -> str:
    """The message of a final run that has no place, with the way to keep what chose its settings."""
    return f"{error}. To choose by the same runs, copy {run_dir / SELECT} into the other one first"


def _on_all_but_test(recipe: Recipe) -> Recipe:
    """Train on all but the test part, and the part that chooses weights if one does."""
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
    """The final runs, by their directories: a seed each, the first in the directory that people look into."""
    recipes = {".": recipe}
    for seed in range(recipe.seed + 1, recipe.seed + seeds):
        recipes[f"seed-{seed}"] = replace(recipe, seed=seed)
    return recipes


def _to_json(outcome: Transfer) -> dict:
    """What transfer.json holds."""
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
    """A metric as plain values, with its name."""
    if metric is None:
        return None
    return {"metric": metric.name, **metric.to_json()}
