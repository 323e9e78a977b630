"""The paper's transfer protocol (Section 4.1, App. B.1.1): choose a learning rate on held-out images, then train on everything
and test, with several seeds. Every run has a directory of its own, so a protocol that was interrupted goes on where it was.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from vitkit.system.files import write_json
from vitkit.system.ranks import on_rank_0
from vitkit.train import Recipe, last_metrics, train


class Transfer(NamedTuple):
    """What a protocol found."""

    lr: float
    """The learning rate of the final runs."""
    selection: dict[float, float]
    """Held-out top-1 of every rate that was tried, empty where none was."""
    runs: dict[int, dict[str, float]]
    """Metrics of the final runs by seed."""

    def metric(self) -> str:
        """The measure that the final runs are compared by: top-1 on the last part that they evaluate, empty without one."""
        names = [name for name in next(iter(self.runs.values())) if name.endswith("/top1")]
        return names[-1] if names else ""

    def mean(self) -> tuple[float, float]:
        """Mean of that measure over the seeds, and the sample standard deviation (0 for one seed)."""
        values = [metrics[self.metric()] for metrics in self.runs.values()]
        return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def transfer(
    recipe: Recipe,
    workdir: Path | str,
    rates: Sequence[float] = (),
    seeds: int = 1,
    device: str = "auto",
) -> Transfer:
    """Run a recipe for `seeds` seeds, the recipe's own first and in `workdir` itself, the others in `workdir`/seed-N.

    With `rates`, the learning rate is chosen first, by `select`, and the final runs train on all but the test part. The
    outcome is kept in `workdir`/transfer.json. Raises ValueError, Interrupted and what else `train` raises.
    """
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; it is the number of final runs, at least 1")
    workdir, chosen = Path(workdir), {}
    if rates:
        chosen = select(recipe, workdir / "select", rates, device)
        recipe = replace(
            recipe,
            optim=replace(recipe.optim, lr=best(chosen)),
            data=replace(recipe.data, parts="final"),
        )
    places = {
        recipe.seed + i: workdir / f"seed-{recipe.seed + i}" if i else workdir for i in range(seeds)
    }
    runs = {}
    for seed, place in places.items():
        train(replace(recipe, seed=seed), place, device)
        runs[seed] = last_metrics(place)
    found = Transfer(recipe.optim.lr, chosen, runs)
    kept = {
        "lr": found.lr,
        "selection": {f"{rate:g}": value for rate, value in chosen.items()},
        "runs": runs,
    }
    kept |= {"metric": found.metric()} | (
        dict(zip(("mean", "std"), found.mean(), strict=True)) if found.metric() else {}
    )
    if on_rank_0():
        write_json(workdir / "transfer.json", kept)
    return found


def select(
    recipe: Recipe, workdir: Path, rates: Sequence[float], device: str = "auto"
) -> dict[float, float]:
    """Held-out top-1 of a recipe at every learning rate, each in a run of its own; 0 for one that diverges.

    The test part is not looked at. Raises ValueError for an objective without accuracy, FloatingPointError when all rates
    diverge.
    """
    if not recipe.objective.labelled:
        raise ValueError(
            f"a learning rate is selected by accuracy, which {type(recipe.objective).__name__} does not learn"
        )
    found, diverged, console = {}, [], Console(quiet=not on_rank_0())
    for rate in sorted(set(rates)):
        console.print(
            f"learning rate {rate:g} on held-out images ({len(found) + 1} of {len(set(rates))})",
            highlight=False,
        )
        one = replace(
            recipe, optim=replace(recipe.optim, lr=rate), data=replace(recipe.data, parts="select")
        )
        place = workdir / f"lr-{rate:g}"
        try:
            train(one, place, device)
            found[rate] = last_metrics(place)["val/top1"]
        except FloatingPointError as error:
            console.print(
                f"learning rate {rate:g} is too high, and counts as 0 %: {error}", highlight=False
            )
            found[rate] = 0.0
            diverged.append(rate)
    if len(diverged) == len(found):
        raise FloatingPointError(
            f"no learning rate of {', '.join(f'{rate:g}' for rate in found)} works; try lower --rates"
        )
    return found


def best(found: dict[float, float]) -> float:
    """The rate with the highest accuracy; of equal ones the lowest."""
    return max(sorted(found), key=found.get)
