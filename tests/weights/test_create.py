"""Published weights with a new head in one line: `load(..., labels=...)`, `create(...,
weights=...)`."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import vitkit
from vitkit.models import vit
from vitkit.system.errors import BadSettings, WrongArgument
from vitkit.weights import create, format_of, load, save
from vitkit.weights.destination import tensors_in

CONFIG = vit("mu/8", image=(32, 32), classes=7, representation=24, gelu="erf", eps=1e-12)


@pytest.fixture
def published(random_classifier, tmp_path):
    return save(random_classifier(CONFIG), tmp_path / "published")


@pytest.fixture
def bare_file(random_classifier, tmp_path):
    """A file of timm's tensors with nothing beside them."""
    config = vit("mu/8", image=(32, 32), classes=7, gelu="erf")
    path = tmp_path / "bare.safetensors"
    save_file(tensors_in(format_of("timm", config), random_classifier(config)), path)
    return path


def test_labels_give_a_new_head(published, capsys):
    classifier = load(published, labels=["ant", "bee"], image=(64, 32))
    assert "newly made: a head of 2 classes, all zeros" in capsys.readouterr().err
    assert classifier.labels == ("ant", "bee")
    assert classifier.preprocessing.size == classifier.model.config.image == (64, 32)
    x = torch.randn(1, 3, 64, 32)
    assert torch.equal(classifier.model(x), torch.zeros(1, 2))
    torch.testing.assert_close(
        classifier.model.encode(x), load(published, quiet=True).model.encode(x)
    )


def test_as_many_labels_are_names_for_the_head_that_is_there(published, capsys):
    whole = load(published, quiet=True)
    named = load(published, labels=np.array(list("abcdefg")))
    assert "labels: yours, for the 7 classes that the head has" in capsys.readouterr().err
    assert named.labels == tuple("abcdefg")
    assert {type(label) for label in named.labels} == {str}
    assert torch.equal(named.model.head.weight, whole.model.head.weight)
    new = load(published, labels=list("abcdefg"), new_head=True, quiet=True)
    assert not new.model.head.weight.any() and not new.model.config.representation
    assert load(published, labels=whole.labels, quiet=True).labels == whole.labels


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("ant", "labels is 'ant', one string; give a list of names"),
        (5, "labels is 5; give a list of names"),
        ([], "labels is empty"),
        ({"ant", "bee"}, "labels is a set; give a list of names, in the order"),
        ({0: "ant", 1: "bee"}, "labels is a dict; give a list"),
        ([0, 1], "labels holds 0, which is not a string"),
        (["ant", "bee", "ant"], "labels holds 'ant' twice"),
        ([f"class {i}" for i in range(6)], "6 labels for a head of 7 classes, and 6 of them are"),
        ([f"class {i}" for i in range(8)], "8 labels for a head of 7 classes, and 7 of them are"),
    ],
)
def test_labels_that_are_none(labels, message, published):
    with pytest.raises(ValueError, match=message):
        load(published, labels=labels, quiet=True)


def test_new_head_needs_labels(published):
    with pytest.raises(ValueError, match="give their names in labels"):
        load(published, new_head=True, quiet=True)


def test_a_model_by_name_with_published_weights(published):
    whole = load(published, quiet=True).model
    settings = {"classes": 5, "image": 48, "dropout": 0.1, "stochastic_depth": 0.2}
    model = vitkit.create("mu/8", weights=published, **settings)
    assert model.training and model.config.gelu == "erf" and model.config.eps == 1e-12
    assert (model.config.dropout, model.config.stochastic_depth) == (0.1, 0.2)
    model.eval()
    x = torch.randn(2, 3, 48, 48)
    assert torch.equal(model(x), torch.zeros(2, 5))
    torch.testing.assert_close(model.encode(x), whole.encode(x))
    assert all(parameter.requires_grad for parameter in model.parameters())
    for same in (create("mu/8", weights=published), create("mu/8", classes=7, weights=published)):
        assert torch.equal(same.head.weight, whole.head.weight)
    assert create(CONFIG, weights=published).config == whole.config


