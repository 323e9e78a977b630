"""Less work, asked for: files that merge tokens, and predictions that end early."""

import json

import numpy as np
import pytest
import torch
from pictures import photograph
from PIL import Image

from vitkit.cli.entry import main
from vitkit.data import Preprocessing
from vitkit.exporting import write_export
from vitkit.models import create, vit
from vitkit.prediction import check_less_work, merging
from vitkit.runtimes import Export, eager, open_file
from vitkit.weights import Classifier, save

SMALL = vit("mu/8", image=(32, 48), classes=5, depth=4, width=24, heads=3, mlp=48)
ENDINGS = {"torch": "pt2", "onnx": "onnx", "openvino": "xml"}
NEEDED = {"torch": (), "onnx": ("onnxscript", "onnxruntime"), "openvino": ("openvino",)}


@pytest.fixture(scope="module")
def classifier():
    model = create(SMALL, seed=0)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    return Classifier(model, Preprocessing(size=(32, 48)), tuple("abcde"))


@pytest.mark.slow
@pytest.mark.parametrize("to", ENDINGS)
def test_a_file_merges_as_pytorch_does(to, classifier, tmp_path):
    for package in NEEDED[to]:
        pytest.importorskip(package)
    file = tmp_path / f"model.{ENDINGS[to]}"
    agreement = write_export(classifier, file, Export(to=to, merge=3, least=0.0))
    assert agreement.largest > 1e-4  # beside the whole model, which answers otherwise
    written = json.loads((tmp_path / f"{file.name}.json").read_text())
    assert written["tokens_merged_in_every_block"] == 3

    runtime = open_file(file, trusted=True)
    assert runtime.exported.origin["tokens_merged_in_every_block"] == 3
    generator = np.random.default_rng(0)
    for count in (1, 3):
        images = generator.integers(0, 256, (count, 3, 32, 48), dtype=np.uint8)
        expected = eager(merging(classifier, 3), "cpu").logits(images)
        np.testing.assert_allclose(runtime.logits(images), expected, atol=2e-5)


def said(capsys, *words):
    """What is refused, in one line."""
    assert main([str(word) for word in words]) == 1
    return " ".join(capsys.readouterr().err.split())


def test_images_end_early_if_that_is_asked_for(classifier, tmp_path, capsys):
    model = save(classifier, tmp_path / "model")
    photo = tmp_path / "photo.png"
    Image.fromarray(photograph(40, 50)).save(photo)
    answers = []
    for words in ((), ("--exit", "1", "--calibrate", "digits"), ("--merge", "3")):
        command = ["predict", model, photo, "--json", "--device", "cpu", *words]
        assert main([str(word) for word in command]) == 0
        output = capsys.readouterr()
        answers.append(json.loads(output.out))
        if words:
            assert f"with --{words[0][2:]} {words[1]} and --data DATA says how much" in output.err
    assert answers[1] == answers[0]  # no image is as sure as that
    assert answers[2]["probabilities"] != answers[0]["probabilities"]

    one = ("predict", model, photo, "--exit", "0.9")
    assert "needs --calibrate DATA" in said(capsys, *one)
    assert "give one of them" in said(capsys, *one, "--merge", "3")
    given = (*one, "--calibrate", "digits")
    assert "is computed by PyTorch" in said(capsys, *given, "--runtime", "onnx")
    assert "needs the whole model" in said(capsys, *given, "--attention", tmp_path / "maps")
    assert "goes with --exit" in said(capsys, "predict", model, photo, "--calibrate", "digits")


def test_models_that_cannot_merge_are_a_sentence(classifier, tmp_path):
    mean = create(vit("mu/8", image=(32, 48), classes=5, pool="gap"), seed=0)
    torch.nn.init.normal_(mean.head.weight)
    other = Classifier(mean, classifier.preprocessing, classifier.labels)
    with pytest.raises(ValueError, match="token merging is for models that answer by a class"):
        write_export(other, tmp_path / "model.pt2", Export(to="torch", merge=3))


@pytest.mark.parametrize(
    ("merge", "sure", "sentence"),
    [((1, 99), (), "99 tokens of a block cannot be merged"), ((), (0.9, 1.5), "probability 1.5")],
)
def test_wrong_numbers_are_found_before_anything_is_measured(merge, sure, sentence, classifier):
    check_less_work(classifier, (1, 3), (0.5, 0.9))
    with pytest.raises(ValueError, match=sentence):
        check_less_work(classifier, merge, sure)
