"""Axial, local and augmented attention against slow, obvious loops, and the symmetries that it must have;
and LeNet-5."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import attention_by_loops, initialised
from networks import random_images, random_model

from vitkit.models import Backbone, create, vit
from vitkit.models.ancestors.mixers import AugmentedMixer, AxialMixer, LocalMixer, mean_2x2

AXIAL = vit("mu/8", image=(24, 32), classes=5, depth=2, mixer="axial", pool="gap")
GRID = (3, 4)


def test_axial_layers_by_loops():
    model = random_model(AXIAL).double()
    x = random_images(2, 3, 24, 32).double()

    def block_by_loops(block, sequence):
        sequence = sequence + attention_by_loops(block.attention, block.norm1(sequence))
        return sequence + block.mlp(block.norm2(sequence))

    with torch.no_grad():
        for image, states in zip(x, model.encode(x), strict=True):
            z = model.embed(image[None])[0].unflatten(0, GRID).clone()  # (h, w, D)
            for layer in model.blocks:
                for row in range(3):
                    z[row] = block_by_loops(layer.row, z[row])
                for column in range(4):
                    z[:, column] = block_by_loops(layer.column, z[:, column])
            torch.testing.assert_close(states, model.norm(z.flatten(0, 1)))


@pytest.mark.parametrize("stride", [1, 2])
def test_the_axial_mixer_by_loops(stride):
    mixer = initialised(AxialMixer(16, stride, (3, 5)))
    x = random_images(1, 16, 3, 5).double()
    with torch.no_grad():
        z = x[0].permute(1, 2, 0).clone()  # (h, w, C)
        for row in range(3):
            z[row] = attention_by_loops(mixer.row, z[row], mixer.row_offsets.table[0])
        for column in range(5):
            z[:, column] = attention_by_loops(
                mixer.column, z[:, column], mixer.column_offsets.table[0]
            )
        expected = z.permute(2, 0, 1)[None]
        if stride == 2:
            expected = mean_2x2(expected)
        torch.testing.assert_close(mixer(x), expected)


def test_a_2x2_mean_at_an_odd_end_is_of_what_there_is():
    x = torch.arange(15.0).view(1, 1, 3, 5)
    expected = torch.tensor([[3.0, 5.0, 6.5], [10.5, 12.5, 14.0]])
    assert torch.equal(mean_2x2(x)[0, 0], expected)


class TestSymmetries:
    """Of one layer without positions."""

    @staticmethod
    def layer(seed):
        return random_model(replace(AXIAL, positions="none"), seed).blocks[0]

    @staticmethod
    def on_grid(layer, x):
        """(1, h, w, D) -> the same."""
        return layer(x.flatten(1, 2), GRID).unflatten(1, GRID)

    @given(seed=st.integers(0, 2**16))
    @settings(deadline=None, max_examples=15)
    def test_rows_and_columns_in_another_order_come_out_in_that_order(self, seed):
        layer = self.layer(seed)
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(1, *GRID, 32, generator=generator)
        rows = torch.randperm(3, generator=generator)
        columns = torch.randperm(4, generator=generator)
        with torch.no_grad():
            expected = self.on_grid(layer, x)[:, rows][:, :, columns]
            shuffled = self.on_grid(layer, x[:, rows][:, :, columns])
        torch.testing.assert_close(shuffled, expected, atol=1e-4, rtol=1e-4)


def test_a_patch_reaches_its_row_and_then_every_patch():
    layer = random_model(replace(AXIAL, depth=1)).blocks[0]
    x = random_images(1, 12, 32)
    other = x.clone()
    other[:, 5] += random_images(32, seed=1)  # row 1, column 1 of 3 x 4
    with torch.no_grad():
        rows = layer.row(other.unflatten(1, GRID)) - layer.row(x.unflatten(1, GRID))
        whole = layer(other, GRID) - layer(x, GRID)
    changed = rows.abs().amax((0, 3)) > 1e-6
    assert changed.all(1).tolist() == [False, True, False]
    assert changed.any(1).tolist() == [False, True, False]
    assert (whole.abs().amax((0, 2)) > 1e-7).all()


def test_stochastic_depth_leaves_out_whole_images():
    model = create(replace(AXIAL, stochastic_depth=0.5), seed=0).train()
    branch = model.blocks[1].row.stochastic_depth(torch.ones(64, 3, 4, 2))
    assert all(image.unique().numel() == 1 for image in branch)
    assert branch.unique().tolist() == [0, 2]


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


@pytest.mark.parametrize("mixer", ["axial", "local", "augmented"])
def test_only_augmented_convolutions_leave_the_first_stage_alone(mixer):
    backbone = Backbone(units=(1, 1, 1), mixer=mixer)
    mixes = [backbone.mixes(stage) for stage in range(3)]
    assert mixes == ["conv" if mixer == "augmented" else mixer, mixer, mixer]


def test_lenet_has_about_sixty_thousand_parameters():
    model = create("LeNet-5", seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == 61_706
    x = random_images(2, 1, 32, 32)
    assert model.encode(x).shape == (2, 1, 120)
    assert model.features(x).shape == (2, 84)


def test_lenet_takes_images_of_its_size_only():
    with pytest.raises(ValueError, match=r"LeNet-5 takes images of 32 x 32 .* \(2, 1, 28, 28\)"):
        create("LeNet-5", seed=0)(random_images(2, 1, 28, 28))