def test_without_weights_it_is_the_models_rooms_own():
    assert create("mu/8", classes=3, seed=1).config == vit("mu/8", classes=3)


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("Ti/8", {}, "holds ViT-mu/8, not ViT-Ti/8"),
        ("mu/16", {"classes": 3}, "holds ViT-mu/8, not ViT-mu/16"),
        ("mu/8", {"pool": "gap"}, "another model: pool is 'token' there, 'gap' here"),
        (vit("mu/8"), {}, "eps is 1e-12 there, 1e-06 here; gelu is 'erf' there, 'tanh' here"),
        (vit("mu/8"), {"classes": 3}, "use dataclasses.replace on a config"),
        ("mu/8", {"clases": 3}, "no setting 'clases'; did you mean 'classes'"),
        ("mu/8", {"pretrained": True}, "name the pre-trained weights"),
        ("mu/8", {"seed": 0}, "seed is for initial weights"),
    ],
)
def test_what_the_weights_are_not_is_refused(model, settings, message, published):
    with pytest.raises(ValueError, match=message):
        create(model, weights=published, **settings)


def test_quiet_says_nothing_and_sentences_name_arguments(bare_file, capsys):
    create("mu/8", weights=bare_file, quiet=True)
    assert capsys.readouterr() == ("", "")
    create("mu/8", weights=bare_file)
    said = capsys.readouterr().err
    assert "--" not in said and "ViT-mu/8 for 32 x 32 pixels" in said
    assert "`statistics='imagenet'`" in said
    load(bare_file)
    said = capsys.readouterr().err
    assert "--" not in said and "If it is DeiT's, MAE's or DINO's: `statistics='imagenet'`" in said


def test_what_a_file_does_not_say_is_said_by_arguments(bare_file):
    said = load(bare_file, statistics="imagenet", crop="whole", pool="gap", heads=4, quiet=True)
    assert said.preprocessing.mean == (0.485, 0.456, 0.406)
    assert (said.preprocessing.rule, said.preprocessing.resize) == ("square", 0)
    assert (said.model.config.pool, said.model.config.heads) == ("gap", 4)
    assert create("mu/8", heads=4, weights=bare_file, quiet=True).config.heads == 4


def test_channels_are_adapted_as_fine_tuning_does(published, capsys):
    """A network for grey answers a grey image as the one for colours did, and one for 5 bands has the
    kernels repeated."""
    colours = load(published, quiet=True)
    grey = create("mu/8", channels=1, weights=published).eval()
    assert "summed: the kernels of red, green and blue" in capsys.readouterr().err
    adapted = load(published, channels=1, quiet=True)
    levels = torch.randint(0, 256, (2, 1, 32, 32), dtype=torch.uint8)
    expected = colours.logits(levels.expand(-1, 3, -1, -1))
    torch.testing.assert_close(adapted.logits(levels), expected, atol=1e-4, rtol=1e-4)
    x = adapted.preprocessing.normalise(levels)
    torch.testing.assert_close(grey(x), adapted.model(x))
    bands = create(replace(CONFIG, channels=5), weights=published, quiet=True)
    kernel = colours.model.stem.project.weight
    torch.testing.assert_close(bands.stem.project.weight[:, 3], kernel[:, 0] * 3 / 5)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: create("mu/8", device="gpu"), "no device 'gpu' on this machine; there is"),
        (lambda: create("mu/8", device="gpu", weights="nowhere"), "no device 'gpu'"),
        (lambda: create("mu/8", seed="x"), "seed is 'x'; it takes a whole number"),
        (lambda: create("mu/8", seed=2**70), "it is a whole number of at most 64 bits"),
        (lambda: create("mu/8", quiet="no"), "quiet is 'no'; it takes True or False"),
        (lambda: create(5, weights="nowhere"), "model is of type int; give a name"),
        (lambda: vit(5), "name is 5; give the name of a model"),
    ],
)
def test_values_that_no_model_has_are_refused(call, sentence):
    with pytest.raises(BadSettings, match=sentence):
        call()


def test_a_network_can_have_shapes_alone():
    assert next(create("mu/8", device="meta").parameters()).is_meta


def test_paths_devices_and_networks_that_are_none_are_refused(random_classifier, tmp_path):
    classifier = random_classifier(vit("mu/8", image=(32, 32), classes=3))
    with pytest.raises(WrongArgument, match="`path` is 3; it takes a path"):
        save(classifier, 3)
    with pytest.raises(BadSettings, match="no device 'gpu'"):
        classifier.to("gpu")
    with pytest.raises(WrongArgument, match="model is of type VisionTransformer; it is a name"):
        vitkit.convert(classifier.model, tmp_path / "there", to="timm")
