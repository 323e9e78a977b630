"""Small models of every sort, with random weights, and images for them: what inspection is tested
on."""

import numpy as np
import torch

from vitkit.data import Preprocessing
from vitkit.models import Backbone, create, named, recording, vit
from vitkit.weights import Classifier

SIZE = (64, 96)
IMAGES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 3, *SIZE), np.uint8))
GRID = (4, 6)
N = 24


def small(**settings):
    """A Vision Transformer of two layers for 24 patches."""
    return vit("mu/16", **({"image": SIZE, "classes": 5, "depth": 2} | settings))


FAMILY = {
    "token": small(),
    "distilled": small(pool="distilled", registers=1),
    "token and mean": small(pool="token-gap", registers=2),
    "token and quarters": small(pool="token-quarters", registers=2),
    "pyramid": small(pool="token-pyramid", registers=2),
    "two blocks": small(pool="token-gap", read_blocks=2),
    "registers": small(registers=4, positions="rotary-dinov3", layer_scale=0.1),
    "corner": small(pool="corner", positions="none"),
    "mean": small(pool="gap", branch_norm="after"),
    "MAP": small(pool="map", positions="rotary"),
    "ViT-5": small(
        rms_norm=True, qk_norm=True, layer_scale=0.1, registers=4, positions="rotary-axial"
    ),
    "axial": named("Axial-mu/16", image=SIZE, classes=5, depth=2),
    "hybrid": vit("R26+mu/32", image=SIZE, classes=5, stem=Backbone((1, 1), 0.5), patch=2, depth=2),
    "relative": small(positions="relative"),
    "masked autoencoder": small(pool="gap", positions="sincos-mae", norm="pooled"),
    "no pooling": small(pool="none"),
}


def classifier(config) -> Classifier:
    """A model for images of 64 x 96 whose every parameter is random."""
    model = create(config, seed=0).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return Classifier(model, Preprocessing(size=SIZE), tuple("abcde"[: config.classes]))


def uniform(config) -> Classifier:
    """A model whose every token attends equally to all tokens."""
    own = classifier(config)
    for name, parameter in own.model.named_parameters():
        if ".qkv." in name:
            torch.nn.init.zeros_(parameter)
    return own


def recorded(model, images):
    """The attention of all layers, as numpy in float64."""
    with recording(model) as record, torch.no_grad():
        model(Preprocessing().normalise(images))
    return [weights.double().numpy() for weights in record.attention]
