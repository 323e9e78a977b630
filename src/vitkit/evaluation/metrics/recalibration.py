"""What a temperature does to a model's probabilities: `vitkit evaluate --calibrate`. The answers stay
the same, only their probabilities change.

Legend: N images, K classes.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from vitkit.evaluation.metrics.answers import Answers
from vitkit.evaluation.metrics.calibration import Bin, calibration_error, reliability
from vitkit.evaluation.metrics.metric import MISFIT, NATS, NUMBER, Metric
from vitkit.evaluation.metrics.temperature import fit_temperature
from vitkit.weights import Classifier


class Calibration(NamedTuple):
    """A temperature, and what it does to images that it was not fitted on."""

    temperature: float
    """Fitted on all images."""
    error_before: float
    """The calibration error."""
    error_after: float
    """That of each half of the images with the temperature of the other half."""
    loss_before: float
    loss_after: float
    """Likewise."""
    bins_after: tuple[Bin, ...]
    """Likewise."""

    def metrics(self) -> list[Metric]:
        """The temperature, and the calibration error and the loss that it leads to on images that
        it was not fitted on."""
        return [
            Metric("temperature", self.temperature, NUMBER),
            Metric("calibrated/calibration_error", self.error_after, MISFIT),
            Metric("calibrated/loss", self.loss_after, NATS),
        ]


def check_can_calibrate(classifier: Classifier) -> None:
    """Raises ValueError unless a temperature makes sense for the model's probabilities."""
    if classifier.activation != "softmax":
        raise ValueError(
            f"a temperature is for probabilities of one class among several (softmax); the model's "
            f"activation is {classifier.activation}"
        )


def calibrate(given: Answers) -> Calibration:
    """Fit the temperature of the smallest loss. `given` has logits.

    Raises ValueError if the answers are no better than chance, and if they are not finite.
    """
    assert given.logits is not None, "ask for the logits"
    if not given.finite.all():
        raise ValueError("the model's outputs are not finite; no temperature can mend that")
    logits = torch.from_numpy(given.logits)
    truth = torch.from_numpy(given.truth)
    temperature = fit_temperature(logits, truth)
    highest = float((logits / temperature).softmax(-1).max())
    if highest < 1.01 / logits.shape[1]:
        raise ValueError(
            f"no temperature fits: of {len(given)} images {int(given.right.sum())} are right, which "
            "is no better than chance"
        )
    confidence, loss = _cross_fitted(logits, truth)
    return Calibration(
        temperature=temperature,
        error_before=calibration_error(given.confidence, given.right),
        error_after=calibration_error(confidence, given.right),
        loss_before=float(given.loss.mean()),
        loss_after=float(loss.mean()),
        bins_after=tuple(reliability(confidence, given.right)),
    )


def _cross_fitted(logits: torch.Tensor, truth: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Confidence and loss of each image, (N,) each, at the temperature of the half of the images
    that it is not in."""
    shuffled = np.random.Generator(np.random.PCG64(0)).permutation(len(truth))
    half = len(truth) // 2
    halves = (torch.from_numpy(shuffled[:half]), torch.from_numpy(shuffled[half:]))
    confidence = torch.empty(len(truth), dtype=torch.float64)
    loss = torch.empty(len(truth), dtype=torch.float64)
    for rows, others in (halves, halves[::-1]):
        temperature = 1.0  # a single image has no other half
        if len(others):
            temperature = fit_temperature(logits[others], truth[others])
        scaled = logits[rows] / temperature
        confidence[rows] = scaled.softmax(-1).amax(-1).double()
        loss[rows] = F.cross_entropy(scaled, truth[rows], reduction="none").double()
    return confidence.numpy(), loss.numpy()
