"""What is said of a model that is no better than a guess."""

import numpy as np
import pytest

from vitkit.cli.entry import main
from vitkit.data import Preprocessing
from vitkit.evaluation import SHARE, Metric
from vitkit.finetuning import question
from vitkit.finetuning.first_model import guess
from vitkit.models import create, vit
from vitkit.weights import Classifier, save


def test_the_most_frequent_class_is_the_guess():
    y = np.array([0] * 60 + [1] * 40)
    blind = guess(question("class", ("ants", "bees")), y)
    assert blind.value == 0.6 and blind.error == pytest.approx((0.6 * 0.4 / 100) ** 0.5)
    assert blind.words == "always ants is right on 60.0 %"
    assert blind.explains(Metric("test/top1", 0.69, SHARE))
    assert not blind.explains(Metric("test/top1", 0.71, SHARE))

    # Four images are too few: all four right may be a guess, and is not called one
    few = guess(question("class", ("ants", "bees")), np.array([0, 0, 1, 1]))
    assert not few.explains(Metric("test/top1", 1.0, SHARE))

    # Where classes count alike, the rare ones decide how far chance goes
    balanced = guess(
        question("class", ("ants", "bees"), balanced=True), np.array([0] * 96 + [1] * 4)
    )
    assert balanced.value == 0.5
    assert balanced.error == pytest.approx((0.25 / 96 + 0.25 / 4) ** 0.5 / 2)
    assert guess(question("number", ()), y) is None


@pytest.mark.slow
def test_a_model_of_noise_is_said_to_guess(folder, tmp_path, capsys):
    network = create(vit("mu/16", image=(8, 8), patch=2, classes=2), seed=0)
    classifier = Classifier(network, Preprocessing(size=(8, 8)), ("a", "b"))
    pretrained = str(save(classifier, tmp_path / "pretrained"))
    photos = str(folder({f"{'ab'[i % 2]}/{i}.png": 12 for i in range(40)}))
    words = ["finetune", pretrained, photos, "--workdir", str(tmp_path / "run")]
    short = "--length 1steps --precision float32 --device cpu --data.workers 0".split()
    assert main([*words, *short]) == 0
    said = capsys.readouterr().out
    assert "that is not clearly better than a guess (always a is right on 50.0 %)" in said
    assert "this model is not clearly better than a guess" in said and "--minutes" in said
