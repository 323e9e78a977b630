"""The supervised objective: the loss of a model's logits against labels.

Legend: B batch, C channels, K classes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data import Preprocessing, Source, Target, mix
from vitkit.evaluate import USUAL, Evaluator
from vitkit.objectives.objective import Learner
from vitkit.weights.classifier import Activation

LEARNS = {"softmax": ("class",), "sigmoid": ("class", "classes"), "squared": ("number",)}
"""The targets that each loss can learn from."""
ADVICE = {
    "class": "have one class each: use --objective.loss softmax, or sigmoid",
    "classes": "have several classes each: use --objective.loss sigmoid",
    "number": "have a number each: use --objective.loss squared",
    "none": "have no labels: say which column holds them with --data.columns.label, or choose an "
    "objective "
    "that needs none",
}


@dataclass(frozen=True)
class Supervised:
    """A loss against the label: a cross-entropy, or for numbers the squared error. The paper does
    not name its loss; the official sibling configurations pre-train with the sigmoid form and a
    head bias of -10, its fine-tuning code uses softmax."""

    loss: Literal["softmax", "sigmoid", "squared"] = "softmax"
    """softmax: one label among K. sigmoid: K independent yes-or-no questions, summed; also for
    images of several classes. squared: for images whose label is a number."""
    label_smoothing: float = 0.0
    """Share of the target that is spread evenly over all classes."""
    off_target: float = 0.0
    """For sigmoid: the target of a no; a yes has 1 minus it. Published ImageNet-21k configurations
    have 0.0001."""
    mixup: float = 0.0
    """Blend neighbours of a batch and their targets; the alpha of Beta(alpha, alpha), which the
    shares are drawn from. AugReg has 0.2 to 0.8; 0 is off. With cutmix on as well, every example
    gets one of the two."""
    cutmix: float = 0.0
    """Put a box of its neighbour into every image, and as much of its target; an alpha like
    mixup's, often 1; 0 is off."""

    def __post_init__(self):
        if self.loss not in LOSSES:
            raise ValueError(f"loss is {self.loss!r}; it is one of {', '.join(LOSSES)}")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(
                f"label_smoothing is {self.label_smoothing}; it is from 0 up to, not including, 1"
            )
        if self.label_smoothing and self.loss == "squared":
            raise ValueError(
                f"label_smoothing is {self.label_smoothing}; it is for classes, and 0 for numbers"
            )
        if not 0 <= self.off_target < 0.5 or (self.off_target and self.loss != "sigmoid"):
            raise ValueError(
                f"off_target is {self.off_target}; it is from 0 up to, not including, 0.5, and 0 "
                f"for {self.loss}"
            )
        for name in ("mixup", "cutmix"):
            if not 0 <= getattr(self, name) <= 1000:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; it is the alpha of a Beta distribution, or "
                    "0 for off"
                )

    def head(self, target: Target, classes: int) -> int:
        """An output a class, or one for a number. Raises ValueError for targets that this loss
        cannot learn from."""
        if target not in LEARNS[self.loss]:
            raise ValueError(
                f"the {self.loss} loss cannot learn from these images, which {ADVICE[target]}"
            )
        return 1 if target == "number" else classes

    def activation(self) -> Activation:
        """That of the loss; none for numbers."""
        return "none" if self.loss == "squared" else self.loss

    def evaluators(self, target: Target) -> tuple[Evaluator, ...]:
        """Accuracy, mean average precision or errors, as suits the targets."""
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
        if objective.loss == "squared":
            self.register_buffer("centre", torch.zeros(()))
            self.register_buffer("scale", torch.ones(()))

    def prepare(self, train: Source) -> None:
        """Numbers are learned with a mean of 0 and a deviation of 1, whatever their unit."""
        if self.objective.loss == "squared":
            numbers = train.targets.astype(np.float64)
            self.centre.fill_(numbers.mean())
            self.scale.fill_(numbers.std() or 1.0)

    @contextmanager
    def deployed(self) -> Iterator[None]:
        """The model that is saved gives numbers in their own unit: its head does what undoes the
        above."""
        if self.objective.loss != "squared":
            yield
            return
        layers = [part for part in self.model.head.modules() if isinstance(part, nn.Linear)]
        trained = [(layer.weight.clone(), layer.bias.clone()) for layer in layers]
        scale = self.scale.item()
        centre = self.centre.item()
        with torch.no_grad():
            for layer in layers:
                layer.weight.mul_(scale)
                layer.bias.mul_(scale).add_(centre)
        try:
            yield
        finally:
            with torch.no_grad():
                for layer, (weight, bias) in zip(layers, trained, strict=True):
                    layer.weight.copy_(weight)
                    layer.bias.copy_(bias)

    def forward(self, images: Tensor, targets: Tensor, keys: Tensor) -> Tensor:
        """Mean loss over the batch, in float32: images (B, C, H, W) normalised, targets as a Batch
        has them, keys (B,)."""
        how = self.objective
        targets = self.rows(targets)  # (B, K)
        if how.mixup or how.cutmix:
            images, targets = mix(images, targets, keys, how.mixup, how.cutmix)
        return LOSSES[how.loss](self.model(images).float(), targets)

    def rows(self, targets: Tensor) -> Tensor:
        """Classes int64 (B,), several float32 (B, K), or numbers float32 (B,) -> what each output
        should be, float32 (B, K)."""
        how = self.objective
        if how.loss == "squared":
            return (targets[:, None] - self.centre) / self.scale
        if targets.ndim == 1:
            targets = F.one_hot(targets, self.model.config.classes).float()
        targets = smoothed(targets, how.label_smoothing)
        return how.off_target + (1 - 2 * how.off_target) * targets


def smoothed(targets: Tensor, smoothing: float) -> Tensor:
    """Ones and zeros (B, K) -> with a share `smoothing` spread evenly over the K; of a row with one
    1 the sum stays 1."""
    return targets * (1 - smoothing) + smoothing / targets.shape[-1]


def softmax_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """-log of the softmax probability, weighted by the targets (B, K), mean over B."""
    return F.cross_entropy(logits, targets)


def sigmoid_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of every class against targets (B, K), summed over K (not averaged),
    mean over B."""
    # binary_cross_entropy_with_logits loses the many small terms of a head bias of -10 to rounding
    log_likelihood = targets * F.logsigmoid(logits) + (1 - targets) * F.logsigmoid(-logits)
    return -log_likelihood.sum() / len(logits)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared differences (B, K), summed over K, mean over B."""
    return (outputs - targets).square().sum() / len(outputs)


LOSSES = {
    "softmax": softmax_cross_entropy,
    "sigmoid": sigmoid_cross_entropy,
    "squared": squared_error,
}
