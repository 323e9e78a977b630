"""A new format is one value, and its line in the table: loading, converting, the proof and the card
know the rest."""

import copy
from dataclasses import replace

import pytest
import torch

import vitkit
from vitkit.data import Preprocessing
from vitkit.models import VisionTransformer, vit
from vitkit.weights import formats, load
from vitkit.weights.classifier import Description
from vitkit.weights.files.content import Lazy
from vitkit.weights.formats.format import Elsewhere, Format, Tidied, reasons
from vitkit.weights.proof import convert_weights
from vitkit.weights.rules import DENSE, rule

CONFIG = vit("mu/8", image=(16, 16), classes=3)


def tidy(tensors):
    """Its names begin with "toy/"."""
    return Tidied({name.removeprefix("toy/"): lazy for name, lazy in tensors.items()})


def describe(opened, tidied, hints):
    classes = tidied.tensors["head.weight"].shape[1]
    config = vit("mu/8", image=(16, 16), classes=classes)
    return Description(config, Preprocessing(size=(16, 16)), notes=("toys are small",))


def rules(config):
    """Its head is turned round; the rest is vitkit's."""
    with torch.device("meta"):
        names = VisionTransformer(config).state_dict()
    return [
        rule(name, name, transform=DENSE) if name == "head.weight" else rule(name, name)
        for name in names
    ]


def spell(tensors, config, layout):
    return {f"toy/{name}": tensor for name, tensor in tensors.items()}


def open_elsewhere(classifier, path):
    return Elsewhere("toy 1.0", copy.deepcopy(classifier.model))


TOY = Format(
    name="toy",
    kinds=("vit",),
    recognises=lambda tensors: all(name.startswith("toy/") for name in tensors),
    describe=describe,
    rules=rules,
    tidy=tidy,
    spell=spell,
    cannot=lambda config: reasons({"any width but 32": config.width != 32}),
    endings=(".safetensors", ".npz", ".pth"),
    directory=lambda classifier: {"config.json": {"toy": True}},
    library="toy",
    example=lambda config: 'import toy\n\nmodel = toy.play("DIRECTORY")\n',
    open_elsewhere=open_elsewhere,
)


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS, TOY))


@pytest.mark.parametrize("path", ["model", "model.safetensors", "model.npz", "model.pth"])
def test_a_toy_is_written_and_read(toy, path, random_classifier, same_model, tmp_path):
    classifier = random_classifier(CONFIG)
    proof = convert_weights(classifier, tmp_path / path, "toy")
    assert proof.library == "toy 1.0" and proof.largest == 0
    same_model(classifier, load(tmp_path / path, quiet=True))


def test_a_toy_of_somebody_else_is_read(toy, random_classifier, tmp_path, capsys):
    classifier = random_classifier(CONFIG)
    state = {f"toy/{name}": tensor for name, tensor in classifier.model.state_dict().items()}
    state["toy/head.weight"] = state["toy/head.weight"].mT.contiguous()
    torch.save(state, tmp_path / "bought.pth")
    bought = load(tmp_path / "bought.pth")
    account = capsys.readouterr().err
    assert "in toy format" in account and "toys are small" in account
    assert bought.labels == ("0", "1", "2")
    assert bought.origin == {"format": "toy", "file": "bought.pth"}
    assert torch.equal(bought.model.head.weight, classifier.model.head.weight)


def test_the_card_says_how_a_toy_is_opened_and_a_refusal_what_toys_lack(
    toy, random_classifier, tmp_path
):
    with pytest.raises(ValueError, match="toy has no place for any width but 32; there is one in"):
        convert_weights(random_classifier(vit("mu/8", image=16, width=64)), tmp_path / "m", "toy")
    convert_weights(random_classifier(CONFIG), tmp_path / "model", "toy")
    card = (tmp_path / "model" / "README.md").read_text()
    assert 'library_name: "toy"' in card and 'toy.play("DIRECTORY")' in card
    convert_weights(random_classifier(CONFIG), tmp_path / "other", "native")
    card = (tmp_path / "other" / "README.md").read_text()
    assert "vitkit convert DIRECTORY toy-DIRECTORY --to toy" in card


def test_a_format_without_a_library_is_converted_to(random_classifier, tmp_path, monkeypatch):
    alone = replace(TOY, open_elsewhere=None)
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS, alone))
    converted = vitkit.convert(random_classifier(CONFIG), tmp_path / "m.safetensors", to="toy")
    assert "logits were not compared: no other library here" in "\n".join(converted.shown())


def test_a_format_needs_no_more_than_names_a_description_and_rules():
    """Everything but names, description and rules has a default."""
    plain = Format("plain", ("vit",), TOY.recognises, describe, rules)
    tensors = {"a": Lazy((1,), "float32", lambda: torch.ones(1))}
    assert plain.tidy(tensors) == Tidied(tensors)
    assert plain.cannot(CONFIG) == plain.differs(CONFIG) == []


@pytest.mark.parametrize("wrong", [1e-3, float("nan")])
def test_a_proof_that_fails_keeps_nothing(wrong, toy, random_classifier, tmp_path, monkeypatch):
    def off(classifier, path):
        model = copy.deepcopy(classifier.model)
        with torch.no_grad():
            model.head.bias += wrong
        return Elsewhere("toy 1.0", model)

    kind = replace(TOY, open_elsewhere=off)
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS[:-1], kind))
    classifier = random_classifier(CONFIG)
    with pytest.raises(ValueError, match="so nothing is written; write it nevertheless with"):
        convert_weights(classifier, tmp_path / "new" / "m.npz", "toy")
    assert not list(tmp_path.iterdir())
    proof = convert_weights(classifier, tmp_path / "m.npz", "toy", approximate=True)
    assert (tmp_path / "m.npz").exists() and not proof.largest <= 1e-4
    if wrong == 1e-3:
        assert convert_weights(classifier, tmp_path / "m.npz", "toy", tolerance=0.01).path.exists()
