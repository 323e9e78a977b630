"""The evaluators that a run has too, on any model and any images."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from tyro.conf import arg

from vitkit.data import (
    Columns,
    Source,
    Splits,
    fingerprint,
    grouped_columns,
    grouped_to_measure,
    parts_at,
    source_at,
    splits_at,
    subset,
)
from vitkit.evaluation import (
    EVALUATORS,
    SETS,
    USUAL,
    Corruption,
    Evaluator,
    EvaluatorName,
    Named,
    Part,
    SetName,
    Subject,
    batches_of,
    is_imagenet_c,
    learns,
    open_named,
    shot_notes,
)
from vitkit.runtimes import is_exported
from vitkit.system.console.messages import say
from vitkit.system.console.text import as_word, counted, printable
from vitkit.system.errors import BadData, BadSettings, VitkitError
from vitkit.system.machine import autocast
from vitkit.system.processes.ranks import from_rank_0, on_rank_0, process_group
from vitkit.system.storage.addresses import shown_address
from vitkit.system.storage.private import public
from vitkit.verbs.arguments import (
    Data,
    DataColumns,
    DecodingWorkers,
    Device,
    GroupsToMeasure,
    ModelHints,
    ModelOrFile,
    OnBadImage,
    Precision,
    Runtime,
    pick_precision,
    word_of,
)
from vitkit.verbs.computing import classifier_on
from vitkit.verbs.definition import verb
from vitkit.verbs.evaluation.outcome import Evaluation, check_files
from vitkit.verbs.evaluation.report import Request, check_imagenet_c, report_on, report_on_files
from vitkit.verbs.sources import without_broken, without_unknown
from vitkit.weights import Classifier, Hints, check_answers

WITHOUT_HEAD = {"neighbours", "fewshot"}  # evaluators of features


@dataclass(frozen=True)
class Evaluate:
    """Measure how good a model is on images: its accuracy, if each image has a label. Every image
    counts exactly once."""

    model: ModelOrFile
    data: Data
    against: Annotated[str, arg(metavar="MODEL")] = ""
    """Another model to measure on the same images: prints the difference, and whether chance
    explains it."""
    report: tuple[Path, ...] = ()
    """Files to write: .html is a page with figures, classes and the most confident mistakes; .json
    has all numbers; .png is a contact sheet of the mistakes, or with --against of the images on
    which the models disagree."""
    calibrate: Path | None = None
    """Fit a temperature on these images, and save the model, with calibrated probabilities, in this
    directory. Do not measure on the same images afterwards."""
    real: Path | None = None
    """ReaL's real.json, or download: also counts an answer as right if it is in the image's list of
    labels. DATA is ImageNet's validation part, in any folders, with its original file names."""
    named: Annotated[SetName | Literal["imagenet-c"] | None, arg(name="as")] = None
    """Name of DATA, if it is a data set with a protocol of its own, which determines the classes of
    its folders and the answers that count (docs/evaluation.md)."""
    corruptions: Annotated[
        tuple[Corruption | Literal["common"], ...], arg(metavar="{common}|NAME...")
    ] = ()
    """Also measure the accuracy with these corruptions of the images, each at five severities;
    common means ImageNet-C's fifteen."""
    evals: tuple[EvaluatorName, ...] = ()
    """Evaluators to run. Default: those that fit the labels. `neighbours` works without a head."""
    split: Literal["train", "val", "test"] | None = None
    """Part of the data to evaluate. Default: the test part, else the val part, else the images that
    were held out when the model was trained, else all images."""
    limit: int = 0
    """Largest number of images, chosen evenly from all; 0 is all."""
    columns: DataColumns = field(default_factory=Columns)
    groups: GroupsToMeasure = "auto"
    on_bad_image: OnBadImage = "fail"
    on_unknown_class: Literal["fail", "skip"] = "fail"
    """What to do with images of a class that the model does not know: stop, or skip them and print how
    many there are."""
    batch: int = 64
    """Images per forward pass."""
    workers: DecodingWorkers = -1
    runtime: Runtime = "auto"
    precision: Precision = "float32"
    """float32 by default, so that a measurement does not depend on the machine."""
    device: Device = "auto"
    json: bool = False
    """Print the metrics as one line of JSON: {name: {"value", "unit", "interval"}}."""
    hints: ModelHints = field(default_factory=Hints)


@verb
def evaluate(settings: Evaluate) -> Evaluation:
    """Measure how good a model is on images; every image counts exactly once. Under torchrun each
    process measures its share, and rank 0 has the results.

    Raises ValueError for images without labels, and for settings that do not go together.
    """
    if settings.batch < 1:
        raise BadSettings(f"`batch` is {settings.batch}; it is a number of images, at least 1")
    if settings.workers < -1:
        raise BadSettings(f"`workers` is {settings.workers}; it is a number of processes, or -1")
    if settings.limit < 0:
        raise BadSettings(f"`limit` is {settings.limit}; it is a number of images, or 0 for all")
    check_files(settings.report, settings.calibrate)
    is_file = isinstance(settings.model, str) and is_exported(settings.model)
    if settings.calibrate and (is_file or settings.runtime not in ("auto", "torch")):
        raise BadSettings(
            "`calibrate` saves the model with a temperature, and an exported file is not saved again: "
            "calibrate the model, and export that"
        )
    with process_group(settings.device) as device:
        precision = pick_precision(settings.precision, device)
        return _evaluate(replace(settings, precision=precision), device)


