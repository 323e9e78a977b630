"""The table of a suite, in the layout of the paper's Table 9: one row per task, then the means
over groups and over all tasks."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from vitkit.apps.suites.running import WAITING, Outcome
from vitkit.apps.suites.task import Task
from vitkit.evaluation import Metric

LOPSIDED = 0.1  # relative difference of an interval's two sides from which both are printed


class TableLine(NamedTuple):
    """A line of the table."""

    name: str
    """Name of the task, or of the tasks that are averaged."""
    group: str
    """Group of the task, or the averaged group."""
    values: tuple[Metric | None, ...]
    """One figure per column, None where there is none; empty for a task without a result."""
    is_mean: bool = False
    """Whether the line is a mean over tasks."""
    published: tuple[float, ...] = ()
    """Published accuracies of other models, in percent; empty for a suite without any."""


def columns(outcome: Outcome) -> list[str]:
    """The names of the columns: all metrics that any task has."""
    names: dict[str, None] = {}
    for by_column in outcome.metrics.values():
        for seeds in by_column:
            names[seeds[0].name] = None
    return list(names)


def lines(outcome: Outcome) -> list[TableLine]:
    """All lines of the table. A mean covers the tasks with a result; its name says how many they
    are unless all have one, and is the suite's only if `outcome.is_whole`."""
    suite = outcome.suite
    names = columns(outcome)
    table = []
    values: dict[Task, tuple[Metric | None, ...]] = {}
    for task in suite.tasks:
        line: tuple[Metric | None, ...] = ()
        if _is_empty(outcome, task.group):
            continue
        if task.name in outcome.metrics:
            by_name = {seeds[0].name: over_seeds(seeds) for seeds in outcome.metrics[task.name]}
            line = tuple(by_name.get(name) for name in names)
            values[task] = line
        table.append(TableLine(task.heading, task.group, line, published=task.published))

    # Groups, in order of appearance
    groups = list(dict.fromkeys(task.group for task in suite.tasks if task.group))
    for group in groups:
        members = suite.members(group)
        present = [values[task] for task in members if task in values]
        name = _mean_of(len(present), len(members))
        if _is_empty(outcome, group):
            name = f"all {len(members)}"
        independent = group not in suite.same_images
        beside = _published([task for task in members if task in values])
        table.append(TableLine(name, group, mean(present, independent), True, beside))

    # All tasks
    if not suite.averaged:
        return table
    name = _mean_of(len(values), len(suite.tasks))
    if outcome.is_whole:
        name = f"mean ({suite.name})"
    table.append(TableLine(name, "", mean(list(values.values())), True, _published(list(values))))
    return table


def _published(tasks: Sequence[Task]) -> tuple[float, ...]:
    """The mean of the published accuracies over these tasks; empty if a task has none."""
    figures = [task.published for task in tasks if task.published]
    if len(figures) < len(tasks):
        return ()
    return tuple(statistics.fmean(column) for column in zip(*figures, strict=True))


def _is_empty(outcome: Outcome, group: str) -> bool:
    """Whether a group of the same images has no result, so that one line represents all of its tasks."""
    if group not in outcome.suite.same_images:
        return False
    return not any(task.name in outcome.metrics for task in outcome.suite.members(group))


def _mean_of(present: int, all_tasks: int) -> str:
    """The name of a mean over the tasks that are present."""
    if present == all_tasks:
        return f"mean of {all_tasks}"
    return f"mean of {present} of {all_tasks}"


def over_seeds(metrics: Sequence[Metric]) -> Metric:
    """The mean over seeds with Student's interval; a single seed keeps its own interval."""
    first = metrics[0]
    if len(metrics) == 1:
        return first
    from scipy.stats import t

    values = [metric.value for metric in metrics]
    centre = statistics.fmean(values)
    spread = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return replace(first, value=centre, interval=_possible(first, centre - spread, centre + spread))


