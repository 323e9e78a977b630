"""Positions and axial attention against slow, obvious loops, and the symmetries that they must have."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_resnet import images, lively

from vitkit.models import create, recording, resample, vit
from vitkit.models.ancestors import AugmentedMixer, LocalMixer
from vitkit.models.attention_positions import Offsets, RotaryPositions
from vitkit.models.axial import AxialMixer, mean_2x2
from vitkit.models.positions import LearnedPositions2D, sincos

SMALL = vit("mu/8", image=(24, 32), classes=5, depth=2, heads=2)
AXIAL = replace(SMALL, mixer="axial", pool="gap")


def obvious(attention, tokens, table=None):
    """Attention of one sequence (T, D) by loops over heads, queries and keys, with the offsets of a table (2T - 1, E)."""
    count, width = tokens.shape
    size = width // attention.heads
    q, k, v = (tokens @ attention.qkv.weight.T + attention.qkv.bias).split(width, 1)
    out = torch.zeros_like(tokens)
    for h in range(attention.heads):
        one = slice(h * size, (h + 1) * size)
        for i in range(count):
            logits = []
            for j in range(count):
                logit = q[i, one] @ k[j, one]
                if table is not None:
                    logit = logit + q[i, one] @ table[i - j + count - 1]  # query minus key
                logits.append(logit / math.sqrt(size))
            for j, weight in enumerate(torch.stack(logits).softmax(0)):
                out[i, one] = out[i, one] + weight * v[j, one]
    return out @ attention.out.weight.T + attention.out.bias


@pytest.mark.parametrize("pool", ["token", "gap"])
@pytest.mark.parametrize("inject", ["every", "shared"])
def test_relative_positions_by_loops(pool, inject):
    model = lively(replace(SMALL, positions="relative", inject=inject, pool=pool)).double()
    x = images(1, 3, 24, 32).double()
    with torch.no_grad():
        z = model.embed(x)[0]  # nothing is added to the tokens
        for i, block in enumerate(model.blocks):
            where = model.positions[i] if inject == "every" else model.positions
            z = z + obvious(block.attention, block.norm1(z), where.offsets.table[0])
            z = z + block.mlp(block.norm2(z))
        torch.testing.assert_close(model.encode(x)[0], model.norm(z))
        pooled = model.norm(z)[0] if pool == "token" else model.norm(z).mean(0)
        torch.testing.assert_close(
            model.features(x)[0], pooled
        )  # the class token asks with its own offsets
        with recording(model) as record:
            shown = model.encode(x)
        torch.testing.assert_close(shown, model.encode(x))
        assert record.attention[0].shape == (1, 2, len(z), len(z))


def test_axial_layers_by_loops():
    model = lively(AXIAL).double()
    x = images(2, 3, 24, 32).double()
    with torch.no_grad():
        for example, found in zip(x, model.encode(x), strict=True):
            z = model.embed(example[None])[0].unflatten(0, (3, 4)).clone()
            for layer in model.blocks:
                for block, cuts in ((layer.row, [(r, slice(None)) for r in range(3)]),
                                    (layer.column, [(slice(None), c) for c in range(4)])):  # fmt: skip
                    for cut in cuts:
                        line = z[cut]
                        line = line + obvious(block.attention, block.norm1(line))
                        z[cut] = line + block.mlp(block.norm2(line))
            torch.testing.assert_close(found, model.norm(z.flatten(0, 1)))


@pytest.mark.parametrize("stride", [1, 2])
def test_axial_mixer_by_loops(stride):
    mixer = AxialMixer(16, stride, (3, 5)).double()
    for part in mixer.modules():
        if hasattr(part, "init_weights"):
            part.init_weights()
    x = images(1, 16, 3, 5).double()
    with torch.no_grad():
        z = x[0].permute(1, 2, 0).clone()
        for r in range(3):
            z[r] = obvious(mixer.row, z[r], mixer.row_offsets.table[0])
        for c in range(5):
            z[:, c] = obvious(mixer.column, z[:, c], mixer.column_offsets.table[0])
        if stride == 2:  # the mean of what a 2 x 2 window holds
            z = torch.stack(
                [
                    torch.stack([z[r : r + 2, c : c + 2].mean((0, 1)) for c in (0, 2, 4)])
                    for r in (0, 2)
                ]
            )
        torch.testing.assert_close(mixer(x)[0], z.permute(2, 0, 1))
        assert mixer(images(2, 16, 7, 4).double()).shape == (
            2,
            16,
            *((7, 4) if stride == 1 else (4, 2)),
        )


@given(seed=st.integers(0, 2**16), pool=st.sampled_from(["token", "gap", "map"]))
@settings(deadline=None, max_examples=15)
def test_without_positions_the_order_of_patches_is_nothing(seed, pool):
    model = lively(replace(SMALL, positions="none", pool=pool), seed)
    x = images(1, 3, 24, 32, seed=seed)
    patches = x.unfold(2, 8, 8).unfold(3, 8, 8).flatten(2, 3)  # (1, 3, N, 8, 8)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
    shuffled = patches[:, :, order].unflatten(2, (3, 4)).transpose(3, 4).flatten(4, 5).flatten(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(model(shuffled), model(x), atol=1e-4, rtol=1e-4)


@given(seed=st.integers(0, 2**16))
@settings(deadline=None, max_examples=15)
def test_axial_layers_know_rows_and_columns_only(seed):
    """Rows in another order come out in that order, and so do columns; rows for columns are the other order of blocks."""
    model = lively(replace(AXIAL, positions="none"), seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 3, 4, 32, generator=generator)
    rows, columns = torch.randperm(3, generator=generator), torch.randperm(4, generator=generator)
    layer = model.blocks[0]
    with torch.no_grad():
        straight = layer(x.flatten(1, 2), (3, 4)).unflatten(1, (3, 4))
        turned = layer(x[:, rows][:, :, columns].flatten(1, 2), (3, 4)).unflatten(1, (3, 4))
        torch.testing.assert_close(turned, straight[:, rows][:, :, columns], atol=1e-4, rtol=1e-4)
        across = layer.column(x).transpose(
            1, 2
        )  # columns' block on rows, then rows' block on columns
        swapped = layer.row(across).transpose(1, 2)
        layer.row, layer.column = layer.column, layer.row
        torch.testing.assert_close(
            layer(x.flatten(1, 2), (3, 4)).unflatten(1, (3, 4)), swapped, atol=1e-4, rtol=1e-4
        )


def test_a_patch_changes_its_cross_after_one_axial_layer():
    model = lively(replace(AXIAL, depth=1))
    x = images(1, 12, 32)
    other = x.clone()
    other[:, 5] += images(32, seed=1)  # row 1, column 1 of 3 x 4
    with torch.no_grad():
        half = [model.blocks[0].row(t.unflatten(1, (3, 4))) for t in (x, other)]
        assert ((half[0] - half[1]).abs().amax((0, 3)) > 1e-6).tolist() == [
            [False] * 4,
            [True] * 4,
            [False] * 4,
        ]
        whole = [model.blocks[0](t, (3, 4)) for t in (x, other)]
        assert (
            (whole[0] - whole[1]).abs().amax((0, 2)) > 1e-7
        ).all()  # then its row's columns: all there are


@pytest.mark.parametrize("side", [1, 4])
def test_moco_positions_are_its_formula(side):
    """MoCo v3's: its grids are square, and its first axis is the one that varies slowly."""
    found, omega = (
        sincos((side, side), 16, "sincos-moco")[0],
        [10_000 ** (-j / 4) for j in range(4)],
    )
    for n in range(side * side):
        row, column = divmod(n, side)
        expected = [
            wave(place * w)
            for place in (row, column)
            for wave in (math.sin, math.cos)
            for w in omega
        ]
        np.testing.assert_allclose(found[n].numpy(), expected, atol=1e-6)


