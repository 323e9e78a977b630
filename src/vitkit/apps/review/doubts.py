"""Masks that are probably wrong, by the predictions of models that have not seen them: a head in closed form for each
fold of images, as `vitkit finetune --masks` makes it.

Legend: N patches of an image, M features, K classes, (h, w) the grid of patches, (H, W) cells: FINER times as many.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

import vitkit.finetuning.segmentation.closed_form as closed_form
from vitkit.data import IGNORED, resized_mask
from vitkit.finetuning.segmentation.closed_form import (
    FINER,
    MOST_KEPT,
    MOST_PATCHES,
    Example,
    Sums,
    ToLogits,
    calibrated,
    columns_of,
    cross_validated,
    folds_of,
    predicted,
    sample,
    shares_of,
)
from vitkit.system.console.progress import bar
from vitkit.system.errors import BadData

SURE = 0.5  # by so much the probability of the predicted class exceeds that of the mask's where a region disagrees
SMALLEST = FINER**2 // 2  # cells of the smallest region: half a patch
LEAST = 1e-4  # probability that no class is below: a single cell decides nothing
MOST_REGIONS = 50  # of an image


class Region(NamedTuple):
    """Connected cells whose predictions contradict the mask."""

    evidence: float
    """How much less likely the mask makes these cells than the prediction, in nats for a patch, summed."""
    own: int
    """The number of the mask's class."""
    guess: int
    """The number of the predicted class."""
    probability: float
    """The mean probability of the predicted class."""
    box: tuple[float, float, float, float]
    """Left, top, width and height, as shares of the image's width and height."""
    share: float
    """Its share of the image."""


class Judged(NamedTuple):
    """What predictions for an image say of its mask."""

    doubt: float
    """The mean over the cells of 1 - the probability of the mask's class."""
    iou: float
    """The mean IoU of the mask and the prediction, over the classes of either."""
    predicted: np.ndarray
    """The predicted class of each cell: uint8 (H, W)."""
    disagrees: np.ndarray
    """The cells of `regions`: bool (H, W)."""
    regions: tuple[Region, ...]
    """The regions that disagree, the strongest evidence first; at most MOST_REGIONS."""
    evidence: float
    """The sum of the evidence of all regions, in nats."""


Features = Callable[[int], tuple[Tensor, tuple[int, int]]]
"""From the number of an image to its features, float16 (N, M - 1), and its grid."""


class Kept:
    """Features that are computed once, as many as fit in memory."""

    def __init__(self, compute: Features):
        self.compute = compute
        self.room = MOST_KEPT
        self.kept: dict[int, tuple[Tensor, tuple[int, int]]] = {}

    def __call__(self, i: int) -> tuple[Tensor, tuple[int, int]]:
        """The features of image i, and its grid."""
        if i in self.kept:
            return self.kept[i]
        features, grid = self.compute(i)
        if features.numel() <= self.room:
            self.room -= features.numel()
            self.kept[i] = (features, grid)
        return features, grid


