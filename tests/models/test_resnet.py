"""ResNets and hybrids: the official numbers, padding and standardisation by hand, and what every model promises."""

import copy
import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitkit.models import (
    DIALECTS,
    NAMES,
    Backbone,
    ResNetConfig,
    ViTConfig,
    build,
    called,
    config_from,
    create,
    named,
    plain,
)
from vitkit.models.convolution import Conv, same_padding, standardised
from vitkit.models.resnet import Root
from vitkit.objectives import Supervised
from vitkit.train import Optim
from vitkit.train.optim import parameter_groups
from vitkit.weights import load

TINY = Backbone(units=(1, 2), width=0.5)


def reference(shared, name):
    """A model of the official code's, through the loader, with images and what it made of them."""
    side = json.loads(shared(f"reference/{name}.json").read_text())["image"]
    model = load(shared(f"reference/{name}.weights.npz"), image=tuple(side), quiet=True).model
    with np.load(shared(f"reference/{name}.expected.npz")) as file:
        expected = {key: torch.from_numpy(file[key]) for key in file}
    return model, expected.pop("images").permute(0, 3, 1, 2), expected


@pytest.mark.parametrize("name", ["hybrid_stem_only", "hybrid_stage3", "hybrid_stage4"])
def test_official_hybrids(shared, name):
    model, images, expected = reference(shared, name)
    with torch.inference_mode():
        # float32 on both sides
        atol = 2e-5 if name == "hybrid_stage4" else 1e-5
        features = model.features(images)
        torch.testing.assert_close(features, expected["representation"], atol=atol, rtol=1e-5)
        torch.testing.assert_close(model(images), expected["logits"], atol=1e-5, rtol=1e-5)
        model, images = model.double(), images.double()  # without our own rounding
        torch.testing.assert_close(
            model.features(images).float(), expected["representation"], atol=1e-5, rtol=0
        )
        torch.testing.assert_close(model(images).float(), expected["logits"], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "order"), [("resnet_bit", "post"), ("resnet_bit_paper", "pre")])
def test_official_resnets(shared, name, order):
    model, images, expected = reference(shared, name)
    assert model.config.backbone.order == order
    with torch.inference_mode():
        torch.testing.assert_close(model(images), expected["logits"], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("order", "dialect"), [("post", "timm"), ("pre", "timm_bit")])
def test_timms_dialects(order, dialect):
    """timm's hybrids and its BiT, with random weights."""
    timm = pytest.importorskip("timm")
    conv = {"post": timm.layers.StdConv2dSame, "pre": timm.layers.StdConv2d}[order]
    theirs = timm.models.resnetv2.ResNetV2(
        (1, 2), (256, 512), num_classes=5, preact=order == "pre", conv_layer=partial(conv, eps=1e-8),
        stem_type={"post": "same", "pre": "fixed"}[order],
    ).eval()  # fmt: skip
    ours = lively(
        ResNetConfig(Backbone((1, 2), 1.0, order, **DIALECTS[dialect]), (64, 48), classes=5)
    )
    known, renamed = theirs.state_dict(), {}
    names = {"blocks.0": "stages.0.blocks.0", "blocks.1": "stages.1.blocks.0", "blocks.2": "stages.1.blocks.1",
             "root": "stem", "shortcut_norm": "downsample.norm", "shortcut": "downsample.conv", "head": "head.fc"}  # fmt: skip
    for name, tensor in ours.state_dict().items():
        name = re.sub("|".join(names), lambda found: names[found[0]], name)
        renamed[name] = tensor.reshape(known[name].shape)
    theirs.load_state_dict(renamed)
    with torch.inference_mode():
        for sides in ((64, 48), (65, 47)):
            torch.testing.assert_close(
                ours(images(2, 3, *sides)), theirs(images(2, 3, *sides)), atol=1e-4, rtol=1e-4
            )


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize(("kernel", "stride"), [(7, 2), (3, 2), (3, 1), (1, 2)])
def test_same_padding_is_the_smallest_that_gives_every_place(size, kernel, stride):
    low, high = same_padding(size, kernel, stride)
    assert (size + low + high - kernel) // stride + 1 >= -(-size // stride)
    assert (size + low + high - kernel) // stride + 1 == -(-size // stride) or low + high == 0
    assert high - low in (0, 1)
    assert low + high == 0 or (size + low + high - 1 - kernel) // stride + 1 < -(-size // stride)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_standardised_by_loops(dialect):
    how, eps = DIALECTS[dialect]["standardise"], DIALECTS[dialect]["weight_eps"]
    weight = 1e-4 * torch.randn(3, 2, 3, 3, dtype=torch.float64)  # small, so that eps matters
    found = standardised(weight, how, eps)
    for kernel, ours in zip(weight.numpy(), found.numpy(), strict=True):
        spread = kernel.std() + eps if how == "std" else (kernel.var() + eps) ** 0.5
        np.testing.assert_allclose(ours, (kernel - kernel.mean()) / spread, rtol=1e-12)


