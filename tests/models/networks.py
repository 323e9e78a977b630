"""Small models of every family, with random weights, for the tests of this folder."""

from dataclasses import replace

import torch

from vitkit.models import DIALECTS, Backbone, LeNetConfig, ResNetConfig, create, named, vit

TINY_BACKBONE = Backbone(units=(1, 2), width=0.5)


def small_resnet(**settings):
    return ResNetConfig(replace(TINY_BACKBONE, **settings), (32, 48), classes=5)


def attention_resnet(mixer):
    return ResNetConfig(Backbone((1, 1), mixer=mixer), (32, 48), classes=5)


def small_vit(**settings):
    return vit("mu/16", image=(64, 96), classes=5, depth=2, **settings)


FAMILY = {
    "hybrid": vit("R26+mu/32", image=(64, 96), classes=5, stem=TINY_BACKBONE, patch=2),
    "hybrid of a root": vit("R+mu/16", image=64, classes=5),
    "ResNet": small_resnet(),
    "BiT": small_resnet(order="pre", **DIALECTS["bit"]),
    "ResNet with BatchNorm": small_resnet(
        norm="batch", standardise="none", padding="even", pool="even"
    ),
    "axial ResNet": attention_resnet("axial"),
    "local ResNet": attention_resnet("local"),
    "augmented ResNet": attention_resnet("augmented"),
    "LeNet-5": LeNetConfig(channels=3, classes=5),
    "axial ViT": named("Axial-mu/16", image=(64, 96), classes=5, depth=2, stochastic_depth=0.1),
    "ViT": small_vit(),
    "MAP": small_vit(pool="map"),
    "distilled": small_vit(pool="distilled", registers=1),
    "token and mean": small_vit(pool="token-gap", registers=2),
    "token and quarters": small_vit(pool="token-quarters", registers=2),
    "two blocks": small_vit(pool="token-gap-quarters", read_blocks=2, registers=2),
    "pyramid": small_vit(pool="token-pyramid", read_blocks=2, registers=2),
    "DINOv2's giant": small_vit(swiglu=True, layer_scale=0.1, registers=4, prefix_positions=1),
    "no biases of q, k, v": small_vit(qkv_bias=False),
    "rectangles": small_vit(patch=(16, 8)),
    "rectangles that overlap": small_vit(patch=(16, 8), stride=(16, 4)),
    "CLIP": small_vit(embedding_norm=True, gelu="quick", eps=1e-5),
    "norm after": small_vit(branch_norm="after", pool="gap"),
    "DINOv3": small_vit(positions="rotary-dinov3", layer_scale=0.1, registers=4),
    "ViT-5": small_vit(
        rms_norm=True,
        qk_norm=True,
        qkv_bias=False,
        layer_scale=0.1,
        registers=4,
        positions="rotary",
    ),
    "normalised queries and keys": small_vit(qk_norm=True),
    "RMSNorm and MAP": small_vit(rms_norm=True, pool="map", positions="rotary-axial"),
    "sincos-mae": small_vit(positions="sincos-mae"),
    "no positions": small_vit(positions="none", pool="corner"),
    "learned2d": small_vit(positions="learned2d"),
    "learned, every block": small_vit(inject="every"),
    "learned2d, shared": small_vit(positions="learned2d", inject="shared"),
    "relative": small_vit(positions="relative"),
    "relative, shared": small_vit(positions="relative", inject="shared", pool="gap"),
    "sincos": small_vit(positions="sincos"),
    "sincos-1d": small_vit(positions="sincos-1d"),
    "sincos, shared": small_vit(positions="sincos", inject="shared"),
    "sincos-moco": small_vit(positions="sincos-moco"),
    "rotary": small_vit(positions="rotary", pool="map"),
}


def random_model(config, seed=0):
    """A model in evaluation mode whose every parameter is random, so that nothing hides behind a
    zero."""
    model = create(config, seed=seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def random_images(*shape, seed=0):
    """Normal numbers of this shape, the same at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def batch_for(config, count=2, seed=0):
    """Random images of the size that a model is made for."""
    return random_images(count, config.channels, *config.image, seed=seed)
