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
from typing import NamedTuple, TypeVar

from vitkit.evaluate import Metric
from vitkit.evaluate.metric import plain_number
from vitkit.studies.cell import Cell
from vitkit.studies.grid import run_grid
from vitkit.studies.regularising import (
    Regularisation,
    folder_of,
    regularisation_of,
    regularisation_text,
    regularised,
)
from vitkit.studies.rows import Row
from vitkit.system.files import write_json
from vitkit.system.ranks import from_rank_0
from vitkit.training import Recipe

Key = TypeVar("Key", float, str)
OWN = Regularisation()  # nothing to choose: the recipe's own


class Transfer(NamedTuple):
    """What the protocol reached, by the metric that runs are compared by (train.primary_metric)."""

    lr: float
    """The learning rate of the final runs."""
    selection: dict[float, Metric | None]
    """What each learning rate reached on held-out images, None if it failed; empty if the rate was
    not chosen but given."""
    runs: dict[int, Metric | None]
    """What the final run of each seed reached; None if it measures nothing."""
    regularised: str = ""
    """The regularisation of the final runs, if it was chosen,"""
    regularisation: tuple[tuple[str, Metric | None], ...] = ()
    """and what each reached on held-out images, None if it failed; the recipe's own is the first."""

    def mean(self) -> tuple[float, float]:
        """The mean over the seeds, and the sample standard deviation (0 for one seed); NaN both if
        a value is not finite."""
        values = [metric.value for metric in self.runs.values()]
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

    Raises FloatingPointError if a final run fails while others work; ValueError for a `best` that
    would look at the test part, and what `select` and `train` raise.
    """
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; it is the number of final runs, at least 1")
    run_dir = Path(run_dir)

    # Choose the learning rate
    if rates or regularisation:
        _refuse_a_look_at_the_test_part(recipe)
    selection = {}
    if rates:
        selection = select(recipe, run_dir, rates, device)
        recipe = replace(recipe, optim=replace(recipe.optim, lr=best(selection)))

    # Choose the regularisation
    tried = {}
    text = ""
    if regularisation:
        tried = _regularise(recipe, run_dir, regularisation, device)
        text = best(tried)
        recipe = _by_text(recipe, regularisation)[text]
    if rates or regularisation or recipe.data.parts == "final":
        recipe = replace(recipe, data=replace(recipe.data, parts=_final_parts(recipe)))

    # The final runs, the first of them in the directory that people look into
    cells = [_final(recipe, recipe.seed + i) for i in range(seeds)]
    cells[0] = replace(cells[0], name=".")
    rows = run_grid(cells, run_dir, device)
    for row in rows:
        if row.error is not None:
            raise FloatingPointError(f"seed {row.settings['seed']} failed: {row.error}")

    # What they reached
    runs = dict.fromkeys(cell.recipe.seed for cell in cells)
    for row in rows:
        if row.primary:
            runs[row.settings["seed"]] = row.metric
    outcome = Transfer(recipe.optim.lr, selection, runs, text, tuple(tried.items()))
    from_rank_0(lambda: write_json(run_dir / "transfer.json", _to_json(outcome)))
    return outcome


def _refuse_a_look_at_the_test_part(recipe: Recipe) -> None:
    """Raises ValueError if the weights would be chosen by the test part."""
    if recipe.best.startswith("test/"):
        raise ValueError(
            f"--best {recipe.best} looks at the test part, and what is chosen must not; give "
            f"--best val/{recipe.best.removeprefix('test/')}"
        )


def select(
    recipe: Recipe, run_dir: Path, rates: Sequence[float], device: str = "auto"
) -> dict[float, Metric | None]:
    """What a recipe reaches on held-out images with each learning rate, None if it fails. Each is a
    run in `run_dir`/select; the test part is not used.

    Raises FloatingPointError if every rate diverges, and what else `train` raises.
    """
    recipe = replace(recipe, data=replace(recipe.data, parts="select"))
    rates = sorted(set(rates))
    cells = [_candidate(recipe, rate) for rate in rates]
    try:
        reached = _primary(run_grid(cells, run_dir, device))
    except FloatingPointError as error:
        tried = ", ".join(f"{rate:g}" for rate in rates)
        raise FloatingPointError(
            f"no learning rate of {tried} works; try lower --rates ({error})"
        ) from error
    return {rate: reached.get(cell.name) for rate, cell in zip(rates, cells, strict=True)}


def _regularise(
    recipe: Recipe, run_dir: Path, regularisation: Regularisation, device: str
) -> dict[str, Metric | None]:
    """What a recipe reaches on held-out images with each regularisation, as `select` does with each
    rate."""
    recipe = replace(recipe, data=replace(recipe.data, parts="select"))
    cells = {}
    for text, changed in _by_text(recipe, regularisation).items():
        settings = regularisation_of(changed)
        cells[text] = Cell(
            name=f"select/{folder_of(settings)}",
            recipe=changed,
            settings={"lr": recipe.optim.lr, **settings, "seed": recipe.seed},
            title=f"{text}, on held-out images",
        )
    reached = _primary(run_grid(list(cells.values()), run_dir, device))
    return {text: reached.get(cell.name) for text, cell in cells.items()}


def _by_text(recipe: Recipe, regularisation: Regularisation) -> dict[str, Recipe]:
    """The recipe with every regularisation that is tried, by what people read."""
    recipes = regularised(recipe, regularisation)
    return {regularisation_text(regularisation_of(each)): each for each in recipes}


def _primary(rows: Sequence[Row]) -> dict[str, Metric]:
    """What cells are compared by, by their names."""
    return {row.cell: row.metric for row in rows if row.primary}


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


def _final_parts(recipe: Recipe) -> str:
    """Which images train the final runs: all but those of the test part, and those that choose the
    weights."""
    if recipe.best.startswith("val/"):
        return "three"
    return "final"


def _candidate(recipe: Recipe, rate: float) -> Cell:
    """The run that tries a learning rate."""
    return Cell(
        name=f"select/lr-{rate:g}",
        recipe=replace(recipe, optim=replace(recipe.optim, lr=rate)),
        settings={"lr": rate, "seed": recipe.seed},
        title=f"learning rate {rate:g} on held-out images",
    )


def _final(recipe: Recipe, seed: int) -> Cell:
    """The final run of a seed."""
    return Cell(
        name=f"seed-{seed}",
        recipe=replace(recipe, seed=seed),
        settings={"lr": recipe.optim.lr, "seed": seed},
        title=f"seed {seed}",
    )


def _to_json(outcome: Transfer) -> dict:
    """What transfer.json holds."""
    values = {"lr": outcome.lr, "selection": {}, "runs": {}}
    if outcome.regularised:
        tried = {text: _named(metric) for text, metric in outcome.regularisation}
        values |= {"regularised": outcome.regularised, "regularisation": tried}
    for rate, metric in outcome.selection.items():
        values["selection"][f"{rate:g}"] = _named(metric)
    for seed, metric in outcome.runs.items():
        values["runs"][seed] = _named(metric)
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
