"""`vitkit evaluate` on images with one class each: the whole report.

Everything in it is read from the answers of one pass over the images; another model, and corrupted
images, take passes of their own.
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

FEW = 50  # images from which a temperature is more than a guess
FITTED_HERE = (
    "the model's temperature was fitted on these very images, so its calibration error and loss look "
    "better here than on others"
)


@dataclass(frozen=True)
class ReportRequest:
    """A measurement on images with one class each."""

    asked: Measurement
    classifier: Classifier
    source: Source
    title: str
    """What to call the images."""
    named: Named | None
    """The data set's own protocol, if it goes by a name."""
    device: torch.device
    notes: tuple[str, ...] = ()
    """What a reader should know of the images, such as which belong together."""


def report_on(request: ReportRequest) -> Evaluation:
    """Measure all that the answers to the images tell, and write it to files."""
    # Read, and refuse, before anything is computed
    asked = request.asked
    other = _other(request)
    lists = _lists(request)
    if request.asked.calibrate:
        check_can_calibrate(request.classifier)
    if request.asked.corruptions:
        if request.asked.against or request.asked.calibrate or request.asked.real:
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
    if asked.corruptions:
        corrupted = _corrupted(request, given)
    if not on_rank_0():
        return Evaluation.of(asked, request.title, (), None, request.source)

    # What they tell
    facts = facts_of(asked, request.classifier, request.device)
    found = report(given, request.source, name_of(asked.model), request.title, facts)
    # What a reader should know, apart from what the answers tell
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
    if asked.calibrate is not None:
        found = _calibrated(request, found, given, asked.calibrate)

    return deliver(asked, found, request.source)


def _lists(request: ReportRequest):
    """ReaL's lists of labels, if `real` asks for them. Raises VitkitError for other images than
    ImageNet's."""
    real = request.asked.real
    if real is None:
        return None
    lists = read_real(from_rank_0(lambda: find_real(real)))
    check_names(request.source)
    return lists


def _other(request: ReportRequest) -> Classifier | None:
    """The model that `against` names. Raises VitkitError, with its name, if its classes are not the
    images'."""
    name = request.asked.against
    if not name:
        return None
    precision = request.asked.precision
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
    """What a model answers to the images of all ranks; to the request's, unless others are
    given."""
    asked = request.asked
    source = source or request.source
    ready = classifier.to(request.device).for_inference()
    choice = None
    if request.named is not None:
        check_classes(ready)
        choice = request.named.choice(ready.labels)
    batches = batches_of(ready, source, text, asked.batch, asked.workers)
    part = Part(source, batches)
    with autocast(request.device, asked.precision):
        return answers(ready, part, bool(asked.calibrate), choice)


def _corrupted(request: ReportRequest, given: Answers):
    """The model's accuracy on corrupted images, beside that on these."""
    clean = next(accuracy(given))
    # Measure the corruptions that a command names, at every severity
    asked = request.asked.corruptions
    common = COMMON if "common" in asked else ()
    own = [name for name in asked if name != "common"]
    names = list(dict.fromkeys((*common, *own)))

    # One decode for all passes, if the images fit into memory
    workers = request.asked.workers
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
    """The report with the difference from the other model."""
    notes = list(found.notes)
    for note in other_given.notes:
        if note not in found.notes:
            notes.append(f"the second model: {note}")
    return replace(
        found,
        notes=tuple(notes),
        other=name_of(request.asked.against),
        paired=paired(given, other_given),
    )


def _calibrated(request: ReportRequest, found: Report, given: Answers, directory: Path) -> Report:
    """The report with the temperature that was fitted; the model is saved with it, in a directory."""
    calibration = calibrate(given)
    calibrated = with_temperature(request.classifier, calibration.temperature)
    calibrated.origin["temperature_fitted_on"] = request.title
    calibrated.origin["temperature_images"] = fingerprint(request.source)
    save(calibrated, directory)
    notes = found.notes
    if group_count(len(given), given.groups) < FEW:
        notes = (*notes, f"a temperature from {counted(len(given), 'image')} is a rough guess")
    return replace(found, notes=notes, calibration=calibration)


def deliver(asked: Measurement, found: Report, source: Source) -> Evaluation:
    """An evaluation, whose report is written to the files that were asked for."""
    written = write(asked.report, found, source)
    if asked.calibrate:
        written.append(asked.calibrate)
    if asked.json:  # standard output is for the JSON alone
        for path in written:
            say(f"wrote {path}")
    return Evaluation.of(asked, found.images, tuple(found.metrics), found, source, tuple(written))


def facts_of(asked: Measurement, classifier: Classifier, device: torch.device) -> dict[str, str]:
    """The facts of the measurement, for the reader of the report."""
    where = str(device)
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    return {
        "command": command_line(asked),
        "preprocessing": str(classifier.preprocessing),
        "computed in": f"{asked.precision} on {where}",
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


def check_imagenet_c(asked: Measurement) -> None:
    """Raises BadSettings for settings that have no meaning for 75 folders of images."""
    for name, why in REFUSED.items():
        if getattr(asked, name):
            raise BadSettings(f"`{name}` {why}; leave it out with `named='imagenet-c'`")
    if asked.on_bad_image == "skip" or asked.on_unknown_class == "skip":
        raise BadSettings(
            "`named='imagenet-c'` compares the same images in 75 folders, so none is skipped; leave out "
            "`on_bad_image` and `on_unknown_class`"
        )
    for file in asked.report:
        if file.suffix.lower() == ".png":
            raise BadSettings(
                f"`report={str(file)!r}` would be a contact sheet, and `named='imagenet-c'` keeps no single "
                "answers; write .html or .json"
            )


def report_on_files(asked: Measurement, classifier: Classifier, device: torch.device) -> Evaluation:
    """Measure the accuracy under every corruption in the folder, at every severity, with the errors
    in proportion to AlexNet's."""
    # The folders, before anything is computed
    check_answers(classifier)
    check_classes(classifier)
    corruptions, notes = open_imagenet_c(asked.data)
    whole = replace(classifier, preprocessing=uncropped(classifier.preprocessing))
    ready = whole.to(device).for_inference()

    def answers_to(named: Named, title: str) -> Answers:
        choice = named.choice(ready.labels)
        batches = batches_of(ready, named.source, title, asked.batch, asked.workers)
        with autocast(ready.device, asked.precision):
            return answers(ready, Part(named.source, batches), choice=choice)

    measured = robustness_on_files(corruptions, answers_to)
    if not on_rank_0():
        return Evaluation.of(asked, "", (), None, corruptions[0].severities[0].source)

    first = corruptions[0]
    images = counted(first.images, "image")
    found = Report(
        model=name_of(asked.model),
        images=f"{images} of ImageNet-C ({asked.data}), {counted(len(corruptions), 'corruption')}",
        facts=facts_of(asked, whole, device),
        metrics=tuple(measured.metrics),
        notes=notes,
        robustness=measured,
    )
    return deliver(asked, found, first.severities[0].source)
