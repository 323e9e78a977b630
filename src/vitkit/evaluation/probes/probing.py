"""Probes for any kind of targets: one class per image, several classes, or a number.

Legend: N examples, D width, K outputs of the head.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.data import Lists, Source, TargetKind
from vitkit.evaluation.metrics.classification import unbalanced
from vitkit.evaluation.metrics.metric import Metric
from vitkit.evaluation.probes.features import Features
from vitkit.evaluation.probes.probe import Method, Probe, fit_probe, number_probe, several_probe
from vitkit.evaluation.probes.quality import chance_sentences, left_out_quality, quality
from vitkit.system.console.text import counted
from vitkit.system.errors import BadData
from vitkit.weights import Activation

NUMBER = ("0",)  # label of the single output of a head for numbers, the same as in training
ACTIVATIONS: dict[TargetKind, Activation] = {
    "class": "softmax",
    "classes": "sigmoid",
    "number": "none",
}


class MeasuredOn(NamedTuple):
    """Images that a probe is measured on."""

    found: Features
    """Features of the images, and targets in the order of the head's outputs."""
    groups: np.ndarray | None
    """The number of each image's group, (N,); None if all images are independent."""


@dataclass(frozen=True, eq=False)
class Probing:
    """The targets and outputs of a probe's head."""

    kind: TargetKind
    """The kind of the targets."""
    labels: tuple[str, ...]
    """Names of the outputs."""
    known: np.ndarray
    """Indices of the data's classes that occur among the images to learn from, ascending; none for
    numbers."""
    balanced: bool = False
    """Whether the main metric is balanced accuracy, because the classes are of unequal size."""

    @classmethod
    def of(cls, source: Source) -> "Probing":
        """The targets and outputs of a head for these images. Raises VitkitError for images without
        labels; for one class per image, if there are fewer than two; and for several, if there are none."""
        kind = source.target_kind
        if kind == "none":
            raise BadData("a head cannot be fitted to images without labels")
        if kind == "number":
            return cls(kind, NUMBER, np.zeros(0, np.int64))
        balanced = False
        targets = source.targets
        if isinstance(targets, Lists):  # several classes an image
            known = np.unique(targets.values).astype(np.int64)
            if not len(known):
                raise BadData("no image to learn from has any class, so there is nothing to learn")
        else:
            known = known_classes(source)
            balanced = unbalanced(np.bincount(source.target_array)[known])
        return cls(kind, tuple(source.labels[k] for k in known), known, balanced)

    @property
    def activation(self) -> Activation:
        """The activation that turns the head's logits into probabilities."""
        return ACTIVATIONS[self.kind]

    def targets(self, source: Source, found: Features) -> Features:
        """Features of the source's images, with targets in the order of the head's outputs: for one class
        each its index, or -1 if the head does not know it, (N,); for several, ones, zeros, and NaN where
        unknown, (N, K); or the numbers."""
        if self.kind == "class":
            number = np.full(len(source.labels), -1)
            number[self.known] = np.arange(len(self.known))
            return Features(found.x, number[found.y])
        if self.kind == "classes":
            return Features(found.x, found.y[:, self.known])
        return found

    def unknown_in(self, source: Source) -> int:
        """The number of images with a class that the head does not know."""
        missing = np.setdiff1d(np.arange(len(source.labels)), self.known)
        if self.kind == "number" or not len(missing):
            return 0
        if isinstance(source.targets, Lists):
            owners = source.targets.owners[np.isin(source.targets.values, missing)]
            return len(np.unique(owners))
        return int(np.isin(source.target_array, missing).sum())

    def fit(
        self,
        method: Method,
        learned: Features,
        groups: np.ndarray | None = None,
        products: Tensor | None = None,
    ) -> Probe:
        """Fit a head to features (N, D) and targets from `targets`.

        groups: examples with the same number, (N,), are left out together.
        products: Gram matrix of the features, if it was computed (`row_products`).

        Raises VitkitError as `fit_probe` does, and for several classes or numbers by another method than
        linear.
        """
        if self.kind == "class":
            count = len(self.labels)
            return fit_probe(method, learned.x, learned.y, count, self.balanced, groups, products)
        if method != "linear":
            what = {"classes": "several classes", "number": "a number"}[self.kind]
            raise BadData(
                f"{method} is for images of one class each, and these have {what}; linear is the "
                "method for them"
            )
        if self.kind == "classes":
            return several_probe(learned.x, learned.y, groups, products)
        return number_probe(learned.x, learned.y, groups, products)

    def quality(
        self, name: str, predictions: Tensor, y: np.ndarray, groups: np.ndarray | None = None
    ) -> Iterator[Metric]:
        """Yields the metrics of predictions (N, K), whose names begin with `name`; the first is the main
        metric. groups: images with the same number, (N,), are not independent."""
        return quality(name, predictions, y, kind=self.kind, balanced=self.balanced, groups=groups)

    def left_out_quality(
        self, fitted: Probe, y: np.ndarray, groups: np.ndarray | None = None
    ) -> Iterator[Metric]:
        """Yields the metrics of the cross-validated predictions; the first is the main metric. groups:
        images with the same number, (N,), are not independent."""
        return left_out_quality(fitted, y, kind=self.kind, balanced=self.balanced, groups=groups)

    def qualities(
        self,
        fitted: Probe,
        learned: Features,
        measured: Mapping[str, MeasuredOn],
        groups: np.ndarray | None = None,
    ) -> list[Metric]:
        """The metrics of the cross-validated predictions, for images in these groups, (N,); and of the
        predictions for other parts, by the part's name."""
        metrics = list(self.left_out_quality(fitted, learned.y, groups))
        for name, part in measured.items():
            logits = fitted.logits(torch.tensor(part.found.x))
            metrics += self.quality(name, logits, part.found.y, part.groups)
        return metrics

    def chance(
        self,
        fitted: Probe,
        measured: Mapping[str, MeasuredOn],
        groups: np.ndarray | None = None,
    ) -> list[str]:
        """Sentences about the calibration error that a perfectly calibrated model has by chance on the
        images of `qualities`; none for targets without a calibration error."""
        if self.kind != "class":
            return []
        logits = {}
        for name, part in measured.items():
            logits[name] = (fitted.logits(torch.tensor(part.found.x)), part.groups)
        return chance_sentences(fitted, groups, logits)


def known_classes(source: Source) -> np.ndarray:
    """The classes that occur, ascending. Raises VitkitError if there are fewer than two."""
    classes = np.unique(source.target_array)
    if len(classes) < 2:
        names = ", ".join(source.labels[number] for number in classes) or "no class"
        raise BadData(
            f"the data to learn from, {counted(len(source), 'image')}, has {names}; a classifier "
            "needs two classes or more"
        )
    return classes
