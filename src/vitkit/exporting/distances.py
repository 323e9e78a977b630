"""How far the anomaly scores and maps of an exported file are from those of its model of good images. Nearly all
probabilities of such a model are 0 or 1, in a wrong file too, so distances are compared: the numbers that the
probabilities are made of.

Legend: B images of a batch, (h, w) the grid of patches.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from vitkit.inspection import has_anomaly_map, logits_and_patch_logits
from vitkit.prediction import Item
from vitkit.prediction.batches import pixels_of
from vitkit.runtimes import FileRuntime, Runtime
from vitkit.weights import Classifier

# Beyond these a float32 probability does not say its logit to 1e-4
NEAR_0 = 1e-30
NEAR_1 = 1e-3


class Differences(NamedTuple):
    """The largest differences of a file from its model."""

    scores: float
    """Of two anomaly scores of an image; NaN if one is not finite."""
    maps: float
    """Of two distances of a patch."""

    def and_those(self, other: "Differences") -> "Differences":
        """The larger ones; NaN if one of them is."""
        return Differences(*np.maximum(self, other).tolist())


def classifier_with_map(model: Runtime, file: Runtime) -> Classifier | None:
    """The model of good images that a file was made of; None for any other model or runtime."""
    classifier = getattr(model, "classifier", None)
    is_file = isinstance(file, FileRuntime)
    if is_file and isinstance(classifier, Classifier) and has_anomaly_map(classifier):
        return classifier
    return None


class Distances(NamedTuple):
    """What a model and its file give for a batch."""

    differences: Differences
    logits: np.ndarray
    """The model's, (B, 2)."""
    answers: np.ndarray
    """The file's first output: logits, or probabilities if it prepares pictures itself, (B, 2)."""


def distances(
    classifier: Classifier, file: FileRuntime, images: np.ndarray, items: Sequence[Item]
) -> Distances:
    """The distances in prepared images, uint8 (B, 3, H, W), which were made of these items."""
    of_images, of_patches = logits_and_patch_logits(classifier, torch.from_numpy(images))
    logits = of_images.cpu().numpy()
    expected = _distance(classifier, _excess(logits))  # (B,)
    expected_map = _distance(classifier, _excess(of_patches.cpu().numpy()))  # (B, h, w)
    if file.exported.takes_pictures:  # one by one, because their sizes differ
        pictures = [pixels_of(item) for item in items]
        outputs = [file.outputs(each[None]) for each in pictures if each is not None]
        answers = np.concatenate([each[0] for each in outputs])
        maps = np.concatenate([each[-1] for each in outputs])
        given = _logit(answers[:, 1])
    else:
        answers, maps = file.outputs(images)
        given = _excess(answers)
    limits = _distance(classifier, _logit(np.array([NEAR_0, 1 - NEAR_1])))
    apart = Differences(
        _largest(expected, _distance(classifier, given), limits),
        _largest(expected_map, _distance(classifier, _logit(maps)), limits),
    )
    return Distances(apart, logits, answers)


def _excess(logits: np.ndarray) -> np.ndarray:
    """By how much the logit of the second class is larger: (..., 2) -> (...)."""
    logits = logits.astype(np.float64)
    return logits[..., 1] - logits[..., 0]


def _logit(probabilities: np.ndarray) -> np.ndarray:
    """The logits of probabilities; plus or minus infinity for those beyond NEAR_0 and 1 - NEAR_1."""
    exact = probabilities.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        logits = np.log(exact) - np.log1p(-exact)
    logits = np.where(exact > 1 - NEAR_1, np.inf, logits)
    return np.where(exact < NEAR_0, -np.inf, logits)


def _distance(classifier: Classifier, excess: np.ndarray) -> np.ndarray:
    """The distances by which the second logit is this much larger."""
    head = classifier.model.head
    assert isinstance(head, nn.Linear)
    weight = head.weight.detach()[:, 0]
    bias = head.bias.detach()
    slope = float(weight[1] - weight[0])
    return (excess - float(bias[1] - bias[0])) / slope


def _largest(expected: np.ndarray, given: np.ndarray, limits: np.ndarray) -> float:
    """The largest difference. Where the file's distance is infinite, which says that it is beyond a limit, it is
    how far the model's is within that limit."""
    low, high = limits.tolist()
    closest = np.where(np.isposinf(given), np.maximum(expected, high), given)
    closest = np.where(np.isneginf(given), np.minimum(expected, low), closest)
    return float(np.abs(expected - closest).max())
