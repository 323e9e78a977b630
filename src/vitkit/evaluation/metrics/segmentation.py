"""How well a model classifies the pixels of images: IoU, Dice, accuracy of pixels, and the IoU of boundaries.

Pixels that a mask ignores count nowhere. Intervals resample images, not pixels: the pixels of one image are
not independent.

Legend: N images, K classes, h w pixels of an image.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitkit.data import IGNORED, Masked
from vitkit.evaluation.metrics.metric import SHARE, Metric, Unit, with_intervals
from vitkit.runtimes import Runtime, class_map
from vitkit.system.console.messages import say
from vitkit.system.console.progress import bar
from vitkit.system.console.text import counted, printable, some
from vitkit.system.errors import BadData, BadImage

BOUNDARY = 0.02  # width of a boundary, as a share of the image's diagonal (Cheng et al. 2021)
WORST = 0.1  # share of the images that are the worst ones
FEWEST_WORST = 5  # such images that an interval is computed from


@dataclass(frozen=True)
class PixelCounts:
    """What the metrics need to know of one image."""

    truth: np.ndarray
    """Pixels of each class in the mask: int64 (K,)."""
    predicted: np.ndarray
    """Pixels that are predicted as each class: int64 (K,)."""
    right: np.ndarray
    """Pixels of each class that are predicted as it: int64 (K,)."""
    boundary_right: np.ndarray
    """Pixels in both boundaries, that of the class in the mask and that in the prediction: int64 (K,)."""
    boundary_either: np.ndarray
    """Pixels in either boundary: int64 (K,)."""


def count_pixels(
    truth: np.ndarray, predicted: np.ndarray, classes: int, boundaries: bool = True
) -> PixelCounts:
    """The counts of an image: the class of each pixel in its mask and in the prediction, uint8 (h, w) each,
    IGNORED in the mask where pixels do not count. Without `boundaries` those of boundaries are 0, and the boundary
    IoU is unknown."""
    predicted = np.where(truth == IGNORED, IGNORED, predicted).astype(np.uint8)
    width = boundary_width(truth.shape)
    inside = np.zeros((2, classes), np.int64)
    in_truth = _per_class(truth, classes)
    in_prediction = _per_class(predicted, classes)
    right = _per_class(np.where(truth == predicted, truth, IGNORED), classes)
    present = np.flatnonzero(in_truth + in_prediction)
    for number in present if boundaries else ():
        own = boundary(truth == number, width)
        other = boundary(predicted == number, width)
        inside[:, number] = (own & other).sum(), (own | other).sum()
    return PixelCounts(in_truth, in_prediction, right, inside[0], inside[1])


def _per_class(classes: np.ndarray, count: int) -> np.ndarray:
    """How many pixels have each of the first `count` class numbers: int64 (K,)."""
    return np.bincount(classes.reshape(-1), minlength=IGNORED + 1)[:count].astype(np.int64)


def boundary_width(size: tuple[int, ...]) -> int:
    """The width in pixels of the boundaries in an image of (height, width): 2 % of its diagonal."""
    return max(1, round(BOUNDARY * math.hypot(*size)))


def boundary(region: np.ndarray, width: int) -> np.ndarray:
    """The pixels of a region, bool (h, w), that are at most `width` rows and columns from its outside; the
    outside of the image is outside of the region (Cheng et al. 2021, "Boundary IoU")."""
    from scipy.ndimage import minimum_filter1d

    eroded = region.astype(np.uint8)
    for axis in (0, 1):
        eroded = minimum_filter1d(eroded, 2 * width + 1, axis=axis, mode="constant", cval=0)
    return region & (eroded == 0)


@dataclass(frozen=True, eq=False)
class SegmentationScores:
    """The counts of N images, and what follows from them."""

    labels: tuple[str, ...]
    """The names of the K classes."""
    truth: np.ndarray
    """int64 (N, K), as are the others; `PixelCounts` says what they are."""
    predicted: np.ndarray
    right: np.ndarray
    boundary_right: np.ndarray
    boundary_either: np.ndarray
    groups: np.ndarray | None = None
    """Images with the same number belong together: int64 (N,)."""

    @classmethod
    def of(
        cls,
        labels: Sequence[str],
        counts: Sequence[PixelCounts],
        groups: np.ndarray | None = None,
    ) -> "SegmentationScores":
        """The scores of these images. Raises BadData if there are none, or no pixel counts."""
        if not counts:
            raise BadData("there is no image to evaluate on")
        truth = np.stack([each.truth for each in counts])
        if not truth.sum():
            raise BadData("the masks ignore every pixel, so there is nothing to evaluate on")
        return cls(
            tuple(labels),
            truth,
            np.stack([each.predicted for each in counts]),
            np.stack([each.right for each in counts]),
            np.stack([each.boundary_right for each in counts]),
            np.stack([each.boundary_either for each in counts]),
            groups,
        )

    def __len__(self) -> int:
        return len(self.truth)

    def iou(self, rows: np.ndarray | None = None) -> np.ndarray:
        """The IoU of each class over all pixels of some images, float64 (K,): NaN for a class that none of
        them has and that is nowhere predicted."""
        truth, predicted, right = self._sums(rows)
        return _ratio(right, truth + predicted - right)

    def image_iou(self) -> np.ndarray:
        """The mean IoU of the classes in each image, float64 (N,): NaN if all of it is ignored."""
        iou = _ratio(self.right, self.truth + self.predicted - self.right)
        return _mean(iou, axis=1)

    def _sums(self, rows: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if rows is None:
            rows = np.arange(len(self))
        return self.truth[rows].sum(0), self.predicted[rows].sum(0), self.right[rows].sum(0)

    def _of_classes(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """IoU, Dice and boundary IoU of each class over all pixels of some images, float64 (K,) each: NaN as for
        `iou`."""
        truth, predicted, right = self._sums(rows)
        iou = _ratio(right, truth + predicted - right)
        dice = _ratio(2 * right, truth + predicted)
        inside = self.boundary_right[rows].sum(0)
        return iou, dice, _ratio(inside, self.boundary_either[rows].sum(0))

    @property
    def absent(self) -> tuple[str, ...]:
        """The classes that no mask has: only what is predicted wrongly counts for them."""
        return tuple(self.labels[k] for k in np.flatnonzero(self.truth.sum(0) == 0))

    def metrics(self, each_class: bool = True) -> Iterator[Metric]:
        """Yields the mean IoU over classes (miou), Dice, the accuracy of pixels, the mean boundary IoU, the mean
        over images (image_miou) and that of the worst tenth of them, and the IoU of each class; with intervals
        by resampling images, but for the worst tenth of few images: no draw has worse ones."""
        units: dict[str, Unit] = dict.fromkeys(
            (
                "miou",
                "dice",
                "pixel_accuracy",
                "boundary_iou",
                "image_miou",
                "image_miou_worst_tenth",
            ),
            SHARE,
        )
        if each_class:
            units |= {f"iou/{label}": SHARE for label in self.labels}
        of_images = self.image_iou()
        every_iou, every_dice, every_boundary = self._of_classes(np.arange(len(self)))

        def figures(rows: np.ndarray) -> np.ndarray:
            # A class that a draw does not have keeps its value of all images, so that every draw has the same classes
            iou, dice, boundaries = self._of_classes(rows)
            iou = np.where(np.isnan(iou), every_iou, iou)
            dice = np.where(np.isnan(dice), every_dice, dice)
            boundaries = np.where(np.isnan(boundaries), every_boundary, boundaries)
            truth, _, right = self._sums(rows)
            own = np.sort(of_images[rows][~np.isnan(of_images[rows])])
            worst = own[: max(1, round(WORST * len(own)))]
            values = [
                _mean(iou),
                _mean(dice),
                right.sum() / truth.sum() if truth.sum() else np.nan,
                _mean(boundaries),
                _mean(own),
                _mean(worst),
            ]
            if each_class:
                values += iou.tolist()
            return np.array(values, dtype=np.float64)

        for metric in with_intervals(units, figures, len(self), groups=self.groups):
            if metric.name == "image_miou_worst_tenth" and WORST * len(self) < FEWEST_WORST:
                metric = replace(metric, interval=None)
            if not np.isnan(metric.value):
                yield metric

    def worst(self, count: int) -> np.ndarray:
        """The numbers of the images with the lowest mean IoU, the worst first: int64 (at most `count`,)."""
        of_images = self.image_iou()
        order = np.argsort(np.where(np.isnan(of_images), np.inf, of_images), kind="stable")
        return order[~np.isnan(of_images[order])][:count]


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, NaN where the whole is 0."""
    return np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=whole > 0)


