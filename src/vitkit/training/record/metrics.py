"""metrics.jsonl, with one JSON line per event: writing, reading and comparing.

The best evaluation, and the decision to stop early, depend on the lines alone, so an interrupted run reaches the
same decisions as an uninterrupted one.
"""

import json
from pathlib import Path

from vitkit.evaluation import Metric
from vitkit.evaluation.metrics.metric import number_of, plain_number
from vitkit.system.errors import BadRun
from vitkit.system.storage.files import Record, parse_json
from vitkit.system.storage.records import is_whole

STEPS = range(1 << 53)  # valid steps; a line with another one is damaged
LONGEST_NAME = 1000  # largest number of characters in the name of an evaluator or a metric

# Writing


def to_line(line: dict) -> str:
    """A line of metrics.jsonl. It is valid JSON: a number that is not finite is null, and "notes" holds its
    value as text."""
    values = {}
    notes = {}  # NaN and infinite numbers as text, by name
    for name, value in line.items():
        if name == "metrics":
            value = {key: metric.to_json() for key, metric in value.items()}
        elif isinstance(value, float):
            value, note = plain_number(value)
            if note:
                notes[name] = note
        values[name] = value
    if notes:
        values["notes"] = notes
    return json.dumps(values, allow_nan=False) + "\n"


# Reading


def read_metrics(path: Path) -> list[dict]:
    """The complete lines of a metrics.jsonl, without damaged ones.

    The "metrics" of an evaluation are a dict of Metric by name; numbers that were not finite are
    NaN or infinite again.
    """
    lines, _ = read_lines(path)
    return lines


def read_lines(path: Path) -> tuple[list[dict], int]:
    """The complete lines of a metrics.jsonl, and the number of damaged ones. A last line without a newline,
    which a kill has cut off, counts as neither."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    lines = []
    damaged = 0
    for line in data.split(b"\n")[:-1]:  # the rest after the last newline is incomplete
        try:
            lines.append(_from_json(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            damaged += 1
    return lines, damaged


def _from_json(line: bytes) -> dict:
    """The values of a line from `to_line`. Raises ValueError, KeyError, TypeError or AttributeError if it is
    damaged."""
    values = parse_json(line, Record)
    is_step = isinstance(values["step"], int) and values["step"] in STEPS
    if not isinstance(values["event"], str) or not is_step:
        raise BadRun("an event has a name and a step")
    if values["event"] == "evaluation" and not isinstance(values["evaluator"], str):
        raise BadRun("an evaluation has the name of an evaluator")
    for name, note in values.pop("notes", {}).items():
        values[name] = number_of(values[name], note)
    primary = values.get("primary", "")
    if not isinstance(primary, str) or (primary and primary not in values.get("metrics", {})):
        raise BadRun("the primary metric is not among the metrics")
    if values["event"] == "training":
        for name, value in values.items():
            is_number = isinstance(value, float) or is_whole(value)
            if name != "event" and not is_number:
                raise BadRun(f"{name!r} of a training step is no number")
    if "metrics" in values:
        metrics = values["metrics"].items()
        values["metrics"] = {name: Metric.from_json(name, saved) for name, saved in metrics}
    for name in (values.get("evaluator", ""), *values.get("metrics", {})):
        if len(name) > LONGEST_NAME:  # drawing it in a figure's legend would take minutes
            raise BadRun("the name of a metric is too long")
    return values


def last_metrics(run_dir: Path) -> dict[str, Metric]:
    """Every metric of a run at its latest evaluation, by name; empty before the first."""
    metrics: dict[str, Metric] = {}
    for line in read_metrics(run_dir / "metrics.jsonl"):
        metrics |= line.get("metrics", {})
    return metrics


# Comparing


def best_step(lines: list[dict], name: str) -> int | None:
    """The step at which a metric was best, the first of equal ones; None before the first evaluation.
    Raises VitkitError if the evaluations do not measure it, or if it has no better direction."""
    best: Metric | None = None
    step = None
    measured: dict[str, Metric] = {}
    for line in lines:
        metrics = line.get("metrics", {})
        measured |= metrics
        metric = metrics.get(name)
        if metric is None or metric.unit.better == "neither":
            continue
        if best is None or metric.beats(best):
            best = metric
            step = line["step"]
    if measured and best is None:
        names = [each.name for each in measured.values() if each.unit.better != "neither"]
        raise BadRun(not_measured(name, names))
    return step


def not_measured(name: str, measured: list[str]) -> str:
    """The message about a `best` that is not among the metrics of a run, which are `measured`."""
    text = f"`best={name!r}`: the run does not measure that; "
    if measured:
        text += f"choose from {', '.join(measured)}"
    else:
        text += "it has no evaluator"
    on_val = [each for each in measured if each.startswith("val/")]
    if name.startswith("val/") and not on_val:
        text += ". `data.parts='three'` holds out training images as the val part"
    return text


def up_to_best(lines: list[dict], name: str) -> list[dict]:
    """The lines up to the evaluation at which metric `name` was best; all of them if the name is
    empty, or if nothing was measured yet."""
    if not name:
        return lines
    step = best_step(lines, name)
    if step is None:
        return lines
    return [line for line in lines if line["step"] <= step]


def primary_of(lines: list[dict], name: str = "") -> Metric | None:
    """The primary metric, by which runs are compared, at the evaluation at which metric `name` was best, or
    at the last one if `name` is empty; None if nothing was measured.

    The primary metric is the first one of the recipe's first evaluator, on the last part that it measures:
    the test part, if there is one. Raises VitkitError as `best_step` does.
    """
    for line in reversed(up_to_best(lines, name)):
        if line.get("primary"):
            return line["metrics"][line["primary"]]
    return None


def gains_nothing(lines: list[dict], patience: int, name: str = "") -> bool:
    """Whether none of the last `patience` evaluations improves on the best one before them, in metric
    `name`, or if that is empty in any metric of the recipe's first evaluator."""
    measured = []
    for line in lines:
        metrics = line.get("metrics", {})
        if name and name in metrics:
            measured.append({name: metrics[name]})
        elif not name and "primary" in line:
            measured.append(metrics)

    best: dict[str, Metric] = {}
    for metrics in measured[:-patience]:
        for key, metric in metrics.items():
            if metric.unit.better != "neither" and (key not in best or metric.beats(best[key])):
                best[key] = metric
    if not measured[:-patience]:
        return False
    latest = measured[-patience:]
    return not any(metrics[key].beats(best[key]) for metrics in latest for key in best)
