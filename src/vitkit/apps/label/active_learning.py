"""Active learning: the choice of images whose labels improve a model most.

Uncertainty herding: a labelled image covers similar images, the more similar the better, and the
next image to label is the one that adds most cover, weighted by the model's uncertainty (Bae and
others, "Uncertainty Herding: One Active Learning Method for All Label Budgets", 2025). Without any
labels all images have equal weight, so typical images of large clusters come first; later, when the
model is certain about most images, those between the classes remain.

Legend: N images, D width of the features, K classes, C candidates to ask about, M a sample of the N
images on which cover is measured.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.apps.label.head import solve, unsureness
from vitkit.system.errors import BadSettings

RADIUS = 0.5  # of the cover, in median distances of two images
SHARPNESS = 2  # exponent of the uncertainty
MEASURED = 1_000  # largest number of images on which cover is measured; of more a sample
CANDIDATES = 4_000  # largest number of candidates; of more images a sample
LARGEST = 1e15  # largest feature value whose square fits into float32
AT_ONCE = 4_096  # images whose similarities are computed in one matrix product


def next_to_label(features: np.ndarray, labels: np.ndarray, count: int = 1) -> np.ndarray:
    """Choose the unlabelled images to label next, the most informative first.

    features: (N, D), of any model.
    labels: int (N,), the class number of each image; -1 for an unlabelled one.
    count: number of images to choose; all unlabelled ones if there are fewer.

    Returns int64 (count,), rows of `features`. The result is deterministic. Raises VitkitError for
    arrays of inconsistent shapes.
    """
    features = np.asarray(features)
    labels = np.asarray(labels)
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise BadSettings(
            f"features are {features.shape} and labels {labels.shape}; they are (N, D) and (N,)"
        )
    if count < 1:
        raise BadSettings(f"count is {count}; ask about one photograph or more")
    if not features.size:
        return np.arange(len(features))[labels < 0][:count]
    are_numbers = features.dtype.kind in "fiu" and labels.dtype.kind in "fiu"
    if not are_numbers or (labels != np.floor(labels)).any():
        raise BadSettings(
            f"features are {features.dtype} and labels {labels.dtype}; features are numbers, and labels "
            "the numbers of classes, -1 for none"
        )
    if not np.isfinite(features).all() or np.abs(features).max() > LARGEST:
        raise BadSettings(f"the features hold NaN, infinity, or numbers beyond {LARGEST:g}")
    cover = Cover(features)
    labelled = np.flatnonzero(labels >= 0)
    unsure = torch.ones(len(cover.sample))
    if len(np.unique(labels[labelled])) > 1:
        head = solve(features[labelled], labels[labelled])
        unsure = unsureness(head.scores(features[cover.sample]))
    return cover.next(labelled, labels >= 0, unsure, count)


class Cover:
    """How well the labelled images cover all others, and which images would add most cover.

    Keeps everything that stays the same between two calls, so that a choice among 100,000 images takes
    milliseconds.
    """

    def __init__(self, features: np.ndarray):
        """features: (N, D), of any precision."""
        self.features = features
        self.centre = features.mean(0, dtype=np.float64).astype(np.float32)
        self.sample = _drawn(np.arange(len(features)), MEASURED)
        """The images on which cover is measured, int64 (M,)."""
        self._sampled = self._looks(self.sample)
        some = self._sampled[:500]
        median = (2 - 2 * some @ some.mT).clamp(min=0).median().item()
        self._scale = (median or 1.0) * RADIUS**2
        self._candidates = np.empty(0, np.int64)
        self._near = torch.empty(0, len(self.sample))
        self._labelled: set[int] = set()
        self._covered = torch.zeros(len(self.sample))

    def next(
        self, labelled: np.ndarray, is_settled: np.ndarray, unsure: Tensor, count: int
    ) -> np.ndarray:
        """The images that add most cover, chosen one after the other: int64 (count,), or fewer.

        labelled: rows of the images that cover others. is_settled: bool (N,), the images that are
        excluded. unsure: the model's uncertainty about each image of `sample`, (M,).
        """
        self._choose_candidates(is_settled, count)
        left = torch.from_numpy(~is_settled[self._candidates])
        covered = self._cover_of(labelled)
        weight = unsure**SHARPNESS
        chosen = []
        for _ in range(min(count, int(left.sum()))):
            gain = (self._near - covered).clamp(min=0) @ weight
            best = int(gain.masked_fill(~left, -1).argmax())
            left[best] = False
            chosen.append(int(self._candidates[best]))
            covered = torch.maximum(covered, self._near[best])
        return np.array(chosen, dtype=np.int64)

    def _choose_candidates(self, is_settled: np.ndarray, count: int) -> None:
        """Draw candidates, at first and whenever few of them are left."""
        left = int((~is_settled[self._candidates]).sum())
        free = np.flatnonzero(~is_settled)
        if left == len(free) or left > max(CANDIDATES // 2, count):
            return
        self._candidates = _drawn(free, CANDIDATES)
        self._near = self._nearness(self._candidates)

    def _cover_of(self, labelled: np.ndarray) -> Tensor:
        """The cover of each image of the sample, (M,)."""
        now = set(labelled.tolist())
        if not now >= self._labelled:  # an answer was undone
            self._labelled = set()
            self._covered = torch.zeros(len(self.sample))
        new = np.array(sorted(now - self._labelled), dtype=np.int64)
        for start in range(0, len(new), AT_ONCE):
            near = self._nearness(new[start : start + AT_ONCE])
            self._covered = torch.maximum(self._covered, near.amax(0))
        self._labelled = now
        return self._covered

    def _nearness(self, rows: np.ndarray) -> Tensor:
        """Similarity of images to each image of the sample, from 0 to 1: (rows, M)."""
        alike = self._looks(rows) @ self._sampled.mT
        return torch.exp(-(2 - 2 * alike).clamp(min=0) / self._scale)

    def _looks(self, rows: np.ndarray) -> Tensor:
        """Centred features, normalised to length 1: float32 (rows, D)."""
        x = self.features[rows].astype(np.float32) - self.centre
        return F.normalize(torch.from_numpy(x))


def _drawn(rows: np.ndarray, most: int) -> np.ndarray:
    """A sample of at most `most` rows, in order; always the same for the same rows."""
    if len(rows) <= most:
        return rows
    drawn = np.random.default_rng(0).choice(len(rows), most, replace=False)
    return rows[np.sort(drawn)]
