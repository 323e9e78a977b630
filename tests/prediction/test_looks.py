"""Pictures of what a model looked at, beside its answers."""

import csv
import json

import numpy as np
import pytest
import torch
from pictures import encoded, photograph
from PIL import Image

from vitkit.cli.entry import main
from vitkit.data import Preprocessing
from vitkit.inspection import rollout
from vitkit.inspection.photographs import GAP, LINE
from vitkit.models import Backbone, ResNetConfig, create, vit
from vitkit.prediction import predict_items
from vitkit.prediction.attention import Looking
from vitkit.runtimes import eager
from vitkit.weights import Classifier, save


def classifier(config):
    network = create(config, seed=0)
    torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(0))
    return Classifier(network, Preprocessing(size=(32, 32)), ("cat", "dog"))


def test_answers_are_the_same_and_the_pictures_are_of_their_images(tmp_path, folder, capsys):
    model = save(classifier(vit("mu/8", image=32, classes=2)), tmp_path / "model")
    photos = folder({"a/1.png": 40, "b/1.png": 44, "c/bad.png": 0})
    looks = photos / "looks"
    words = ["predict", str(model), str(photos), "--device", "cpu", "--json"]
    assert main(words) == 3
    plain = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for _ in range(2):  # own pictures are replaced, and are no images to classify
        assert main([*words, "--attention", str(looks)]) == 3
        answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        paths = [answer.pop("attention", None) for answer in answers]
        assert paths == [str(looks / "1.png.png"), str(looks / "1.png-2.png"), None]
        assert [answer.get("labels") for answer in answers] == [
            answer.get("labels") for answer in plain
        ]

    # Beside each photograph it is dark where the map is small
    with Image.open(paths[0]) as opened:
        both = np.asarray(opened).astype(float)
    both = both[:-LINE]  # above the answer
    width = both.shape[0]
    left, right = both[:, :width], both[:, width + GAP :]
    assert left.shape == right.shape and (right <= left).all() and right.sum() < left.sum()


def test_somebodys_picture_stays(tmp_path, folder, capsys):
    model = save(classifier(vit("mu/8", image=32, classes=2)), tmp_path / "model")
    photos = folder({"1.png": 40})
    looks = tmp_path / "looks"
    looks.mkdir()
    mine = encoded(photograph(8, 8), "PNG")
    (looks / "1.png.png").write_bytes(mine)
    rows = tmp_path / "rows.csv"
    words = ["predict", str(model), str(photos), "--attention", str(looks), "--to", str(rows)]
    assert main(words) == 0
    assert (looks / "1.png.png").read_bytes() == mine and (looks / "1.png-2.png").exists()
    with rows.open(newline="") as file:
        assert [row["attention"] for row in csv.DictReader(file)] == [str(looks / "1.png-2.png")]
    assert f"wrote 1 picture into {looks}" in capsys.readouterr().out


@pytest.mark.parametrize("pool", ["token", "gap", "map"])
def test_the_map_is_the_rollout(pool):
    model = classifier(vit("mu/8", image=32, classes=2, pool=pool))
    runtime = Looking(eager(model, "cpu"))
    (answer,) = predict_items(runtime, photograph(32, 32))
    (plain,) = predict_items(model, photograph(32, 32), device="cpu")
    assert answer.labels == plain.labels
    assert answer.probabilities == pytest.approx(plain.probabilities, abs=1e-5)
    images = torch.from_numpy(photograph(32, 32)).permute(2, 0, 1)[None]
    torch.testing.assert_close(torch.from_numpy(runtime.maps), rollout(model, images))


def test_a_model_without_attention_is_a_sentence(tmp_path, folder, capsys):
    resnet = classifier(ResNetConfig(Backbone((1, 1), 0.5), (32, 32), classes=2))
    model = save(resnet, tmp_path / "model")
    photos = folder({"1.png": 40})
    assert main(["predict", str(model), str(photos), "--attention", str(tmp_path / "looks")]) == 1
    assert "has no attention among patches" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "looks").exists()
