"""The choice between models that classify every pixel: by the mean IoU of held-out images, as for classes by their
accuracy (candidates.py).

Legend: N images, K classes.
"""

from typing import NamedTuple

import numpy as np

from vitkit.evaluation import Metric, SegmentationScores
from vitkit.evaluation.metrics.metric import resampled
from vitkit.runtimes import segments
from vitkit.weights import Classifier

CLOSED_FORM = "closed form"
FINE_TUNED = "fine-tuned"
AVERAGE = "average of both"


LEARNED_MASKS = "backbone_learned_masks"  # in the provenance of a model


def has_learned_masks(classifier: Classifier) -> bool:
    """Whether the backbone of a model has learned from masks, in its last training or an earlier one: it may
    remember them, whatever its head is."""
    if classifier.origin.get(LEARNED_MASKS):
        return True
    return segments(classifier) and classifier.origin.get("head") != CLOSED_FORM


class Candidate(NamedTuple):
    """A model, and how good it is on the held-out images."""

    name: str
    classifier: Classifier
    scores: SegmentationScores

    @property
    def held_out(self) -> Metric:
        """The mean IoU on the held-out images."""
        first = next(self.scores.metrics(each_class=False))
        return first.within("held_out")


class Gain(NamedTuple):
    """The mean IoU of a model minus that of another one, on the same images."""

    value: float
    standard_error: float
    """By resampling images; those of a group are drawn together."""


def gain(first: SegmentationScores, other: SegmentationScores) -> Gain:
    """How much better the other model is than the first."""
    every = np.arange(len(first))
    whole = [scores.iou() for scores in (first, other)]

    def difference(rows: np.ndarray) -> np.ndarray:
        # A class that a draw does not have keeps its value of all images, so that every draw has the same classes
        own = [
            np.where(np.isnan(iou), of_all, iou)
            for iou, of_all in zip((first.iou(rows), other.iou(rows)), whole, strict=True)
        ]
        means = [np.nanmean(iou) for iou in own]
        return np.array([means[1] - means[0]])

    draws = resampled(difference, len(first), groups=first.groups)
    return Gain(float(difference(every)[0]), float(draws.std()))


def best(candidates: list[Candidate]) -> Candidate:
    """The candidate with the highest mean IoU, if it is better than the first one by more than chance: by more than
    the standard error of the difference. Otherwise the first one, which has learned from all images."""
    first = candidates[0]
    chosen = max(candidates, key=lambda each: each.held_out.value)
    if chosen is first:
        return first
    better = gain(first.scores, chosen.scores)
    if better.value > better.standard_error:
        return chosen
    return first
