"""Comparisons of runs: results, differences of their recipes, and curves; the curves of a single run; and the
answers of two runs to the images that both held out."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.evaluation import (
    SHARE,
    Metric,
    Unit,
    agreement,
    exchanged,
    groups_if_any,
    in_groups,
    read_answers,
    test_of,
)
from vitkit.inspection import (
    Curve,
    Panel,
    bullets,
    columns,
    drawing,
    paragraph,
    plot,
    section,
    table,
    write_page,
)
from vitkit.system.console.text import counted
from vitkit.training.evaluation import ANSWERS
from vitkit.training.record.history import Recorded, run_names
from vitkit.training.record.values import as_typed, flat
from vitkit.training.reports.answers import check_answered, open_part

MISSING = "-"  # replaces a value that only other runs have
# Values of training lines that are drawn: title, axis, and factor
TRAINING = {
    "loss": ("training loss", "", 1),
    "lr": ("learning rate", "", 1),
    "norm": ("gradient norm", "", 1),
    "data_wait": ("waiting for data", "share of the time, %", 100),
}


class ComparisonRow(NamedTuple):
    """A row of a comparison: a setting or a result of each run."""

    name: str
    values: tuple[str, ...]
    """The value of each run, as text."""


def settings(runs: Sequence[Recorded]) -> list[ComparisonRow]:
    """The settings in which the recipes of runs differ."""
    recipes = [flat(run.recipe) for run in runs]
    rows = []
    for name in _names(recipes):
        values = tuple(as_typed(recipe.get(name, MISSING)) for recipe in recipes)
        if len(set(values)) > 1:
            rows.append(ComparisonRow(name, values))
    return rows


def results(runs: Sequence[Recorded]) -> list[ComparisonRow]:
    """The results of runs: every metric at its last evaluation, and at its best one if that was better; and the
    cost of each run."""
    rows = []
    measured = [run.points() for run in runs]
    for name in _names(measured):
        last = []
        best = []
        for points in measured:
            of_last, of_best = _last_and_best(points.get(name, []))
            last.append(of_last)
            best.append(of_best)
        rows.append(ComparisonRow(name, tuple(last)))
        if set(best) != {MISSING}:
            rows.append(ComparisonRow(f"{name}, at its best", tuple(best)))
    costs = [run.cost() for run in runs]
    for name in _names(costs):
        rows.append(ComparisonRow(name, tuple(cost.get(name, MISSING) for cost in costs)))
    return rows


def verdict(runs: Sequence[Recorded]) -> str:
    """A sentence about which run is best by the primary metric; it says if chance may explain the difference,
    or if the runs cannot be compared."""
    none = "neither" if len(runs) == 2 else "none"
    measured = [run.points() for run in runs]
    name = next(iter(measured[0]), "")
    if not name or any(name not in points for points in measured):
        return f"they were not measured by the same metric, so {none} is better"
    if any(run.measured_on() != runs[0].measured_on() for run in runs):
        return (
            "the results in the table were measured on different images, each run's own test part, so "
            f"by them {none} is better"
        )
    reached = [points[name][-1][1] for points in measured]
    first = reached[0]
    if any(metric.unit != first.unit for metric in reached):
        return f"their {name} has different units, so {none} is better"
    if all(metric.value == first.value for metric in reached):
        return f"{name} is the same in all: {first.unit.text(first.value)}"

    # Find the best run, and the others that may be as good
    best = 0
    for i, metric in enumerate(reached):
        if metric.beats(reached[best]):
            best = i
    winner = runs[best].run_dir
    sentence = f"{winner} is best by {name}"
    if len(runs) == 2:
        sentence = f"{winner} is better than {runs[1 - best].run_dir} by {name}"
    near = []
    best_interval = reached[best].interval
    for i, metric in enumerate(reached):
        if i != best and metric.interval and best_interval:
            low, high = metric.interval
            best_low, best_high = best_interval
            if max(low, best_low) <= min(high, best_high):  # the intervals overlap
                near.append(str(runs[i].run_dir))
    if near:
        whose = "their intervals overlap"
        if len(runs) > 2:
            whose = f"its interval overlaps with that of {', '.join(near)}"
        sentence += f", but {whose}: vitkit evaluate with --against tests the difference"
    return sentence


def write_comparison(path: Path, runs: Sequence[Recorded], notes: Sequence[str] = ()) -> Path:
    """Write a page that compares runs: results, curves, and settings; returns its path. notes: sentences at its
    beginning. Raises OSError, and VitkitError for a file that vitkit did not write."""
    names = run_names(runs)
    by_name = dict(zip(names, runs, strict=True))
    curves = []
    for panel in [*training_panels(by_name), *metric_panels(by_name)]:
        curves.append(drawing(plot([panel]), f"{panel.title} of the runs, by step"))
    different = settings(runs)
    recipes = paragraph("None: the recipes are equal.")
    if different:
        recipes = table(_cells(different), ("setting", *names), wraps=True)
    blocks = [
        bullets([*notes, verdict(runs)]),
        section("Results", table(_cells(results(runs)), ("metric", *names))),
    ]
    if curves:
        blocks.append(section("Curves", columns(*curves)))
    blocks += [
        section("Settings that differ", recipes),
    ]
    title = f"{', '.join(names[:-1])} and {names[-1]}"
    return write_page(path, title, blocks)


def _cells(rows: Sequence[ComparisonRow]) -> list[tuple[str, ...]]:
    return [(row.name, *row.values) for row in rows]


def _names(values: Iterable[Mapping[str, object]]) -> list[str]:
    """The keys of all mappings, each once, in order of appearance."""
    names: dict[str, None] = {}
    for each in values:
        names |= dict.fromkeys(each)
    return list(names)


def _last_and_best(points: Sequence[tuple[int, Metric]]) -> tuple[str, str]:
    """The last value of a metric with its interval, as text; and the best one with its step, if that is
    better."""
    if not points:
        return MISSING, MISSING
    last = points[-1][1]
    best = last
    best_step = 0
    for step, metric in points:
        if not math.isnan(metric.value) and metric.beats(best):
            best = metric
            best_step = step
    if best is last:
        return last.text(), MISSING
    return last.text(), f"{best.unit.text(best.value)} at step {best_step:,}"


# Curves


def training_panels(runs: Mapping[str, Recorded]) -> list[Panel]:
    """Panels of loss, learning rate, gradient norm and waiting for data by step, each with a curve for each
    run, by its name. The name of a single run should be ""."""
    panels = []
    for name, (title, axis, scale) in TRAINING.items():
        curves = {}
        for run_name, run in runs.items():
            lines = [line for line in run.lines if line["event"] == "training"]
            points = [(line["step"], line[name] * scale) for line in lines if name in line]
            if points:  # quick runs have none
                curves[run_name] = Curve([x for x, _ in points], [y for _, y in points])
        if curves:
            panels.append(Panel(title, axis, curves))
    return panels


def unit_panels(run: Recorded) -> list[Panel]:
    """The metrics of one run: a panel for each unit, with a curve for each metric. Metrics without a better
    direction, such as counts, are left out."""
    by_unit: dict[Unit, dict[str, Curve]] = {}
    for name, points in run.points().items():
        unit = points[0][1].unit
        by_unit.setdefault(unit, {})[name] = metric_curve(points)
    return [Panel(f"held-out, {unit.name}", unit.axis, curves) for unit, curves in by_unit.items()]


def metric_panels(runs: Mapping[str, Recorded]) -> list[Panel]:
    """The metrics of several runs: a panel for each metric, with a curve for each run. Metrics that no run has
    measured twice are left out."""
    points = {name: run.points() for name, run in runs.items()}
    panels = []
    for metric in _names(points.values()):
        curves = {}
        for name, of_run in points.items():
            if metric in of_run:
                curves[name] = metric_curve(of_run[metric])
                unit = of_run[metric][0][1].unit
        if any(len(curve.x) > 1 for curve in curves.values()):
            panels.append(Panel(metric, unit.axis, curves))
    return panels


def metric_curve(points: Sequence[tuple[int, Metric]]) -> Curve:
    """The curve of a metric by step, with its intervals if it has any."""
    steps = []
    values = []
    lows = []
    highs = []
    for step, metric in points:
        scale = metric.unit.scale  # a share is drawn in percent
        low, high = metric.interval or (math.nan, math.nan)
        steps.append(step)
        values.append(metric.value * scale)
        lows.append(low * scale)
        highs.append(high * scale)
    if all(map(math.isnan, lows)):  # the metric has no intervals
        return Curve(steps, values)
    return Curve(steps, values, lows, highs)


# Two runs on the images that both held out


class Common(NamedTuple):
    """The answers of two runs to the same images."""

    first: np.ndarray
    """Whether the first run's answer is right: bool (N,)."""
    second: np.ndarray
    """Whether the second run's answer is right: bool (N,)."""
    groups: np.ndarray | None = None
    """The number of each image's group: int64 (N,). None if all images are independent."""

    def sentence(self, first: str, second: str) -> str:
        """A sentence about the accuracies of both, and the test of their difference. first and second: the
        names of the runs."""
        _, only_first, only_second, _ = agreement(self.first, self.second)
        p = exchanged(self.first, self.second, self.groups)
        test = test_of(groups_if_any(len(self.first), self.groups))
        return (
            f"on the {counted(len(self.first), 'image')} that both held out {first} is right on "
            f"{SHARE.text(self.first.mean())}, {second} on {SHARE.text(self.second.mean())}; {first} alone "
            f"on {only_first:,}, {second} alone on {only_second:,} ({test}, p = {p:.2g})"
        )


