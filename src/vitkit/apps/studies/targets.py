"""Transfer within a study: every run is fine-tuned on target data sets, and the runs are compared
by their accuracy there, as in Tables 5 and 6 and in Figures 3 and 5."""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vitkit.apps.studies.base import for_steps, on_other_images
from vitkit.apps.studies.protocol import Ask, Results
from vitkit.apps.studies.uncertainty import Runs
from vitkit.evaluation import Metric
from vitkit.recipes import Optim, Recipe
from vitkit.system.errors import BadSettings
from vitkit.system.span import Span
from vitkit.training import Cell, run_name

RATE = 0.03  # learning rate of fine-tuning by SGD, one of those of Table 4


def data_name(source: str) -> str:
    """The name of a data set in tables and folders, which is also the name of a run on it. For "."
    it is the name of the current folder."""
    return run_name(source, "")


def check_names(sources: Sequence[str], kind: str) -> None:
    """Raises VitkitError if two data sets have the same name."""
    by_name: dict[str, str] = {}
    for source in sources:
        name = data_name(source)
        if name in by_name:
            raise BadSettings(
                f"two {kind} are called {name!r}, {by_name[name]} and {source}; names in the "
                "table must differ: leave one out, or rename it"
            )
        by_name[name] = source


def check_targets(ask: Ask) -> None:
    """Raises VitkitError for targets with the same name, and for two metrics that would compare the
    runs."""
    check_names(ask.targets, "targets")
    if ask.targets and ask.fewshot:
        raise BadSettings(
            "`targets` compares runs by their accuracy after fine-tuning, and `fewshot` by 5-shot "
            "accuracy; leave one of them out"
        )


def fine_tuning(recipe: Recipe, target: str, steps: int, pretrained: Path | None = None) -> Recipe:
    """A run on a target, half as long as the pre-training of `steps` steps: by SGD, as in Table 4,
    from the pre-trained run in a directory; without one from scratch, with the optimiser of the
    pre-training."""
    tuned = for_steps(on_other_images(recipe, target), max(steps // 2, 1))
    if pretrained is None:
        return tuned
    optim = Optim("sgd", lr=RATE, warmup=Span(tuned.length.n // 10))
    return replace(tuned, optim=optim, init=str(pretrained))


def on_every_target(
    cell: Cell, recipe: Recipe, targets: Sequence[str], steps: int, study_dir: Path
) -> list[Cell]:
    """The fine-tuning runs from the model of a cell, one per target, with the cell's seed.

    recipe: the cell's recipe on all of its images, whose model and batch size are used.
    """
    folder, _, last = cell.name.rpartition("/")
    grid = []
    for target in targets:
        name = data_name(target)
        tuned = fine_tuning(recipe, target, steps, study_dir / cell.name)
        tuned = replace(tuned, seed=int(cell.settings["seed"]))
        settings = cell.settings | {"target": name}
        grid.append(Cell(f"{folder}/on-{name}/{last}", tuned, settings, after=cell.name))
    return grid


def by_target(results: Results, *names: str) -> dict[str, Runs]:
    """The values by settings and seed, for each target; with several targets, their average comes first.
    Without targets, the values of the runs themselves, under ""."""
    if not results.ask.targets:
        return {"": results.by_seed(*names)}
    on_each: dict[str, Runs] = {}
    for source in results.ask.targets:
        name = data_name(source)
        on_each[name] = results.by_seed(*names, target=name)
    if len(on_each) == 1:
        return on_each
    average = _average(list(on_each.values()))
    return {f"average of {len(on_each)}": average, **on_each}  # names of targets have no spaces


def _average(on_each: Sequence[Runs]) -> dict[tuple, dict[int, Metric]]:
    """The mean over the targets, for runs that have ended on all of them."""
    averages: dict[tuple, dict[int, Metric]] = {}
    for setting, by_seed in on_each[0].items():
        for seed, first in by_seed.items():
            metrics = []
            for runs in on_each:
                metric = runs.get(setting, {}).get(seed)
                if metric is not None:
                    metrics.append(metric)
            if len(metrics) == len(on_each):
                value = statistics.fmean(metric.value for metric in metrics)
                average = replace(first, value=value, interval=None)
                averages.setdefault(setting, {})[seed] = average
    return averages
