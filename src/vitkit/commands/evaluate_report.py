"""`vitkit evaluate` on images with one class each: the whole report.

Everything in it is read from the answers of one pass over the images; another model, and corrupted
images, take passes of their own.
"""

import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from vitkit.commands import evaluate_corruptions
from vitkit.commands.evaluate_output import as_json, print_report, write
from vitkit.commands.flags import flags
from vitkit.data import Source
from vitkit.evaluation import Part, batches_of
from vitkit.system.console.text import as_word, counted
from vitkit.system.processes.ranks import from_rank_0, on_rank_0
from vitkit.verbs import classifier_on
from vitkit.weights import Classifier, Hints

if TYPE_CHECKING:
    from vitkit.commands.evaluate import Evaluate
    from vitkit.evaluation import Answers, Named, Report

FEW = 50  # images from which a temperature is more than a guess
FITTED_HERE = (
    "the model's temperature was fitted on these very images, so its calibration error and loss look "
    "better here than on others"
)


@dataclass(frozen=True)
class Request:
    """What is to be reported on."""

    command: "Evaluate"
    classifier: Classifier
    source: Source
    title: str
    """What to call the images."""
    named: "Named | None"
    """The data set's own protocol, if it goes by a name."""
    device: torch.device


def report_on(request: Request) -> int:
    """Measure all that the answers to the images tell, print it, and write it to files."""
    from vitkit.evaluation import report

    # Read, and refuse, before anything is computed
    command = request.command
    other = _other(request)
    lists = _lists(request)
    _check(request)

    # The passes over the images, which all ranks share
    given = _answers(request, request.classifier)
    other_given = None
    if other is not None:
        other_given = _answers(request, other)
    robustness = None
    if command.corruptions:
        robustness = _corrupted(request, given)
    if not on_rank_0():
        return 0

    # What they tell
    facts = facts_of(command, request.classifier, request.device)
    found = report(given, request.source, command.model, request.title, facts)
    found = replace(found, notes=(*_notes(request), *found.notes))
    if robustness is not None:
        metrics = (*found.metrics, *robustness.metrics)
        found = replace(found, metrics=metrics, robustness=robustness)
    if lists is not None:
        from vitkit.evaluation import real_accuracy

        real = real_accuracy(given, request.source, lists)
        found = replace(found, metrics=(*found.metrics, *real))
    if other_given is not None:
        found = _compared(request, found, given, other_given)
    if command.calibrate:
        found = _calibrated(request, found, given)

    # Print it, and write it
    deliver(command, found, request.source)
    return 0


def _check(request: Request) -> None:
    """Raises ValueError for what the model cannot be used for."""
    from vitkit.evaluation import check_can_calibrate

    if request.command.calibrate:
        check_can_calibrate(request.classifier)
    if request.command.corruptions:
        evaluate_corruptions.check(request.command, request.classifier)


def _lists(request: Request):
    """ReaL's lists of labels, if --real asks for them. Raises ValueError for other images than
    ImageNet's."""
    from vitkit.evaluation import check_names, find_real, read_real

    if not request.command.real:
        return None
    lists = read_real(from_rank_0(lambda: find_real(request.command.real)))
    check_names(request.source)
    return lists


def _other(request: Request) -> Classifier | None:
    """The model that --against names. Raises ValueError, with its name, if its classes are not the
    images'."""
    from vitkit.evaluation import align, check_classes

    name = request.command.against
    if not name:
        return None
    precision = request.command.precision
    other = classifier_on(name, Hints(), "auto", precision, quiet=not on_rank_0())
    try:
        check_classes(other)
        if request.named is None:
            align(request.source.labels, other.labels, request.source.targets)
        else:
            request.named.choice(other.labels)
    except ValueError as error:
        raise ValueError(f"--against {name}: {error}") from None
    return other


