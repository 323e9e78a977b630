"""Data sets as commands open them: their parts, and which images are left out."""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from vitkit.data import Source, Splits
from vitkit.evaluation.benchmarks.named import SetName
from vitkit.system.console.messages import say
from vitkit.system.console.text import counted, some
from vitkit.system.errors import BadSettings
from vitkit.system.processes.ranks import from_rank_0

if TYPE_CHECKING:
    import torch

    from vitkit.data import Columns
    from vitkit.data.sources.splits import Parts
    from vitkit.weights import Classifier, Hints


def parts_of(data: str, columns: "Columns", named: SetName | None) -> "Parts":
    """The parts of a data set whose path a user typed; `named` is its name if it has its own protocol."""
    from vitkit.data import parts_at
    from vitkit.evaluation.benchmarks.named import open_named_parts

    if named is None:
        return parts_at(data, columns, typed=True)
    return open_named_parts(named, data, columns, typed=True)


def splits_to_learn_from(
    data: str,
    columns: "Columns",
    named: SetName | None,
    on_bad_image: Literal["fail", "skip"],
    groups: str = "auto",
) -> "tuple[Splits, str | None]":
    """The parts of a data set, with a test part and groups, and without broken images if these are to be
    skipped; and the fingerprint of a test part that was split off, from before images were skipped."""
    from vitkit.data import grouped_columns
    from vitkit.data.sources.splits import splits_of

    columns = grouped_columns(columns, groups)
    splits = splits_of(parts_of(data, columns, named), data, 0, groups, always_grouped=True)
    made = splits.made_fingerprint
    if on_bad_image == "skip":
        # Leave out the images that cannot be decoded
        intact = {name: without_broken(part) or None for name, part in splits.sources.items()}
        parts = [intact.get(name) for name in ("train", "val", "test")]
        splits = replace(splits, train=parts[0], val=parts[1], test=parts[2])
    return splits, made


def loaded_for_features(
    model: "str | Classifier", hints: "Hints", device: "torch.device"
) -> "Classifier":
    """A model, by name or as a `Classifier`, on its device and in evaluation mode, to compute features."""
    from vitkit.weights import classifier_of

    return classifier_of(model, hints).to(device).for_inference()


# Images that are left out, each with a message


def without_broken(source: Source) -> Source:
    """The images that can be decoded."""
    from vitkit.data import subset

    broken = broken_images(source)
    return subset(source, [i for i in range(len(source)) if i not in broken])


def broken_images(source: Source) -> dict[int, str]:
    """The images that cannot be decoded: by index, a sentence that says why. Each is printed."""
    from vitkit.data import check_images, one_per_cpu

    broken = from_rank_0(lambda: dict(check_images(source, one_per_cpu())))
    for sentence in broken.values():
        say(f"left out: {sentence}")
    return broken


def without_unknown(source: Source, labels: tuple[str, ...]) -> Source:
    """The images of those classes that a model with these labels knows; a sentence about the others is
    printed. If it knows none of the classes, the source is returned unchanged.

    Raises VitkitError if the targets are not one class for each image.
    """
    from vitkit.data import subset
    from vitkit.evaluation.benchmarks.labels import unknown

    if source.target_kind != "class":
        raise BadSettings(
            "`on_unknown_class='skip'` is for images of one class each; these have targets of the kind "
            f"{source.target_kind!r}"
        )
    others = np.intersect1d(
        np.array(unknown(source.labels, labels), int), source.target_array
    ).tolist()
    left_out = np.isin(source.target_array, others)
    if not others or left_out.all():  # if all are unknown, the caller reports it
        return source
    say(
        f"left out: {left_out.sum():,} of {counted(len(source), 'image')}, of classes that the model "
        f"does not know ({some([source.labels[k] for k in others])})"
    )

    # Renumber the remaining classes
    kept = np.setdiff1d(np.arange(len(source.labels)), others)
    rest = subset(source, np.flatnonzero(~left_out))
    return replace(
        rest,
        targets=np.searchsorted(kept, rest.target_array),
        labels=tuple(source.labels[k] for k in kept),
    )
