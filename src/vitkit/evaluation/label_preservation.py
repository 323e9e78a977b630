"""Label preservation: which augmentations keep the class of a training image. A mirrored arrow is a
different sign, and a crop may cut off what the class depends on; neither harms a picture of a cat.

A pre-trained model measures this, so users need not know it. For every augmentation, a closed-form head is
trained on changed images and classifies changed images that were left out; another head does so with
unchanged images. If the change alters classes, or hides what they depend on, the first head classifies fewer
images right.

A run from scratch has no such model. Its heads are trained on thumbnails of the images: these hold less than a
model's features, but they do show where something is and which way it points.

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

IMAGES = 400  # largest number of images that are tested
VIEWS = 2  # draws of a random change for each image
# Largest probability that a harmless change is switched off. Keeping a harmful one is worse: a tenth of
# wrong labels costs more than a missing flip
ERROR = 0.05
BATCH = 50  # images of a forward pass
PARTS = 2  # parts of an image, in each direction, over which the middle block's states are averaged
THUMBNAIL = 12  # side of a thumbnail in pixels, where there is no model
EDGES = 4  # parts of a thumbnail, in each direction, over which edges are averaged
WHOLE = Augmentation(crop="none", flip=False)
FeaturePair = tuple[Tensor, Tensor]
"""Features of images: those of the model's head, (..., D), and local ones, the states of the middle block
averaged within PARTS x PARTS parts of the image, (..., E)."""
CROPS = {
    "inception": "Inception crops",
    "resize_crop": "crops of a square",
    "pad_crop": "shifts",
}
OTHERS = {  # effects of the other settings of an augmentation
    "colour_jitter": "changed colours",
    "rand_augment": "RandAugment",
    "erase": "erased rectangles",
}
OFF = {name: getattr(WHOLE, name) for name in OTHERS}


@dataclass(frozen=True)
class Preservation:
    """The test of one change: a head trained on changed images against one trained on unchanged ones."""

    change: str
    """The name of the change, such as "mirrored images"."""
    images: int
    """Number of images that were tested."""
    whole: int
    """Number of unchanged images that a head trained on unchanged images classifies right."""
    changed: int
    """Number of changed images that a head trained on changed images classifies right."""
    p_value: float
    """Probability that a harmless change loses at least as many right answers as this one did."""
    survives: bool
    """Whether the change stays part of the augmentation."""


@dataclass(frozen=True)
class Survival:
    """An augmentation without the changes that do not preserve the classes, and the trials."""

    augmentation: Augmentation
    trials: tuple[Preservation, ...]


class FeatureExtractor(Protocol):
    """Computes the features that the heads learn from."""

    preprocessing: Preprocessing
    """How images are prepared for the extractor."""

    def extract(self, pixels: Tensor) -> FeaturePair:
        """Images (B, C, h, w) as `preprocessing` yields them -> their features."""


class ModelFeatures:
    """Features of a pre-trained model."""

    def __init__(self, classifier: Classifier):
        self.classifier = classifier
        self.preprocessing = classifier.preprocessing

    def extract(self, pixels: Tensor) -> FeaturePair:
        """The features of the model's head, and the states of its middle block in parts of the image."""
        model = self.classifier.model
        with recording(model, attention=False) as record:
            read = self.classifier.features(pixels)
        middle = record.states[len(record.states) // 2 - 1]
        where = formed(middle, "map", model, pixels).float()  # (B, C, h, w)
        return read.cpu(), F.adaptive_avg_pool2d(where, PARTS).flatten(1).cpu()


class PixelFeatures:
    """Features without a model: a thumbnail of THUMBNAIL x THUMBNAIL pixels, and the edges in parts of it."""

    def __init__(self, preprocessing: Preprocessing):
        self.preprocessing = preprocessing

    def extract(self, pixels: Tensor) -> FeaturePair:
        """The thumbnail, and for parts of it how much the brightness rises and falls to the right and
        downwards."""
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
    """The part of an augmentation that preserves the classes, tested as in `surviving`, without a model.

    Flips are tested, and crops that may leave out more than an eighth of a side. Shifts and changes of
    colours stay untested: they change the pixels of a thumbnail more than they change the image's content.
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

    A change is switched off if a one-sided exact McNemar test finds, at the level ERROR divided by the
    number of kinds of change (Bonferroni), that it costs right answers. An Inception crop becomes BiT's
    smaller one before crops are switched off: that is tested only after a rejection, so the level stays.

    classifier: the pre-trained model; the image size of its preprocessing decides how long the test takes.
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
    right = _classified_right(whole[:, None], whole, classes, groups)
    level = ERROR / max(_kinds(augmentation), 1)

    def trial(change: str, views: Tensor) -> Preservation:
        also_right = _classified_right(views, views[:, 0], classes, groups)
        p_value = exchanged(right.numpy(), also_right.numpy(), groups, "greater")
        counts = (len(classes), int(right.sum()), int(also_right.sum()))
        return Preservation(change, *counts, p_value, survives=p_value > level)

    def drawn(alone: Augmentation) -> Tensor:
        return _joined(_draws(extractor, images, alone), scales)

    # Mirrored images, each as a view beside the unchanged one
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

    # The other settings
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
    """The number of kinds of change that an augmentation makes."""
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


def _classified_right(
    views: Tensor, queries: Tensor, classes: Tensor, groups: np.ndarray | None
) -> Tensor:
    """Views to train on (N, V, D), views to classify (N, D), classes (N,) -> whether each image is classified
    right by a head trained on the images of other groups, bool (N,)."""
    count = int(classes.max()) + 1
    folds = balanced_folds(classes.numpy(), groups)
    fit = LeaveOut(views, targets(classes, count), folds, queries=queries)
    _, _, logits = best_for_classes(fit, classes)
    return logits.argmax(1) == classes


def _scale(x: Tensor) -> float:
    """The mean distance of features (N, D) from their mean."""
    return (x - x.mean(0)).norm(dim=1).mean().clamp(min=1e-12).item()


def _joined(seen: FeaturePair, scales: Sequence[float]) -> Tensor:
    """Both parts concatenated, each divided by its scale."""
    return torch.cat([part / scale for part, scale in zip(seen, scales, strict=True)], -1)


def _whole_and_mirrored(
    extractor: FeatureExtractor, images: Source, mirrors: bool
) -> tuple[FeaturePair, FeaturePair]:
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
    read, where = _concatenated(whole)
    mirrored_read, mirrored_where = _concatenated(mirrored or whole)
    return (read[order], where[order]), (mirrored_read[order], mirrored_where[order])


def _concatenated(batches: Sequence[FeaturePair]) -> FeaturePair:
    """The features of all batches, each part concatenated."""
    read, where = zip(*batches, strict=True)
    return torch.cat(read), torch.cat(where)


def _draws(extractor: FeatureExtractor, images: Source, augmentation: Augmentation) -> FeaturePair:
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
            views.append([part[order] for part in _concatenated(seen)])
    read, where = zip(*views, strict=True)
    return torch.stack(read, 1), torch.stack(where, 1)
