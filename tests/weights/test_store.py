"""A saved model opens again with the same bits and everything that it needs; a file that is not one
is a sentence."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from vitkit.data import Preprocessing
from vitkit.models import create, vit
from vitkit.weights import Classifier, load, save

CONFIG = vit(
    "mu/8",
    image=(16, 24),
    classes=3,
    pool="map",
    representation=8,
    gelu="erf",
    eps=1e-5,
    resample="timm",
)
PREPARE = Preprocessing(
    size=(16, 24), rule="shorter", resize=32, interpolation="bicubic", mean=(0.4, 0.5, 0.6)
)


@pytest.fixture
def saved(tmp_path):
    classifier = Classifier(
        create(CONFIG, seed=0),
        PREPARE,
        ("ant", "bee", "Käfer"),
        "sigmoid",
        {"data": "photos"},
    )
    return classifier, save(classifier, tmp_path / "model")


def test_a_saved_model_opens_with_the_same_bits_and_all_that_belongs_to_it(saved, same_model):
    before, path = saved
    after = load(path)
    same_model(before, after)
    assert after.origin == before.origin
    assert not after.model.training
    assert all(parameter.requires_grad for parameter in after.model.parameters())
    images = torch.randn(2, 3, 16, 24)
    assert torch.equal(before.model.eval()(images), after.model(images))


def test_a_model_without_a_head_is_saved_too(tmp_path):
    headless = create(replace(CONFIG, classes=0), seed=0)
    save(Classifier(headless, PREPARE, ()), tmp_path / "model")
    features = load(tmp_path / "model").model(torch.zeros(1, 3, 16, 24))
    assert features.shape == (1, 8)


@pytest.mark.slow
def test_a_class_token_without_a_position_costs_no_compiler(tmp_path):
    """torch.cat of tensors on meta imports one, which takes longer than to load the model."""
    config = replace(CONFIG, pool="token", representation=0, prefix_positions=0)
    path = save(Classifier(create(config, seed=0), PREPARE, ("a", "b", "c")), tmp_path / "model")
    code = (
        "import sys, vitkit\n"
        f"vitkit.load({str(path)!r}, quiet=True)\n"
        "assert 'torch._dynamo' not in sys.modules and 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def edit(path, change):
    """Change vitkit's description in a model directory."""
    config = json.loads((path / "config.json").read_text())
    change(config["vitkit"])
    (path / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_a_model_from_before_the_activation_was_saved_has_that_of_its_loss(saved, loss):
    _, path = saved

    def make_old(description):
        del description["activation"]
        description["origin"]["objective"] = {"loss": loss}

    edit(path, make_old)
    assert load(path).activation == loss


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda c: c["model"].update(width=64),
            "its tensors do not fit the model: stem.project.weight",
        ),
        (lambda c: c["model"].update(depth=10**12), "too few for 1000000000000 blocks"),
        (lambda c: c["model"].update(heads=0), "heads is 0"),
        (lambda c: c["model"].update(heads=5), "cannot be split among 5 heads"),
        (lambda c: c["model"].update(width="wide"), "does not describe a vitkit model"),
        (lambda c: c["model"].update(tint=1), "settings that this version does not know: tint"),
        (lambda c: c.pop("preprocessing"), "'preprocessing' is missing"),
        (lambda c: c["preprocessing"].update(std=[0, 0, 0]), "std is"),
        (lambda c: c.update(activation="tanh"), "activation is 'tanh'; it is one of softmax"),
        (lambda c: c["labels"].pop(), "names 2 classes for a head of 3"),
    ],
)
def test_a_config_that_does_not_fit_is_a_sentence(saved, change, sentence):
    _, path = saved
    edit(path, change)
    with pytest.raises(ValueError, match=sentence):
        load(path)


def test_an_error_names_what_the_user_gave(saved):
    _, path = saved
    edit(path, lambda description: description["labels"].pop())
    with pytest.raises(ValueError) as directory:
        load(path)
    assert str(directory.value).startswith(f"{path} cannot be loaded: it names 2 classes")
    with pytest.raises(ValueError) as file:
        load(path / "model.safetensors")
    assert str(file.value).startswith(f"{path / 'model.safetensors'} cannot be loaded: it names")


@pytest.mark.parametrize("name", ["it", "i", "a"])
def test_an_error_names_a_short_name_too(name, tmp_path, monkeypatch):
    """Also one that the message happens to begin with: "it has vitkit's names"."""
    monkeypatch.chdir(tmp_path)
    save_file({"stem.project.weight": torch.zeros(2)}, "weights.safetensors")
    Path("weights.safetensors").rename(name)
    with pytest.raises(ValueError, match=f"^{name} cannot be loaded: it has vitkit's names"):
        load(name)


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"\xff" * 8 + b"{}", b"PK\x03\x04"])
def test_a_file_that_holds_no_weights_is_a_sentence(saved, content):
    _, path = saved
    (path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="cannot be loaded"):
        load(path)


def test_a_tensor_too_few_or_too_many_is_named(saved):
    _, path = saved
    tensors = load_file(path / "model.safetensors")
    save_file({**tensors, "extra": torch.zeros(2)}, path / "model.safetensors")
    with pytest.raises(ValueError, match="unknown tensors: extra$"):
        load(path)
    tensors.pop("norm.bias")
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(ValueError, match="missing: norm.bias$"):
        load(path)


def test_a_directory_without_a_model_and_an_unfinished_run_are_sentences(tmp_path):
    with pytest.raises(ValueError, match="holds no model; a model directory has config.json"):
        load(tmp_path)
    (tmp_path / "recipe.json").write_text("{}")
    with pytest.raises(ValueError, match="is a run that has not finished; continue it"):
        load(tmp_path)
