"""Which images of a data set train a run, and which measure it."""

import numpy as np

from vitkit.data import (
    Source,
    Splits,
    merge_parts,
    random_subset,
    split_off,
    subset,
    subset_size,
)
from vitkit.evaluation import unbalanced
from vitkit.training.recipe import Data


def divide(splits: Splits, data: Data) -> dict[str, Source]:
    """The parts of a data set that a run uses, as `data.parts` says: "train", of which `data.subset`
    is left, and "val" and "test".

    Raises ValueError if there is nothing to train on, or nothing that can be held out, and for
    classes that no training image has: a head would have outputs that nothing taught.
    """
    parts = _parts(splits, data)
    train = parts["train"]
    if data.subset == 1:
        return parts
    if data.subset_by_class and train.target_kind != "class":
        raise ValueError(
            f"--data.subset-by-class needs images of one class each; the targets of {data.source!r} "
            f"are of the kind {train.target_kind!r}"
        )
    count = subset_size(len(train), data.subset)
    chosen = random_subset(train, count, data.subset_seed, data.subset_by_class)
    return parts | {"train": chosen}


def _parts(splits: Splits, data: Data) -> dict[str, Source]:
    """The same with all training images."""
    if splits.unlearned:
        raise ValueError(f"{splits.unlearned}; rename or remove it")
    parts = {}
    for name in ("train", "val", "test"):
        part = getattr(splits, name)
        if part is not None:
            parts[name] = part
    if "train" not in parts:
        raise ValueError(f"{data.source!r} has no training images, only {', '.join(parts)}")
    has_all_three = len(parts) == 3

    # given: all of them as they are
    if data.parts == "given":
        return parts

    # final: all but the test part trains
    if data.parts == "final":
        if has_all_three:
            return {"train": merge_parts(parts["train"], parts["val"]), "test": parts["test"]}
        return parts

    # three: the parts as they are, if there are three
    if data.parts == "three" and has_all_three:
        return parts

    # select: the val part measures, or a share of the training images; the test part is not used
    if has_all_three:
        return {"train": parts["train"], "val": parts["val"]}
    train, held_out = split_off(parts["train"], data.hold_out, data.split_seed)
    if not len(held_out):
        raise ValueError(
            f"{data.source!r} has no class with two training images, so none can be held out to "
            "select on"
        )
    chosen = {"train": subset(parts["train"], train), "val": subset(parts["train"], held_out)}
    if data.parts == "select":
        return chosen

    # three: a share of the training images too, beside the part that the data set has to measure on
    for name in ("val", "test"):
        if name in parts:
            chosen["test"] = parts[name]
    return chosen


def about_subset(train: Source, data: Data) -> list[str]:
    """What a person should know of the images that train, if they are a subset."""
    if data.subset == 1:
        return []
    sentences = [f"training on a subset of {len(train):,} images (seed {data.subset_seed})"]
    if train.target_kind == "class":
        missing = len(train.labels) - len(np.unique(train.targets))
        if missing:
            sentences.append(
                f"{missing:,} of {len(train.labels):,} classes have no image in it, so the model "
                "cannot learn them; --data.subset-by-class gives every class its share"
            )
    return sentences


def refuse_one_class(train: Source, data: Data) -> None:
    """Raises ValueError if all images that train a head are of one class: its loss would be 0 at
    once, and it would have learned nothing."""
    if train.target_kind != "class":
        return
    classes = np.unique(train.targets)
    if len(classes) == 1:
        name = train.labels[classes[0]]
        raise ValueError(
            f"all images of {data.source!r} that train ({len(train):,}) are of one class, {name!r}, so "
            "there is nothing to tell apart: add images of another"
        )


def about_classes(train: Source, class_weights: str) -> list[str]:
    """What a person should know of classes of unequal size, if they count by their size."""
    if train.target_kind != "class" or class_weights != "equal":
        return []
    counts = np.bincount(train.targets, minlength=len(train.labels))
    if not unbalanced(counts):
        return []
    largest = train.labels[counts.argmax()]
    least = np.where(counts > 0, counts, counts.max()).argmin()
    times = counts.max() / counts[least]
    return [
        f"unbalanced: {largest} has {times:,.0f} times the images of {train.labels[least]}. "
        "--objective.class-weights balanced counts classes alike; balanced_accuracy, the mean of the "
        "classes' own, is measured beside top1"
    ]