def judge(
    features_of: Kept,
    masks: Callable[[int], np.ndarray],
    count: int,
    groups: np.ndarray | None,
    classes: int,
    size: tuple[int, int],
    patch: tuple[int, int],
) -> list[Judged]:
    """Judge the masks of images by predictions of heads that have not seen the image, nor others of its group.

    Args:
        features_of: The features of each image.
        masks: The mask of each image, uint8 (height, width).
        count: Number of images.
        groups: Images with the same number belong together: int64 (count,).
        classes: K.
        size: Width and depth of the model.
        patch: Height and width of a patch in pixels of what the model reads.

    Raises BadData for masks of one class, and for a single image or group of images.
    """
    folds = folds_of(count, groups)
    if len(np.unique(folds)) < 2:
        raise BadData(
            "one image, or one group of images, is not enough: two are needed at least, so that one is predicted by "
            "a model of the other"
        )
    most = max(MOST_PATCHES // count, 1)
    sums: Sums | None = None
    examples: list[Example] = []
    kept: list[int] = []
    present = np.zeros(classes, bool)
    for i in bar("computing features")(range(count), count):
        features, grid = features_of(i)
        if sums is None:
            sums = Sums(features.shape[1], classes, len(np.unique(folds)))
        mask = masks(i)
        read_as = (grid[0] * patch[0], grid[1] * patch[1])
        shares, known = shares_of(resized_mask(mask, read_as), grid, classes)
        present |= (shares > 0).any(0).numpy()
        chosen = sample(len(shares), most, i)
        sums.add(int(folds[i]), features[chosen], shares[chosen], known[chosen])
        if i in features_of.kept:
            examples.append(Example(features, grid, cells_of(mask, grid)))
            kept.append(i)
    assert sums is not None  # there are two images
    if present.sum() < 2:
        raise BadData("the masks have one class, so nothing can be predicted")

    # The heads, one without each fold
    width, depth = size
    tried = cross_validated(sums, examples, folds[kept], width, depth)
    best = max(tried, key=lambda each: each.miou)
    to_logits, best = calibrated(best, examples, classes)
    columns = columns_of(best.reading.blocks, width)
    heads = {}
    for fold in np.unique(folds).tolist():
        heads[fold] = closed_form.solved(*sums.without([fold], columns), best.reading.l2)
    del examples, best, tried

    found = []
    for i in bar("comparing masks")(range(count), count):
        features, grid = features_of(i)
        example = Example(features, grid, cells_of(masks(i), grid))
        found.append(judged(example, heads[int(folds[i])], to_logits))
    return found


def cells_of(mask: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """A mask at FINER times the grid: uint8 (H, W)."""
    return resized_mask(mask, (FINER * grid[0], FINER * grid[1]))


def judged(example: Example, head: Tensor, to_logits: ToLogits) -> Judged:
    """What the predictions of a head say of a mask."""
    logits = to_logits.maps(predicted(example, head).half())
    probabilities = logits.softmax(0).clamp(min=LEAST).numpy()  # (K, H, W)
    return compared(probabilities, example.mask)


def compared(probabilities: np.ndarray, mask: np.ndarray) -> Judged:
    """A mask, uint8 (H, W), beside the probabilities of classes, float32 (K, H, W)."""
    from scipy.ndimage import find_objects, label

    counts = mask != IGNORED
    likeliest = probabilities.argmax(0).astype(np.uint8)
    highest = probabilities.max(0)
    known = np.where(counts, mask, 0)
    own = np.take_along_axis(probabilities, known[None].astype(np.int64), 0)[0]
    doubt = 0.0
    if counts.any():
        doubt = float(1 - own[counts].mean())
    different = counts & (highest - own > SURE)

    # Regions of one class in the mask, and of one in the prediction
    regions = []
    disagrees = np.zeros(mask.shape, bool)
    pair = np.where(different, known.astype(np.int64) * len(probabilities) + likeliest, -1)
    evidence = np.log(highest / own) / FINER**2
    for number in np.unique(pair[different]).tolist():
        parts, _ = label(pair == number, structure=np.ones((3, 3)))
        for part, where in enumerate(find_objects(parts), 1):
            inside = parts[where] == part
            cells = int(inside.sum())
            if cells < SMALLEST:
                continue
            disagrees[where] |= inside
            rows, columns = where
            height, width = mask.shape
            regions.append(
                Region(
                    float(evidence[where][inside].sum()),
                    number // len(probabilities),
                    number % len(probabilities),
                    float(highest[where][inside].mean()),
                    (
                        columns.start / width,
                        rows.start / height,
                        (columns.stop - columns.start) / width,
                        (rows.stop - rows.start) / height,
                    ),
                    cells / mask.size,
                )
            )
    regions.sort(key=lambda region: -region.evidence)
    total = sum(region.evidence for region in regions)
    listed = tuple(regions[:MOST_REGIONS])
    return Judged(doubt, _mean_iou(mask, likeliest), likeliest, disagrees, listed, total)


def _mean_iou(mask: np.ndarray, predicted_classes: np.ndarray) -> float:
    """The mean IoU over the classes of a mask or its prediction; 1 if no cell counts."""
    counts = mask != IGNORED
    values = []
    for number in np.union1d(mask[counts], predicted_classes[counts]).tolist():
        one = (mask == number) & counts
        other = (predicted_classes == number) & counts
        values.append((one & other).sum() / (one | other).sum())
    return float(np.mean(values)) if values else 1.0


def order_of(found: Sequence[Judged]) -> list[int]:
    """The numbers of images by how probably their masks are wrong, the most doubtful first: by the mean of their ranks
    by IoU, which small classes decide as much as large ones, and by the evidence of their regions, which grows with
    the area that is wrong."""
    ranks = rank([each.iou for each in found]) + rank([-each.evidence for each in found])
    return np.argsort(ranks, kind="stable").tolist()


def rank(values: Sequence[float]) -> np.ndarray:
    """The rank of each value, from 0; equal values share the mean of theirs: float64 (len(values),)."""
    ordered = np.sort(values)
    first = np.searchsorted(ordered, values, side="left")
    last = np.searchsorted(ordered, values, side="right")
    return (first + last - 1) / 2
