"""The answers to very many images, by several processes, any of which may be killed: a row each."""

import copy
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from margins import at_most
from processes import Forked
from served import make_classifier

import vitkit
from vitkit.apps.batch import parts
from vitkit.apps.batch.parts import Chosen, PartFolder
from vitkit.apps.serve.models import warm_up
from vitkit.cli.entry import main
from vitkit.data import Preprocessing
from vitkit.models import create, vit
from vitkit.prediction import pictures
from vitkit.runtimes import eager
from vitkit.weights import Classifier, save

MODEL = make_classifier()
COUNT = 41
QUICK = "--workers 0 --device cpu --precision float32 --ok-if-unreadable".split()
# A part has few images, and takes its time
SLOW = """
import sys, time
from vitkit.data import Preprocessing
from vitkit.apps.batch import parts
from vitkit.apps.serve.models import warm_up
from vitkit.cli import main
parts.SIZE = 4
write = parts.PartFolder.write
def slowly(self, part, predictions):
    time.sleep(0.3)
    write(self, part, predictions)
parts.PartFolder.write = slowly
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def photos(folder):
    """41 photographs, one of them broken."""
    files = {f"{i // 10}/{i:03}.jpg": 40 + i for i in range(COUNT)}
    files["2/020.jpg"] = 0
    return folder(files)


@pytest.fixture
def model(tmp_path):
    return save(MODEL, tmp_path / "model")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(parts, "SIZE", 4)


def predict(model, photos, *words):
    return main(["predict", str(model), str(photos), *QUICK, *words])


def assert_whole(answers: Path, photos: Path) -> None:
    """The folder holds what `predict` says: a row for each image, in their order."""
    assert not list(answers.glob("*.new"))
    rows = pq.read_table(answers).to_pylist()
    expected = list(vitkit.prediction.predict_items(MODEL, photos, device="cpu", workers=0))
    assert [row["name"] for row in rows] == [prediction.name for prediction in expected]
    for row, prediction in zip(rows, expected, strict=True):
        assert row["error"] == prediction.error
        if prediction.error is None:
            assert row["label"] == prediction.labels[0]
            at_most(abs(row["probability"] - prediction.probabilities[0]), 1e-5)


def test_images_of_five_bands(tmp_path):
    """The model is known again by what it makes of noise, which has as many bands as its images."""
    mean = (0.5,) * 5
    preprocessing = Preprocessing((16, 16), mean=mean, std=mean, values="float32")
    model = create(vit("mu/8", image=(16, 16), classes=3, channels=5), seed=0)
    torch.nn.init.normal_(model.head.weight)
    bands = Classifier(model, preprocessing, ("field", "wood", "lake"))
    images = tmp_path / "images"
    images.mkdir()
    for i in range(5):
        values = np.random.default_rng(i).random((20, 24, 5), dtype=np.float32)
        np.save(images / f"{i}.npy", values)
    saved = save(bands, tmp_path / "model")
    answers = tmp_path / "answers"
    for _ in range(2):  # the second time it goes on
        assert predict(saved, images, "--parts", str(answers)) == 0
    assert pq.read_table(answers).num_rows == 5
    warm_up(eager(bands, "cpu"), 2)


def test_one_process(model, photos, tmp_path, capsys):
    answers = tmp_path / "answers"
    assert predict(model, photos, "--parts", str(answers)) == 0
    assert_whole(answers, photos)
    assert len(list(answers.glob("part-*.parquet"))) == 11
    assert "is whole: 41 rows for 41 images" in capsys.readouterr().out
    assert predict(model, photos, "--parts", str(answers)) == 0
    assert "wrote 0 parts" in capsys.readouterr().out


def test_parts_that_are_empty_or_damaged_are_named(model, photos, tmp_path, capsys):
    answers = tmp_path / "answers"
    assert predict(model, photos, "--parts", str(answers)) == 0
    (answers / "part-0000003.parquet").write_bytes(b"")  # of a full disk: it is computed again
    assert predict(model, photos, "--parts", str(answers)) == 0
    assert_whole(answers, photos)
    part = answers / "part-0000005.parquet"
    whole = part.read_bytes()
    for damaged in (b"PAR1", whole[:200], (answers / "part-0000010.parquet").read_bytes()):
        part.write_bytes(damaged)
        capsys.readouterr()
        assert predict(model, photos, "--parts", str(answers)) == 1
        error = " ".join(capsys.readouterr().err.split())
        assert f"{part} " in error and "remove it, and the same command computes it again" in error
    part.unlink()
    assert predict(model, photos, "--parts", str(answers)) == 0
    assert_whole(answers, photos)


def test_the_status_tells_of_unreadable_images_of_the_whole_folder(model, photos, tmp_path):
    words = ["batch", str(model), str(photos), "--into", str(tmp_path / "a"), *QUICK[:-1]]
    assert [main(words) for _ in range(2)] == [3, 3]
    assert main([*words, "--ok-if-unreadable"]) == 0


def test_answers_of_less_work_are_not_gone_on_with(model, photos, tmp_path, capsys):
    answers = tmp_path / "answers"
    assert predict(model, photos, "--parts", str(answers), "--merge", "1") == 0
    assert predict(model, photos, "--parts", str(answers)) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "holds answers with --merge 1, and these would be of the whole model" in error


def test_shards_share_the_work_and_their_number_may_change(model, photos, tmp_path, capsys):
    answers = tmp_path / "answers"
    assert predict(model, photos, "--parts", str(answers), "--shard", "2/3") == 0
    assert "7 of 11 parts" in capsys.readouterr().out
    (answers / "part-0000000.parquet.0a1b2c3d.new").write_bytes(b"PAR1")  # of a killed process
    assert predict(model, photos, "--parts", str(answers), "--shard", "1/2") == 0
    assert predict(model, photos, "--parts", str(answers)) == 0
    assert_whole(answers, photos)


def test_torchruns_ranks_are_shards(model, photos, tmp_path, monkeypatch):
    answers = tmp_path / "answers"
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert predict(model, photos, "--parts", str(answers)) == 0
    assert_whole(answers, photos)


def test_a_data_set_is_gone_on_with_too(model, photos, tmp_path):
    items = pictures([str(photos)])
    some = PartFolder.begin(tmp_path / "answers", items, eager(MODEL, "cpu"), 5)
    chosen = Chosen.of(items, some, [0, 10])
    assert [chosen[i].name for i in range(len(chosen))] == [items[i].name for i in (0, 1, 2, 3, 40)]


def nearly(classifier: Classifier) -> Classifier:
    """The model as one more step of training would leave it."""
    model = copy.deepcopy(classifier.model)
    with torch.no_grad():
        model.head.bias += 1e-6
    return replace(classifier, model=model)


def test_a_model_a_step_away_is_another(model, photos, tmp_path, capsys):
    answers = str(tmp_path / "answers")
    assert predict(model, photos, "--parts", answers) == 0
    (Path(answers) / "part-0000003.parquet").unlink()
    capsys.readouterr()
    later = save(nearly(MODEL), tmp_path / "later")
    assert "another model: its weights" in refused(capsys, later, photos, "--parts", answers)
    bright = replace(MODEL, preprocessing=replace(MODEL.preprocessing, mean=(0.5, 0.5, 0.51)))
    bright = save(bright, tmp_path / "bright")
    assert "another model: its weights" in refused(capsys, bright, photos, "--parts", answers)
    assert not (Path(answers) / "part-0000003.parquet").exists()


def test_the_same_weights_in_another_format_go_on(model, photos, tmp_path):
    answers = str(tmp_path / "answers")
    assert predict(model, photos, "--parts", answers) == 0
    (Path(answers) / "part-0000003.parquet").unlink()
    other = tmp_path / "other.safetensors"
    assert main(["convert", str(model), "--to", "timm", "-o", str(other)]) == 0
    assert predict(other, photos, "--parts", answers) == 0
    assert_whole(Path(answers), photos)


def test_what_computes_the_model_is_part_of_what_the_answers_are(model, photos, tmp_path, capsys):
    answers = str(tmp_path / "answers")
    assert predict(model, photos, "--parts", answers) == 0
    capsys.readouterr()
    error = " ".join(
        refused(capsys, model, photos, "--parts", answers, "--precision", "bfloat16").split()
    )
    assert "holds answers of this model that PyTorch in float32 computed" in error
    assert "these would be by PyTorch in bfloat16, which differ a little" in error


def test_of_two_that_begin_a_folder_at_once_one_goes_on(photos, tmp_path):
    items = pictures([str(photos)])
    answers = tmp_path / "answers"
    first = PartFolder.begin(answers, items, eager(MODEL, "cpu"), 5)
    (answers / "_answers.json").unlink()  # the other one has not seen it
    PartFolder.begin(answers, items, eager(nearly(MODEL), "cpu"), 5)
    predictions = list(vitkit.prediction.predict_items(MODEL, photos, device="cpu", workers=0))[:4]
    with pytest.raises(ValueError, match="begun by another process at the same moment"):
        first.write(0, predictions)


def test_a_folder_of_an_earlier_version_goes_on_and_says_what_it_cannot_tell(
    model, photos, tmp_path, capsys
):
    answers = tmp_path / "answers"
    assert predict(model, photos, "--parts", str(answers)) == 0
    (answers / "part-0000003.parquet").unlink()
    about = json.loads((answers / "_answers.json").read_text())
    del about["model"], about["computed"]
    about["outputs"] = parts._logits_of_noise(eager(MODEL, "cpu")).round(4).tolist()
    (answers / "_answers.json").write_text(json.dumps(about))
    capsys.readouterr()
    assert predict(model, photos, "--parts", str(answers)) == 0
    assert "begun by an earlier version" in " ".join(capsys.readouterr().err.split())
    assert_whole(answers, photos)
    other = save(make_classifier(seed=3), tmp_path / "other")
    assert "another model" in refused(capsys, other, photos, "--parts", str(answers))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_that_are_killed_lose_nothing(model, photos, tmp_path, number):
    answers = tmp_path / "answers"
    words = ["predict", str(model), str(photos), *QUICK, "--parts", str(answers)]
    shards = [
        Forked(
            [sys.executable, "-c", SLOW, *words, "--shard", f"{i}/2"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for i in (1, 2)
    ]
    until = time.monotonic() + 60
    while len(list(answers.glob("part-*.parquet"))) < 3:
        assert time.monotonic() < until
        time.sleep(0.01)
    for shard in shards:
        os.kill(shard.pid, number)
        assert shard.wait(30) != 0
    there = {path: path.stat().st_mtime_ns for path in answers.glob("part-*.parquet")}
    assert 3 <= len(there) < 11
    assert predict(model, photos, "--parts", str(answers)) == 0
    assert_whole(answers, photos)
    for path, written in there.items():  # what was there is not done again
        assert path.stat().st_mtime_ns == written


def refused(capsys, *words):
    assert predict(*words) == 1
    return capsys.readouterr().err


def test_answers_to_something_else_are_refused(model, photos, tmp_path, capsys):
    answers = str(tmp_path / "answers")
    assert predict(model, photos, "--parts", answers) == 0
    capsys.readouterr()
    one = photos / "0" / "000.jpg"
    assert "the answers to 41 images, and these are 1" in refused(
        capsys, model, one, "--parts", answers
    )
    one.rename(photos / "0" / "0001.jpg")
    assert "other images" in refused(capsys, model, photos, "--parts", answers)
    (photos / "0" / "0001.jpg").rename(one)
    assert "--top is 2" in refused(capsys, model, photos, "--parts", answers, "--top", "2")
    other = save(make_classifier(seed=3), tmp_path / "other")
    assert "another model" in refused(capsys, other, photos, "--parts", answers)
    assert "the images are in" in refused(capsys, model, photos, "--parts", str(photos))
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    (mixed / "notes.txt").write_text("mine")
    assert "holds other files" in refused(capsys, model, photos, "--parts", str(mixed))
    (Path(answers) / "_answers.json").write_text("{}")
    assert "is damaged" in refused(capsys, model, photos, "--parts", answers)


def test_settings_that_do_not_go_together(model, photos, capsys):
    for shard in ("0/2", "3/2", "half", "1/0"):
        assert "1/4 to 4/4" in refused(capsys, model, photos, "--parts", "a", "--shard", shard)
    assert predict(model, photos, "--parts", "a", "--json") == 2
    assert "vitkit batch has no --json" in capsys.readouterr().err
    assert "no names from" in refused(capsys, model, "-", "--parts", "a")
