"""Runtimes: what computes the logits of images.

`predict` takes any of them, and cannot tell which it has. PyTorch's are in pytorch.py; those of
exported files in onnx_file.py, openvino_file.py and torch_file.py. `opening.py` chooses one.

Nothing here needs PyTorch: an exported file answers without it.

Legend: B batch, K classes, h w pixels of what the model gets.
"""

from typing import TYPE_CHECKING, Protocol

import numpy as np

from vitkit.data import Preprocessing
from vitkit.weights import Activation

if TYPE_CHECKING:
    import torch

    from vitkit.runtimes.pytorch import Eager
    from vitkit.system.machine import PrecisionChoice
    from vitkit.weights import Classifier


class Runtime(Protocol):
    """Whatever computes logits for a classifier, in whichever library."""

    @property
    def preprocessing(self) -> Preprocessing:
        """How an image becomes an input."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its K classes."""

    @property
    def activation(self) -> Activation:
        """How its logits become probabilities."""

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Prepared images, uint8 (B, 3, h, w), -> float32 (B, K)."""


def eager(
    classifier: "Classifier",
    device: "str | torch.device" = "auto",
    precision: "PrecisionChoice" = "float32",
) -> "Eager":
    """The classifier as PyTorch computes it, for inference on a device: cpu, cuda, cuda:1 or mps;
    auto takes the best there is. The given one stays where it is.

    precision: "auto" is bfloat16 where the device has instructions for it.
    Raises ValueError for a model that answers for every token.
    """
    from vitkit.runtimes.pytorch import eager

    return eager(classifier, device, precision)
