"""The first model of images with masks: a head in closed form, from one pass over the images, chosen by the IoU of
cross-validated predictions."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.data import Masked, resized_mask
from vitkit.evaluation import Metric, SegmentationScores
from vitkit.finetuning.segmentation.closed_form import (
    FINER,
    FOLDS,
    MOST_KEPT,
    MOST_PATCHES,
    Example,
    Sums,
    ToLogits,
    Tried,
    blocks_to_try,
    calibrated,
    columns_of,
    cross_validated,
    folds_of,
    sample,
    shares_of,
    solved,
)
from vitkit.models import ViTConfig
from vitkit.system.console.messages import say
from vitkit.system.console.progress import bar
from vitkit.system.console.text import counted, some
from vitkit.system.errors import BadData, BadImage
from vitkit.system.machine import PrecisionChoice, autocast, pick_precision
from vitkit.weights import Classifier, dense

HELD_OUT = 0  # the fold of the held-out images


class FirstModel(NamedTuple):
    """A model with a head in closed form."""

    classifier: Classifier
    """The model that has learned from all training images."""
    without_held_out: Classifier
    """The model whose head has not learned from the held-out images; the same one if these are no training
    images. Nor had these a part in the settings of either."""
    best: Tried
    """Its settings, and its cross-validated predictions for the training images that are not held out."""
    tried: list[Tried]
    """All settings that were compared."""
    to_logits: ToLogits
    """From the shares of `best.maps` to logits."""
    numbers: np.ndarray
    """The training images of `best`: int64 (n,)."""
    masks: list[np.ndarray]
    """Their classes at FINER times the grid: uint8 (FINER h, FINER w) each."""

    @property
    def left_out(self) -> Metric:
        """The mean IoU of the cross-validated predictions, with an interval by resampling images."""
        first = next(scores_of(self.best.counts).metrics(each_class=False))
        return first.within("left_out")


def scores_of(counts: np.ndarray, groups: np.ndarray | None = None) -> SegmentationScores:
    """The scores of the counts of images, int64 (n, 3, K), without boundaries."""
    truth, predicted, right = counts.swapaxes(0, 1)
    nothing = np.zeros_like(right)
    names = [str(k) for k in range(right.shape[1])]
    return SegmentationScores(tuple(names), truth, predicted, right, nothing, nothing, groups)


def first_model(
    published: Classifier,
    train: Masked,
    held_out: np.ndarray,
    tokens: int | None,
    device: torch.device,
    precision: PrecisionChoice,
) -> FirstModel:
    """Fit heads to the training images, and choose one.

    Args:
        published: The pre-trained model.
        train: The images.
        held_out: Numbers of the training images that choose between this model and a fine-tuned one; empty if
            other images do.
        tokens: Most patches of an image; None is the default of `dense`.
        device: What computes the features.
        precision: Of the features.

    Raises BadData for images or masks that a model cannot learn from.
    """
    held_out_folds: tuple[int, ...] = ()
    if len(held_out):
        held_out_folds = (HELD_OUT,)

    # One pass over the images
    config = published.model.config
    assert isinstance(config, ViTConfig)  # `dense` refuses others
    most = blocks_to_try(config.width, config.depth)[-1]
    bare = dense(published, (), most, tokens)
    folds = folds_with(held_out, len(train), train.images.groups)
    examples, sums, kept = read(bare, train, device, precision, folds, held_out_folds)

    # The settings, without the held-out images, which compare the model with others; and the heads
    tried = cross_validated(sums, examples, folds[kept], config.width, config.depth, held_out_folds)
    best = max(tried, key=lambda each: each.miou)
    to_logits, best = calibrated(best, examples, sums.classes)
    classifier = _with_head(published, train.labels, tokens, sums, (), best, to_logits)
    without = classifier
    if held_out_folds:
        without = _with_head(published, train.labels, tokens, sums, held_out_folds, best, to_logits)
    masks = [example.mask for example in examples]
    return FirstModel(classifier, without, best, tried, to_logits, kept, masks)


def folds_with(held_out: np.ndarray, count: int, groups: np.ndarray | None) -> np.ndarray:
    """The fold of each image, int64 (count,): HELD_OUT for the held-out ones, one of the others at random for the
    others; without held-out images those of `folds_of`."""
    if not len(held_out):
        return folds_of(count, groups)
    folds = np.full(count, HELD_OUT, np.int64)
    others = np.setdiff1d(np.arange(count), held_out)
    own_groups = None if groups is None else groups[others]
    folds[others] = 1 + folds_of(len(others), own_groups, FOLDS - 1)
    return folds


def _with_head(
    published: Classifier,
    labels: tuple[str, ...],
    tokens: int | None,
    sums: Sums,
    without: Collection[int],
    best: Tried,
    to_logits: ToLogits,
) -> Classifier:
    """The model with the head that a fit to all folds but some gives, which gives logits."""
    config = published.model.config
    assert isinstance(config, ViTConfig)
    xx, xy = sums.without(without, columns_of(best.reading.blocks, config.width))
    weights = solved(xx, xy, best.reading.l2)
    made = dense(published, labels, best.reading.blocks, tokens)
    head: Any = made.model.head
    weight: Tensor = weights[:-1] @ to_logits.weight
    with torch.no_grad():
        head.weight.copy_(weight.mT)
        head.bias.copy_(weights[-1] @ to_logits.weight + to_logits.bias)
    return replace(made, origin={})


def read(
    bare: Classifier,
    train: Masked,
    device: torch.device,
    precision: PrecisionChoice,
    folds: np.ndarray | None = None,
    held_out: Collection[int] = (),
) -> tuple[list[Example], Sums, np.ndarray]:
    """The features of the training images and what ridge regression needs of them, from one pass.

    folds: the fold of each image, int64 (images,); None: those of `folds_of`. held_out: folds without examples.

    Returns the examples that are kept for cross-validation, the sums of all images, and the number of each example's
    image, int64.
    Images that cannot be read are left out, and named. Raises BadData if none can, or if their masks have one class.
    """
    bare = bare.to(device).for_inference()
    chosen = pick_precision(precision, device).precision
    if folds is None:
        folds = folds_of(len(train), train.images.groups)
    sums: Sums | None = None
    examples: list[Example] = []
    kept: list[int] = []
    size = 0
    most_patches = max(MOST_PATCHES // len(train), 1)
    present = np.zeros(len(train.labels), bool)
    for i, (image, mask) in prepared(bare, train):
        height, width = image.shape[1:]
        patch = bare.preprocessing.patch
        grid = (height // patch[0], width // patch[1])
        with torch.inference_mode(), autocast(device, chosen):
            features = bare.features(torch.from_numpy(image[None]))[0].cpu()  # (N, M - 1)
        if not features.isfinite().all():
            raise BadData(f"the model gives NaN or infinity for {train.images.name(i)}")
        if sums is None:
            sums = Sums(features.shape[1], len(train.labels), int(folds.max()) + 1)
        shares, known = shares_of(resized_mask(mask, (height, width)), grid, len(train.labels))
        chosen_patches = sample(len(shares), most_patches, i)
        sums.add(
            int(folds[i]), features[chosen_patches], shares[chosen_patches], known[chosen_patches]
        )
        present |= (shares > 0).any(0).numpy()
        if folds[i] in held_out:
            continue
        needed = features.numel() + FINER**2 * shares.numel()
        if size + needed <= MOST_KEPT:
            size += needed
            finer = resized_mask(mask, (FINER * grid[0], FINER * grid[1]))
            examples.append(Example(features.half(), grid, finer))
            kept.append(i)
    if sums is None or not examples:
        raise BadData("none of the training images can be read with its mask")
    about_255 = ""
    if train.legend.ignores_255_alone:
        about_255 = " (pixels of 255 are ignored unless `legend` gives 255 to a class)"
    if present.sum() < 2:
        raise BadData(
            f"the masks of the training images have {counted(int(present.sum()), 'class')} "
            f"({some([train.labels[k] for k in np.flatnonzero(present)], 3)}); a model needs two at "
            f"least{about_255}"
        )
    absent = [train.labels[k] for k in np.flatnonzero(~present)]
    if absent:
        say(f"no training mask has {some(absent, 5)}, so the model never answers that{about_255}")
    if len(np.setdiff1d(folds, list(held_out))) < 2:
        raise BadData(
            "one training image, or one group of images, is not enough: two are needed at least, so that one is "
            "predicted by a model of the other"
        )
    return examples, sums, np.array(kept)


def prepared(
    classifier: Classifier, train: Masked
) -> Iterator[tuple[int, tuple[np.ndarray, np.ndarray]]]:
    """Each image as the model reads it, uint8 (C, H, W), and its mask, uint8 (h, w), with its number. Images that
    cannot be read are left out, and named."""
    for i in bar("computing features")(range(len(train)), len(train)):
        try:
            picture, mask = train.pair(i)
            image = classifier.preprocessing.array(picture)
        except BadImage as error:
            say(f"left out: {error}")
            continue
        yield i, (image, mask)