def test_borders_of_the_pooling():
    """BiT's zeros count as pixels; the others' borders never win."""
    x = torch.full((1, 3, 16, 16), -1.0)
    for pool, least in (("same", -1), ("even", -1), ("zeros", 0)):
        root = Root(3, Backbone(pool=pool, order="pre", padding="even"))
        root.conv = torch.nn.AvgPool2d(2)
        out = root(x)
        assert out.shape == (1, 3, 4, 4)
        assert out.max() == least
        assert out[..., 1:, 1:].max() == -1


@pytest.mark.parametrize("fused", [True, False])
def test_kernels_follow_the_weight(fused):
    conv = Conv(2, 3, 3, 1, TINY)
    conv.init_weights()
    x = torch.randn(1, 2, 5, 5)
    optimizer = torch.optim.AdamW(conv.parameters(), 0.1, fused=fused)
    for _ in range(2):
        with torch.no_grad():
            kernel = standardised(conv.weight, "std", 1e-5)
            torch.testing.assert_close(conv(x), F.conv2d(x, kernel, padding=1))
        conv(x).square().sum().backward()
        optimizer.step()


SMALL = [
    named("R26+Ti/32", depth=1, image=(64, 96), classes=5, stem=TINY, patch=2),
    named("R+Ti/16", depth=1, image=64, classes=5),
    ResNetConfig(TINY, (32, 48), classes=5),
    ResNetConfig(replace(TINY, order="pre", **DIALECTS["bit"]), (32, 48), classes=5),
    ResNetConfig(
        replace(TINY, norm="batch", standardise="none", padding="even", pool="even"),
        (32, 48),
        classes=5,
    ),
    *(
        ResNetConfig(Backbone((1, 1), mixer=mixer), (32, 48), classes=5)
        for mixer in ("axial", "local", "augmented")
    ),
    named("Axial-Ti/16", depth=2, image=(64, 96), classes=5, stochastic_depth=0.1),
    *(
        named("Ti/16", depth=2, image=(64, 96), classes=5, **changes)
        for changes in (
            {"positions": "none", "pool": "corner"},
            {"positions": "learned2d"},
            {"positions": "learned", "inject": "every"},
            {"positions": "learned2d", "inject": "shared"},
            {"positions": "relative"},
            {"positions": "relative", "inject": "shared", "pool": "gap"},
            {"positions": "sincos-moco"},
            {"positions": "sincos", "inject": "shared"},
            {"positions": "rotary", "pool": "map"},
        )
    ),
]


