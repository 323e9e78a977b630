"""The robustness suite on tiny folders in the published layouts."""

import json
from shutil import rmtree

import numpy as np
import pytest
import torch
from pictures import encoded, photograph

from vitkit import cli
from vitkit.apps.suites import measurements
from vitkit.apps.suites.robustness import ROBUSTNESS
from vitkit.apps.suites.running import Outcome
from vitkit.apps.suites.table import lines, sentences
from vitkit.data import Preprocessing
from vitkit.evaluation import ALEXNET, COMMON, Metric, relative_error, share_right
from vitkit.evaluation.benchmarks.imagenet import IMAGES
from vitkit.evaluation.benchmarks.imagenet_c import CorruptedSet
from vitkit.evaluation.benchmarks.labels import imagenet_wordnet
from vitkit.evaluation.metrics.metric import RELATIVE_ERROR
from vitkit.models import create, vit
from vitkit.weights import Classifier, imagenet_labels, save

WORDNET = imagenet_wordnet()
CLASSES = (0, 0, 9, 999)


def put_images(folder, by_number=False):
    for number, k in enumerate(CLASSES, 1):
        name = str(k) if by_number else WORDNET[k]
        path = folder / name / f"ILSVRC2012_val_{number:08d}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(photograph(36, 40, number), "PNG"))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A model, and some of the data sets: one under its archive's name."""
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")
    put_images(tmp_path / "data/imagenet/val")
    put_images(tmp_path / "data/imagenetv2-matched-frequency-format-val", by_number=True)
    for severity in range(1, 6):
        put_images(tmp_path / f"data/imagenet-c/weather/fog/{severity}")
    put_images(tmp_path / "data/imagenet-c/weather/snow/1")
    config = vit("mu/16", image=(32, 32), classes=1000, width=16, depth=1, mlp=16, heads=1)
    network = create(config, seed=0)
    torch.nn.init.normal_(network.head.weight)
    classifier = Classifier(network, Preprocessing(size=(32, 32)), imagenet_labels())
    save(classifier, tmp_path / "model")
    return tmp_path


