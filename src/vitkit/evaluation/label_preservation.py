"""Which changes of a training image its class survives: a mirrored arrow is another sign, a crop of
a picture whose class is a place in it is of any place, and neither harms a cat.

Nobody has to know, for a pre-trained model sees it. For every change, a head in closed form learns from
changed images and answers changed images that it has not learned from; another does so for whole ones.
If the change alters classes, or hides what they depend on, the first head answers fewer of them.

Legend: N images, V views of each, D width.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data import (
    Augmentation,
    Source,
    default_workers,
    eval_batches,
    random_subset,
    square_before_crop,
    train_batches,
)
from vitkit.evaluation.metrics.paired import exchanged
from vitkit.evaluation.probes.closed_forms import targets
from vitkit.evaluation.probes.folds import balanced_folds
from vitkit.evaluation.probes.left_out import LeaveOut, best_for_classes
from vitkit.models import formed, recording
from vitkit.weights import Classifier

IMAGES = 400  # images that are asked about, at most
VIEWS = 2  # draws of a random change for each
# The chance, at most, that something is switched off which costs nothing. To leave on what alters classes
# is worse: a tenth of wrong labels costs more than a missing flip
ERROR = 0.05
BATCH = 50  # images of a forward pass
PARTS = 2  # of an image, in each direction, of which the model says what is there
WHOLE = Augmentation(crop="none", flip=False)
Seen = tuple[Tensor, Tensor]
"""What a model sees in images: what its head reads, (..., D), and what is where, the states of the middle
block averaged within PARTS x PARTS parts of the image, (..., E)."""
CROPS = {
    "inception": "Inception crops",
    "resize_crop": "crops of a square",
    "pad_crop": "shifts",
}
OTHERS = {  # settings of an augmentation: what they do, and their value if they are off
    "colour_jitter": ("changed colours", (0.0, 0.0, 0.0, 0.0)),
    "rand_augment": ("RandAugment", (0, 0)),
    "erase": ("erased rectangles", 0.0),
}


@dataclass(frozen=True)
class Trial:
    """The answers of a head that has learned from changed images."""

    change: str
    """What was done to them: "mirrored", for example."""
    images: int
    """How many images were asked about."""
    whole: int
    """How many of them are answered rightly as they are, by a head that has learned from whole ones."""
    changed: int
    """How many changed, by a head that has learned from changed ones."""
    p_value: float
    """How probable it is that a change which costs nothing loses so many or more."""
    survives: bool
    """Whether the change stays."""


@dataclass(frozen=True)
class Survival:
    """An augmentation without the changes that do not preserve the classes, and the trials."""

    augmentation: Augmentation
    trials: tuple[Trial, ...]


def surviving(classifier: Classifier, source: Source, augmentation: Augmentation) -> Survival:
    """The part of an augmentation that preserves the classes, for images of one class each.

    A change is switched off if a one-sided exact McNemar test says, at ERROR divided by the number
    of kinds of change, that it costs answers. An Inception crop becomes BiT's smaller one before
    crops are switched off: that is asked only after a no, so it needs no division.

    classifier: the pre-trained model; the size of its preprocessing decides how long it takes.
    Raises BadImage.
    """
    images = random_subset(source, min(len(source), IMAGES), seed=0, by_class=True)
    classes = torch.from_numpy(images.targets)
    seen, mirrored = _whole_and_mirrored(classifier, images, augmentation.flip)
    scales = [_scale(part) for part in seen]
    whole = _joined(seen, scales)
    groups = images.groups
    right = _right(whole[:, None], whole, classes, groups)
    level = ERROR / max(_kinds(augmentation), 1)

    def trial(change: str, views: Tensor) -> Trial:
        also_right = _right(views, views[:, 0], classes, groups)
        p_value = exchanged(right.numpy(), also_right.numpy(), groups, "greater")
        counts = (len(classes), int(right.sum()), int(also_right.sum()))
        return Trial(change, *counts, p_value, survives=p_value > level)

    def drawn(alone: Augmentation) -> Tensor:
        return _joined(_drawn(classifier, images, alone), scales)

    # Mirrored images, beside the others
    trials = []
    if augmentation.flip:
        views = torch.stack([_joined(mirrored, scales), whole], 1)
        trials.append(trial("mirrored images", views))
        augmentation = replace(augmentation, flip=trials[-1].survives)

    # Crops, the largest change first
    off = {name: value for name, (_, value) in OTHERS.items()}
    while augmentation.crop != "none":
        alone = replace(augmentation, flip=False, **off)
        trials.append(trial(CROPS[alone.crop], drawn(alone)))
        if trials[-1].survives:
            break
        augmentation = _smaller_crop(augmentation, classifier)

    # All else
    for name, (change, value) in OTHERS.items():
        asked_for = getattr(augmentation, name)
        if asked_for == value:
            continue
        alone = replace(WHOLE, rand_augment_by=augmentation.rand_augment_by, **{name: asked_for})
        trials.append(trial(change, drawn(alone)))
        if not trials[-1].survives:
            augmentation = replace(augmentation, **{name: value})
    return Survival(augmentation, tuple(trials))


def _kinds(augmentation: Augmentation) -> int:
    """How many kinds of change an augmentation makes."""
    count = int(augmentation.flip) + int(augmentation.crop != "none")
    for name, (_, value) in OTHERS.items():
        count += getattr(augmentation, name) != value
    return count


def _smaller_crop(augmentation: Augmentation, classifier: Classifier) -> Augmentation:
    """The augmentation with the next smaller crop: BiT's, or none."""
    if augmentation.crop != "inception":
        return replace(augmentation, crop="none", resize=0)
    side = square_before_crop(max(classifier.preprocessing.size))
    return replace(augmentation, crop="resize_crop", resize=side)


