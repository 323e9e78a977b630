"""`vitkit evaluate` on images with one class each: the whole report.

Everything in it is read from the answers of one pass over the images; another model, and corrupted
images, take passes of their own.
"""

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from vitkit import __version__
from vitkit.data import Source, fingerprint
from vitkit.evaluation import (
    Answers,
    Named,
    Part,
    Report,
    accuracy,
    align,
    answers,
    batches_of,
    calibrate,
    check_can_calibrate,
    check_classes,
    check_names,
    find_real,
    paired,
    read_real,
    real_accuracy,
    report,
)
from vitkit.system.console.saying import say
from vitkit.system.console.text import counted
from vitkit.system.machine import autocast
from vitkit.system.processes.ranks import from_rank_0, on_rank_0
from vitkit.verbs.arguments import word_of
from vitkit.verbs.computing import classifier_on
from vitkit.verbs.evaluation import corruptions
from vitkit.verbs.evaluation.outcome import Evaluation
from vitkit.verbs.evaluation.tables import command_line, write
from vitkit.weights import Classifier, Hints, save, with_temperature

if TYPE_CHECKING:
    from vitkit.verbs.evaluation.evaluate import Evaluate


FEW = 50  # images from which a temperature is more than a guess
FITTED_HERE = (
    "the model's temperature was fitted on these very images, so its calibration error and loss look "
    "better here than on others"
)


@dataclass(frozen=True)
class Request:
    """What is to be reported on."""

    settings: "Evaluate"
    classifier: Classifier
    source: Source
    title: str
    """What to call the images."""
    named: Named | None
    """The data set's own protocol, if it goes by a name."""
    device: torch.device


def report_on(request: Request) -> Evaluation:
    """Measure all that the answers to the images tell, and write it to files."""
    # Read, and refuse, before anything is computed
    settings = request.settings
    other = _other(request)
    lists = _lists(request)
    _check(request)

    # The passes over the images, which all ranks share
    given = _answers(request, request.classifier)
    other_given = None
    if other is not None:
        other_given = _answers(request, other)
    robustness = None
    if settings.corruptions:
        robustness = _corrupted(request, given)
    if not on_rank_0():
        return Evaluation(settings, request.title, (), None, request.source)

    # What they tell
    facts = facts_of(settings, request.classifier, request.device)
    found = report(given, request.source, word_of(settings.model), request.title, facts)
    found = replace(found, notes=(*_notes(request), *found.notes))
    if robustness is not None:
        metrics = (*found.metrics, *robustness.metrics)
        found = replace(found, metrics=metrics, robustness=robustness)
    if lists is not None:
        real = real_accuracy(given, request.source, lists)
        found = replace(found, metrics=(*found.metrics, *real))
    if other_given is not None:
        found = _compared(request, found, given, other_given)
    if settings.calibrate:
        found = _calibrated(request, found, given)

    return deliver(settings, found, request.source)


def _check(request: Request) -> None:
    """Raises ValueError for what the model cannot be used for."""
    if request.settings.calibrate:
        check_can_calibrate(request.classifier)
    if request.settings.corruptions:
        corruptions.check(request.settings, request.classifier)


def _lists(request: Request):
    """ReaL's lists of labels, if --real asks for them. Raises ValueError for other images than
    ImageNet's."""
    if not request.settings.real:
        return None
    lists = read_real(from_rank_0(lambda: find_real(request.settings.real)))
    check_names(request.source)
    return lists


def _other(request: Request) -> Classifier | None:
    """The model that --against names. Raises ValueError, with its name, if its classes are not the
    images'."""
    name = request.settings.against
    if not name:
        return None
    precision = request.settings.precision
    other = classifier_on(name, Hints(), "auto", precision, quiet=not on_rank_0())
    try:
        check_classes(other)
        if request.named is None:
            align(request.source.labels, other.labels, request.source.targets)
        else:
            request.named.choice(other.labels)
    except ValueError as error:
        raise ValueError(f"--against {word_of(name)}: {error}") from None
    return other


def _answers(
    request: Request,
    classifier: Classifier,
    source: Source | None = None,
    text: str = "evaluating",
) -> Answers:
    """What a model answers to the images of all ranks; to the request's, unless others are
    given."""
    settings = request.settings
    source = source or request.source
    ready = classifier.to(request.device).for_inference()
    choice = None
    if request.named is not None:
        check_classes(ready)
        choice = request.named.choice(ready.labels)
    batches = batches_of(ready, source, text, settings.batch, settings.workers)
    part = Part(source, batches)
    with autocast(request.device, settings.precision):
        return answers(ready, part, bool(settings.calibrate), choice)


def _corrupted(request: Request, given: Answers):
    """The model's accuracy on corrupted images, beside that on these."""

    def ask(classifier: Classifier, images: Source, text: str) -> Answers:
        return _answers(request, classifier, images, text)

    clean = next(accuracy(given))
    return corruptions.measure(request.settings, request.classifier, request.source, clean, ask)


def _notes(request: Request) -> list[str]:
    """What a reader should know, apart from what the answers tell."""
    notes = []
    if request.named is not None:
        notes += request.named.notes
    if request.classifier.origin.get("temperature_images") == fingerprint(request.source):
        notes.append(FITTED_HERE)
    return notes


def _compared(request: Request, found: Report, given: Answers, other_given: Answers) -> Report:
    """The report with the difference from the other model."""
    notes = list(found.notes)
    for note in other_given.notes:
        if note not in found.notes:
            notes.append(f"the second model: {note}")
    return replace(
        found,
        notes=tuple(notes),
        other=word_of(request.settings.against),
        paired=paired(given, other_given),
    )


def _calibrated(request: Request, found: Report, given: Answers) -> Report:
    """The report with the temperature that was fitted; the model is saved with it."""
    calibration = calibrate(given)
    calibrated = with_temperature(request.classifier, calibration.temperature)
    calibrated.origin["temperature_fitted_on"] = request.title
    calibrated.origin["temperature_images"] = fingerprint(request.source)
    save(calibrated, request.settings.calibrate)
    notes = found.notes
    if len(given) < FEW:
        notes = (*notes, f"a temperature from {counted(len(given), 'image')} is a rough guess")
    return replace(found, notes=notes, calibration=calibration)


def deliver(settings: "Evaluate", found: Report, source: Source) -> Evaluation:
    """An evaluation, whose report is written to the files that were asked for."""
    written = write(settings.report, found, source)
    if settings.calibrate:
        written.append(settings.calibrate)
    if settings.json:  # standard output is for the JSON alone
        for path in written:
            say(f"wrote {path}")
    return Evaluation(settings, found.images, tuple(found.metrics), found, source, tuple(written))


def facts_of(settings: "Evaluate", classifier: Classifier, device: torch.device) -> dict[str, str]:
    """How it was measured, for whoever reads the report."""
    where = str(device)
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    return {
        "command": command_line(settings),
        "preprocessing": str(classifier.preprocessing),
        "computed in": f"{settings.precision} on {where}",
        "with": f"vitkit {__version__}, PyTorch {torch.__version__}",
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }
