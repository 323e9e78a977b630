"""The candidate models for a folder of photographs, and the choice of the best one on held-out images,
which none of them has learned from.

- closed form: the pre-trained model unchanged, with a linear head in closed form
  (evaluation/probes/probe.py; probing.py for several classes per image and for numbers);
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
    """Mean training loss on the held-out images; breaks ties between candidates."""
    losses: np.ndarray
    """Training loss of each held-out image, float64 (N,)."""
    scores: np.ndarray
    """Score of each held-out image, float64 (N,): for one class per image 1 if the prediction is correct
    and 0 if not; else the negative loss."""


def question(kind: TargetKind, labels: tuple[str, ...], balanced: bool = False) -> Probing:
    """The probing task for targets of this kind: one output per class, also for classes without training
    images. balanced: whether all classes have equal weight."""
    if kind == "number":
        return Probing(kind, NUMBER, np.zeros(0, np.int64))
    return Probing(kind, labels, np.arange(len(labels)), balanced)


def solved(
    asked: Probing,
    learned: Features,
    groups: np.ndarray | None = None,
    products: Tensor | None = None,
) -> Probe:
    """The closed-form head for features (N, D) and targets as `Source.targets_of` gives them. Images with
    the same group number, (N,), are left out together. `products`: the row products of the features if
    they were computed (`row_products`). Raises VitkitError if no head can be fitted."""
    if asked.kind != "classes":
        return asked.fit("linear", learned, groups, products)

    # A class without a training image gets a low probability, by the rule of succession: 1 in N + 2
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
    """A copy of a classifier with the fitted head in place of its all-zero head."""
    own = replace(classifier, model=deepcopy(classifier.model))
    return with_probe(own, fitted, asked.labels, asked.activation)


def answers_of(classifier: Classifier, source: Source) -> Tensor:
    """The logits of a model, on its device, for every image: float32 (N, K). Features are not cached,
    since no other run has these weights."""
    x, _ = compute_features(classifier.for_inference(), source, cached=False)
    return head_on(classifier, x)


@torch.no_grad()
def head_on(classifier: Classifier, x: np.ndarray) -> Tensor:
    """The logits of the head for features (N, D): float32 (N, K), on the CPU."""
    head = deepcopy(classifier.model.head).to("cpu").eval()
    return head(torch.tensor(x)).float()


def targets_of(source: Source) -> np.ndarray:
    """The targets of all images: class numbers int64 (N,), zeros and ones (N, K), or numbers (N,)."""
    return source.targets_of(np.arange(len(source)))


def candidate(
    name: str,
    classifier: Classifier,
    asked: Probing,
    logits: Tensor,
    y: np.ndarray,
    groups: np.ndarray | None = None,
) -> Candidate:
    """The candidate with these logits, (N, K), for held-out images. y: their targets. groups: (N,)."""
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
    """The main metric of logits (N, K), by the kind of targets: accuracy (balanced if classes have
    unequal sizes), mean average precision, or mean error. groups: (N,); the interval counts each
    group as one independent observation."""
    return next(asked.quality(part, logits, y, groups))


def kept_quality(
    asked: Probing,
    candidates: list[Candidate],
    chosen: Candidate,
    y: np.ndarray,
    groups: np.ndarray | None = None,
) -> Metric:
    """The cross-fitted quality on held-out images: for each image, the other images choose the model. For
    several classes per image, and for numbers, the quality of the chosen model, which is slightly
    optimistic."""
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
    """The second classifier with the mean of both models' weights; both began as the same model."""
    model = deepcopy(other.model)
    theirs = one.model.state_dict()
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if weight.is_floating_point():
                weight.lerp_(theirs[name].to(weight), 0.5)
    return replace(other, model=model)


def image_weights(asked: Probing, y: np.ndarray) -> np.ndarray:
    """The weight of each image, (N,): all equal, or such that all classes have equal weight."""
    if asked.kind != "class" or not asked.balanced:
        return np.ones(len(y))
    counts = np.bincount(y, minlength=len(asked.labels))
    return balanced_weights(counts)[y]


def best(
    candidates: list[Candidate],
    weights: np.ndarray | None = None,
    groups: np.ndarray | None = None,
) -> Candidate:
    """The candidate with the best scores; of equal ones the one with the least loss.

    weights: the weight of each held-out image, (N,); None for equal weights. groups: images with the same
    number, (N,), are not independent, and count as one difference.

    A candidate must be better than the first one by more than chance: the sum of the differences in
    score must exceed its standard error, the root of the sum of their squares. The first candidate is
    the closed form, whose saved head has learned from all images.
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
    """For each image, the index of the candidate that the images of all other folds choose: int64 (N,).

    The quality of the best candidate on the images that chose it is optimistic. The quality of these
    choices is not: no image influences the choice of the model that classifies it.

    folds: the fold of each image, (N,). weights: the weight of each image, (N,). groups: as in `best`.
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
    """`whole` with cross-fitted predictions: the left-out prediction for each image comes from the
    head that the images of all other folds choose. The heads `wholes` belong to `candidates`, in
    the same order."""
    by_others = best_by_others(candidates, whole.fold.numpy(), weights)
    answers = torch.stack([each.left_out for each in wholes])  # (C, N, K)
    return replace(whole, left_out=answers[by_others, torch.arange(len(by_others))])
