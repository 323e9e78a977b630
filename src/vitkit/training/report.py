"""report.html: what a run did, on one page that needs no other file."""

import json
import math
from pathlib import Path

from vitkit.evaluate import Metric, Unit
from vitkit.evaluate.report_page import metrics_table
from vitkit.inspection.figures import Curve, Panel, image_rows, plot
from vitkit.inspection.page import (
    Block,
    bullets,
    columns,
    drawing,
    pairs,
    paragraph,
    picture,
    preformatted,
    section,
    write_page,
)
from vitkit.training.log import last_metrics, read_metrics, to_line


def report(run_dir: Path | str) -> Path:
    """Write a run's report.html from what it has recorded: the last metrics, curves, pictures, data
    and recipe; returns its path."""
    # What the run has recorded
    run_dir = Path(run_dir)
    recipe = json.loads((run_dir / "recipe.json").read_text("utf-8"))
    data = json.loads((run_dir / "data.json").read_text("utf-8"))
    lines = read_metrics(run_dir / "metrics.jsonl")

    # What it reached
    curves = [drawing(plot([panel]), f"{panel.title} by step") for panel in _panels(lines)]
    blocks = [
        section("Last evaluation", metrics_table(list(last_metrics(run_dir).values()))),
        section("Curves", columns(*curves)),
    ]

    # What its objective sees and predicts
    pictures = run_dir / "pictures.safetensors"
    if pictures.exists():
        images = _columns(pictures)
        rows = picture(image_rows(images), ", ".join(images))
        blocks.append(section("What it sees, and makes of it", rows))

    # Its data, and what was wrong with some of them
    notes = [paragraph(note) for note in data["notes"]]
    blocks.append(section("Data", _counts(data), *notes))
    broken = []
    for of_part in data["skipped"].values():
        broken += [text for _, text in of_part]
    if broken:
        blocks.append(section("Images left out", bullets(broken)))

    # Its bad steps, if there were any, and its recipe
    events = [to_line(line) for line in lines if line["event"] in ("skipped", "rollback")]
    if events:
        blocks.append(section("Steps that were not finite", bullets(events)))
    blocks.append(section("Recipe, as it ran", preformatted(json.dumps(recipe, indent=1))))
    return write_page(run_dir / "report.html", recipe["name"], blocks)


def _panels(lines: list[dict]) -> list[Panel]:
    """A plot of the training loss, and one for each unit that metrics have; not of counts, which
    are neither better nor worse."""
    # The training loss
    training = [line for line in lines if line["event"] == "training"]
    steps = [line["step"] for line in training]
    loss = Curve(steps, [line["loss"] for line in training])
    panels = [Panel("training loss", "", {"": loss})]

    # The points of every metric, by its unit and its name
    by_unit: dict[Unit, dict[str, list[tuple[int, Metric]]]] = {}
    for line in lines:
        for name, metric in line.get("metrics", {}).items():
            if metric.unit.better != "neither":
                of_unit = by_unit.setdefault(metric.unit, {})
                of_unit.setdefault(name, []).append((line["step"], metric))

    # A panel for each unit
    for unit, of_unit in by_unit.items():
        curves = {name: metric_curve(points) for name, points in of_unit.items()}
        panels.append(Panel(f"held-out, {unit.name}", unit.axis, curves))
    return panels


def metric_curve(points: list[tuple[int, Metric]]) -> Curve:
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


def _columns(file: Path) -> dict:
    """An objective's pictures by title, uint8 (N, h, w, 3) each, in the order that it gave
    them."""
    from safetensors import safe_open

    with safe_open(file, "numpy") as opened:
        names = (opened.metadata() or {}).get("order", "").split(",")
        return {name: opened.get_tensor(name).transpose(0, 2, 3, 1) for name in names}


def _counts(data: dict) -> Block:
    """How many images of which part there were, and how many were left out."""
    values = {"source": data["source"], "classes": f"{len(data['labels']):,}"}
    values |= {name: f"{count:,} images" for name, count in data["counts"].items()}
    values |= {name: f"{count:,} images" for name, (count, _) in data["others"].items()}
    for name, broken in data["skipped"].items():
        values[f"left out of {name}"] = f"{len(broken):,} broken images"
    return pairs(values)
