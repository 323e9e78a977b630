"""How well the anomaly map of a model of good images covers the regions that are known to be defective: the area
under the curve of the per-region overlap, AUPRO (Bergmann et al. 2020).

Legend: N images, R regions, (h, w) the grid of patches, (H, W) pixels, P pixels of a region, T thresholds.
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
    """Height and width in which pixels are numbered: those of the part of the image that the model sees, or fewer pixels."""
    regions: tuple[np.ndarray, ...]
    """The pixels of each defective region, whose numbers count from 0, row by row: int (P,). None for a good image.
    A mask of H x W for each would not fit into memory for thousands of small regions."""


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
    owned = [each.regions for each in regions if each is not None]
    pixels = [enlarged(maps[i], size) for i, size in zip(known, sizes, strict=True)]
    value = per_region_overlap(pixels, owned)
    if groups is not None:
        groups = groups[known]
    curves = _Curves.of(pixels, owned)
    draws = resampled(curves.area, len(known), groups=groups)[:, 0]
    draws = draws[np.isfinite(draws)]  # of few images, some draws have no region
    interval = None
    if len(draws):
        interval = interval_of(draws, group_count(len(known), groups), SHARE)
    return Metric("aupro", value, SHARE, interval)


def enlarged(scores: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A map, (h, w), at another (height, width): bilinear, float32 (H, W)."""
    from PIL import Image

    small = Image.fromarray(scores.astype(np.float32))
    return np.asarray(small.resize((size[1], size[0]), Image.Resampling.BILINEAR))


class _Curves(NamedTuple):
    """The parts of the images in the curve, so that those of resampled images are sums.

    Two points belong to each threshold: the scores above it, and those that are not below it.
    """

    above: np.ndarray
    """The good pixels of each image that each point calls defective, (N, 2 T)."""
    good: np.ndarray
    """The good pixels of each image, (N,)."""
    overlap: np.ndarray
    """The sum over the regions of each image of the share that each point calls defective, (N, 2 T)."""
    regions: np.ndarray
    """The number of regions of each image, (N,)."""

    @classmethod
    def of(cls, maps: Sequence[np.ndarray], regions: Sequence[Sequence[np.ndarray]]) -> "_Curves":
        """maps: (H, W) each. regions: as `per_region_overlap` takes them."""
        good = []
        for scores, own in zip(maps, regions, strict=True):
            good.append(np.sort(scores[good_pixels(scores.shape, own)]))
        every = np.sort(np.concatenate(good))[::-1]
        largest = min(WIDER * LARGEST_SHARE, 1.0)
        places = np.linspace(0, largest, THRESHOLDS) * (len(every) - 1)
        thresholds = np.unique(every[places.astype(int)])[::-1]  # (T,), the highest first
        above = np.zeros((len(maps), 2 * len(thresholds)))
        overlaps = np.zeros_like(above)
        for i, (scores, own) in enumerate(zip(maps, regions, strict=True)):
            above[i] = reached(good[i], np.ones(len(good[i])), thresholds)
            overlaps[i] = reached(*weighted([scores], [own]), thresholds)
        sizes = np.array([len(each) for each in good])
        return cls(above, sizes, overlaps, np.array([len(own) for own in regions]))

    def area(self, rows: np.ndarray) -> np.ndarray:
        """AUPRO of these images, (1,); NaN if they have no region or no good pixel."""
        times = np.bincount(rows, minlength=len(self.good)).astype(float)
        good = times @ self.good
        regions = times @ self.regions
        if not good or not regions:
            return np.array([np.nan])
        # At a threshold below all scores, everything is called defective
        shares = np.append(times @ self.above / good, 1.0)
        overlaps = np.append(times @ self.overlap / regions, 1.0)
        return np.array([area_up_to(LARGEST_SHARE, shares, overlaps)])


def good_pixels(shape: tuple[int, ...], regions: Sequence[np.ndarray]) -> np.ndarray:
    """The pixels outside of all regions, bool (H, W)."""
    is_good = np.ones(shape, bool)
    for region in regions:
        is_good.flat[region] = False
    return is_good


def weighted(
    maps: Sequence[np.ndarray], regions: Sequence[Sequence[np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """The scores of the pixels of all regions, from the lowest, and their weights: those of a region sum to 1."""
    scores = [np.zeros(0, np.float32)]
    weights = [np.zeros(0)]
    for pixels, own in zip(maps, regions, strict=True):
        for region in own:
            scores.append(pixels.flat[region])
            weights.append(np.full(len(region), 1 / len(region)))
    joined = np.concatenate(scores)
    order = np.argsort(joined)
    return joined[order], np.concatenate(weights)[order]


def reached(scores: np.ndarray, weights: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """The sum of the weights of the scores above each threshold, and of those that are not below it, in turn:
    (2 T,). scores: from the lowest."""
    total = np.concatenate([[0.0], np.cumsum(weights)])
    above = total[-1] - total[np.searchsorted(scores, thresholds, side="right")]
    not_below = total[-1] - total[np.searchsorted(scores, thresholds, side="left")]
    return np.stack([above, not_below], 1).reshape(-1)


def area_up_to(largest: float, shares: np.ndarray, overlaps: np.ndarray) -> float:
    """The area under a curve up to a share, divided by it. shares: rising from 0 to `largest` or beyond."""
    beyond = np.searchsorted(shares, largest)  # the first point at the share or beyond
    before = beyond - 1
    part = (largest - shares[before]) / (shares[beyond] - shares[before])
    at_end = overlaps[before] + part * (overlaps[beyond] - overlaps[before])
    shares = np.append(shares[:beyond], largest)
    overlaps = np.append(overlaps[:beyond], at_end)
    return float(np.trapezoid(overlaps, shares) / largest)


def per_region_overlap(
    maps: Sequence[np.ndarray],
    regions: Sequence[Sequence[np.ndarray]],
    largest_share: float = LARGEST_SHARE,
) -> float:
    """AUPRO (Bergmann et al. 2020): the mean share of each defective region that is found, over thresholds
    at which at most `largest_share` of the good pixels are called defective, divided by that share.

    Between two thresholds the curve is a straight line, also where it ends, as MVTec's program has it: many pixels
    may have one score.

    Args:
        maps: Scores of the pixels of each image, (H, W).
        regions: For each image its defective regions, by the numbers of their pixels, int (P,) each; none for a
            good image.
        largest_share: Share of good pixels up to which the curve is integrated.

    Raises:
        BadData: If no image has a region, or none has a good pixel.
    """
    good = []
    for scores, own in zip(maps, regions, strict=True):
        good.append(scores[good_pixels(scores.shape, own)])
    of_good = np.sort(np.concatenate(good))
    count = sum(map(len, regions))
    if not count or not len(of_good):
        raise BadData("AUPRO needs images with defective regions, and pixels outside of these")

    # The curve has corners at the scores of good pixels alone: between two of them it rises straight up
    place = int(np.ceil(largest_share * len(of_good)))
    lowest = of_good[len(of_good) - max(place, 1)]
    thresholds = np.unique(of_good[np.searchsorted(of_good, lowest) :])[::-1]  # (T,)
    shares = reached(of_good, np.ones(len(of_good)), thresholds) / len(of_good)
    overlaps = reached(*weighted(maps, regions), thresholds) / count
    return area_up_to(largest_share, np.append(shares, 1.0), np.append(overlaps, 1.0))
