"""The models that a folder of photographs can get, and which of them is the best on images that
none has learned from.

- closed form: the pre-trained model as it is, with a linear head that is solved for, not trained
  (evaluation/probes/probe.py, and probing.py for several classes an image and for numbers);
- fine-tuned: all weights trained further, from a head of zeros (Section 3.2);
- average: the mean of the weights of both.

Legend: N images, D width, K outputs of the head.
"""

import math
from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data import Source, TargetKind
from vitkit.evaluation import (
    SHARE,
    Features,
    Metric,
    Probe,
    Probing,
    balanced_weights,
    compute_features,
    several_probe,
    share_of_answers,
    with_probe,
)
from vitkit.evaluation.metrics.other_targets import losses_of_known
from vitkit.evaluation.probes.probe import learnable
from vitkit.evaluation.probes.probing import NUMBER
from vitkit.weights import Classifier

CLOSED_FORM = "closed form"
FINE_TUNED = "fine-tuned"
AVERAGE = "average of both"


class Candidate(NamedTuple):
    """A model, and its quality on held-out images."""

    name: str
    classifier: Classifier
    held_out: Metric
    loss: float
    """The mean loss there, as training has it: it decides if all else is the same."""
    losses: np.ndarray
    """That of each image, float64 (N,)."""
    scores: np.ndarray
    """How good the answer to each held-out image is, float64 (N,): for one class each 1 if it is
    right and 0 if not; else the loss, negative."""


def question(kind: TargetKind, labels: tuple[str, ...], balanced: bool = False) -> Probing:
    """What a head for these images answers: about every class, also one that only held-out images
    have. balanced: whether classes count alike."""
    if kind == "number":
        return Probing(kind, NUMBER, np.zeros(0, np.int64))
    return Probing(kind, labels, np.arange(len(labels)), balanced)


def solved(
    asked: Probing,
    learned: Features,
    groups: np.ndarray | None = None,
    products: Tensor | None = None,
) -> Probe:
    """The head in closed form for features (N, D) and targets as `Source.targets_of` gives them. Images
    of one group, by its number (N,), are left out together. `products`: of each two rows, if they were
    computed (`row_products`). Raises VitkitError if no head can be fitted to it."""
    if asked.kind != "classes":
        return asked.fit("linear", learned, groups, products)

    # A class without an example is unlikely everywhere, by the rule of succession: 1 in N + 2
    known = learnable(learned.y, groups)
    fitted = several_probe(learned.x, learned.y[:, known], groups, products)
    count = len(learned.x)
    weight = torch.zeros(len(known), fitted.weight.shape[1], dtype=torch.float64)
    bias = torch.full((len(known),), -math.log(count + 1), dtype=torch.float64)
    left_out = bias.expand(count, -1).clone()
    weight[known] = fitted.weight
    bias[known] = fitted.bias
    left_out[:, known] = fitted.left_out
    return replace(fitted, weight=weight, bias=bias, left_out=left_out)


def with_head(classifier: Classifier, fitted: Probe, asked: Probing) -> Classifier:
    """A copy of a classifier, whose model has a head of zeros, with a solved head in it."""
    own = replace(classifier, model=deepcopy(classifier.model))
    return with_probe(own, fitted, asked.labels, asked.activation)


def answers_of(classifier: Classifier, source: Source) -> Tensor:
    """The logits of a model, on its device, for every image: float32 (N, K). Nothing is kept in the
    cache: these are the weights of one run."""
    x, _ = compute_features(classifier.for_inference(), source, cached=False)
    return head_on(classifier, x)


@torch.no_grad()
def head_on(classifier: Classifier, x: np.ndarray) -> Tensor:
    """The logits of the head for features (N, D): float32 (N, K), on the CPU."""
    head = deepcopy(classifier.model.head).to("cpu").eval()
    return head(torch.tensor(x)).float()


def targets_of(source: Source) -> np.ndarray:
    """The targets of all images: a class each int64 (N,), ones and zeros (N, K), or numbers (N,)."""
    return source.targets_of(np.arange(len(source)))


def candidate(
    name: str,
    classifier: Classifier,
    asked: Probing,
    logits: Tensor,
    y: np.ndarray,
    groups: np.ndarray | None = None,
) -> Candidate:
    """A candidate by its logits (N, K) for held-out images with these targets, and groups, (N,)."""
    losses = _losses(asked.kind, logits.double(), torch.tensor(y))
    scores = -losses
    if asked.kind == "class":
        scores = logits.argmax(1).numpy() == y
    metric = main_metric(asked, "held_out", logits, y, groups)
    return Candidate(name, classifier, metric, losses.mean(), losses, scores.astype(np.float64))


