"""`vitkit fewshot`: what a model's features are worth when there are a few images a class."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg

from vitkit.commands import DATA
from vitkit.commands.arguments import (
    DataColumns,
    Device,
    Model,
    ModelHints,
    OnBadImage,
    Precision,
    pick_precision,
)
from vitkit.commands.learning_data import As, as_words, loaded_for_features, splits_to_learn_from
from vitkit.data import Columns, Splits
from vitkit.evaluation import Fewshot, Form, Metric
from vitkit.system.console.text import printable
from vitkit.weights import Classifier, Hints


@dataclass
class MeasureFewshot:
    """Fit a linear layer to a few images of each class, in closed form, and measure it on the test
    images: the paper's few-shot accuracy, in seconds. Images are drawn several times; the mean and
    the standard deviation are printed."""

    model: Model
    data: Annotated[Positional[tuple[str, ...]], arg(metavar="DATA...", help=DATA)]
    shots: tuple[int, ...] = (5, 10)
    """Images of each class to learn from."""
    seeds: int = 3
    """How often they are drawn."""
    form: Form = "fixed"
    """How the regularisation is found: "fixed" as big_vision does; "ranked" as in the paper's time,
    the one that ranks best over all DATA, on the first images of each class."""
    named: As = None
    columns: DataColumns = field(default_factory=Columns)
    on_bad_image: OnBadImage = "fail"
    precision: Precision = "float32"
    """A measurement is float32 unless told, so that it does not depend on the machine."""
    device: Device = "auto"
    json: bool = False
    """Print one line of JSON: {data: {name: {"value", "unit", "interval"}}}."""
    hints: ModelHints = field(default_factory=Hints)


def fewshot(command: MeasureFewshot) -> int:
    """Measure every data set, and print a table or JSON."""
    from vitkit.system.machine import autocast
    from vitkit.system.processes.ranks import on_rank_0, process_group

    if not command.data:
        raise ValueError(f"no images; vitkit fewshot {command.model} DATA... takes data sets")
    evaluator = Fewshot(command.shots, command.seeds, command.form)
    with process_group(command.device) as device:
        classifier = loaded_for_features(command.model, command.hints, device)
        answers = {}
        with autocast(device, pick_precision(command.precision, device)):
            for data in dict.fromkeys(command.data):
                splits, _ = splits_to_learn_from(
                    data, command.columns, command.named, command.on_bad_image
                )
                answers[data] = _answers(evaluator, classifier, data, splits)
        if not on_rank_0():
            return 0

    metrics = {data: [] for data in answers}
    for shots in command.shots:
        exponent = _exponent(evaluator, [by_shots[shots] for by_shots in answers.values()])
        for data, by_shots in answers.items():
            metrics[data] += evaluator.metrics(shots, by_shots[shots], exponent)
    if command.json:
        values = {
            data: {metric.name: metric.to_json() for metric in several}
            for data, several in metrics.items()
        }
        print(json.dumps(values, allow_nan=False))
        return 0
    _print(command, metrics)
    words = as_words(command.model, command.data[0], command.named)
    print(f"next: vitkit probe {words}, which learns from all images")
    return 0


def _answers(evaluator: Fewshot, classifier: Classifier, data: str, splits: Splits) -> dict:
    """Which test images of a data set are classified right, by shots. What was decided, and what
    the data lacks, is printed."""
    from vitkit.evaluation import Part, Subject, shot_notes
    from vitkit.system.processes.ranks import on_rank_0

    test = splits.test or splits.val
    if splits.train is None or test is None:
        raise ValueError(
            f"{data} has no images to learn from and others to measure on: it needs a train part, "
            "and a test or val part"
        )
    if not evaluator.judges(splits.target_kind):
        raise ValueError(
            f"few-shot accuracy is for images of one class each; the targets of {data} are of the "
            f"kind {splits.target_kind!r}, which vitkit probe learns"
        )
    if on_rank_0():
        missing = shot_notes(splits.train, test, max(evaluator.shots))
        for sentence in (*splits.notes, *(f"{data}: {text}" for text in missing)):
            print(printable(sentence), file=sys.stderr)
    return evaluator.answers(Subject(classifier), Part(test, None, splits.train))


def _exponent(evaluator: Fewshot, right: Sequence[np.ndarray | None]) -> int | None:
    """The exponent of l2 that ranks best over the data sets that have an accuracy; None for
    "fixed"."""
    from vitkit.evaluation import best_ranked

    finite = [each.mean((0, 2)) for each in right if each is not None]
    if evaluator.form == "fixed" or not finite:
        return None
    return best_ranked(np.stack(finite))


def _print(command: MeasureFewshot, metrics: dict[str, list[Metric]]) -> None:
    """Print a row for each data set and number of shots; of several data sets the means too."""
    table = Table()
    table.add_column("data", overflow="fold")
    for header in ("shots", "top-1", "95 % interval", "deviation"):
        table.add_column(header, justify="right")
    if command.form == "ranked":
        table.add_column("l2", justify="right")
    for shots in command.shots:
        values = []
        for data, several in metrics.items():
            found = {metric.name: metric for metric in several}
            top1 = found[f"{shots}-shot/top1"]
            values.append(top1.value)
            row = [escape(printable(data)), str(shots), top1.unit.text(top1.value)]
            row += [top1.interval_text(), _text(found.get(f"{shots}-shot/deviation"))]
            if command.form == "ranked":
                exponent = found.get(f"{shots}-shot/l2_exponent")
                if exponent is not None:
                    row.append(f"2^{exponent.value}")
            table.add_row(*row)
        if len(values) > 1:
            mean = top1.unit.text(sum(values) / len(values))
            table.add_row(f"mean of {len(values)}", str(shots), mean, end_section=True)
    Console().print(table)
    if command.form == "fixed" and command.seeds > 1:
        print(f"top-1 is the mean of {command.seeds} draws of images; deviation, that between them")
    if command.form == "ranked":
        print("l2 was chosen by its rank on these test images, which flatters the model a little")


def _text(metric: Metric | None) -> str:
    """The value of a metric, as text; empty if there is none."""
    if metric is None:
        return ""
    return metric.unit.text(metric.value)
