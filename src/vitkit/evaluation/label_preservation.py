"""Which changes of a training image its class survives: a mirrored arrow is another sign, a crop of
a picture whose class is a place in it is of any place, and neither harms a cat.

A pre-trained model measures this, so users need not know it. For every change, a head in closed form learns from
changed images and answers changed images that it has not learned from; another does so for whole ones.
If the change alters classes, or hides what they depend on, the first head answers fewer of them.

A run from scratch has no such model. There the heads read small pictures of the images: less than a model
sees, but where something is and which way it points is in them.

Legend: N images, V views of each, D width.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data import (
    Augmentation,
    Preprocessing,
    Source,
    default_workers,
    eval_batches,
    random_subset,
    square_before_crop,
    train_batches,
)
from vitkit.evaluation.metrics.paired import exchanged
from vitkit.evaluation.probes.cross_validation import LeaveOut
from vitkit.evaluation.probes.folds import balanced_folds
from vitkit.evaluation.probes.probe import best_for_classes
from vitkit.evaluation.probes.ridge import targets
from vitkit.models import recording
from vitkit.models.states import formed
from vitkit.weights import Classifier

IMAGES = 400  # images that are asked about, at most
VIEWS = 2  # draws of a random change for each
# The chance, at most, that something is switched off which costs nothing. To leave on what alters classes
# is worse: a tenth of wrong labels costs more than a missing flip
ERROR = 0.05
BATCH = 50  # images of a forward pass
PARTS = 2  # of an image, in each direction, of which the model says what is there
THUMBNAIL = 12  # pixels of a side, where there is no model
EDGES = 4  # parts of it, in each direction, whose edges are counted
WHOLE = Augmentation(crop="none", flip=False)
Seen = tuple[Tensor, Tensor]
"""What a model sees in images: what its head reads, (..., D), and what is where, the states of the middle
block averaged within PARTS x PARTS parts of the image, (..., E)."""
CROPS = {
    "inception": "Inception crops",
    "resize_crop": "crops of a square",
    "pad_crop": "shifts",
}
OTHERS = {  # the other settings of an augmentation: what they do
    "colour_jitter": "changed colours",
    "rand_augment": "RandAugment",
    "erase": "erased rectangles",
}
OFF = {name: getattr(WHOLE, name) for name in OTHERS}


@dataclass(frozen=True)
class Preservation:
    """The answers of a head that has learned from changed images."""

    change: str
    """What was done to them: "mirrored", for example."""
    images: int
    """How many images were asked about."""
    whole: int
    """Number of unchanged images that a head trained on unchanged images classifies right."""
    changed: int
    """Number of changed images that a head trained on changed images classifies right."""
    p_value: float
    """Probability that a harmless change loses at least as many answers as were lost."""
    survives: bool
    """Whether the change stays."""


@dataclass(frozen=True)
class Survival:
    """An augmentation without the changes that do not preserve the classes, and the trials."""

    augmentation: Augmentation
    trials: tuple[Preservation, ...]


class FeatureExtractor(Protocol):
    """Computes the features that the heads learn from."""

    preprocessing: Preprocessing
    """How images are prepared for it."""

    def extract(self, pixels: Tensor) -> Seen:
        """Prepared images (B, C, h, w), of the preprocessing's values -> what heads read of them."""


