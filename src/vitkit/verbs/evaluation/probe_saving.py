"""The model with its new head, and what other verbs need of it."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from vitkit.data import Source, is_elsewhere
from vitkit.evaluation import (
    Features,
    Memory,
    Metric,
    Probe,
    Probing,
    fit_unknown,
    remembered,
    with_probe,
)
from vitkit.verbs.arguments import word_of
from vitkit.weights import Classifier

if TYPE_CHECKING:
    from vitkit.verbs.evaluation.probe import FitProbe


@dataclass(frozen=True, eq=False)
class Fitted:
    """A probe, and all that it was fitted to."""

    probing: Probing
    probe: Probe
    source: Source
    """The images to learn from."""
    learned: Features
    """Their features and targets."""
    precision: str
    """In which they were computed."""
    metrics: list[Metric]
    """What it reaches."""
    held_out: str | None
    """The fingerprint of a test part that was made, by which `vitkit evaluate` knows it again."""
    parts: tuple[str, ...]
    """Fingerprints of the parts of the data that it learned from, so that `vitkit evaluate` can say
    so."""


def with_fitted(
    settings: "FitProbe", classifier: Classifier, fitted: Fitted
) -> tuple[Classifier, Memory | None]:
    """A model with the head. A linear head of images of one class each goes with what it learned from,
    to be taught more, and with limits by which images are unknown."""
    # The left-out answers of the other methods are no exact ones
    learned = fitted.learned
    memory = None
    unknown = None
    if settings.method == "linear" and fitted.probing.kind == "class":
        x, classes = torch.tensor(learned.x), torch.tensor(learned.y)
        unknown = fit_unknown(x, classes, fitted.probe.left_out)
        if not is_elsewhere(fitted.source):
            labels = fitted.probing.labels
            memory = remembered(fitted.source, learned, labels, fitted.precision)

    headless = replace(classifier.to("cpu"), origin=_origin(settings, fitted), unknown=unknown)
    probing = fitted.probing
    return with_probe(headless, fitted.probe, probing.labels, probing.activation), memory


def _origin(settings: "FitProbe", fitted: Fitted) -> dict:
    """Where the model comes from."""
    origin = {
        "init": word_of(settings.model),
        "head": f"{settings.method} probe, temperature {fitted.probe.temperature:.3g}",
        "data": settings.data,
        "metrics": {metric.name: metric.text() for metric in fitted.metrics},
        "split_seed": 0,
        "learned": list(fitted.parts),
    }
    if fitted.held_out:
        origin["held_out"] = fitted.held_out
    return origin