def _evaluate(settings: Evaluate, device: torch.device) -> Evaluation:
    """What every rank does."""
    # The model and the images
    if settings.named == "imagenet-c":
        check_imagenet_c(settings)
    loaded = classifier_on(settings.model, settings.hints, settings.runtime, settings.precision)
    if not settings.evals or not set(settings.evals) <= WITHOUT_HEAD:
        check_answers(
            loaded, "train one: vitkit finetune; or measure its features: `evals='neighbours'`"
        )
    corrupted = settings.corruptions or settings.named == "imagenet-c"
    if corrupted and getattr(loaded.model, "takes_pictures", False):
        raise BadSettings(
            f"{settings.model} prepares images itself, and those that are corrupted are prepared already; "
            "give the model, or a file that was exported without `preprocessing`"
        )
    if settings.named == "imagenet-c":
        return report_on_files(settings, loaded, device)
    named = None
    notes: tuple[str, ...] = ()
    if settings.named is None and is_imagenet_c(settings.data):
        raise BadSettings(
            f"{settings.data} has the folders of ImageNet-C; `named='imagenet-c'` measures each of them"
        )
    if settings.named:
        named, source, title = named_images(settings, loaded)
    else:
        source, title, notes = images_of(settings, loaded)

    # Images with one class each get a whole report, all others their evaluators
    if source.target_kind == "class" and not settings.evals:
        return report_on(Request(settings, loaded, source, title, named, device, notes))
    for_reports = ("against", "report", "calibrate", "real", "named", "corruptions")
    if any(getattr(settings, name) for name in for_reports):
        raise BadSettings(
            "`against`, `report`, `calibrate`, `real`, `named` and `corruptions` are for images with "
            f"one class each, and without `evals`; the targets of {settings.data} are of the kind "
            f"{source.target_kind!r}"
        )
    evaluators = _evaluators(settings, source)
    if on_rank_0():
        for sentence in notes:
            say(printable(sentence))
    classifier = loaded.to(device).for_inference()
    # One pass over the images for each evaluator
    metrics = []
    for evaluator in evaluators:
        heading = f"evaluating {type(evaluator).__name__}"
        batches = batches_of(classifier, source, heading, settings.batch, settings.workers)
        part = Part(source, batches, train_part(settings, evaluator, source))
        with autocast(classifier.device, settings.precision):
            metrics += evaluator.measure(Subject(classifier), part)
    return Evaluation(settings, title, tuple(metrics), None, source)


def _evaluators(settings: Evaluate, source: Source) -> Sequence[Evaluator]:
    """The evaluators that --evals names, or the usual ones for such images. Raises ValueError if
    they cannot measure anything on them."""
    if not settings.evals:
        if not USUAL[source.target_kind]:
            raise BadData(
                f"{settings.data} has no labels, so the model's answers cannot be checked; vitkit "
                f"predict {word_of(settings.model)} {as_word(settings.data)} prints them"
            )
        return USUAL[source.target_kind]
    for name in settings.evals:
        if not EVALUATORS[name].judges(source.target_kind):
            raise BadSettings(
                f"{name} cannot be measured on {settings.data}, whose targets are of the kind "
                f"{source.target_kind!r}; leave out `evals` to measure what can be"
            )
    return [EVALUATORS[name] for name in settings.evals]


def images_of(settings: "Evaluate", classifier: Classifier) -> tuple[Source, str, tuple[str, ...]]:
    """The images to evaluate on, with their groups; what to call them; and what to say of the groups.

    For the data set that a model was trained on, these are the images that its training held out.
    """
    source, note = _opened(settings, classifier)
    if settings.on_bad_image == "skip":
        source = without_broken(source)
    if settings.on_unknown_class == "skip" and classifier.labels:
        source = without_unknown(source, classifier.labels)
    count = counted(len(source), "image")
    if 0 < settings.limit < len(source):
        chosen = np.arange(settings.limit) * len(source) // settings.limit
        count = f"{settings.limit:,} of {count}"
        source = subset(source, chosen)
    title = f"{count} of {shown_address(settings.data)}{note}"
    if settings.groups == "none":
        return replace(source, groups=None), title, ()
    if source.target_kind == "none":
        return source, title, ()  # no answer is right or wrong
    groups, notes = from_rank_0(lambda: _groups_of(source))
    return replace(source, groups=groups), title, notes


def _groups_of(source: Source) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """The groups of images, (N,), and what to say of them."""
    source, notes = grouped_to_measure(source)
    return source.groups, notes


