"""Which photographs to ask a person about, so that a model learns most from few answers.

Uncertainty herding: a photograph that is labelled covers those that look like it, the more the nearer they
are, and the next one to ask about is the one that adds most cover, where what the model is unsure of counts
most (Bae and others, "Uncertainty Herding: One Active Learning Method for All Label Budgets", 2025). While
nothing is labelled every photograph counts alike, so typical ones of large groups come first; as the model
becomes sure of most, what is left are those between the classes.

Legend: N photographs, D width of the features, K classes, C candidates to ask about, M of the N by which
cover is measured.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.apps.label.head import solve, unsureness
from vitkit.system.errors import BadSettings

RADIUS = 0.5  # of the cover, in median distances between two photographs
SHARPNESS = 2  # power of the uncertainty
MEASURED = 1_000  # photographs by which cover is measured, of more a sample
CANDIDATES = 4_000  # photographs that may be asked about, of more a sample
LARGEST = 1e15  # number in the features, of which float32 still holds the square
AT_ONCE = 4_096  # photographs whose nearness is computed together


def next_to_label(features: np.ndarray, labels: np.ndarray, count: int = 1) -> np.ndarray:
    """Which photographs to ask about next, the one that teaches most first.

    features: (N, D), of whatever model.
    labels: int (N,), the number of each photograph's class; -1 for one without a label.
    count: how many; fewer come back if fewer have no label.

    Returns int64 (count,), rows of `features`. It is a function of its arguments alone. Raises VitkitError
    for arrays that do not fit together.
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
    """How well photographs that are labelled cover all others, and which would add most.

    It keeps what does not change from one question to the next, so that a question about 100,000
    photographs takes milliseconds.
    """

    def __init__(self, features: np.ndarray):
        """features: (N, D), of any precision."""
        self.features = features
        self.centre = features.mean(0, dtype=np.float64).astype(np.float32)
        self.sample = _drawn(np.arange(len(features)), MEASURED)
        """The photographs by which cover is measured, int64 (M,)."""
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
        """The photographs that add most cover, one after the other: int64 (count,), or fewer.

        labelled: rows of those that cover others. is_settled: which are not asked about, bool (N,).
        unsure: how unsure the model is of each of `sample`, (M,).
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
        """Draw those that may be asked about, at first and when few of them are left."""
        left = int((~is_settled[self._candidates]).sum())
        free = np.flatnonzero(~is_settled)
        if left == len(free) or left > max(CANDIDATES // 2, count):
            return
        self._candidates = _drawn(free, CANDIDATES)
        self._near = self._nearness(self._candidates)

    def _cover_of(self, labelled: np.ndarray) -> Tensor:
        """How well each of the sample is covered, (M,)."""
        now = set(labelled.tolist())
        if not now >= self._labelled:  # an answer was taken back
            self._labelled = set()
            self._covered = torch.zeros(len(self.sample))
        new = np.array(sorted(now - self._labelled), dtype=np.int64)
        for start in range(0, len(new), AT_ONCE):
            near = self._nearness(new[start : start + AT_ONCE])
            self._covered = torch.maximum(self._covered, near.amax(0))
        self._labelled = now
        return self._covered

    def _nearness(self, rows: np.ndarray) -> Tensor:
        """How near photographs are to each of the sample, from 0 to 1: (rows, M)."""
        alike = self._looks(rows) @ self._sampled.mT
        return torch.exp(-(2 - 2 * alike).clamp(min=0) / self._scale)

    def _looks(self, rows: np.ndarray) -> Tensor:
        """Features around their mean, of length 1: float32 (rows, D)."""
        x = self.features[rows].astype(np.float32) - self.centre
        return F.normalize(torch.from_numpy(x))


def _drawn(rows: np.ndarray, most: int) -> np.ndarray:
    """At most so many of the rows, always the same, in order."""
    if len(rows) <= most:
        return rows
    drawn = np.random.default_rng(0).choice(len(rows), most, replace=False)
    return rows[np.sort(drawn)]
