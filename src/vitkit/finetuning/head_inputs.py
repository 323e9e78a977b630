"""The feature set of the closed-form head: the class token of the last block (Eq. 4), or more.

The class token represents the content of a photograph. Middle blocks represent textures, signs and
satellite images better (DINO's and DINOv2's linear protocols use several blocks), and patch tokens
represent locations, which the class token hardly does. The feature set is chosen by leave-one-out
predictions from one pass over the images: the wider it is, the more images a head needs to gain by it.
With more features than images the head is computed from the row products of the features; products that
two feature sets share are computed once.

Legend: N images, L blocks that are read, S states of each, D width of the model, K outputs of the head.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.evaluation import Features, Probe, Probing, features_within, rounded, row_products
from vitkit.finetuning.candidates import (
    Candidate,
    answered_by_others,
    best,
    candidate,
    image_weights,
    question,
    solved,
)
from vitkit.finetuning.plan import RunInputs, features_of, pretrained, write_plan
from vitkit.models import NESTED, OF_THE_PAPER, POOLS, FeatureSet, ViTConfig
from vitkit.objectives import Supervised
from vitkit.recipes import Recipe
from vitkit.system.console.text import counted
from vitkit.system.processes.ranks import from_rank_0
from vitkit.weights import Classifier

BLOCKS = 12  # largest number of blocks in a feature set, counted from the last
MOST = 2**26  # largest number of feature values of all images: 256 MiB
SOLVED = 2_048  # if both images and features exceed this number, a closed-form head takes too long


class FittedHead(NamedTuple):
    """The features of the training images, and the head fitted to them."""

    asked: Probing
    bare: Classifier
    """The pre-trained model with an all-zero head."""
    learned: Features
    whole: Probe

    @property
    def kind(self) -> FeatureSet | None:
        """The feature set; None for a model of another architecture."""
        config = self.bare.model.config
        if not isinstance(config, ViTConfig):
            return None
        return FeatureSet(config.pool, config.read_blocks)


def reads(recipe: Recipe, kind: FeatureSet) -> Recipe:
    """The recipe with a model whose head reads this feature set."""
    model = recipe.model
    if not isinstance(model, ViTConfig) or (model.pool, model.read_blocks) == kind:
        return recipe
    return replace(recipe, model=replace(model, pool=kind.pool, read_blocks=kind.blocks))


def read(work: RunInputs) -> FittedHead:
    """The features of all training images, and the head fitted to the feature set with the best
    leave-one-out predictions. Keeps the decision of an earlier call. Logs the choice if it is more
    than the class token of the last block."""
    photographs = work.photographs
    objective = work.recipe.objective
    balanced = isinstance(objective, Supervised) and objective.class_weights == "balanced"
    asked = question(photographs.target_kind, photographs.labels, balanced)
    bare = pretrained(work, work.recipe, asked.labels)
    groups = photographs.learned.groups
    decided = work.plan.reading
    if decided is None and work.plan.steps is not None:
        decided = OF_THE_PAPER  # a plan of a version without other feature sets
    kinds = list(kinds_for(bare.model.config, len(photographs.learned)))
    if not kinds or (decided is not None and decided not in kinds):
        recipe = work.recipe if decided is None else reads(work.recipe, decided)
        bare = pretrained(work, recipe, asked.labels)
        learned = features_of(work, bare, photographs.learned)
        return FittedHead(asked, bare, learned, solved(asked, learned, groups))

    # One pass over the images computes all features
    widest = widest_of(kinds)
    every = features_of(work, _bare(work, widest, asked), photographs.learned)
    assert isinstance(bare.model.config, ViTConfig)  # other models have no feature sets
    width = bare.model.config.width
    products = shared_products(every, widest, kinds, width)
    readings = []
    tried = []
    for kind in kinds:
        learned = part_of(every, widest, kind, width)
        whole = solved(asked, learned, groups, products.get(kind))
        readings.append((kind, learned, whole))
        tried.append(_by_loss(kind.pool, bare, asked, whole, every.y))

    # The best feature set, or the decision of an earlier call
    weights = image_weights(asked, every.y) * readings[0][2].known.numpy()
    chosen = from_rank_0(lambda: kinds[tried.index(best(tried, weights))])
    if work.plan.portable:
        _, learned, whole = readings[kinds.index(OF_THE_PAPER)]
        if chosen != OF_THE_PAPER:
            wide = readings[kinds.index(chosen)][2]
            _log_choice(work, asked, chosen, whole, wide, every.y, groups)
        return FittedHead(asked, _bare(work, OF_THE_PAPER, asked), learned, whole)
    if decided is None:
        decided = chosen
    kind, learned, whole = readings[kinds.index(decided)]

    # Cross-fitted: an image has no influence on the choice of its feature set
    whole = answered_by_others(whole, [each for _, _, each in readings], tried, weights)
    if kind != OF_THE_PAPER:
        _log_choice(work, asked, kind, readings[0][2], whole, every.y, groups)
    return FittedHead(asked, _bare(work, kind, asked), learned, whole)


def by_left_out(reading: FittedHead, name: str) -> Candidate:
    """A head as a candidate, compared by its leave-one-out loss."""
    return _by_loss(name, reading.bare, reading.asked, reading.whole, reading.learned.y)


def kinds_for(config: object, images: int) -> Iterator[FeatureSet]:
    """The feature sets for this number of images, with as many blocks as a closed-form head can use.
    Empty for models that do not read the class token as in the paper."""
    if not isinstance(config, ViTConfig) or config.norm != "tokens" or config.representation:
        return
    if FeatureSet(config.pool, config.read_blocks) != OF_THE_PAPER:
        return
    yield OF_THE_PAPER
    for pool in NESTED[1:]:
        for blocks in range(min(BLOCKS, config.depth), 0, -1):
            kind = FeatureSet(pool.name, blocks)
            numbers = kind.numbers(config.width)
            if numbers * images <= MOST and min(numbers, images) <= SOLVED:
                yield kind
                break


def widest_of(kinds: Sequence[FeatureSet]) -> FeatureSet:
    """The smallest feature set that contains all `kinds`, which are ordered as `kinds_for` yields
    them."""
    return FeatureSet(kinds[-1].pool, max(kind.blocks for kind in kinds))


def _bare(work: RunInputs, kind: FeatureSet, asked: Probing) -> Classifier:
    """The pre-trained model with an all-zero head for this feature set."""
    return pretrained(work, reads(work.recipe, kind), asked.labels)


def part_of(every: Features, widest: FeatureSet, kind: FeatureSet, width: int) -> Features:
    """The features of a feature set, selected from those of a wider one."""
    x = features_within(every.x, widest, kind, width)
    if kind != OF_THE_PAPER:
        x = rounded(x)
    return Features(x, every.y)


def shared_products(
    every: Features, widest: FeatureSet, kinds: Sequence[FeatureSet], width: int
) -> dict[FeatureSet, Tensor]:
    """The row products of the features (`row_products`) for each feature set with more features
    than images, except for the class token alone, which is exact.

    The products of a feature set are sums over its token states, so each state is multiplied once.
    """
    wide = [kind for kind in kinds if kind != OF_THE_PAPER and kind.numbers(width) > len(every.x)]
    if not wide:
        return {}
    x = every.x.reshape(len(every.x), -1, width)  # (N, L S, D)

    # For each state the feature sets that contain it; states with the same feature sets form a group
    pool = POOLS[widest.pool]
    has = np.zeros((len(wide), widest.blocks, pool.states), dtype=bool)
    for kind, own in zip(wide, has, strict=True):
        own[widest.blocks - kind.blocks :, POOLS[kind.pool].places_in(pool)] = True
    readers, group = np.unique(has.reshape(len(wide), -1), axis=1, return_inverse=True)

    products = {kind: torch.zeros(len(x), len(x), dtype=torch.float64) for kind in wide}
    group = group.reshape(-1)  # NumPy 2.0 returns an additional axis
    for number, is_reader in enumerate(readers.T):
        states = rounded(x[:, group == number].reshape(len(x), -1))
        added = row_products(torch.from_numpy(states))
        for kind in itertools.compress(wide, is_reader):
            products[kind] += added
    return products


def _by_loss(name: str, bare: Classifier, asked: Probing, whole: Probe, y: np.ndarray) -> Candidate:
    """A feature set as a candidate, compared by its leave-one-out loss: with few images the loss is
    a more sensitive measure than the accuracy."""
    tried = candidate(name, bare, asked, whole.left_out, y)
    return tried._replace(scores=-tried.losses)


def _log_choice(
    work: RunInputs,
    asked: Probing,
    kind: FeatureSet,
    token: Probe,
    wide: Probe,
    y: np.ndarray,
    groups: np.ndarray | None,
) -> None:
    """Log the feature set, and the gain (or possible gain) over the class token alone."""
    of_token = next(asked.left_out_quality(token, y, groups))
    of_wide = next(asked.left_out_quality(wide, y, groups))
    with_token = of_token.unit.text(of_token.value)
    with_more = of_wide.unit.text(of_wide.value)
    more = f"{POOLS[kind.pool].words} of {counted(kind.blocks, 'block')}"
    if work.plan.portable:
        work.say(
            f"its head reads the class token alone, as in other libraries (`portable`): {with_token} "
            f"instead of {with_more} with {more}, by leave-one-out"
        )
        return
    work.say(
        f"its head reads {more}: {with_more} instead of {with_token} with the class token alone, by "
        "leave-one-out (other libraries do not have that; `portable` keeps to the class token)"
    )


def settle_reading(work: RunInputs, reading: FittedHead) -> RunInputs:
    """Save the feature set in the plan, and return the inputs whose recipe has it.

    The recipe of the fine-tuning keeps the class token, as in the paper: an all-zero head on thousands
    of features would make its first steps too large.
    """
    kind = reading.kind
    plan = work.plan._replace(reading=kind)
    write_plan(work.run_dir, plan)
    if kind is None:
        return replace(work, plan=plan)
    tuning = work.tuning
    if plan.pool is not None:  # a run of an earlier version continues with its own feature set
        tuning = reads(tuning, kind)
    return replace(work, recipe=reads(work.recipe, kind), tuning=tuning, plan=plan)
