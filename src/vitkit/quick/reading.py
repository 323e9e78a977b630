"""What the head of the models of a folder reads: the class token (Eq. 4), or with it the means of the
patches in the four quarters of the image.

A class token says what is in a photograph and hardly where. Where labels are about that (the upper left,
a sign's hand), quarters tell more. They are taken only where they clearly do: with them a model is a
little slower, and other libraries do not have it.

Legend: N images, D width of the model, K outputs of the head.
"""

from dataclasses import replace
from typing import NamedTuple

import torch

from vitkit.evaluation import Features, Probe, Probing
from vitkit.models import ModelConfig, ViTConfig
from vitkit.quick.candidates import (
    best,
    best_by_others,
    candidate,
    image_weights,
    question,
    solved,
)
from vitkit.quick.plan import Work, features_of, pretrained, write_plan
from vitkit.system.processes.ranks import from_rank_0
from vitkit.training import Recipe
from vitkit.weights import Classifier

TOKEN = "token"
QUARTERS = "token-quarters"
STATES = 5  # of D numbers, that a head reads with quarters
MOST = 2**24  # numbers of such features up to which quarters are tried: 128 MiB of float64
CLEARLY = 3  # standard errors by which they must be better


class Reading(NamedTuple):
    """What the head reads of the images to learn from, and the head that is solved for on it."""

    asked: Probing
    bare: Classifier
    """The pre-trained model with a head of zeros."""
    learned: Features
    whole: Probe


def read(work: Work) -> Reading:
    """The features of all images to learn from, and the head on them; of the class token, or with the
    quarters if these are clearly better, by answers to each image by a fit without it. An earlier call's
    decision stays. Says so if quarters are taken."""
    photographs = work.photographs
    balanced = work.recipe.objective.class_weights == "balanced"
    asked = question(photographs.target_kind, photographs.labels, balanced)
    bare = pretrained(work, work.recipe, asked.labels)
    if not _may_read_quarters(bare.model.config, len(photographs.learned)):
        learned = features_of(work, bare, photographs.learned)
        return Reading(asked, bare, learned, solved(asked, learned))

    # One pass gives both: the class token comes first
    with_quarters = pretrained(work, reading_pool(work.recipe, QUARTERS), asked.labels)
    every = features_of(work, with_quarters, photographs.learned)
    width = bare.model.config.width
    token = Features(every.x[:, :width].copy(), every.y)
    readings = {
        TOKEN: Reading(asked, bare, token, solved(asked, token)),
        QUARTERS: Reading(asked, with_quarters, every, solved(asked, every)),
    }

    # The better one, or what an earlier call decided
    tried = []
    for pool, each in readings.items():
        tried.append(candidate(pool, each.bare, asked, each.whole.left_out, every.y))
    chosen = work.plan.pool
    if chosen is None and work.plan.steps is not None:
        chosen = TOKEN  # a plan of before there were quarters
    weights = image_weights(asked, every.y)
    if chosen is None:
        chosen = from_rank_0(lambda: best(tried, weights, CLEARLY).name)
    if chosen == QUARTERS:
        by_token, by_both = [each.held_out for each in tried]
        work.say(
            "its head reads the means of the image's four quarters beside the class token, for where "
            f"something is matters: {by_both.unit.text(by_both.value)} instead of "
            f"{by_token.unit.text(by_token.value)} by fits without each image (other libraries do not "
            "have that; with --preset none a head reads the class token)"
        )

    # An image that is left out has no say in what is read of it
    reading = readings[chosen]
    by_others = best_by_others(tried, reading.whole.fold.numpy(), weights, CLEARLY)
    answers = torch.stack([each.whole.left_out for each in readings.values()])  # (2, N, K)
    left_out = answers[by_others, torch.arange(len(by_others))]
    return reading._replace(whole=replace(reading.whole, left_out=left_out))


def _may_read_quarters(config: ModelConfig, images: int) -> bool:
    """Whether a model reads the class token as the paper has it, and there are so few images that a
    head on quarters is solved in no time."""
    if not isinstance(config, ViTConfig) or config.pool != TOKEN or config.norm != "tokens":
        return False
    return STATES * config.width * images <= MOST


def settle_reading(work: Work, reading: Reading) -> Work:
    """Write in the plan what the head reads, and return the work whose recipes read the same."""
    pool = getattr(reading.bare.model.config, "pool", None)
    plan = work.plan._replace(pool=pool)
    write_plan(work.run_dir, plan)
    recipe = reading_pool(work.recipe, pool)
    tuning = reading_pool(work.tuning, pool)
    return replace(work, recipe=recipe, tuning=tuning, plan=plan)


def reading_pool(recipe: Recipe, pool: str | None) -> Recipe:
    """The recipe whose model's head reads that."""
    if getattr(recipe.model, "pool", None) == pool:
        return recipe
    return replace(recipe, model=replace(recipe.model, pool=pool))
