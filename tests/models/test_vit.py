"""The forward pass against Equations 1 to 4 written out again, and the seams' promises."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from vitkit.models import attention_maps, create, vit
from vitkit.models.attention import Attention, fused, plain

SMALL = vit("mu/8", image=(32, 24), classes=5, depth=3)


def lively(config, seed=0, **changes):
    """A model whose every parameter is random, so that nothing hides behind a zero."""
    model = create(replace(config, **changes), seed=seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return model


def images(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def obvious(model, x):
    """The paper's equations with loops over patches and heads, in float64, reading the model's parameters."""
    c, p = model.config, {n: t.double() for n, t in model.named_parameters()}

    def norm(z, name):
        mean, var = z.mean(-1, keepdim=True), z.var(-1, keepdim=True, correction=0)
        return (z - mean) / (var + c.eps).sqrt() * p[f"{name}.weight"] + p[f"{name}.bias"]

    def gelu(z):
        if c.gelu == "erf":
            return z * 0.5 * (1 + torch.erf(z / math.sqrt(2)))
        return 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))

    patches = []
    for row in range(x.shape[2] // c.patch):
        for column in range(x.shape[3] // c.patch):
            cut = x[
                :, :, row * c.patch : (row + 1) * c.patch, column * c.patch : (column + 1) * c.patch
            ]
            patches.append(
                cut.flatten(1).double() @ p["stem.project.weight"].flatten(1).T
                + p["stem.project.bias"]
            )
    z = torch.stack(patches, 1)
    if c.prefix:
        z = torch.cat([p["cls"].expand(len(x), -1, -1), z], 1)
    z = z + p["positions.table"]  # Eq. 1
    size = c.width // c.heads
    for i in range(c.depth):
        block = f"blocks.{i}"
        y, heads = norm(z, f"{block}.norm1"), []
        q, k, v = (
            y @ p[f"{block}.attention.qkv.weight"].T + p[f"{block}.attention.qkv.bias"]
        ).chunk(3, -1)
        for h in range(c.heads):
            one = slice(h * size, (h + 1) * size)
            weights = (q[..., one] @ k[..., one].mT / math.sqrt(size)).softmax(-1)  # Eq. 6
            heads.append(weights @ v[..., one])  # Eq. 7
        joined = torch.cat(heads, -1)  # Eq. 8
        z = (
            z + joined @ p[f"{block}.attention.out.weight"].T + p[f"{block}.attention.out.bias"]
        )  # Eq. 2
        y = gelu(
            norm(z, f"{block}.norm2") @ p[f"{block}.mlp.expand.weight"].T
            + p[f"{block}.mlp.expand.bias"]
        )
        z = z + y @ p[f"{block}.mlp.contract.weight"].T + p[f"{block}.mlp.contract.bias"]  # Eq. 3
    z = norm(z, "norm")
    z = z[:, 0] if c.pool == "token" else z[:, c.prefix :].mean(1)  # Eq. 4
    if c.representation:
        z = torch.tanh(z @ p["representation.weight"].T + p["representation.bias"])
    return z @ p["head.weight"].T + p["head.bias"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gelu": "erf", "eps": 1e-3},
        {"representation": 12},
        {"pool": "gap"},
        {"pool": "gap", "class_token": True},
        {"patch": 4, "depth": 1, "heads": 1},
    ],
)
def test_forward_is_equations_1_to_4(changes):
    model = lively(SMALL, **changes)
    x = images(2, 3, 32, 24)
    with torch.inference_mode():
        torch.testing.assert_close(model(x).double(), obvious(model, x), atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(
            model.double()(x.double()), obvious(model, x), atol=1e-12, rtol=1e-12
        )


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("representation", [0, 12])
def test_features_are_the_class_token_of_encode_with_less_work(training, representation):
    model = lively(SMALL, representation=representation).train(training)
    x = images(2, 3, 32, 24)
    state = model.encode(x)[:, 0]
    expected = torch.tanh(model.representation(state)) if representation else state
    torch.testing.assert_close(model.features(x), expected, atol=1e-6, rtol=1e-6)
    grads = []
    for pooled in (
        model.features,
        lambda x: (
            torch.tanh(model.representation(model.encode(x)[:, 0]))
            if representation
            else model.encode(x)[:, 0]
        ),
    ):
        model.zero_grad()
        model.head(pooled(x)).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for ours, whole in zip(*grads, strict=True):
        torch.testing.assert_close(ours, whole, atol=1e-5, rtol=1e-4)


def test_map_pooling_is_attention_of_the_probe_over_every_token():
    model = lively(SMALL, pool="map")
    x = images(2, 3, 32, 24)
    pool, tokens = model.pool, model.encode(x)
    mixed = pool.attention(
        torch.cat([pool.probe.expand(2, -1, -1), tokens], 1)
    )  # the probe among the tokens ...
    q, k, v = F.linear(
        torch.cat([pool.probe.expand(2, -1, -1), tokens], 1),
        pool.attention.qkv.weight,
        pool.attention.qkv.bias,
    ).chunk(3, -1)
    heads = lambda t: t.unflatten(-1, (2, -1)).transpose(1, 2)  # noqa: E731
    q, k, v = (
        heads(q)[:, :, :1],
        heads(k)[:, :, 1:],
        heads(v)[:, :, 1:],
    )  # ... asks, and is not asked
    mixed = pool.attention.out(((q @ k.mT / 4).softmax(-1) @ v).transpose(1, 2).flatten(2))
    expected = (mixed + pool.mlp(pool.norm(mixed)))[:, 0]
    torch.testing.assert_close(model.features(x), expected, atol=1e-5, rtol=1e-5)


def test_no_pooling_gives_every_token_and_no_classes_gives_features():
    x = images(2, 3, 32, 24)
    assert lively(SMALL, pool="none")(x).shape == (2, 12, 5)
    assert lively(SMALL, pool="none", class_token=True)(x).shape == (2, 13, 5)
    bare = lively(SMALL, classes=0)
    torch.testing.assert_close(bare(x), bare.features(x))


def test_any_image_size():
    model = lively(SMALL)
    for height, width in ((8, 8), (8, 64), (40, 24), (48, 80)):
        assert model.encode(images(1, 3, height, width)).shape == (1, 1 + height * width // 64, 32)
    with pytest.raises(ValueError, match="30 x 24 pixels cannot be cut into patches of 8 x 8"):
        model(images(1, 3, 30, 24))
    with pytest.raises(ValueError, match=r"torch.uint8 of shape \(1, 3, 32, 24\)"):
        model(torch.zeros(1, 3, 32, 24, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"of shape \(1, 1, 32, 24\)"):
        model(images(1, 1, 32, 24))


def test_permuting_patches_permutes_nothing_but_positions():
    """With a constant position table an encoder is a function of a set: the class token cannot tell the order."""
    model = lively(SMALL)
    with torch.no_grad():
        model.positions.table.copy_(model.positions.table[:, :1].clone())
    x = images(1, 3, 32, 24)
    turned = x.unflatten(2, (4, 8)).flip(2).flatten(2, 3)  # rows of patches in reverse
    torch.testing.assert_close(model(x), model(turned), atol=1e-5, rtol=1e-5)


@given(
    seed=st.integers(0, 2**16),
    keys=st.integers(1, 9),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
@settings(deadline=None, max_examples=25)
def test_both_attention_kernels_agree(seed, keys, dtype):
    q, k, v = (images(2, 3, keys, 4, seed=seed + i).to(dtype) for i in range(3))
    torch.testing.assert_close(fused(q, k, v), plain(q, k, v), atol=1e-5, rtol=1e-5)


def test_gradients_in_float64():
    model = lively(SMALL, depth=1, pool="map").double()
    x = images(1, 3, 32, 24).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: model(x).sum(), x, fast_mode=True)
    attention = Attention(8, 2).double()
    attention.init_weights()
    x, probe = (
        images(1, 4, 8).double().requires_grad_(),
        images(1, 1, 8, seed=1).double().requires_grad_(),
    )
    assert torch.autograd.gradcheck(attention, (x, probe))


class TestAttentionMaps:
    x = images(2, 3, 32, 24)

    def test_true_weights_and_unchanged_outputs(self):
        model = lively(SMALL)
        with torch.inference_mode():
            before = model(self.x)
            with attention_maps(model) as maps:
                during = model(self.x)
            after = model(self.x)
        torch.testing.assert_close(during, before, atol=1e-6, rtol=1e-6)
        assert torch.equal(after, before)
        assert [tuple(m.shape) for m in maps] == [(2, 2, 13, 13)] * 3
        for one in maps:
            torch.testing.assert_close(one.sum(-1), torch.ones(2, 2, 13))
        y = model.blocks[0].norm1(model.embed(self.x))
        q, k, _ = model.blocks[0].attention.qkv(y).chunk(3, -1)
        expected = (q[..., 16:] @ k[..., 16:].mT / 4).softmax(-1)  # second of two heads, 16 wide
        torch.testing.assert_close(maps[0][:, 1], expected, atol=1e-6, rtol=1e-5)

    def test_the_last_forward_pass_counts(self):
        model = lively(SMALL, pool="map")
        with attention_maps(model) as maps:
            model(self.x)
            model(self.x[:1])
        assert [tuple(m.shape) for m in maps] == [(1, 2, 12, 12)] * 3 + [(1, 2, 1, 12)]

    def test_never_empty(self):
        with (
            pytest.raises(RuntimeError, match="no forward pass ran"),
            attention_maps(create(SMALL)),
        ):
            pass
        with (
            pytest.raises(ValueError, match="Linear has no vitkit attention"),
            attention_maps(torch.nn.Linear(1, 1)),
        ):
            pass

    def test_left_as_it_was_after_an_error(self):
        model = lively(SMALL)
        with pytest.raises(ValueError, match="cannot be cut"), attention_maps(model):
            model(images(1, 3, 7, 7))
        assert all(
            m.mix is plain or m.mix.__module__ == "vitkit.models.attention"
            for m in model.modules()
            if isinstance(m, Attention)
        )
        assert model.tokens_read == 1


class TestRegularisation:
    x = images(64, 3, 32, 24)

    def test_dropout_is_after_positions_and_every_dense_layer_but_qkv(self):
        model = create(replace(SMALL, dropout=0.5), seed=0)
        dropped = [name for name, m in model.named_modules() if isinstance(m, torch.nn.Dropout)]
        assert dropped == ["dropout"] + [
            f"blocks.{i}.{n}" for i in range(3) for n in ("dropout", "mlp.dropout")
        ]
        counts = dict.fromkeys(dropped, 0)
        for name, module in model.named_modules():
            if name in counts:
                module.register_forward_hook(
                    lambda *_, name=name: counts.update({name: counts[name] + 1})
                )
        model(self.x)
        assert [counts[name] for name in dropped] == [1] + [
            1,
            2,
        ] * 3  # the MLP's after each of its two layers

    def test_no_dropout_in_evaluation(self):
        model = lively(SMALL, dropout=0.5, attention_dropout=0.5, stochastic_depth=0.5)
        assert torch.equal(model(self.x), model(self.x))
        model.train()
        assert not torch.equal(model(self.x), model(self.x))

    def test_attention_dropout_drops_weights(self):
        torch.manual_seed(0)
        q = torch.zeros(1, 1, 400, 4)
        mixed = plain(
            q, q, torch.ones(1, 1, 400, 4), dropout=0.3
        )  # uniform weights: the kept share, rescaled
        assert mixed.mean().item() == pytest.approx(1, abs=0.02)
        assert mixed.std() > 0.01

    def test_stochastic_depth_grows_linearly_and_keeps_the_mean(self):
        model = create(replace(SMALL, stochastic_depth=0.4), seed=0)
        assert [block.keep.rate for block in model.blocks] == pytest.approx([0, 0.2, 0.4])
        torch.manual_seed(0)
        out = model.blocks[2].keep(torch.ones(20_000, 1, 1))
        assert sorted(out.unique().tolist()) == pytest.approx([0, 1 / 0.6])
        assert out.mean().item() == pytest.approx(1, abs=0.02)

    def test_recomputing_blocks_changes_no_gradient(self):
        model = lively(SMALL, dropout=0.3, stochastic_depth=0.3).train()
        grads = []
        for again in (False, True):
            model.recompute = again
            model.zero_grad()
            torch.manual_seed(1)
            model(self.x).square().sum().backward()
            grads.append([p.grad.clone() for p in model.parameters()])
        for one, other in zip(*grads, strict=True):
            assert torch.equal(one, other)


def test_compiles_as_one_graph():
    model = lively(SMALL)
    x = images(2, 3, 32, 24)
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x))
    torch.testing.assert_close(compiled(images(2, 3, 40, 40)), model(images(2, 3, 40, 40)))
    with attention_maps(compiled) as maps:
        compiled(x)
    assert len(maps) == 3
