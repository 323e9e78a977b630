"""`vitkit evaluate` as people use it: the report, another model, a temperature, several processes."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from pictures import make_photographs
from processes import together
from tables import saved

import vitkit
from vitkit import cli
from vitkit.data import Preprocessing, open_source
from vitkit.data.sources.bursts import Bursts
from vitkit.evaluation import compute_features
from vitkit.models import create, vit
from vitkit.weights import Classifier, load, save


def say(capsys, *words):
    """A command's exit status, and what it printed."""
    status = cli.main([str(word) for word in words])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two small models of the photographs' two classes: "one" takes all of them for red, which is half of
    them right, and "two" has all of them right. Both are surer than they should be."""
    folder = tmp_path_factory.mktemp("models")
    source = open_source(str(make_photographs(folder)))
    model = create(vit("mu/16", image=(32, 32), classes=2), seed=0)
    classifier = Classifier(model, Preprocessing(size=(32, 32)), source.labels)

    # Features on the way from the mean of the blue photographs, at 0, to that of the red ones, at 1
    x = torch.tensor(compute_features(classifier.for_inference(), source, cached=False).x)
    is_red = torch.tensor(source.targets == source.labels.index("red"))
    blue, red = x[~is_red].mean(0), x[is_red].mean(0)
    way = (red - blue) / (red - blue).square().sum()

    # The logit of red is above that of blue by 40 times the distance behind a border
    sign = torch.tensor([-1.0, 1.0])
    for name, border in {"one": -0.5, "two": 0.5}.items():
        with torch.no_grad():
            model.head.weight.copy_(20 * sign[:, None] * way)
            model.head.bias.copy_(-20 * sign * (blue @ way + border))
        save(classifier, folder / name)
    return folder


@pytest.mark.parametrize("learned, is_said", [("there/photos", True), ("others", False)])
def test_images_of_the_name_of_those_learned_from_may_be_known(
    models, photographs, learned, is_said
):
    classifier = load(models / "one", quiet=True)
    origin = {"held_out": "others' fingerprint", "data": learned}
    classifier = replace(classifier, origin=origin)
    evaluation = vitkit.evaluate(classifier, photographs, device="cpu", quiet=True)
    assert ("so it may know some of them" in evaluation.images) == is_said
    assert "next: vitkit.evaluate(model, " in str(evaluation)


def test_a_report_is_written_in_each_of_its_forms(models, photographs, tmp_path, capsys):
    files = [tmp_path / "deep" / name for name in ("report.html", "report.json", "sheet.png")]
    words = ("evaluate", models / "one", photographs, "--against", models / "two")
    status, out, _ = say(capsys, *words, "--report", *files, "--device", "cpu")
    assert status == 0 and all(file.stat().st_size for file in files)
    for text in ("top1", "difference", "McNemar", f"wrote {files[0]}", f"next: open {files[0]}"):
        assert text in out, text
    values = json.loads(files[1].read_text())
    assert values["images"].startswith("40 images") and len(values["classes"]) == 2
    page = files[0].read_text()
    assert "How it was measured" in page and "--against" in page

    # The same numbers on the terminal of a program
    _, out, _ = say(capsys, *words, "--json", "--device", "cpu")
    printed = json.loads(out)
    assert printed["top1"] == values["metrics"]["top1"]
    difference = values["paired"]["differences"]["top1"]["difference"]
    assert printed["difference/top1"] == difference
    assert difference["unit"] == "difference of share"


def test_only_json_is_on_the_output_where_there_is_no_mistake_to_show(
    models, photographs, tmp_path, capsys
):
    words = ("evaluate", models / "two", photographs, "--json", "--device", "cpu")
    status, out, err = say(capsys, *words, "--report", tmp_path / "sheet.png")
    assert status == 0 and json.loads(out)["top1"]["value"] == 1.0
    assert "is not written: there is nothing to show" in err


@pytest.mark.slow
def test_a_calibrated_model_answers_the_same(models, photographs, tmp_path, capsys):
    words = ("evaluate", models / "one", photographs, "--device", "cpu")
    status, out, _ = say(capsys, *words, "--calibrate", tmp_path / "warm")
    assert status == 0 and "Fitted temperature" in out and "fitted on these very" not in out
    assert "a temperature from 40 images is a rough guess" in " ".join(out.split())
    assert f"next: vitkit evaluate {tmp_path / 'warm'} DATA" in out
    origin = load(tmp_path / "warm", quiet=True).origin
    assert origin["temperature"] > 0 and origin["temperature_fitted_on"].startswith("40 images")
    _, before, _ = say(capsys, *words, "--json")
    _, after, _ = say(capsys, "evaluate", tmp_path / "warm", photographs, "--json")
    before, after = json.loads(before), json.loads(after)
    assert after["top1"] == before["top1"]
    assert after["loss"]["value"] < before["loss"]["value"]

    # Measured on the very images, which is said; and the temperature as JSON
    _, out, _ = say(capsys, "evaluate", tmp_path / "warm", photographs)
    assert "temperature was fitted on these very images" in " ".join(out.split())
    _, out, _ = say(capsys, *words, "--json", "--calibrate", tmp_path / "again")
    assert json.loads(out)["temperature"]["value"] == pytest.approx(origin["temperature"])
    assert "calibrated/calibration_error" in json.loads(out)


def test_what_cannot_be_written_is_said_before_anything_is_measured(models, tmp_path, capsys):
    words = ("evaluate", "no such model", "no such data")
    (tmp_path / "file").write_text("mine")
    for option, sentence in {
        "--report page.pdf": "--report is page.pdf; its ending says what it is",
        "--workers -7": "--workers is -7; it is a number of processes, or -1",
        f"--calibrate {tmp_path}": "file) and no model",
        f"--calibrate {tmp_path}/file/model": "is no folder that you may write to",
    }.items():
        status, _, err = say(capsys, *words, *option.split())
        assert status == 1 and sentence in err


def test_another_model_that_cannot_answer_is_named_before_the_first_is_measured(
    models, photographs, tmp_path, capsys
):
    names = {"headless": (), "others": ("cat", "dog")}
    for name, labels in names.items():
        saved(tmp_path / name, labels)
        words = ("evaluate", models / "one", photographs, "--against", tmp_path / name)
        status, _, err = say(capsys, *words)
        assert status == 1 and f"--against {tmp_path / name}: the " in err
        assert "evaluating" not in err  # the progress bar's title


def test_the_next_command_is_of_the_same_images_models_and_settings(models, photographs, capsys):
    words = ["evaluate", models / "one", photographs, "--against", models / "two"]
    words += ["--on-bad-image", "skip", "--batch", "7", "--data.columns.target", "class"]
    words += ["--resize", "40", "--image", "32", "32"]
    _, out, _ = say(capsys, *words)
    end = "--batch 7 --image 32 32 --resize 40 --report report.html"
    assert f"next: vitkit {' '.join(map(str, words[:5]))}" in out and end in out
    assert "--on-bad-image skip" in out and "--data.columns.target class" in out
    status, _, err = say(capsys, *words[:3], "--batch", "0")
    assert status == 1 and "--batch is 0" in err


def test_a_report_is_of_images_with_one_class_each(models, photographs, tmp_path, capsys):
    words = ("evaluate", models / "one", photographs, "--evals", "neighbours")
    status, _, err = say(capsys, *words, "--report", tmp_path / "page.html")
    assert status == 1 and "are for images with one class each, and without --evals" in err


@pytest.mark.slow
def test_three_processes_measure_what_one_does(models, photographs, tmp_path):
    """40 images: three processes cannot share them equally."""
    words = ["evaluate", str(models / "one"), str(photographs), "--batch", "6"]
    words += ["--device", "cpu", "--workers", "0", "--report"]
    assert cli.main([*words, str(tmp_path / "alone.json")]) == 0

    def act():
        sys.exit(cli.main([*words, str(tmp_path / "together.json")]))

    assert together(3, act) == [0, 0, 0]
    alone, several = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("alone", "together")
    )
    for name, metric in alone["metrics"].items():
        value = several["metrics"][name]["value"]
        np.testing.assert_allclose(value, metric["value"], rtol=1e-6, atol=1e-12, err_msg=name)
    for name in ("confusion", "classes"):
        assert several[name] == alone[name]


# Images that belong together


def shots_of_things(folder, each=4):
    """The photographs of a folder, each several times, and a manifest that says of which thing they are."""
    rows = ["image,label,thing"]
    for number, path in enumerate(sorted(folder.rglob("*.jpg"))):
        for shot in range(each):
            name = f"{number}_{shot}.jpg"
            (folder.parent / name).write_bytes(path.read_bytes())
            rows.append(f"{name},{path.parent.name},{number}")
    manifest = folder.parent / "photos.csv"
    manifest.write_text("\n".join(rows) + "\n")
    return manifest


def widths(out):
    found = {}
    for name, values in json.loads(out).items():
        if "interval" in values:
            found[name] = np.ptp(values["interval"])
    return found


def test_shots_of_one_thing_make_intervals_wider(models, tmp_path, capsys):
    data = shots_of_things(make_photographs(tmp_path / "one"))
    words = ("evaluate", models / "one", data, "--json")
    status, out, err = say(capsys, *words, "--groups", "none")
    assert status == 0, err
    alone = widths(out)
    assert "belong" not in err
    report = tmp_path / "page.json"
    status, out, _ = say(capsys, *words, "--groups", "thing", "--report", report)
    assert status == 0
    assert widths(out)["top1"] > 1.5 * alone["top1"]
    notes = " ".join(json.loads(report.read_text())["notes"])
    assert "groups of 4 images" in notes and "groups as independent" in notes
    _, out, _ = say(capsys, *words[:-1], "--groups", "thing", "--against", models / "two")
    assert "groups of images, p = " in " ".join(out.split())


@pytest.mark.slow  # groups that are named: the test above; what is looked for: test_bursts.py
def test_bursts_are_looked_for_where_a_model_is_measured(models, tmp_path, capsys, monkeypatch):
    data = shots_of_things(make_photographs(tmp_path / "one"))
    monkeypatch.setattr(
        "vitkit.data.sources.bursts.find_bursts",
        lambda source: Bursts(np.arange(len(source)) // 4, 0),
    )
    words = ("evaluate", models / "one", data, "--json")
    _, out, _ = say(capsys, *words, "--groups", "none")
    alone = widths(out)
    _, out, _ = say(capsys, *words)
    assert widths(out)["top1"] > 1.5 * alone["top1"]
    _, out, _ = say(capsys, *words[:-1])
    assert "bursts of 4 photographs" in " ".join(out.split())
    _, out, err = say(capsys, *words, "--evals", "neighbours")
    assert "bursts of 4 photographs" in err


def test_a_column_of_groups_that_is_not_there_is_refused(models, photographs, capsys):
    status, _, err = say(capsys, "evaluate", models / "one", photographs, "--groups", "thing")
    assert status != 0 and "thing" in err


def test_a_probe_knows_the_groups_and_what_a_calibrated_model_would_show(models, tmp_path, capsys):
    data = shots_of_things(make_photographs(tmp_path / "one"))
    words = ("probe", models / "one", data, "--json")
    _, out, err = say(capsys, *words, "--groups", "thing")
    by_groups = json.loads(out)
    error = by_groups["test/calibration_error"]
    low, high = error["interval"]
    assert low <= error["value"] <= high
    for part in ("left_out", "test"):
        assert f"{part}: by chance alone, a perfectly calibrated model" in " ".join(err.split())
    top1 = np.ptp(by_groups["test/top1"]["interval"])
    _, out, _ = say(capsys, *words, "--groups", "none")
    assert top1 > 1.5 * np.ptp(json.loads(out)["test/top1"]["interval"])
