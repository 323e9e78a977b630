"""Two runs side by side: what they reached, in what their recipes differ, and their curves."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vitkit.evaluate import Metric
from vitkit.inspection.figures import Curve, Panel, plot
from vitkit.inspection.page import (
    bullets,
    columns,
    drawing,
    paragraph,
    section,
    table,
    write_page,
)
from vitkit.training.log import clock, read_metrics
from vitkit.training.report import metric_curve

MISSING = "-"  # in place of what only the other run has


@dataclass(frozen=True)
class Recorded:
    """What a run wrote down."""

    run_dir: Path
    recipe: dict
    """As recipe.json has it."""
    data: dict
    """As data.json has it."""
    lines: list[dict]
    """Of metrics.jsonl."""

    def points(self) -> dict[str, list[tuple[int, Metric]]]:
        """Every metric with the steps at which it was measured, but for what is neither good nor
        bad, such as counts; the metric by which runs are compared comes first."""
        points: dict[str, list[tuple[int, Metric]]] = {}
        for line in self.lines:
            if line.get("primary"):
                points.setdefault(line["primary"], [])
        for line in self.lines:
            for name, metric in line.get("metrics", {}).items():
                if metric.unit.better != "neither":
                    points.setdefault(name, []).append((line["step"], metric))
        return {name: of_name for name, of_name in points.items() if of_name}

    def steps(self) -> int:
        """The last step that was written down."""
        return max((line["step"] for line in self.lines), default=0)

    def seconds(self) -> float:
        """How long its steps took, without evaluations and checkpoints."""
        seconds = 0.0
        before = 0
        for line in self.lines:
            if line["event"] == "training" and line.get("images_per_second"):
                images = (line["step"] - before) * self.recipe["batch"]
                seconds += images / line["images_per_second"]
                before = line["step"]
        return seconds

    def measured_on(self) -> dict[str, str]:
        """The digests of the images that measured it, by part."""
        fingerprints = self.data.get("fingerprint", {})
        return {name: digest for name, digest in fingerprints.items() if name != "train"}


class Difference(NamedTuple):
    """A setting or a result that two runs do not share."""

    name: str
    first: str
    second: str


def is_run(path: str | Path) -> bool:
    """Whether a path is a run's directory."""
    return (Path(path) / "recipe.json").is_file()


