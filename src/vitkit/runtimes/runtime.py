"""Runtimes: what computes the logits of images.

`predict` takes any of them, and cannot tell which it has. PyTorch's are in pytorch.py; libraries.py
opens exported files, which answer without PyTorch.

Legend: B batch, K classes, h w pixels of what the model gets.
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
        """The names of its K classes."""

    @property
    def activation(self) -> Activation:
        """The activation that turns logits into probabilities."""

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Prepared images, uint8 (B, 3, h, w), -> float32 (B, K)."""


@runtime_checkable
class SaysUnknown(Runtime, Protocol):
    """A runtime that also says which images are unknown to its classifier (weights/unknown.py). If it has
    no limits for that, `least` is None."""

    @property
    def least(self) -> np.ndarray | None:
        """From which probability on classes are left open: (K,), or (1,) for all; None without
        limits."""

    def logits_and_strangeness(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Prepared images, uint8 (B, 3, h, w), -> float32 (B, K), and (B,): above 0 for unknown
        images."""
