"""Anomaly maps: where an image is unlike the good ones that a model remembers; and the regions in them.

Legend: B images, K = 2 classes, (h, w) the grid of patches, H W pixels of an image.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.models import VisionTransformer
from vitkit.system.errors import Unsupported
from vitkit.weights import Classifier, evaluating

UNLIKE = 0.5  # probability from which a patch belongs to a region
HOT = np.array([228, 26, 28], np.float32)  # red, over parts that are unlike good images
STRONGEST = (
    0.7  # share of that colour where an image is certainly unlike: what is below stays visible
)


class Region(NamedTuple):
    """Patches side by side that are unlike those of good images."""

    box: tuple[float, float, float, float]
    """Left, top, width and height, in pixels of the image."""
    score: float
    """The highest probability of its patches, that of an image whose anomaly score is as high."""
    area: float
    """Its size in pixels of the image."""


def has_anomaly_map(classifier: Classifier) -> bool:
    """Whether a model compares the patches of an image with those of a memory bank."""
    model = classifier.model
    return isinstance(model, VisionTransformer) and model.config.pooling.compares_patches


def anomaly_map(classifier: Classifier, images: Tensor) -> Tensor:
    """How likely it is, of each patch, that it is unlike those of good images: prepared images, uint8 (B, 3,
    H, W) -> float32 (B, h, w) on the CPU. A patch has 0.5 if an image with its distance as score would be
    on the threshold.

    Raises VitkitError for a model that is not one of good images.
    """
    _, maps = logits_and_anomaly_map(classifier, images)
    return maps


def logits_and_anomaly_map(classifier: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    """Classifier.logits, float32 (B, K) on the model's device, and `anomaly_map`, both from one pass."""
    logits, of_patches = logits_and_patch_logits(classifier, images)
    return logits, of_patches.softmax(-1)[..., 1].cpu()


# Not inference_mode: see Classifier
@torch.no_grad()
def logits_and_patch_logits(classifier: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    """Classifier.logits, float32 (B, K), and the logits of each patch, (B, h, w, K), both on the model's device:
    unlike probabilities, these tell apart all patches that are far from the threshold.

    Raises VitkitError for a model that is not one of good images.
    """
    model = classifier.model
    if not has_anomaly_map(classifier):
        raise Unsupported(
            "the model does not compare images with good ones, so it has no anomaly map; vitkit finetune "
            "with a folder of good images makes a model that does"
        )
    assert isinstance(model, VisionTransformer)
    images = images.to(classifier.device, non_blocking=True)
    with evaluating(model):
        logits, of_patches = model.with_patch_logits(classifier.preprocessing.normalise(images))
    return logits.float(), of_patches.float()


def regions_in(
    shares: np.ndarray, box: tuple[float, float, float, float], size: tuple[int, int]
) -> list[Region]:
    """The regions of an anomaly map, the highest score first.

    Args:
        shares: The map, (h, w).
        box: The part of the image that the map covers, (top, left, height, width) in pixels, as
            `Preprocessing.visible` gives it.
        size: Height and width of the image, which regions do not exceed.
    """
    from scipy.ndimage import find_objects, label

    numbered, _ = label(shares > UNLIKE, np.ones((3, 3)))
    down = box[2] / shares.shape[0]  # pixels of a patch
    across = box[3] / shares.shape[1]
    found = []
    for number, (rows, columns) in enumerate(find_objects(numbered), 1):
        is_inside = numbered[rows, columns] == number
        top = max(box[0] + rows.start * down, 0.0)
        left = max(box[1] + columns.start * across, 0.0)
        bottom = min(box[0] + rows.stop * down, float(size[0]))
        right = min(box[1] + columns.stop * across, float(size[1]))
        score = float(shares[rows, columns][is_inside].max())
        area = float(is_inside.sum()) * down * across
        found.append(Region((left, top, right - left, bottom - top), score, area))
    return sorted(found, key=lambda region: -region.score)


def heated(pixels: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """A photograph, uint8 (H, W, 3), that is red where a map of it, (h, w) from 0 to 1, is high: uint8
    (H, W, 3)."""
    from PIL import Image

    size = (pixels.shape[1], pixels.shape[0])
    smooth = Image.fromarray(shares.astype(np.float32)).resize(size, Image.Resampling.BILINEAR)
    weight = np.asarray(smooth)[..., None] * STRONGEST  # (H, W, 1)
    return (pixels * (1 - weight) + HOT * weight).round().astype(np.uint8)