def _answers(
    request: Request,
    classifier: Classifier,
    source: Source | None = None,
    text: str = "evaluating",
) -> "Answers":
    """What a model answers to the images of all ranks; to the request's, unless others are
    given."""
    from vitkit.evaluation import answers, check_classes
    from vitkit.system.machine import autocast

    command = request.command
    source = source or request.source
    ready = classifier.to(request.device).for_inference()
    choice = None
    if request.named is not None:
        check_classes(ready)
        choice = request.named.choice(ready.labels)
    batches = batches_of(ready, source, text, command.batch, command.workers)
    part = Part(source, batches)
    with autocast(request.device, command.precision):
        return answers(ready, part, bool(command.calibrate), choice)


def _corrupted(request: Request, given: "Answers"):
    """The model's accuracy on corrupted images, beside that on these."""
    from vitkit.evaluation import accuracy

    def ask(classifier: Classifier, images: Source, text: str) -> "Answers":
        return _answers(request, classifier, images, text)

    clean = next(accuracy(given))
    return evaluate_corruptions.measure(
        request.command, request.classifier, request.source, clean, ask
    )


def _notes(request: Request) -> list[str]:
    """What a reader should know, apart from what the answers tell."""
    from vitkit.data import fingerprint

    notes = []
    if request.named is not None:
        notes += request.named.notes
    if request.classifier.origin.get("temperature_images") == fingerprint(request.source):
        notes.append(FITTED_HERE)
    return notes


def _compared(
    request: Request, found: "Report", given: "Answers", other_given: "Answers"
) -> "Report":
    """The report with the difference from the other model."""
    from vitkit.evaluation import paired

    notes = list(found.notes)
    for note in other_given.notes:
        if note not in found.notes:
            notes.append(f"the second model: {note}")
    return replace(
        found,
        notes=tuple(notes),
        other=request.command.against,
        paired=paired(given, other_given),
    )


def _calibrated(request: Request, found: "Report", given: "Answers") -> "Report":
    """The report with the temperature that was fitted; the model is saved with it."""
    from vitkit.data import fingerprint
    from vitkit.evaluation import calibrate
    from vitkit.weights import save, with_temperature

    calibration = calibrate(given)
    calibrated = with_temperature(request.classifier, calibration.temperature)
    calibrated.origin["temperature_fitted_on"] = request.title
    calibrated.origin["temperature_images"] = fingerprint(request.source)
    save(calibrated, request.command.calibrate)
    notes = found.notes
    if len(given) < FEW:
        notes = (*notes, f"a temperature from {counted(len(given), 'image')} is a rough guess")
    return replace(found, notes=notes, calibration=calibration)


def deliver(command: "Evaluate", found: "Report", source: Source) -> None:
    """Print a report, and write it to the files that were asked for."""
    # The files first: whoever reads the terminal may stop reading, as `head` does
    written = write(command.report, found, source)
    if command.calibrate:
        written.append(command.calibrate)
    if command.json:
        print(as_json(found))
    else:
        print_report(found)
    terminal = sys.stderr if command.json else sys.stdout
    for path in written:
        print(f"wrote {path}", file=terminal)
    if not command.json:
        print(f"next: {_next(command)}")


def _next(command: "Evaluate") -> str:
    """What to run next."""
    if command.calibrate:
        return f"vitkit evaluate {as_word(command.calibrate)} DATA, on images that it was not fitted on"
    if command.report:
        return f"open {as_word(command.report[0])}"
    return f"{_command_line(command)} --report report.html"


def _command_line(command: "Evaluate") -> str:
    """The command that measures the same again, and writes nothing; on which device, and with how
    many processes that decode, is another machine's own choice."""
    plain = replace(command, report=(), calibrate=None, json=False, workers=-1, device="auto")
    return " ".join(
        map(as_word, ["vitkit", "evaluate", command.model, command.data, *flags(plain)])
    )


def facts_of(command: "Evaluate", classifier: Classifier, device: torch.device) -> dict[str, str]:
    """How it was measured, for whoever reads the report."""
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
