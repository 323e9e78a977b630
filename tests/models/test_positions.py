"""Position embeddings of every kind: by loops and formulas, on other grids against the official code, and
their promises on any grid."""

import math
from dataclasses import fields, replace
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import attention_by_loops
from networks import random_images, random_model
from scipy.ndimage import zoom

from vitkit.models import (
    RESAMPLE,
    RotaryPositions,
    ViTConfig,
    create,
    for_inference,
    resized,
    sincos,
    vit,
)
from vitkit.models.config_checks import POSITION_KINDS
from vitkit.models.positions import (
    POSITIONS,
    LearnedPositions2D,
    Offsets,
    SinCosPositions,
    resample,
    sincos_1d,
)

SMALL = vit("mu/8", image=(24, 32), classes=5, depth=2)  # 3 x 4 patches


def test_the_kinds_are_those_that_a_configuration_names():
    names = next(field.type for field in fields(ViTConfig) if field.name == "positions")
    assert set(get_args(names)) == set(POSITION_KINDS) == set(POSITIONS)


@given(seed=st.integers(0, 2**16), pool=st.sampled_from(["token", "gap", "map"]))
@settings(deadline=None, max_examples=15)
def test_without_positions_the_order_of_patches_means_nothing(seed, pool):
    model = random_model(replace(SMALL, positions="none", pool=pool), seed)
    x = random_images(1, 3, 24, 32, seed=seed)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
    patches = x.unfold(2, 8, 8).unfold(3, 8, 8).flatten(2, 3)  # (1, 3, N, 8, 8)
    shuffled = patches[:, :, order].unflatten(2, (3, 4))  # (1, 3, 3, 4, 8, 8)
    shuffled = shuffled.transpose(3, 4).flatten(4, 5).flatten(2, 3)  # (1, 3, 24, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(shuffled), model(x), atol=1e-4, rtol=1e-4)


class TestLearned:
    def test_a_patch_has_its_columns_vector_and_its_rows(self):
        config = replace(SMALL, positions="learned2d", registers=1, prefix_positions=1)
        positions = LearnedPositions2D(config)
        positions.init_weights()
        table = positions.full_table((3, 4))[0]
        assert table.shape == (2 + 12, 32)
        assert torch.equal(table[0], positions.prefix[0, 0])
        assert not table[1].any()  # the register has no position
        for n in range(12):
            row, column = divmod(n, 4)
            expected = torch.cat([positions.across[0, column], positions.down[0, row]])
            assert torch.equal(table[2 + n], expected)

    def test_columns_and_rows_are_resampled_alone(self):
        positions = LearnedPositions2D(replace(SMALL, positions="learned2d"))
        positions.init_weights()
        table = positions.full_table((5, 4))[0, 1:].unflatten(0, (5, 4))
        for row in range(5):
            torch.testing.assert_close(table[row, :, :16], positions.across[0])
        between = positions.down[0, :2].mean(0)  # five rows at 0, 1/2, 1, ...
        torch.testing.assert_close(table[1, 0, 16:], between)

    def test_at_every_block_but_zero_after_the_first_is_at_the_stem(self):
        config = replace(SMALL, depth=3)
        stem = random_model(config)
        every = self.with_tables(stem, "every", [1, 0, 0])
        x = random_images(2, 3, 24, 32)
        with torch.no_grad():
            torch.testing.assert_close(every(x), stem(x), atol=1e-5, rtol=1e-5)

    def test_at_every_block_with_equal_tables_is_shared(self):
        config = replace(SMALL, depth=3)
        stem = random_model(config)
        every = self.with_tables(stem, "every", [1, 1, 1])
        shared = create(replace(config, inject="shared")).eval()
        shared.load_state_dict(stem.state_dict())
        with torch.no_grad():
            for size in ((24, 32), (40, 24)):
                x = random_images(2, 3, *size)
                torch.testing.assert_close(shared(x), every(x))
                assert (shared(x) - stem(x)).abs().max() > 1e-3

    @staticmethod
    def with_tables(stem, inject, factors):
        """The model with its positions at every block, each times a factor."""
        model = create(replace(stem.config, inject=inject)).eval()
        state = dict(stem.state_dict())
        table = state.pop("positions.table")
        for i, factor in enumerate(factors):
            state[f"positions.{i}.table"] = factor * table
        model.load_state_dict(state)
        return model


def test_maes_sines_and_cosines_are_mocos_with_x_first():
    moco = sincos((3, 4), 16, "sincos-moco")[0]
    mae = sincos((3, 4), 16, "sincos-mae")[0]
    assert torch.equal(mae, torch.cat([moco[:, 8:], moco[:, :8]], 1))


@pytest.mark.parametrize("side", [1, 4])
def test_mocos_sines_and_cosines_are_its_formula(side):
    """MoCo v3's grids are square, and its first axis is the one that varies slowly."""
    table = sincos((side, side), 16, "sincos-moco")[0]
    omega = [10_000 ** (-j / 4) for j in range(4)]
    for n in range(side * side):
        expected = []
        for coordinate in divmod(n, side):
            expected += [math.sin(coordinate * frequency) for frequency in omega]
            expected += [math.cos(coordinate * frequency) for frequency in omega]
        np.testing.assert_allclose(table[n].numpy(), expected, atol=1e-6)


