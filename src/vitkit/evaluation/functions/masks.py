"""`vitkit evaluate` of a model that classifies every pixel, on images with masks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from vitkit.data import (
    IGNORED,
    Legend,
    Masked,
    Source,
    Splits,
    fingerprint,
    grouped_columns,
    grouped_to_measure,
    masked,
    part_of,
    splits_with_masks,
)
from vitkit.data.masks.legend import Codes
from vitkit.data.masks.pairs import parts_with_masks
from vitkit.evaluation.functions.outcome import Evaluation, Measurement, has_same_name
from vitkit.evaluation.metrics.segmentation import SegmentationScores, measure_masks, readable
from vitkit.runtimes import Eager, check_segments, segments
from vitkit.system.console.messages import say
from vitkit.system.console.text import counted, printable, some
from vitkit.system.errors import BadData, BadSettings, VitkitError
from vitkit.system.functions.arguments import name_of
from vitkit.system.functions.steps import DATA, IMAGES, step
from vitkit.system.processes.ranks import world
from vitkit.system.storage.addresses import shown_address
from vitkit.weights import Classifier

WORST = 3  # images that are named


def classifies_pixels(classifier: Classifier) -> bool:
    """Whether a model, or the exported file that computes it, classifies every pixel."""
    runtime = getattr(classifier.model, "runtime", None)
    exported = getattr(runtime, "exported", None)
    return segments(classifier) or bool(getattr(exported, "segments", False))


def evaluate_masks(settings: Measurement, loaded: Classifier, device: torch.device) -> Evaluation:
    """Measure a model on images with masks. Raises BadSettings and BadData if these do not go together."""
    if not classifies_pixels(loaded):
        check_segments(loaded, name_of(settings.model))
    if not settings.masks:
        raise BadSettings(
            f"{name_of(settings.model)} classifies every pixel, so it is measured on images with masks: "
            f"{step('evaluate', settings.model, DATA, masks='masks/')}"
        )
    others = ("against", "report", "calibrate", "real", "named", "corruptions", "evals")
    given = [f"`{name}`" for name in others if getattr(settings, name)]
    if given:
        raise BadSettings(f"{', '.join(given)} are for images with one class each; leave them out")
    if world().world_size > 1:
        raise BadSettings("masks are measured by one process; start this without torchrun")

    # The images, their masks, and the classes by the model's numbers
    source, note = _images(settings, loaded)
    trained_on = loaded.origin.get("legend")
    legend: Path | Legend | None = settings.legend
    if legend is None and trained_on is not None:
        legend = Legend.from_json(trained_on)
    parts, notes = masked({"": source}, settings.data, settings.masks, legend, settings.ignore)
    pairs = parts[""]
    renumbered = renumbered_legend(pairs.legend, loaded.labels, name_of(settings.model))
    pairs = replace(pairs, legend=renumbered)
    if settings.on_bad_image == "skip":
        pairs = readable(pairs, "skipped")
    count = counted(len(pairs), "image")
    if 0 < settings.limit < len(pairs):
        count = f"{settings.limit:,} of {count}"
        pairs = pairs.subset(np.arange(settings.limit) * len(pairs) // settings.limit)
    title = f"{count} of {shown_address(settings.data)}{note}"
    if settings.groups != "none":
        images, sentences = grouped_to_measure(pairs.images)
        pairs = replace(pairs, images=images)
        notes += sentences
    for sentence in notes:
        say(printable(sentence))

    # The scores
    runtime = Eager(loaded.to(device), settings.precision)
    scores = measure_masks(runtime, pairs)
    if settings.ignore is None:
        _check_255(pairs, scores)
    worst = [pairs.images.name(i) for i in scores.worst(WORST).tolist()]
    say(printable(f"the lowest IoU have {', '.join(worst)}"))
    found = Evaluation.of(settings, title, tuple(scores.metrics()), None, pairs.images)
    return replace(found, following=step("segment", settings.model, IMAGES, to="masks"))


def _images(settings: Measurement, classifier: Classifier) -> tuple[Source, str]:
    """The images to evaluate on, and what a reader should know of them: of the data set that a model was trained
    on, those that its training held out."""
    columns = grouped_columns(settings.columns, settings.groups)
    origin = classifier.origin
    note = ""
    if held_out := origin.get("held_out"):
        splits = _divided(settings, origin)
        name = settings.split or "test"
        part = splits.sources.get(name)
        if part is not None and splits.made_fingerprint == held_out:
            if name == "train":
                return part, ", the images that the model learned from"
            return part, f", the {name} part that was held out when the model was trained"
        if has_same_name(settings.data, origin):
            note = (
                "; the data set of this name that the model was trained on was another one, or has "
                "changed since, so it may know some of them"
            )
    parts = parts_with_masks(settings.data, settings.masks, columns)
    source = part_of(parts.sources, settings.split, settings.data)
    if fingerprint(source) in origin.get("learned", ()):
        note = ", images that the model learned from"
    return source, note


def _divided(settings: Measurement, origin: dict) -> Splits:
    """The parts of a data set, split as in the training of a model; with the usual groups if the data set lacks
    the column of the training's."""
    seed = origin.get("split_seed", 0)
    groups = origin.get("groups", "auto")  # `finetune` groups the images always
    try:
        return splits_with_masks(settings.data, settings.masks, settings.columns, seed, groups)
    except VitkitError:
        if groups in ("auto", "none"):
            raise
        return splits_with_masks(settings.data, settings.masks, settings.columns, seed)


def _check_255(pairs: Masked, scores: SegmentationScores) -> None:
    """Raises BadData if all pixels have one class or 255, which is ignored unasked: it may be the object, as in
    masks that are 0 and 255 where the model's were 0 and 1."""
    present = np.flatnonzero(scores.truth.sum(0))
    if len(present) > 1 or not pairs.legend.ignores_255_alone:
        return
    for i in range(len(pairs)):
        if (pairs.mask(i) == IGNORED).any():
            raise BadData(
                f"the masks have {pairs.labels[present[0]]!r} and pixels of 255, which are ignored, and no other "
                "class: say in `legend` which class 255 is, or give `ignore=255` if these pixels do not count"
            )


def renumbered_legend(legend: Legend, labels: tuple[str, ...], model: str) -> Legend:
    """A legend whose class numbers are those of a model, by the names of the classes. Raises BadData for classes
    that the model does not have."""
    if legend.labels == labels:
        return legend
    unknown = [name for name in legend.labels if name not in labels]
    if unknown:
        raise BadData(
            f"masks have classes that {model} does not know ({some(unknown, 3)}); it knows "
            f"{some(list(labels), 5)}: name them alike in `legend`"
        )
    codes = []
    for low, high, number in legend.codes:
        if number != IGNORED:
            number = labels.index(legend.labels[number])
        codes.append(Codes(low, high, number))
    return Legend(labels, tuple(codes), legend.coloured)
