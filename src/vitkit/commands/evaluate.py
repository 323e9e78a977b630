"""`vitkit evaluate`: the evaluators that a run has too, on any model and any images."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from tyro.conf import arg

from vitkit.commands import evaluate_corruptions
from vitkit.commands.arguments import (
    Data,
    DataColumns,
    Device,
    Model,
    ModelHints,
    OnBadImage,
    Precision,
    pick_precision,
)
from vitkit.commands.evaluate_data import images_of, named_images, train_part
from vitkit.commands.evaluate_output import as_json, check_files, print_report, print_table, write
from vitkit.commands.flags import flags
from vitkit.data import Columns, Source
from vitkit.evaluate import EVALUATORS, USUAL, Evaluator, EvaluatorName, Metric, Part, Subject
from vitkit.evaluate.corruptions import Corruption
from vitkit.evaluate.named import SetName
from vitkit.system.ranks import from_rank_0, on_rank_0, process_group, world
from vitkit.system.text import as_word
from vitkit.weights import Classifier
from vitkit.weights.description import Hints

if TYPE_CHECKING:
    from vitkit.evaluate import Answers
    from vitkit.evaluate.named import Named
    from vitkit.evaluate.report import Report

FITTED_HERE = (
    "the model's temperature was fitted on these very images, so its calibration error and loss look "
    "better here than on others"
)


@dataclass
class Evaluate:
    """Measure how good a model is on images: its accuracy, if each image has a label. Every image
    counts exactly once."""

    model: Model
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
    named: Annotated[SetName | None, arg(name="as")] = None
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
    check_files(command.report, command.calibrate)
    with process_group(command.device) as device:
        precision = pick_precision(command.precision, device)
        return _evaluate(replace(command, precision=precision), device)


def _evaluate(command: Evaluate, device: torch.device) -> int:
    """The command, as every rank runs it."""
    from vitkit.weights import load_as

    # The model and the images
    loaded = load_as(command.model, command.hints, quiet=not on_rank_0())
    named = None
    if command.named:
        named, source, title = named_images(command)
    else:
        source, title = images_of(command, loaded)

    # Images with one class each get a whole report, all others their evaluators
    if source.target_kind == "class" and not command.evals:
        return _report(command, loaded, source, title, device, named)
    if (
        command.against
        or command.report
        or command.calibrate
        or command.real
        or named
        or command.corruptions
    ):
        raise ValueError(
            "--against, --report, --calibrate, --real, --as and --corruptions are for images with one class each, and "
            f"without --evals; the targets of {command.data} are of the kind {source.target_kind!r}"
        )
    evaluators = _evaluators(command, source)
    classifier = loaded.to(device).for_inference()
    metrics = _measure(command, evaluators, classifier, source)
    if on_rank_0():
        _print_metrics(command, metrics, title)
    return 0


def _report(
    command: Evaluate,
    loaded: Classifier,
    source: Source,
    title: str,
    device: torch.device,
    named: "Named | None",
) -> int:
    """Measure all that the answers to images with one class each tell."""
    from vitkit.data import fingerprint
    from vitkit.evaluate.accuracy import accuracy
    from vitkit.evaluate.calibrate import calibrate, check_can_calibrate
    from vitkit.evaluate.paired import paired
    from vitkit.evaluate.real import find_real, read_real, real_accuracy
    from vitkit.evaluate.report import report
    from vitkit.weights import load, save
    from vitkit.weights.temperature import with_temperature

    # One pass over the images, and another for the other model
    lists = None
    if command.real:
        file = from_rank_0(lambda: find_real(command.real))
        lists = read_real(file)
    if command.calibrate:
        check_can_calibrate(loaded)
    if command.corruptions:
        evaluate_corruptions.check(command, loaded)
    other = None
    if command.against:
        other = load(command.against, quiet=not on_rank_0())
        _check_can_answer(command.against, other, source, named)
    given = _answers(command, loaded, source, device, named)
    if other is not None:
        other_given = _answers(command, other, source, device, named)
    robustness = None
    if command.corruptions:
        top1 = next(accuracy(given))

        def ask(classifier: Classifier, images: Source, text: str) -> "Answers":
            return _answers(command, classifier, images, device, named, text)

        robustness = evaluate_corruptions.measure(command, loaded, source, top1, ask)
    if not on_rank_0():
        return 0

    # What they tell
    found = report(given, source, command.model, title, _facts(command, loaded, device))
    if named is not None:
        found = replace(found, notes=(*named.notes, *found.notes))
    if robustness is not None:
        metrics = (*found.metrics, *robustness.metrics)
        found = replace(found, metrics=metrics, robustness=robustness)
    if loaded.origin.get("temperature_images") == fingerprint(source):
        found = replace(found, notes=(*found.notes, FITTED_HERE))
    if lists is not None:
        real = real_accuracy(given, source, lists)
        found = replace(found, metrics=(*found.metrics, *real))
    if other is not None:
        others_notes = [note for note in other_given.notes if note not in found.notes]
        found = replace(
            found,
            notes=(*found.notes, *(f"the second model: {note}" for note in others_notes)),
            other=command.against,
            paired=paired(given, other_given),
        )
    if command.calibrate:
        found = replace(found, calibration=calibrate(given))
        calibrated = with_temperature(loaded, found.calibration.temperature)
        calibrated.origin["temperature_fitted_on"] = title
        calibrated.origin["temperature_images"] = fingerprint(source)
        save(calibrated, command.calibrate)
    _deliver(command, found, source)
    return 0


def _check_can_answer(name: str, other: Classifier, source: Source, named: "Named | None") -> None:
    """Raises ValueError, with the other model's name, if its classes are not the images': before
    the first model's pass over them."""
    from vitkit.evaluate.answers import check_classes
    from vitkit.evaluate.labels import align

    try:
        check_classes(other)
        if named is None:
            align(source.labels, other.labels, source.targets)
        else:
            named.choice(other.labels)
    except ValueError as error:
        raise ValueError(f"--against {name}: {error}") from None


