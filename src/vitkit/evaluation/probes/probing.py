"""What a probe learns of a data set, whatever its targets are: one class an image, several, or a
number.

Legend: N examples, D width, K outputs of the head.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitkit.data import Lists, Source, TargetKind
from vitkit.evaluation.metrics.confusion import unbalanced
from vitkit.evaluation.metrics.metric import Metric
from vitkit.evaluation.probes.features import Features
from vitkit.evaluation.probes.other_probes import (
    number_probe,
    quality_of_numbers,
    quality_of_several,
    several_probe,
)
from vitkit.evaluation.probes.probe import (
    Method,
    Probe,
    balanced_quality,
    known_classes,
    probe,
    quality,
)
from vitkit.weights import Activation

NUMBER = ("0",)  # the one output of a head for numbers, as training calls it
ACTIVATIONS: dict[TargetKind, Activation] = {
    "class": "softmax",
    "classes": "sigmoid",
    "number": "none",
}


@dataclass(frozen=True, eq=False)
class Probing:
    """What the head of a probe answers."""

    kind: TargetKind
    """What the target of an image is."""
    labels: tuple[str, ...]
    """A name for each output."""
    known: np.ndarray
    """The data's classes that an image to learn from has, ascending; none for numbers."""
    balanced: bool = False
    """Whether answers are judged by balanced accuracy, because the classes are of unequal size."""

    @classmethod
    def of(cls, source: Source) -> "Probing":
        """What can be learned from these images. Raises ValueError for fewer than two classes, if an
        image has one; for none, if it may have several; and for images without labels."""
        kind = source.target_kind
        if kind == "none":
            raise ValueError("images without labels teach no head")
        if kind == "number":
            return cls(kind, NUMBER, np.zeros(0, np.int64))
        balanced = False
        if kind == "class":
            known = known_classes(source)
            balanced = unbalanced(np.bincount(source.targets)[known])
        else:
            known = np.unique(source.targets.values).astype(np.int64)
            if not len(known):
                raise ValueError(
                    "no image to learn from has any class, so there is nothing to learn"
                )
        return cls(kind, tuple(source.labels[k] for k in known), known, balanced)

    @property
    def activation(self) -> Activation:
        """How the head's logits become probabilities."""
        return ACTIVATIONS[self.kind]

    def targets(self, source: Source, found: Features) -> Features:
        """Features of the source's images, with targets as the head has its outputs: for one class
        each its number, -1 for an unknown one; for several, ones and zeros (N, K); or the numbers."""
        if self.kind == "class":
            number = np.full(len(source.labels), -1)
            number[self.known] = np.arange(len(self.known))
            return Features(found.x, number[found.y])
        if self.kind == "classes":
            return Features(found.x, found.y[:, self.known])
        return found

    def unknown_in(self, source: Source) -> int:
        """How many images have a class that the head does not know."""
        missing = np.setdiff1d(np.arange(len(source.labels)), self.known)
        if self.kind == "number" or not len(missing):
            return 0
        if isinstance(source.targets, Lists):
            owners = source.targets.owners[np.isin(source.targets.values, missing)]
            return len(np.unique(owners))
        return int(np.isin(source.targets, missing).sum())

    def fit(self, method: Method, learned: Features) -> Probe:
        """The head for features (N, D) and targets as `targets` gives them. Raises ValueError as the
        probes do, and for several classes or numbers by another method than linear."""
        if self.kind == "class":
            return probe(method, learned.x, learned.y, len(self.labels))
        if method != "linear":
            what = {"classes": "several classes", "number": "a number"}[self.kind]
            raise ValueError(
                f"{method} is for images of one class each, and these have {what}; linear is the "
                "method for them"
            )
        if self.kind == "classes":
            return several_probe(learned.x, learned.y)
        return number_probe(learned.x, learned.y)

    def quality(self, name: str, answers: Tensor, y: np.ndarray) -> list[Metric]:
        """How good answers (N, K) to images with these targets are, under this name; the first is what
        they are judged by."""
        if self.kind == "class":
            metrics = quality(name, answers, y)
            if self.balanced and metrics:
                metrics.insert(0, balanced_quality(name, answers, y))
            return metrics
        if self.kind == "classes":
            return quality_of_several(name, answers, y)
        return quality_of_numbers(name, answers, y)

    def qualities(
        self, fitted: Probe, learned: Features, measured: dict[str, Features]
    ) -> list[Metric]:
        """How good the left-out answers are, and those to images that were not learned from, by the
        name of their part."""
        answered = fitted.left_out.isfinite().all(1)
        metrics = self.quality("left_out", fitted.left_out[answered], learned.y[answered.numpy()])
        for name, (x, y) in measured.items():
            metrics += self.quality(name, fitted.logits(torch.tensor(x)), y)
        return metrics