class ModelFeatures:
    """A pre-trained model."""

    def __init__(self, classifier: Classifier):
        self.classifier = classifier
        self.preprocessing = classifier.preprocessing

    def extract(self, pixels: Tensor) -> Seen:
        """What the model's head reads, and its middle states in parts of the image."""
        model = self.classifier.model
        with recording(model, attention=False) as record:
            read = self.classifier.features(pixels)
        middle = record.states[len(record.states) // 2 - 1]
        where = formed(middle, "map", model, pixels).float()  # (B, C, h, w)
        return read.cpu(), F.adaptive_avg_pool2d(where, PARTS).flatten(1).cpu()


class PixelFeatures:
    """No model: a picture of THUMBNAIL x THUMBNAIL pixels, and the edges in parts of it."""

    def __init__(self, preprocessing: Preprocessing):
        self.preprocessing = preprocessing

    def extract(self, pixels: Tensor) -> Seen:
        """The small picture, and how much brightness rises and falls to the right and downwards in parts
        of it."""
        images = self.preprocessing.normalise(pixels)
        small = F.adaptive_avg_pool2d(images, THUMBNAIL)  # (B, C, 12, 12)
        grey = small.mean(1, keepdim=True)
        across = grey[..., :-1, 1:] - grey[..., :-1, :-1]
        down = grey[..., 1:, :-1] - grey[..., :-1, :-1]
        edges = torch.cat([across.relu(), (-across).relu(), down.relu(), (-down).relu()], 1)
        return small.flatten(1), F.adaptive_avg_pool2d(edges, EDGES).flatten(1)


def surviving_in_pixels(
    preprocessing: Preprocessing, source: Source, augmentation: Augmentation
) -> Survival:
    """The part of an augmentation that preserves the classes, as `surviving`, without a model.

    Asked about are mirrored images, and crops that may leave out more than an eighth of a side. Shifts and
    changes of colours, which a picture of pixels takes for more than they are, stay as they are.
    """
    asked = replace(augmentation, **OFF)
    shifts = asked.crop == "pad_crop"
    if shifts:
        asked = replace(asked, crop="none")
    survival = _surviving(PixelFeatures(preprocessing), source, asked)
    found = survival.augmentation
    left = replace(augmentation, flip=found.flip)
    if not shifts:
        left = replace(left, crop=found.crop, resize=found.resize)
    return replace(survival, augmentation=left)


def surviving(classifier: Classifier, source: Source, augmentation: Augmentation) -> Survival:
    """The part of an augmentation that preserves the classes, for images of one class each.

    A change is switched off if a one-sided exact McNemar test says, at ERROR divided by the number
    of kinds of change, that it costs answers. An Inception crop becomes BiT's smaller one before
    crops are switched off: that is asked only after a no, so it needs no division.

    classifier: the pre-trained model; the size of its preprocessing decides how long it takes.
    Raises BadImage.
    """
    return _surviving(ModelFeatures(classifier), source, augmentation)


def _surviving(extractor: FeatureExtractor, source: Source, augmentation: Augmentation) -> Survival:
    images = random_subset(source, min(len(source), IMAGES), seed=0, by_class=True)
    classes = torch.from_numpy(images.targets)
    seen, mirrored = _whole_and_mirrored(extractor, images, augmentation.flip)
    scales = [_scale(part) for part in seen]
    whole = _joined(seen, scales)
    groups = images.groups
    right = _right(whole[:, None], whole, classes, groups)
    level = ERROR / max(_kinds(augmentation), 1)

    def trial(change: str, views: Tensor) -> Preservation:
        also_right = _right(views, views[:, 0], classes, groups)
        p_value = exchanged(right.numpy(), also_right.numpy(), groups, "greater")
        counts = (len(classes), int(right.sum()), int(also_right.sum()))
        return Preservation(change, *counts, p_value, survives=p_value > level)

    def drawn(alone: Augmentation) -> Tensor:
        return _joined(_drawn(extractor, images, alone), scales)

    # Mirrored images, beside the others
    trials = []
    if augmentation.flip:
        views = torch.stack([_joined(mirrored, scales), whole], 1)
        trials.append(trial("mirrored images", views))
        augmentation = replace(augmentation, flip=trials[-1].survives)

    # Crops, the largest change first
    while augmentation.crop != "none":
        alone = replace(augmentation, flip=False, **OFF)
        trials.append(trial(CROPS[alone.crop], drawn(alone)))
        if trials[-1].survives:
            break
        augmentation = _smaller_crop(augmentation, extractor.preprocessing)

    # All else
    for name, change in OTHERS.items():
        asked_for = getattr(augmentation, name)
        if asked_for == OFF[name]:
            continue
        alone = replace(WHOLE, rand_augment_by=augmentation.rand_augment_by, **{name: asked_for})
        trials.append(trial(change, drawn(alone)))
        if not trials[-1].survives:
            augmentation = replace(augmentation, **{name: OFF[name]})
    return Survival(augmentation, tuple(trials))


def _kinds(augmentation: Augmentation) -> int:
    """How many kinds of change an augmentation makes."""
    count = int(augmentation.flip) + int(augmentation.crop != "none")
    for name, value in OFF.items():
        count += getattr(augmentation, name) != value
    return count


def _smaller_crop(augmentation: Augmentation, preprocessing: Preprocessing) -> Augmentation:
    """The augmentation with the next smaller crop: BiT's, or none."""
    if augmentation.crop != "inception":
        return replace(augmentation, crop="none", resize=0)
    side = square_before_crop(max(preprocessing.size))
    return replace(augmentation, crop="resize_crop", resize=side)


def _right(views: Tensor, asked: Tensor, classes: Tensor, groups: np.ndarray | None) -> Tensor:
    """(N, V, D) views, (N, D) asked, (N,) -> which are answered right by all others, but those of their
    group, bool (N,)."""
    count = int(classes.max()) + 1
    folds = balanced_folds(classes.numpy(), groups)
    fit = LeaveOut(views, targets(classes, count), folds, asked=asked)
    _, _, logits = best_for_classes(fit, classes)
    return logits.argmax(1) == classes


def _scale(x: Tensor) -> float:
    """How far features (N, D) are from their mean."""
    return (x - x.mean(0)).norm(dim=1).mean().clamp(min=1e-12).item()


def _joined(seen: Seen, scales: Sequence[float]) -> Tensor:
    """Both parts side by side, equally far from their means."""
    return torch.cat([part / scale for part, scale in zip(seen, scales, strict=True)], -1)


def _whole_and_mirrored(
    extractor: FeatureExtractor, images: Source, mirrors: bool
) -> tuple[Seen, Seen]:
    """Images as they are and, with `mirrors`, mirrored: (N, ...) each."""
    workers = default_workers(images)
    whole = []
    mirrored = []
    indices = []
    for batch in eval_batches(images, extractor.preprocessing, BATCH, workers):
        pixels = batch.images[batch.real]
        whole.append(extractor.extract(pixels))
        if mirrors:
            mirrored.append(extractor.extract(pixels.flip(-1)))
        indices.append(batch.indices[batch.real])
    order = torch.cat(indices).argsort()
    read, where = _together(whole)
    mirrored_read, mirrored_where = _together(mirrored or whole)
    return (read[order], where[order]), (mirrored_read[order], mirrored_where[order])


def _together(batches: Sequence[Seen]) -> Seen:
    read, where = zip(*batches, strict=True)
    return torch.cat(read), torch.cat(where)


def _drawn(extractor: FeatureExtractor, images: Source, augmentation: Augmentation) -> Seen:
    """VIEWS draws of every image: (N, V, ...)."""
    made = train_batches(
        images,
        augmentation,
        extractor.preprocessing,
        len(images),
        seed=0,
        after=0,
        workers=default_workers(images),
    )
    views = []
    with closing(made) as batches:
        for batch in islice(batches, VIEWS):  # a batch is an epoch
            seen = [extractor.extract(pixels) for pixels in batch.images.split(BATCH)]
            order = batch.indices.argsort()
            views.append([part[order] for part in _together(seen)])
    read, where = zip(*views, strict=True)
    return torch.stack(read, 1), torch.stack(where, 1)
