"""`data.augmentation.auto`: decided once, said, and written into the recipe."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file

from vitkit.data import Augmentation, Preprocessing
from vitkit.models import create, vit
from vitkit.recipes.finetuning import finetune
from vitkit.system.span import Span
from vitkit.training import train
from vitkit.weights import Classifier, save

SIDE = 48  # in patches of 4 too many for the question, which is asked at 32


@pytest.fixture
def recipe(tmp_path):
    """A fine-tuning of four steps on 100 discs, whose class is the half that they are in."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for i in range(100):
        right = i % 2
        x = random.uniform(9, 18) + 21 * right
        inside = (columns - x) ** 2 + (rows - random.uniform(15, 33)) ** 2 < 50
        pixels = random.integers(0, 40, (SIDE, SIDE, 3)) + 180 * inside[..., None]
        path = tmp_path / "discs" / ("left", "right")[right] / f"{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    config = vit("mu/4", image=(SIDE, SIDE), classes=2, depth=2, width=48)
    weights = Classifier(create(config), Preprocessing((SIDE, SIDE)), ("a", "b"))
    save(weights, tmp_path / "weights")
    whole = finetune(str(tmp_path / "weights"), str(tmp_path / "discs"))
    return replace(
        whole,
        data=replace(whole.data, workers=0),
        optim=replace(whole.optim, warmup=Span(1)),
        length=Span(4),
        save_every=Span(2),
        evaluate_every=Span(4),
        precision="float32",
    )


@pytest.mark.slow
def test_what_the_classes_do_not_survive_is_off_and_stays_off(recipe, tmp_path, monkeypatch):
    assert recipe.data.augmentation == Augmentation(auto=True)
    console = Console(record=True, width=1000, file=io.StringIO())
    train(recipe, tmp_path / "run", "cpu", console)
    said = console.export_text()
    assert "switched off, because the classes do not survive it: mirrored images" in said
    ran = json.loads((tmp_path / "run" / "recipe.json").read_text())["data"]["augmentation"]
    assert (ran["flip"], ran["auto"]) == (False, False)
    assert (ran["crop"], ran["resize"]) in (("resize_crop", 60), ("none", 0))

    # What ran is a recipe that gives the same weights
    kept = Augmentation(**ran)
    same = replace(recipe, data=replace(recipe.data, augmentation=kept))
    train(same, tmp_path / "same", "cpu", Console(quiet=True))
    weights = load_file(tmp_path / "run" / "model" / "model.safetensors")
    expected = load_file(tmp_path / "same" / "model" / "model.safetensors")
    assert all(torch.equal(weights[name], expected[name]) for name in expected)

    # The same command again does not ask again
    monkeypatch.setattr("vitkit.training.choices.surviving", None)
    assert train(recipe, tmp_path / "run", "cpu", Console(quiet=True)).origin["steps"] == 4


def test_without_weights_there_is_nobody_to_ask(recipe, tmp_path, quiet):
    with pytest.raises(ValueError, match="auto asks a pre-trained model .* begins with none"):
        train(replace(recipe, init=""), tmp_path / "run", "cpu", quiet)
