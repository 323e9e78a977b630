"""What runs are called, and where they are."""

import json
import re
from pathlib import Path

import pytest

from vitkit.training import default_run_dir, run_name, tidied


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("photos", "photos-finetune"),
        ("photos/", "photos-finetune"),
        ("./photos/.", "photos-finetune"),
        ("/somewhere/my photos (new)/", "my-photos-new-finetune"),
        ("/somewhere/flowers/train", "flowers-finetune"),
        ("/somewhere/flowers/Data/images/", "flowers-finetune"),
        ("/data", "data-finetune"),
        ("/sets/ants_bees-train.parquet", "ants_bees-finetune"),
        ("/sets/tiny-train-00000-of-00002.parquet", "tiny-finetune"),
        ("/sets/tiny-train-{000..146}.tar", "tiny-finetune"),
        ("/sets/tiny-train*.parquet", "tiny-finetune"),
        ("/sets/birds.csv.gz", "birds-finetune"),
        ("/sets/birds/train.csv", "birds-finetune"),
        ("/sets/v1.2", "v1.2-finetune"),
        ("hf:ylecun/mnist", "mnist-finetune"),
        ("hf:me/birds@main", "birds-finetune"),
        ("https://host.org/sets/birds.tar?token=a/b", "birds-finetune"),
        ("s3://bucket/birds/train/", "birds-finetune"),
        ("own/data.py:birds", "birds-finetune"),
        ("digits", "digits-finetune"),
        ("/sets/Vögel", "Vögel-finetune"),
        ("/sets/-rf", "rf-finetune"),
        ("/sets/...", "finetune"),
        ("", "finetune"),
        ("/", "finetune"),
        ("/sets/" + "x" * 300, "x" * 60 + "-finetune"),
    ],
)
def test_a_run_is_named_after_its_images(data, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_name(data, "finetune") == name
    assert re.fullmatch(r"\w[\w.-]*", name)


@pytest.mark.parametrize(
    ("data", "kind", "name"),
    [
        ("digits", "digits", "digits"),
        ("/sets/cifar10-train.parquet", "cifar10-laptop", "cifar10-laptop"),
        ("/sets/photos", "paper.B16", "photos-paper.B16"),
        ("/sets/photos", "", "photos"),
        ("/sets/photos", "my recipe/2", "photos-my-recipe-2"),
        ("", "", "run"),
    ],
)
def test_what_is_done_follows_the_images(data, kind, name):
    assert run_name(data, kind) == name


def test_the_home_folder_is_no_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "ada"))
    assert run_name(str(tmp_path / "ada" / "data"), "finetune") == "data-finetune"
    assert run_name(str(tmp_path / "ada" / "birds"), "finetune") == "birds-finetune"


def test_two_folders_of_one_name_do_not_meet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = Path("runs") / "photos-finetune"
    assert default_run_dir("a/photos", "finetune") == first

    # A directory where nothing was trained is free; a trained run is found again by its own images
    first.mkdir(parents=True)
    (first / "recipe.json").write_text(json.dumps({"data": {"source": "a/photos"}}))
    assert default_run_dir("b/photos", "finetune") == first
    (first / "model").mkdir()
    assert default_run_dir("a/photos/", "finetune") == first
    assert default_run_dir("b/photos", "finetune") == Path("runs") / "photos-finetune-2"


def test_a_completed_folder_is_the_same_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    assert tidied("photos/") == tidied("./photos") == "photos"
    for other in ("", "digits", "hf:me/birds", "s3://bucket/birds/", "nowhere/"):
        assert tidied(other) == other


def test_labels_of_photographs_have_their_name(tmp_path, monkeypatch):
    """What is trained on what vitkit label wrote does not come into its directory."""
    monkeypatch.chdir(tmp_path)
    assert run_name("runs/photos-labels/labels.csv", "finetune") == "photos-finetune"
    assert run_name("pets/labels.csv", "finetune") == "pets-finetune"
    session = Path("runs/photos-finetune")
    session.mkdir(parents=True)
    (session / "sitting.json").write_text("{}")
    assert default_run_dir("photos", "finetune") == Path("runs/photos-finetune-2")
