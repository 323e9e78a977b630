"""The forward pass against Equations 1 to 4 written out again, and the seams' promises."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from vitkit.models import create, named, recording, vit
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
    x = images(1, 4, 8).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: attention(x, queries=1), x)


class TestMask:
    def test_two_images_in_one_sequence_are_two_images(self):
        """Packing: tokens that may look at their own image only have the states they have alone."""
        model = lively(SMALL)
        first, second = images(1, 3, 32, 24), images(1, 3, 32, 24, seed=1)
        tokens = torch.cat([model.embed(first), model.embed(second)], 1)  # (1, 2T, D)
        count = tokens.shape[1] // 2
        image = torch.arange(2 * count) // count
        mask = image[:, None] == image  # (2T, 2T)
        packed = model.encoder(tokens, (4, 3), mask=mask)
        alone = torch.cat([model.encode(first), model.encode(second)], 1)
        torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize("queries", [None, 1])
    def test_padding_changes_nothing(self, queries):
        model = lively(SMALL)
        tokens = model.embed(images(2, 3, 32, 24))
        padded = torch.cat([tokens, images(2, 5, 32)], 1)
        mask = (torch.arange(padded.shape[1]) < tokens.shape[1])[None, None, None]  # (1, 1, 1, T)
        expected = model.encoder(tokens, (4, 3), queries=queries)
        masked = model.encoder(padded, (4, 3), mask=mask, queries=queries)
        torch.testing.assert_close(masked[:, : expected.shape[1]], expected, atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("kind", ["learned", "relative"])
    def test_a_token_that_may_look_at_nothing_harms_no_other(self, dtype, kind):
        """Padding that is masked as a query too: whatever way attention is computed."""
        model = lively(SMALL, positions=kind).to(dtype)
        tokens = model.embed(images(2, 3, 32, 24).to(dtype))
        mask = torch.ones(2, 1, 13, 13, dtype=torch.bool)
        mask[1, :, 9:] = False
        mask[1, :, :, 9:] = False
        with torch.no_grad(), recording(model) as record:
            states = model.encoder(tokens, (4, 3), mask=mask)
        assert states.isfinite().all()
        if kind == "learned":
            alone = model.encoder(tokens[1:, :9], (4, 3))
            close = (
                {"atol": 1e-5, "rtol": 1e-5}
                if dtype == torch.float32
                else {"atol": 0.2, "rtol": 0.1}
            )
            torch.testing.assert_close(states[1:, :9], alone, **close)
        assert record.attention[0].isfinite().all()
        assert not record.attention[0][1, :, 9:].any()

    @pytest.mark.parametrize("mask", [torch.ones(13).bool(), torch.ones(13, 13)])
    def test_what_is_no_mask(self, mask):
        model = lively(SMALL)
        with pytest.raises(ValueError, match="it is bool, "):
            model.encoder(model.embed(images(1, 3, 32, 24)), (4, 3), mask=mask)

    def test_a_mask_goes_with_a_bias(self):
        attention = Attention(8, 2).double()
        attention.init_weights()
        x = images(2, 5, 8).double()
        bias = images(2, 2, 5, 5, seed=1).double()
        mask = torch.ones(5, 5).tril().bool()

        def positions(q, k):
            return q, k, bias

        q, k, v = attention.project(x)
        logits = (q @ k.mT / 2 + bias).masked_fill(~mask, -torch.inf)
        expected = attention.join(logits.softmax(-1) @ v)
        torch.testing.assert_close(attention(x, positions, mask), expected)
        some = attention(x, positions, mask, queries=2)
        torch.testing.assert_close(some, expected[:, :2])

    def test_axial_attention_takes_none(self):
        model = lively(replace(SMALL, mixer="axial", pool="gap"))
        with pytest.raises(ValueError, match="axial attention takes none"):
            model.encoder(model.embed(images(1, 3, 32, 24)), (4, 3), mask=torch.ones(12, 12).bool())


class TestRecording:
    x = images(2, 3, 32, 24)

    @pytest.mark.parametrize("training", [False, True])
    def test_outputs_stay_to_the_bit(self, training):
        model = lively(SMALL, dropout=0.2, attention_dropout=0.2, stochastic_depth=0.2)
        model.train(training)
        torch.manual_seed(0)
        before = model(self.x), model(self.x)
        torch.manual_seed(0)
        with recording(model):
            during = model(self.x), model(self.x)
        assert all(torch.equal(a, b) for a, b in zip(before, during, strict=True))
        assert not any(module._forward_hooks for module in model.modules())

    def test_true_weights_of_every_token(self):
        """Also of the last block, which answers for the class token alone."""
        model = lively(SMALL)
        with torch.no_grad(), recording(model) as record:
            model(self.x)
        assert [tuple(m.shape) for m in record.attention] == [(2, 2, 13, 13)] * 3
        for weights in record.attention:
            torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 13))
        states = [record.embedding, *record.states]
        for block, state, weights in zip(model.blocks, states, record.attention, strict=False):
            q, k, _ = block.attention.qkv(block.norm1(state)).chunk(3, -1)
            expected = (q[..., 16:] @ k[..., 16:].mT / 4).softmax(-1)  # second of two heads
            torch.testing.assert_close(weights[:, 1], expected, atol=1e-6, rtol=1e-5)

    def test_states_of_every_token(self):
        model = lively(SMALL)
        with torch.inference_mode():
            with recording(model, attention=False) as record:
                logits = model(self.x)
            torch.testing.assert_close(record.embedding, model.embed(self.x))
            torch.testing.assert_close(model.norm(record.states[-1]), model.encode(self.x))
            torch.testing.assert_close(model.head(record.features), logits)
        assert len(record.states) == 3 and record.attention == []

    def test_the_last_forward_pass_counts(self):
        model = lively(SMALL, pool="map")
        with recording(model) as record:
            model(self.x)
            model(self.x[:1])
        shapes = [tuple(weights.shape) for weights in record.attention]
        assert shapes == [(1, 2, 12, 12)] * 3 + [(1, 2, 1, 12)]
        assert record.states[0].shape == (1, 12, 32)

    def test_never_empty(self):
        nothing = pytest.raises(RuntimeError, match="no forward pass ran")
        with nothing, recording(create(SMALL)):
            pass
        with pytest.raises(ValueError, match="Linear is no model of vitkit's"):
            recording(torch.nn.Linear(1, 1)).__enter__()

    def test_what_cannot_be_recorded(self):
        model = lively(SMALL).train()
        model.recompute = True
        with pytest.raises(ValueError, match="set model.recompute to False"):
            recording(model).__enter__()
        model.eval()
        with recording(model) as record:
            model(self.x)
            model.encode(self.x)
        assert record.features is None and len(record.states) == 3  # the last pass had no head

    def test_nothing_stays_after_an_error(self):
        model = lively(SMALL)
        with pytest.raises(ValueError, match="cannot be cut"), recording(model):
            model(images(1, 3, 7, 7))
        assert not any(module._forward_hooks for module in model.modules())

    @pytest.mark.parametrize("name", ["BiT-R50x1", "Axial-R50", "LeNet-5", "R26+mu/32"])
    def test_every_family(self, name):
        config = named(name, classes=5)
        if name != "LeNet-5":
            config = replace(config, image=(64, 64))
        if hasattr(config, "backbone"):
            config = replace(config, backbone=replace(config.backbone, units=(1, 1)))
        model = lively(config)
        x = images(1, config.channels, *config.image)
        with torch.inference_mode():
            expected = model(x)
            with recording(model) as record:
                assert torch.equal(model(x), expected)
        assert len(record.states) == len(model.blocks)


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
        assert [block.stochastic_depth.rate for block in model.blocks] == pytest.approx(
            [0, 0.2, 0.4]
        )
        torch.manual_seed(0)
        out = model.blocks[2].stochastic_depth(torch.ones(20_000, 1, 1))
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
    with torch.no_grad(), recording(model) as record:
        model(x)
    with torch.no_grad(), recording(compiled) as compiled_record:
        torch.testing.assert_close(compiled(x), model(x))
    torch.testing.assert_close(compiled_record.attention, record.attention)
    torch.testing.assert_close(compiled_record.states, record.states)
