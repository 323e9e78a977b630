"""The supervised objective: a loss between a model's outputs and labels.

Legend: B batch, C channels, K classes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data import Preprocessing, Source, TargetKind, mix
from vitkit.evaluation import balanced_weights
from vitkit.evaluation.evaluator import Evaluator
from vitkit.evaluation.evaluators import USUAL
from vitkit.models import Model
from vitkit.objectives.objective import Learner
from vitkit.system.errors import BadData, BadSettings
from vitkit.system.values import check_settings
from vitkit.weights import Activation

LEARNS = {"softmax": ("class",), "sigmoid": ("class", "classes"), "squared": ("number",)}
"""The kinds of targets that each loss can learn."""
ADVICE = {
    "class": "have one class each: use `objective.loss='softmax'` or sigmoid",
    "classes": "have several classes each: use `objective.loss='sigmoid'`",
    "number": "have a number each: use `objective.loss='squared'`",
    "mask": "have masks: use the objective `Segmentation`",
    "none": (
        "have no labels: put those of each class into a folder, name the column that holds the "
        "classes with `data.columns.label`, or learn without, as vitkit train paper.masked_patches "
        "does"
    ),
}
"""What to do if a loss cannot learn a kind of targets."""


@dataclass(frozen=True)
class Supervised:
    """A cross-entropy against classes, or the squared error of numbers.

    The paper does not name its loss. The group's published configurations pre-train with the
    sigmoid and a head bias of -10; the paper's fine-tuning code uses the softmax.
    """

    loss: Literal["softmax", "sigmoid", "squared"] = "softmax"
    """softmax: one class among K. sigmoid: K yes-or-no questions, whose losses are summed; also for
    images of several classes. squared: for images whose label is a number."""
    label_smoothing: float = 0.0
    """Share of the target that is spread evenly over all classes."""
    off_target: float = 0.0
    """For sigmoid: the target of a class that the image does not have; the target of a class that
    it has is 1 minus this. Published ImageNet-21k configurations use 0.0001."""
    mixup: float = 0.0
    """Alpha of mixup, which blends each image of a batch, and its target, with its neighbour in the
    batch; the weights are drawn from Beta(alpha, alpha). AugReg uses 0.2 to 0.8; 0 is off. With
    cutmix too, every example gets one of the two."""
    cutmix: float = 0.0
    """Alpha of CutMix, which puts a box of its neighbour into each image, and mixes the targets in
    the same proportion. Often 1; 0 is off."""

    class_weights: Literal["equal", "balanced"] = "equal"
    """balanced: the weight of an image is inversely proportional to the number of images of its
    class, so that all classes have equal weight; the mean weight is 1. Only for the softmax."""

    def __post_init__(self):
        check_settings(self)
        if not 0 <= self.label_smoothing < 1:
            raise BadSettings(
                f"label_smoothing is {self.label_smoothing}; it is from 0 up to, not including, 1"
            )
        if self.label_smoothing and self.loss == "squared":
            raise BadSettings(
                f"label_smoothing is {self.label_smoothing}; it is for classes, and 0 for numbers"
            )
        if not 0 <= self.off_target < 0.5 or (self.off_target and self.loss != "sigmoid"):
            raise BadSettings(
                f"off_target is {self.off_target}; it is from 0 up to, not including, 0.5, and 0 "
                f"for {self.loss}"
            )
        if self.class_weights == "balanced" and self.loss != "softmax":
            raise BadSettings(
                f"class_weights is balanced, which is for the softmax, and loss is {self.loss}"
            )
        for name in ("mixup", "cutmix"):
            alpha = getattr(self, name)
            if not 0 <= alpha <= 1000:
                raise BadSettings(
                    f"{name} is {alpha}; it is the alpha of a Beta distribution, or 0 for off"
                )

    def head(self, target_kind: TargetKind, classes: int) -> int:
        """The number of outputs: one for each class, or one for a number. Raises VitkitError for
        targets that this loss cannot learn."""
        if target_kind not in LEARNS[self.loss]:
            raise BadData(
                f"the {self.loss} loss cannot learn from these images, which {ADVICE[target_kind]}"
            )
        if target_kind == "number":
            return 1
        return classes

    def activation(self) -> Activation:
        """The activation that belongs to the loss: softmax or sigmoid; none for numbers."""
        return "none" if self.loss == "squared" else self.loss

    def evaluators(self, target_kind: TargetKind) -> tuple[Evaluator, ...]:
        """Accuracy, mean average precision or errors, by the kind of targets."""
        return USUAL[target_kind]

    def learner(
        self, model: Model, preprocessing: Preprocessing | None = None
    ) -> "SupervisedLearner":
        """The model, with this loss on its outputs."""
        return SupervisedLearner(model, self)


class SupervisedLearner(Learner):
    """The learner of a supervised run: only the model."""

    centre: Tensor
    """Mean of the target numbers, ()."""
    scale: Tensor
    """Standard deviation of the target numbers, ()."""
    weights: Tensor
    """Weight of an image of each class, if classes are balanced, (K,)."""

    def __init__(self, model: Model, objective: Supervised):
        super().__init__()
        self.model = model
        self.objective = objective
        if objective.loss == "squared":
            self.register_buffer("centre", torch.zeros(()))
            self.register_buffer("scale", torch.ones(()))
        if objective.class_weights == "balanced":
            self.register_buffer("weights", torch.ones(model.config.classes))

    def prepare(self, train: Source) -> None:
        """For numbers, store their mean and standard deviation, with which they are standardised for training.
        For balanced classes, store the weight of each class."""
        if self.objective.class_weights == "balanced":
            counts = np.bincount(train.target_array, minlength=len(self.weights))
            self.weights.copy_(torch.from_numpy(balanced_weights(counts)))
        if self.objective.loss == "squared":
            numbers = train.target_array.astype(np.float64)
            self.centre.fill_(numbers.mean())
            self.scale.fill_(numbers.std() or 1.0)

    @contextmanager
    def deployed(self) -> Iterator[None]:
        """Context in which a model of numbers predicts them in their own unit."""
        if self.objective.loss != "squared":
            yield
            return

        # w x + b, trained on standardised targets, is (scale w) x + (scale b + centre) in the targets' unit
        layers = [module for module in self.model.head.modules() if isinstance(module, nn.Linear)]
        trained = [(layer.weight.clone(), layer.bias.clone()) for layer in layers]
        scale = self.scale.item()
        centre = self.centre.item()
        with torch.no_grad():
            for layer in layers:
                layer.weight.mul_(scale)
                layer.bias.mul_(scale).add_(centre)
        try:
            yield
        finally:  # restore copies, because dividing again would not be exact
            with torch.no_grad():
                for layer, (weight, bias) in zip(layers, trained, strict=True):
                    layer.weight.copy_(weight)
                    layer.bias.copy_(bias)

    def forward(self, images: Tensor, targets: Tensor, keys: Tensor) -> Tensor:
        """images (B, C, H, W) normalised, targets as in a Batch, keys (B,) -> the mean loss, () float32."""
        settings = self.objective
        targets = self.as_rows(targets)  # (B, K)
        if settings.mixup or settings.cutmix:
            images, targets = mix(images, targets, keys, settings.mixup, settings.cutmix)
        total: Tensor | float = 1.0
        if settings.class_weights == "balanced":
            # Weight the classes of an image before label smoothing
            targets = targets * self.weights
            total = targets.sum(1, keepdim=True)  # (B, 1)
        targets = self.spread(targets, total)
        outputs = self.model(images).float()  # (B, K)
        return LOSSES[settings.loss](outputs, targets)

    def as_rows(self, targets: Tensor) -> Tensor:
        """Targets as a row for each image, float32 (B, K): from classes, int64 (B,); from ones, zeros and NaN of
        several classes, float32 (B, K); or from numbers, float32 (B,)."""
        if self.objective.loss == "squared":
            return (targets[:, None] - self.centre) / self.scale  # (B, 1)
        if targets.ndim == 1:
            return F.one_hot(targets, self.model.config.classes).float()
        return targets

    def spread(self, targets: Tensor, total: Tensor | float = 1.0) -> Tensor:
        """Apply label smoothing and `off_target` to targets (B, K): a share of each image's `total` weight is spread
        evenly over the K classes, and the sigmoid's targets are moved away from 0 and 1."""
        settings = self.objective
        if settings.loss == "squared":
            return targets
        smoothing = settings.label_smoothing
        targets = targets * (1 - smoothing) + total * smoothing / targets.shape[-1]
        return settings.off_target + (1 - 2 * settings.off_target) * targets


def sigmoid_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Logits and targets, (B, K) each -> the binary cross-entropy of each class, summed over K (not
    averaged), mean over B. Targets that are NaN, unknown ones, take no part."""
    known = ~targets.isnan()
    targets = targets.nan_to_num(0)
    # binary_cross_entropy_with_logits would lose the many small terms of a head bias of -10 to rounding
    log_likelihood = targets * F.logsigmoid(logits) + (1 - targets) * F.logsigmoid(-logits)
    return -(log_likelihood * known).sum() / len(logits)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs and targets, (B, K) each -> squared differences, summed over K, mean over B."""
    return (outputs - targets).square().sum() / len(outputs)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": F.cross_entropy,  # with the targets as probabilities, mean over B
    "sigmoid": sigmoid_cross_entropy,
    "squared": squared_error,
}
