"""The objective of models that classify every pixel: the cross-entropy of the pixels of masks.

Legend: B batch, C channels, H W pixels, K classes.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data import IGNORED, Preprocessing, Source, TargetKind
from vitkit.evaluation.evaluator import Evaluator
from vitkit.evaluation.evaluators import USUAL
from vitkit.models import Model
from vitkit.objectives.objective import Learner
from vitkit.system.console.progress import bar, silent
from vitkit.system.errors import BadData, BadImage, BadSettings
from vitkit.system.processes.ranks import from_every_rank, on_rank_0, world
from vitkit.system.values import check_settings
from vitkit.weights import Activation

NONE_COUNTS = 1e-6  # share of the pixels, at least, that a class counts as, if no mask has it


@dataclass(frozen=True)
class Segmentation:
    """The cross-entropy of every pixel that a mask does not ignore, with a linear decoder: one layer from patches
    to classes, whose logits are interpolated to pixels (Segmenter's linear decoder, Strudel et al. 2021).
    """

    rare: float = 0.0
    """Power of one over a class's frequency by which its pixels count; the mean weight of a pixel is
    1. 0: all pixels count equally. 1: all classes do."""

    def __post_init__(self):
        check_settings(self)
        if not 0 <= self.rare <= 1:
            raise BadSettings(f"rare is {self.rare}; it is a power from 0 to 1")

    def head(self, target_kind: TargetKind, classes: int) -> int:
        """The number of outputs for every patch: one for each class. Raises BadData for images without masks."""
        if target_kind != "mask":
            raise BadData(
                "segmentation learns from masks, and the images have none: `data.masks` names their folder or "
                "column"
            )
        return classes

    def activation(self) -> Activation:
        """Returns "softmax": a pixel has one class."""
        return "softmax"

    def evaluators(self, target_kind: TargetKind) -> tuple[Evaluator, ...]:
        """The mean IoU."""
        return USUAL[target_kind]

    def learner(self, model: Model, preprocessing: Preprocessing) -> "SegmentationLearner":
        """The model, with this loss on its logits."""
        return SegmentationLearner(model, self)


class SegmentationLearner(Learner):
    """The learner of a model that classifies every pixel: only the model."""

    weights: Tensor
    """Weight of the pixels of each class, (K,)."""

    def __init__(self, model: Model, objective: Segmentation):
        super().__init__()
        self.model = model
        self.objective = objective
        self.register_buffer("weights", torch.ones(model.config.classes))

    def prepare(self, train: Source) -> None:
        """Store the weight of each class. Unless all are equal, every mask is read once."""
        if self.objective.rare:
            counts = pixel_counts(train)
            self.weights.copy_(torch.from_numpy(class_weights(counts, self.objective.rare)))

    def forward(self, images: Tensor, targets: Tensor, keys: Tensor) -> Tensor:
        """images (B, C, H, W) normalised, targets uint8 (B, H, W) -> the loss, () float32: the sum over the pixels
        that count, divided by the number of all pixels. So a pixel counts the same whatever the other images of
        the batch, and the loss does not depend on how a batch is divided."""
        logits = self.model(images).float()  # (B, K, H, W)
        # An ignored pixel has a loss of 0
        losses = F.cross_entropy(
            logits, targets.long(), self.weights, ignore_index=IGNORED, reduction="none"
        )  # (B, H, W)
        return losses.mean()


def pixel_counts(train: Source) -> np.ndarray:
    """The pixels of each class in all masks, int64 (K,). The ranks share the images."""
    rank, world_size = world()
    counts = np.zeros(IGNORED + 1, np.int64)
    own = range(rank, len(train), world_size)
    shown = bar("counting the pixels of classes") if on_rank_0() else silent
    failure = ""
    for i in shown(own, len(own)):
        try:
            mask = train.mask(i, train.picture(i).size)
        except (BadImage, BadData) as error:  # raised on every rank below
            failure = str(error)
            break
        counts += np.bincount(mask.reshape(-1), minlength=IGNORED + 1)
    of_ranks = from_every_rank((counts[: len(train.labels)], failure))
    for _, sentence in of_ranks:
        if sentence:
            raise BadData(sentence)
    return np.sum([own for own, _ in of_ranks], axis=0)


def class_weights(counts: np.ndarray, rare: float) -> np.ndarray:
    """The weight of the pixels of each class, float32 (K,): a power of one over its share of the pixels. The mean
    weight of a pixel is 1."""
    share = np.maximum(counts / max(counts.sum(), 1), NONE_COUNTS)
    weights = share**-rare
    return (weights / (share * weights).sum()).astype(np.float32)
