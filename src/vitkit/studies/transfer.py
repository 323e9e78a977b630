"""The paper's transfer protocol (Section 4.1, App. B.1.1): choose a learning rate on held-out
images, then train on all but the test part and test, with several seeds.

The runs are a grid, so a protocol that was interrupted goes on where it was.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from vitkit.evaluate import Metric
from vitkit.evaluate.metric import plain_number
from vitkit.studies.grid import Cell, run_grid
from vitkit.system.files import write_json
from vitkit.system.ranks import from_rank_0
from vitkit.training import Recipe


class Transfer(NamedTuple):
    """What the protocol reached, by the metric that runs are compared by (train.primary_metric)."""

    lr: float
    """The learning rate of the final runs."""
    selection: dict[float, Metric | None]
    """What each learning rate reached on held-out images, None if it failed; empty if the rate was
    not chosen but given."""
    runs: dict[int, Metric | None]
    """What the final run of each seed reached; None if it measures nothing."""

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
) -> Transfer:
    """Run a recipe with `seeds` seeds: the recipe's own in `run_dir` itself, the others in
    `run_dir`/seed-N.

    With `rates` the learning rate is chosen first, by `select`, and the final runs train on all but
    the test part. The outcome is written to `run_dir`/transfer.json, and every metric to
    `run_dir`/results.parquet. Raises FloatingPointError if a final run fails while others work, and
    what `select` and `train` raise.
    """
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; it is the number of final runs, at least 1")
    run_dir = Path(run_dir)

    # Choose the learning rate
    selection = {}
    if rates:
        selection = select(recipe, run_dir, rates, device)
        optim = replace(recipe.optim, lr=best(selection))
        data = replace(recipe.data, parts="final")
        recipe = replace(recipe, optim=optim, data=data)

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
    outcome = Transfer(recipe.optim.lr, selection, runs)
    from_rank_0(lambda: write_json(run_dir / "transfer.json", _to_json(outcome)))
    return outcome


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
        rows = run_grid(cells, run_dir, device)
    except FloatingPointError as error:
        tried = ", ".join(f"{rate:g}" for rate in rates)
        raise FloatingPointError(
            f"no learning rate of {tried} works; try lower --rates ({error})"
        ) from error
    selection = dict.fromkeys(rates)
    for row in rows:
        if row.primary:
            selection[row.settings["lr"]] = row.metric
    return selection


def best(selection: dict[float, Metric | None]) -> float:
    """The learning rate whose metric is best; of equal ones, or if all are NaN, the lowest.

    Raises ValueError if nothing was measured, and if of two values none is better.
    """
    chosen = None
    for rate in sorted(selection):
        metric = selection[rate]
        if metric is None:
            continue
        if chosen is None or metric.beats(selection[chosen]):
            chosen = rate
    if chosen is None:
        raise ValueError("the recipe measures nothing on held-out images, so no rate can be chosen")
    return chosen


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
