"""Platt scaling (Platt 1999): turns scores that are not log-odds, such as those of least squares, into logits
of a sigmoid."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

STEPS = 60  # largest number of Newton steps; a few are usual


class Platt(NamedTuple):
    """Log-odds as a linear function of scores."""

    slope: float
    offset: float

    def logits(self, scores: Tensor) -> Tensor:
        """Scores of any shape -> logits of a sigmoid."""
        return self.slope * scores + self.offset


def fit_platt(scores: Tensor, truth: Tensor) -> Platt:
    """Fit the linear function whose sigmoid of `scores` fits `truth`, ones and zeros, best. Both are
    float64 of one shape.

    The cross-entropy is convex in both parameters. As in Platt's paper, the targets of P positives and Q
    negatives are (P + 1) / (P + 2) and 1 / (Q + 2): otherwise the slope is unbounded if the scores separate
    them. For uninformative scores the slope is near 0; it is always positive.
    """
    s = scores.flatten()
    positive = truth.flatten() > 0
    yes = int(positive.sum())
    no = len(s) - yes
    target = torch.full_like(s, 1 / (no + 2))
    target[positive] = (yes + 1) / (yes + 2)

    # Newton's method, each step halved until the loss falls
    rows = torch.stack([s, torch.ones_like(s)], 1)  # (N K, 2)
    line = torch.tensor([1.0, 0.0], dtype=torch.float64)
    loss = _cross_entropy(rows @ line, target)
    for _ in range(STEPS):
        p = (rows @ line).sigmoid()
        gradient = rows.mT @ (p - target)
        curvature = (rows * (p * (1 - p))[:, None]).mT @ rows
        step = torch.linalg.solve(curvature + 1e-9 * torch.eye(2, dtype=torch.float64), gradient)
        size = 1.0
        while size > 1e-6:
            candidate = line - size * step
            candidate_loss = _cross_entropy(rows @ candidate, target)
            if candidate_loss < loss:
                break
            size /= 2
        else:  # no step lowers the loss any more
            break
        gained = loss - candidate_loss
        line, loss = candidate, candidate_loss
        if gained <= 1e-12 * loss:
            break
    slope, offset = line.tolist()
    return Platt(max(slope, 1e-6), offset)


def _cross_entropy(logits: Tensor, target: Tensor) -> float:
    return F.binary_cross_entropy_with_logits(logits, target, reduction="sum").item()
