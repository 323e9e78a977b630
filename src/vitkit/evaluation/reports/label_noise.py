"""How many labels of a data set are wrong, and which they probably are.

A label that disagrees with the model is wrong, or its image is hard. The two are told apart by a
model of the noise (Natarajan and others, 2013; Patrini and others, 2017): an image shows class j with
probability p_j, the softmax of its left-out logits at a temperature, and what shows class j is
labelled k with probability T_jk. The likelihood of the labels fits the temperature and T at once. A
hard image has a flat p, and its label is no surprise; a wrong label is one where p is sharp.

Images of classes that resemble each other look as if they were often labelled as one another, and
with a free T all of these would count as errors. So T is held towards errors that are spread evenly:
by a Dirichlet prior that is worth PAIR imagined images for each pair of classes. What that choice
decides is the interval: its ends are the estimates with errors that are all spread evenly, and with
a T that is nearly free.

Legend: N images, K classes.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_array
from scipy.special import softmax

PAIR = 15.0  # imagined images for each pair of classes, which hold T towards even errors
NEARLY_FREE = 2.0  # the same, for the upper end of the interval
EVEN = 1e9  # the same, for its lower end: the errors of all classes are spread evenly
BEGIN = 0.2  # the share of errors at which the fit begins
ROUNDS = 20  # of a temperature and STEPS steps of expectation maximisation, at most
STEPS = 5
SETTLED = 0.05  # wrong labels by which the last round has changed their number
TEMPERATURES = (0.08, 1.65)  # of the temperature that the logits were calibrated with
# Share of the labels' entropy below which answers are hardly better than chance
KNOWS_NOTHING = 0.05
DEVIATIONS = 2.0  # standard deviations that are added to the interval at both ends


@dataclass(frozen=True)
class Suspect:
    """An image whose label is probably wrong."""

    index: int
    answer: int
    """The class predicted from the other images."""
    probability: float
    """Probability of the class `answer`, given the image and its label."""
    own: float
    """Probability of the class that it is labelled with; 1 - own is that of a label error."""


class Unclear(NamedTuple):
    """Images of which the answers cannot say whether their labels are wrong: one class may regularly be
    labelled as another, or the two may only resemble each other."""

    label: int
    """The class that they are labelled with."""
    answer: int
    """The class that they look like."""
    images: int
    """By how many more or fewer wrong labels that decides."""


class WrongLabels(NamedTuple):
    """The labels of a data set that are probably wrong."""

    suspects: list[Suspect]
    """As many as are expected to be wrong, the surest first."""
    low: int
    """Of an interval for the number of wrong labels, DEVIATIONS standard deviations below the least of
    the estimates ..."""
    high: int
    """... and above the greatest."""
    unclear: Unclear | None = None
    """The pair of classes on which the interval depends most, if it depends more on what is assumed of pairs
    of classes than on chance."""


def wrong_labels(logits: np.ndarray, classes: np.ndarray) -> WrongLabels | None:
    """The labels that are probably wrong: as many as are expected to be, and an interval for their
    number; None if the answers are hardly better than those of chance, so that they judge no label.

    logits: (N, K), calibrated, of each image by a fit without it. classes: (N,), the labels.
    """
    rows = np.arange(len(classes))
    if _explained(softmax(logits, axis=1)[rows, classes], classes) < KNOWS_NOTHING:
        return None

    # The estimate, and how far it moves with what is assumed of the errors
    shown = shown_classes(logits, classes)
    wrong = 1 - shown[rows, classes]  # (N,)
    even, free = (shown_classes(logits, classes, pair) for pair in (EVEN, NEARLY_FREE))
    estimates = [wrong, 1 - even[rows, classes], 1 - free[rows, classes]]
    margins = [_margin(estimate) for estimate in estimates]
    low = min(estimate.sum() - margin for estimate, margin in zip(estimates, margins, strict=True))
    high = max(estimate.sum() + margin for estimate, margin in zip(estimates, margins, strict=True))

    # As many as are expected, the least probable labels first
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
    """The pair of classes with the most labels that are wrong by one assumption and right by another: from the
    differences of what each image shows by these, (N, K), and the labels, (N,)."""
    count = differences.shape[1]
    pairs = np.zeros((count, count))  # label, class that is shown
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
    """DEVIATIONS standard deviations of the number of wrong labels, by the probability (N,) of each:
    those of a count (Poisson; 1 more, since a count of 0 is no proof), and of what remains unknown of
    each image."""
    variance = 1 + wrong.sum() + (wrong * (1 - wrong)).sum()
    return DEVIATIONS * float(np.sqrt(variance))


def shown_classes(logits: np.ndarray, classes: np.ndarray, pair: float = PAIR) -> np.ndarray:
    """The probability (N, K) that an image shows each class, given its logits and its label, by
    expectation maximisation (Dempster and others, 1977). 1 less that of its label is the
    probability that the label is wrong.

    pair: imagined images for each pair of classes, which hold T towards even errors.
    """
    images, count = logits.shape
    prior = pair * count  # imagined images of each class
    labelled = csr_array((np.ones(images), (classes, np.arange(images))), (count, images))
    diagonal = np.eye(count, dtype=bool)
    noise = _even(BEGIN, diagonal)  # T, (K, K)
    errors = np.inf
    for _ in range(ROUNDS):
        before = errors
        temperature = _temperature(logits, noise.T[classes])
        answered = softmax(logits / temperature, axis=1)  # p, (N, K)
        for _ in range(STEPS):
            # What each image shows, given its label
            shown = answered * noise.T[classes]
            shown /= np.maximum(shown.sum(1, keepdims=True), 1e-300)

            # How what shows class j is labelled: counted, and held towards even errors
            counts = (labelled @ shown).T  # (K, K)
            errors = images - np.trace(counts)
            share = (errors + 1) / (images + 2)  # Laplace's rule: none among few proves nothing
            noise = counts + prior * _even(share, diagonal)
            noise /= counts.sum(1, keepdims=True) + prior
        if abs(errors - before) < SETTLED:
            break
    return shown


def _even(share: float, diagonal: np.ndarray) -> np.ndarray:
    """T of a share of errors, spread evenly over the other classes: (K, K)."""
    return np.where(diagonal, 1 - share, share / (len(diagonal) - 1))


def _temperature(logits: np.ndarray, noise: np.ndarray) -> float:
    """The temperature of the best likelihood of the labels, of which `noise` (N, K) has the probability
    if an image shows each class."""

    def loss(log_temperature: float) -> float:
        answered = softmax(logits / np.exp(log_temperature), axis=1)
        likelihood = np.einsum("nk,nk->n", answered, noise)
        return -np.log(np.maximum(likelihood, 1e-300)).mean()

    bounds = np.log(TEMPERATURES)
    return np.exp(minimize_scalar(loss, bounds=bounds, options={"xatol": 0.01}).x)
