"""Limits for unknown images: against fits without each image, their shares on new images, and in a
saved model."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from margins import at_least, at_most
from tables import saved

from vitkit.cli import main
from vitkit.data import Preprocessing
from vitkit.evaluation.probes.probe import probe
from vitkit.evaluation.probes.unknown import fit_unknown, left_out_distances, whitened_classes
from vitkit.models import create, vit
from vitkit.prediction.predictions import Prediction
from vitkit.verbs.prediction.output import AnswerTable
from vitkit.weights import Classifier, adopt, load, save
from vitkit.weights.classifier import with_temperature
from vitkit.weights.files.directory import UNKNOWN


def clusters(count, seed, width=12, classes=4):
    """Images of some classes, and of one more that is far from all."""
    random = np.random.default_rng(seed)
    y = np.arange(count) % classes
    centres = 1.5 * np.random.default_rng(0).normal(size=(classes + 1, width))
    noise = random.normal(size=(count, width)) * np.linspace(0.5, 2, width)
    other = 4 * centres[-1] + random.normal(size=(count, width))
    return (centres[y] + noise).astype(np.float32), y, other.astype(np.float32)


def limits(x, y):
    fitted = probe("linear", x, y, 4)
    return fit_unknown(torch.tensor(x), torch.tensor(y), fitted.left_out), fitted


@pytest.mark.parametrize("count", [41, 9])
@pytest.mark.parametrize("size", [1, 3])
def test_distances_are_those_of_a_fit_without_the_image_s_group(count, size):
    x, y, _ = clusters(count, 1)
    x, classes = torch.tensor(x).double(), torch.tensor(y)
    groups = np.arange(count) // (4 * size)  # of each class
    means, whitening, centre = whitened_classes(x, classes, 4)
    found = left_out_distances((x - centre) @ whitening, means, classes, groups)
    inverse = whitening @ whitening.mT
    centred = x - torch.stack([x[classes == k].mean(0) for k in range(4)])[classes]
    regularisation = torch.linalg.inv(inverse) - centred.mT @ centred
    for i in range(0, count, 3):
        gone = (classes == classes[i]) & torch.from_numpy(groups == groups[i])
        others = [k for k in range(4) if (classes[~gone] == k).any()]
        of_class = {k: x[~gone & (classes == k)].mean(0) for k in others}
        rows = torch.stack([x[j] - of_class[int(classes[j])] for j in torch.where(~gone)[0]])
        scatter = rows.mT @ rows + regularisation
        for k in range(4):
            if k not in others:
                assert k == y[i] and found[i, k] == math.inf
                continue
            away = x[i] - of_class[k]
            distance = away @ torch.linalg.solve(scatter, away)
            torch.testing.assert_close(found[i, k], distance, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_of_every_class_new_images_are_covered_and_accepted_as_often_as_said():
    """Over random splits, within three standard errors of the mean over splits; of a rare class too,
    and of one that the model hardly ever answers."""
    covered = []  # the share of each class
    rejected = []
    detected = []
    for seed in range(8):
        x, y, other = clusters(2_000, seed)
        learned = np.r_[
            :160, np.flatnonzero(y[160:] < 2)[:160] + 160
        ]  # 120 of two classes, 40 of two
        unknown, fitted = limits(x[learned], y[learned])
        rest = np.setdiff1d(np.arange(2_000), learned)
        new = torch.tensor(x[rest])
        logits = fitted.logits(new)
        probabilities = logits.softmax(1)
        is_open = unknown.is_open(probabilities)
        assert is_open.gather(1, logits.argmax(1, keepdim=True)).all()  # the likeliest always
        is_unknown = unknown.is_unknown(new, logits)
        own = is_open.gather(1, torch.tensor(y[rest])[:, None])[:, 0]
        classes = [torch.tensor(y[rest] == k) for k in range(4)]
        covered.append([own[members].double().mean().item() for members in classes])
        rejected.append([is_unknown[members].double().mean().item() for members in classes])
        strange = torch.tensor(other)
        detected.append(unknown.is_unknown(strange, fitted.logits(strange)).double().mean().item())
    error = np.std(covered, 0, ddof=1) / math.sqrt(len(covered))
    at_least(np.mean(covered, 0) + 3 * error, 0.95)
    error = np.std(rejected, 0, ddof=1) / math.sqrt(len(rejected))
    at_most(np.mean(rejected, 0) - 3 * error, 0.05)
    at_least(np.mean(detected), 0.95)


def test_few_images_tell_nothing():
    x, y, _ = clusters(12, 0)
    unknown, fitted = limits(x, y)
    assert unknown.limit.isinf().all() and not unknown.least.any()
    far = 1e3 * torch.ones(1, 12)
    assert not unknown.is_unknown(far, fitted.logits(far)).any()
    assert unknown.is_open(torch.tensor([[1.0, 0, 0, 0]])).all()
    same = torch.ones(30, 12)
    assert fit_unknown(same, torch.arange(30) % 4, torch.zeros(30, 4)).far == 1


def test_a_class_of_few_images_is_left_open_and_its_limit_is_that_of_all():
    x, y, _ = clusters(200, 0)
    few = np.r_[np.flatnonzero(y < 3), np.flatnonzero(y == 3)[:18]]
    unknown, _ = limits(x[few], y[few])
    assert unknown.least[3] == 0 and (unknown.least[:3] > 0).all()
    assert unknown.limit.isfinite().all()
    assert unknown.is_open(torch.tensor([[0.9, 0.1, 0, 0]]))[0, 3]


@pytest.mark.parametrize("spread", [1e-3, 1e-5])
def test_a_model_s_own_images_are_known_however_little_its_features_vary(spread):
    x, y, other = clusters(200, 0)
    x = 30 + spread * x  # as a float32 holds it
    unknown, fitted = limits(x, y)
    own = torch.tensor(x).double()
    assert unknown.is_unknown(own, fitted.logits(own)).double().mean() < 0.1
    other = torch.tensor(30 + spread * other).double()
    assert unknown.is_unknown(other, fitted.logits(other)).double().mean() > 0.9


# In a model


@pytest.fixture(scope="module")
def classifier():
    network = create(vit("mu/8", image=(16, 16), depth=1, classes=4), seed=0).eval()
    torch.nn.init.normal_(network.head.weight)
    x, y, _ = clusters(100, 0, width=network.head.weight.shape[1])
    unknown, _ = limits(x, y)
    return Classifier(network, Preprocessing(size=(16, 16)), tuple("abcd"), unknown=unknown)


def test_limits_are_saved_with_the_model(classifier, tmp_path):
    loaded = load(save(classifier, tmp_path / "model"), quiet=True).unknown
    for name, value in vars(classifier.unknown).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(getattr(loaded, name), value)
        else:
            assert getattr(loaded, name) == value

    # Another model there has none, and a model keeps none of another's
    file = tmp_path / "model" / UNKNOWN
    limits_of_the_first = file.read_bytes()
    other = replace(classifier, origin={"other": 1}, unknown=None)
    save(other, tmp_path / "model")
    assert not file.exists()
    file.write_bytes(limits_of_the_first)
    assert load(tmp_path / "model", quiet=True).unknown is None


def test_another_head_or_other_features_have_no_limits(classifier):
    assert adopt(classifier, labels=("e", "f"))[0].unknown is None
    assert adopt(classifier, image=(32, 32))[0].unknown is None
    assert with_temperature(classifier, 2.0).unknown is None
    assert adopt(classifier, labels=classifier.labels)[0].unknown is not None


def test_damaged_limits_are_a_sentence(classifier, tmp_path):
    from safetensors import safe_open
    from safetensors.torch import save_file

    save(classifier, tmp_path / "model")
    file = tmp_path / "model" / UNKNOWN
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    for change in (
        {"means": torch.zeros(3, 24)},
        {"whitening": torch.full_like(tensors["whitening"], math.nan)},
        {"limit": torch.zeros(2)},
        {"more": torch.zeros(2)},
    ):
        save_file(tensors | change, file, metadata)
        with pytest.raises(ValueError, match=f"cannot be loaded: {UNKNOWN}"):
            load(tmp_path / "model", quiet=True)


def test_the_table_has_the_classes_that_are_left_open(capsys):
    seen = Prediction("a.jpg", ("cat", "dog", "cow"), (0.5, 0.3, 0.2))
    table = AnswerTable(seen.labels, "softmax", sys.stdout)
    possible = [seen.labels[:1], seen.labels[:2], seen.labels]
    table.print([seen._replace(unknown=False, possible=several) for several in possible])
    table.print([seen._replace(unknown=True, possible=())])
    answers = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()[2:]]
    assert answers == ["cat", "cat or dog", "cat or dog or 1 more", "unknown (cat?)"]


def test_predict_says_that_an_image_is_unknown(photographs, tmp_path, monkeypatch, capsys):
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    saved("model", (), "mu/8", 16, depth=1)
    assert main(["teach", "model", "colours", "--add", str(photographs)]) == 0
    stripes = np.zeros((40, 40, 3), np.uint8)
    stripes[::4] = (0, 255, 0)
    Image.fromarray(stripes).save("stripes.png")
    capsys.readouterr()

    for attention in ([], ["--attention", "looks"]):
        words = ["predict", "colours", "stripes.png", str(photographs / "red"), "--json"]
        assert main([*words, *attention]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert lines[0]["unknown"] is True and lines[0]["possible"] == []
        known = [line for line in lines[1:] if not line["unknown"]]
        assert len(known) >= 17 and all(line["possible"] == ["red"] for line in known)

    assert main(["predict", "colours", "stripes.png", "--to", "rows.csv"]) == 0
    assert ",yes," in Path("rows.csv").read_text()
    capsys.readouterr()
    assert main(["predict", "colours", "stripes.png", str(photographs / "red")]) == 0
    assert "unknown (" in capsys.readouterr().out
    assert main(["convert", "colours", "colours.npz", "--to", "google"]) == 0
    assert "left out: the limits for unknown images" in capsys.readouterr().out
