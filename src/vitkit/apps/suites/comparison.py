"""Comparison of several models on one suite: the means over the groups of its tasks, as in the paper's
Figure 2."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitkit.apps.suites.running import Outcome
from vitkit.apps.suites.table import TableLine, cell, columns, lines
from vitkit.apps.suites.task import Suite
from vitkit.evaluation import SHARE, Metric
from vitkit.system.errors import BadSettings

RUNS = 3  # number of runs behind the paper's standard deviations (Table 2)
BAR = 0.3  # width of a bar, inches
GAP = 1.2  # space between two rows of the table, in bars
LEAST_WIDTH = 5.5  # smallest width of the figure for the legend, inches
GREYS = ("0.45", "0.62", "0.79")  # colours of published models, of which there are three


@dataclass(frozen=True)
class ComparedRow:
    """A mean over the tasks of a group, or over all tasks; or a task without a group."""

    name: str
    """Name of the task, or of the tasks that are averaged."""
    group: str
    """The group; "" for all tasks, and for a task without a group."""
    values: tuple[Metric | None, ...]
    """The figure of each model; None for a model without one."""


@dataclass(frozen=True)
class SuiteComparison:
    """Several models on the tasks for which all of them have a result."""

    suite: Suite
    """The suite with all of its tasks."""
    metric: str
    """Name of the compared metric: the first one of a task."""
    models: tuple[str, ...]
    """The columns: the measured models, then those with published figures."""
    rows: tuple[ComparedRow, ...]
    """The mean over all tasks, the tasks without a group, then the mean over each group."""
    sentences: tuple[str, ...]
    """Notes for the reader."""


def compare_models(outcomes: Mapping[str, Outcome]) -> SuiteComparison:
    """Compare models, by name, on the tasks for which all of them have a result.

    Raises VitkitError if there is no such task.
    """
    suite = next(iter(outcomes.values())).suite
    common = []
    for task in suite.tasks:
        if all(task.name in outcome.metrics for outcome in outcomes.values()):
            common.append(task.name)
    if not common:
        raise BadSettings(
            f"no task has a result of each of {', '.join(outcomes)}, so they cannot be compared; run "
            "the missing tasks first"
        )

    # All tables have the same lines; the mean carries the suite's name only if the suite is complete
    tables = []
    for outcome in sorted(outcomes.values(), key=lambda outcome: outcome.is_whole):
        tables.append(lines(_restricted_to(common, outcome)))
    headings = tables[0]
    tables = [lines(_restricted_to(common, outcome)) for outcome in outcomes.values()]

    overall = []
    tasks = []
    groups = []
    for heading, *same in zip(headings, *tables, strict=True):
        if not heading.values or (heading.group and not heading.is_mean):
            continue
        is_all = heading.is_mean and not heading.group
        values = [line.values[0] for line in same]
        values += _published(heading, suite, is_all and len(common) == len(suite.tasks))
        row = ComparedRow(heading.name, heading.group, tuple(values))
        if heading.group:
            groups.append(row)
        elif is_all:
            overall.append(row)
        else:
            tasks.append(row)
    return SuiteComparison(
        suite,
        columns(_restricted_to(common, next(iter(outcomes.values()))))[0],
        (*outcomes, *suite.published),
        (*overall, *tasks, *groups),
        tuple(_sentences(outcomes, common)),
    )


def _restricted_to(tasks: Sequence[str], outcome: Outcome) -> Outcome:
    """The outcome with only some tasks, and only the first metric of each."""
    first = {name: outcome.metrics[name][:1] for name in tasks}
    return replace(outcome, metrics=first)


def _published(line: TableLine, suite: Suite, is_whole: bool) -> list[Metric | None]:
    """The published figures for a line. Only those over the whole suite have an interval:
    Student's, as for several seeds, from the standard deviation of the paper's three runs."""
    if not line.published:
        return [None] * len(suite.published)
    from scipy.stats import t

    metrics: list[Metric | None] = []
    for number, percent in enumerate(line.published):
        interval = None
        if is_whole and suite.published_deviations:
            deviation = suite.published_deviations[number]
            half = t.ppf(0.975, RUNS - 1) * deviation / math.sqrt(RUNS)
            interval = ((percent - half) / 100, (percent + half) / 100)
        metrics.append(Metric(suite.published[number], percent / 100, SHARE, interval))
    return metrics


def _sentences(outcomes: Mapping[str, Outcome], common: Sequence[str]) -> list[str]:
    """Notes on what the means cover, and on their intervals."""
    suite = next(iter(outcomes.values())).suite
    texts = []
    left_out = []
    for task in suite.tasks:
        has_result = any(task.name in outcome.metrics for outcome in outcomes.values())
        if has_result and task.name not in common:
            left_out.append(task.heading)
    if left_out:
        texts.append(f"left out, because not all models have a result: {', '.join(left_out)}")
    texts.append(
        "the models answered the same test images, so a difference between two of them may be surer than "
        "their intervals show: evaluate with `against` compares two image by image"
    )
    if suite.published:
        texts.append(
            "the columns 'paper' are means of Table 9, of fine-tuned models, over the same tasks; their "
            "intervals are those of the three runs of Table 2"
        )
    return texts


def comparison_markdown(comparison: SuiteComparison) -> str:
    """The comparison as a table in Markdown, with its sentences."""
    head = ["", "group", *comparison.models]
    text = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in comparison.rows:
        figures = [cell(metric) for metric in row.values]
        text.append(f"| {row.name} | {row.group} | {' | '.join(figures)} |")
    text += ["", f"- {comparison.metric}, in percent"]
    text += [f"- {sentence}" for sentence in comparison.sentences]
    return "\n".join(text) + "\n"


def draw_comparison(comparison: SuiteComparison) -> Figure:
    """Figure 2: bars with 95 % intervals, grouped by row, one per model; published models are
    grey."""
    count = len(comparison.models)
    step = count + GAP  # distance of two rows, in bars
    width = max(BAR * step * len(comparison.rows) + 0.8, LEAST_WIDTH)
    figure = Figure(figsize=(width, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
    measured = count - len(comparison.suite.published)
    for number, name in enumerate(comparison.models):
        colour = f"C{number}"
        if number >= measured:
            colour = GREYS[number - measured]
        xs = [row * step + number for row in range(len(comparison.rows))]
        _draw_bars(axes, xs, [row.values[number] for row in comparison.rows], name, colour)
    places = [row * step + (count - 1) / 2 for row in range(len(comparison.rows))]
    axes.set_xticks(places, [_tick(row) for row in comparison.rows], fontsize=8)
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(0, 112)  # leaves space for the number above a bar
    axes.set_yticks(range(0, 101, 20))
    axes.set_ylabel(f"{comparison.metric}, {SHARE.axis}")
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=8)
    return figure


def _draw_bars(
    axes: Axes, xs: Sequence[float], metrics: Sequence[Metric | None], name: str, colour: str
) -> None:
    """Draw the bars of one model with their intervals and numbers; none where it has no figure."""
    there = [(x, metric) for x, metric in zip(xs, metrics, strict=True) if metric is not None]
    heights = [SHARE.scale * metric.value for _, metric in there]
    axes.bar([x for x, _ in there], heights, 0.9, color=colour, label=name)
    for (x, metric), height in zip(there, heights, strict=True):
        top = height
        if metric.interval is not None:
            low, top = (SHARE.scale * end for end in metric.interval)
            ends = [[height - low], [top - height]]
            axes.errorbar([x], [height], ends, fmt="none", ecolor="black", capsize=2)
        text = f"{height:.1f}"
        axes.text(x, top + 1.5, text, rotation=90, ha="center", va="bottom", fontsize=7)


def _tick(row: ComparedRow) -> str:
    """The axis label of a row."""
    if not row.group:
        return row.name
    return f"{row.group}\n{row.name}"
