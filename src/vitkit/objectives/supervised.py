"""The supervised objective: the loss of a model's logits against labels.

Legend: B batch, C channels, K classes.
"""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data import Preprocessing, Target, mix
from vitkit.evaluate import USUAL, Evaluator
from vitkit.objectives.objective import Learner
from vitkit.weights.classifier import Activation

LEARNED = {
    "none": "no labels",
    "classes": "several classes an image",
    "number": "numbers as targets",
}


@dataclass(frozen=True)
class Supervised:
    """Cross-entropy against the label. The paper does not name its loss; the official sibling configurations pre-train with
    the sigmoid form and a head bias of -10, its fine-tuning code uses softmax."""

    loss: Literal["softmax", "sigmoid"] = "softmax"
    """softmax: one label among K. sigmoid: K independent yes-or-no questions, summed."""
    label_smoothing: float = 0.0
    """Share of the target that is spread evenly over all classes."""
    off_target: float = 0.0
    """For sigmoid: the target of a no; a yes has 1 minus it. Published ImageNet-21k configurations have 0.0001."""
    mixup: float = 0.0
    """Blend neighbours of a batch and their targets; the alpha of Beta(alpha, alpha), which the shares are drawn from. AugReg
    has 0.2 to 0.8; 0 is off. With cutmix on as well, every example gets one of the two."""
    cutmix: float = 0.0
    """Put a box of its neighbour into every image, and as much of its target; an alpha like mixup's, often 1; 0 is off."""

    def __post_init__(self):
        if self.loss not in LOSSES:
            raise ValueError(f"loss is {self.loss!r}; it is one of {', '.join(LOSSES)}")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(
                f"label_smoothing is {self.label_smoothing}; it is from 0 up to, not including, 1"
            )
        if not 0 <= self.off_target < 0.5 or (self.off_target and self.loss == "softmax"):
            raise ValueError(
                f"off_target is {self.off_target}; it is from 0 up to, not including, 0.5, and 0 for softmax"
            )
        for name in ("mixup", "cutmix"):
            if not 0 <= getattr(self, name) <= 1000:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; it is the alpha of a Beta distribution, or 0 for off"
                )

    def head(self, target: Target, classes: int) -> int:
        """An output a class. Raises ValueError for images that have not one class each."""
        if target != "class":
            raise ValueError(
                f"the images have {LEARNED[target]}, and a supervised objective learns one class an "
                f"image; say which column holds it with --data.columns.label, or choose an objective "
                f"that needs no labels"
            )
        return classes

    def activation(self) -> Activation:
        """That of the loss."""
        return self.loss

    def evaluators(self, target: Target) -> tuple[Evaluator, ...]:
        """Accuracy."""
        return USUAL[target]

    def learner(
        self, model: nn.Module, preprocessing: Preprocessing | None = None
    ) -> "SupervisedLearner":
        """The model, with this loss on its logits; how images were normalised plays no part."""
        return SupervisedLearner(model, self)


class SupervisedLearner(Learner):
    """What a supervised run trains: the model alone."""

    def __init__(self, model: nn.Module, objective: Supervised):
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, images: Tensor, targets: Tensor, keys: Tensor) -> Tensor:
        """Mean loss over the batch, in float32: images (B, C, H, W) normalised, targets (B,) int64, keys (B,) for mixing."""
        how = self.objective
        targets = soft_targets(targets, self.model.config.classes, how.label_smoothing)
        targets = how.off_target + (1 - 2 * how.off_target) * targets
        if how.mixup or how.cutmix:
            images, targets = mix(images, targets, keys, how.mixup, how.cutmix)
        return LOSSES[how.loss](self.model(images).float(), targets)


def soft_targets(labels: Tensor, classes: int, smoothing: float = 0.0) -> Tensor:
    """Labels int64 (B,) -> float32 (B, K), every row a sum of one: `smoothing` of it spread evenly, the rest on the label."""
    return F.one_hot(labels, classes).float() * (1 - smoothing) + smoothing / classes


def softmax_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """-log of the softmax probability, weighted by the targets (B, K), mean over B."""
    return F.cross_entropy(logits, targets)


def sigmoid_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of every class against targets (B, K), summed over K (not averaged), mean over B."""
    # binary_cross_entropy_with_logits loses the many small terms of a head bias of -10 to rounding
    return -(targets * F.logsigmoid(logits) + (1 - targets) * F.logsigmoid(-logits)).sum() / len(
        logits
    )


LOSSES = {"softmax": softmax_cross_entropy, "sigmoid": sigmoid_cross_entropy}