def _deliver(command: Evaluate, found: "Report", source: Source) -> None:
    """Print a report, and write it to the files that were asked for."""
    if command.json:
        print(as_json(found))
    else:
        print_report(found)
    written = write(command.report, found, source)
    if command.calibrate:
        written.append(command.calibrate)
    terminal = sys.stderr if command.json else sys.stdout
    for path in written:
        print(f"wrote {path}", file=terminal)
    if not command.json:
        print(f"next: {_next(command)}")


def _next(command: Evaluate) -> str:
    """What to run next."""
    if command.calibrate:
        return f"vitkit evaluate {as_word(command.calibrate)} DATA, on images that it was not fitted on"
    if command.report:
        return f"open {as_word(command.report[0])}"
    return f"{_command_line(command)} --report report.html"


def _command_line(command: Evaluate) -> str:
    """The command that measures the same again, and writes nothing; on which device, and with how
    many processes that decode, is another machine's own choice."""
    plain = replace(command, report=(), calibrate=None, json=False, workers=-1, device="auto")
    return " ".join(
        map(as_word, ["vitkit", "evaluate", command.model, command.data, *flags(plain)])
    )


def _answers(
    command: Evaluate,
    classifier: Classifier,
    source: Source,
    device: torch.device,
    named: "Named | None",
    text: str = "evaluating",
) -> "Answers":
    """What a model answers to the images of all ranks."""
    from vitkit.evaluate import answers
    from vitkit.evaluate.answers import check_classes
    from vitkit.system.machine import autocast

    ready = classifier.to(device).for_inference()
    choice = None
    if named is not None:
        check_classes(ready)
        choice = named.choice(ready.labels)
    batches = _batches(command, ready, source, text)
    with autocast(device, command.precision):
        return answers(ready, Part(source, batches), bool(command.calibrate), choice)


def _measure(
    command: Evaluate, evaluators: Sequence[Evaluator], classifier: Classifier, source: Source
) -> list[Metric]:
    """One pass over the images for each evaluator."""
    from vitkit.system.machine import autocast

    metrics = []
    for evaluator in evaluators:
        batches = _batches(command, classifier, source, f"evaluating {type(evaluator).__name__}")
        part = Part(source, batches, train_part(command, evaluator, source))
        with autocast(classifier.device, command.precision):
            metrics += evaluator.measure(Subject(classifier), part)
    return metrics


def _batches(command: Evaluate, classifier: Classifier, source: Source, text: str):
    """This rank's share of the images, under a progress bar. Other processes decode them while the
    model computes."""
    from vitkit.data import default_workers, eval_batches
    from vitkit.system.progress import bar

    rank, world_size = world()
    rows = _rows(command.batch, len(source), world_size)
    workers = command.workers
    if workers < 0:
        workers = default_workers(source)
        if rows >= len(source):  # while one batch is decoded there is nothing to compute
            workers = 0
    pin = classifier.device.type == "cuda"
    share = (rank, world_size)
    batches = eval_batches(source, classifier.preprocessing, rows, workers, share, pin=pin)
    if not on_rank_0():
        return batches
    return bar(text)(batches, len(batches))


def _rows(batch: int, images: int, world_size: int) -> int:
    """Images of a forward pass on all ranks: `batch` at most, if each has one, and so that the passes
    are equally large. The last one is filled up with rows that nobody needs, 63 for 65 images in
    batches of 64, and computing them takes as long."""
    most = max(batch // world_size, 1) * world_size
    passes = max(-(-images // most), 1)
    return max(-(-images // (passes * world_size)), 1) * world_size


def _facts(command: Evaluate, classifier: Classifier, device: torch.device) -> dict[str, str]:
    """How it was measured, for whoever reads the report."""
    import time

    from vitkit import __version__

    where = str(device)
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    return {
        "command": _command_line(command),
        "preprocessing": str(classifier.preprocessing),
        "computed in": f"{command.precision} on {where}",
        "with": f"vitkit {__version__}, PyTorch {torch.__version__}",
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


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
