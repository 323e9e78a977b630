"""`vitkit doctor` says what is here, and advises where something is missing."""

import json
import re
import shutil
import socket
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from vitkit.apps.doctor.model import Examined, examine_learning
from vitkit.apps.doctor.run import _preprocessing
from vitkit.cli.entry import main
from vitkit.data import Preprocessing, from_images, open_splits, subset
from vitkit.data.images import jpeg
from vitkit.evaluation import compute_features, fit_probe, with_probe
from vitkit.models import create, vit
from vitkit.recipes import recipe
from vitkit.system.span import Span
from vitkit.training import Recorded, run_recipe
from vitkit.weights import STATISTICS, Classifier, save


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def unreachable(*where, timeout):
        raise OSError("no network")

    monkeypatch.setattr(socket, "create_connection", unreachable)


def findings(capsys):
    assert main(["doctor", "--json"]) == 0
    return {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}


def test_it_says_what_is_here(capsys):
    found = findings(capsys)
    assert found["PyTorch"]["value"] == torch.__version__
    assert found["dense layers on the CPU"]["value"] == "torch (as VITKIT_MATMUL says)"
    assert found["extra hf"]["value"] == "installed"


def test_it_advises_where_something_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(jpeg, "library", lambda: None)
    monkeypatch.setattr("vitkit.system.machine.cpus", lambda: 64)
    monkeypatch.setattr("vitkit.system.machine.has_avx2", lambda: False)
    monkeypatch.setattr("vitkit.apps.doctor.machine._is_installed", lambda name: name != "peft")
    found = findings(capsys)
    assert "reads JPEG photographs up to 1.6 times as fast" in found["JPEG"]["advice"]
    assert "has no AVX2 instructions" in found["processor"]["advice"]
    assert "OMP_NUM_THREADS=64" in found["CPUs"]["advice"]
    assert "files and folders" in found["Hugging Face hub"]["advice"]
    assert found["extra lora"]["value"] == "pip install 'vitkit[lora]' adds peft"

    assert main(["doctor"]) == 0
    output = capsys.readouterr().out
    assert "- OMP_NUM_THREADS=64 would let" in output and "next: vitkit" in output


def test_variables_that_are_set_are_listed_and_a_misspelt_one_is_answered(monkeypatch, capsys):
    monkeypatch.setenv("VITKIT_CASHE", "/big")
    found = findings(capsys)
    assert found["VITKIT_MATMUL"]["value"].startswith("torch: ")
    assert "did you mean VITKIT_CACHE?" in found["VITKIT_CASHE"]["advice"]


# What --run, --data and --model examine


