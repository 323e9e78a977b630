"""`vitkit evaluate`: the evaluators that a run has too, on any model and any images."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from tyro.conf import arg

from vitkit.commands.evaluate_data import images_of, named_images, train_part
from vitkit.commands.evaluate_output import check_files, print_table
from vitkit.data import Columns, Source
from vitkit.evaluation import (
    EVALUATORS,
    USUAL,
    Corruption,
    Evaluator,
    EvaluatorName,
    Metric,
    Part,
    SetName,
    Subject,
    batches_of,
    is_imagenet_c,
)
from vitkit.runtimes import is_exported
from vitkit.system.console.text import as_word
from vitkit.system.processes.ranks import on_rank_0, process_group
from vitkit.verbs import (
    Data,
    DataColumns,
    Device,
    ModelHints,
    ModelOrFile,
    OnBadImage,
    Precision,
    Runtime,
    classifier_on,
    pick_precision,
)
from vitkit.weights import Classifier, Hints

if TYPE_CHECKING:
    pass


@dataclass
class Evaluate:
    """Measure how good a model is on images: its accuracy, if each image has a label. Every image
    counts exactly once."""

    model: ModelOrFile
    data: Data
    against: Annotated[str, arg(metavar="MODEL")] = ""
    """Another model, to measure on the same images: prints the difference, and whether chance would
    explain it."""
    report: tuple[Path, ...] = ()
    """Files to write everything to: .html is one page with figures, classes and the most confident
    mistakes; .json the numbers; .png a contact sheet of the mistakes, or with --against of the images
    on which the models disagree."""
    calibrate: Path | None = None
    """Fit a temperature on these images, and save the model with probabilities that it makes honest
    in this directory. Use images that you do not measure on afterwards."""
    real: Path | None = None
    """ReaL's real.json, or download: counts an answer as right if it is in an image's list of labels too. DATA is
    ImageNet's validation part, in any folders, its files called as they were published."""
    named: Annotated[SetName | Literal["imagenet-c"] | None, arg(name="as")] = None
    """What DATA is, if it is a data set with a protocol of its own: which classes its folders are, and
    which answers count (docs/evaluation.md)."""
    corruptions: Annotated[
        tuple[Corruption | Literal["common"], ...], arg(metavar="{common}|NAME...")
    ] = ()
    """Measure the images corrupted too, each corruption at five severities; common is ImageNet-C's
    fifteen."""
    evals: tuple[EvaluatorName, ...] = ()
    """Evaluators to run. Default: those that fit the labels. `neighbours` works without a head."""
    split: Literal["train", "val", "test"] | None = None
    """Part of the data to evaluate. Default: the test part, else the val part, else the images that
    were held out when the model was trained, else all images."""
    columns: DataColumns = field(default_factory=Columns)
    on_bad_image: OnBadImage = "fail"
    on_unknown_class: Literal["fail", "skip"] = "fail"
    """What to do with images of a class that the model does not know: stop, or skip them and print
    how many they are."""
    batch: int = 64
    """Images per forward pass."""
    workers: int = -1
    """Processes that decode images; -1 follows the CPU quota."""
    runtime: Runtime = "auto"
    precision: Precision = "float32"
    """A measurement is float32 unless told, so that it does not depend on the machine."""
    device: Device = "auto"
    json: bool = False
    """Print the metrics as one line of JSON: {name: {"value", "unit", "interval"}}."""
    hints: ModelHints = field(default_factory=Hints)


def evaluate(command: Evaluate) -> int:
    """Print what the evaluators measure, as a table or as JSON; under torchrun each process measures
    its share of the images."""
    if command.batch < 1:
        raise ValueError(f"--batch is {command.batch}; it is a number of images, at least 1")
    if command.workers < -1:
        raise ValueError(f"--workers is {command.workers}; it is a number of processes, or -1")
    check_files(command.report, command.calibrate)
    if command.calibrate and (
        is_exported(command.model) or command.runtime not in ("auto", "torch")
    ):
        raise ValueError(
            "--calibrate saves the model with a temperature, and an exported file is not saved again: "
            "calibrate the model, and export that"
        )
    with process_group(command.device) as device:
        precision = pick_precision(command.precision, device)
        return _evaluate(replace(command, precision=precision), device)


