"""Which images an evaluation measures on."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitkit.data import Columns, Source, fingerprint, open_parts, open_source, open_splits
from vitkit.evaluation import SETS, Evaluator, Named, learns, open_named, shot_notes
from vitkit.system.console.saying import say
from vitkit.system.console.text import counted, printable
from vitkit.system.processes.ranks import on_rank_0
from vitkit.verbs.sources import without_broken, without_unknown
from vitkit.weights import Classifier

if TYPE_CHECKING:
    from vitkit.verbs.evaluation.evaluate import Evaluate


def images_of(settings: "Evaluate", classifier: Classifier) -> tuple[Source, str]:
    """The images to evaluate on, and what to call them.

    For the data set that a model was trained on, these are the images that its training held out.
    """
    source, note = _opened(settings, classifier)
    if settings.on_bad_image == "skip":
        source = without_broken(source)
    if settings.on_unknown_class == "skip" and classifier.labels:
        source = without_unknown(source, classifier.labels)
    return source, f"{counted(len(source), 'image')} of {settings.data}{note}"


def _opened(settings: "Evaluate", classifier: Classifier) -> tuple[Source, str]:
    """The images, and what a reader should know of them, to be added to their name."""
    origin = classifier.origin
    columns = settings.columns
    if columns.target == "auto" and _predicts_numbers(classifier):
        columns = _columns_of_numbers(settings)
    note = ""
    if held_out := origin.get("held_out"):
        splits = open_splits(settings.data, columns, origin.get("split_seed", 0))
        name = settings.split or "test"
        part = getattr(splits, name)
        if part and splits.made_fingerprint == held_out:
            if name == "train":
                return part, ", the images that the model learned from"
            return part, f", the {name} part that was held out when the model was trained"
        if Path(settings.data).name == Path(origin.get("data", "")).name:
            note = (
                "; the data set of this name that the model was trained on was another one, or has "
                "changed since, so it may know some of them"
            )
    source = open_source(settings.data, columns, settings.split)
    if origin.get("learned") and fingerprint(source) in origin["learned"]:
        note = ", images that the model learned from"
    return source, note


def named_images(settings: "Evaluate", classifier: Classifier) -> tuple["Named", Source, str]:
    """A data set that goes by a name, its images, and what to call them.

    Raises ValueError for images that are not of it, and for options that its protocol has no
    meaning for.
    """
    if settings.calibrate and settings.named != "imagenet":
        raise ValueError(
            f"--calibrate with --as {settings.named} would fit a temperature to answers that the model "
            "is not asked for elsewhere, on images that are for testing; leave one of them out"
        )
    if settings.real and settings.named != "imagenet":
        raise ValueError(
            f"--real has labels for ImageNet's validation images, and --as says {settings.named}"
        )
    if settings.on_unknown_class != "fail":
        raise ValueError(
            f"--as {settings.named} says itself which classes count; leave out --on-unknown-class"
        )
    named = open_named(settings.named, settings.data, settings.columns, settings.split)
    if settings.on_bad_image == "skip":
        named = named._replace(source=without_broken(named.source))
    origin = classifier.origin
    if origin.get("held_out") and Path(settings.data).name == Path(origin.get("data", "")).name:
        note = (
            "the model was trained on a data set of this name, of which a part was held out: it may "
            "know the other images, and --as measures on all"
        )
        named = named._replace(notes=(*named.notes, note))
    images = counted(len(named.source), "image")
    title = f"{images} of {SETS[settings.named].title} ({settings.data})"
    return named, named.source, title


def train_part(settings: "Evaluate", evaluator: Evaluator, source: Source) -> Source | None:
    """The training images of the data, for an evaluator that learns; None for others, and if they
    are the images that are measured."""
    if not learns(evaluator):
        return None
    train = open_parts(settings.data, settings.columns).sources.get("train")
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
        open_source(settings.data, columns, settings.split)
    except ValueError:
        return settings.columns
    return columns
