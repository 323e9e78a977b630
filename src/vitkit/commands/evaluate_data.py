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
from vitkit.system.text import printable
from vitkit.weights import Classifier

if TYPE_CHECKING:
    from vitkit.commands.evaluate import Evaluate


def images_of(command: "Evaluate", classifier: Classifier) -> tuple[Source, str]:
    """The images to evaluate on, and what to call them.

    For the data set that a model was trained on, these are the images that its training held out.
    """
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
            return part, (
                f"{len(part):,} images of {command.data}, the {name} part that was held out when "
                "the model was trained"
            )
        if Path(command.data).name == Path(origin.get("data", "")).name:
            note = (
                "; the data set of this name that the model was trained on was another one, or has "
                "changed since, so it may know some of them"
            )
    source = open_source(command.data, columns, command.split)
    return source, f"{len(source):,} images of {command.data}{note}"


def train_part(command: "Evaluate", evaluator: Evaluator, source: Source) -> Source | None:
    """The training images of the data, for an evaluator that learns; None for others, and if they
    are the images that are measured."""
    from vitkit.data import open_parts

    if not learns(evaluator):
        return None
    train = open_parts(command.data, command.columns).sources.get("train")
    if train is None or np.isin(train.rows, source.rows).any():
        return None
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
