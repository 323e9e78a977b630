"""Weights for red, green and blue, adapted to images of other channels."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from vitkit.data import Preprocessing
from vitkit.models import Backbone, ResNetConfig, ViTConfig, create
from vitkit.weights import Classifier, adopt, load
from vitkit.weights.adoption import repeated
from vitkit.weights.proof import convert_weights

SMALL = ViTConfig(32, 2, 64, 2, 8, (32, 32), classes=5)
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def a_classifier(config=SMALL, **statistics) -> Classifier:
    model = create(config, seed=0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.manual_seed(1)))
    preprocessing = Preprocessing(config.image, **statistics)
    return Classifier(model, preprocessing, tuple("abcde"))


@pytest.mark.parametrize("statistics", [{}, IMAGENET], ids=["half", "imagenet"])
def test_grey_gives_the_logits_of_the_same_grey_as_colours(statistics):
    colours = a_classifier(**statistics)
    adapted, sentences = adopt(colours, channels=1)
    assert adapted.model.config.channels == 1 and "summed" in sentences[0] and len(sentences) == 1
    grey = np.random.default_rng(0).integers(0, 256, (3, 32, 32), dtype=np.uint8)
    ours = adapted.logits(adapted.batch(list(grey)))
    theirs = colours.logits(colours.batch(list(grey)))
    assert adapted.batch(list(grey)).shape == (3, 1, 32, 32)
    assert (ours - theirs).abs().max() < 5e-6 < theirs.std()


def test_a_fourth_channel_changes_nothing_at_first():
    colours = a_classifier(**IMAGENET)
    adapted, _ = adopt(colours, channels=4)
    images = torch.randint(256, (2, 4, 32, 32), dtype=torch.uint8)
    theirs = colours.logits(images[:, :3])
    assert (adapted.logits(images) - theirs).abs().max() < 5e-6


def test_many_channels_are_adapted_as_timm_does():
    timm = pytest.importorskip("timm", reason="timm is not installed")
    kernel = torch.randn(8, 3, 4, 4)
    for channels in (2, 5, 12):
        theirs = timm.models.adapt_input_conv(channels, kernel)
        assert torch.equal(repeated(kernel, channels), theirs)


@pytest.mark.parametrize("channels", [1, 4, 12])
def test_timm_opens_a_written_model_of_other_channels(channels, tmp_path):
    """Also an earlier timm, to which the file must not name the layer that sees the image."""
    timm = pytest.importorskip("timm", reason="timm is not installed")
    adapted, _ = adopt(a_classifier(), channels=channels)
    convert_weights(adapted, tmp_path / "model", "timm")
    said = json.loads((tmp_path / "model" / "config.json").read_text())
    assert "first_conv" not in said["pretrained_cfg"]
    theirs = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).eval()
    settings = timm.data.resolve_model_data_config(theirs)
    assert tuple(settings["input_size"]) == (channels, 32, 32)
    assert settings["mean"] == pytest.approx(adapted.preprocessing.mean)
    images = torch.randint(256, (3, channels, 32, 32), dtype=torch.uint8)
    if adapted.preprocessing.values == "float32":
        images = images / 255
    ours = adapted.logits(images)
    with torch.inference_mode():
        expected = theirs(adapted.preprocessing.normalise(images))
    assert (ours - expected).abs().max() < 1e-5 < ours.std()


def test_what_is_not_exact_is_said():
    backbone = Backbone(units=(1, 1), width=1.0)
    resnet = ResNetConfig(backbone, (32, 32), classes=5)
    _, sentences = adopt(a_classifier(resnet), channels=1)
    assert "other outputs" in sentences[1]
    adapted, _ = adopt(a_classifier(), channels=12)
    with pytest.raises(ValueError, match="have 12 channels, not 4.*red, green and blue"):
        adopt(adapted, channels=4)


@pytest.mark.parametrize("channels", [1, 4, 12])
def test_saved_models_keep_their_channels(channels, tmp_path):
    adapted, _ = adopt(a_classifier(replace(SMALL, gelu="erf")), channels=channels)
    assert convert_weights(adapted, tmp_path / "model", "huggingface").largest < 1e-5
    opened = load(tmp_path / "model", quiet=True)
    assert opened.preprocessing == adapted.preprocessing
    assert opened.model.config.channels == opened.preprocessing.channels == channels
    if channels == 12:
        assert opened.preprocessing.values == "float32"
