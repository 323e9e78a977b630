"""Augmentation that asks the labels (`data.augmentation.auto`): what is decided before the first step,
said, and written into the recipe. A run that continues does not decide again."""

from dataclasses import replace
from math import prod
from pathlib import Path

import torch

from vitkit.data import Augmentation, square_before_crop
from vitkit.evaluation import Survival, Trial, surviving
from vitkit.models import ModelConfig, ViTConfig
from vitkit.system.console.text import counted
from vitkit.system.machine import autocast
from vitkit.system.processes.ranks import from_rank_0
from vitkit.training.data import RunData, Say
from vitkit.training.recipe import Recipe
from vitkit.training.state.earlier import earlier_call
from vitkit.weights import fitted_to, load_for, preprocessing_for

TOKENS = 64  # of an image that the pre-trained model is asked about: it takes a third of the time


def as_decided(recipe: Recipe, run_dir: Path) -> Recipe:
    """The recipe with the augmentation that an earlier call of the run has decided on; as it is if
    none has. Raises ValueError if there are no weights to ask."""
    augmentation = recipe.data.augmentation
    if not augmentation.auto:
        return recipe
    if not recipe.init:
        raise ValueError(
            "--data.augmentation.auto asks a pre-trained model what the classes survive, and this run "
            "begins with none; leave it out, or give weights with --init"
        )
    earlier = earlier_call(run_dir)
    if not earlier.trained or "data" not in earlier.recipe:
        return recipe
    return _with(recipe, Augmentation(**earlier.recipe["data"]["augmentation"]))


def with_augmentation(recipe: Recipe, data: RunData, device: torch.device, say: Say) -> Recipe:
    """A resolved recipe with an augmentation whose changes the classes survive. Says what was switched
    off, and why."""
    augmentation = recipe.data.augmentation
    if not augmentation.auto:
        return recipe
    kept = replace(augmentation, auto=False)
    if recipe.model.classes < 2 or data.facts.target_kind != "class":
        say("the augmentation stays as it is: only images of one class each can be asked about it")
        return _with(recipe, kept)
    survival = from_rank_0(lambda: _ask(recipe, data, device))
    say(sentence(survival))
    return _with(recipe, replace(survival.augmentation, auto=False))


def _with(recipe: Recipe, augmentation: Augmentation) -> Recipe:
    return replace(recipe, data=replace(recipe.data, augmentation=augmentation))


def _ask(recipe: Recipe, data: RunData, device: torch.device) -> Survival:
    """What the run's published weights say, on images of few tokens."""
    published, _ = load_for(recipe.init, recipe.model)
    size = _small(recipe.model)
    smaller, _ = fitted_to(published, recipe.model.resized(size), ("a", "b"))  # no head is asked
    preprocessing = preprocessing_for(recipe.data.preprocessing, size)
    smaller = replace(smaller.to(device), preprocessing=preprocessing)
    asked = recipe.data.augmentation
    factor = size[0] / recipe.model.image[0]
    resize = round(asked.resize * factor)
    scaled = replace(asked, auto=False, resize=resize, pad=round(asked.pad * factor))
    with autocast(device, recipe.precision):
        survival = surviving(smaller, data.train, scaled)
    whole = _at_size(survival.augmentation, asked, recipe.model.image)
    return replace(survival, augmentation=whole)


def _at_size(scaled: Augmentation, asked: Augmentation, image: tuple[int, int]) -> Augmentation:
    """What is left of an augmentation that was scaled for smaller images, for those of a run."""
    resize = 0
    if scaled.crop == asked.crop:
        resize = asked.resize
    elif scaled.crop == "resize_crop":
        resize = square_before_crop(max(image))
    return replace(scaled, resize=resize, pad=asked.pad)


def _small(config: ModelConfig) -> tuple[int, int]:
    """The size of images of about TOKENS tokens, or the model's own if it has no more, or knows no
    other size."""
    tokens = 0  # of any other model
    if isinstance(config, ViTConfig):
        tokens = prod(config.grid)
    if tokens <= TOKENS:
        return config.image
    height, width = config.image
    factor = (TOKENS / tokens) ** 0.5
    size = config.fitting((round(height * factor), round(width * factor)))
    try:
        config.resized(size)
    except ValueError:  # offsets of a 1-D order have no meaning on another grid
        return config.image
    return size


def sentence(survival: Survival) -> str:
    """What was tried and is switched off, in one or two sentences."""
    lost = [trial for trial in survival.trials if not trial.survives]
    stays = [trial.change for trial in survival.trials if trial.survives]
    sentences = []
    if lost:
        texts = [_costs(trial) for trial in lost]
        sentences.append(
            f"switched off, because the classes do not survive it: {'; '.join(texts)} "
            "(--data.augmentation.auto False leaves it on)"
        )
    if stays:
        count = counted(survival.trials[0].images, "image")
        sentences.append(
            f"{' and '.join(stays)} stay: on {count} they cost no answers beyond chance"
        )
    return ". ".join(sentences) or "nothing of the augmentation could change a class"


def _costs(trial: Trial) -> str:
    """What a change costs."""
    return (
        f"{trial.change} ({trial.changed:,} of {trial.images:,} can be told then, "
        f"{trial.whole:,} as they are; p = {trial.p_value:.1g})"
    )
