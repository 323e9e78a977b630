"""The runtimes that are PyTorch itself: a classifier as it is, or compiled.

Legend: B batch, K classes, h w pixels of what the model gets.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from vitkit.data import Preprocessing
from vitkit.system.machine import (
    Precision,
    PrecisionChoice,
    autocast,
    pick_device,
    pick_precision,
)
from vitkit.weights import Activation, Classifier


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

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Prepared images, uint8 (B, 3, h, w), -> float32 (B, K)."""
        with torch.inference_mode(), autocast(self.classifier.device, self.precision):
            logits = self.classifier.logits(torch.from_numpy(images))
        return logits.cpu().numpy()


def eager(
    classifier: Classifier,
    device: str | torch.device = "auto",
    precision: PrecisionChoice = "float32",
) -> Eager:
    """The classifier for inference on a device, in a precision (`vitkit.prediction.eager`)."""
    check_answer(classifier)
    own_device = pick_device(device)
    deployed = classifier.for_inference().to(own_device)
    return Eager(deployed, pick_precision(precision, own_device).precision)


def compiled(
    classifier: Classifier,
    device: str | torch.device = "auto",
    precision: PrecisionChoice = "float32",
) -> Eager:
    """The same, compiled: the first batch takes a minute, and so does the first of another size."""
    runtime = eager(classifier, device, precision)
    model = torch.compile(runtime.classifier.model, dynamic=False)
    return replace(runtime, classifier=replace(runtime.classifier, model=model))


def check_answer(classifier: Classifier) -> None:
    """Raises ValueError for a model that answers for each of its tokens: here an image has one
    answer."""
    if not classifier.model.config.pools:
        raise ValueError(
            'the model gives an answer for every token (its pool is "none"), and here an image has '
            "one; use its logits from Python"
        )
