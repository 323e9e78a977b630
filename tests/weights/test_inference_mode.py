"""Loading as a server does it, inside `torch.inference_mode()`: every family, at its own size of
images and at another."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from vitkit.models import Backbone, LeNetConfig, ResNetConfig, vit
from vitkit.weights import load, save
from vitkit.weights.proof import convert_weights

FAMILY = {
    "token": vit("mu/8", image=32, classes=5, depth=2),
    "map": vit("mu/8", image=32, classes=5, pool="map"),
    "every position": vit("mu/8", image=32, classes=5, pool="none", positions="sincos"),
    "learned2d": vit("mu/8", image=32, classes=5, positions="learned2d"),
    "at every block": vit("mu/8", image=32, classes=5, depth=2, inject="every"),
    "sincos": vit("mu/8", image=32, classes=5, positions="sincos"),
    "rotary": vit("mu/8", image=32, classes=5, depth=2, positions="rotary"),
    "relative": vit("mu/8", image=32, classes=5, positions="relative"),
    "axial": vit("Axial-mu/8", image=32, classes=5),
    "hybrid": vit("R26+mu/16", image=64, classes=5, stem=Backbone((1, 1), 0.5), patch=2),
    "hybrid on a root": vit("R+mu/16", image=64, classes=5),
    "ResNet": ResNetConfig(Backbone((1, 2), 0.5), 64, classes=5),
    "BiT": ResNetConfig(Backbone((1, 2), 0.5, "pre"), 64, classes=5),
    "BatchNorm": ResNetConfig(Backbone((1,), norm="batch", standardise="none"), 64, classes=5),
    "axial ResNet": ResNetConfig(Backbone((1, 1), mixer="axial"), 64, classes=5),
    "augmented ResNet": ResNetConfig(Backbone((1, 1), mixer="augmented"), 64, classes=5),
    "LeNet": LeNetConfig(channels=3, classes=5),
}
ONE_SIZE = ("LeNet", "relative")
# Another size asks for more than the own one, which few need to be tested at too
AT_BOTH = ("token", "relative", "BatchNorm", "LeNet")
CASES = [(name, True) for name in FAMILY if name not in ONE_SIZE]
CASES += [(name, False) for name in AT_BOTH]


@pytest.mark.parametrize(("name", "another_size"), CASES)
def test_loaded_and_used_inside_inference_mode(name, another_size, random_classifier, tmp_path):
    classifier = random_classifier(FAMILY[name])
    save(classifier, tmp_path / "model")
    preprocessing = classifier.preprocessing
    if another_size:
        height, width = preprocessing.size
        preprocessing = replace(preprocessing, size=(height + 32, width * 2))
    pixels = np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8)
    with torch.inference_mode():
        server = load(tmp_path / "model", preprocessing=preprocessing, quiet=True)
        image = server.batch([pixels])
        logits = server.logits(image)
        again = server.for_inference().logits(image)
    plain = load(tmp_path / "model", preprocessing=preprocessing, quiet=True)
    torch.testing.assert_close(logits, plain.logits(image), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(again, logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("to", ["timm.safetensors", "timm.pth", "google.npz"])
def test_other_formats_inside_inference_mode(to, random_classifier, same_model, tmp_path):
    classifier = random_classifier(FAMILY["token"])
    convert_weights(classifier, tmp_path / to, to.partition(".")[0])
    with torch.inference_mode():
        same_model(classifier, load(tmp_path / to, quiet=True))