def _losses(kind: TargetKind, logits: Tensor, y: Tensor) -> np.ndarray:
    """The loss of each image, (N,): the cross-entropy of a softmax or of sigmoids, or the squared
    error."""
    if kind == "class":
        losses = F.cross_entropy(logits, y, reduction="none")
    elif kind == "classes":
        losses = losses_of_known(logits, y.double())
    else:
        losses = (logits[:, 0] - y.double()).square()
    return losses.numpy()


def main_metric(
    asked: Probing, part: str, logits: Tensor, y: np.ndarray, groups: np.ndarray | None = None
) -> Metric:
    """The accuracy (the balanced one, of classes of unequal size), the mean average precision or the
    mean error of logits (N, K), by the kind of targets. Of groups, by their numbers (N,), the interval
    is as wide as so few that are independent make it."""
    return next(asked.quality(part, logits, y, groups))


def kept_quality(
    asked: Probing,
    candidates: list[Candidate],
    chosen: Candidate,
    y: np.ndarray,
    groups: np.ndarray | None = None,
) -> Metric:
    """The quality on held-out images with these targets if the others choose the model for each.
    For several classes, and numbers, it is what the chosen one reaches, which is a little too
    good."""
    if asked.kind != "class":
        return chosen.held_out
    weights = image_weights(asked, y)
    folds = np.arange(len(y)) if groups is None else groups
    by_others = best_by_others(candidates, folds, weights, groups)
    scores = np.stack([each.scores for each in candidates])  # (C, N)
    right = scores[by_others, np.arange(len(y))] == 1
    share, interval = share_of_answers(right, y, weights, groups)
    return Metric(chosen.held_out.name, share, SHARE, interval)


def average(one: Classifier, other: Classifier) -> Classifier:
    """The second classifier with the mean of the weights of both, which began as the same model."""
    model = deepcopy(other.model)
    theirs = one.model.state_dict()
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if weight.is_floating_point():
                weight.lerp_(theirs[name].to(weight), 0.5)
    return replace(other, model=model)


def image_weights(asked: Probing, y: np.ndarray) -> np.ndarray:
    """What each image with these targets counts, (N,): all alike, unless their classes do."""
    if asked.kind != "class" or not asked.balanced:
        return np.ones(len(y))
    counts = np.bincount(y, minlength=len(asked.labels))
    return balanced_weights(counts)[y]


def best(
    candidates: list[Candidate],
    weights: np.ndarray | None = None,
    groups: np.ndarray | None = None,
) -> Candidate:
    """The one whose answers are the best; of equals the one with the least loss.

    weights: what each held-out image counts, (N,); None for all alike. groups: images with the same number,
    (N,), are not independent, and their differences are one.

    Another than the first must be better than it by more than chance gives: the sum of the
    differences in score by more than its standard error, which is the root of the sum of their
    squares. The first is the closed form, which is saved with all images learned.
    """
    first = candidates[0]
    if weights is None:
        weights = np.ones(len(first.scores))
    chosen = max(candidates, key=lambda each: (weights @ each.scores, -each.loss))
    gains = weights * (chosen.scores - first.scores)
    if groups is not None:
        gains = np.bincount(np.unique(groups, return_inverse=True)[1], gains)
    if gains.sum() > np.sqrt(np.square(gains).sum()):
        return chosen
    return first


def best_by_others(
    candidates: list[Candidate],
    folds: np.ndarray,
    weights: np.ndarray,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """Which candidate the images of all other folds choose for each image, by its number: int64 (N,).

    The quality of the best on the images that chose it is too good. The quality of these choices is
    not: no image influences which model answers it.

    folds: the number of each image's fold, (N,). weights: what each image counts, (N,). groups: as `best`
    has them.
    """
    by_others = np.zeros(len(folds), dtype=np.int64)
    for fold in np.unique(folds):
        own = folds == fold
        chosen = best(candidates, np.where(own, 0, weights), groups)
        by_others[own] = candidates.index(chosen)
    return by_others


def answered_by_others(
    whole: Probe, wholes: list[Probe], candidates: list[Candidate], weights: np.ndarray
) -> Probe:
    """One of several heads, whose answer to each image by a fit without it is now that of the head which the
    images of all other folds choose. The heads are those of the candidates, in their order."""
    by_others = best_by_others(candidates, whole.fold.numpy(), weights)
    answers = torch.stack([each.left_out for each in wholes])  # (C, N, K)
    return replace(whole, left_out=answers[by_others, torch.arange(len(by_others))])
