"""Which images `vitkit evaluate` measures on."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitkit.data import Columns, Source
from vitkit.evaluate import Evaluator
from vitkit.evaluate.evaluator import learns
from vitkit.system.ranks import from_rank_0, on_rank_0
from vitkit.system.text import counted, printable
from vitkit.weights import Classifier

if TYPE_CHECKING:
    from vitkit.commands.evaluate import Evaluate
    from vitkit.evaluate.named import Named


def images_of(command: "Evaluate", classifier: Classifier) -> tuple[Source, str]:
    """The images to evaluate on, and what to call them.

    For the data set that a model was trained on, these are the images that its training held out.
    """
    source, note = _opened(command, classifier)
    if command.on_bad_image == "skip":
        source = without_broken(source)
    if command.on_unknown_class == "skip" and classifier.labels:
        source = without_unknown(source, classifier.labels)
    return source, f"{counted(len(source), 'image')} of {command.data}{note}"


def _opened(command: "Evaluate", classifier: Classifier) -> tuple[Source, str]:
    """The images, and what a reader should know of them, to be added to their name."""
    from vitkit.data import open_source, open_splits

    origin = classifier.origin
    columns = command.columns
    if columns.target == "auto" and _predicts_numbers(classifier):
        columns = _columns_of_numbers(command)
    note = ""
    if fingerprint := origin.get("held_out"):
        splits = open_splits(command.data, columns, origin.get("split_seed", 0))
        name = command.split or "test"
        part = getattr(splits, name)
        if part and splits.made_fingerprint == fingerprint:
            return part, f", the {name} part that was held out when the model was trained"
        if Path(command.data).name == Path(origin.get("data", "")).name:
            note = (
                "; the data set of this name that the model was trained on was another one, or has "
                "changed since, so it may know some of them"
            )
    return open_source(command.data, columns, command.split), note


def named_images(command: "Evaluate") -> tuple["Named", Source, str]:
    """A data set that goes by a name, its images, and what to call them.

    Raises ValueError for images that are not of it, and for options that its protocol has no
    meaning for.
    """
    from vitkit.evaluate.named import SETS, open_named

    if command.calibrate and command.named != "imagenet":
        raise ValueError(
            f"--calibrate with --as {command.named} would fit a temperature to answers that the model "
            "is not asked for elsewhere, on images that are for testing; leave one of them out"
        )
    if command.real and command.named != "imagenet":
        raise ValueError(
            f"--real has labels for ImageNet's validation images, and --as says {command.named}"
        )
    named = open_named(command.named, command.data, command.columns, command.split)
    if command.on_bad_image == "skip":
        named = named._replace(source=without_broken(named.source))
    images = counted(len(named.source), "image")
    title = f"{images} of {SETS[command.named].title} ({command.data})"
    return named, named.source, title


def train_part(command: "Evaluate", evaluator: Evaluator, source: Source) -> Source | None:
    """The training images of the data, for an evaluator that learns; None for others, and if they
    are the images that are measured."""
    from vitkit.data import open_parts
    from vitkit.evaluate.fewshot import notes

    if not learns(evaluator):
        return None
    train = open_parts(command.data, command.columns).sources.get("train")
    if train is None or np.isin(train.rows, source.rows).any():
        return None
    if on_rank_0() and train.target_kind == "class":
        for sentence in notes(train, source, max(evaluator.shots)):
            print(printable(sentence), file=sys.stderr)
    return train


def _predicts_numbers(classifier: Classifier) -> bool:
    """Whether the outputs of a model's head are numbers, not logits of classes: a regression."""
    return bool(classifier.labels) and classifier.activation == "none"


def _columns_of_numbers(command: "Evaluate") -> Columns:
    """The columns for a model whose outputs are numbers: whole ones are numbers too, not classes.
    Data with names is left as it is, so that the evaluator says what does not fit."""
    from vitkit.data import open_source

    columns = replace(command.columns, target="number")
    try:
        open_source(command.data, columns, command.split)
    except ValueError:
        return command.columns
    return columns


def without_broken(source: Source) -> Source:
    """The images that can be decoded; a sentence about each other one is printed."""
    from vitkit.data import check_images, subset
    from vitkit.system.machine import cpus

    broken = from_rank_0(lambda: dict(check_images(source, cpus())))
    if on_rank_0():
        for sentence in broken.values():
            print(f"left out: {printable(sentence)}", file=sys.stderr)
    return subset(source, [i for i in range(len(source)) if i not in broken])


def without_unknown(source: Source, labels: tuple[str, ...]) -> Source:
    """The images of classes that a model with these labels knows, and only these classes; a sentence
    about the others is printed. If it knows none, the images stay as they are.

    Raises ValueError for images of another kind of target.
    """
    from vitkit.data import subset
    from vitkit.evaluate.labels import unknown

    if source.target_kind != "class":
        raise ValueError(
            "--on-unknown-class skip is for images of one class each; these have targets of the kind "
            f"{source.target_kind!r}"
        )
    others = np.intersect1d(unknown(source.labels, labels), source.targets).tolist()
    left_out = np.isin(source.targets, others)
    if not others or left_out.all():  # if all, whoever meets the classes says what they are called
        return source
    names = ", ".join(source.labels[k] for k in others[:5])
    if len(others) > 5:
        names += ", ..."
    if on_rank_0():
        sentence = (
            f"left out: {left_out.sum():,} of {counted(len(source), 'image')}, of classes that the "
            f"model does not know ({names})"
        )
        print(printable(sentence), file=sys.stderr)

    # The classes that stay, numbered anew
    kept = np.setdiff1d(np.arange(len(source.labels)), others)
    rest = subset(source, np.flatnonzero(~left_out))
    return replace(
        rest,
        targets=np.searchsorted(kept, rest.targets),
        labels=tuple(source.labels[k] for k in kept),
    )
