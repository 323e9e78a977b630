"""Choices that a run makes before its first step, and writes into the recipe: a preprocessing for images
that do not have three channels, an augmentation that preserves the classes, and a precision that suits
the device.

A run that continues does not choose again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import get_args

import torch

from vitkit.data import Augmentation, Preprocessing, Source, sided, square_before_crop
from vitkit.evaluation import Survival, surviving, surviving_in_pixels
from vitkit.models import ModelConfig, ViTConfig
from vitkit.recipes import Recipe, Say
from vitkit.recipes.channels import fitted
from vitkit.system.console.text import counted, some
from vitkit.system.errors import BadRun, VitkitError
from vitkit.system.machine import Precision, autocast, pick_precision
from vitkit.system.processes.ranks import from_rank_0
from vitkit.training.data import RunData, divide, open_to_divide
from vitkit.training.state.checkpoints import earlier_call
from vitkit.weights import fitted_to, load_for, preprocessing_for

SIDE = 64  # longest side, in pixels, of images for a test of the augmentation without a model
TOKENS = 64  # tokens of an image for a test with the pre-trained model, which is then three times as fast


# Channels


def with_channels(recipe: Recipe, say: Say) -> Recipe:
    """The recipe with a preprocessing for its model's number of channels, from `fitted`, if it has one for
    another number. Raises VitkitError for images that cannot be found or measured."""
    preprocessing = recipe.data.preprocessing
    if recipe.model.channels == preprocessing.channels or not recipe.data.source:
        return recipe
    splits = open_to_divide(recipe.data, typed=True)
    train = divide(splits, recipe.data)["train"]
    preprocessing = from_rank_0(lambda: fitted(preprocessing, recipe.model.channels, train, say))
    return replace(recipe, data=replace(recipe.data, preprocessing=preprocessing))


# Augmentation


def with_recorded_augmentation(recipe: Recipe, run_dir: Path) -> Recipe:
    """The recipe with the augmentation that an earlier call of the run chose; unchanged if the run is
    new."""
    if not recipe.data.augmentation.auto:
        return recipe
    earlier = earlier_call(run_dir)
    if not earlier.trained or "data" not in earlier.recipe:
        return recipe
    try:
        decided = Augmentation(**earlier.recipe["data"]["augmentation"])
    except (TypeError, ValueError, KeyError) as error:
        raise BadRun(
            f"{run_dir}: the augmentation in recipe.json is damaged ({error}); choose another `workdir`"
        ) from None
    return _with(recipe, decided)


def about_mirroring(recipe: Recipe, labels: Sequence[str]) -> Iterator[str]:
    """Yields a sentence if training images are mirrored, and the names of classes say that this changes them."""
    names = sided(labels)
    if recipe.data.augmentation.flip and names:
        yield (
            f"images are mirrored, and {some(names, 3)} may not be the same then: "
            "`data.augmentation.flip=False` does not mirror"
        )


def with_augmentation(recipe: Recipe, data: RunData, device: torch.device, say: Say) -> Recipe:
    """A resolved recipe with an augmentation that preserves the classes. Prints what it switches off, and
    why."""
    augmentation = recipe.data.augmentation
    if not augmentation.auto:
        return recipe
    if recipe.model.classes < 2 or data.facts.target_kind != "class":
        say("the augmentation is not tested: that needs images of one class each")
        return _with(recipe, replace(augmentation, auto=False))
    survival = from_rank_0(lambda: _survival(recipe, data.train, device))
    say(about_survival(survival))
    return _with(recipe, replace(survival.augmentation, auto=False))


def _with(recipe: Recipe, augmentation: Augmentation) -> Recipe:
    return replace(recipe, data=replace(recipe.data, augmentation=augmentation))


def _survival(recipe: Recipe, train: Source, device: torch.device) -> Survival:
    """Test the augmentation with the initial weights of a run, on small images; for a run from scratch,
    without a model."""
    if not recipe.init:
        return survival_by_pixels(recipe.data.preprocessing, train, recipe.data.augmentation)

    # The model and the augmentation at a smaller size
    asked = recipe.data.augmentation
    height, _ = recipe.model.image
    size = _small(recipe.model)
    factor = size[0] / height
    published, _ = load_for(recipe.init, recipe.model)
    # Any classes will do, because the head is not used
    smaller, _ = fitted_to(published, recipe.model.resized(size), ("a", "b"))
    preprocessing = preprocessing_for(recipe.data.preprocessing, size)
    smaller = replace(smaller.to(device), preprocessing=preprocessing)
    scaled = replace(
        asked, auto=False, resize=round(asked.resize * factor), pad=round(asked.pad * factor)
    )
    with autocast(device, recipe.arithmetic):
        survival = surviving(smaller, train, scaled)

    # The remaining augmentation at the run's image size
    remaining = survival.augmentation
    resize = 0
    if remaining.crop == asked.crop:
        resize = asked.resize
    elif remaining.crop == "resize_crop":
        resize = square_before_crop(max(recipe.model.image))
    return replace(survival, augmentation=replace(remaining, resize=resize, pad=asked.pad))


def survival_by_pixels(
    preprocessing: Preprocessing, train: Source, augmentation: Augmentation
) -> Survival:
    """Test an augmentation without a model, on images with sides of at most SIDE pixels."""
    height, width = preprocessing.size
    factor = min(1.0, SIDE / max(height, width))
    size = (round(height * factor), round(width * factor))
    smaller = preprocessing_for(preprocessing, size)
    scaled = replace(augmentation, auto=False, resize=round(augmentation.resize * factor))
    survival = surviving_in_pixels(smaller, train, scaled)
    resize = augmentation.resize
    if survival.augmentation.crop == "resize_crop" != augmentation.crop:
        resize = square_before_crop(max(preprocessing.size))
    elif survival.augmentation.crop == "none":
        resize = 0
    return replace(survival, augmentation=replace(survival.augmentation, resize=resize))


def _small(config: ModelConfig) -> tuple[int, int]:
    """An image size that gives about TOKENS tokens; the model's own size if it has no more tokens
    than that, or supports no other size."""
    if not isinstance(config, ViTConfig) or prod(config.grid) <= TOKENS:
        return config.image
    height, width = config.image
    factor = (TOKENS / prod(config.grid)) ** 0.5
    size = config.fitting((round(height * factor), round(width * factor)))
    try:
        config.resized(size)
    except VitkitError:  # such as offsets in a 1-D order, which mean nothing on another grid
        return config.image
    return size


def about_survival(survival: Survival) -> str:
    """One or two sentences about which changes were tested and which are switched off."""
    costs = []
    stays = []
    for trial in survival.trials:
        if trial.survives:
            stays.append(trial.change)
        else:
            costs.append(
                f"{trial.change} ({trial.changed:,} of {trial.images:,} images classified right with it, "
                f"{trial.whole:,} without; p = {trial.p_value:.1g})"
            )
    sentences = []
    if costs:
        sentences.append(
            f"switched off, because it does not preserve the classes: {'; '.join(costs)} "
            "(`data.augmentation.auto=False` leaves it on)"
        )
    if stays:
        count = counted(survival.trials[0].images, "image")
        sentences.append(
            f"{' and '.join(stays)} stay: on {count} they cost no answers beyond chance"
        )
    return ". ".join(sentences) or "nothing of the augmentation could change a class"


# Precision


def with_precision(recipe: Recipe, run_dir: Path, device: torch.device, say: Say) -> Recipe:
    """The recipe with a precision for "auto": the one that the run began with, else the one that suits the
    device. Prints which, and why. All ranks choose the same."""
    if recipe.precision != "auto":
        return recipe
    picked = from_rank_0(lambda: pick_precision("auto", device))
    earlier = earlier_call(run_dir)
    began_in = earlier.recipe.get("precision")
    if not earlier.trained or began_in is None or began_in not in get_args(Precision):
        say(picked.why)
        return replace(recipe, precision=picked.precision)
    if began_in != picked.precision:
        say(
            f"this run began in {began_in} and continues in it, though a new one would use "
            f"{picked.precision} on this machine"
        )
    return replace(recipe, precision=began_in)
