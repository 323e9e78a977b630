"""What a probe learns of a data set, whatever its targets are: one class an image, several, or a number.

A score of least squares is no log-odds: for several classes, scores are brought to the scale of a
sigmoid by two numbers, fitted to the left-out answers (Platt 1999).

Legend: N examples, D width, K outputs of the head.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data import Lists, Source, TargetKind
from vitkit.evaluation.metrics.classification import unbalanced
from vitkit.evaluation.metrics.metric import Metric, group_count
from vitkit.evaluation.metrics.other_targets import YES, errors, losses_of_known, several
from vitkit.evaluation.probes.features import Features
from vitkit.evaluation.probes.folds import Folds, folds_of
from vitkit.evaluation.probes.left_out import (
    LEAST_KNOWN,
    Judged,
    LeaveOut,
    LeaveOutKnown,
    best_left_out,
    means_without,
    variance_of_fits,
)
from vitkit.evaluation.probes.probe import (
    LeftOut,
    Method,
    Probe,
    accuracy_of,
    balanced_quality,
    chance_sentences,
    fit_probe,
    known_classes,
    left_out_quality,
    quality,
    refuse_broken,
)
from vitkit.system.console.text import counted
from vitkit.system.errors import BadData
from vitkit.weights import Activation

NUMBER = ("0",)  # the one output of a head for numbers, as training calls it
STEPS = 60  # of Newton's method, which takes a few
ACTIVATIONS: dict[TargetKind, Activation] = {
    "class": "softmax",
    "classes": "sigmoid",
    "number": "none",
}


class Measured(NamedTuple):
    """Images that a probe is measured on."""

    found: Features
    """Their features, and targets as the head has its outputs."""
    groups: np.ndarray | None
    """The number of each image's group, (N,); None if each is alone."""


