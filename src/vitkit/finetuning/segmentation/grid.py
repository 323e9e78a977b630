"""The grid of patches that a model of every pixel reads: a larger one than `dense` takes by default, if the time
allows it, and if the cross-validated predictions of the first model are then better.

Legend: K classes, (h, w) the grid of patches.
"""

import math
import time
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from vitkit.data import Masked
from vitkit.evaluation import count_pixels
from vitkit.finetuning.fine_tuning import time_text
from vitkit.finetuning.segmentation.choice import Gain, gain
from vitkit.finetuning.segmentation.closed_form import counts_of
from vitkit.finetuning.segmentation.first_model import FirstModel, scores_of
from vitkit.runtimes import class_map, likeliest, map_runtime
from vitkit.system.console.messages import say
from vitkit.system.machine import Precision
from vitkit.weights import Classifier, dense

FACTORS = (3.0, 2.0, 1.5)  # patches, as multiples of the default; the first that fits is tried
SHARE = 0.25  # of the minutes that trying a larger grid may take: it may be in vain
FEWEST_COMPARED = 5  # of fewer groups of images, the standard error of a difference says nothing
TIMED = 3  # images that are measured; their median counts


class Times(NamedTuple):
    """Seconds, by which the time of a larger grid is estimated."""

    first: float
    """The first model, on the default grid."""
    image: float
    """Measuring an image on the default grid: reading it, its features, and its pixels."""
    larger: float
    """Measuring it on the larger grid."""

    def trying(self, factor: float) -> float:
        """Another first model, of `factor` times as many patches. The rest of it grows as the patches do, and features
        may grow faster, as attention does."""
        return self.first * max(factor, self.larger / self.image)


class Clock(NamedTuple):
    """The time of the command."""

    minutes: float
    """All of it."""
    spent: float
    """Seconds that are over."""
    images: int
    """Images to measure until the end."""

    def minutes_for(self, times: Times, factor: float) -> float:
        """The minutes within which a grid of `factor` times as many patches can be tried and, if it is kept, measured."""
        trying = times.trying(factor)
        kept = self.spent + trying + self.images * times.larger
        return max(trying / SHARE, kept) / 60


class GridChoice(NamedTuple):
    """What a larger grid adds."""

    patches: int
    """Patches of an image at most."""
    default: int
    """Those of the default grid."""
    images: int
    """Training images that both were compared on."""
    gain: Gain | None
    """Of the mean IoU of cross-validated predictions; None if there were too few images."""

    @property
    def is_better(self) -> bool:
        """Whether the larger grid is better by more than the standard error of the difference."""
        return self.gain is not None and self.gain.value > self.gain.standard_error

    def to_json(self) -> dict[str, Any]:
        """As the record of the run has it."""
        found: dict[str, Any] = {
            "patches": self.patches,
            "default": self.default,
            "images": self.images,
            "is_better": self.is_better,
        }
        if self.gain is not None:
            found |= {"gain": self.gain.value, "standard_error": self.gain.standard_error}
        return found

    def __str__(self) -> str:
        kept = self.patches if self.is_better else self.default
        if self.gain is None:
            return (
                f"images are read in {kept:,} patches: too few that do not belong together were kept in memory to "
                f"compare with {self.patches:,}"
            )
        value, error = (100 * each for each in self.gain)
        return (
            f"images are read in {kept:,} patches: with {self.patches:,} instead of {self.default:,}, the mean IoU on "
            f"training images that had no part in a fit changes by {value:+.1f} points (standard error {error:.1f})"
        )


def larger_grid(
    published: Classifier,
    first: FirstModel,
    train: Masked,
    device: torch.device,
    precision: Precision,
    seconds: float,
    clock: Clock,
) -> int:
    """The patches of the larger grid to try; 0 if none fits into the time, which is logged.

    Args:
        published: The pre-trained model.
        first: The first model, on the default grid.
        train: The training images.
        device: Where they are computed.
        precision: In which arithmetic.
        seconds: The time that the first model took.
        clock: The time of the command.
    """
    if len(first.numbers) < FEWEST_COMPARED:
        return 0
    places = np.linspace(0, len(first.numbers) - 1, TIMED).astype(int)
    timed = first.numbers[places].tolist()

    def seconds_on(classifier: Classifier) -> float:
        return median(seconds_of_image(classifier, train, i, device, precision) for i in timed)

    one = seconds_on(first.classifier)
    default = first.classifier.preprocessing.patches
    patches = default
    enough = 0.0
    for factor in FACTORS:
        at_least = clock.minutes_for(Times(seconds, one, one), factor)
        if at_least > clock.minutes and factor != FACTORS[-1]:
            continue  # without measuring
        enlarged = on_grid(first.classifier, published, factor)
        patches = enlarged.preprocessing.patches
        try:
            larger = seconds_on(enlarged)
        except torch.OutOfMemoryError:
            say(f"{patches:,} patches of an image need too much memory")
            if factor == FACTORS[-1]:
                return 0
            continue
        enough = clock.minutes_for(Times(seconds, one, larger), factor)
        if enough <= clock.minutes:
            return patches
    say(
        f"images are read in {default:,} patches: trying {patches:,} would take too long for "
        f"{time_text(clock.minutes)}, and `minutes={math.ceil(enough)}` would do"
    )
    return 0


def on_grid(classifier: Classifier, published: Classifier, factor: float) -> Classifier:
    """A model that reads images in `factor` times as many patches."""
    patches = round(factor * classifier.preprocessing.patches)
    return replace(classifier, preprocessing=dense(published, (), 1, patches).preprocessing)


def seconds_of_image(
    classifier: Classifier, train: Masked, i: int, device: torch.device, precision: Precision
) -> float:
    """The time of measuring training image i."""
    runtime = map_runtime(classifier, str(device), precision)
    began = time.monotonic()
    picture, truth = train.pair(i)
    count_pixels(truth, class_map(runtime, picture), len(train.labels))
    return time.monotonic() - began


def compared(first: FirstModel, larger: FirstModel, groups: np.ndarray | None) -> GridChoice:
    """What the larger grid adds to the first model: by the predictions for the training images that both have, at the
    resolution of the larger grid, and by the classes of their masks.

    groups: Training images with the same number belong together, int64 (N,).
    """
    shared, own, others = np.intersect1d(first.numbers, larger.numbers, return_indices=True)
    found = None
    independent = len(shared) if groups is None else len(np.unique(groups[shared]))
    if independent >= FEWEST_COMPARED:
        counts = []
        for i, j in zip(own.tolist(), others.tolist(), strict=True):
            truth = larger.masks[j]
            logits = first.to_logits.maps(first.best.maps[i]).numpy()
            counts.append(counts_of(truth, likeliest(logits, truth.shape), logits.shape[0]))
        own_groups = None if groups is None else groups[shared]
        of_larger = larger.best.counts[others]
        is_there = of_larger[:, 0].sum(0) > 0  # classes that these masks have
        found = gain(
            scores_of(np.stack(counts)[..., is_there], own_groups),
            scores_of(of_larger[..., is_there], own_groups),
        )
    patches, default = (each.classifier.preprocessing.patches for each in (larger, first))
    return GridChoice(patches, default, len(shared), found)
