"""Label errors: how many labels of a data set are wrong, and which ones probably are.

A label that disagrees with the model is wrong, or its image is hard. A model of label noise separates the two
(Natarajan and others, 2013; Patrini and others, 2017): an image shows class j with probability p_j, the softmax
of its cross-validated logits at a temperature, and an image that shows class j is labelled k with probability
T_jk. The temperature and T maximise the likelihood of the labels. A hard image has a flat p, so its label is
plausible; a label that contradicts a sharp p is probably wrong.

Classes that resemble each other appear to be mislabelled as one another, and an unrestricted T would count all
of that as label errors. So T is regularised towards errors that are spread evenly over all classes, by a
Dirichlet prior with PAIR pseudo-images for each pair of classes. The interval covers the influence of the prior:
its ends are the estimates with evenly spread errors, and with a nearly unrestricted T.

Legend: N images, K classes.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_array
from scipy.special import softmax

PAIR = 15.0  # strength of the prior: pseudo-images for each pair of classes
NEARLY_FREE = 2.0  # strength of the prior for one end of the interval: T is nearly unrestricted
EVEN = 1e9  # strength of the prior for the other end: errors are spread evenly over all classes
BEGIN = 0.2  # initial share of label errors
ROUNDS = 20  # largest number of rounds: a fit of the temperature, and STEPS steps of expectation maximisation
STEPS = 5
SETTLED = 0.05  # the fit has converged if a round changes the number of wrong labels by less
TEMPERATURES = (0.08, 1.65)  # bounds of the temperature, as factors of the one of the calibration
# Smallest explained share of the labels' entropy; predictions below it are hardly better than chance
KNOWS_NOTHING = 0.05
DEVIATIONS = 2.0  # standard deviations by which the interval is extended at both ends


@dataclass(frozen=True)
class Suspect:
    """An image whose label is probably wrong."""

    index: int
    """Index of the image."""
    answer: int
    """The class predicted from the other images."""
    probability: float
    """Probability of the class `answer`, given the image and its label."""
    own: float
    """Probability that the label is right."""


class Unclear(NamedTuple):
    """A pair of classes for which predictions cannot decide whether labels are wrong: images of one may
    regularly be labelled as the other, or the two may only resemble each other."""

    label: int
    """The class that the images are labelled with."""
    answer: int
    """The class that the images are predicted as."""
    images: int
    """Difference that this makes to the number of wrong labels."""


class WrongLabels(NamedTuple):
    """The labels of a data set that are probably wrong."""

    suspects: list[Suspect]
    """The labels that are most probably wrong, the surest first; their number is the expected number of
    wrong labels."""
    low: int
    """Lower end of an interval for the number of wrong labels: DEVIATIONS standard deviations below the
    smallest of the estimates."""
    high: int
    """Upper end of the interval: DEVIATIONS standard deviations above the largest of the estimates."""
    unclear: Unclear | None = None
    """The pair of classes on which the interval depends most; None if the interval depends less on the prior
    than on chance."""


def wrong_labels(logits: np.ndarray, classes: np.ndarray) -> WrongLabels | None:
    """Find the labels that are probably wrong, and an interval for their number; None if the predictions are
    hardly better than chance.

    logits: calibrated cross-validated logits of each image, (N, K). classes: the labels, (N,).
    """
    rows = np.arange(len(classes))
    if _explained(softmax(logits, axis=1)[rows, classes], classes) < KNOWS_NOTHING:
        return None

    # The estimate, and the estimates with a stronger and a weaker prior
    shown = shown_classes(logits, classes)
    wrong = 1 - shown[rows, classes]  # (N,)
    even, free = (shown_classes(logits, classes, pair) for pair in (EVEN, NEARLY_FREE))
    estimates = [wrong, 1 - even[rows, classes], 1 - free[rows, classes]]
    margins = [_margin(estimate) for estimate in estimates]
    low = min(estimate.sum() - margin for estimate, margin in zip(estimates, margins, strict=True))
    high = max(estimate.sum() + margin for estimate, margin in zip(estimates, margins, strict=True))

    # The expected number of labels, those with the lowest probability of being right first
    expected = round(wrong.sum())
    shown[rows, classes] = -1
    answers = shown.argmax(1)
    suspects = []
    for i in np.argsort(-wrong, kind="stable")[:expected].tolist():
        answer = int(answers[i])
        suspects.append(Suspect(i, answer, float(shown[i, answer]), 1 - float(wrong[i])))
    ends = (max(0, round(low)), min(len(wrong), round(high)))
    unclear = None
    sums = [estimate.sum() for estimate in estimates]
    if max(sums) - min(sums) > max(margins):
        unclear = _unclear(free - even, classes)
    return WrongLabels(suspects, *ends, unclear)


def _unclear(differences: np.ndarray, classes: np.ndarray) -> Unclear | None:
    """The pair of classes on which two priors disagree most, from the differences of `shown_classes` with
    these, (N, K), and the labels, (N,)."""
    count = differences.shape[1]
    pairs = np.zeros((count, count))  # by label and shown class
    np.add.at(pairs, classes, differences)
    np.fill_diagonal(pairs, 0)
    label, answer = np.unravel_index(np.abs(pairs).argmax(), pairs.shape)
    images = round(abs(pairs[label, answer]))
    if not images:
        return None
    return Unclear(int(label), int(answer), images)


def _explained(own: np.ndarray, classes: np.ndarray) -> float:
    """The share of the labels' entropy that probabilities of the labels (N,) explain (McFadden's R²)."""
    frequencies = np.bincount(classes) / len(classes)
    entropy = -np.log(frequencies[classes]).mean()
    if entropy == 0:
        return 0.0
    return float(1 + np.log(np.maximum(own, 1e-300)).mean() / entropy)


def _margin(wrong: np.ndarray) -> float:
    """DEVIATIONS standard deviations of the number of wrong labels, from the probability (N,) of each. The
    variance is that of a Poisson count, plus 1 because a count of 0 may be chance, plus the sum of the
    Bernoulli variances of the labels."""
    variance = 1 + wrong.sum() + (wrong * (1 - wrong)).sum()
    return DEVIATIONS * float(np.sqrt(variance))


def shown_classes(logits: np.ndarray, classes: np.ndarray, pair: float = PAIR) -> np.ndarray:
    """The probability (N, K) that an image shows each class, given its logits and its label, by
    expectation maximisation (Dempster and others, 1977). 1 minus that of its label is the
    probability that the label is wrong.

    pair: strength of the prior, in pseudo-images for each pair of classes.
    """
    images, count = logits.shape
    prior = pair * count  # pseudo-images of each class
    labelled = csr_array((np.ones(images), (classes, np.arange(images))), (count, images))
    diagonal = np.eye(count, dtype=bool)
    noise = _even(BEGIN, diagonal)  # T, (K, K)
    errors = np.inf
    for _ in range(ROUNDS):
        before = errors
        temperature = _temperature(logits, noise.T[classes])
        answered = softmax(logits / temperature, axis=1)  # p, (N, K)
        for _ in range(STEPS):
            # Expectation: the class that each image shows, given its label
            shown = answered * noise.T[classes]
            shown /= np.maximum(shown.sum(1, keepdims=True), 1e-300)

            # Maximisation: the labels of images that show class j, and the prior
            counts = (labelled @ shown).T  # (K, K)
            errors = images - np.trace(counts)
            share = (errors + 1) / (images + 2)  # Laplace's rule of succession
            noise = counts + prior * _even(share, diagonal)
            noise /= counts.sum(1, keepdims=True) + prior
        if abs(errors - before) < SETTLED:
            break
    return shown


def _even(share: float, diagonal: np.ndarray) -> np.ndarray:
    """T, (K, K), for a share of label errors that are spread evenly over the other classes."""
    return np.where(diagonal, 1 - share, share / (len(diagonal) - 1))


def _temperature(logits: np.ndarray, noise: np.ndarray) -> float:
    """The temperature that maximises the likelihood of the labels. noise: the probability of each image's label
    if it shows each class, (N, K)."""

    def loss(log_temperature: float) -> float:
        answered = softmax(logits / np.exp(log_temperature), axis=1)
        likelihood = np.einsum("nk,nk->n", answered, noise)
        return -np.log(np.maximum(likelihood, 1e-300)).mean()

    bounds = np.log(TEMPERATURES)
    return np.exp(minimize_scalar(loss, bounds=bounds, options={"xatol": 0.01}).x)