@dataclass(frozen=True, eq=False)
class Probing:
    """The targets and outputs of a probe's head."""

    kind: TargetKind
    """What the target of an image is."""
    labels: tuple[str, ...]
    """A name for each output."""
    known: np.ndarray
    """The data's classes that an image to learn from has, ascending; none for numbers."""
    balanced: bool = False
    """Whether answers are judged by balanced accuracy, because the classes are of unequal size."""

    @classmethod
    def of(cls, source: Source) -> "Probing":
        """The probing for these images: what can be learned from them. Raises VitkitError for
        fewer than two classes, if an image has one; for none, if it may have several; and for
        images without labels."""
        kind = source.target_kind
        if kind == "none":
            raise BadData("images without labels teach no head")
        if kind == "number":
            return cls(kind, NUMBER, np.zeros(0, np.int64))
        balanced = False
        if kind == "class":
            known = known_classes(source)
            balanced = unbalanced(np.bincount(source.targets)[known])
        else:
            known = np.unique(source.targets.values).astype(np.int64)
            if not len(known):
                raise BadData("no image to learn from has any class, so there is nothing to learn")
        return cls(kind, tuple(source.labels[k] for k in known), known, balanced)

    @property
    def activation(self) -> Activation:
        """How the head's logits become probabilities."""
        return ACTIVATIONS[self.kind]

    def targets(self, source: Source, found: Features) -> Features:
        """Features of the source's images, with targets as the head has its outputs: for one class
        each its number, -1 for an unknown one; for several, ones, zeros, and NaN where nothing is known
        (N, K); or the numbers."""
        if self.kind == "class":
            number = np.full(len(source.labels), -1)
            number[self.known] = np.arange(len(self.known))
            return Features(found.x, number[found.y])
        if self.kind == "classes":
            return Features(found.x, found.y[:, self.known])
        return found

    def unknown_in(self, source: Source) -> int:
        """How many images have a class that the head does not know."""
        missing = np.setdiff1d(np.arange(len(source.labels)), self.known)
        if self.kind == "number" or not len(missing):
            return 0
        if isinstance(source.targets, Lists):
            owners = source.targets.owners[np.isin(source.targets.values, missing)]
            return len(np.unique(owners))
        return int(np.isin(source.targets, missing).sum())

    def fit(
        self,
        method: Method,
        learned: Features,
        groups: np.ndarray | None = None,
        products: Tensor | None = None,
    ) -> Probe:
        """The head for features (N, D) and targets as `targets` gives them. Examples of one group, by
        its number (N,), are left out together. `products`: of each two rows, if they were computed
        (`row_products`). Raises VitkitError as the probes do, and for several
        classes or numbers by another method than linear."""
        if self.kind == "class":
            count = len(self.labels)
            return fit_probe(method, learned.x, learned.y, count, self.balanced, groups, products)
        if method != "linear":
            what = {"classes": "several classes", "number": "a number"}[self.kind]
            raise BadData(
                f"{method} is for images of one class each, and these have {what}; linear is the "
                "method for them"
            )
        if self.kind == "classes":
            return several_probe(learned.x, learned.y, groups, products)
        return number_probe(learned.x, learned.y, groups, products)

    def quality(
        self, name: str, answers: Tensor, y: np.ndarray, groups: np.ndarray | None = None
    ) -> list[Metric]:
        """The metrics of answers (N, K), under this name. They are judged by the first metric. Those of
        one group, by its number (N,), are not independent."""
        if self.kind == "class":
            metrics = quality(name, answers, y, groups)
            if self.balanced and metrics:
                metrics.insert(0, balanced_quality(name, answers, y, groups))
            return metrics
        return self._other_quality(name, answers, y, groups)

    def main_quality(
        self, name: str, answers: Tensor, y: np.ndarray, groups: np.ndarray | None = None
    ) -> Metric:
        """The first metric of `quality`, by which answers are judged, without the time that the others
        take."""
        if self.kind != "class":
            return self._other_quality(name, answers, y, groups)[0]
        if self.balanced:
            return balanced_quality(name, answers, y, groups)
        return accuracy_of(name, answers, y, groups)

    def left_out_quality(
        self, fitted: Probe, y: np.ndarray, groups: np.ndarray | None = None
    ) -> list[Metric]:
        """The metrics of the leave-one-out answers. Those of one group, by its number (N,), are not
        independent. They are judged by the first metric."""
        if self.kind == "class":
            return left_out_quality(fitted, y, self.balanced, groups)
        fewer = variance_of_fits(group_count(len(y), groups))
        answers = fitted.left_out
        means = torch.tensor(means_without(y, fitted.fold.numpy()))
        if self.kind == "classes":
            # The order of images by their scores, for targets of 1 and -1, without that of these means
            scores = answers - 2 * means / fitted.temperature
            metrics = several(scores, answers.sigmoid() > YES, torch.tensor(y), groups, fewer)
        else:
            metrics = errors(answers[:, 0], torch.tensor(y), groups, fewer, means)
        return [metric.within("left_out") for metric in metrics]

    def main_left_out_quality(
        self, fitted: Probe, y: np.ndarray, groups: np.ndarray | None = None
    ) -> Metric:
        """The first metric of `left_out_quality`, without the time that the others take."""
        if self.kind == "class":
            return LeftOut.of(fitted, y, groups).accuracy(self.balanced)
        return self.left_out_quality(fitted, y, groups)[0]

    def _other_quality(
        self, name: str, answers: Tensor, y: np.ndarray, groups: np.ndarray | None
    ) -> list[Metric]:
        """The metrics for several classes an image, and for numbers."""
        if self.kind == "classes":
            metrics = several(answers, answers.sigmoid() > YES, torch.tensor(y), groups)
        else:
            metrics = errors(answers[:, 0], torch.tensor(y), groups)
        return [metric.within(name) for metric in metrics]

    def qualities(
        self,
        fitted: Probe,
        learned: Features,
        measured: Mapping[str, Measured],
        groups: np.ndarray | None = None,
    ) -> list[Metric]:
        """How good the left-out answers are, of images in these groups, (N,); and those on other parts, by
        the part's name."""
        metrics = self.left_out_quality(fitted, learned.y, groups)
        for name, part in measured.items():
            logits = fitted.logits(torch.tensor(part.found.x))
            metrics += self.quality(name, logits, part.found.y, part.groups)
        return metrics

    def chance(
        self,
        fitted: Probe,
        learned: Features,
        measured: Mapping[str, Measured],
        groups: np.ndarray | None = None,
    ) -> list[str]:
        """Sentences about what a perfectly calibrated model would show of a calibration error on the
        images of `qualities`; none if these have no calibration error."""
        if self.kind != "class":
            return []
        logits = {}
        for name, part in measured.items():
            logits[name] = (fitted.logits(torch.tensor(part.found.x)), part.groups)
        return chance_sentences(fitted, learned.y, groups, logits)