def common_answers(first: Recorded, second: Recorded) -> Common | None:
    """The answers of two runs to the images that neither has learned from; None if there is no such image, or
    if one run has kept no answers. Images are compared by the content of their files.

    Raises VitkitError if images have changed since the runs; OSError.
    """
    right_of = []
    group_of: dict[bytes, int] = {}
    for run in (first, second):
        kept = read_answers(run.run_dir / ANSWERS)
        if kept is None:
            return None
        source = open_part(run, kept.part)
        check_answered(kept, source)
        given = in_groups(kept.answers, source)
        rights = {}
        groups = {}
        for row, index in enumerate(given.indices.tolist()):
            data, _ = source[index]
            if isinstance(data, np.ndarray):
                data = data.tobytes()
            digest = hashlib.sha256(data).digest()
            rights[digest] = bool(given.right[row])
            if given.groups is not None:
                groups[digest] = int(given.groups[row])
        right_of.append(rights)
        group_of = group_of or groups  # the groups of the first run that has any
    common = sorted(right_of[0].keys() & right_of[1].keys())
    if not common:
        return None
    own, others = (np.array([rights[digest] for digest in common]) for rights in right_of)
    if not group_of.keys() >= set(common):
        return Common(own, others)
    return Common(own, others, np.array([group_of[digest] for digest in common]))
