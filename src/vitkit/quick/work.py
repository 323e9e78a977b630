"""What every step from a folder of photographs to a model reads, and what several of them do."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitkit.data import Source
from vitkit.evaluation import Features, Metric, features
from vitkit.quick.candidates import answers_of
from vitkit.quick.folder import Photographs
from vitkit.quick.plan import Plan
from vitkit.system.machine import autocast
from vitkit.training import Recipe, Say
from vitkit.weights import Classifier, fitted_to, load_for


@dataclass(frozen=True)
class Work:
    """What every step reads."""

    recipe: Recipe
    """As it was given, but for what the head reads: its precision may be "auto", and its spans 0."""
    tuning: Recipe
    """The same for the fine-tuning, which may be at a smaller image size."""
    run_dir: Path
    photographs: Photographs
    plan: Plan
    device: torch.device
    say: Say
    began: float

    def seconds(self) -> str:
        """How long it has taken so far."""
        return f"{self.spent():.1f} s"

    def spent(self) -> float:
        """Seconds that it has taken so far."""
        return time.monotonic() - self.began


def pretrained(work: Work, recipe: Recipe, labels: Sequence[str]) -> Classifier:
    """The pre-trained model with a head of zeros for these classes, for the recipe's images."""
    published, _ = load_for(recipe.init, recipe.model)
    fitted, _ = fitted_to(published, recipe.model, labels)
    return replace(fitted.to(work.device), preprocessing=recipe.data.preprocessing)


def features_of(work: Work, classifier: Classifier, source: Source) -> Features:
    """The features of images, from the cache if they are there."""
    with autocast(work.device, work.plan.precision):
        found = features(classifier.for_inference(), source)
    broken = np.flatnonzero(~np.isfinite(found.x).all(1))
    if len(broken):
        raise ValueError(
            f"{work.recipe.init} gives NaN or infinity for {len(broken):,} of {len(found.x):,} "
            f"images, {source.name(broken[0])} for example, so nothing can be fitted to them"
        )
    return found


def answers(work: Work, classifier: Classifier, source: Source) -> Tensor:
    """The logits of a model for every image, float32 (N, K)."""
    with autocast(work.device, work.plan.precision):
        return answers_of(classifier, source)


def described(work: Work, classifier: Classifier, name: str, metric: Metric) -> Classifier:
    """The classifier with where it comes from."""
    origin = {
        "recipe": work.recipe.name,
        "init": work.recipe.init,
        "head": name,
        "data": work.recipe.data.source,
        "metrics": {metric.name: metric.text()},
        "split_seed": work.recipe.data.split_seed,
    }
    if work.photographs.made_fingerprint:
        origin["held_out"] = work.photographs.made_fingerprint
    return replace(classifier, origin=origin)