def test_learned_columns_and_rows():
    positions = LearnedPositions2D(
        replace(SMALL, positions="learned2d", registers=1, prefix_positions=1)
    )
    positions.init_weights()
    table = positions.table((3, 4))[0]
    assert table.shape == (2 + 12, 32)
    assert (
        torch.equal(table[0], positions.prefix[0, 0]) and not table[1].any()
    )  # the register has none
    for n in range(12):
        row, column = divmod(n, 4)
        assert torch.equal(
            table[2 + n], torch.cat([positions.across[0, column], positions.down[0, row]])
        )
    larger = positions.table((5, 4))[0, 2:].unflatten(0, (5, 4))
    torch.testing.assert_close(
        larger[:, :, :16], positions.across[:, None].expand(-1, 5, -1, -1)[0]
    )
    torch.testing.assert_close(
        larger[1, 0, 16:], positions.down[0, :2].mean(0)
    )  # rows 0, 1/2, 1, ...


def test_every_block_and_the_stem_differ_only_in_where():
    """A shared table that is zero but for the first block is the stem's; tables of each block may be that."""
    base = replace(SMALL, depth=3)
    stem, every = lively(base), create(replace(base, inject="every"), seed=0).eval()
    state = {n: t for n, t in stem.state_dict().items() if not n.startswith("positions")}
    table = stem.positions.table.detach()
    state |= {
        f"positions.{i}.table": table if i == 0 else torch.zeros_like(table) for i in range(3)
    }
    every.load_state_dict(state)
    x = images(2, 3, 24, 32)
    with torch.no_grad():
        torch.testing.assert_close(every(x), stem(x), atol=1e-5, rtol=1e-5)
    shared, each = create(replace(base, inject="shared"), seed=0).eval(), every
    shared.load_state_dict(state := stem.state_dict())
    each.load_state_dict(
        {n: t for n, t in state.items() if n != "positions.table"}
        | {f"positions.{i}.table": table for i in range(3)}
    )
    with torch.no_grad():
        torch.testing.assert_close(shared(x), each(x))
        assert (shared(x) - stem(x)).abs().max() > 1e-3
        torch.testing.assert_close(shared(images(2, 3, 40, 24)), each(images(2, 3, 40, 24)))