def advice(capsys, *words) -> str:
    """What `vitkit doctor WORDS` advises, on one line."""
    assert main(["doctor", *map(str, words)]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.fixture(scope="module")
def finished(tmp_path_factory, quiet):
    """A short run on digits, finished."""
    run = tmp_path_factory.mktemp("doctor") / "run"
    digits = recipe("digits")
    digits = replace(digits, data=replace(digits.data, workers=0), length=Span(20), batch=32)
    digits = replace(digits, optim=replace(digits.optim, warmup=Span(2)), log_every=1)
    digits = replace(digits, model=replace(digits.model, depth=2))
    run_recipe(replace(digits, evaluate_every=Span(10)), run, "cpu", quiet)
    return run


def with_lines(run, folder, change):
    """A copy of a run, each line of its training curve changed by change(number, line)."""
    copy = shutil.copytree(run, folder / "changed")
    lines = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        if values["event"] == "training":
            change(values["step"], values)
        lines.append(json.dumps(values))
    (copy / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return copy


def test_a_sound_run_is_found_sound(finished, tmp_path, capsys):
    def sound(step, line):
        line.update(loss=2.3 / step, norm=2.0, data_wait=0.01)

    text = advice(capsys, "--run", with_lines(finished, tmp_path, sound))
    assert "20 of 20 steps of 32" in text and "nothing to advise" in text


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda step, line: line.update(loss=2.3 + step), "so the rate is too high: lower --optim.lr"),
        (lambda step, line: line.update(loss=2.3), "the loss hardly falls"),
        (lambda step, line: line.update(loss=9.0 * (step % 2) + 0.5), "the loss jumps up and down"),
        (lambda step, line: line.update(loss=None, notes={"loss": "nan"}), "the loss is not a number"),
        (lambda step, line: line.update(norm=7.0), "nearly every gradient is clipped to 1"),
        (lambda step, line: line.update(data_wait=0.7), "waits for images 70% of the time"),
        (lambda step, line: line.update(event="skipped"), "20 steps were not finite"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_run_is_named(finished, change, sentence, tmp_path, capsys):
    assert sentence in advice(capsys, "--run", with_lines(finished, tmp_path, change))


def test_a_run_that_was_stopped_and_became_worse(finished, tmp_path, capsys):
    copy = shutil.copytree(finished, tmp_path / "stopped")
    recipe = json.loads((copy / "recipe.json").read_text())
    (copy / "recipe.json").write_text(json.dumps(recipe | {"length": "99 steps"}))
    lines = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    first = next(line for line in lines if "metrics" in line)
    first["metrics"]["test/top1"]["value"] = 1.0
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = advice(capsys, "--run", copy)
    assert "is not finished: the same command as before continues it" in text
    assert "test/top1 was better at step 10 (100.00 %) than at the end" in text


def test_it_is_said_what_is_no_run(tmp_path, capsys):
    assert main(["doctor", "--run", str(tmp_path)]) == 1
    assert "is no run" in capsys.readouterr().err


def test_images_are_examined(photographs, tmp_path, capsys):
    assert "2 classes, of 16 (blue) to 16 (red) images" in advice(capsys, "--data", photographs)

    # An image in both parts, a broken one, and one class much larger than the other
    for part in ("train", "test"):
        for name in ("red", "blue"):
            (tmp_path / "parts" / part / name).mkdir(parents=True)
            for i in range(2 + 18 * (name == "red")):
                target = tmp_path / "parts" / part / name / f"{i}.jpg"
                target.write_bytes((photographs / name / f"{i}.jpg").read_bytes())
    (tmp_path / "parts" / "test" / "red" / "9.jpg").write_bytes(b"\xff\xd8 broken")
    text = advice(capsys, "--data", tmp_path / "parts")
    assert "red has 10 times as many images as blue" in text
    assert "can be seen in a held-out part too" in text
    assert "vitkit data stats" in text and "names the broken images" in text


def test_images_that_teach_nothing(photographs, tmp_path, capsys):
    shutil.copytree(photographs / "red", tmp_path / "one" / "red")
    assert "there is only one class, " in advice(capsys, "--data", tmp_path / "one")
    assert "a folder for each class" in advice(capsys, "--data", photographs / "red")
    for image in (tmp_path / "one" / "red").iterdir():
        image.write_bytes(b"\xff\xd8 broken")
    assert "can be decoded: copy or download them again" in advice(
        capsys, "--data", tmp_path / "one"
    )


@pytest.mark.slow
def test_a_model_learns_images_by_heart_unless_it_cannot(finished, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("vitkit.apps.doctor.model.TIMED", 0.05)
    text = advice(capsys, finished, "--data", "digits", "--model", finished, "--device", "cpu")
    assert "learning 16 images by heart" in text and "images/s are loaded" in text
    assert "does not even learn" not in text
    assert "are answered right" in text

    # Grey images under two labels
    for name in ("one", "other"):
        (tmp_path / "grey" / name).mkdir(parents=True)
        for i in range(12):
            Image.new("RGB", (16, 16), (99, 99, 99)).save(tmp_path / "grey" / name / f"{i}.png")
    text = advice(capsys, "--data", tmp_path / "grey", "--model", finished, "--device", "cpu")
    assert "does not even learn 16 images by heart" in text


@pytest.fixture
def examined(monkeypatch):
    """A model with a solved head, which sees digits as they were normalised for it."""
    monkeypatch.setattr("vitkit.apps.doctor.model.TIMED", 0.0)
    config = vit("mu/16", image=(8, 8), patch=2, width=16, mlp=32, classes=10)
    own = Preprocessing((8, 8), **STATISTICS["imagenet"])
    splits = open_splits("digits")
    few = subset(splits.train, np.arange(300))
    classifier = Classifier(create(config, seed=0), own, splits.labels)
    learned = compute_features(classifier.for_inference(), few, cached=False)
    fitted = fit_probe("linear", learned.x, learned.y, 10)
    classifier = with_probe(classifier, fitted, splits.labels, "softmax")
    test = subset(splits.train, np.arange(64))
    splits = replace(splits, train=few, val=None, test=test)
    return Examined("digits", splits, classifier, torch.device("cpu"))


def test_a_model_that_can_learn_is_found_sound(examined):
    right, heart, speed = examine_learning(examined)
    assert right.name == "as it normalises images" and right.advice == ""
    share = int(re.fullmatch(r"(\d+)% of 64 images are answered right", right.value)[1])
    assert share > 30  # of ten classes
    assert heart.name == "learning 16 images by heart" and heart.advice == ""
    first, last, steps = re.fullmatch(
        r"loss ([\d.]+) -> ([\d.]+) in (\d+) steps", heart.value
    ).groups()
    assert float(first) == pytest.approx(np.log(10), rel=0.01)  # a head of zeros
    assert float(last) < 0.5 * float(first) and int(steps) <= 60
    assert re.fullmatch(r"[\d,]+ images/s are loaded, [\d,]+ computed", speed.value)


def test_images_that_are_normalised_in_another_way_are_recognised(examined):
    other = replace(examined.classifier.preprocessing, **STATISTICS["clip"])
    shifted = replace(other, mean=(-9.0, -9.0, -9.0))
    wrong = replace(examined.classifier, preprocessing=shifted)
    finding = next(examine_learning(replace(examined, classifier=wrong)))
    assert re.search(
        r"with the mean and deviation called \w+, \d+% are answered right: give `statistics=",
        finding.advice,
    )


@pytest.mark.parametrize(
    ("loading", "computing", "advised"), [(70, 100, True), (80, 100, False), (200, 100, False)]
)
def test_a_model_that_would_wait_for_images_is_told(
    loading, computing, advised, examined, monkeypatch
):
    rates = iter([loading, computing])
    monkeypatch.setattr("vitkit.apps.doctor.model.STEPS", 1)
    monkeypatch.setattr("vitkit.apps.doctor.model._rate", lambda batches: next(rates))
    *_, speed = examine_learning(examined)
    assert speed.value == f"{loading} images/s are loaded, 100 computed"
    assert ("the model would wait for images: `data.keep_decoded=GB`" in speed.advice) == advised


def test_labels_that_mean_nothing_are_not_learned(examined):
    images = from_images([np.full((8, 8, 3), 99, np.uint8)] * 24)
    grey = replace(images, targets=np.arange(24) % 2, labels=("a", "b"), target_kind="class")
    splits = replace(examined.splits, train=grey, test=None, labels=("a", "b"))
    heart, _ = examine_learning(replace(examined, splits=splits))
    assert "does not even learn 16 images by heart" in heart.advice


def test_images_that_go_through_other_numbers_than_those_of_the_weights_are_told(tmp_path):
    config = vit("mu/16", image=(8, 8), patch=2, width=8, mlp=8, depth=1, classes=2)
    own = Preprocessing((8, 8), **STATISTICS["imagenet"])
    init = save(Classifier(create(config, seed=0), own, ("a", "b")), tmp_path / "model")

    def found(preprocessing, init=str(init)):
        recipe = {"init": init, "data": {"preprocessing": preprocessing.to_json()}}
        return list(_preprocessing(Recorded(tmp_path, recipe, {}, [], {})))

    (same,) = found(own)
    assert (same.value, same.advice) == (f"as {init} has it", "")
    (changed,) = found(replace(own, mean=(0.5, 0.5, 0.5)))
    assert changed.name == "mean and deviation"
    assert changed.value == "mean 0.5 instead of 0.485 0.456 0.406"
    assert f"otherwise than those of {init}, which costs accuracy" in changed.advice
    (both,) = found(replace(own, mean=(0.5, 0.5, 0.5), std=(0.25, 0.5, 0.5)))
    assert both.value.endswith(" and std 0.25 0.5 0.5 instead of 0.229 0.224 0.225")
    assert found(own, init="") == found(own, init=str(tmp_path / "gone")) == []