def lively(config, seed=0):
    """A model whose every parameter is random, so that nothing hides behind a zero."""
    model, generator = create(config, seed=seed).eval(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return model


def images(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def label(config):
    return getattr(config, "positions", config.__class__.__name__)


@pytest.mark.parametrize("config", SMALL, ids=label)
class TestEveryModel:
    def test_starts_at_zero_and_its_seams_fit(self, config):
        model, x = create(config, seed=0).eval(), images(2, 3, *config.image)
        assert (model(x) == 0).all()
        tokens, pooled = model.encode(x), model.features(x)
        assert tokens.shape[::2] == (2, model.head.in_features)
        assert pooled.shape == (2, model.head.in_features)
        model = lively(config)
        torch.testing.assert_close(model(x), model.head(model.features(x)))
        torch.testing.assert_close(
            model(x), torch.cat([model(x[:1]), model(x[1:])]), atol=1e-4, rtol=1e-4
        )

    def test_configuration_is_plain_values_and_back(self, config):
        again = config_from(json.loads(json.dumps(plain(config))))
        assert again == config and hash(again) == hash(config)

    def test_compiles_as_one_graph(self, config, request):
        request.addfinalizer(
            torch.compiler.reset
        )  # one function of many models: the limit of recompilations
        model, x = lively(config), images(2, 3, *config.image)
        compiled = torch.compile(copy.deepcopy(model), fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)

    def test_exports_with_any_batch(self, config):
        model, x = lively(config), images(3, 3, *config.image)
        with torch.no_grad():
            graph = torch.export.export(
                model, (x[:2],), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},)
            )
            torch.testing.assert_close(graph.module()(x), model(x), atol=1e-4, rtol=1e-4)

    def test_two_steps_and_finite_gradients_in_bfloat16(self, config):
        model, x = lively(config).train(), images(4, 3, *config.image)
        optimizer = Optim(lr=1e-3, decay_on="kernels", weight_decay=0.1, layer_decay=0.9).build(
            Supervised().learner(model)
        )
        for recompute in (False, True):
            model.recompute = recompute
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x).float(), torch.arange(4))
            loss.backward()
            assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
            assert all(
                p.grad.any() for n, p in model.named_parameters() if not n.endswith("qkv.bias")
            )
            optimizer.step()
            optimizer.zero_grad()
        half = model.eval().bfloat16()
        assert half(x.bfloat16()).isfinite().all()

    def test_gradients_in_float64(self, config):
        model = lively(
            replace(config, stochastic_depth=0.0) if isinstance(config, ViTConfig) else config
        ).double()
        x = images(1, 3, *config.image).double().requires_grad_()
        parameters = [
            p
            for n, p in model.named_parameters()
            if n.endswith(("table", "conv2.weight", "across", "row.qkv.weight"))
        ]

        def loss(x, *_):
            return model(x).sum()

        assert torch.autograd.gradcheck(loss, (x, *parameters[:3]), fast_mode=True, atol=1e-4)

    def test_any_legal_size(self, config):
        model = lively(config)
        if label(config) == "relative":
            with pytest.raises(
                ValueError, match="relative positions of 4 x 6 patches have no meaning on 2 x 4"
            ):
                model(images(1, 3, 32, 64))
            return
        for sides in ((64, 64), (128, 64)):
            assert model(images(1, 3, *sides)).isfinite().all()
        if isinstance(config, ViTConfig):
            with pytest.raises(ValueError, match="72 x 64 pixels cannot be cut into patches"):
                model(images(1, 3, 72, 64))
        else:
            assert model(images(1, 3, 37, 41)).shape == (1, 5)
        with pytest.raises(ValueError, match=r"of shape \(1, 1, 64, 64\)"):
            model(images(1, 1, 64, 64))


@pytest.mark.parametrize("name", NAMES)
def test_rules_of_the_optimiser_know_every_parameter(name):
    with torch.device("meta"):
        model = build(named(name))
    groups = parameter_groups(
        Supervised().learner(model), Optim(weight_decay=0.1, decay_on="kernels", layer_decay=0.9)
    )
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert decayed == {id(p) for p in model.parameters() if p.ndim in (2, 4)}
    model.recompute = True  # an attribute that the loop sets


