"""The interface of runtimes, which compute the logits of images.

`predict` takes any of them. PyTorch's are in pytorch.py; libraries.py opens exported files, which are computed
without PyTorch.

Legend: B batch, K classes, h w pixels of the model's input.
"""

from typing import Protocol, runtime_checkable

import numpy as np

from vitkit.data import Preprocessing
from vitkit.weights import Activation


class Runtime(Protocol):
    """Computes logits for a classifier, in any library."""

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing that turns an image into an input."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the K classes."""

    @property
    def activation(self) -> Activation:
        """The activation that turns logits into probabilities."""

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Prepared images, uint8 (B, 3, h, w), -> logits, float32 (B, K)."""


@runtime_checkable
class SaysUnknown(Runtime, Protocol):
    """A runtime that can also detect images that are unknown to its classifier (weights/unknown.py), unless `least`
    is None."""

    @property
    def least(self) -> np.ndarray | None:
        """Smallest probability of a class that is left open: (K,), or (1,) for all; None without
        thresholds."""

    def logits_and_strangeness(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Prepared images, uint8 (B, 3, h, w), -> logits, float32 (B, K), and out-of-distribution scores, (B,),
        above 0 for unknown images."""