class TestRelative:
    @pytest.mark.parametrize("pool", ["token", "gap"])
    @pytest.mark.parametrize("inject", ["every", "shared"])
    def test_by_loops(self, pool, inject):
        config = replace(SMALL, positions="relative", inject=inject, pool=pool)
        model = random_model(config).double()
        tables = [model.positions] * 2
        if inject == "every":
            tables = model.positions
        x = random_images(1, 3, 24, 32).double()
        with torch.no_grad():
            z = model.embed(x)[0]  # nothing is added to the tokens
            for block, positions in zip(model.blocks, tables, strict=True):
                table = positions.offsets.table[0]
                z = z + attention_by_loops(block.attention, block.norm1(z), table)
                z = z + block.mlp(block.norm2(z))
            z = model.norm(z)
            torch.testing.assert_close(model.encode(x)[0], z)
            pooled = z[0]
            if pool == "gap":
                pooled = z.mean(0)
            torch.testing.assert_close(model.features(x)[0], pooled)

    def test_offsets_stretch_over_the_same_extent(self):
        offsets = Offsets(5, 4)
        offsets.init_weights()
        q = random_images(1, 2, 9, 4)
        bias = offsets.bias(q)
        stretched = resample(offsets.table, (1, 9), (1, 17), "google")[0]
        assert torch.equal(stretched[8], offsets.table[0, 4])  # no offset stays no offset
        # Four of eight steps are two of four; scaled by the root of a width of 4.
        torch.testing.assert_close(bias[0, 1, 2, 6], q[0, 1, 2] @ offsets.table[0, 2] / 2)


class TestRotary:
    def test_by_complex_numbers(self):
        positions = RotaryPositions(replace(SMALL, positions="rotary"))
        q = random_images(1, 2, 13, 16).double()
        rotated, _, bias = positions.in_attention((3, 4))(q, q)
        assert bias is None
        assert torch.equal(rotated[:, :, 0], q[:, :, 0])  # the class token
        omega = torch.tensor([100 ** (-j / 4) for j in range(4)], dtype=torch.float64)
        for n in range(12):
            row, column = divmod(n, 4)
            angle = torch.cat([column * omega, row * omega])
            pairs = torch.complex(q[0, 1, 1 + n, :8], q[0, 1, 1 + n, 8:])
            pairs = pairs * torch.polar(torch.ones_like(angle), angle)
            expected = torch.cat([pairs.real, pairs.imag])
            torch.testing.assert_close(rotated[0, 1, 1 + n], expected, atol=1e-6, rtol=1e-6)

    def test_products_depend_on_offsets_alone(self):
        config = replace(SMALL, positions="rotary", pool="gap", image=(40, 40))
        positions = RotaryPositions(config)
        q = random_images(1, 1, 1, 16).expand(-1, -1, 25, -1)  # the same at every patch
        k = random_images(1, 1, 1, 16, seed=1).expand(-1, -1, 25, -1)
        q, k, _ = positions.in_attention((5, 5))(q, k)
        products = (q @ k.mT)[0, 0].view(5, 5, 5, 5)  # of a query's row and column, and a key's
        torch.testing.assert_close(products[0, 1, 2, 4], products[2, 0, 4, 3], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(products[3, 3, 1, 2], products[4, 2, 2, 1], atol=1e-5, rtol=1e-5)
        assert products.std() > 0.1


def test_sines_of_a_sequence_are_vaswanis():
    table = sincos_1d(12, 32)[0]
    for position in range(12):
        for i in range(16):
            angle = position / 10_000 ** (2 * i / 32)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-7)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-7)
    model = create(replace(SMALL, positions="sincos-1d"), seed=0)
    z = model.positions.add(torch.zeros(1, 13, 32), (3, 4))
    assert torch.equal(z[0, 1:], table) and not z[0, 0].any()
    with pytest.raises(
        ValueError, match="sincos-1d positions of 3 x 4 patches have no meaning on 4"
    ):
        model.positions.add(torch.zeros(1, 13, 32), (4, 3))


sides = st.integers(1, 64)
GRIDS = [(14, 24), (7, 12), (16, 37), (14, 32), (24, 14), (2, 5), (14, 7)]


@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_google_is_the_official_resampling(shared, old, new):
    with np.load(shared("reference/position_resample_google.npz")) as file:
        table = torch.from_numpy(file[f"from_{old}_to_{new}/table"])
        expected = torch.from_numpy(file[f"from_{old}_to_{new}/expected"])
    torch.testing.assert_close(resample(table, (old, old), (new, new)), expected, atol=1e-6, rtol=0)


