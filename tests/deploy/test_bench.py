"""`vitkit bench`: every runtime is measured, in turns, and said with its agreement."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from vitkit.cli import main
from vitkit.data import Preprocessing
from vitkit.deploy.bench import Plan, measure, starts
from vitkit.deploy.contenders import Contender
from vitkit.models import create, vit
from vitkit.weights import Classifier, save


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    network = create(vit("mu/8", image=16, classes=3), seed=0)
    torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(0))
    classifier = Classifier(network, Preprocessing(size=(16, 16)), ("ant", "bee", "wasp"))
    return save(classifier, tmp_path_factory.mktemp("model"))


def test_all_are_measured_in_turns():
    calls = []

    def contender(name):
        def compute(images):
            calls.append((name, images.shape))
            return np.zeros((len(images), 2), np.float32)

        return Contender(name, "float32", compute)

    speeds = measure([contender("a"), contender("b")], (4, 6), Plan((1, 3), 3, 1e-9))
    turns = [name for name, shape in calls[4:] if shape[0] == 3]
    # A pass to warm up and two that count; who came last begins the next round
    assert "".join(turns) == "aaabbb" + "bbbaaa" + "aaabbb"
    assert calls[0] == ("a", (1, 3, 4, 6))
    for speed in speeds:
        assert 0 < speed.p50 <= speed.p95
        assert speed.images_per_second[3] > 0 and speed.spread[3] >= 1


@pytest.mark.slow
def test_the_command_measures_recommends_and_writes(model, tmp_path, capsys):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    numbers = tmp_path / "speed.json"
    picture = tmp_path / "speed.png"
    words = "--runtimes torch onnx --precisions float32 --batch 1 4 --rounds 2 --seconds 0.01"
    command = ["bench", str(model), *words.split(), "--limit", "8", "--no-start-up"]
    assert main([*command, "--report", str(numbers), str(picture)]) == 0
    out = capsys.readouterr().out
    assert "ONNX Runtime float32" in out and "the fastest with the same answers: " in out

    written = json.loads(numbers.read_text())
    libraries = [row["library"] for row in written["runtimes"]]
    assert libraries == ["PyTorch", "ONNX Runtime"]
    for row in written["runtimes"]:
        assert row["agreement"]["same"] == 1 and row["agreement"]["largest"] < 1e-5
        assert set(row["images_per_second"]) == {"1", "4"}
    with Image.open(picture) as drawn:
        assert drawn.size[0] > 500
    assert main([*command, "--report", str(picture)]) == 0  # its own picture may be replaced


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--batch 0", "--batch is (0,)"),
        ("--rounds 0", "--rounds is 0"),
        ("--report speed.txt", "give the name of a .json or a .png file"),
        ("--timm nobody", "timm has no model 'nobody'"),
    ],
)
def test_what_cannot_be_is_a_sentence(model, capsys, words, sentence):
    assert main(["bench", str(model), *words.split()]) == 1
    assert sentence in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_processes_are_started(model):
    ((seconds, megabytes),) = starts([model])
    assert 0.1 < seconds < 120 and 100 < megabytes < 4000
    with pytest.raises(ValueError, match="failed: "):
        starts([model / "nothing"])
