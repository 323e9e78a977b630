"""Probes for images of several classes each, or of a number: least squares in closed form, as for one
class each, and what each image would have been answered by a fit without it.

A score of least squares is no log-odds: for several classes, scores are brought to the scale of a
sigmoid by two numbers, fitted to the left-out answers (Platt 1999).

Legend: N examples, D width, K classes.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.evaluation.metrics.errors import errors
from vitkit.evaluation.metrics.metric import Metric
from vitkit.evaluation.metrics.precision import YES, several
from vitkit.evaluation.probes.probe import STRENGTHS, Probe, refuse_broken
from vitkit.evaluation.probes.ridge import LeaveOneOut
from vitkit.system.console.text import counted

STEPS = 60  # of Newton's method, which takes a few


def several_probe(x: np.ndarray, y: np.ndarray) -> Probe:
    """A head of yes-or-no questions, for a sigmoid: features (N, D), and ones and zeros (N, K). l2 is
    the one whose left-out answers have the least cross-entropy.

    Raises ValueError for a class without an example, for no class at all, if all examples have all
    classes, and for features that are not finite.
    """
    refuse_broken(x)
    if not len(y) or not y.shape[1]:
        examples = counted(len(y), "example")
        raise ValueError(f"{examples} of {y.shape[-1]} classes teach no classifier")
    empty = np.flatnonzero(~y.any(0))
    if len(empty):
        raise ValueError(f"of {y.shape[1]} classes {len(empty)} have no example")
    if y.all():
        raise ValueError(
            f"all {len(y):,} examples have all {y.shape[1]} classes, so nothing tells what has them not"
        )
    truth = torch.tensor(y, dtype=torch.float64)
    fit = LeaveOneOut(torch.tensor(x), 2 * truth - 1)
    least = torch.inf
    for strength in STRENGTHS:
        l2 = strength * fit.fit.scale
        scores = fit.scores(l2)
        platt = fit_platt(scores, truth)
        logits = platt.logits(scores)
        loss = F.binary_cross_entropy_with_logits(logits, truth).item()
        if loss < least:
            least = loss
            chosen = (l2, platt, logits)
    l2, platt, left_out = chosen
    weight, bias = fit.fit.head(l2)
    return Probe(
        platt.slope * weight, platt.logits(bias), left_out, l2, temperature=1 / platt.slope
    )


def number_probe(x: np.ndarray, y: np.ndarray) -> Probe:
    """A head of one output, the number in its own unit: features (N, D), numbers (N,). l2 is the one
    whose left-out answers have the least squared error.

    Raises ValueError for fewer than two different numbers, and for features that are not finite.
    """
    refuse_broken(x)
    if len(y) < 2:
        raise ValueError(f"{counted(len(y), 'example')} cannot teach a number; two or more can")
    if np.ptp(y) == 0:
        raise ValueError(
            f"all {len(y):,} examples have the number {y[0]:g}; there is nothing to learn"
        )
    truth = torch.tensor(y, dtype=torch.float64)[:, None]  # (N, 1)
    fit = LeaveOneOut(torch.tensor(x), truth)
    least = torch.inf
    for strength in STRENGTHS:
        l2 = strength * fit.fit.scale
        answers = fit.scores(l2)
        loss = (answers - truth).square().mean().item()
        if loss < least:
            least = loss
            chosen = (l2, answers)
    l2, left_out = chosen
    weight, bias = fit.fit.head(l2)
    return Probe(weight, bias, left_out, l2, temperature=1.0)


def quality_of_several(name: str, logits: Tensor, y: np.ndarray) -> list[Metric]:
    """map and F1 of logits and of ones and zeros, (N, K) each, under this name."""
    yes = logits.sigmoid() > YES
    return [metric.within(name) for metric in several(logits, yes, torch.tensor(y))]


def quality_of_numbers(name: str, predicted: Tensor, y: np.ndarray) -> list[Metric]:
    """mae, r2 and pearson of predictions (N, 1) and numbers (N,), under this name."""
    return [metric.within(name) for metric in errors(predicted[:, 0], torch.tensor(y))]


class Platt(NamedTuple):
    """Log-odds as a line of scores."""

    slope: float
    offset: float

    def logits(self, scores: Tensor) -> Tensor:
        """Scores of any shape -> logits of a sigmoid."""
        return self.slope * scores + self.offset


def fit_platt(scores: Tensor, truth: Tensor) -> Platt:
    """The line by which the sigmoid of scores fits ones and zeros best, (N, K) each, float64.

    The cross-entropy is convex in both numbers. As Platt did, a yes counts (P + 1) / (P + 2) of P and
    a no 1 / (Q + 2) of Q: otherwise the slope has no bound if all answers are right. Scores that order
    nothing get a slope near 0, never below.
    """
    s = scores.flatten()
    positive = truth.flatten() > 0
    yes = int(positive.sum())
    no = len(s) - yes
    target = torch.full_like(s, 1 / (no + 2))
    target[positive] = (yes + 1) / (yes + 2)

    # Newton's method, each step halved until it gains
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
        else:  # nothing gains any more
            break
        gained = loss - candidate_loss
        line, loss = candidate, candidate_loss
        if gained <= 1e-12 * loss:
            break
    slope, offset = line.tolist()
    return Platt(max(slope, 1e-6), offset)


def _cross_entropy(logits: Tensor, target: Tensor) -> float:
    return F.binary_cross_entropy_with_logits(logits, target, reduction="sum").item()
