"""The forward pass against Equations 1 to 4 written out again; pooling, masks, regularisation."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import random_images, random_model

from vitkit.models import Attention, create, recording, vit
from vitkit.models.attention import fused, unfused, unfused_is_faster

SMALL = vit("mu/8", image=(32, 24), classes=5, depth=3)  # 4 x 3 patches


def small(**changes):
    """A random model of a few blocks."""
    return random_model(replace(SMALL, **changes))


def equations_1_to_4(model, images):
    """The paper's equations with loops over patches and heads, in float64, from the model's
    parameters: (B, C, H, W) -> (B, K)."""
    config = model.config
    weights = {name: tensor.double() for name, tensor in model.named_parameters()}
    images = images.double()

    def dense(x, name):
        return x @ weights[f"{name}.weight"].flatten(1).T + weights.get(f"{name}.bias", 0)

    def norm(x, name):
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, correction=0)
        standardised = (x - mean) / (variance + config.eps).sqrt()
        return standardised * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def gelu(x):
        if config.gelu == "erf":
            return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        if config.gelu == "quick":
            return x / (1 + torch.exp(-1.702 * x))
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def attention(x, name):
        q, k, v = dense(x, f"{name}.qkv").chunk(3, -1)  # Eq. 5
        head_width = config.width // config.heads
        heads = []
        for h in range(config.heads):
            head = slice(h * head_width, (h + 1) * head_width)
            logits = q[..., head] @ k[..., head].mT / math.sqrt(head_width)
            heads.append(logits.softmax(-1) @ v[..., head])  # Eq. 6 and 7
        return dense(torch.cat(heads, -1), f"{name}.out")  # Eq. 8

    # Eq. 1
    patches = []
    for top in range(0, images.shape[2], config.patch):
        for left in range(0, images.shape[3], config.patch):
            patch = images[:, :, top : top + config.patch, left : left + config.patch]
            patches.append(dense(patch.flatten(1), "stem.project"))
    z = torch.stack(patches, 1)
    if config.has_class_token:
        z = torch.cat([weights["cls"].expand(len(images), -1, -1), z], 1)
    z = z + weights["positions.table"]
    if config.embedding_norm:
        z = norm(z, "embedding_norm")

    def mlp(x, name):
        hidden = dense(x, f"{name}.expand")
        if config.swiglu:
            gate = hidden[..., : config.mlp]
            hidden = gate / (1 + torch.exp(-gate)) * hidden[..., config.mlp :]
        else:
            hidden = gelu(hidden)
        return dense(hidden, f"{name}.contract")

    states = []
    for i in range(config.depth):
        block = f"blocks.{i}"
        if config.branch_norm == "after":
            z = z + norm(attention(z, f"{block}.attention"), f"{block}.norm1")
            z = z + norm(mlp(z, f"{block}.mlp"), f"{block}.norm2")
        else:
            z = z + attention(norm(z, f"{block}.norm1"), f"{block}.attention")  # Eq. 2
            z = z + mlp(norm(z, f"{block}.norm2"), f"{block}.mlp")  # Eq. 3

        states.append(z)

    # Eq. 4
    y = torch.cat([pooled(norm(z, "norm"), config) for z in states[-config.read_blocks :]], -1)
    if config.representation:
        y = torch.tanh(dense(y, "representation"))
    return dense(y, "head")


def pooled(z, config):
    y = z[:, 0]
    if config.pool == "gap":
        y = z[:, config.prefix :].mean(1)
    if config.pool == "token-gap":
        y = torch.cat([z[:, 0], z[:, 1:].mean(1)], -1)
    if config.pool == "token-quarters":
        y = torch.cat([z[:, 0], *parts(z[:, 1:], config.grid, 2)], -1)
    if config.pool == "token-gap-quarters":
        y = torch.cat([z[:, 0], z[:, 1:].mean(1), *parts(z[:, 1:], config.grid, 2)], -1)
    if config.pool == "token-pyramid":
        levels = [means for sides in (1, 2, 4) for means in parts(z[:, 1:], config.grid, sides)]
        y = torch.cat([z[:, 0], *levels], -1)
    return y


def parts(patches, grid, sides):
    """The means of the patches in each of sides x sides parts, (B, N, D) -> (B, D) each: a patch is in a
    part if more than nothing of it is."""
    height, width = grid
    means = []
    for part in range(sides**2):
        top, left = height * (part // sides) / sides, width * (part % sides) / sides
        inside = []
        for i in range(height * width):
            row, column = divmod(i, width)
            overlaps_rows = row < top + height / sides and row + 1 > top
            overlaps_columns = column < left + width / sides and column + 1 > left
            if overlaps_rows and overlaps_columns:
                inside.append(patches[:, i])
        means.append(torch.stack(inside).mean(0))
    return means


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gelu": "erf", "eps": 1e-3},
        {"representation": 12},
        {"pool": "gap"},
        {"pool": "gap", "class_token": True},
        {"pool": "token-gap", "swiglu": True},
        {"pool": "token-quarters"},
        {"pool": "token-gap-quarters", "read_blocks": 2},
        {"pool": "token-pyramid", "read_blocks": 2},
        {"read_blocks": 2},
        {"pool": "gap", "read_blocks": 2},
        {"gelu": "quick", "embedding_norm": True},
        {"branch_norm": "after"},
        {"patch": 4, "depth": 1, "heads": 1},
    ],
)
def test_forward_is_equations_1_to_4(changes):
    model = small(**changes)
    x = random_images(2, 3, 32, 24)
    with torch.inference_mode():
        expected = equations_1_to_4(model, x)
        torch.testing.assert_close(model(x).double(), expected, atol=2e-5, rtol=1e-5)
        logits = model.double()(x.double())
        torch.testing.assert_close(logits, equations_1_to_4(model, x), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("representation", [0, 12])
def test_features_are_the_class_token_of_encode_with_less_work(training, representation):
    model = small(representation=representation).train(training)
    x = random_images(2, 3, 32, 24)

    def from_all_tokens(images):
        y = model.encode(images)[:, 0]
        if representation:
            y = torch.tanh(model.representation(y))
        return y

    def gradients(features):
        model.zero_grad()
        model.head(features(x)).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    torch.testing.assert_close(model.features(x), from_all_tokens(x), atol=1e-6, rtol=1e-6)
    expected = gradients(from_all_tokens)
    torch.testing.assert_close(gradients(model.features), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("prefix", [0, 3])
def test_map_pooling_is_attention_of_the_probe_to_every_patch(prefix):
    model = small(pool="map", registers=prefix)
    pool = model.pool
    x = random_images(2, 3, 32, 24)
    patches = model.encode(x)[:, prefix:]
    probe = pool.probe.expand(2, -1, -1)

    def heads(t):
        return t.unflatten(-1, (2, -1)).transpose(1, 2)

    q, _, _ = pool.attention.qkv(probe).chunk(3, -1)
    _, k, v = pool.attention.qkv(patches).chunk(3, -1)
    weights = (heads(q) @ heads(k).mT / 4).softmax(-1)  # heads are 16 wide
    mixed = pool.attention.out((weights @ heads(v)).transpose(1, 2).flatten(2))
    expected = mixed + pool.mlp(pool.norm(mixed))
    torch.testing.assert_close(model.features(x), expected[:, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("wrong", [{"classes": 0}, {"norm": "pooled"}])
def test_a_distilled_model_without_its_classifiers_is_refused(wrong):
    with pytest.raises(ValueError, match="a classifier for each of two tokens"):
        vit("mu/8", image=(32, 32), pool="distilled", registers=1, **wrong)


def test_without_a_pooling_every_token_has_an_answer():
    x = random_images(2, 3, 32, 24)
    assert small(pool="none")(x).shape == (2, 12, 5)
    assert small(pool="none", class_token=True)(x).shape == (2, 13, 5)


def test_without_classes_a_model_gives_its_features():
    model = small(classes=0)
    x = random_images(2, 3, 32, 24)
    assert torch.equal(model(x), model.features(x))


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (torch.zeros(1, 3, 30, 24), "30 x 24 pixels cannot be cut into patches of 8 x 8"),
        (torch.zeros(1, 3, 32, 24).byte(), r"torch.uint8 of shape \(1, 3, 32, 24\)"),
        (torch.zeros(1, 1, 32, 24), r"of shape \(1, 1, 32, 24\)"),
    ],
)
def test_other_images_are_refused(images, sentence):
    with pytest.raises(ValueError, match=sentence):
        small()(images)


@given(
    seed=st.integers(0, 2**16),
    keys=st.integers(1, 9),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
@settings(deadline=None, max_examples=25)
def test_both_ways_to_compute_attention_agree(seed, keys, dtype):
    q = random_images(2, 3, keys, 4, seed=seed).to(dtype)
    k = random_images(2, 3, keys, 4, seed=seed + 1).to(dtype)
    v = random_images(2, 3, keys, 4, seed=seed + 2).to(dtype)
    torch.testing.assert_close(fused(q, k, v), unfused(q, k, v), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "has_bias", "longest"),
    [(torch.bfloat16, False, 600), (torch.bfloat16, True, 600), (torch.float32, True, 16)],
)
def test_short_sequences_are_computed_by_products(dtype, has_bias, longest):
    """By as many tokens as benchmarks/attention.py and axial.py have shown."""
    for tokens in (longest, longest + 1):
        k = torch.empty(1, 700, tokens, 2, dtype=dtype)
        bias = torch.empty(()) if has_bias else None
        assert unfused_is_faster(k, k, bias) == (tokens == longest)
    k = torch.empty(1, 1, 5, 2)
    assert not unfused_is_faster(k, k, None)


def test_gradients_are_those_of_finite_differences():
    """Of the first queries alone; those of models: test_every_model.py."""
    attention = Attention(8, 2).double()
    attention.init_weights()
    tokens = random_images(1, 4, 8).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: attention(x, queries=1), tokens)


class TestMask:
    def test_two_images_in_one_sequence_are_two_images(self):
        """Packing: each token may look at its own image alone."""
        model = small()
        first = random_images(1, 3, 32, 24)
        second = random_images(1, 3, 32, 24, seed=1)
        tokens = torch.cat([model.embed(first), model.embed(second)], 1)  # (1, 2T, D)
        count = tokens.shape[1] // 2
        image = torch.arange(2 * count) // count
        mask = image[:, None] == image  # (2T, 2T)
        packed = model.encoder(tokens, (4, 3), mask=mask)
        alone = torch.cat([model.encode(first), model.encode(second)], 1)
        torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize("queries", [None, 1])
    def test_padding_changes_nothing(self, queries):
        model = small()
        tokens = model.embed(random_images(2, 3, 32, 24))
        padded = torch.cat([tokens, random_images(2, 5, 32)], 1)
        mask = (torch.arange(padded.shape[1]) < tokens.shape[1])[None, None, None]  # (1, 1, 1, T)
        expected = model.encoder(tokens, (4, 3), queries=queries)
        masked = model.encoder(padded, (4, 3), mask=mask, queries=queries)
        torch.testing.assert_close(masked[:, : expected.shape[1]], expected, atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("kind", ["learned", "relative"])
    def test_a_token_that_may_look_at_nothing_harms_no_other(self, dtype, kind):
        """Padding that is masked as a query too, in both ways to compute attention."""
        model = small(positions=kind).to(dtype)
        tokens = model.embed(random_images(2, 3, 32, 24).to(dtype))
        mask = torch.ones(2, 1, 13, 13, dtype=torch.bool)
        mask[1, :, 9:] = False
        mask[1, :, :, 9:] = False
        with torch.no_grad(), recording(model) as record:
            states = model.encoder(tokens, (4, 3), mask=mask)
        assert states.isfinite().all()
        if kind == "learned":
            alone = model.encoder(tokens[1:, :9], (4, 3))
            tolerance = {"atol": 1e-5, "rtol": 1e-5}
            if dtype == torch.bfloat16:
                tolerance = {"atol": 0.2, "rtol": 0.1}
            torch.testing.assert_close(states[1:, :9], alone, **tolerance)
        assert record.attention[0].isfinite().all()
        assert not record.attention[0][1, :, 9:].any()

    @pytest.mark.parametrize("mask", [torch.ones(13).bool(), torch.ones(13, 13)])
    def test_a_mask_is_bool_and_of_two_axes(self, mask):
        model = small()
        with pytest.raises(ValueError, match="it must be bool, "):
            model.encoder(model.embed(random_images(1, 3, 32, 24)), (4, 3), mask=mask)

    def test_a_mask_and_a_bias_act_together(self):
        attention = Attention(8, 2).double()
        attention.init_weights()
        x = random_images(2, 5, 8).double()
        bias = random_images(2, 2, 5, 5, seed=1).double()
        mask = torch.ones(5, 5).tril().bool()

        def positions(q, k):
            return q, k, bias

        q, k, v = attention.project(x)
        logits = (q @ k.mT / 2 + bias).masked_fill(~mask, -torch.inf)
        expected = attention.join(logits.softmax(-1) @ v)
        torch.testing.assert_close(attention(x, positions, mask), expected)
        first_two = attention(x, positions, mask, queries=2)
        torch.testing.assert_close(first_two, expected[:, :2])

    def test_axial_attention_takes_none(self):
        model = small(mixer="axial", pool="gap")
        with pytest.raises(ValueError, match="axial attention takes none"):
            model.encoder(
                model.embed(random_images(1, 3, 32, 24)), (4, 3), mask=torch.ones(12, 12).bool()
            )


class TestRegularisation:
    x = random_images(64, 3, 32, 24)

    def test_dropout_is_after_positions_and_every_dense_layer_but_qkv(self):
        model = create(replace(SMALL, dropout=0.5), seed=0)
        calls = []
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Dropout):
                module.register_forward_hook(lambda *_, name=name: calls.append(name))
        model(self.x)
        expected = ["dropout"]
        for i in range(3):
            mlp = f"blocks.{i}.mlp.dropout"  # after each of its two layers
            expected += [f"blocks.{i}.dropout", mlp, mlp]
        assert calls == expected

    def test_no_dropout_in_evaluation(self):
        model = small(dropout=0.5, attention_dropout=0.5, stochastic_depth=0.5)
        assert torch.equal(model(self.x), model(self.x))
        model.train()
        assert not torch.equal(model(self.x), model(self.x))

    def test_attention_dropout_drops_weights_and_keeps_the_mean(self):
        torch.manual_seed(0)
        q = torch.zeros(1, 1, 400, 4)  # all keys alike: uniform weights
        v = torch.ones(1, 1, 400, 4)
        mixed = unfused(q, q, v, dropout=0.3)
        assert mixed.mean().item() == pytest.approx(1, abs=0.02)
        assert mixed.std() > 0.01

    def test_stochastic_depth_grows_linearly_and_keeps_the_mean(self):
        model = create(replace(SMALL, stochastic_depth=0.4), seed=0)
        rates = [block.stochastic_depth.rate for block in model.blocks]
        assert rates == pytest.approx([0, 0.2, 0.4])
        torch.manual_seed(0)
        out = model.blocks[2].stochastic_depth(torch.ones(20_000, 1, 1))
        assert sorted(out.unique().tolist()) == pytest.approx([0, 1 / 0.6])
        assert out.mean().item() == pytest.approx(1, abs=0.02)

    def test_recomputing_blocks_changes_no_gradient(self):
        model = small(dropout=0.3, stochastic_depth=0.3).train()
        calls = []
        model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(model.recompute))
        gradients = []
        for recompute in (False, True):
            model.recompute = recompute
            model.zero_grad()
            torch.manual_seed(1)
            model(self.x).square().sum().backward()
            gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        torch.testing.assert_close(gradients[0], gradients[1], atol=0, rtol=0)
        assert calls == [False, True, True]


@pytest.mark.slow
def test_it_compiles_as_one_graph_at_every_size():
    model = small(depth=1)
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True, backend="eager", dynamic=False)
    for size in ((32, 24), (40, 40)):
        x = random_images(2, 3, *size)
        torch.testing.assert_close(compiled(x), model(x))