def _opened(settings: "Evaluate", classifier: Classifier) -> tuple[Source, str]:
    """The images, and what a reader should know of them, to be added to their name."""
    origin = classifier.origin
    columns = settings.columns
    if columns.target == "auto" and _predicts_numbers(classifier):
        columns = _columns_of_numbers(settings)
    with_groups = grouped_columns(columns, settings.groups)
    note = ""
    if held_out := origin.get("held_out"):
        splits = _divided(settings.data, columns, origin)
        name = settings.split or "test"
        part = getattr(splits, name)
        if part and splits.made_fingerprint == held_out:
            if name == "train":
                return part, ", the images that the model learned from"
            if settings.groups not in ("auto", "none"):
                part = _grouped_by(part, settings.data, with_groups)
            return part, f", the {name} part that was held out when the model was trained"
        if _is_called_so(settings.data, origin):
            note = (
                "; the data set of this name that the model was trained on was another one, or has "
                "changed since, so it may know some of them"
            )
    source = source_at(settings.data, with_groups, settings.split, typed=True)
    if origin.get("learned") and fingerprint(source) in origin["learned"]:
        note = ", images that the model learned from"
    return source, note


def _grouped_by(part: Source, data: str, columns: Columns) -> Source:
    """A part of a data set, with the groups that the columns name: it may have been divided by others."""
    group_of = {}
    for source in parts_at(data, columns, typed=True).sources.values():
        group_of |= dict(zip(source.rows.tolist(), source.groups.tolist(), strict=True))
    return replace(part, groups=np.array([group_of[row] for row in part.rows.tolist()]))


def _is_called_so(data: str, origin: dict) -> bool:
    """Whether data has the name of those that a model was trained on."""
    return Path(str(public(data))).name == Path(origin.get("data", "")).name


def _divided(data: str, columns: Columns, origin: dict) -> Splits:
    """The parts of images, as those that a model was trained on were divided; without its groups if
    these have no such column."""
    seed = origin.get("split_seed", 0)
    groups = origin.get("groups", "none")  # a model may be older than groups
    try:
        return splits_at(data, columns, seed, groups, typed=True)
    except VitkitError:
        if groups in ("auto", "none"):
            raise
        return splits_at(data, columns, seed, "none", typed=True)


def named_images(settings: "Evaluate", classifier: Classifier) -> tuple["Named", Source, str]:
    """A data set that goes by a name, its images, and what to call them.

    Raises ValueError for images that are not of it, and for options that its protocol has no
    meaning for.
    """
    if settings.calibrate and settings.named != "imagenet":
        raise BadSettings(
            f"`calibrate` with `named={settings.named!r}` would fit a temperature to answers that the model "
            "is not asked for elsewhere, on images that are for testing; leave one of them out"
        )
    if settings.real and settings.named != "imagenet":
        raise BadSettings(
            f"`real` has labels for ImageNet's validation images, and `named` says {settings.named}"
        )
    if settings.limit:
        raise BadSettings(
            f"`named={settings.named!r}` measures all of its images; leave out `limit`"
        )
    if settings.on_unknown_class != "fail":
        raise BadSettings(
            f"`named={settings.named!r}` says itself which classes count; leave out `on_unknown_class`"
        )
    columns = grouped_columns(settings.columns, settings.groups)
    named = open_named(settings.named, settings.data, columns, settings.split, typed=True)
    if settings.on_bad_image == "skip":
        named = named._replace(source=without_broken(named.source))
    origin = classifier.origin
    if origin.get("held_out") and _is_called_so(settings.data, origin):
        note = (
            "the model was trained on a data set of this name, of which a part was held out: it may "
            "know the other images, and `named` measures on all"
        )
        named = named._replace(notes=(*named.notes, note))
    images = counted(len(named.source), "image")
    title = f"{images} of {SETS[settings.named].title} ({shown_address(settings.data)})"
    return named, named.source, title


def train_part(settings: "Evaluate", evaluator: Evaluator, source: Source) -> Source | None:
    """The training images of the data, for an evaluator that learns from them. None for other
    evaluators, or if these images are measured themselves."""
    if not learns(evaluator):
        return None
    train = parts_at(settings.data, settings.columns, typed=True).sources.get("train")
    if train is None or np.isin(train.rows, source.rows).any():
        return None
    if on_rank_0() and train.target_kind == "class":
        for sentence in shot_notes(train, source, max(evaluator.shots)):
            say(printable(sentence))
    return train


def _predicts_numbers(classifier: Classifier) -> bool:
    """Whether the outputs of a model's head are numbers, not logits of classes: a regression."""
    return bool(classifier.labels) and classifier.activation == "none"


def _columns_of_numbers(settings: "Evaluate") -> Columns:
    """The columns for a model whose outputs are numbers: whole ones are numbers too, not classes.
    Data with names is left as it is, so that the evaluator says what does not fit."""
    columns = replace(settings.columns, target="number")
    try:
        source_at(settings.data, columns, settings.split, typed=True)
    except VitkitError:
        return settings.columns
    return columns
