"""Fig. 7's pictures as sections of a page; what has no meaning is left out with a sentence."""

import re

import numpy as np
import torch

from vitkit.data import Preprocessing
from vitkit.inspection.catalogue import model_sections
from vitkit.inspection.pages.html import page
from vitkit.models import Backbone, LeNetConfig, ResNetConfig, create, vit
from vitkit.weights import Classifier

IMAGES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 3, 64, 64), np.uint8))


def shown(config, images=IMAGES) -> str:
    model = create(config, seed=0).eval()
    return page("a model", model_sections(Classifier(model, Preprocessing((64, 64)), ()), images))


def test_a_plain_model_has_all_three_light_and_dark():
    text = shown(vit("mu/16", image=(64, 64), depth=2))
    assert re.findall("<h2>(.*?)</h2>", text) == [
        "Filters", "Position embeddings", "Attention distance",
    ]  # fmt: skip
    assert text.count('prefers-color-scheme: dark)" srcset') == 3
    dark, light = re.findall(r'src(?:set)?="(data:image/png[^"]+)"', text)[:2]
    assert dark != light
    assert "Left out" not in text
    assert "Attention distance" not in shown(vit("mu/16", image=(64, 64), depth=2), None)


def test_what_has_no_meaning_is_a_sentence():
    """Few filters are all drawn; a bag of patches has no positions, a ResNet no attention."""
    text = shown(vit("mu/16", image=(64, 64), depth=1, positions="none", pool="gap", patch=2))
    assert "to it the patches are a set" in text and text.count("<picture") == 2
    text = shown(ResNetConfig(Backbone((1, 1)), (64, 64)))
    assert text.count("Left out: a ResNet has no attention among patches") == 1
    assert text.count("Left out: a ResNet has no position embeddings") == 1
    grey = shown(LeNetConfig(channels=1), None)
    assert grey.count("<picture") == 1 and grey.count("Left out") == 1
