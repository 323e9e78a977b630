"""What a probe learns of a data set, whatever its targets are: one class an image, several, or a number.

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

NUMBER = ("0",)  # the one output of a head for numbers, as training calls it
ACTIVATIONS: dict[TargetKind, Activation] = {
    "class": "softmax",
    "classes": "sigmoid",
    "number": "none",
}


class MeasuredOn(NamedTuple):
    """Images that a probe is measured on."""

    found: Features
    """Their features, and targets as the head has its outputs."""
    groups: np.ndarray | None
    """The number of each image's group, (N,); None if each is alone."""


@dataclass(frozen=True, eq=False)
class Probing:
    """The targets and outputs of a probe's head."""

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
        """The probing for these images: what can be learned from them. Raises VitkitError for
        fewer than two classes, if an image has one; for none, if it may have several; and for
        images without labels."""
        kind = source.target_kind
        if kind == "none":
            raise BadData("images without labels teach no head")
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
            balanced = unbalanced(np.bincount(targets)[known])
        return cls(kind, tuple(source.labels[k] for k in known), known, balanced)

    @property
    def activation(self) -> Activation:
        """How the head's logits become probabilities."""
        return ACTIVATIONS[self.kind]

    def targets(self, source: Source, found: Features) -> Features:
        """Features of the source's images, with targets as the head has its outputs: for one class
        each its number, -1 for an unknown one; for several, ones, zeros, and NaN where nothing is known
        (N, K); or the numbers."""
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

    def fit(
        self,
        method: Method,
        learned: Features,
        groups: np.ndarray | None = None,
        products: Tensor | None = None,
    ) -> Probe:
        """The head for features (N, D) and targets as `targets` gives them. Examples of one group, by
        its number (N,), are left out together. `products`: of each two rows, if they were computed
        (`row_products`). Raises VitkitError as the probes do, and for several
        classes or numbers by another method than linear."""
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
        """The metrics of predictions (N, K), under this name; by the first of them a head is judged. Those
        for images of one group, by its number (N,), are not independent."""
        return quality(name, predictions, y, kind=self.kind, balanced=self.balanced, groups=groups)

    def left_out_quality(
        self, fitted: Probe, y: np.ndarray, groups: np.ndarray | None = None
    ) -> Iterator[Metric]:
        """The metrics of the left-out predictions; by the first of them a head is judged. Those for images
        of one group, by its number (N,), are not independent."""
        return left_out_quality(fitted, y, kind=self.kind, balanced=self.balanced, groups=groups)

    def qualities(
        self,
        fitted: Probe,
        learned: Features,
        measured: Mapping[str, MeasuredOn],
        groups: np.ndarray | None = None,
    ) -> list[Metric]:
        """How good the left-out predictions are, for images in these groups, (N,); and those for other
        parts, by the part's name."""
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
        """Sentences about what a perfectly calibrated model would show of a calibration error on the
        images of `qualities`; none if these have no calibration error."""
        if self.kind != "class":
            return []
        logits = {}
        for name, part in measured.items():
            logits[name] = (fitted.logits(torch.tensor(part.found.x)), part.groups)
        return chance_sentences(fitted, groups, logits)


def known_classes(source: Source) -> np.ndarray:
    """The classes that images have, ascending. Raises VitkitError if there are fewer than two."""
    classes = np.unique(source.target_array)
    if len(classes) < 2:
        names = ", ".join(source.labels[number] for number in classes) or "no class"
        raise BadData(
            f"all there is to learn from, {counted(len(source), 'image')}, has {names}; a classifier "
            "needs two classes or more"
        )
    return classes
