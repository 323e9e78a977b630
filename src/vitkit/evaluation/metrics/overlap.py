"""How well the anomaly map of a model of good images covers the regions that are known to be defective: the area
under the curve of the per-region overlap, AUPRO (Bergmann et al. 2020).

Legend: N images, R regions, (h, w) the grid of patches, (H, W) pixels, T thresholds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vitkit.evaluation.metrics.metric import SHARE, Metric, group_count, interval_of, resampled
from vitkit.system.errors import BadData

LARGEST_SHARE = 0.3  # of good pixels that are called defective, up to which AUPRO is integrated
FINEST = 256  # pixels of an image's longer side, of which more are not compared
THRESHOLDS = 400  # of the curves of resampled images
WIDER = 2  # times LARGEST_SHARE, up to which these curves are computed


class ImageRegions(NamedTuple):
    """What is known of an image."""

    size: tuple[int, int]
    """Height and width of the masks: those of the part of the image that the model sees, or fewer pixels."""
    masks: tuple[np.ndarray, ...]
    """The pixels of each defective region, bool (H, W); none for a good image."""


@dataclass(frozen=True, eq=False)
class Regions:
    """Where images are defective. Travels to other processes."""

    images: tuple[ImageRegions | None, ...]
    """Of each of N images; None if it is not known."""

    def of(self, indices: np.ndarray) -> list[ImageRegions | None]:
        """Of the images at these indices."""
        return [self.images[i] for i in indices.tolist()]


def overlap(
    maps: np.ndarray, regions: Sequence[ImageRegions | None], groups: np.ndarray | None = None
) -> Metric:
    """The metric `aupro`, with an interval over resampled images.

    Args:
        maps: The anomaly score of each patch, (N, h, w).
        regions: What is known of each image; those of which nothing is known do not count.
        groups: Images with the same number, (N,), are not independent.

    Raises BadData as `per_region_overlap` does.
    """
    known = [i for i, each in enumerate(regions) if each is not None]
    sizes = [each.size for each in regions if each is not None]
    masks = [each.masks for each in regions if each is not None]
    pixels = [enlarged(maps[i], size) for i, size in zip(known, sizes, strict=True)]
    value = per_region_overlap(pixels, masks)
    if groups is not None:
        groups = groups[known]
    curves = _Curves.of(pixels, masks)
    draws = resampled(curves.area, len(known), groups=groups)[:, 0]
    draws = draws[np.isfinite(draws)]  # of few images, some draws have no region
    interval = None
    if len(draws):
        interval = interval_of(draws, group_count(len(known), groups))
    return Metric("aupro", value, SHARE, interval)


def enlarged(scores: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A map, (h, w), at another (height, width): bilinear, float32 (H, W)."""
    from PIL import Image

    small = Image.fromarray(scores.astype(np.float32))
    return np.asarray(small.resize((size[1], size[0]), Image.Resampling.BILINEAR))


class _Curves(NamedTuple):
    """The parts of the images in the curve, so that those of resampled images are sums."""

    above: np.ndarray
    """The good pixels of each image above each threshold, (N, T)."""
    good: np.ndarray
    """The good pixels of each image, (N,)."""
    overlap: np.ndarray
    """The sum over the regions of each image of their share above each threshold, (N, T)."""
    regions: np.ndarray
    """The number of regions of each image, (N,)."""

    @classmethod
    def of(cls, maps: Sequence[np.ndarray], masks: Sequence[Sequence[np.ndarray]]) -> "_Curves":
        """maps: (H, W) each. masks: of the regions of each image, bool (H, W)."""
        good = []
        for scores, own in zip(maps, masks, strict=True):
            good.append(np.sort(scores[good_pixels(scores.shape, own)]))
        every = np.sort(np.concatenate(good))[::-1]
        largest = min(WIDER * LARGEST_SHARE, 1.0)
        places = np.linspace(0, largest, THRESHOLDS) * (len(every) - 1)
        thresholds = every[places.astype(int)]  # (T,), the highest first
        above = np.zeros((len(maps), THRESHOLDS))
        overlaps = np.zeros((len(maps), THRESHOLDS))
        for i, (scores, own) in enumerate(zip(maps, masks, strict=True)):
            above[i] = len(good[i]) - np.searchsorted(good[i], thresholds, side="right")
            for region in own:
                inside = np.sort(scores[region])
                overlaps[i] += 1 - np.searchsorted(inside, thresholds, side="right") / len(inside)
        sizes = np.array([len(each) for each in good])
        return cls(above, sizes, overlaps, np.array([len(own) for own in masks]))

    def area(self, rows: np.ndarray) -> np.ndarray:
        """AUPRO of these images, (1,); NaN if they have no region or no good pixel."""
        times = np.bincount(rows, minlength=len(self.good)).astype(float)
        good = times @ self.good
        regions = times @ self.regions
        if not good or not regions:
            return np.array([np.nan])
        shares = np.concatenate([[0.0], times @ self.above / good])  # rising
        overlaps = np.concatenate([[0.0], times @ self.overlap / regions])
        overlaps[0] = overlaps[1]
        at_end = np.interp(LARGEST_SHARE, shares, overlaps)
        inside = shares < LARGEST_SHARE
        shares = np.append(shares[inside], LARGEST_SHARE)
        overlaps = np.append(overlaps[inside], at_end)
        return np.array([np.trapezoid(overlaps, shares) / LARGEST_SHARE])


def good_pixels(shape: tuple[int, ...], regions: Sequence[np.ndarray]) -> np.ndarray:
    """The pixels outside of all regions, bool (H, W)."""
    is_good = np.ones(shape, bool)
    for region in regions:
        is_good &= ~region
    return is_good


def per_region_overlap(
    maps: Sequence[np.ndarray],
    regions: Sequence[Sequence[np.ndarray]],
    largest_share: float = LARGEST_SHARE,
) -> float:
    """AUPRO (Bergmann et al. 2020): the mean share of each defective region that is found, over thresholds
    at which at most `largest_share` of the good pixels are called defective, divided by that share.

    Args:
        maps: Scores of the pixels of each image, (H, W).
        regions: For each image its defective regions, bool (H, W) each; none for a good image.
        largest_share: Share of good pixels up to which the curve is integrated.

    Raises:
        BadData: If no image has a region, or none has a good pixel.
    """
    good = []
    owned = []  # scores of each region, and the weight of each of its pixels
    for scores, own in zip(maps, regions, strict=True):
        owned += [np.sort(scores[region]) for region in own]
        good.append(scores[good_pixels(scores.shape, own)])
    if not owned or not sum(map(len, good)):
        raise BadData("AUPRO needs images with defective regions, and pixels outside of these")

    # At each threshold between two scores of good pixels: their share, and that of each region, above it
    of_good = np.sort(np.concatenate(good))[::-1]
    count = int(np.floor(largest_share * len(of_good)))
    thresholds = of_good[: count + 1]
    first = np.searchsorted(-of_good, -thresholds, side="left")  # good pixels above each
    shares = first / len(of_good)
    overlap = np.zeros(len(thresholds))
    for inside in owned:
        overlap += 1 - np.searchsorted(inside, thresholds, side="right") / len(inside)
    overlap /= len(owned)

    # The curve up to the largest share
    shares, at = np.unique(shares, return_index=True)
    overlap = overlap[at]
    shares = np.append(shares, largest_share)
    overlap = np.append(overlap, overlap[-1])
    return float(np.trapezoid(overlap, shares) / largest_share)
