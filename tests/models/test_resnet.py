"""ResNets and hybrids: the official numbers, and padding and standardisation by hand."""

import json
import re
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import TINY_BACKBONE, random_images, random_model

from vitkit.models import DIALECTS, Backbone, Conv, ResNetConfig, standardised
from vitkit.models.ancestors.resnet import Root, same_padding
from vitkit.weights import load


def reference(shared, name):
    """A model of the official code's, through the loader, with images and what it made of them."""
    side = json.loads(shared(f"reference/{name}.json").read_text())["image"]
    model = load(shared(f"reference/{name}.weights.npz"), image=tuple(side), quiet=True).model
    with np.load(shared(f"reference/{name}.expected.npz")) as file:
        expected = {key: torch.from_numpy(file[key]) for key in file}
    return model, expected.pop("images").permute(0, 3, 1, 2), expected


@pytest.mark.parametrize("name", ["hybrid_stem_only", "hybrid_stage3", "hybrid_stage4"])
def test_hybrids_compute_as_the_official_code(shared, name):
    model, images, expected = reference(shared, name)
    with torch.inference_mode():
        features = model.features(images)
        torch.testing.assert_close(features, expected["representation"], atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(model(images), expected["logits"], atol=1e-5, rtol=1e-5)

        # Without our own rounding
        model = model.double()
        images = images.double()
        features = model.features(images).float()
        torch.testing.assert_close(features, expected["representation"], atol=1e-5, rtol=0)
        torch.testing.assert_close(model(images).float(), expected["logits"], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "order"), [("resnet_bit", "post"), ("resnet_bit_paper", "pre")])
def test_resnets_compute_as_the_official_code(shared, name, order):
    model, images, expected = reference(shared, name)
    assert model.config.backbone.order == order
    with torch.inference_mode():
        torch.testing.assert_close(model(images), expected["logits"], atol=1e-5, rtol=0)


def test_the_default_is_r50x1():
    assert ResNetConfig().backbone == Backbone(units=(3, 4, 6, 3), width=1.0)


# Ours, theirs
TIMM_NAMES = {
    "blocks.0": "stages.0.blocks.0",
    "blocks.1": "stages.1.blocks.0",
    "blocks.2": "stages.1.blocks.1",
    "root": "stem",
    "shortcut_norm": "downsample.norm",
    "shortcut": "downsample.conv",
    "head": "head.fc",
}


@pytest.mark.parametrize(
    ("order", "dialect", "conv", "stem"),
    [("post", "timm", "StdConv2dSame", "same"), ("pre", "timm_bit", "StdConv2d", "fixed")],
)
def test_timms_dialects_compute_as_timm(order, dialect, conv, stem):
    """timm's hybrids and its BiT, with random weights."""
    timm = pytest.importorskip("timm")
    theirs = timm.models.resnetv2.ResNetV2(
        layers=(1, 2),
        channels=(256, 512),
        num_classes=5,
        preact=order == "pre",
        conv_layer=partial(getattr(timm.layers, conv), eps=1e-8),
        stem_type=stem,
    ).eval()
    backbone = Backbone((1, 2), 1.0, order, **DIALECTS[dialect])
    ours = random_model(ResNetConfig(backbone, (64, 48), classes=5))
    shapes = {name: tensor.shape for name, tensor in theirs.state_dict().items()}
    weights = {}
    for name, tensor in ours.state_dict().items():
        name = re.sub("|".join(TIMM_NAMES), lambda match: TIMM_NAMES[match[0]], name)
        weights[name] = tensor.reshape(shapes[name])
    theirs.load_state_dict(weights)
    with torch.inference_mode():
        for size in ((64, 48), (65, 47)):
            x = random_images(2, 3, *size)
            torch.testing.assert_close(ours(x), theirs(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize(("kernel", "stride"), [(7, 2), (3, 2), (3, 1), (1, 2)])
def test_same_padding_is_the_smallest_that_gives_every_output(size, kernel, stride):
    before, after = same_padding(size, kernel, stride)
    wanted = -(-size // stride)

    def outputs(padding):
        return (size + padding - kernel) // stride + 1

    assert after - before in (0, 1)
    if before + after:
        assert outputs(before + after) == wanted
        assert outputs(before + after - 1) < wanted
    else:
        assert outputs(0) >= wanted


@pytest.mark.parametrize("dialect", DIALECTS)
def test_standardised_by_loops(dialect):
    how = DIALECTS[dialect]["standardise"]
    eps = DIALECTS[dialect]["weight_eps"]
    weight = 1e-4 * torch.randn(3, 2, 3, 3, dtype=torch.float64)  # small, so that eps matters
    result = standardised(weight, how, eps)
    for kernel, ours in zip(weight.numpy(), result.numpy(), strict=True):
        spread = (kernel.var() + eps) ** 0.5
        if how == "std":
            spread = kernel.std() + eps
        np.testing.assert_allclose(ours, (kernel - kernel.mean()) / spread, rtol=1e-12)


def test_only_bits_zeros_count_as_pixels_in_the_pooling():
    """Of a map of -1; the borders of the others never win."""
    x = torch.full((1, 3, 16, 16), -1.0)
    for pool, least in (("same", -1), ("even", -1), ("zeros", 0)):
        root = Root(3, Backbone(pool=pool, order="pre", padding="even"))
        root.conv = torch.nn.AvgPool2d(2)
        out = root(x)
        assert out.shape == (1, 3, 4, 4)
        assert out.max() == least
        assert out[..., 1:, 1:].max() == -1


def test_recomputing_blocks_changes_no_gradient_below_which_nothing_is_trained():
    """A frozen root gives the first block an input without a gradient."""
    config = ResNetConfig(Backbone((1, 1), 0.5), image=(32, 32), classes=3)
    model = random_model(config).train()
    model.root.requires_grad_(False)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    gradients = []
    for recompute in (False, True):
        model.recompute = recompute
        model.zero_grad()
        model(images).square().sum().backward()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients.append([parameter.grad.clone() for parameter in trained])
    torch.testing.assert_close(gradients[0], gradients[1], atol=0, rtol=0)
    assert all(gradient.any() for gradient in gradients[1][:3])


def test_an_update_of_the_weight_is_seen_in_the_next_pass():
    conv = Conv(2, 3, 3, 1, TINY_BACKBONE)
    conv.init_weights()
    x = torch.randn(1, 2, 5, 5)
    optimizer = torch.optim.AdamW(conv.parameters(), 0.1, fused=True)
    for _ in range(2):
        with torch.no_grad():
            kernel = standardised(conv.weight, "std", 1e-5)
            torch.testing.assert_close(conv(x), F.conv2d(x, kernel, padding=1))
        conv(x).square().sum().backward()
        optimizer.step()
