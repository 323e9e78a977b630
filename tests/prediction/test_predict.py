"""Predictions: the model's own preprocessing, the order of the images, and broken images."""

import io
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from vitkit.data import Preprocessing, open_image
from vitkit.models import create, vit
from vitkit.prediction import Item, pictures, predict_items
from vitkit.runtimes import eager
from vitkit.system.errors import WorkerDied
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
        pixels = random.integers(0, 256, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    return sorted(tmp_path.glob("*.png"))


@pytest.mark.parametrize("batch", [1, 2, 32])
def test_predictions_are_as_computed_by_hand_in_batches_of_any_size(classifier, files, batch):
    predictions = list(predict_items(classifier, files, top=2, batch=batch, device="cpu"))
    assert [prediction.name for prediction in predictions] == list(map(str, files))
    for file, prediction in zip(files, predictions, strict=True):
        picture = open_image(file.read_bytes(), file.name)
        (probabilities,) = classifier.logits(classifier.batch([picture])).softmax(-1)
        best = probabilities.argsort(descending=True)[:2]
        assert prediction.labels == tuple("abcd"[i] for i in best)
        assert prediction.probabilities == pytest.approx(probabilities[best].tolist(), abs=1e-6)


def test_sigmoid_models_give_independent_probabilities(classifier, files):
    independent = replace(classifier, activation="sigmoid")
    (sigmoid,) = predict_items(independent, files[:1], device="cpu")
    (softmax,) = predict_items(classifier, files[:1], device="cpu")
    assert sigmoid.labels == softmax.labels
    assert sum(softmax.probabilities) == pytest.approx(1)
    assert sum(sigmoid.probabilities) != pytest.approx(1)


def test_a_regression_gives_the_numbers_themselves(classifier, files):
    regression = replace(classifier, activation="none")
    (answer,) = predict_items(regression, files[:1], top=4, device="cpu")
    picture = open_image(files[0].read_bytes(), "it")
    (logits,) = classifier.logits(classifier.batch([picture]))
    assert answer.probabilities == tuple(logits.sort(descending=True).values.tolist())


def test_a_model_without_a_head_names_no_classes(classifier, files):
    with pytest.raises(ValueError, match="no classification head"):
        list(predict_items(replace(classifier, labels=()), files, device="cpu"))


def test_any_runtime_predicts(classifier, files):
    """What predict needs of a runtime is what the protocol names."""

    class Doubled:
        preprocessing = classifier.preprocessing
        labels = classifier.labels
        activation = classifier.activation

        def logits(self, images):
            assert images.dtype == np.uint8 and images.shape[1:] == (3, 16, 16)
            return 2 * classifier.logits(torch.from_numpy(images)).numpy()

    answers = predict_items(classifier, files, device="cpu")
    for answer, sharper in zip(answers, predict_items(Doubled(), files), strict=True):
        assert answer.labels == sharper.labels
        assert sharper.probabilities[0] > answer.probabilities[0]


def test_a_broken_image_does_not_stop_the_others(classifier, files, tmp_path):
    buffer = io.BytesIO()
    Image.new("RGB", (40, 40), "red").save(buffer, "jpeg")
    (tmp_path / "1.png").write_bytes(buffer.getvalue()[:-60])
    items = [*files, tmp_path / "gone.png"]
    errors = [prediction.error for prediction in predict_items(classifier, items, device="cpu")]
    assert [error is None for error in errors] == [True, False, True, True, True, False]
    assert "1.png" in errors[1]
    assert "gone.png" in errors[5]


@pytest.mark.parametrize("workers", [1, 2])
def test_other_processes_prepare_the_same_images_in_the_same_order(
    classifier, files, tmp_path, workers
):
    (tmp_path / "broken.png").write_bytes(files[0].read_bytes()[:200])
    names = [*files, tmp_path / "broken.png", *files, tmp_path / "gone.png"]
    here = list(predict_items(classifier, names, batch=3, device="cpu", workers=0))
    assert list(predict_items(classifier, names, batch=3, device="cpu", workers=workers)) == here
    assert [prediction.error is None for prediction in here].count(False) == 2
    stream = predict_items(classifier, iter(names), batch=3, device="cpu", workers=workers)
    assert list(stream) == here


def test_images_of_a_data_set_are_prepared_by_other_processes(classifier):
    items = list(pictures(["digits"]))[:40]
    here = list(predict_items(classifier, items, batch=8, device="cpu", workers=0))
    assert list(predict_items(classifier, items, batch=8, device="cpu", workers=2)) == here


def _die() -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_process_that_is_killed_is_a_sentence(classifier, files):
    items = [Item("fine", files[0].read_bytes), Item("deadly", _die)]
    with pytest.raises(WorkerDied, match="a process that prepares images was killed"):
        list(predict_items(classifier, items, batch=1, device="cpu", workers=1))


def test_the_given_model_stays_on_its_device(classifier, monkeypatch):
    monkeypatch.setattr("vitkit.runtimes.pytorch.pick_device", torch.device)
    assert eager(classifier, "meta").classifier.device == torch.device("meta")
    assert classifier.device == torch.device("cpu")


def test_no_class_at_all_is_refused(classifier, files):
    with pytest.raises(ValueError, match="`top` is 0"):
        list(predict_items(classifier, files, top=0, device="cpu"))


def test_pictures_are_files_folders_and_data_sets(files, tmp_path):
    assert [item.name for item in pictures([str(tmp_path)])] == list(map(str, files))
    some = [str(files[2]), str(files[0])]
    assert [item.name for item in pictures(some)] == some
    digits = list(pictures(["digits"]))
    assert len(digits) == 359
    assert digits[0].truth in "0123456789"
    assert digits[0].read().shape == (8, 8)


def test_a_folder_without_images_is_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="holds no images"):
        list(pictures([str(tmp_path)]))


def test_true_classes_are_called_as_the_model_calls_them():
    """The digits have numbers for names, which meet a model's classes by position, as in
    evaluation."""
    words = "zero one two three four five six seven eight nine".split()
    by_number = {item.name: item.truth for item in pictures(["digits"])}
    by_word = {item.name: item.truth for item in pictures(["digits"], words)}
    assert by_word == {name: words[int(truth)] for name, truth in by_number.items()}

    # Classes that the model does not have keep their names
    unknown = {item.name: item.truth for item in pictures(["digits"], ("cat", "dog"))}
    assert unknown == by_number
