"""Runtimes: what computes the logits of images.

`predict` takes any of them. The only one so far is PyTorch: a Classifier itself, or as `eager`
prepares it.

Legend: B batch, K classes, h w pixels of what the model gets.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vitkit.data import Preprocessing
from vitkit.system.machine import (
    Precision,
    PrecisionChoice,
    autocast,
    pick_device,
    pick_precision,
)
from vitkit.weights import Classifier
from vitkit.weights.classifier import Activation


class Runtime(Protocol):
    """Whatever computes logits for a classifier. A Classifier is one itself: PyTorch computes its
    logits, on the device of its model."""

    @property
    def preprocessing(self) -> Preprocessing:
        """How an image becomes an input."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its K classes."""

    @property
    def activation(self) -> Activation:
        """How its logits become probabilities."""

    def logits(self, images: Tensor) -> Tensor:
        """Prepared images, uint8 (B, 3, h, w) on the CPU, -> float32 (B, K)."""


@dataclass(frozen=True)
class Eager:
    """A classifier that PyTorch computes in a precision, for inference."""

    classifier: Classifier
    """The model on its device."""
    precision: Precision = "float32"
    """Arithmetic of the matrix products."""

    @property
    def preprocessing(self) -> Preprocessing:
        """The classifier's."""
        return self.classifier.preprocessing

    @property
    def labels(self) -> tuple[str, ...]:
        """The classifier's."""
        return self.classifier.labels

    @property
    def activation(self) -> Activation:
        """The classifier's."""
        return self.classifier.activation

    def logits(self, images: Tensor) -> Tensor:
        """Prepared images, uint8 (B, 3, h, w) on any device, -> float32 (B, K)."""
        with autocast(self.classifier.device, self.precision):
            return self.classifier.logits(images)


def eager(
    classifier: Classifier,
    device: str | torch.device = "auto",
    precision: PrecisionChoice = "float32",
) -> Eager:
    """The classifier for inference on a device: cpu, cuda, cuda:1 or mps; auto takes the best there
    is. The given one stays where it is.

    precision: "auto" is bfloat16 where the device has instructions for it.
    Raises ValueError for a model that answers for every token.
    """
    check_answer(classifier)
    own_device = pick_device(device)
    deployed = classifier.for_inference().to(own_device)
    return Eager(deployed, pick_precision(precision, own_device).precision)


def check_answer(classifier: Classifier) -> None:
    """Raises ValueError for a model that answers for each of its tokens: here an image has one
    answer."""
    if not classifier.model.config.pools:
        raise ValueError(
            'the model gives an answer for every token (its pool is "none"), and here an image has '
            "one; use its logits from Python"
        )