def mean(
    rows: Sequence[Sequence[Metric | None]], independent: bool = True
) -> tuple[Metric | None, ...]:
    """The unweighted mean over tasks in each column; None if a task has no such figure. Its
    interval is for these fixed tasks with other images: the squared errors of the tasks are added,
    separately for each side of the mean. Errors of tasks with the same images are not independent;
    then the errors themselves are added, which is an upper bound."""
    means: list[Metric | None] = []
    for column in zip(*rows, strict=True):
        if None in column:
            means.append(None)
            continue
        centre = statistics.fmean(metric.value for metric in column)
        interval = None
        if all(metric.interval is not None for metric in column):
            below = [metric.value - metric.interval[0] for metric in column]
            above = [metric.interval[1] - metric.value for metric in column]
            errors = (math.fsum(below), math.fsum(above))
            if independent:
                errors = (math.hypot(*below), math.hypot(*above))
            low = centre - errors[0] / len(column)
            high = centre + errors[1] / len(column)
            interval = _possible(column[0], low, high)
        means.append(replace(column[0], value=centre, interval=interval))
    return tuple(means)


def _possible(metric: Metric, low: float, high: float) -> tuple[float, float]:
    """An interval limited to possible values of the metric: a share is at most 1."""
    most = math.inf
    if metric.unit.name in ("share", "misfit"):
        most = 1.0
    return max(low, 0.0), min(high, most)


def cells(line: TableLine, count: int) -> list[str]:
    """The figures of a line as text, in `count` columns."""
    if not line.values:
        return ["–"] * count
    return [cell(metric) for metric in line.values]


def cell(metric: Metric | None) -> str:
    """A figure as text in percent: "72.4 ± 3.9", or "100.0 (72.2 to 100.0)" for an asymmetric
    interval; "" for None."""
    if metric is None:
        return ""
    scale = metric.unit.scale
    text = f"{metric.value * scale:.1f}"
    if metric.interval is None:
        return text
    low, high = metric.interval
    below = metric.value - low
    above = high - metric.value
    if abs(above - below) > LOPSIDED * (high - low):
        return f"{text} ({low * scale:.1f} to {high * scale:.1f})"
    return f"{text} ± {(high - low) / 2 * scale:.1f}"


def markdown(outcome: Outcome) -> str:
    """The table as Markdown, with the reasons for missing results."""
    names = columns(outcome)
    others = outcome.suite.published
    headings = [*names, *others]
    text = [f"| task | group | {' | '.join(headings)} |", "|---|---|" + "---|" * len(headings)]
    for line in lines(outcome):
        name = line.name
        if line.is_mean:
            name = f"**{name}**"
        figures = cells(line, len(names))
        figures += [f"{figure:.1f}" for figure in line.published] or [""] * len(others)
        text.append(f"| {name} | {line.group} | {' | '.join(figures)} |")
    remarks = [f"- {sentence}" for sentence in sentences(outcome)]
    if remarks:
        text += ["", *remarks]
    return "\n".join(text) + "\n"


def sentences(outcome: Outcome) -> list[str]:
    """Sentences about missing parts of the table, and about deviations from the suite."""
    texts = []
    if outcome.suite.published:
        texts.append(
            "the columns 'paper' of table.md are Table 9's figures of fine-tuned models; their means are "
            "over the same tasks"
        )
    if outcome.suite.remarks is not None:
        texts += outcome.suite.remarks(outcome)

    reasons = {}
    waiting = []
    for name, reason in outcome.reasons.items():
        if reason == WAITING:
            waiting.append(name)
        else:
            reasons[name] = reason
    texts += _grouped(reasons)
    if waiting:
        texts.append(f"not run yet: {', '.join(waiting)}")
    texts += _grouped(outcome.deviations)
    if not outcome.suite.averaged:
        return texts
    if not outcome.is_whole and len(outcome.metrics) == len(outcome.suite.tasks):
        texts.append(f"so the mean is not called {outcome.suite.name}")
    return texts


def _grouped(texts: dict[str, str]) -> list[str]:
    """One sentence per text, with the names of all tasks that share it."""
    names: dict[str, list[str]] = {}
    for name, text in texts.items():
        names.setdefault(text, []).append(name)
    return [f"{', '.join(several)}: {text}" for text, several in names.items()]
