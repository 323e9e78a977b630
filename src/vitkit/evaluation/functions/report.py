"""`vitkit evaluate` on images with one class each: the full report.

One pass over the images gives the answers from which the report is computed; a second model, and corrupted
images, take further passes.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitkit import __version__
from vitkit.data import Source, default_workers, fingerprint
from vitkit.evaluation.benchmarks.corruptions import (
    COMMON,
    MEMORY,
    SEVERITIES,
    Corruption,
    check_can_corrupt,
    corrupt,
    prepare_once,
    robustness,
    uncropped,
)
from vitkit.evaluation.benchmarks.imagenet import check_names, find_real, read_real, real_accuracy
from vitkit.evaluation.benchmarks.imagenet_c import open_imagenet_c, robustness_on_files
from vitkit.evaluation.benchmarks.labels import align
from vitkit.evaluation.benchmarks.named import Named
from vitkit.evaluation.evaluator import Part, batches_of
from vitkit.evaluation.functions.outcome import Evaluation, Measurement, command_line, write
from vitkit.evaluation.metrics.answers import Answers, answers, check_classes
from vitkit.evaluation.metrics.calibration import calibrate, check_can_calibrate
from vitkit.evaluation.metrics.classification import accuracy
from vitkit.evaluation.metrics.defects import knows_good_images, unremembered
from vitkit.evaluation.metrics.metric import group_count
from vitkit.evaluation.metrics.paired import paired
from vitkit.evaluation.reports.report import Report, report
from vitkit.runtimes.given import classifier_on
from vitkit.system.console.messages import say
from vitkit.system.console.progress import bar, silent
from vitkit.system.console.text import counted
from vitkit.system.errors import BadSettings, VitkitError
from vitkit.system.functions.arguments import name_of
from vitkit.system.machine import autocast
from vitkit.system.processes.ranks import from_rank_0, on_rank_0, world
from vitkit.weights import Classifier, Hints, check_answers, save, with_temperature

FEW = 50  # smallest number of independent images for a reliable temperature
FITTED_HERE = (
    "the model's temperature was fitted on these very images, so its calibration error and loss look "
    "better here than on others"
)


@dataclass(frozen=True)
class ReportRequest:
    """A request for a report: the arguments of `evaluate`, the opened model and the opened images."""

    settings: Measurement
    classifier: Classifier
    source: Source
    title: str
    """The title of the images: their number, data set and part."""
    named: Named | None
    """The images as a named data set, with its protocol; None for other data."""
    device: torch.device
    notes: tuple[str, ...] = ()
    """Sentences about the images for readers of the report, such as how they are grouped."""


def report_on(request: ReportRequest) -> Evaluation:
    """Compute the report, and write it to files."""
    # Open and check everything before anything is computed
    settings = request.settings
    other = _other(request)
    request = _unremembered(request, other)
    lists = _lists(request)
    if request.settings.calibrate:
        check_can_calibrate(request.classifier)
    if request.settings.corruptions:
        if request.settings.against or request.settings.calibrate or request.settings.real:
            raise BadSettings(
                "`corruptions` measures one model; leave out `against`, `calibrate` and `real`"
            )
        check_can_corrupt(request.classifier.preprocessing)

    # The passes over the images, which all ranks share
    given = _answers(request, request.classifier)
    other_given = None
    if other is not None:
        other_given = _answers(request, other)
    corrupted = None
    if settings.corruptions:
        corrupted = _corrupted(request, given)
    if not on_rank_0():
        return Evaluation.of(settings, request.title, (), None, request.source)

    # The report
    facts = facts_of(settings, request.classifier, request.device)
    found = report(given, request.source, name_of(settings.model), request.title, facts)
    notes = list(request.notes)
    if request.named is not None:
        notes += request.named.notes
    if request.classifier.origin.get("temperature_images") == fingerprint(request.source):
        notes.append(FITTED_HERE)
    found = replace(found, notes=(*notes, *found.notes))
    if corrupted is not None:
        metrics = (*found.metrics, *corrupted.metrics)
        found = replace(found, metrics=metrics, robustness=corrupted)
    if lists is not None:
        real = real_accuracy(given, request.source, lists)
        found = replace(found, metrics=(*found.metrics, *real))
    if other_given is not None:
        found = _compared(request, found, given, other_given)
    if settings.calibrate is not None:
        found = _calibrated(request, found, given, settings.calibrate)

    return deliver(settings, found, request.source)


def _unremembered(request: ReportRequest, other: Classifier | None) -> ReportRequest:
    """The request without images that one of its models remembers: they are at no distance from it. Raises BadData
    if no image is left."""
    for classifier in (request.classifier, other):
        if classifier is not None and knows_good_images(classifier):
            source, note = unremembered(request.source, classifier)
            request = replace(request, source=source, title=request.title + note)
    return request


def _lists(request: ReportRequest):
    """ReaL's lists of labels; None without `real`. Raises VitkitError for other images than ImageNet's
    validation images."""
    real = request.settings.real
    if real is None:
        return None
    lists = read_real(from_rank_0(lambda: find_real(real)))
    check_names(request.source)
    return lists


def _other(request: ReportRequest) -> Classifier | None:
    """The model of `against`; None without it. Raises VitkitError, with the model's name, if it does not
    know the images' classes."""
    name = request.settings.against
    if not name:
        return None
    precision = request.settings.precision
    other = classifier_on(name, Hints(), "auto", precision)
    try:
        check_answers(other)
        check_classes(other)
        if request.named is None:
            align(request.source.labels, other.labels, request.source.target_array)
        else:
            request.named.choice(other.labels)
    except VitkitError as error:
        raise BadSettings(f"`against={name_of(name)}`: {error}") from None
    return other


