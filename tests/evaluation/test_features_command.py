"""`vitkit features`, `fewshot` and `probe` on photographs, and what they say of data that they
cannot use."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from processes import together
from quick_ones import quick_ones
from tables import saved

from vitkit import cli
from vitkit.data import open_source
from vitkit.evaluation import compute_features
from vitkit.weights import load


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("model"), "abcd", "mu/8", 16, depth=1)


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    """Training and test images of three colours that a network cannot mix up."""
    folder = tmp_path_factory.mktemp("colours")
    random = np.random.default_rng(0)
    for part, count in (("train", 7), ("test", 5)):
        for channel, name in enumerate(("red", "green", "blue")):
            (folder / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 90, (16, 16, 3), dtype=np.uint8)
                pixels[..., channel] += 150
                Image.fromarray(pixels).save(folder / part / name / f"{i}.png")
    return str(folder)


def said(capsys, *words, status=0):
    assert cli.main(list(words)) == status
    return capsys.readouterr()


@pytest.mark.slow
def test_features_are_written_with_their_keys_and_labels(
    model, colours, tmp_path, capsys, monkeypatch
):
    file = tmp_path / "new" / "colours.parquet"
    exact = ["--device", "cpu", "--precision", "float32"]
    text = said(capsys, "features", model, colours, "-o", str(file), *exact).out
    assert "36 images, 32 features each" in text
    table = pq.read_table(file)
    assert table.column_names == ["key", "part", "label", "class", "features"]
    rows = {row["key"]: row for row in table.to_pylist()}
    test = open_source(colours)
    x, y = compute_features(load(model, quiet=True).for_inference(), test)
    for i in (0, 7, 14):
        row = rows[test.name(i)]
        assert row["part"] == "test" and row["label"] == y[i] and row["class"] == test.answer(i)
        assert row["features"] == x[i].tolist()
    assert json.loads(table.schema.metadata[b"class_names"]) == list(test.labels)

    said(
        capsys, "features", model, colours, "-o", str(tmp_path / "c.npz"), "--split", "test", *exact
    )
    arrays = np.load(tmp_path / "c.npz", allow_pickle=False)
    assert np.array_equal(arrays["features"], x) and arrays["label"].tolist() == y.tolist()
    assert arrays["key"][3] == test.name(3) and arrays["class_names"].tolist() == list(test.labels)

    # Equal runs write equal bytes, whatever the time
    monkeypatch.setattr("time.time", lambda: 2e9)
    again = tmp_path / "d.npz"
    said(capsys, "features", model, colours, "-o", str(again), "--split", "test", *exact)
    assert again.read_bytes() == (tmp_path / "c.npz").read_bytes()

    # In another precision they are others, whatever the cache holds; the file says which
    words = ["features", model, colours, "-o", str(tmp_path / "b.npz"), "--split", "test"]
    said(capsys, *words, "--device", "cpu", "--precision", "bfloat16")
    rounded = np.load(tmp_path / "b.npz", allow_pickle=False)
    assert not np.array_equal(rounded["features"], x)
    np.testing.assert_allclose(rounded["features"], x, rtol=1e-5, atol=0.1)
    assert bytes(rounded["precision"].item()) == b"bfloat16"
    assert bytes(arrays["precision"].item()) == b"float32"

    # What is taken unless told is said, though not where JSON is read
    monkeypatch.setattr("vitkit.system.machine.has_bfloat16", lambda device: False)
    told = said(capsys, "features", model, colours, "-o", str(file), "--device", "cpu")
    assert "computing in float32: this CPU has no bfloat16" in told.err
    assert pq.read_metadata(file).metadata[b"precision"] == b"float32"

    # Its own files are replaced, others are not
    for name in ("new/colours.parquet", "c.npz"):
        said(capsys, "features", model, colours, "-o", str(tmp_path / name))
    (tmp_path / "mine.npz").write_bytes(b"mine")
    for output, reason in (("c.txt", "ends in .parquet or .npz"), ("mine.npz", "not replaced")):
        words = ["features", model, colours, "-o", str(tmp_path / output)]
        assert reason in said(capsys, *words, status=1).err


def test_features_of_other_labels_have_other_columns(model, folder, tmp_path, capsys):
    photos = folder({f"{i}.png": 20 for i in range(3)})
    manifest = photos / "m.csv"
    manifest.write_text("image,tags,sharpness\n0.png,x,0.0\n1.png,x|y,0.1\n2.png,y,0.2")
    columns = {}
    for target, label in (("classes", "tags"), ("number", "sharpness"), ("none", "tags")):
        words = ["--data.columns.target", target, "--data.columns.label", label]
        file = tmp_path / f"{target}.npz"
        said(capsys, "features", model, str(manifest), "-o", str(file), *words)
        columns[target] = np.load(file, allow_pickle=False)
    assert columns["classes"]["classes"].tolist() == ["x", "x, y", "y"]
    np.testing.assert_allclose(columns["number"]["label"], [0.0, 0.1, 0.2])
    assert not {"label", "class", "classes"} & set(columns["none"].files)


def test_fewshot_prints_every_data_set_and_their_mean(model, colours, capsys):
    out = said(capsys, "fewshot", model, colours, "digits", "--shots", "1", "5").out
    assert "mean of 2" in out and "mean of 3 draws" in out and "next: vitkit probe" in out
    for form in ("fixed", "ranked"):
        words = ["--shots", "5", "--seeds", "2", "--form", form, "--json"]
        values = json.loads(said(capsys, "fewshot", model, colours, *words).out)
        assert values[colours]["5-shot/top1"]["value"] > 0.9
    out = said(capsys, "fewshot", model, colours, "--shots", "9", "--form", "ranked")
    assert "3 of 3 classes have fewer than 9 training images" in out.err
    assert "2^" in out.out and "flatters the model" in out.out


@pytest.mark.parametrize("method", quick_ones(("linear", "prototype", "logistic"), ("linear",)))
def test_a_probe_is_a_classifier_that_evaluates_as_it_says(
    method, model, colours, tmp_path, capsys
):
    words = ["--method", method, "--to", str(tmp_path / "probed"), "--json"]
    values = json.loads(said(capsys, "probe", model, colours, *words).out)
    assert values["left_out/top1"]["value"] > 0.9
    probed = load(tmp_path / "probed", quiet=True)
    assert sorted(probed.labels) == ["blue", "green", "red"]
    assert probed.origin["head"].startswith(f"{method} probe, temperature")
    again = json.loads(said(capsys, "evaluate", str(tmp_path / "probed"), colours, "--json").out)
    assert again["top1"] == values["test/top1"]
    assert again["calibration_error"]["value"] == pytest.approx(
        values["test/calibration_error"]["value"], abs=1e-3
    )


@pytest.mark.slow
def test_a_probe_without_a_test_part_holds_one_out(model, photographs, tmp_path, capsys):
    to = str(tmp_path / "probed")
    out = said(capsys, "probe", model, str(photographs), "--to", to)
    assert "20%" in out.err and "linear on 32 images" in out.out
    assert "8 images of" in said(capsys, "evaluate", to, str(photographs)).out
    out = said(capsys, "evaluate", to, str(photographs), "--split", "train").out
    assert "that the model learned from" in out and "held out" not in out
    out = said(capsys, "probe", model, str(photographs), "--method", "neighbours").out
    assert "left_out/top1" in out and "to DIRECTORY" not in out


def test_what_cannot_be_learned_from_is_a_sentence(model, colours, folder, capsys):
    alone = str(folder({"train/cat/1.png": 20, "train/cat/2.png": 20, "test/cat/3.png": 20}))
    for command in ("fewshot", "probe"):
        assert "two classes or more" in said(capsys, command, model, alone, status=1).err
    words = ["probe", model, colours, "--method", "neighbours", "--to", "x"]
    assert "no head that could be saved" in said(capsys, *words, status=1).err
    assert "--k is 0" in said(capsys, *words[:-2], "--k", "0", status=1).err
    words = ["probe", model, colours, "--to", f"{model}/config.json/model"]
    assert "is no folder that you may write to" in said(capsys, *words, status=1).err
    words = ["probe", model, colours, "--to", alone]
    assert not said(capsys, *words, status=1).out  # refused before its work
    words = ["--data.columns.target", "number"]
    assert "targets" in said(capsys, "fewshot", model, "digits", *words, status=1).err


def numbers_rounded(value):
    """What JSON holds, with its numbers to seven digits behind the point."""
    if isinstance(value, dict):
        return {name: numbers_rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [numbers_rounded(inner) for inner in value]
    return round(value, 7) if isinstance(value, float) else value


@pytest.mark.slow
def test_three_ranks_print_what_one_does(model, colours, tmp_path, capsys):
    """27 images of a part are no multiple of a batch; and rank 0 alone prints and writes."""
    ending = ["--json", "--device", "cpu"]
    shots = ["fewshot", model, colours, "--shots", "2", *ending]
    probe = ["probe", model, colours, *ending]
    suite = tmp_path / "suite.toml"
    suite.write_text(f"[tasks.colours]\ndata = {json.dumps(Path(colours).name)}\n")
    words = ["suite", str(suite), model, "--data", str(Path(colours).parent), *ending]
    alone = [*words, "--workdir", str(tmp_path / "alone")]
    shared = [*words, "--workdir", str(tmp_path / "shared")]
    expected = [
        json.loads(said(capsys, *words).out.splitlines()[-1]) for words in (shots, probe, alone)
    ]

    def run():
        import contextlib
        import os

        torch.set_num_threads(1)
        os.environ["VITKIT_CACHE"] = str(tmp_path / "other")
        file = tmp_path / f"{os.environ['RANK']}.txt"
        with file.open("w") as out, contextlib.redirect_stdout(out):
            for words in (shots, probe, shared):
                assert cli.main(words) == 0

    assert together(3, run) == [0, 0, 0]
    lines = (tmp_path / "0.txt").read_text().splitlines()
    # To rounding: on some processors features of batches of another size differ in the last digit
    for line, one in zip(lines, expected, strict=True):
        assert numbers_rounded(json.loads(line)) == numbers_rounded(one)
    assert not (tmp_path / "1.txt").read_text() and not (tmp_path / "2.txt").read_text()


@pytest.mark.slow
def test_broken_images_are_skipped_if_that_is_wanted(model, folder, tmp_path, capsys):
    parts = {"train": 3, "test": 2}
    files = {
        f"{part}/{name}/{i}.png": 20
        for part, count in parts.items()
        for name in ("cat", "dog")
        for i in range(count)
    }
    photos = str(folder({**files, "train/cat/broken.png": 0, "test/dog/broken.png": 0}))
    to = str(tmp_path / "probed")
    for command, words in {
        "features": ("-o", str(tmp_path / "f.npz")),
        "fewshot": ("--shots", "2"),
        "probe": ("--to", to),
    }.items():
        assert "broken.png" in said(capsys, command, model, photos, *words, status=1).err
        out, err = said(capsys, command, model, photos, *words, "--on-bad-image", "skip")
        assert err.count("left out: ") == 2, command
    assert "wrote" in out and "linear on 6 images" in out


@pytest.mark.slow
def test_a_class_that_only_test_images_have_is_measured_but_not_trained_on(
    model, folder, tmp_path, capsys
):
    """What the training part lacks stops training, and nothing else."""
    photos = str(
        folder({f"train/{k}/{i}.png": 20 for k in ("cat", "dog") for i in range(4)})
        and folder({f"test/{k}/{i}.png": 20 for k in ("ant", "cat", "dog") for i in range(2)})
    )
    for words in (("probe", "--to", str(tmp_path / "probed")), ("fewshot", "--shots", "2")):
        err = said(capsys, words[0], model, photos, *words[1:]).err
        assert "ant" in err and "2 test images cannot be answered right" in err
    err = said(capsys, "finetune", model, photos, status=1).err
    assert "0.png is of the class 'ant', which the training part does not have (cat, dog)" in err
    assert "is of the class 'ant'" in said(capsys, "data", "stats", photos).out
    err = said(capsys, "data", "pack", photos, str(tmp_path / "shards"), status=1).err
    assert "rename or remove it" in err

    # A model that does not know it: an error, or images that are left out, unless none has it
    words = ("evaluate", str(tmp_path / "probed"), photos)
    err = said(capsys, *words, status=1).err
    assert "does not know: ant" in err and "--on-unknown-class skip" in err
    out, err = said(capsys, *words, "--on-unknown-class", "skip")
    assert "left out: 2 of 6 images" in err and "4 images of" in out
    assert "8 images of" in said(capsys, *words, "--split", "train").out
