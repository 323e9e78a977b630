"""Objectives: what a step minimises. The loop cannot tell which one it runs.

Legend: B batch, K classes.
"""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Supervised:
    """Cross-entropy against the label. The paper does not name its loss; the official sibling configurations pre-train with
    the sigmoid form and a head bias of -10, its fine-tuning code uses softmax."""

    loss: Literal["softmax", "sigmoid"] = "softmax"
    """softmax: one label among K. sigmoid: K independent yes-or-no questions, summed."""
    label_smoothing: float = 0.0
    """Share of the target that is spread evenly over all classes."""

    def __post_init__(self):
        if self.loss not in LOSSES:
            raise ValueError(f"loss is {self.loss!r}; it is one of {', '.join(LOSSES)}")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing is {self.label_smoothing}; it is from 0 up to, not including, 1")

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Mean loss over the batch, in float32: images (B, C, H, W) normalised, labels (B,) int64."""
        logits = model(images).float()  # (B, K)
        return LOSSES[self.loss](logits, labels, self.label_smoothing)


def softmax_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """-log of the label's softmax probability, mean over B."""
    return F.cross_entropy(logits, labels, label_smoothing=smoothing)


def sigmoid_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Binary cross-entropy of every class, summed over K (not averaged), mean over B."""
    classes = logits.shape[-1]
    targets = F.one_hot(labels, classes).to(logits) * (1 - smoothing) + smoothing / classes
    # binary_cross_entropy_with_logits loses the many small terms of a head bias of -10 to rounding
    return -(targets * F.logsigmoid(logits) + (1 - targets) * F.logsigmoid(-logits)).sum() / len(logits)


LOSSES = {"softmax": softmax_cross_entropy, "sigmoid": sigmoid_cross_entropy}
