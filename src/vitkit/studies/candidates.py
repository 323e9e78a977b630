"""The models that a folder of photographs can get, and which of them is the best on images that
none has learned from.

- closed form: the pre-trained model as it is, with a linear head that is solved for, not trained
  (evaluate/probe.py);
- fine-tuned: all weights trained further, from a head of zeros (Section 3.2);
- average: the mean of the weights of both.

Legend: N images, D width, K classes.
"""

from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data import Source
from vitkit.evaluate import Metric, features
from vitkit.evaluate.metric import share_right
from vitkit.evaluate.probe import Probe, probe, with_probe
from vitkit.weights import Classifier

CLOSED_FORM = "closed form"
FINE_TUNED = "fine-tuned"
AVERAGE = "average of both"


class Candidate(NamedTuple):
    """A model, and how good it is on held-out images."""

    name: str
    classifier: Classifier
    held_out: Metric
    loss: float
    """The cross-entropy there, in nats: it decides if the accuracy is the same."""
    right: np.ndarray
    """Which held-out images it answers rightly: bool (N,)."""


class Solved(NamedTuple):
    """A head in closed form on the features of N images."""

    fitted: Probe
    left_out: Metric
    """The accuracy of the answers to each image by a fit without it."""


def solved(x: np.ndarray, classes: np.ndarray, count: int) -> Solved:
    """The head for features (N, D) and classes (N,), of `count` classes. Raises ValueError for what
    no head can be fitted to."""
    fitted = probe("linear", x, classes, count)
    right = fitted.left_out.argmax(1).numpy() == classes
    return Solved(fitted, share_right("left_out/top1", int(right.sum()), len(right)))


def with_head(classifier: Classifier, fitted: Probe) -> Classifier:
    """A copy of a classifier, whose model has a head of zeros, with a solved head in it."""
    own = replace(classifier, model=deepcopy(classifier.model))
    return with_probe(own, fitted, classifier.labels)


def answers_of(classifier: Classifier, source: Source) -> Tensor:
    """The logits of a model, on its device, for every image: float32 (N, K). Nothing is kept in the
    cache: these are the weights of one run."""
    x, _ = features(classifier.for_inference(), source, cached=False)
    return head_on(classifier, x)


@torch.no_grad()
def head_on(classifier: Classifier, x: np.ndarray) -> Tensor:
    """What the head makes of features (N, D): float32 (N, K), on the CPU."""
    head = deepcopy(classifier.model.head).to("cpu").eval()
    return head(torch.tensor(x)).float()


def candidate(name: str, classifier: Classifier, logits: Tensor, classes: np.ndarray) -> Candidate:
    """A candidate by its logits (N, K) for held-out images of these classes (N,)."""
    loss = F.cross_entropy(logits, torch.tensor(classes)).item()
    right = logits.argmax(1).numpy() == classes
    return Candidate(name, classifier, accuracy("held_out", logits, classes), loss, right)


def accuracy(part: str, logits: Tensor, classes: np.ndarray) -> Metric:
    """The share of images whose likeliest class is the true one."""
    right = logits.argmax(1).numpy() == classes
    return share_right(f"{part}/top1", int(right.sum()), len(right))


def average(one: Classifier, other: Classifier) -> Classifier:
    """The second classifier with the mean of the weights of both, which began as the same model."""
    model = deepcopy(other.model)
    theirs = one.model.state_dict()
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if weight.is_floating_point():
                weight.lerp_(theirs[name].to(weight), 0.5)
    return replace(other, model=model)


def best(candidates: list[Candidate], weights: np.ndarray | None = None) -> Candidate:
    """The one that is right most often; of equals the one with the least cross-entropy.

    weights: what each held-out image counts, (N,); None for all alike.

    Another than the first must be better than it by more than chance gives: by more than a standard
    error of the difference, which is the root of the sum of squared weights of the images that only
    one of the two answers rightly. The first is the closed form, which is saved with all images
    learned.
    """
    first = candidates[0]
    if weights is None:
        weights = np.ones(len(first.right))
    chosen = max(candidates, key=lambda each: (weights[each.right].sum(), -each.loss))
    gain = weights[chosen.right].sum() - weights[first.right].sum()
    only_one = weights[chosen.right != first.right]
    if gain > np.sqrt(np.square(only_one).sum()):
        return chosen
    return first
