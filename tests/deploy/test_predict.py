"""Predictions: the model's own preprocessing, in order, broken images said."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from vitkit.data import Preprocessing, open_image
from vitkit.deploy import pictures, predict
from vitkit.models import create, vit
from vitkit.weights import Classifier


@pytest.fixture
def classifier():
    model = create(vit("mu/8", image=16, classes=4), seed=0).eval()
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    return Classifier(model, Preprocessing(size=(16, 16)), ("a", "b", "c", "d"))


@pytest.fixture
def files(tmp_path):
    random = np.random.default_rng(0)
    for i in range(5):
        Image.fromarray(random.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(
            tmp_path / f"{i}.png"
        )
    return sorted(tmp_path.glob("*.png"))


@pytest.mark.parametrize("batch", [1, 2, 32])
def test_as_computed_by_hand(classifier, files, batch):
    found = list(predict(classifier, files, top=2, batch=batch, device="cpu"))
    assert [p.name for p in found] == [str(f) for f in files]
    for file, answer in zip(files, found, strict=True):
        pixels = classifier.preprocessing(open_image(file.read_bytes(), "it"))
        with torch.inference_mode():
            chances = classifier.model(classifier.preprocessing.normalise(pixels[None])).softmax(
                -1
            )[0]
        best = chances.argsort(descending=True)[:2]
        assert answer.labels == tuple("abcd"[i] for i in best)
        assert answer.probabilities == pytest.approx(chances[best].tolist(), abs=1e-6)


def test_sigmoid_models_give_independent_probabilities(classifier, files):
    origin = {"objective": {"loss": "sigmoid"}}
    independent = Classifier(classifier.model, classifier.preprocessing, classifier.labels, origin)
    (one,) = predict(independent, files[:1], device="cpu")
    (other,) = predict(classifier, files[:1], device="cpu")
    assert one.labels == other.labels
    assert sum(other.probabilities) == pytest.approx(1)
    assert sum(one.probabilities) != pytest.approx(1)


def test_a_broken_image_does_not_stop_the_others(classifier, files, tmp_path):
    buffer = io.BytesIO()
    Image.new("RGB", (40, 40), "red").save(buffer, "jpeg")
    (tmp_path / "1.png").write_bytes(buffer.getvalue()[:-60])
    found = list(predict(classifier, [*files, tmp_path / "gone.png"], device="cpu"))
    assert [p.error is None for p in found] == [True, False, True, True, True, False]
    assert "1.png" in found[1].error and "gone.png" in found[5].error


def test_what_cannot_be_asked(classifier, files):
    with pytest.raises(ValueError, match="top is 0"):
        list(predict(classifier, files, top=0, device="cpu"))


def test_places(files, tmp_path):
    assert [item.name for item in pictures([str(tmp_path)])] == [str(f) for f in files]
    assert [item.name for item in pictures([str(files[2]), str(files[0])])] == [
        str(files[2]),
        str(files[0]),
    ]
    digits = list(pictures(["digits"]))
    assert len(digits) == 359
    assert digits[0].truth in "0123456789" and digits[0].read().shape == (8, 8)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no images"):
        list(pictures([str(tmp_path / "empty")]))