def test_layers_of_positions_at_every_block():
    with torch.device("meta"):
        model = build(named("Ti/16", depth=2, positions="learned2d", inject="every"))
    scale = {
        id(p): g["scale"]
        for g in parameter_groups(Supervised().learner(model), Optim(layer_decay=0.5))
        for p in g["params"]
    }
    assert scale[id(model.positions[1].across)] == scale[id(model.blocks[1].norm1.bias)] == 0.5
    assert scale[id(model.positions[0].prefix)] == 0.25


def test_names():
    r50, deep = named("R50+B/32").stem, named("R50+B/16").stem
    assert (r50.units, deep.units) == (
        (3, 4, 6, 3),
        (3, 4, 9),
    )  # the layers of stage 4 go to stage 3
    assert named("R50+B/32").stride == 32 and named("R50+B/16").stride == 16
    ti = named("R+Ti/16")
    assert (ti.stem.units, ti.patch, ti.stride, ti.grid) == (
        (),
        8,
        32,
        (7, 7),
    )  # a /16 by name only
    assert named("R50+B/64").patch == 2 and named("R50+B/64").stem.units == (3, 4, 6, 3)
    assert named("R101x2+L/48").patch == 3 and named("R101x2+L/48").stem.features == 2048
    assert named("b/32") == named("B/32", width=384, mlp=1536, heads=6)
    assert named("R152x4").backbone.features == 8192
    assert named("Axial-B/16").pool == "gap"
    for name in set(NAMES) - {"b/32"}:  # which has S/32's shape
        x1 = "x1" if name.startswith(("Axial-R", "Local-R", "Augmented-R", "BN-R")) else ""
        assert called(named(name)).replace("ViT-", "") == name + x1
    assert (
        called(named("R101x2+L/48", depth=3))
        == "R101x2+ViT of width 1024, depth 3, mlp 4096, heads 16, patch 48"
    )


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: named("R50+B/20"), "no hybrid 'R50+B/20'"),
        (lambda: named("R34+B/32"), "no hybrid 'R34"),
        (lambda: named("R34"), "no model 'R34'"),
        (lambda: named("R50x1", widht=2), "no setting 'widht'"),
        (lambda: Backbone(width=0.3), "19 channels in the root, which GroupNorm cannot split"),
        (lambda: Backbone(units=(3, 0)), "every stage has at least one residual unit"),
        (lambda: Backbone(padding="valid"), "padding is 'valid'; it is one of same, even"),
        (lambda: ResNetConfig({"widht": 2}), "a Backbone has no setting 'widht'"),
        (lambda: ViTConfig(stem="R50"), "'R50' is no Backbone, nor its settings"),
        (lambda: Backbone(mixer="local", width=0.5), "32 channels in the root, which local attention cannot split"),
        (lambda: ResNetConfig(image=(0, 3)), "an image of 0 x 3 pixels"),
        (lambda: named("R50+B/32", image=240), "240 x 240 pixels cannot be cut into patches of 32 x 32"),
        (lambda: named("Axial-B/16", pool="token"), "no place in its rows and columns for 1 tokens"),
        (lambda: named("Axial-B/16", positions="relative"), "relative positions are made for attention among all tokens"),
        (lambda: named("B/16", positions="relative", inject="stem"), "relative positions act within attention"),
        (lambda: named("B/16", positions="sincos", inject="every"), "sincos positions have no parameters to differ by"),
        (lambda: named("B/16", inject="often"), "inject is 'often'; it is one of stem, every, shared"),
        (lambda: named("B/16", width=36, heads=6, positions="rotary"), "a head's width of 6 cannot hold rotary"),
    ],
)  # fmt: skip
def test_sentences(make, sentence):
    with pytest.raises(ValueError, match=sentence.replace("+", r"\+")):
        make()
