"""Local and augmented attention against slow, obvious loops, and LeNet-5."""

import math

import pytest
import torch
from loops import initialised
from networks import random_images

from vitkit.models import create
from vitkit.models.ancestors.mixers import AugmentedMixer, LocalMixer, mean_2x2


@pytest.mark.parametrize("stride", [1, 2])
def test_local_attention_by_loops(stride):
    mixer = initialised(LocalMixer(16, stride))
    x = random_images(1, 16, 3, 9).double()
    height, width = x.shape[-2:]
    with torch.no_grad():
        q, k, v = mixer.qkv(x[0].permute(1, 2, 0)).split(16, -1)  # (h, w, C) each
        mixed = torch.zeros_like(q)
        for r in range(height):
            for c in range(width):
                for h in range(8):
                    head = slice(2 * h, 2 * h + 2)
                    logits = []
                    values = []
                    for row in range(max(r - 3, 0), min(r + 4, height)):
                        for column in range(max(c - 3, 0), min(c + 4, width)):
                            down = mixer.down[0, row - r + 3]
                            across = mixer.across[0, column - c + 3]
                            key = k[row, column, head] + torch.cat([down, across])
                            logits.append(q[r, c, head] @ key)
                            values.append(v[row, column, head])
                    mixed[r, c, head] = torch.stack(logits).softmax(0) @ torch.stack(values)
        expected = mixed.permute(2, 0, 1)[None]
        if stride == 2:
            expected = mean_2x2(expected)
        torch.testing.assert_close(mixer(x), expected)


def test_augmented_convolution_by_loops():
    conv = torch.nn.Conv2d(64, 56, 3, padding=1)
    mixer = initialised(AugmentedMixer(64, 1, (2, 3), conv))
    x = random_images(1, 64, 2, 3).double()
    positions = [(row, column) for row in range(2) for column in range(3)]
    with torch.no_grad():
        q, k, v = mixer.qkv(x[0].permute(1, 2, 0)).split([16, 16, 8], -1)
        mixed = torch.zeros(2, 3, 8, dtype=torch.float64)
        for r, c in positions:
            for h in range(8):
                head = slice(2 * h, 2 * h + 2)
                logits = []
                for row, column in positions:
                    down = mixer.down.table[0, r - row + 1]
                    across = mixer.across.table[0, c - column + 2]
                    key = k[row, column, head] + down + across
                    logits.append(q[r, c, head] @ key / math.sqrt(2))
                weights = torch.stack(logits).softmax(0)
                for weight, (row, column) in zip(weights, positions, strict=True):
                    mixed[r, c, h] += weight * v[row, column, h]
        attended = mixer.out(mixed).permute(2, 0, 1)
        expected = torch.cat([conv(x)[0], attended])
        torch.testing.assert_close(mixer(x)[0], expected)


@pytest.mark.parametrize("kind", ["local", "augmented"])
def test_gradients_are_those_of_finite_differences(kind):
    mixer = LocalMixer(16, 2)
    if kind == "augmented":
        mixer = AugmentedMixer(64, 2, (3, 4), torch.nn.Conv2d(64, 56, 3, 2, 1))
    mixer = initialised(mixer)
    x = random_images(1, mixer.qkv.in_features, 3, 4).double().requires_grad_()
    inputs = (x, *mixer.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: mixer(x), inputs, fast_mode=True)


def test_lenet_has_about_sixty_thousand_parameters():
    model = create("LeNet-5", seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == 61_706
    x = random_images(2, 1, 32, 32)
    assert model.encode(x).shape == (2, 1, 120)
    assert model.features(x).shape == (2, 84)


def test_lenet_takes_images_of_its_size_only():
    with pytest.raises(ValueError, match=r"LeNet-5 takes images of 32 x 32 .* \(2, 1, 28, 28\)"):
        create("LeNet-5", seed=0)(random_images(2, 1, 28, 28))