def _right(views: Tensor, asked: Tensor, classes: Tensor, groups: np.ndarray | None) -> Tensor:
    """(N, V, D) views, (N, D) asked, (N,) -> which are answered right by all others, but those of their
    group, bool (N,)."""
    count = int(classes.max()) + 1
    folds = balanced_folds(classes.numpy(), groups)
    fit = LeaveOut(views, targets(classes, count), folds, asked=asked)
    _, _, logits = best_for_classes(fit, classes)
    return logits.argmax(1) == classes


def _seen(classifier: Classifier, pixels: Tensor) -> Seen:
    """What a model sees in prepared images, uint8 (B, 3, h, w)."""
    model = classifier.model
    with recording(model, attention=False) as record:
        read = classifier.features(pixels)
    middle = record.states[len(record.states) // 2 - 1]
    where = formed(middle, "map", model, pixels).float()  # (B, C, h, w)
    return read.cpu(), F.adaptive_avg_pool2d(where, PARTS).flatten(1).cpu()


def _scale(x: Tensor) -> float:
    """How far features (N, D) are from their mean."""
    return (x - x.mean(0)).norm(dim=1).mean().clamp(min=1e-12).item()


def _joined(seen: Seen, scales: Sequence[float]) -> Tensor:
    """Both parts side by side, equally far from their means."""
    return torch.cat([part / scale for part, scale in zip(seen, scales, strict=True)], -1)


def _whole_and_mirrored(classifier: Classifier, images: Source, mirrors: bool) -> tuple[Seen, Seen]:
    """Images as they are and, with `mirrors`, mirrored: (N, ...) each."""
    workers = default_workers(images)
    whole = []
    mirrored = []
    indices = []
    for batch in eval_batches(images, classifier.preprocessing, BATCH, workers):
        pixels = batch.images[batch.real]
        whole.append(_seen(classifier, pixels))
        if mirrors:
            mirrored.append(_seen(classifier, pixels.flip(-1)))
        indices.append(batch.indices[batch.real])
    order = torch.cat(indices).argsort()
    plain, turned = (
        tuple(part[order] for part in _together(seen)) for seen in (whole, mirrored or whole)
    )
    return plain, turned


def _together(batches: Sequence[Seen]) -> Seen:
    read, where = zip(*batches, strict=True)
    return torch.cat(read), torch.cat(where)


def _drawn(classifier: Classifier, images: Source, augmentation: Augmentation) -> Seen:
    """VIEWS draws of every image: (N, V, ...)."""
    made = train_batches(
        images,
        augmentation,
        classifier.preprocessing,
        len(images),
        seed=0,
        after=0,
        workers=default_workers(images),
    )
    views = []
    with closing(made) as batches:
        for batch in islice(batches, VIEWS):  # a batch is an epoch
            seen = [_seen(classifier, pixels) for pixels in batch.images.split(BATCH)]
            order = batch.indices.argsort()
            views.append([part[order] for part in _together(seen)])
    read, where = zip(*views, strict=True)
    return torch.stack(read, 1), torch.stack(where, 1)