def learnable(y: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Which classes a fit without some example can know: those that an example has, and that are known of
    all examples, or of two groups, (N,), at least; of ones, zeros and NaN (N, K): bool (K,)."""
    if groups is None:
        groups = np.arange(len(y))
    known = ~np.isnan(y)
    known_of = [len(np.unique(groups[some])) for some in known.T]
    return (y == 1).any(0) & (known.all(0) | (np.array(known_of) >= LEAST_KNOWN))


# Several classes an image, and numbers: least squares in closed form, as for one class each


def several_probe(
    x: np.ndarray,
    y: np.ndarray,
    groups: np.ndarray | None = None,
    products: Tensor | None = None,
) -> Probe:
    """A head of yes-or-no questions, for a sigmoid: features (N, D), and ones and zeros (N, K), or NaN
    where it is unknown: an example takes no part in the fit of such a class. l2 is the one whose left-out
    answers have the least cross-entropy. Examples of one group, by its number (N,), are left out together.
    `products`: of each two rows, if they were computed (`row_products`).

    Raises VitkitError for a class without an example, for one that is known of one group only, for no class
    at all, if all examples have all classes, and for features that are not finite.
    """
    refuse_broken(x)
    if not len(y) or not y.shape[1]:
        examples = counted(len(y), "example")
        raise BadData(f"{examples} of {y.shape[-1]} classes teach no classifier")
    empty = np.flatnonzero(~(y == 1).any(0))
    if len(empty):
        raise BadData(f"of {y.shape[1]} classes {len(empty)} have no example")
    alone = np.flatnonzero(~learnable(y, groups))
    if len(alone):
        raise BadData(
            f"of {y.shape[1]} classes {len(alone)} are known of one example only, or of one group of them"
        )
    if (y != 0).all():
        raise BadData(
            f"all {len(y):,} examples have all {y.shape[1]} classes, so nothing tells what has them not"
        )
    truth = torch.tensor(y, dtype=torch.float64)
    folds = _each(len(y), groups)
    fit: LeaveOut | LeaveOutKnown
    if truth.isnan().any():
        fit = LeaveOutKnown.of_targets(torch.tensor(x), 2 * truth - 1, folds, products)
    else:
        fit = LeaveOut(torch.tensor(x), 2 * truth - 1, folds, products=products)

    def judge(scores: Tensor, examples: Tensor) -> Judged:
        own = truth[examples]
        known = ~own.isnan()
        platt = fit_platt(scores[known], own[known])
        logits = platt.logits(scores)
        return Judged(losses_of_known(logits, own), logits, platt)

    l2, judged = best_left_out(fit, judge)
    platt = judged.scale
    weight, bias = fit.head(l2)
    return Probe(
        platt.slope * weight,
        platt.logits(bias),
        judged.answers,
        folds.fold,
        folds.known,
        l2,
        temperature=1 / platt.slope,
    )


def number_probe(
    x: np.ndarray,
    y: np.ndarray,
    groups: np.ndarray | None = None,
    products: Tensor | None = None,
) -> Probe:
    """A head of one output, the number in its own unit: features (N, D), numbers (N,). l2 is the
    one whose left-out answers have the least squared error. Examples of one group, by its number
    (N,), are left out together. `products`: of each two rows, if they were computed. Raises VitkitError for
    fewer than two different numbers, and for features that are not finite."""
    refuse_broken(x)
    if len(y) < 2:
        raise BadData(f"{counted(len(y), 'example')} cannot teach a number; two or more can")
    if np.ptp(y) == 0:
        raise BadData(
            f"all {len(y):,} examples have the number {y[0]:g}; there is nothing to learn"
        )
    truth = torch.tensor(y, dtype=torch.float64)[:, None]  # (N, 1)
    folds = _each(len(y), groups)
    fit = LeaveOut(torch.tensor(x), truth, folds, products=products)

    def judge(answers: Tensor, examples: Tensor) -> Judged:
        return Judged((answers - truth[examples]).square()[:, 0], answers)

    l2, judged = best_left_out(fit, judge)
    weight, bias = fit.head(l2)
    return Probe(weight, bias, judged.answers, folds.fold, folds.known, l2, temperature=1.0)


def _each(count: int, groups: np.ndarray | None) -> Folds:
    """A fold for each example, or for each group."""
    if groups is None:
        groups = np.arange(count)
    return folds_of(groups)


class Platt(NamedTuple):
    """Log-odds as a linear function of scores."""

    slope: float
    offset: float

    def logits(self, scores: Tensor) -> Tensor:
        """Scores of any shape -> logits of a sigmoid."""
        return self.slope * scores + self.offset


def fit_platt(scores: Tensor, truth: Tensor) -> Platt:
    """The line by which the sigmoid of scores fits ones and zeros best, of one shape, float64.

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