def read_run(run_dir: Path) -> Recorded:
    """What a run wrote down. Raises ValueError for another directory, and for a run that has not
    begun to train."""
    try:
        recipe = json.loads((run_dir / "recipe.json").read_text("utf-8"))
        data = json.loads((run_dir / "data.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{run_dir} is no run: {error}") from error
    lines = read_metrics(run_dir / "metrics.jsonl")
    if not lines:
        raise ValueError(
            f"{run_dir} has no metrics.jsonl with a line in it: it has not trained yet"
        )
    return Recorded(run_dir, recipe, data, lines)


def settings(first: Recorded, second: Recorded) -> list[Difference]:
    """Every setting in which two recipes differ."""
    ours = _flat(first.recipe)
    theirs = _flat(second.recipe)
    differences = []
    for name in dict.fromkeys([*ours, *theirs]):
        texts = (_text(ours.get(name, MISSING)), _text(theirs.get(name, MISSING)))
        if texts[0] != texts[1]:
            differences.append(Difference(name, *texts))
    return differences


def results(first: Recorded, second: Recorded) -> list[Difference]:
    """What both reached: every metric at its last and, if it was better then, at its best
    evaluation; the length and the time."""
    rows = []
    ours = first.points()
    theirs = second.points()
    for name in dict.fromkeys([*ours, *theirs]):
        last = [_last(points.get(name, [])) for points in (ours, theirs)]
        rows.append(Difference(name, *last))
        best = [_best(points.get(name, [])) for points in (ours, theirs)]
        if best != [MISSING, MISSING]:
            rows.append(Difference(f"{name}, at its best", *best))
    rows.append(Difference("steps", f"{first.steps():,}", f"{second.steps():,}"))
    rows.append(Difference("time of the steps", clock(first.seconds()), clock(second.seconds())))
    return rows


def verdict(first: Recorded, second: Recorded) -> str:
    """A sentence about which run is better, by the metric that runs are compared by; it says if
    chance may explain the difference, or if they cannot be compared."""
    ours = first.points()
    theirs = second.points()
    name = next(iter(ours), "")
    if not name or name not in theirs:
        return "they were not measured by the same metric, so neither is better"
    if first.measured_on() != second.measured_on():
        return "they were measured on different images, so their results cannot be compared"
    a = ours[name][-1][1]
    b = theirs[name][-1][1]
    if a.unit != b.unit or a.value == b.value:
        return f"{name} is the same in both: {a.unit.text(a.value)}"
    better, worse = (first, second) if a.beats(b) else (second, first)
    sentence = f"{better.run_dir} is better than {worse.run_dir} by {name}"
    if (
        a.interval
        and b.interval
        and max(a.interval[0], b.interval[0]) <= min(a.interval[1], b.interval[1])
    ):
        sentence += (
            ", but their intervals overlap: with --against, vitkit evaluate says whether chance "
            "explains it"
        )
    return sentence


def write_comparison(path: Path, first: Recorded, second: Recorded) -> Path:
    """Write a page about two runs: results, curves, and settings; returns its path. Raises OSError,
    and ValueError for a file that vitkit did not write."""
    names = run_names(first, second)
    curves = [
        drawing(plot([panel]), f"{panel.title} of both runs, by step")
        for panel in _panels(first, second)
    ]
    different = settings(first, second)
    recipes = paragraph("There is none: the recipes are the same.")
    if different:
        recipes = table(different, ("setting", *names), wraps=True)
    blocks = [
        bullets([verdict(first, second)]),
        section("Results", table(results(first, second), ("metric", *names))),
        section("Curves", columns(*curves)),
        section("Settings that differ", recipes),
    ]
    return write_page(path, f"{names[0]} and {names[1]}", blocks)


def run_names(first: Recorded, second: Recorded) -> tuple[str, str]:
    """What to call two runs: their directories' names, or their paths if those are the same."""
    if first.run_dir.name != second.run_dir.name:
        return first.run_dir.name, second.run_dir.name
    return str(first.run_dir), str(second.run_dir)


def _panels(first: Recorded, second: Recorded) -> list[Panel]:
    """The training loss, and every metric that either of them has: a curve for each run."""
    names = run_names(first, second)
    losses = {}
    for name, run in zip(names, (first, second), strict=True):
        training = [line for line in run.lines if line["event"] == "training"]
        steps = [line["step"] for line in training]
        losses[name] = Curve(steps, [line["loss"] for line in training])
    panels = [Panel("training loss", "", losses)]

    points = (first.points(), second.points())
    for metric in dict.fromkeys([*points[0], *points[1]]):
        curves = {}
        for name, of_run in zip(names, points, strict=True):
            if metric in of_run:
                curves[name] = metric_curve(of_run[metric])
                unit = of_run[metric][0][1].unit
        panels.append(Panel(metric, unit.axis, curves))
    return panels


def _last(points: list[tuple[int, Metric]]) -> str:
    """The last of a metric's values, with its interval."""
    if not points:
        return MISSING
    return points[-1][1].text()


def _best(points: list[tuple[int, Metric]]) -> str:
    """The best of a metric's values and its step, if it is not the last one."""
    if not points:
        return MISSING
    best_step, best = points[-1]
    for step, metric in points:
        if not math.isnan(metric.value) and metric.beats(best):
            best_step, best = step, metric
    if best is points[-1][1]:
        return MISSING
    return f"{best.unit.text(best.value)} at step {best_step:,}"


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Every setting of a recipe by its whole name, such as "optim.lr"."""
    if isinstance(values, list) and values and isinstance(values[0], dict):
        values = dict(enumerate(values))
    if not isinstance(values, dict):
        return {prefix: values}
    flat = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}.{name}" if prefix else str(name))
    return flat


def _text(value: Any) -> str:
    """A setting's value as it would be typed."""
    if isinstance(value, list):
        return " ".join(map(_text, value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
