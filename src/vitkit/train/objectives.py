"""Objectives: what a step minimises. The loop cannot tell which one it runs.

An objective is settings. Its `learner(model, preprocessing)` is the module that a run trains: the model under the name
`model`, parameters of its own where it needs some, and a forward pass (images, labels, keys) -> loss. It hears of every
update, and of the beginning as update 0, and may have `pictures` that show what it does. The objective's `evaluator`
measures a learner on held-out images, and `labelled` says whether it wants labels, and so a head.

What is random in a forward pass is drawn from `keys`, one integer an example that is a function of (seed, step, place in
the batch): micro-batches and ranks then change nothing.

Legend: B batch, C channels, K classes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data import Batch, Preprocessing
from vitkit.evaluate import accuracy


@dataclass(frozen=True)
class Supervised:
    """Cross-entropy against the label. The paper does not name its loss; the official sibling configurations pre-train with
    the sigmoid form and a head bias of -10, its fine-tuning code uses softmax."""

    loss: Literal["softmax", "sigmoid"] = "softmax"
    """softmax: one label among K. sigmoid: K independent yes-or-no questions, summed."""
    label_smoothing: float = 0.0
    """Share of the target that is spread evenly over all classes."""

    labelled: ClassVar[bool] = True
    """It wants labels, and a model with a head."""

    def __post_init__(self):
        if self.loss not in LOSSES:
            raise ValueError(f"loss is {self.loss!r}; it is one of {', '.join(LOSSES)}")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing is {self.label_smoothing}; it is from 0 up to, not including, 1")

    def learner(self, model: nn.Module, preprocessing: Preprocessing | None = None) -> "SupervisedLearner":
        """The model, with this loss on its logits; how images were normalised plays no part."""
        return SupervisedLearner(model, self)

    def evaluator(
        self, batches: Iterable[Batch], normalise: Callable[[Tensor], Tensor], place: torch.device
    ) -> Callable[[nn.Module], Iterable[tuple[str, float]]]:
        """Accuracy of a learner's model on batches with labels."""
        measure = accuracy(batches, normalise, place)
        return lambda learner: measure(learner.model)


class SupervisedLearner(nn.Module):
    """What a supervised run trains: the model alone."""

    def __init__(self, model: nn.Module, objective: Supervised):
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, images: Tensor, labels: Tensor, keys: Tensor) -> Tensor:
        """Mean loss over the batch, in float32: images (B, C, H, W) normalised, labels (B,) int64, keys (B,) unused."""
        logits = self.model(images).float()  # (B, K)
        return LOSSES[self.objective.loss](logits, labels, self.objective.label_smoothing)

    def updated(self, step: int, total: int) -> None:
        """Called after update `step` of `total`: here nothing follows the model."""

    def pictures(self, images: Tensor, keys: Tensor) -> dict[str, Tensor]:
        """Nothing to show: a label is no picture."""
        return {}


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
