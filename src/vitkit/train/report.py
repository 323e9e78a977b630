"""report.html: what a run did, on one page that needs nothing else."""

import json
import math
from pathlib import Path

from vitkit.evaluate import Metric
from vitkit.inspection.figures import Curve, Panel, image_rows, plot
from vitkit.inspection.page import (
    Block,
    bullets,
    pairs,
    paragraph,
    picture,
    preformatted,
    section,
    table,
    write_page,
)
from vitkit.train.log import last_metrics, read_metrics, to_line


def report(run_dir: Path | str) -> Path:
    """Write `report.html` of a run directory from what the run recorded: last metrics, curves,
    data, recipe."""
    run_dir = Path(run_dir)
    recipe = json.loads((run_dir / "recipe.json").read_text("utf-8"))
    data = json.loads((run_dir / "data.json").read_text("utf-8"))
    lines = read_metrics(run_dir / "metrics.jsonl")
    blocks = [
        section("Last evaluation", _last(list(last_metrics(run_dir).values()))),
        section("Curves", picture(plot(_panels(lines)), "training loss and metrics by step")),
    ]

    # What the objective shows of its work
    pictures = run_dir / "pictures.safetensors"
    if pictures.exists():
        columns = _columns(pictures)
        shown = picture(image_rows(columns), ", ".join(columns))
        blocks.append(section("What it sees, and makes of it", shown))

    # What went in, and what went wrong
    notes = [paragraph(note) for note in data["notes"]]
    blocks.append(section("Data", _counts(data), *notes))
    broken = [text for bad in data["skipped"].values() for _, text in bad]
    if broken:
        blocks.append(section("Images left out", bullets(broken)))
    events = [to_line(line) for line in lines if line["event"] in ("skipped", "rollback")]
    if events:
        blocks.append(section("Steps that were not finite", bullets(events)))

    blocks.append(section("Recipe, as it ran", preformatted(json.dumps(recipe, indent=1))))
    return write_page(run_dir / "report.html", recipe["name"], blocks)


def _last(metrics: list[Metric]) -> Block:
    """The latest value of every metric, with its interval."""
    if not metrics:
        return paragraph("Nothing was measured.")
    rows = []
    for metric in metrics:
        interval = ""
        if metric.interval is not None:
            interval = " to ".join(map(metric.unit.text, metric.interval))
        rows.append((metric.name, metric.unit.text(metric.value), interval))
    return table(rows, ("metric", "value", "95 % interval"))


def _panels(lines: list[dict]) -> list[Panel]:
    """The training loss, and a panel for each unit in which something was measured that is better
    or worse."""
    training = [line for line in lines if line["event"] == "training"]
    steps = [line["step"] for line in training]
    loss = Curve(steps, [line["loss"] for line in training])
    panels = [Panel("training loss", "", {"": loss})]

    points: dict[str, list[tuple[int, Metric]]] = {}
    for line in lines:
        for name, metric in line.get("metrics", {}).items():
            if metric.unit.better != "neither":
                points.setdefault(name, []).append((line["step"], metric))
    units = dict.fromkeys(of_name[0][1].unit for of_name in points.values())
    for unit in units:
        curves = {
            name: _curve(of_name) for name, of_name in points.items() if of_name[0][1].unit == unit
        }
        panels.append(Panel(f"held-out, {unit.name}", unit.axis, curves))
    return panels


def _curve(points: list[tuple[int, Metric]]) -> Curve:
    """One metric at the steps where it was measured, in the scale that its unit is drawn in."""
    scale = points[0][1].unit.scale
    low = []
    high = []
    for _, metric in points:
        ends = metric.interval or (math.nan, math.nan)
        low.append(ends[0] * scale)
        high.append(ends[1] * scale)
    if all(map(math.isnan, low)):
        low = high = []
    steps = [step for step, _ in points]
    return Curve(steps, [metric.value * scale for _, metric in points], low, high)


def _columns(file: Path) -> dict:
    """An objective's pictures, uint8 (N, h, w, 3) each, in the order in which they tell what it
    does."""
    from safetensors import safe_open

    with safe_open(file, "numpy") as opened:
        names = (opened.metadata() or {}).get("order", "").split(",")
        return {name: opened.get_tensor(name).transpose(0, 2, 3, 1) for name in names}


def _counts(data: dict) -> Block:
    """How many images of what there were."""
    values = {"source": data["source"], "classes": f"{len(data['labels']):,}"}
    values |= {name: f"{count:,} images" for name, count in data["counts"].items()}
    values |= {name: f"{count:,} images" for name, (count, _) in data["others"].items()}
    for name, bad in data["skipped"].items():
        values[f"left out of {name}"] = f"{len(bad):,} broken images"
    return pairs(values)
