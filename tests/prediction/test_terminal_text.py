"""Names of strangers on the terminal and in the model card: shown, never obeyed."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from vitkit.cli.entry import main
from vitkit.data import Preprocessing
from vitkit.models import create, vit
from vitkit.prediction import predict_items
from vitkit.weights import Classifier, load, save

HOSTILE = ("\x1b[2Jgone", "x" * 100_000)


@pytest.fixture
def hostile(tmp_path):
    """A model whose classes have such names."""
    model = create(vit("mu/8", image=(16, 16), classes=2, depth=1), seed=0)
    torch.nn.init.normal_(model.head.weight)
    return save(Classifier(model, Preprocessing(size=(16, 16)), HOSTILE), tmp_path / "model")


@pytest.fixture
def photograph(tmp_path):
    path = tmp_path / "a\x1b[31m.png"
    Image.new("RGB", (16, 16), (200, 60, 60)).save(path)
    return path


def test_commands_escape_and_cut_names(hostile, photograph, capsys):
    assert main(["predict", str(hostile), str(photograph), "--device", "cpu"]) == 0
    assert main(["show", str(hostile)]) == 0
    assert main(["predict", str(hostile), f"{photograph}\x1b[2J", "--device", "cpu"]) == 1
    shown = "".join(capsys.readouterr())
    assert "\x1b" not in shown
    assert len(shown) < 20_000


def test_a_card_escapes_and_cuts_names(hostile):
    classifier = load(hostile, quiet=True)
    assert classifier.labels == HOSTILE  # the names themselves are kept
    card = (hostile / "README.md").read_text()
    assert "\x1b" not in card
    assert len(card) < 20_000
    again = replace(classifier, origin={"data": "\x1b[2J" * 10_000})
    save(again, hostile)
    assert "\x1b" not in (hostile / "README.md").read_text()


def test_outputs_that_are_not_finite_are_no_answer(hostile, photograph):
    classifier = load(hostile, quiet=True)
    with torch.no_grad():
        classifier.model.head.weight.fill_(3e38)
        classifier.model.norm.bias.fill_(3e38)
    (prediction,) = predict_items(classifier, [photograph], device="cpu")
    assert prediction.labels == ()
    assert "outputs are not finite" in prediction.error