def _answers(
    request: ReportRequest,
    classifier: Classifier,
    source: Source | None = None,
    text: str = "evaluating",
) -> Answers:
    """A model's answers to the images of all ranks: those of `source`, by default the request's."""
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


def _corrupted(request: ReportRequest, given: Answers):
    """The model's accuracy on corrupted images, and that on the clean images, from their answers."""
    clean = next(accuracy(given))
    requested = request.settings.corruptions
    common = COMMON if "common" in requested else ()
    own = [name for name in requested if name != "common"]
    names = list(dict.fromkeys((*common, *own)))

    # Decode the images once for all passes, if they fit into memory
    workers = request.settings.workers
    if workers < 0:
        workers = default_workers(request.source)
    shown = bar("decoding") if on_rank_0() else silent
    limit = MEMORY // world().world_size
    kept = prepare_once(request.source, request.classifier.preprocessing, limit, workers, shown)

    def corrupted(corruption: Corruption, severity: int) -> Answers:
        images, rest = corrupt(kept, request.classifier.preprocessing, corruption, severity)
        title = f"{corruption} {severity}/{len(SEVERITIES)} ({names.index(corruption) + 1} of {len(names)})"
        prepared = replace(request.classifier, preprocessing=rest)
        return _answers(request, prepared, images, title)

    return robustness(clean, names, corrupted)


def _compared(
    request: ReportRequest, found: Report, given: Answers, other_given: Answers
) -> Report:
    """The report with the comparison with the other model."""
    notes = list(found.notes)
    for note in other_given.notes:
        if note not in found.notes:
            notes.append(f"the second model: {note}")
    return replace(
        found,
        notes=tuple(notes),
        other=name_of(request.settings.against),
        paired=paired(given, other_given),
    )


def _calibrated(request: ReportRequest, found: Report, given: Answers, directory: Path) -> Report:
    """The report with a fitted temperature; saves the model with this temperature in a directory."""
    calibration = calibrate(given)
    calibrated = with_temperature(request.classifier, calibration.temperature)
    calibrated.origin["temperature_fitted_on"] = request.title
    calibrated.origin["temperature_images"] = fingerprint(request.source)
    save(calibrated, directory)
    notes = found.notes
    if group_count(len(given), given.groups) < FEW:
        notes = (*notes, f"a temperature from {counted(len(given), 'image')} is a rough guess")
    return replace(found, notes=notes, calibration=calibration)


def deliver(settings: Measurement, found: Report, source: Source) -> Evaluation:
    """Write the report to the requested files, and return the evaluation."""
    written = write(settings.report, found, source)
    if settings.calibrate:
        written.append(settings.calibrate)
    if settings.json:  # standard output is for the JSON alone
        for path in written:
            say(f"wrote {path}")
    return Evaluation.of(
        settings, found.images, tuple(found.metrics), found, source, tuple(written)
    )


def facts_of(settings: Measurement, classifier: Classifier, device: torch.device) -> dict[str, str]:
    """How the report was computed, for its readers: command, preprocessing, arithmetic, versions, date."""
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


# The files of ImageNet-C

REFUSED = {
    "against": "compares two models on one set of images",
    "calibrate": "would fit a temperature to images that are for testing",
    "real": "is for ImageNet's validation images as they are",
    "corruptions": "would corrupt the images again",
    "evals": "measures one set of images",
    "split": "names a part, and these have none",
}


def check_imagenet_c(settings: Measurement) -> None:
    """Raises BadSettings for arguments that do not go with 75 folders of images."""
    for name, why in REFUSED.items():
        if getattr(settings, name):
            raise BadSettings(f"`{name}` {why}; leave it out with `named='imagenet-c'`")
    if settings.on_bad_image == "skip" or settings.on_unknown_class == "skip":
        raise BadSettings(
            "`named='imagenet-c'` compares the same images in 75 folders, so none is skipped; leave out "
            "`on_bad_image` and `on_unknown_class`"
        )
    for file in settings.report:
        if file.suffix.lower() == ".png":
            raise BadSettings(
                f"`report={str(file)!r}` would be a contact sheet, and `named='imagenet-c'` does not keep "
                "single answers; write .html or .json"
            )


def report_on_files(
    settings: Measurement, classifier: Classifier, device: torch.device
) -> Evaluation:
    """Measure the accuracy under every corruption in the folder, at every severity, and the errors
    divided by AlexNet's."""
    # Open the folders before anything is computed
    check_answers(classifier)
    check_classes(classifier)
    corruptions, notes = open_imagenet_c(settings.data)
    whole = replace(classifier, preprocessing=uncropped(classifier.preprocessing))
    ready = whole.to(device).for_inference()

    def answers_to(named: Named, title: str) -> Answers:
        choice = named.choice(ready.labels)
        batches = batches_of(ready, named.source, title, settings.batch, settings.workers)
        with autocast(ready.device, settings.precision):
            return answers(ready, Part(named.source, batches), choice=choice)

    measured = robustness_on_files(corruptions, answers_to)
    if not on_rank_0():
        return Evaluation.of(settings, "", (), None, corruptions[0].severities[0].source)

    first = corruptions[0]
    images = counted(first.images, "image")
    found = Report(
        model=name_of(settings.model),
        images=f"{images} of ImageNet-C ({settings.data}), {counted(len(corruptions), 'corruption')}",
        facts=facts_of(settings, whole, device),
        metrics=tuple(measured.metrics),
        notes=notes,
        robustness=measured,
    )
    return deliver(settings, found, first.severities[0].source)
