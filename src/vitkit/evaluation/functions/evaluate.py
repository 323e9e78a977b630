"""`vitkit.evaluate`: measures any model on any images, with the evaluators that runs use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal, Unpack

import numpy as np
import torch

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
from vitkit.evaluation.benchmarks.corruptions import Corruption
from vitkit.evaluation.benchmarks.imagenet_c import is_imagenet_c
from vitkit.evaluation.benchmarks.named import SETS, Named, SetName, open_named
from vitkit.evaluation.evaluator import Evaluator, Part, Subject, batches_of, learns
from vitkit.evaluation.evaluators import EVALUATORS, USUAL, EvaluatorName
from vitkit.evaluation.functions.masks import classifies_pixels, evaluate_masks
from vitkit.evaluation.functions.outcome import Evaluation, Measurement, check_files, has_same_name
from vitkit.evaluation.functions.report import (
    ReportRequest,
    check_imagenet_c,
    report_on,
    report_on_files,
)
from vitkit.evaluation.metrics.defects import (
    LEFT_OUT,
    Defects,
    LocatedDefects,
    about_memory,
    good_or_not,
    knows_good_images,
    unremembered,
    without_good_class,
)
from vitkit.evaluation.metrics.metric import Metric
from vitkit.evaluation.probes.fewshot import Fewshot, shot_notes
from vitkit.evaluation.regions import regions_for
from vitkit.evaluation.sources import without_broken, without_unknown
from vitkit.runtimes import RuntimeName, is_exported
from vitkit.runtimes.given import classifier_on
from vitkit.system.console.messages import say
from vitkit.system.console.text import counted, printable
from vitkit.system.errors import BadData, BadSettings, VitkitError
from vitkit.system.functions.arguments import check_limit, pick_precision
from vitkit.system.functions.public import public
from vitkit.system.functions.steps import step
from vitkit.system.functions.types import DataLike, DeviceLike, PathLike, Several, SeveralPaths
from vitkit.system.machine import PrecisionChoice, autocast
from vitkit.system.processes.ranks import from_rank_0, on_rank_0, process_group
from vitkit.system.storage.addresses import shown_address
from vitkit.weights import Classifier, ModelLike, Overrides, check_answers, hints_of

# Settings for images with one class each, without `evals`
FOR_REPORTS = ("against", "report", "calibrate", "real", "named", "corruptions")
WITHOUT_HEAD = {"neighbours", "fewshot"}  # evaluators of features, which need no head


@public
def evaluate(
    model: ModelLike,
    data: DataLike,
    *,
    against: ModelLike = "",
    report: SeveralPaths = (),
    calibrate: PathLike | None = None,
    real: PathLike | None = None,
    named: SetName | Literal["imagenet-c"] | None = None,
    corruptions: Annotated[Several[Corruption | Literal["common"]], "{common}|NAME..."] = (),
    evals: Several[EvaluatorName] = (),
    split: Literal["train", "val", "test"] | None = None,
    limit: int = 0,
    columns: Columns = Columns(),
    groups: Literal["auto", "none"] | str = "auto",
    on_bad_image: Literal["fail", "skip"] = "fail",
    on_unknown_class: Literal["fail", "skip"] = "fail",
    batch: int = 64,
    workers: int = -1,
    runtime: RuntimeName = "auto",
    precision: PrecisionChoice = "float32",
    device: DeviceLike = "auto",
    json: bool = False,
    masks: DataLike = "",
    legend: PathLike | None = None,
    ignore: int | None = None,
    **overrides: Unpack[Overrides],
) -> Evaluation:
    """Measure how good a model is on images: its accuracy, if each image has a label. Every image
    counts exactly once.

    Under torchrun each process measures its share, and rank 0 has the results.

    Args:
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), the name of a published model, or a file of `vitkit.export`
            (.onnx or .xml).
        data: A folder, a manifest, parquet files, tar shards, an address (https://, s3://, gs://),
            hf:NAME on the Hugging Face hub, file.py:function, or digits.
        against: Another model to measure on the same images: prints the difference, and whether chance
            explains it.
        report: Files to write: .html is a page with figures, classes and the most confident mistakes;
            .json has all numbers; .png is a contact sheet of the mistakes, or with `against` of the
            images on which the models disagree.
        calibrate: Fit a temperature on these images, and save the model, with calibrated probabilities,
            in this directory. Do not measure on the same images afterwards.
        real: ReaL's real.json, or download: also counts a prediction as right if it is in the image's
            list of labels. DATA is ImageNet's validation part, in any folders, with its original file
            names.
        named: Name of DATA, if it is a data set with a protocol of its own, which determines the classes
            of its folders and the predictions that count (docs/evaluation.md).
        corruptions: Also measure the accuracy with these corruptions of the images, each at five
            severities; common means ImageNet-C's fifteen.
        evals: Evaluators to run. Default: those that fit the labels. `evals='neighbours'` works without a
            head.
        split: Part of the data to evaluate. Default: the test part, else the val part, else the images
            that were held out when the model was trained, else all images.
        limit: Largest number of images, chosen evenly from all; 0 is all.
        columns: Columns of a table that hold the image and its label. Default: found by their usual
            names.
        groups: Which images belong together, so that their predictions are not independent: intervals and
            tests allow for that. auto: images with the same value in `data.columns.group`; without this
            column, photographs of one burst, which vitkit detects. none: no images. Otherwise the name
            of a column.
        on_bad_image: What to do with a broken image: stop, or skip it and print its name.
        on_unknown_class: What to do with images of a class that the model does not know: stop, or skip
            them and print how many there are.
        batch: Images per forward pass.
        workers: Processes that decode images; -1 follows the CPU quota.
        runtime: Library that computes the predictions: torch, compiled, onnx (ONNX Runtime) or openvino.
            auto is PyTorch for a model; for an exported file, it is the library for which the file was
            written.
        precision: Arithmetic of the matrix products. float32 by default, so that a measurement does not
            depend on the machine.
        device: cpu, cuda, cuda:1 or mps; auto chooses the best one.
        json: Print the metrics as one line of JSON: {name: {"value", "unit", "interval"}}.
        masks: Masks of the images, for a model that classifies every pixel: a folder of files with the images'
            names, a COCO file (.json), or the column of the data that holds them. For a model of good images,
            where the others are defective: masks that are not 0 there, or boxes in a COCO file or in a column.
            Default for such a model: the folder ground_truth in or beside `data`.
        legend: Text or JSON file that says which value or colour of a mask is which class. Default: the legend
            that the model was trained with.
        ignore: Value of a mask whose pixels do not count. Default: that of the training.
        **overrides: What the caller says about the model, and where messages go: `Overrides`.

    Raises:
        BadSettings: If settings do not go together, or the model does not fit the images.
        BadData: If the images have no labels, or cannot be read.
    """
    if batch < 1:
        raise BadSettings(f"`batch` is {batch}; it is a number of images, at least 1")
    if workers < -1:
        raise BadSettings(f"`workers` is {workers}; it is a number of processes, or -1")
    check_limit(limit)
    check_files(report, calibrate)
    is_file = isinstance(model, str) and is_exported(model)
    if calibrate and (is_file or runtime not in ("auto", "torch")):
        raise BadSettings(
            "`calibrate` saves the model with a temperature, and an exported file is not saved again: "
            "calibrate the model, and export that"
        )
    with process_group(device) as opened:
        settings = Measurement(
            model=model,
            data=data,
            against=against,
            report=report,
            calibrate=calibrate,
            real=real,
            named=named,
            corruptions=corruptions,
            evals=evals,
            split=split,
            limit=limit,
            columns=columns,
            groups=groups,
            on_bad_image=on_bad_image,
            on_unknown_class=on_unknown_class,
            batch=batch,
            workers=workers,
            runtime=runtime,
            precision=pick_precision(precision, opened),
            json=json,
            hints=hints_of(overrides),
            masks=masks,
            legend=legend,
            ignore=ignore,
        )
        return _evaluate(settings, opened)


def _evaluate(settings: Measurement, device: torch.device) -> Evaluation:
    """Open the model and the images, and measure; every rank calls this."""
    # The model and the images
    if settings.named == "imagenet-c":
        check_imagenet_c(settings)
    loaded = classifier_on(settings.model, settings.hints, settings.runtime, settings.precision)
    if classifies_pixels(loaded) or (settings.masks and not knows_good_images(loaded)):
        return evaluate_masks(settings, loaded, device)
    if not settings.evals or not set(settings.evals) <= WITHOUT_HEAD:
        check_answers(
            loaded, "train one: `vitkit.finetune`; or measure its features: `evals='neighbours'`"
        )
    corrupted = settings.corruptions or settings.named == "imagenet-c"
    if corrupted and getattr(loaded.model, "takes_pictures", False):
        raise BadSettings(
            f"{settings.model} prepares images itself, and corrupted images are prepared already; "
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
    if settings.named is not None:
        named, source, title = named_images(settings.named, settings, loaded)
    else:
        source, title, notes = images_of(settings, loaded)
    if knows_good_images(loaded):
        _check_for_good_images(settings)
        if not any(getattr(settings, name) for name in FOR_REPORTS):
            settings = replace(settings, evals=settings.evals or ("defects",))

    # Images with one class each get a full report, all others the metrics of their evaluators
    if source.target_kind == "class" and not settings.evals:
        return report_on(ReportRequest(settings, loaded, source, title, named, device, notes))
    if any(getattr(settings, name) for name in FOR_REPORTS):
        raise BadSettings(
            "`against`, `report`, `calibrate`, `real`, `named` and `corruptions` are for images with "
            f"one class each, and without `evals`; the targets of {settings.data} are of the kind "
            f"{source.target_kind!r}"
        )
    evaluators = _evaluators(settings, source)
    if knows_good_images(loaded) and settings.evals != ("defects",):
        source, note = unremembered(source, loaded)
        title += note
    if knows_good_images(loaded) and "defects" in settings.evals:
        regions, sentences = regions_for(loaded, source, settings.data, settings.masks)
        notes = (*notes, *sentences)
        if regions is not None:
            others = [each for each in evaluators if not isinstance(each, Defects)]
            evaluators = [LocatedDefects(regions), *others]
    if on_rank_0():
        for sentence in notes:
            say(printable(sentence))
    classifier = loaded.to(device).for_inference()
    # One pass over the images for each evaluator
    metrics: list[Metric] = []
    for evaluator in evaluators:
        heading = f"evaluating {type(evaluator).__name__}"
        batches = batches_of(classifier, source, heading, settings.batch, settings.workers)
        part = Part(source, batches, train_part(settings, evaluator, source))
        with autocast(classifier.device, settings.precision):
            metrics += evaluator.measure(Subject(classifier), part)
    if on_rank_0():
        for sentence in about_memory(metrics):
            say(sentence)
    return Evaluation.of(settings, title, tuple(metrics), None, source)


def _check_for_good_images(settings: Measurement) -> None:
    """Raises BadSettings for settings about masks that do not go with a model of good images."""
    if settings.legend is not None or settings.ignore is not None:
        raise BadSettings(
            "`legend` and `ignore` are for models that classify every pixel; of a model of good images `masks` say "
            "where images are defective, by all pixels that are not 0"
        )
    if not settings.masks:
        return
    given = [f"`{name}`" for name in FOR_REPORTS if getattr(settings, name)]
    if settings.evals and "defects" not in settings.evals:
        given.append("`evals`")
    if given:
        raise BadSettings(
            f"`masks` measure where a model of good images sees defects, and {', '.join(given)} measure something "
            "else; give them in another call"
        )


def _evaluators(settings: Measurement, source: Source) -> Sequence[Evaluator]:
    """The evaluators that `evals` names, or the default ones for the images' kind of targets. Raises
    VitkitError if one of them cannot measure such images, or there is none."""
    if not settings.evals:
        if not USUAL[source.target_kind]:
            raise BadData(
                f"{settings.data} has no labels, so the model's answers cannot be checked; "
                f"{step('predict', settings.model, settings.data)} prints them"
            )
        return USUAL[source.target_kind]
    for name in settings.evals:
        if not EVALUATORS[name].judges(source.target_kind):
            raise BadSettings(
                f"{name} cannot be measured on {settings.data}, whose targets are of the kind "
                f"{source.target_kind!r}; leave out `evals` to measure what can be"
            )
    return [EVALUATORS[name] for name in settings.evals]


def images_of(settings: Measurement, classifier: Classifier) -> tuple[Source, str, tuple[str, ...]]:
    """The images to evaluate on, with their groups; their title; and sentences about the groups.

    For the data set that a model was trained on, these are the images that its training held out.
    """
    source, note = _opened(settings, classifier)
    without_good: list[str] = []
    if knows_good_images(classifier):
        without_good += without_good_class(source, classifier.labels)
        if LEFT_OUT not in classifier.origin:
            without_good.append(
                "which images the model remembers is not recorded, and those among these would be nearer to it than "
                "others: measure it on images that it was not made of, or repeat `vitkit finetune`"
            )
        source = good_or_not(source, classifier.labels)
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
        return replace(source, groups=None), title, tuple(without_good)
    if source.target_kind == "none":
        return source, title, ()  # without labels there are no intervals to widen
    groups, notes = from_rank_0(lambda: _groups_of(source))
    return replace(source, groups=groups), title, (*without_good, *notes)


def _groups_of(source: Source) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """The groups of images, (N,), and sentences about them."""
    source, notes = grouped_to_measure(source)
    return source.groups, notes


def _opened(settings: Measurement, classifier: Classifier) -> tuple[Source, str]:
    """The images, and a note about them, to be appended to their title."""
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
        if has_same_name(settings.data, origin):
            note = (
                "; the data set of this name that the model was trained on was another one, or has "
                "changed since, so it may know some of them"
            )
    source = source_at(settings.data, with_groups, settings.split, typed=True)
    if fingerprint(source) in origin.get("learned", ()):
        note = ", images that the model learned from"
    return source, note


def _grouped_by(part: Source, data: str, columns: Columns) -> Source:
    """A part of a data set with the groups of `columns`, which may differ from those it was split by."""
    group_of: dict[int, int] = {}
    for source in parts_at(data, columns, typed=True).sources.values():
        assert source.groups is not None, "a part without the column cannot be opened"
        group_of |= dict(zip(source.rows.tolist(), source.groups.tolist(), strict=True))
    return replace(part, groups=np.array([group_of[row] for row in part.rows.tolist()]))


def _divided(data: str, columns: Columns, origin: dict) -> Splits:
    """The parts of a data set, split as in the training of a model; without the training's groups if the
    data set lacks their column."""
    seed = origin.get("split_seed", 0)
    groups = origin.get("groups", "none")  # missing in models from before groups
    try:
        return splits_at(data, columns, seed, groups, typed=True)
    except VitkitError:
        if groups in ("auto", "none"):
            raise
        return splits_at(data, columns, seed, "none", typed=True)


def named_images(
    name: SetName, settings: Measurement, classifier: Classifier
) -> tuple[Named, Source, str]:
    """A named data set, its images, and their title.

    Raises VitkitError for images that are not of the data set, and for options that do not go with its
    protocol.
    """
    if settings.calibrate and name != "imagenet":
        raise BadSettings(
            f"`calibrate` with `named={name!r}` would fit a temperature to a restricted choice of "
            "answers, on images that are for testing; leave one of them out"
        )
    if settings.real and name != "imagenet":
        raise BadSettings(
            f"`real` has labels for ImageNet's validation images, and `named` is {name!r}"
        )
    if settings.limit:
        raise BadSettings(f"`named={name!r}` measures all of its images; leave out `limit`")
    if settings.on_unknown_class != "fail":
        raise BadSettings(
            f"`named={name!r}` determines which classes count; leave out `on_unknown_class`"
        )
    columns = grouped_columns(settings.columns, settings.groups)
    named = open_named(name, settings.data, columns, settings.split, typed=True)
    if settings.on_bad_image == "skip":
        named = named._replace(source=without_broken(named.source))
    origin = classifier.origin
    if origin.get("held_out") and has_same_name(settings.data, origin):
        note = (
            "the model was trained on a data set of this name, of which a part was held out: it may "
            "know the other images, and `named` measures on all"
        )
        named = named._replace(notes=(*named.notes, note))
    images = counted(len(named.source), "image")
    title = f"{images} of {SETS[name].title} ({shown_address(settings.data)})"
    return named, named.source, title


def train_part(settings: Measurement, evaluator: Evaluator, source: Source) -> Source | None:
    """The training images of the data, for an evaluator that learns from them. None for other
    evaluators, or if the images to measure are among them."""
    if not learns(evaluator):
        return None
    train = parts_at(settings.data, settings.columns, typed=True).sources.get("train")
    if train is None or np.isin(train.rows, source.rows).any():
        return None
    if isinstance(evaluator, Fewshot) and on_rank_0() and train.target_kind == "class":
        for sentence in shot_notes(train, source, max(evaluator.shots)):
            say(printable(sentence))
    return train


def _predicts_numbers(classifier: Classifier) -> bool:
    """Whether the outputs of a model's head are numbers, not logits of classes: a regression."""
    return bool(classifier.labels) and classifier.activation == "none"


def _columns_of_numbers(settings: Measurement) -> Columns:
    """The columns for a model that predicts numbers: integer targets are numbers too, not classes. If the
    targets are not numbers, the columns are unchanged, and the evaluator reports the mismatch."""
    columns = replace(settings.columns, target="number")
    try:
        source_at(settings.data, columns, settings.split, typed=True)
    except VitkitError:
        return settings.columns
    return columns