@given(old=st.tuples(sides, sides), new=st.tuples(sides, sides), prefix=st.integers(0, 2))
@settings(deadline=None, max_examples=30)
def test_google_is_scipy_zoom_on_any_grid(old, new, prefix):
    table = random_images(1, prefix + old[0] * old[1], 3, seed=old[0])
    resampled = resample(table, old, new, "google")
    image = table[0, prefix:].numpy().reshape(*old, 3)
    expected = np.stack([scipy_zoom(image[..., channel], new) for channel in range(3)], -1)
    assert torch.equal(resampled[:, :prefix], table[:, :prefix])
    patches = resampled[0, prefix:].numpy().reshape(*new, 3)
    np.testing.assert_allclose(patches, expected, atol=1e-6)


def scipy_zoom(image, new):
    """What scipy makes of an image (h, w) on another grid."""
    # It divides by zero when one row becomes many; the answer is that row again.
    for axis in (0, 1):
        if image.shape[axis] == 1:
            image = np.repeat(image, new[axis], axis)
    factors = (new[0] / image.shape[0], new[1] / image.shape[1])
    # The mode matters only if rounding steps over the edge by 1e-16 (51 -> 45, say), where the
    # default one writes a zero.
    return zoom(image.astype(np.float64), factors, order=1, mode="nearest")


@given(
    method=st.sampled_from(list(RESAMPLE)), old=st.tuples(sides, sides), new=st.tuples(sides, sides)
)
@settings(deadline=None, max_examples=30)
def test_every_method_keeps_prefix_constants_and_the_same_grid(method, old, new):
    table = torch.full((1, 1 + old[0] * old[1], 2), 0.5)
    table[:, 0] = 7
    resampled = resample(table, old, new, method)
    assert resampled.shape == (1, 1 + new[0] * new[1], 2)
    assert (resampled[:, 0] == 7).all()
    patches = resampled[:, 1:]
    torch.testing.assert_close(patches, torch.full_like(patches, 0.5))
    assert resample(table, old, old, method) is table


def test_what_cannot_be_resampled_is_refused():
    with pytest.raises(ValueError, match="no resampling method 'lanczos'; there are google"):
        resample(torch.zeros(1, 5, 2), (2, 2), (3, 3), "lanczos")
    with pytest.raises(ValueError, match=r"shape \(1, 5, 2\) cannot hold a grid of 3 x 3"):
        resample(torch.zeros(1, 5, 2), (3, 3), (2, 2))


def test_for_inference_fixed_positions_are_computed_once(monkeypatch):
    model = for_inference(random_model(replace(SMALL, positions="sincos")))
    x = random_images(1, 3, 24, 32)
    expected = model(x)
    monkeypatch.setattr(SinCosPositions, "full_table", None)
    assert torch.equal(model(x), expected)


def test_an_update_of_the_weights_is_seen_on_every_grid():
    model = random_model(vit("mu/16", classes=3))
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, fused=True)
    x = torch.randn(1, 3, 160, 160)
    with torch.no_grad():
        model.features(x)
    model.features(x).square().sum().backward()
    assert model.positions.table.grad.abs().sum() > 0  # another grid moves the table itself
    optimizer.step()
    with torch.no_grad():
        expected = resample(model.positions.table, (14, 14), (10, 10))
        tokens = torch.zeros(1, 101, 32)
        torch.testing.assert_close(model.positions.add(tokens, (10, 10)), expected)


ANY_GRID = [kind for kind in POSITION_KINDS if POSITION_KINDS[kind].any_grid]
small_grids = st.tuples(st.integers(1, 5), st.integers(1, 5))


@given(
    kind=st.sampled_from(ANY_GRID),
    inject=st.sampled_from([None, "every", "shared"]),
    old=small_grids,
    new=small_grids,
    method=st.sampled_from(list(RESAMPLE)),
)
@settings(deadline=None, max_examples=20)
def test_a_model_computes_the_same_at_a_size_however_it_got_there(kind, inject, old, new, method):
    """Fed images of that size, resized to it, or made for inference at it."""
    if inject == "every" and not POSITION_KINDS[kind].has_tables:
        inject = None
    config = vit("mu/4", image=(4 * old[0], 4 * old[1]), positions=kind, inject=inject, classes=3)
    model = random_model(replace(config, resample=method, registers=1))
    size = (4 * new[0], 4 * new[1])
    x = random_images(1, 3, *size)
    with torch.no_grad():
        expected = model(x)
        for other in (resized(model, size), for_inference(model, size)):
            torch.testing.assert_close(other(x), expected, atol=1e-6, rtol=1e-6)
        if kind == "rotary":
            # Their extent is that of the training, whatever size comes in between.
            twice = resized(resized(model, (20, 8)), size)
            torch.testing.assert_close(twice(x), expected, atol=1e-6, rtol=1e-6)


def test_positions_without_a_meaning_elsewhere_refuse_both_ways():
    model = random_model(vit("mu/4", image=(16, 16), positions="relative", classes=3))
    with pytest.raises(ValueError, match="4 x 4 patches have no meaning on 3 x 4"):
        model(random_images(1, 3, 12, 16))
    with pytest.raises(ValueError, match="4 x 4 patches have no meaning on 3 x 4"):
        resized(model, (12, 16))