@pytest.mark.slow
def test_what_is_there_is_measured_and_the_rest_is_said(place, capsys):
    model, data = str(place / "model"), str(place / "data")
    words = ["suite", "robustness", model, "--data", data, "--workdir", str(place / "run")]
    words += ["--device", "cpu", "--json"]
    assert cli.main(words) == 0
    table = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in table["lines"]}
    assert list(rows["ImageNet"])[3:] == ["top1", "top5", "calibration_error"]
    assert list(rows["fog"])[3:] == ["top1", "CE"] and list(rows["snow"])[3:] == []
    assert "mean (robustness)" not in rows and rows["mean of 1 of 15"]["group"] == "ImageNet-C"
    remarks = "\n".join(table["remarks"])
    for text in (
        "real: the images are there, and",
        "imagenet-a: not in",
        "get it: https://objectnet.dev",
        "imagenet-c/snow: ",
        "has no folder 2",
        "imagenet, imagenet-c/fog: 4 test images instead of 50,000",
        "imagenet-v2: 4 test images instead of 10,000",
    ):
        assert text in remarks, text

    # The figures are those of vitkit evaluate
    words = ["evaluate", model, "--device", "cpu", "--workers", "0", "--json"]
    assert cli.main([*words, f"{data}/imagenet/val", "--as", "imagenet"]) == 0
    alone = json.loads(capsys.readouterr().out)
    for metric in ("top1", "top5", "calibration_error"):
        assert rows["ImageNet"][metric] == alone[metric]
    rmtree(place / "data/imagenet-c/weather/snow")
    assert cli.main([*words, f"{data}/imagenet-c", "--as", "imagenet-c"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert rows["fog"]["CE"] == alone["corrupted/ce"]
    assert rows["fog"]["top1"] == alone["corrupted/top1"]


def test_real_is_measured_where_its_file_is_and_nothing_runs_twice(place, capsys):
    lists = [[] for _ in range(IMAGES)]
    for number in (1, 2, 3):
        lists[number - 1] = list(range(1000))
    (place / "data/real.json").write_text(json.dumps(lists))
    words = ["suite", "robustness", str(place / "model"), "--data", str(place / "data")]
    words += ["--workdir", str(place / "run"), "--device", "cpu", "--tasks", "real"]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "on robustness, in percent" in out and "100.0 (" in out and "--as NAME" in out
    before = (place / "run/real/cell.json").stat().st_mtime_ns
    assert cli.main([*words, "--json"]) == 0
    assert (place / "run/real/cell.json").stat().st_mtime_ns == before
    assert "all 15" in capsys.readouterr().out

    # Another precision is another measurement
    assert cli.main([*words, "--precision", "bfloat16"]) == 1
    assert "holds a run of another recipe (precision: " in capsys.readouterr().err


def test_what_has_no_meaning_is_a_sentence(place, capsys):
    words = ["suite", "robustness", str(place / "model"), "--data", str(place / "data")]
    for option, text in (
        (["--protocol", "paper"], "measures a model as it is, so nothing is fine-tuned"),
        (["--seeds", "2"], "robustness measures a model as it is; leave them out"),
        (["--from-hub"], "--from-hub is for tasks of vtab"),
        (["--tasks", "imagenet-d"], "has no task 'imagenet-d'"),
        (["--data", str(place / "model")], "has the images of no task (imagenet, real"),
    ):
        assert cli.main([*words, "--workdir", str(place / "no"), *option]) == 1
        assert text in " ".join(capsys.readouterr().err.split()), text
    assert cli.main(words[:3]) == 1
    assert "where are the images? --data DIR" in capsys.readouterr().err


def test_mce_and_relative_mce_are_over_all_fifteen():
    metrics = {"imagenet": [[share_right("top1", np.arange(100) < 80)]]}
    for number, name in enumerate(COMMON):
        top1 = Metric(
            "top1", 0.3 + 0.01 * number, share_right("", np.arange(2) < 1).unit, (0.2, 0.6)
        )
        error = (1 - top1.value) / ALEXNET[name]
        ce = Metric("CE", error, RELATIVE_ERROR, (error - 0.1, error + 0.2))
        metrics[f"imagenet-c/{name}"] = [[top1], [ce]]
    outcome = Outcome(ROBUSTNESS, metrics, {}, {})
    errors = [by_column[1][0].value for name, by_column in metrics.items() if "/" in name]
    expected = 100 * np.mean(errors)
    relative = []
    for number, name in enumerate(COMMON):
        relative.append(100 * relative_error(0.7 - 0.01 * number, 0.2, name))
    first, second = sentences(outcome)[:2]
    assert f"corruptions, is {expected:.1f} %" in first
    assert f"the error on ImageNet, is {np.mean(relative):.1f} %" in second

    # The images are the same, so the errors of the mean do not average out; and CE may be above 1
    mean = lines(outcome)[-1]
    assert mean.name == "mean of 15" and mean.values[-1].name == "CE"
    low, high = mean.values[-1].interval
    assert (mean.values[-1].value - low, high - mean.values[-1].value) == pytest.approx((0.1, 0.2))
    del metrics["imagenet-c/fog"]
    assert not any("mCE" in text for text in sentences(outcome))


def test_images_of_a_corruption_are_not_cropped(tmp_path, monkeypatch):
    """As ImageNet-C's protocol has it; images of any other data set are prepared as the model's own."""
    network = create(vit("mu/16", image=(32, 32), classes=2, width=16, depth=1, mlp=16, heads=1))
    torch.nn.init.normal_(network.head.weight)
    own = Preprocessing(size=(32, 32), rule="shorter", resize=40)
    asked = []

    def ask(ready, named, title):
        asked.append(ready.preprocessing)
        raise InterruptedError

    monkeypatch.setattr(
        measurements, "load_as", lambda *_, **__: Classifier(network, own, ("a", "b"))
    )
    monkeypatch.setattr(measurements, "open_named", lambda *_: None)
    monkeypatch.setattr(
        measurements, "open_corruption", lambda *_: CorruptedSet("fog", (None,) * 5)
    )
    monkeypatch.setattr(measurements, "_predict", ask)
    for corruption in ("fog", None):
        measured = measurements.AsPublished("m", "", "", "", "imagenet", corruption)
        with pytest.raises(InterruptedError):
            measured.measure("cpu")
    whole, as_it_is = asked
    assert (whole.rule, whole.resize, whole.size) == ("square", 0, (32, 32))
    assert as_it_is == own
