"""From pictures to probabilities: three steps, the same ones for every room."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from vitkit.data import Preprocessing, open_image
from vitkit.models import create, vit
from vitkit.weights import Classifier, load, save

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
    del config["vitkit"]  # as Transformers writes it
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    assert load(tmp_path / "model", quiet=True).activation == activation


def test_a_problem_that_nobody_knows_is_refused(classifier, tmp_path):
    save(classifier, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    del config["vitkit"]
    config["problem_type"] = "ranking"
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="problem_type is 'ranking'; vitkit knows single_label"):
        load(tmp_path / "model", quiet=True)
