"""From pictures to probabilities: three steps, the same ones for every room."""

import importlib.util
import json
from copy import deepcopy
from dataclasses import replace
from enum import Enum

import numpy as np
import pytest
import torch
from other_libraries import edit
from pictures import encoded, photograph
from PIL import Image

from vitkit.data import Preprocessing, open_image
from vitkit.models import create, vit
from vitkit.system.errors import BadImage, BadSettings, Unsupported
from vitkit.system.machine import autocast
from vitkit.weights import Classifier, License, adopt, format_of, imagenet_labels, load, save
from vitkit.weights.proof import convert_weights

ACTIVATIONS = {
    "softmax": "single_label_classification",
    "sigmoid": "multi_label_classification",
    "none": "regression",
}


@pytest.fixture
def classifier():
    model = create(vit("mu/8", image=16, classes=4, dropout=0.5), seed=0)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    return Classifier(model, Preprocessing(size=(16, 16)), ("a", "b", "c", "d"))


@pytest.fixture
def images():
    return torch.randint(
        0, 256, (3, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


def test_a_batch_is_what_the_preprocessing_makes(classifier):
    random = np.random.default_rng(0)
    pictures = [
        open_image(random.integers(0, 256, (20, 30 + i, 3), dtype=np.uint8), str(i))
        for i in range(3)
    ]
    images = classifier.batch(iter(pictures))
    assert images.dtype == torch.uint8 and images.shape == (3, 3, 16, 16)
    assert torch.equal(images[1], classifier.preprocessing(pictures[1]))


def test_a_batch_of_images_of_any_sort(classifier, tmp_path):
    """One or several, each by its path, its bytes, or its pixels."""
    pixels = photograph(20, 30)
    data = encoded(pixels, "PNG")
    path = tmp_path / "photograph.png"
    path.write_bytes(data)
    expected = classifier.batch([open_image(pixels, "it")])
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    sorts = [path, str(path), data, Image.open(path), pixels, tensor, pixels / 255, tensor / 255]
    for image in sorts:
        assert torch.equal(classifier.batch(image), expected)
    for images in (sorts, tuple(sorts), np.stack([pixels] * 8), np.array([str(path)] * 8)):
        assert torch.equal(classifier.batch(images), expected.expand(8, -1, -1, -1))
    with pytest.raises(ValueError, match="there are no images"):
        classifier.batch([])
    with pytest.raises(ValueError, match="the images are a int; give a list of paths"):
        classifier.batch(5)
    with pytest.raises(ValueError, match=r"the images are a list; prepare them with batch"):
        classifier.logits([path])
    with pytest.raises(BadImage, match=r"nothing\.png is missing"):
        classifier.batch([path, "nothing.png"])
    with pytest.raises(BadImage, match=r"image 1 has values from .* to .*; floats go from 0 to 1"):
        classifier.batch([path, pixels / 255 - 0.5])


def test_logits_are_those_of_evaluation_and_need_no_gradient(classifier, images):
    expected = classifier.model.eval()(classifier.preprocessing.normalise(images))
    classifier.model.train()
    logits = classifier.logits(images)
    assert classifier.model.training
    assert not logits.requires_grad
    assert torch.equal(logits, expected)


def test_features_are_what_the_head_reads(classifier, images):
    features = classifier.features(images)
    assert features.shape == (3, 32)
    logits = classifier.model.head(features)
    torch.testing.assert_close(logits, classifier.logits(images))


def test_logits_are_float32_whatever_computes_them(classifier, images):
    with torch.autocast("cpu", torch.bfloat16):
        assert classifier.logits(images).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_converted_model_answers_in_float32(classifier, images, dtype):
    expected = classifier.logits(images)
    classifier.model.to(dtype)
    logits = classifier.logits(images)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected, atol=0.2, rtol=0)
    assert classifier.features(images).dtype == torch.float32


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_default_type_of_pytorch_does_not_matter(classifier, images, precision):
    expected = classifier.logits(images)
    torch.set_default_dtype(torch.float64)
    try:
        with autocast(torch.device("cpu"), precision):
            logits = classifier.logits(images)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(logits, expected, atol=0.2, rtol=0)


def test_probabilities_follow_the_activation(classifier, images):
    logits = classifier.logits(images)
    assert torch.equal(classifier.probabilities(logits), logits.softmax(-1))
    sigmoid = replace(classifier, activation="sigmoid")
    assert torch.equal(sigmoid.probabilities(logits), logits.sigmoid())
    none = replace(classifier, activation="none")
    assert torch.equal(none.probabilities(logits), logits)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_activation_is_saved_for_transformers_too(classifier, activation, tmp_path):
    save(replace(classifier, activation=activation), tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["problem_type"] == ACTIVATIONS[activation]
    assert load(tmp_path / "model", quiet=True).activation == activation
    edit(tmp_path / "model", vitkit=None)  # as Transformers writes it
    assert load(tmp_path / "model", quiet=True).activation == activation


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_model_of_one_output_opens_in_transformers_too(classifier, activation, tmp_path):
    """Transformers refuses a single class whose problem is single_label_classification."""
    single = replace(classifier.model.config, classes=1)
    model = create(single, seed=0)
    torch.nn.init.normal_(model.head.weight)
    one = Classifier(model.eval(), classifier.preprocessing, ("yes",), activation=activation)
    save(one, tmp_path / "model")
    assert load(tmp_path / "model", quiet=True).activation == activation
    if importlib.util.find_spec("transformers"):
        proof = convert_weights(one, tmp_path / "converted", "huggingface")
        assert proof.library and proof.largest < 1e-4


def test_a_head_without_names_has_numbers_in_transformers(classifier, tmp_path):
    """Without them it would open the model without its head."""
    save(replace(classifier, labels=()), tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["id2label"] == {"0": "0", "1": "1", "2": "2", "3": "3"}


def test_what_another_library_refuses_is_not_written(classifier, tmp_path, monkeypatch):
    def refuses(classifier, path):
        raise ValueError("no such model")

    format = format_of("huggingface", classifier.model.config)
    broken = replace(format, open_elsewhere=refuses)
    monkeypatch.setattr("vitkit.weights.proof.format_of", lambda *given: broken)
    with pytest.raises(
        Unsupported, match="transformers refuses the model .ValueError: no such model"
    ):
        convert_weights(classifier, tmp_path / "converted", "huggingface")
    assert not (tmp_path / "converted").exists()


def test_a_problem_that_nobody_knows_is_taken_as_softmax_and_said(classifier, tmp_path, capsys):
    save(classifier, tmp_path / "model")
    edit(tmp_path / "model", vitkit=None, problem_type="ranking")
    assert load(tmp_path / "model").activation == "softmax"
    assert "its problem_type is 'ranking', which vitkit does not know" in capsys.readouterr().err


def test_one_output_of_no_named_problem_is_a_regression(classifier, tmp_path):
    single, _ = adopt(classifier, labels=("age",))
    save(single, tmp_path / "model")
    edit(tmp_path / "model", vitkit=None, problem_type=None)
    assert load(tmp_path / "model", quiet=True).activation == "none"


def edited(directory, target, **changes):
    """What Transformers makes of a saved model with these changes to its configuration."""
    transformers = pytest.importorskip("transformers")
    opening = transformers.AutoModelForImageClassification.from_pretrained
    model = opening(directory, ignore_mismatched_sizes=True, **changes)
    model.save_pretrained(target)
    assert "vitkit" in json.loads((target / "config.json").read_text())
    return model


def test_transformers_alone_keeps_what_vitkit_noted(classifier, tmp_path):
    save(replace(classifier, origin={"data": "here"}), tmp_path / "model")
    edited(tmp_path / "model", tmp_path / "again")
    assert load(tmp_path / "again", quiet=True).origin == {"data": "here"}


@pytest.mark.parametrize(
    ("changes", "labels", "activation"),
    [
        ({"id2label": {0: "w", 1: "x", 2: "y", 3: "z"}}, ("w", "x", "y", "z"), "softmax"),
        ({"problem_type": "multi_label_classification"}, ("a", "b", "c", "d"), "sigmoid"),
        ({"num_labels": 3}, ("0", "1", "2"), "softmax"),
    ],
)
def test_what_transformers_changed_counts(
    classifier, images, changes, labels, activation, tmp_path, capsys
):
    save(classifier, tmp_path / "model")
    model = edited(tmp_path / "model", tmp_path / "edited", **changes).eval()
    opened = load(tmp_path / "edited")
    assert (opened.labels, opened.activation) == (labels, activation)
    assert "config.json was changed after vitkit wrote it" in capsys.readouterr().err
    with torch.no_grad():
        expected = model(opened.preprocessing.normalise(images)).logits
    torch.testing.assert_close(opened.logits(images), expected, atol=1e-5, rtol=0)


def test_labels_that_do_not_fit_the_head_are_refused(classifier, tmp_path):
    with pytest.raises(ValueError, match="3 labels for a head of 4 outputs"):
        replace(classifier, labels=("a", "b", "c"))
    with pytest.raises(ValueError, match="one string"):
        replace(classifier, labels="abcd")
    with pytest.raises(ValueError, match="one string"):
        adopt(classifier, labels="abc")
    save(replace(classifier, labels=()), tmp_path / "model")
    assert load(tmp_path / "model", quiet=True).labels == ("0", "1", "2", "3")


def test_labels_are_copied_to_a_tuple_of_strings(classifier):
    names = ["w", "x", "y", "z"]
    ordered = dict.fromkeys(names).keys()
    kinds = Enum("Kind", {name: name for name in names}, type=str)
    for given in (names, np.array(names), (name for name in names), ordered, list(kinds)):
        copied = replace(classifier, labels=given)
        assert copied.labels == ("w", "x", "y", "z")
        assert {type(label) for label in copied.labels} == {str}
    copied = replace(classifier, labels=names)
    names[0] = "other"
    names.append("fifth")
    assert copied.labels == ("w", "x", "y", "z")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"labels": (1, 2, 3, 4)}, "labels holds 1, which is not a string"),
        ({"labels": np.arange(4)}, "labels holds .*0.*, which is not a string"),
        ({"labels": {"a": 0, "b": 1, "c": 2, "d": 3}}, "labels is a dict; give a list of names"),
        ({"labels": set("abcd")}, "labels is a set; give a list of names"),
        ({"labels": None}, "labels is None; give a list of names"),
        ({"preprocessing": None}, "preprocessing is of type NoneType"),
        ({"preprocessing": {"size": 16}}, "preprocessing is of type dict"),
        ({"model": "B/16"}, "the model is of type str; give a network"),
        ({"model": None}, "the model is of type NoneType; give a network"),
    ],
)
def test_wrong_parts_of_a_classifier_are_refused(classifier, wrong, sentence):
    with pytest.raises(BadSettings, match=sentence):
        replace(classifier, **wrong)


