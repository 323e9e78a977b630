"""Runtimes: what computes the logits of images.

`predict` takes any of them. The only one so far is PyTorch: a Classifier, as `eager` prepares it.

Legend: B batch, K classes, h w pixels of what the model gets.
"""

from typing import Protocol

from torch import Tensor

from vitkit.data import Preprocessing
from vitkit.system.machine import pick_device
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


def eager(classifier: Classifier, device: str = "auto") -> Classifier:
    """The classifier for inference on a device: cpu, cuda, cuda:1 or mps; auto takes the best there
    is. The given one stays where it is."""
    return classifier.for_inference().to(pick_device(device))
