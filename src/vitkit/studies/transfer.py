"""The paper's transfer protocol (Section 4.1, App. B.1.1): choose a learning rate on held-out images, then train on everything
and test, with several seeds. The runs are a grid, so a protocol that was interrupted goes on where it was.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from vitkit.evaluate import Metric
from vitkit.studies.grid import Cell, run_grid
from vitkit.system.files import write_json
from vitkit.system.ranks import from_rank_0
from vitkit.train import Recipe


class Transfer(NamedTuple):
    """What a protocol reached. Runs are compared by the first metric of their recipe's first evaluator."""

    lr: float
    """The learning rate of the final runs."""
    selection: dict[float, Metric | None]
    """What every rate that was tried reached on held-out images, None for one that failed; empty if none was."""
    runs: dict[int, Metric | None]
    """What the final runs reached, by seed; None if they measure nothing."""

    def mean(self) -> tuple[float, float]:
        """Mean over the seeds, and the sample standard deviation (0 for one seed)."""
        values = [metric.value for metric in self.runs.values()]
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
    """Run a recipe for `seeds` seeds, the recipe's own first and in `run_dir` itself, the others in `run_dir`/seed-N.

    With `rates`, the learning rate is chosen first, by `select`, and the final runs train on all but the test part. The
    outcome is written to `run_dir`/transfer.json, and every metric to its results.parquet. Raises ValueError,
    FloatingPointError where a final run diverges, Interrupted and what else `train` raises.
    """
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; it is the number of final runs, at least 1")
    run_dir = Path(run_dir)

    # Choose the learning rate
    selection = {}
    if rates:
        selection = select(recipe, run_dir, rates, device)
        optim = replace(recipe.optim, lr=best(selection))
        recipe = replace(recipe, optim=optim, data=replace(recipe.data, parts="final"))

    # The final runs
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
    """What a recipe reaches on held-out images at every learning rate, each a run in `run_dir`/select; None for one that fails.

    The test part is not looked at. Raises FloatingPointError when all rates diverge, ValueError for a recipe whose evaluator
    measures nothing that is better or worse.
    """
    recipe = replace(recipe, data=replace(recipe.data, parts="select"))
    rates = sorted(set(rates))
    try:
        rows = run_grid([_candidate(recipe, rate) for rate in rates], run_dir, device)
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
    """The best rate of those that were measured; of equal ones the lowest. Raises ValueError if none was."""
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
    """The run that says what a learning rate is worth."""
    return Cell(
        name=f"select/lr-{rate:g}",
        recipe=replace(recipe, optim=replace(recipe.optim, lr=rate)),
        settings={"lr": rate, "seed": recipe.seed},
        title=f"learning rate {rate:g} on held-out images",
    )


def _final(recipe: Recipe, seed: int) -> Cell:
    """The run of a seed, on everything but the test part."""
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
        values["mean"], values["std"] = outcome.mean()
    return values


def _named(metric: Metric | None) -> dict | None:
    """A metric as plain values, its name among them."""
    if metric is None:
        return None
    return {"metric": metric.name, **metric.to_json()}