def test_a_described_string_of_labels_is_refused(classifier, tmp_path):
    save(classifier, tmp_path / "model")
    edit(tmp_path / "model", "vitkit", labels="abcd")
    with pytest.raises(ValueError, match="labels is 'abcd'; it is a list of names"):
        load(tmp_path / "model", quiet=True)


def test_frozen_parts_stay_in_evaluation_mode(classifier, images):
    classifier.model.train()
    classifier.model.blocks.eval()
    classifier.logits(images)
    assert classifier.model.training and classifier.model.head.training
    assert not any(module.training for module in classifier.model.blocks.modules())


@pytest.mark.slow
def test_models_that_are_not_their_own_weights_are_not_saved(classifier, tmp_path):
    compiled = replace(classifier, model=torch.compile(classifier.model))
    adapted = deepcopy(classifier)
    adapted.model.head = torch.nn.Sequential(adapted.model.head)
    prepared = deepcopy(classifier)
    prepared.model.inference_only = True
    sentences = {
        "wrapped in a OptimizedModule": compiled,
        "than it was built with: head": adapted,
        "made for inference; save the model": prepared,
    }
    for sentence, wrong in sentences.items():
        with pytest.raises(ValueError, match=sentence):
            save(wrong, tmp_path / "model")
        with pytest.raises(ValueError, match=sentence):
            convert_weights(wrong, tmp_path / "model", "native")
        with pytest.raises(ValueError, match=sentence):
            adopt(wrong, labels=("x", "y"))
    assert not (tmp_path / "model").exists()


