"""Axial attention against slow, obvious loops, and the symmetries that it must have."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import attention_by_loops, initialised
from networks import random_images, random_model

from vitkit.models import create, vit
from vitkit.models.ancestors.mixers import AxialMixer, mean_2x2

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


@pytest.mark.parametrize(("stride", "sides"), [(1, (7, 4)), (2, (4, 2))])
def test_the_axial_mixer_takes_any_size(stride, sides):
    mixer = initialised(AxialMixer(16, stride, (3, 5)))
    assert mixer(random_images(2, 16, 7, 4).double()).shape == (2, 16, *sides)


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


def test_gradients_are_those_of_finite_differences():
    mixer = initialised(AxialMixer(8, 2, (2, 3)))
    x = random_images(1, 8, 2, 3).double().requires_grad_()
    parameters = (mixer.row.qkv.weight, mixer.row_offsets.table)
    assert torch.autograd.gradcheck(lambda x, *_: mixer(x), (x, *parameters))


def test_stochastic_depth_leaves_out_whole_images():
    model = create(replace(AXIAL, stochastic_depth=0.5), seed=0).train()
    branch = model.blocks[1].row.stochastic_depth(torch.ones(64, 3, 4, 2))
    assert all(image.unique().numel() == 1 for image in branch)
    assert branch.unique().tolist() == [0, 2]
