"""`vitkit evaluate`: the evaluators that a run has too, on any model and any images."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from vitkit.commands.arguments import Data, DataColumns, Device, Model
from vitkit.data import Columns, Source
from vitkit.evaluate import EVALUATORS, USUAL, Evaluator, EvaluatorName, Metric, Part, Subject
from vitkit.weights import Classifier


@dataclass
class Evaluate:
    """Measure how good a model is on images: its accuracy, if each image has a label. Every image
    counts exactly once."""

    model: Model
    data: Data
    evals: tuple[EvaluatorName, ...] = ()
    """Evaluators to run. Default: those that fit the labels. `neighbours` works without a head."""
    split: Literal["train", "val", "test"] | None = None
    """Part of the data to evaluate. Default: the test part, else the val part, else the images that
    were held out when the model was trained, else all images."""
    columns: DataColumns = field(default_factory=Columns)
    on_bad_image: Literal["fail", "skip"] = "fail"
    """What to do with a broken image: stop, or skip it and print its name."""
    batch: int = 64
    """Images per forward pass."""
    workers: int = -1
    """Processes that decode images; -1 follows the CPU quota."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the matrix products."""
    device: Device = "auto"
    json: bool = False
    """Print the metrics as one line of JSON: {name: {"value", "unit", "interval"}}."""


def evaluate(command: Evaluate) -> int:
    """Print what the evaluators measure, as a table or as JSON."""
    from rich.progress import track

    from vitkit.data import default_workers, eval_batches
    from vitkit.evaluate.labels import note
    from vitkit.system.machine import autocast, pick_device
    from vitkit.weights import load

    # The model, the images and what to measure
    device = pick_device(command.device)
    classifier = load(command.model).to(device).for_inference()
    source, title = _images(command, classifier)
    if command.on_bad_image == "skip":
        source = _without_broken(source)
    evaluators = _evaluators(command, source)
    if sentence := note(source.labels, classifier.labels):
        print(sentence, file=sys.stderr)

    # One pass over the images for each evaluator
    workers = command.workers
    if workers < 0:
        workers = default_workers(source)
    batches = eval_batches(source, classifier.preprocessing, command.batch, workers)
    metrics = []
    for evaluator in evaluators:
        text = f"evaluating {type(evaluator).__name__}"
        shown = track(batches, text, console=Console(stderr=True), transient=True)
        with autocast(device, command.precision):
            metrics += evaluator.measure(Subject(classifier), Part(source, shown))

    # Print the metrics
    if command.json:
        values = {metric.name: metric.to_json() for metric in metrics}
        print(json.dumps(values, allow_nan=False))
        return 0
    print(f"{command.model} on {title}")
    _print(metrics)
    print(f"next: vitkit predict {command.model} IMAGE...")
    return 0


def _images(command: Evaluate, classifier: Classifier) -> tuple[Source, str]:
    """The images to evaluate on, and what to call them.

    For the data set that a model was trained on, these are the images that its training held out.
    """
    from vitkit.data import open_source, open_splits

    origin = classifier.origin
    columns = command.columns
    if columns.target == "auto" and _predicts_numbers(classifier):
        columns = _columns_of_numbers(command)
    if _is_own_data(command.data, origin.get("data", "")):
        splits = open_splits(command.data, columns, origin.get("split_seed", 0))
        name = command.split or "test"
        part = getattr(splits, name)
        if splits.made_test and part:
            return part, (
                f"{len(part):,} images of {command.data}, the {name} part that was held out when "
                "the model was trained"
            )
    source = open_source(command.data, columns, command.split)
    return source, f"{len(source):,} images of {command.data}"


def _predicts_numbers(classifier: Classifier) -> bool:
    """Whether the outputs of a model's head are numbers, not logits of classes: a regression."""
    return bool(classifier.labels) and classifier.activation == "none"


def _columns_of_numbers(command: Evaluate) -> Columns:
    """The columns for a model whose outputs are numbers: whole ones are numbers too, not classes.
    Data with names is left as it is, so that the evaluator says what does not fit."""
    from vitkit.data import open_source

    columns = replace(command.columns, target="number")
    try:
        open_source(command.data, columns, command.split)
    except ValueError:
        return command.columns
    return columns


def _is_own_data(data: str, trained_on: str) -> bool:
    """Whether a model was trained on these images; a folder may be spelled in several ways."""
    if not trained_on or data == trained_on:
        return data == trained_on
    return Path(data).exists() and Path(data).resolve() == Path(trained_on).resolve()


def _without_broken(source: Source) -> Source:
    """The images that can be decoded; a sentence about each other one is printed."""
    from vitkit.data import check_images, subset
    from vitkit.system.machine import cpus

    broken = dict(check_images(source, cpus()))
    for sentence in broken.values():
        print(f"left out: {sentence}", file=sys.stderr)
    return subset(source, [i for i in range(len(source)) if i not in broken])


def _evaluators(command: Evaluate, source: Source) -> Sequence[Evaluator]:
    """The evaluators that --evals names, or the usual ones for such images. Raises ValueError if
    they cannot measure anything on them."""
    if not command.evals:
        if not USUAL[source.target_kind]:
            raise ValueError(
                f"{command.data} has no labels, so the model's answers cannot be checked"
            )
        return USUAL[source.target_kind]
    for name in command.evals:
        if not EVALUATORS[name].judges(source.target_kind):
            raise ValueError(
                f"{name} cannot be measured on {command.data}, whose targets are of the kind "
                f"{source.target_kind!r}; leave out --evals to measure what can be"
            )
    return [EVALUATORS[name] for name in command.evals]


def _print(metrics: Sequence[Metric]) -> None:
    """Print a table of metrics, with the intervals of those that have one."""
    table = Table("metric", "value", "95 % interval")
    for metric in metrics:
        interval = ""
        if metric.interval is not None:
            interval = " to ".join(map(metric.unit.text, metric.interval))
        table.add_row(metric.name, metric.unit.text(metric.value), interval)
    Console().print(table)