def test_imagenets_names_are_torchvisions_but_for_those_that_mean_two_things():
    from torchvision.models import ViT_B_16_Weights

    torchvision = ViT_B_16_Weights.IMAGENET1K_V1.meta["categories"]
    renamed = {134: "crane (bird)", 517: "crane (machine)", 639: "maillot, tank suit"}
    expected = [renamed.get(i, name) for i, name in enumerate(torchvision)]
    assert list(imagenet_labels()) == expected
    assert len(set(expected)) == 1000


def test_it_shows_itself_in_five_lines(random_classifier):
    classifier = random_classifier(vit("mu/8", image=(32, 32), classes=4))
    classifier = replace(
        classifier, labels=("ant", "bee\x1b", "cat", "dog"), license=License("mit")
    )
    assert repr(classifier).splitlines() == [
        "Classifier: ViT-mu/8, 19,652 parameters on cpu",
        f"  images: {classifier.preprocessing}",
        "  classes: 4 (softmax): ant, bee\\x1b, cat, ...",
        "  origin: made from its parts",
        "  licence: mit",
    ]
    origin = {"init": "google/vit-base-patch16-224", "data": "photos"}
    bare = replace(classifier, model=torch.nn.Linear(2, 2), labels=(), origin=origin, license=None)
    shown = repr(bare)
    assert len(shown.splitlines()) == 5
    assert shown.startswith("Classifier: Linear, 6 parameters")
    assert "  classes: none: it gives features\n" in shown
    assert "origin: google/vit-base-patch16-224, trained on photos\n" in shown
    assert shown.endswith("licence: unknown")
