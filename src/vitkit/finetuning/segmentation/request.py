"""What a model that classifies pixels is made of: the images with their masks, and which of them are for what."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitkit.data import (
    Columns,
    Masked,
    fingerprint,
    masked,
    masks_digest,
    split_off,
    splits_with_masks,
    with_masks,
    without,
)
from vitkit.finetuning.segmentation.fine_tuning import HOLD_OUT
from vitkit.system.errors import BadData

SEED = 0  # of the images that are held out
FEWEST_HELD_OUT = 5  # of fewer images, the standard error of a difference says nothing


@dataclass(frozen=True)
class MaskRequest:
    """What a model that classifies pixels is made of."""

    init: str
    """The name of the pre-trained model."""
    data: str
    """The images."""
    masks: str
    """A folder of masks, or the column that holds them."""
    legend: Path | None
    ignore: int | None
    columns: Columns
    tokens: int | None
    """Most patches of an image; None is the default of `dense`."""
    minutes: float = 0.0
    """The time of all of it, of which fine-tuning gets the rest; 0: nothing is fine-tuned."""
    exclude: str = ""
    """A file that lists training images to leave out; "" for none."""


class Parts(NamedTuple):
    """The images with their masks."""

    parts: dict[str, Masked]
    """"train" and others."""
    made: dict[str, str]
    """What identifies the part that had to be made, as the provenance of a model has it; empty without one."""
    notes: tuple[str, ...]
    """What a user should know of them."""


def read_parts(request: MaskRequest) -> Parts:
    """Open the images with their masks. Raises BadData if there are no images to learn from."""
    splits = splits_with_masks(request.data, request.masks, request.columns, always_grouped=True)
    said = [note for note in splits.notes if "labelled" not in note]  # masks are no labels
    sources = splits.sources
    if "train" not in sources:
        raise BadData(f"{request.data} has no training images, but {', '.join(sources)}")
    if request.exclude:  # before masks are looked for: a list may name images without one
        train = sources["train"]
        sources["train"] = without(train, request.exclude)
        count = len(train) - len(sources["train"])
        said.append(f"{count:,} training images that {request.exclude} lists are left out")
    parts, notes = masked(sources, request.data, request.masks, request.legend, request.ignore)
    made = {}
    if splits.made_fingerprint:
        made = {"held_out": splits.made_fingerprint}
    return Parts(parts, made, (*said, *notes))


def held_out_of(parts: dict[str, Masked]) -> tuple[Masked | None, np.ndarray]:
    """The images that choose between the closed form and a fine-tuned model, and their numbers among the training
    images: the validation part if there is a test part too, else a share of the training images, or None without
    enough. They are those that the run of the fine-tuning holds out (`divide`)."""
    train = parts["train"]
    nothing = np.zeros(0, np.int64)
    if "val" in parts and "test" in parts:
        return parts["val"], nothing
    learned, numbers = split_off(with_masks(train), HOLD_OUT, SEED)
    groups = learned
    if train.images.groups is not None:
        groups = train.images.groups[learned]
    # Cross-validation of the others needs two groups of images
    if len(np.unique(groups)) < 2 or len(numbers) < FEWEST_HELD_OUT:
        return None, nothing
    return train.subset(numbers), numbers


def part_to_measure(parts: dict[str, Masked]) -> str:
    """The part that the model is measured on: "test", or else "val", or "" if neither has an image."""
    return next((name for name in ("test", "val") if name in parts and len(parts[name])), "")


def plan(request: MaskRequest, parts: dict[str, Masked]) -> dict[str, Any]:
    """What the run is made of, by which the same command knows it: its settings, its images and its masks."""
    sources = {name: with_masks(part) for name, part in parts.items()}
    return {
        "init": request.init,
        "data": request.data,
        "masks": request.masks,
        "legend": str(request.legend or ""),
        "ignore": request.ignore,
        "tokens": request.tokens,
        "minutes": request.minutes,
        "exclude": request.exclude,
        "images": {name: fingerprint(source) for name, source in sources.items()},
        "digests": {name: masks_digest(source) for name, source in sources.items()},
    }
