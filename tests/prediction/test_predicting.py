"""A classifier that is called, and functions of prediction that get images in memory."""

import signal

import numpy as np
import pytest
import torch

import vitkit
from vitkit import Classifier, create
from vitkit.data import Preprocessing
from vitkit.prediction import ImageCounter
from vitkit.prediction.functions import terminal as progress
from vitkit.system.console.messages import Progress, heard_by

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 40, 48, 3), np.uint8)


@pytest.fixture
def classifier():
    model = create("mu/16", classes=2, image=(32, 32))
    torch.nn.init.normal_(model.head.weight)
    return Classifier(model, Preprocessing(size=(32, 32)), ("blue", "red"))


def test_a_classifier_that_is_called_predicts(classifier):
    settings = {"precision": "float32", "device": "cpu", "quiet": True}
    (answer,) = classifier(IMAGES[0], **settings)
    assert len(classifier.predict(IMAGES, **settings)) == 3
    logits = classifier.logits(classifier.batch(IMAGES[0]))
    (expected,) = classifier.probabilities(logits).tolist()
    assert dict(zip(answer.labels, answer.probabilities, strict=True)) == pytest.approx(
        dict(zip(classifier.labels, expected, strict=True)), abs=1e-6
    )


def test_signals_are_the_programs_while_answers_are_written(classifier, tmp_path, monkeypatch):
    """A command ends on SIGTERM as on Ctrl-C; a program may have its own way, or none."""
    handled = []
    monkeypatch.setattr(signal, "signal", lambda number, handler: handled.append(number))
    rows = tmp_path / "answers.jsonl"
    vitkit.predict(classifier, IMAGES, to=rows, device="cpu", quiet=True)
    assert len(rows.read_text().splitlines()) == 3
    assert not handled


@pytest.mark.parametrize(
    ("function", "error", "sentence"),
    [
        (vitkit.sort, ValueError, "image files on this machine can be sorted"),
        (vitkit.watch, TypeError, "it takes a path"),
        (vitkit.batch, TypeError, "it takes the path"),
    ],
)
def test_what_needs_files_says_so(classifier, function, error, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=sentence):
        function(classifier, IMAGES[0], quiet=True)
    assert not list(tmp_path.iterdir())


def test_a_listener_is_told_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PATIENCE", 0)
    told = []
    with heard_by(told.append):
        ImageCounter(8).count(3, 0)
        ImageCounter(None).count(2, 1)
    assert told == [Progress("answering", 3, 8), Progress("answering", 2, 0)]
    assert not capsys.readouterr().err