def test_rotary_by_complex_numbers():
    positions = RotaryPositions(replace(SMALL, positions="rotary"))
    q, k = images(1, 2, 13, 16).double(), images(1, 2, 13, 16, seed=1).double()
    turned, _, bias = positions.in_attention((3, 4))(q, k)
    assert bias is None
    for n in range(13):
        pairs = torch.complex(q[0, 1, n, :8], q[0, 1, n, 8:])
        row, column = divmod(n - 1, 4)
        angle = (
            [place * 100 ** (-j / 4) for place in (column, row) for j in range(4)] if n else [0] * 8
        )
        pairs = pairs * torch.polar(
            torch.ones(8, dtype=torch.float64), torch.tensor(angle, dtype=torch.float64)
        )
        torch.testing.assert_close(
            turned[0, 1, n], torch.cat([pairs.real, pairs.imag]), atol=1e-6, rtol=1e-6
        )


def test_rotary_products_depend_on_offsets():
    positions = RotaryPositions(
        replace(SMALL, positions="rotary", class_token=False, pool="gap", image=(40, 40))
    )
    q, k = (images(1, 1, 1, 16, seed=seed).expand(-1, -1, 25, -1) for seed in (0, 1))
    q, k, _ = positions.in_attention((5, 5))(q, k)
    products = (q @ k.mT)[0, 0].reshape(5, 5, 5, 5)
    torch.testing.assert_close(products[0, 1, 2, 4], products[2, 0, 4, 3], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(products[3, 3, 1, 2], products[4, 2, 2, 1], atol=1e-5, rtol=1e-5)
    assert products.std() > 0.1


def test_offsets_stretch_over_the_same_extent():
    offsets = Offsets(5, 4)
    offsets.init_weights()
    q = images(1, 2, 9, 4)
    _, _, bias = offsets(q, q)
    table = resample(offsets.table, (1, 9), (1, 17), "google")[0]
    assert torch.equal(table[8], offsets.table[0, 4])  # no offset stays no offset
    torch.testing.assert_close(
        bias[0, 1, 2, 6], q[0, 1, 2] @ offsets.table[0, 2] / 2
    )  # four of eight is two of four


@pytest.mark.parametrize("part", ["offsets", "rotary", "mixer"])
def test_gradients_in_float64(part):
    q, k = (images(1, 2, 6, 4, seed=seed).double().requires_grad_() for seed in (0, 1))
    if part == "offsets":
        offsets = Offsets(4, 4).double()
        offsets.init_weights()
        assert torch.autograd.gradcheck(lambda q, table: offsets(q, k)[2], (q, offsets.table))
    elif part == "rotary":
        config = replace(SMALL, positions="rotary", pool="gap", width=8, image=(16, 24))
        assert torch.autograd.gradcheck(
            lambda q, k: RotaryPositions(config).in_attention((2, 3))(q, k)[:2], (q, k)
        )
    else:
        mixer = AxialMixer(8, 2, (2, 3)).double()
        for module in mixer.modules():
            if hasattr(module, "init_weights"):
                module.init_weights()
        x = images(1, 8, 2, 3).double().requires_grad_()
        assert torch.autograd.gradcheck(
            lambda x, *_: mixer(x), (x, mixer.row.qkv.weight, mixer.row_offsets.table)
        )


def test_stochastic_depth_of_an_axial_layer_drops_whole_examples():
    model = create(replace(AXIAL, stochastic_depth=0.5), seed=0).train()
    keep = model.blocks[1].row.stochastic_depth
    out = keep(torch.ones(64, 3, 4, 2))
    assert keep.rate == 0.5
    assert all(one.unique().numel() == 1 for one in out) and out.unique().numel() == 2


def ready(mixer):
    """In float64, with weights."""
    mixer = mixer.double()
    for module in mixer.modules():
        if hasattr(module, "init_weights"):
            module.init_weights()
    return mixer


@pytest.mark.parametrize("stride", [1, 2])
def test_local_attention_by_loops(stride):
    mixer, x = ready(LocalMixer(16, stride)), images(1, 16, 3, 9).double()
    with torch.no_grad():
        q, k, v = mixer.qkv(x[0].permute(1, 2, 0)).split(16, -1)
        out = torch.zeros(3, 9, 16, dtype=torch.float64)
        for r in range(3):
            for c in range(9):
                for h in range(8):
                    one, logits, values = slice(2 * h, 2 * h + 2), [], []
                    for y in range(max(r - 3, 0), min(r + 4, 3)):
                        for z in range(max(c - 3, 0), min(c + 4, 9)):
                            offset = torch.cat(
                                [mixer.down[0, y - r + 3], mixer.across[0, z - c + 3]]
                            )
                            logits.append(q[r, c, one] @ (k[y, z, one] + offset))
                            values.append(v[y, z, one])
                    out[r, c, one] = torch.stack(logits).softmax(0) @ torch.stack(values)
        out = out.permute(2, 0, 1)
        torch.testing.assert_close(mixer(x)[0], mean_2x2(out) if stride == 2 else out)


def test_augmented_convolution_by_loops():
    mixer, x = (
        ready(AugmentedMixer(64, 1, (2, 3), torch.nn.Conv2d(64, 56, 3, padding=1))),
        images(1, 64, 2, 3).double(),
    )
    places = [(r, c) for r in range(2) for c in range(3)]
    with torch.no_grad():
        q, k, v = mixer.qkv(x[0].permute(1, 2, 0)).split([16, 16, 8], -1)
        mixed = torch.zeros(2, 3, 8, dtype=torch.float64)
        for r, c in places:
            for h in range(8):
                mine, logits = q[r, c, 2 * h : 2 * h + 2], []
                for y, z in places:
                    key = (
                        k[y, z, 2 * h : 2 * h + 2]
                        + mixer.down.table[0, r - y + 1]
                        + mixer.across.table[0, c - z + 2]
                    )
                    logits.append(mine @ key / math.sqrt(2))
                weights = torch.stack(logits).softmax(0)
                mixed[r, c, h] = sum(
                    weight * v[y, z, h] for weight, (y, z) in zip(weights, places, strict=True)
                )
        expected = torch.cat([mixer.conv(x)[0], mixer.out(mixed).permute(2, 0, 1)])
        torch.testing.assert_close(mixer(x)[0], expected)


@pytest.mark.parametrize(
    "mixer", [LocalMixer(16, 2), AugmentedMixer(64, 2, (3, 4), torch.nn.Conv2d(64, 56, 3, 2, 1))]
)
def test_gradients_of_mixers_in_float64(mixer):
    mixer = ready(mixer)
    x = images(1, mixer.qkv.in_features, 3, 4).double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, *_: mixer(x), (x, *list(mixer.parameters())), fast_mode=True
    )


def test_lenet_is_about_sixty_thousand():
    model = create("LeNet-5", seed=0)
    assert sum(p.numel() for p in model.parameters()) == 61_706
    x = images(2, 1, 32, 32)
    assert model.encode(x).shape == (2, 1, 120) and model.features(x).shape == (2, 84)
    assert (model(x) == 0).all()
    model.features(x).sum().backward()
    with pytest.raises(ValueError, match=r"LeNet-5 takes images of 32 x 32 .* \(2, 1, 28, 28\)"):
        model(images(2, 1, 28, 28))