def _evaluate(command: Evaluate, device: torch.device) -> int:
    """The command, as every rank runs it."""
    from vitkit.commands import evaluate_imagenet_c

    # The model and the images
    if command.named == "imagenet-c":
        evaluate_imagenet_c.check(command)
    loaded = classifier_on(
        command.model, command.hints, command.runtime, command.precision, quiet=not on_rank_0()
    )
    corrupted = command.corruptions or command.named == "imagenet-c"
    if corrupted and getattr(loaded.model, "takes_pictures", False):
        raise ValueError(
            f"{command.model} prepares images itself, and those that are corrupted are prepared already; "
            "give the model, or a file that was exported without --preprocessing"
        )
    if command.named == "imagenet-c":
        return evaluate_imagenet_c.report_on_files(command, loaded, device)
    named = None
    if command.named is None and is_imagenet_c(command.data):
        raise ValueError(
            f"{command.data} has the folders of ImageNet-C; --as imagenet-c measures each of them"
        )
    if command.named:
        named, source, title = named_images(command, loaded)
    else:
        source, title = images_of(command, loaded)

    # Images with one class each get a whole report, all others their evaluators
    if source.target_kind == "class" and not command.evals:
        from vitkit.commands.evaluate_report import Request, report_on

        return report_on(Request(command, loaded, source, title, named, device))
    for_reports = ("against", "report", "calibrate", "real", "named", "corruptions")
    if any(getattr(command, name) for name in for_reports):
        raise ValueError(
            "--against, --report, --calibrate, --real, --as and --corruptions are for images with "
            f"one class each, and without --evals; the targets of {command.data} are of the kind "
            f"{source.target_kind!r}"
        )
    evaluators = _evaluators(command, source)
    classifier = loaded.to(device).for_inference()
    metrics = _measure(command, evaluators, classifier, source)
    if on_rank_0():
        _print_metrics(command, metrics, title)
    return 0


def _measure(
    command: Evaluate, evaluators: Sequence[Evaluator], classifier: Classifier, source: Source
) -> list[Metric]:
    """One pass over the images for each evaluator."""
    from vitkit.system.machine import autocast

    metrics = []
    for evaluator in evaluators:
        title = f"evaluating {type(evaluator).__name__}"
        batches = batches_of(classifier, source, title, command.batch, command.workers)
        part = Part(source, batches, train_part(command, evaluator, source))
        with autocast(classifier.device, command.precision):
            metrics += evaluator.measure(Subject(classifier), part)
    return metrics


def _print_metrics(command: Evaluate, metrics: Sequence[Metric], title: str) -> None:
    """The metrics as a table or as JSON."""
    if command.json:
        values = {metric.name: metric.to_json() for metric in metrics}
        print(json.dumps(values, allow_nan=False))
        return
    print(f"{command.model} on {title}")
    print_table(metrics)
    print(f"next: vitkit predict {as_word(command.model)} IMAGE...")


def _evaluators(command: Evaluate, source: Source) -> Sequence[Evaluator]:
    """The evaluators that --evals names, or the usual ones for such images. Raises ValueError if
    they cannot measure anything on them."""
    if not command.evals:
        if not USUAL[source.target_kind]:
            raise ValueError(
                f"{command.data} has no labels, so the model's answers cannot be checked; vitkit "
                f"predict {command.model} {command.data} prints them"
            )
        return USUAL[source.target_kind]
    for name in command.evals:
        if not EVALUATORS[name].judges(source.target_kind):
            raise ValueError(
                f"{name} cannot be measured on {command.data}, whose targets are of the kind "
                f"{source.target_kind!r}; leave out --evals to measure what can be"
            )
    return [EVALUATORS[name] for name in command.evals]
