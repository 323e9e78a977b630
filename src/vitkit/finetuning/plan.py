"""The plan of a quick run: decisions that depend on the machine and on the time left, and the inputs that
every step shares.

The plan is saved before the fine-tuning, so that an interrupted run continues with the same decisions.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from vitkit.data import Source, fingerprint
from vitkit.evaluation import Features, Metric, compute_features
from vitkit.finetuning.candidates import answers_of
from vitkit.finetuning.folder import Photographs
from vitkit.models import POOLS, FeatureSet
from vitkit.recipes import Recipe, Say
from vitkit.system.errors import BadWeights
from vitkit.system.machine import Precision, autocast
from vitkit.system.processes.ranks import from_rank_0
from vitkit.system.storage.addresses import shown_address
from vitkit.system.storage.files import NUMBER, Types, check_types, parse_json, write_json
from vitkit.training import Occupied, differences, is_run, to_json, with_defaults
from vitkit.training.data import group_setting
from vitkit.training.record.values import check_recipe
from vitkit.weights import Classifier, fitted_to, load_for

PLAN = "plan.json"  # in the run directory


class OtherPlan(Occupied):
    """The directory holds a run with other settings, or on other images."""


class RunPlan(NamedTuple):
    """The decisions that must stay the same when a run continues, and the inputs for which they
    were made."""

    steps: int | None
    """Number of fine-tuning steps; None until decided."""
    precision: Precision
    minutes: float
    recipe: dict
    """Recipe of the call, as plain values."""
    images: str
    """Fingerprint of the training images."""
    seconds_of_a_step: float = 0.0
    """Measured seconds per fine-tuning step when `steps` was decided."""
    compiled: bool = False
    """Whether the fine-tuning runs through torch.compile; decided with `steps`."""
    pool: str | None = None
    """Pooling of the head's input in plans of earlier versions; replaced by `reading`."""
    reading: FeatureSet | None = None
    """Feature set of the head: a pooling and a number of blocks; None until decided."""
    portable: bool = False
    """Whether the head is limited to features that other libraries support, even at a loss of
    accuracy."""
    native: bool | None = None
    """Whether images keep their own proportions for the closed-form head, even if the recipe crops them;
    None until decided."""


TYPES: Types = {
    "steps": int, "precision": str, "minutes": NUMBER, "recipe": dict, "images": str,
    "seconds_of_a_step": NUMBER, "compiled": bool, "pool": str, "reading": list, "portable": bool, "native": bool,
}  # fmt: skip


def read_plan(run_dir: Path) -> RunPlan | None:
    """The plan in a directory; None if there is none, or it is damaged."""
    try:
        values = parse_json((run_dir / PLAN).read_bytes())
        if not isinstance(values, dict):
            return None
        plan = RunPlan(**values)
        check_types(plan._asdict(), TYPES)
        check_recipe(plan.recipe)
        if plan.precision not in get_args(Precision):
            return None
        if not isinstance(plan.recipe["data"]["source"], str):
            return None
        if plan.reading is not None:
            pool, blocks = plan.reading
            check_types({"pool": pool, "blocks": blocks}, {"pool": str, "blocks": int})
            return plan._replace(reading=FeatureSet(POOLS[pool].name, blocks))
        if plan.pool is not None:  # a plan of an earlier version
            return plan._replace(reading=FeatureSet(POOLS[plan.pool].name))
    except (OSError, TypeError, ValueError, KeyError):
        return None
    return plan


def write_plan(run_dir: Path, plan: RunPlan) -> None:
    """Write the plan into a directory."""
    from_rank_0(lambda: write_json(run_dir / PLAN, plan._asdict()))


def earlier_plan(
    run_dir: Path, recipe: Recipe, photographs: Photographs, minutes: float, portable: bool
) -> RunPlan | None:
    """The plan of an earlier call; None if there is none. Raises OtherPlan if its settings differ."""
    plan = from_rank_0(lambda: read_plan(run_dir))
    if plan is None:
        if from_rank_0(lambda: is_run(run_dir)):
            raise OtherPlan(f"{run_dir} holds a run of vitkit train, or of a preset")
        return None
    changed = differences(with_defaults(plan.recipe, recipe), to_json(recipe))
    if plan.minutes != minutes:
        changed.append(f"minutes: {plan.minutes:g}, now {minutes:g}")
    if plan.portable != portable:
        changed.append(f"portable: {plan.portable}, now {portable}")
    if plan.images != fingerprint(photographs.learned):
        changed.append("its images are others, or have changed")
    if changed:
        raise OtherPlan(f"{run_dir} was begun with other settings ({'; '.join(changed[:5])})")
    return plan


def same_place(one: str, other: str) -> bool:
    """Whether two names of data sets lead to the same place."""
    one, other = map(shown_address, (one, other))
    return one == other or Path(one).resolve() == Path(other).resolve()


# Inputs of every step, and functions that several steps share


@dataclass(frozen=True)
class RunInputs:
    """The inputs of every step."""

    recipe: Recipe
    """Recipe of the call with the head's feature set filled in. Its precision may be "auto", its
    spans 0."""
    tuning: Recipe
    """Recipe of the fine-tuning, which may use a smaller image size."""
    run_dir: Path
    photographs: Photographs
    plan: RunPlan
    device: torch.device
    say: Say
    began: float

    def seconds(self) -> str:
        """The elapsed time, as text."""
        return f"{self.spent():.1f} s"

    def spent(self) -> float:
        """Elapsed time in seconds."""
        return time.monotonic() - self.began


def pretrained(work: RunInputs, recipe: Recipe, labels: Sequence[str]) -> Classifier:
    """The pre-trained model with an all-zero head for these classes, for the recipe's images."""
    published, _ = load_for(recipe.init, recipe.model)
    fitted, _ = fitted_to(published, recipe.model, labels)
    return replace(fitted.to(work.device), preprocessing=recipe.data.preprocessing)


def features_of(work: RunInputs, classifier: Classifier, source: Source) -> Features:
    """The features of images, from the cache if possible."""
    with autocast(work.device, work.plan.precision):
        found = compute_features(classifier.for_inference(), source)
    broken = np.flatnonzero(~np.isfinite(found.x).all(1))
    if len(broken):
        raise BadWeights(
            f"{work.recipe.init} gives NaN or infinity for {len(broken):,} of {len(found.x):,} "
            f"images, {source.name(broken[0])} for example, so nothing can be fitted to them"
        )
    return found


def answers(work: RunInputs, classifier: Classifier, source: Source) -> Tensor:
    """The logits of a model for every image, float32 (N, K)."""
    with autocast(work.device, work.plan.precision):
        return answers_of(classifier, source)


def with_origin(work: RunInputs, classifier: Classifier, name: str, metric: Metric) -> Classifier:
    """The classifier with its provenance."""
    origin = {
        "recipe": work.recipe.name,
        "init": work.recipe.init,
        "head": name,
        "data": work.recipe.data.source,
        "metrics": {metric.name: metric.text()},
        "split_seed": work.recipe.data.split_seed,
        "groups": group_setting(work.recipe.data),
    }
    if work.photographs.made_fingerprint:
        origin["held_out"] = work.photographs.made_fingerprint
    return replace(classifier, origin=origin)
