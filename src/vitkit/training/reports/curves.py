"""The curves of one run, or of several beside each other, as panels to plot."""

import math
from collections.abc import Mapping, Sequence

from vitkit.evaluation import Metric, Unit
from vitkit.inspection import Curve, Panel
from vitkit.training.record.reading import Recorded

# What each line about the training holds: its title, its axis, and how much larger it is drawn
TRAINING = {
    "loss": ("training loss", "", 1),
    "lr": ("learning rate", "", 1),
    "norm": ("gradient norm", "", 1),
    "data_wait": ("waiting for data", "share of the time, %", 100),
}


def training_panels(runs: Mapping[str, Recorded]) -> list[Panel]:
    """Loss, learning rate, gradient norm and waiting for data by step: in each panel a curve for
    each run, by what it is called. One run alone is best called ""."""
    panels = []
    for name, (title, axis, scale) in TRAINING.items():
        curves = {}
        for run_name, run in runs.items():
            lines = [line for line in run.lines if line["event"] == "training"]
            points = [(line["step"], line[name] * scale) for line in lines if name in line]
            curves[run_name] = Curve([x for x, _ in points], [y for _, y in points])
        panels.append(Panel(title, axis, curves))
    return panels


def unit_panels(run: Recorded) -> list[Panel]:
    """What was measured of one run: a panel for each unit, with a curve for each metric; none of
    counts, which are neither better nor worse."""
    by_unit: dict[Unit, dict[str, Curve]] = {}
    for name, points in run.points().items():
        unit = points[0][1].unit
        by_unit.setdefault(unit, {})[name] = metric_curve(points)
    return [Panel(f"held-out, {unit.name}", unit.axis, curves) for unit, curves in by_unit.items()]


def metric_panels(runs: Mapping[str, Recorded]) -> list[Panel]:
    """What was measured of several runs: a panel for each metric that any has, with a curve for each
    run."""
    points = {name: run.points() for name, run in runs.items()}
    panels = []
    for metric in dict.fromkeys(name for of_run in points.values() for name in of_run):
        curves = {}
        for name, of_run in points.items():
            if metric in of_run:
                curves[name] = metric_curve(of_run[metric])
                unit = of_run[metric][0][1].unit
        panels.append(Panel(metric, unit.axis, curves))
    return panels


def metric_curve(points: Sequence[tuple[int, Metric]]) -> Curve:
    """A metric at the steps where it was measured, with its intervals, if it has any."""
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
    if all(map(math.isnan, lows)):  # no metric of this name has an interval
        return Curve(steps, values)
    return Curve(steps, values, lows, highs)