def _mean(values: np.ndarray, axis: int | None = None) -> np.ndarray:
    """The mean of the values that are numbers; NaN without any."""
    known = ~np.isnan(values)
    count = known.sum(axis)
    total = np.where(known, values, 0).sum(axis)
    return np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)


def measure_masks(
    runtime: Runtime, masked: Masked, text: str = "evaluating", boundaries: bool = True
) -> SegmentationScores:
    """The scores of a model on images with masks, whose classes are the model's; `boundaries` as for `count_pixels`.
    Raises BadImage and BadData for images and masks that cannot be read."""
    counts = []
    for i in bar(text)(range(len(masked)), len(masked)):
        picture, truth = masked.pair(i)
        predicted = class_map(runtime, picture)
        counts.append(count_pixels(truth, predicted, len(masked.labels), boundaries))
    scores = SegmentationScores.of(masked.labels, counts, masked.images.groups)
    if scores.absent:
        known = len(masked.labels) - len(scores.absent)
        say(
            printable(
                f"no mask has {some(list(scores.absent), 5)}: means are over the other {counted(known, 'class')}, and "
                "a class that is predicted nevertheless counts as 0"
            )
        )
    return scores


def readable(masked: Masked, word: str) -> Masked:
    """The images that can be read with their masks; names the others, after a word such as "skipped"."""
    kept = []
    for i in range(len(masked)):
        try:
            masked.pair(i)
            kept.append(i)
        except (BadData, BadImage) as error:
            say(f"{word}: {error}")
    return masked.subset(kept)
