"""The code in a model card of a head that no other library has: run, it gives the logits of vitkit."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from vitkit.models import ViTConfig

SMALL = ViTConfig(image=(40, 56), patch=8, width=64, depth=4, heads=2, mlp=96, classes=3)


@pytest.mark.parametrize(
    ("pool", "blocks"),
    [
        ("token-pyramid", 2),
        ("token-gap-quarters", 3),
        ("token-gap", 4),
        ("token-quarters", 1),
        ("token", 2),
    ],
)
def test_the_code_in_the_card_computes_the_same_with_timm(
    pool, blocks, random_classifier, tmp_path, monkeypatch
):
    pytest.importorskip("timm")
    classifier = random_classifier(replace(SMALL, pool=pool, read_blocks=blocks))
    colours = np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)
    Image.fromarray(colours).save(tmp_path / "photograph.png")

    # As its reader would
    monkeypatch.chdir(tmp_path)
    vitkit.save(classifier, "model")
    card = (tmp_path / "model" / "README.md").read_text("utf-8")
    assert "vitkit convert DIRECTORY timm-ENCODER --to timm --headless" in card
    vitkit.convert("model", "timm-ENCODER", to="timm", headless=True, quiet=True)
    code = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[-1]
    code = code.replace("DIRECTORY", "model").replace("IMAGE", "photograph.png")
    values = {}
    exec(code, values)

    batch = classifier.batch(tmp_path / "photograph.png")
    assert torch.allclose(values["logits"], classifier.logits(batch), atol=1e-4)
    assert values["logits"].std() > 0.1
