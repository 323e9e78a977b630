"""Objectives that divide images into patches, with patches that are no squares, or overlap."""

from dataclasses import replace

import pytest
import torch
from runs import random_levels

from vitkit.data import Preprocessing
from vitkit.models import ViTConfig, create
from vitkit.objectives import MaskedAutoencoder, MaskedPatches, SelfDistillation
from vitkit.objectives.patches import mean_colours, patchify, unpatchify

CONFIG = ViTConfig(width=24, depth=2, mlp=48, heads=2, patch=(8, 4), image=(32, 24), classes=0)
PREPARE = Preprocessing(size=(32, 24))
KEYS = torch.arange(4)
MAE = MaskedAutoencoder(width=16, depth=1, heads=2)
HIDING = [MaskedPatches(), MaskedPatches("colours"), MaskedPatches("pixels"), MAE]


def levels():
    return random_levels(4, (32, 24))


def learner_of(objective, config=CONFIG):
    torch.manual_seed(0)
    return objective.learner(create(config, seed=0), PREPARE)


def test_an_image_as_patches_and_back():
    images = levels()
    patches = patchify(images, (8, 4))
    assert patches.shape == (4, 4 * 6, 8 * 4 * 3)
    second_row_third = images[0, :, 8:16, 8:12].permute(1, 2, 0).flatten()
    assert torch.equal(patches[0, 6 + 2], second_row_third)
    assert torch.equal(unpatchify(patches, (4, 6), (8, 4)), images)


def test_colours_are_the_means_of_rectangles():
    images = levels()
    colours = mean_colours(images, (8, 4), 8)
    assert colours.shape == (4, 4, 6)
    digits = images[1, :, 16:24, 20:24].double().mean((1, 2)).div(255).mul(8).floor()
    assert colours[1, 2, 5] == (digits * torch.tensor([64, 8, 1])).sum()


def test_colours_of_a_patch_are_those_of_its_sixteen_parts():
    learner = learner_of(MaskedPatches("colours"))
    images = levels()
    targets = learner.targets(PREPARE.normalise(images))
    small = mean_colours(images, (2, 1), 8)  # (B, 16, 24)
    assert targets.shape == (4, 24, 16)
    assert torch.equal(targets[0, 7], small[0, 4:8, 4:8].flatten())


@pytest.mark.parametrize("objective", HIDING, ids=repr)
def test_a_few_steps_gain_and_pictures_are_whole(objective):
    learner = learner_of(objective)
    images = PREPARE.normalise(levels())
    optimizer = torch.optim.Adam(learner.parameters(), 3e-3)
    losses = []
    for _ in range(12):
        loss = learner(images, torch.zeros(4), KEYS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]
    for picture in learner.pictures(images, KEYS).values():
        assert picture.shape == (4, 3, 32, 24) and picture.dtype == torch.uint8


@pytest.mark.parametrize("objective", HIDING, ids=repr)
def test_patches_that_overlap_cannot_be_hidden(objective):
    with pytest.raises(ValueError, match="seen in its neighbours, as patches overlap .stride 4"):
        learner_of(objective, replace(CONFIG, patch=8, stride=4))


def test_self_distillation_takes_patches_that_overlap():
    small = SelfDistillation(outputs=40, hidden=32, bottleneck=8, local_views=1, local_size=16)
    config = replace(CONFIG, patch=8, stride=4)
    loss = learner_of(small, config)(PREPARE.normalise(levels()), torch.zeros(4), KEYS)
    assert loss.isfinite()
    with pytest.raises(ValueError, match="small crops: .* every 4 x 4 pixels; choose .* 16 x 16"):
        learner_of(replace(small, local_size=18), config)
