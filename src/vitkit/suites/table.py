"""The table of a suite, in the layout of the paper's Table 9: a row for each task, then the means
over groups and over all tasks."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from vitkit.evaluate import Metric
from vitkit.suites.run import WAITING, Outcome
from vitkit.suites.task import Task

LOPSIDED = 0.1  # of an interval's width, from which its two sides are not printed as one


class Line(NamedTuple):
    """A line of the table."""

    name: str
    """The task, or what a mean is over."""
    group: str
    """The group of a task, or that a mean is over."""
    values: tuple[Metric, ...]
    """An accuracy for each column; none for a task without a result."""
    is_mean: bool = False
    """Whether it is a mean over tasks."""


def columns(outcome: Outcome) -> list[str]:
    """What the columns hold: names of accuracies."""
    for by_column in outcome.metrics.values():
        return [seeds[0].name for seeds in by_column]
    return []


def lines(outcome: Outcome) -> list[Line]:
    """All lines. A mean is over the tasks that have a result, and says how many they are unless all
    have one; it has the suite's name only if `outcome.is_whole`."""
    suite = outcome.suite
    table = []
    values: dict[Task, tuple[Metric, ...]] = {}
    for task in suite.tasks:
        line = ()
        if task.name in outcome.metrics:
            line = tuple(over_seeds(seeds) for seeds in outcome.metrics[task.name])
            values[task] = line
        table.append(Line(task.heading, task.group, line))

    # Groups, in the order in which they come
    groups = list(dict.fromkeys(task.group for task in suite.tasks if task.group))
    for group in groups:
        members = [task for task in suite.tasks if task.group == group]
        present = [values[task] for task in members if task in values]
        name = _mean_of(len(present), len(members))
        table.append(Line(name, group, mean(present), True))

    # All tasks
    name = _mean_of(len(values), len(suite.tasks))
    if outcome.is_whole:
        name = f"mean ({suite.name})"
    table.append(Line(name, "", mean(list(values.values())), True))
    return table


def _mean_of(present: int, all_tasks: int) -> str:
    """What a mean over the tasks that are present is called."""
    if present == all_tasks:
        return f"mean of {all_tasks}"
    return f"mean of {present} of {all_tasks}"


def over_seeds(metrics: Sequence[Metric]) -> Metric:
    """The mean over seeds. Their interval is Student's; that of a single seed is its own."""
    first = metrics[0]
    if len(metrics) == 1:
        return first
    from scipy.stats import t

    values = [metric.value for metric in metrics]
    centre = statistics.fmean(values)
    spread = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    interval = (max(centre - spread, 0.0), min(centre + spread, 1.0))
    return Metric(first.name, centre, first.unit, interval)


def mean(rows: Sequence[Sequence[Metric]]) -> tuple[Metric, ...]:
    """The unweighted mean over tasks in each column. Its interval is of these very tasks, with other
    images: the squares of the tasks' errors add up, on each side of the mean."""
    means = []
    for column in zip(*rows, strict=True):
        first = column[0]
        centre = statistics.fmean(metric.value for metric in column)
        interval = None
        if all(metric.interval is not None for metric in column):
            below = [metric.value - metric.interval[0] for metric in column]
            above = [metric.interval[1] - metric.value for metric in column]
            low = centre - math.hypot(*below) / len(column)
            high = centre + math.hypot(*above) / len(column)
            interval = (max(low, 0.0), min(high, 1.0))
        means.append(Metric(first.name, centre, first.unit, interval))
    return tuple(means)


def cell(metric: Metric) -> str:
    """An accuracy as the table has it: "72.4 ± 3.9", in percent; "100.0 (72.2 to 100.0)" if the
    interval reaches farther on one side."""
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
    """The table as Markdown, with the reasons for what it lacks."""
    names = columns(outcome)
    text = [f"| task | group | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    for line in lines(outcome):
        cells = [cell(metric) for metric in line.values] or ["–"] * len(names)
        name = line.name
        if line.is_mean:
            name = f"**{name}**"
        text.append(f"| {name} | {line.group} | {' | '.join(cells)} |")
    remarks = [f"- {sentence}" for sentence in sentences(outcome)]
    if remarks:
        text += ["", *remarks]
    return "\n".join(text) + "\n"


def sentences(outcome: Outcome) -> list[str]:
    """What the table lacks, and in what it is not the suite's."""
    texts = []
    waiting = []
    for name, reason in outcome.reasons.items():
        if reason == WAITING:
            waiting.append(name)
        else:
            texts.append(f"{name}: {reason}")
    if waiting:
        texts.append(f"not run yet: {', '.join(waiting)}")
    texts += [f"{name}: {text}" for name, text in outcome.deviations.items()]
    if not outcome.is_whole and len(outcome.metrics) == len(outcome.suite.tasks):
        texts.append(f"so the mean is not called {outcome.suite.name}")
    return texts
