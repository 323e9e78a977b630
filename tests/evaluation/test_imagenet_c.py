"""ImageNet-C's files: their layouts, and errors in proportion to AlexNet's."""

import json
import math

import numpy as np
import pytest
from pictures import encoded, photograph
from tables import answered, saved

from vitkit import cli
from vitkit.data import Preprocessing
from vitkit.evaluation import (
    ALEXNET,
    COMMON,
    open_corruption,
    relative_error,
    robustness_on_files,
    uncropped,
)
from vitkit.evaluation.benchmarks.corruptions import SEVERITIES
from vitkit.evaluation.benchmarks.imagenet_c import ALEXNET_CLEAN, open_imagenet_c
from vitkit.evaluation.benchmarks.labels import imagenet_wordnet
from vitkit.weights import imagenet_labels

WORDNET = imagenet_wordnet()
PICTURE = encoded(photograph(36, 36, 0), "PNG")


def put_corruption(folder, classes=(0, 0, 7)):
    """An image of each of these classes, at five severities."""
    for severity in SEVERITIES:
        for number, k in enumerate(classes, 1):
            path = folder / str(severity) / WORDNET[k] / f"ILSVRC2012_val_{number:08d}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(PICTURE)


def test_the_errors_are_the_published_ones():
    """ResNet-50 in Table 1 of Hendrycks & Dietterich: its CE by corruption, rounded, lead to its
    relative mCE of 105.0 % by AlexNet's errors, with 23.9 % on images as they are."""
    resnet_50 = [80, 82, 83, 75, 89, 78, 80, 78, 75, 66, 57, 71, 85, 77, 77]
    assert list(ALEXNET) == list(COMMON)
    assert np.mean(resnet_50) == pytest.approx(76.7, abs=0.5)
    relative = []
    for corruption, error in zip(COMMON, resnet_50, strict=True):
        relative.append(relative_error(error / 100 * ALEXNET[corruption], 0.239, corruption))
    assert 100 * np.mean(relative) == pytest.approx(105.0, abs=1.5)
    assert relative_error(ALEXNET["fog"], ALEXNET_CLEAN, "fog") == 1


@pytest.mark.parametrize("kind", ["", "weather"])
def test_both_layouts_are_found(kind, tmp_path):
    put_corruption(tmp_path / kind / "fog")
    corrupted = open_corruption(str(tmp_path), "fog")
    assert corrupted.images == 3 and len(corrupted.severities) == 5
    assert [named.source[2][1] for named in corrupted.severities] == [7] * 5
    assert open_corruption(str(tmp_path), "snow") is None
    found, notes = open_imagenet_c(str(tmp_path))
    assert [each.corruption for each in found] == ["fog"]
    assert "14 of its 15 corruptions are not there" in notes[1] and "50,000" in notes[2]


def test_folders_that_are_not_its_are_sentences(tmp_path):
    def said():
        with pytest.raises(ValueError) as error:
            open_imagenet_c(str(tmp_path))
        return str(error.value)

    assert "is not ImageNet-C: it has none of the folders gaussian_noise" in said()
    put_corruption(tmp_path / "fog")
    put_corruption(tmp_path / "snow", classes=(0, 0))
    assert "fog have different images (2 and 3, ILSVRC2012_val_00000003.JPEG" in said()
    (tmp_path / "snow/4" / WORDNET[0] / "ILSVRC2012_val_00000002.JPEG").unlink()
    assert "snow/1" in said() and "snow/4 have different images (2 and 1" in said()
    (tmp_path / "snow/4").rename(tmp_path / "snow/four")
    assert "has no folder 4; a corruption has five" in said()


@pytest.mark.slow
def test_mce_is_the_mean_of_errors_in_proportion_to_alexnets(tmp_path):
    for corruption in COMMON:
        put_corruption(tmp_path / corruption, classes=(0, 1, 2, 3))
    found, notes = open_imagenet_c(str(tmp_path))
    assert len(notes) == 2
    wrong_at = {"fog": (0, 1, 2, 3, 4)}  # how many of 4 are wrong by severity; elsewhere 2

    def ask(named, title):
        corruption, rest = title.split(" ", 1)
        severity = int(rest[0])
        wrong = wrong_at.get(corruption, (2,) * 5)[severity - 1]
        targets = np.arange(4)
        table = np.zeros((4, 4), np.float32)
        table[targets, np.where(targets < wrong, (targets + 1) % 4, targets)] = 5
        return answered(table, targets)

    measured = robustness_on_files(found, ask)
    expected = np.mean([0.5 / ALEXNET[corruption] for corruption in COMMON])
    mce, *errors = measured.errors
    assert mce.name == "mce" and mce.value == pytest.approx(expected)
    low, high = mce.interval
    assert low < mce.value < high
    assert errors[9].name == "corrupted/fog/ce"
    assert errors[9].value == pytest.approx(0.5 / ALEXNET["fog"])
    assert measured.metrics[0] is mce and measured.clean is None

    def ask_broken(named, title):
        return answered(np.full((4, 4), np.nan, np.float32), np.arange(4))

    broken = robustness_on_files(found[:1], ask_broken).errors
    assert broken[0].name == "corrupted/ce" and math.isnan(broken[0].value)


def test_nothing_is_cropped():
    done = uncropped(Preprocessing(size=(32, 32), rule="shorter", resize=40))
    assert (done.rule, done.resize, done.size) == ("square", 0, (32, 32))
    native = Preprocessing(size=(32, 32), rule="native", patch=(8, 8))
    assert uncropped(native) == native


def test_the_command_writes_a_table_a_page_and_numbers(tmp_path, capsys):
    put_corruption(tmp_path / "c/weather/fog")
    put_corruption(tmp_path / "c/weather/snow")
    saved(tmp_path / "model", imagenet_labels())
    words = ["evaluate", str(tmp_path / "model"), str(tmp_path / "c"), "--as", "imagenet-c"]
    words += ["--device", "cpu", "--workers", "0"]
    files = [str(tmp_path / "r.html"), str(tmp_path / "r.json")]
    assert cli.main([*words, "--report", *files]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for text in ("CE (%)", "3 images of ImageNet-C (", "mean CE: ", "13 of its 15 corruptions"):
        assert text in out, text
    page = (tmp_path / "r.html").read_text()
    assert "ImageNet-C&#x27;s files" in page or "ImageNet-C's files" in page
    metrics = json.loads((tmp_path / "r.json").read_text())["metrics"]
    values = [metrics[f"corrupted/fog/severity_{k}/top1"]["value"] for k in SEVERITIES]
    expected = (1 - np.mean(values)) / ALEXNET["fog"]
    assert metrics["corrupted/fog/ce"]["value"] == pytest.approx(expected)

    # The folder without --as, and a model of other classes
    assert cli.main(words[:3]) == 1
    assert "--as imagenet-c measures each of them" in capsys.readouterr().err
    saved(tmp_path / "other", "abc")
    assert cli.main([words[0], str(tmp_path / "other"), *words[2:]]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "does not know 2 of these 2 (tench, " in said and "its own are a, b, c; " in said

    # What has no meaning for 75 folders
    for option in (
        ["--against", str(tmp_path / "model")],
        ["--calibrate", str(tmp_path / "new")],
        ["--corruptions", "fog"],
        ["--evals", "accuracy"],
        ["--report", str(tmp_path / "r.png")],
        ["--on-bad-image", "skip"],
    ):
        assert cli.main([*words, *option]) == 1
        assert option[0] in capsys.readouterr().err
