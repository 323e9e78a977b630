"""`vitkit bench`: every runtime is measured, in turns, and said with its agreement."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from margins import at_most
from matplotlib.figure import Figure
from pictures import photograph
from PIL import Image

from vitkit import export
from vitkit.apps.bench.figures import draw_bars
from vitkit.apps.bench.function import described
from vitkit.apps.bench.output import tables
from vitkit.cli.entry import main
from vitkit.data import Preprocessing
from vitkit.exporting import (
    Contender,
    Plan,
    Speed,
    isolated_files,
    measure,
    measure_starts,
    of_exported,
)
from vitkit.models import create, vit
from vitkit.runtimes import folder_of, open_file
from vitkit.runtimes.fastest import remembered
from vitkit.system.errors import BadWeights, VitkitError, WorkerDied
from vitkit.weights import Classifier, load, save


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    network = create(vit("mu/8", image=16, classes=3, depth=3), seed=0)
    torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(0))
    classifier = Classifier(network, Preprocessing(size=(16, 16)), ("ant", "bee", "wasp"))
    return save(classifier, tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("count", [1, 2])
def test_each_runtime_has_a_bar_for_each_size_of_batch(count):
    speeds = [Speed({1: 3.0 + i, 8: 20.0 + i}, {1: 1.0, 8: 1.0}, None, None) for i in range(count)]
    axes = Figure().subplots()
    draw_bars(axes, ["PyTorch", "OpenVINO"][:count], speeds)
    drawn = {bars.get_label(): [bar.get_width() for bar in bars] for bars in axes.containers}
    assert drawn == {"batch 1": [3.0, 4.0][:count], "batch 8": [20.0, 21.0][:count]}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["PyTorch", "OpenVINO"][:count]


def test_all_are_measured_in_turns():
    calls = []

    def contender(name):
        def compute(images):
            calls.append((name, images.shape))
            return np.zeros((len(images), 2), np.float32)

        return Contender(name, "float32", compute)

    images = np.zeros((2, 3, 4, 6), np.uint8)  # fewer than a batch: they are repeated
    speeds = measure([contender("a"), contender("b")], images, Plan((1, 3), 3, 1e-9))
    turns = [name for name, shape in calls[4:] if shape[0] == 3]
    # A pass to warm up and two that count; who came last begins the next round
    assert "".join(turns) == "aaabbb" + "bbbaaa" + "aaabbb"
    assert calls[0] == ("a", (1, 3, 4, 6))
    for speed in speeds:
        assert 0 < speed.p50 <= speed.p95
        assert speed.images_per_second[3] > 0 and speed.spread[3] >= 1


@pytest.mark.slow
def test_the_command_measures_recommends_and_writes(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    numbers = tmp_path / "speed.json"
    picture = tmp_path / "speed.png"
    words = "--runtimes torch onnx --precisions float32 --batch 1 4 --rounds 2 --seconds 0.01"
    words += " --merge 1 --exit 0.5 0.9"
    command = ["bench", str(model), *words.split(), "--limit", "8", "--no-start-up"]
    assert main([*command, "--report", str(numbers), str(picture)]) == 0
    out = capsys.readouterr().out
    assert "ONNX Runtime float32" in out and "the fastest with the same answers: " in out

    written = json.loads(numbers.read_text())
    libraries = [row["library"] for row in written["runtimes"]]
    assert libraries == ["PyTorch", "ONNX Runtime", *["PyTorch"] * 3]
    less = [row["less"] for row in written["runtimes"][2:]]
    assert less == ["1 merged", "exits at 0.5", "exits at 0.9"]
    for row in written["runtimes"][:2]:
        assert row["agreement"]["same"] == 1
        at_most(row["agreement"]["largest"], 1e-5)
        assert set(row["images_per_second"]) == {"1", "4"}
    with Image.open(picture) as drawn:
        assert drawn.size[0] > 500
    assert main([*command, "--report", str(picture)]) == 0  # its own picture may be replaced
    capsys.readouterr()

    # What is the fastest is remembered, and said: here ONNX Runtime, many times as fast as eager PyTorch
    classifier = load(model, quiet=True)
    fastest, _ = remembered(classifier, "float32")
    assert fastest.library == "ONNX Runtime" and fastest.times > 1 and fastest.same == 1
    image = tmp_path / "image.png"
    Image.fromarray(photograph(30, 40)).save(image)
    words = ["predict", str(model), str(image), "--json", "--device", "cpu"]
    answers = []
    for runtime, said in (("auto", "computed by ONNX Runtime in float32"), ("torch", "")):
        assert main([*words, "--precision", "float32", "--runtime", runtime]) == 0
        printed = capsys.readouterr()
        assert said in " ".join(printed.err.split())
        answers.append(json.loads(printed.out))
    assert answers[0]["labels"] == answers[1]["labels"]
    first, second = (answer["probabilities"] for answer in answers)
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-5)
    (folder_of(classifier) / "fastest-float32.json").write_text('{"library": 3}')
    assert remembered(classifier, "float32") is None  # damaged


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--batch 0", "--batch is (0,)"),
        ("--rounds 0", "--rounds is 0"),
        ("--report speed.txt", "give the name of a .json or a .png file"),
        ("--timm nobody", "timm has no model 'nobody'"),
    ],
)
def test_what_cannot_be_is_a_sentence(model, capsys, words, sentence):
    assert main(["bench", str(model), *words.split()]) == 1
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_what_is_written_names_no_folder_and_no_empty_column(capsys, monkeypatch):
    plan = Plan()
    facts = described("/home/me/my models/fast.onnx", plan, [], [], "images")
    assert facts["model"] == "fast.onnx"
    monkeypatch.setenv("COLUMNS", "60")
    speed = Speed(dict.fromkeys(plan.batches, 1.0), {}, 1.0, 1.0)
    alone = Contender("ONNX Runtime", "float32", None)
    (only,) = tables([alone], [speed])
    assert "p95 ms" in only and "start s" not in only
    both = list(tables([alone], [replace(speed, start=2.0, megabytes=100.0)]))
    assert len(both) == 2 and "start s" in both[1] and "same" not in both[1]


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--preprocessing"]], ids=["prepared", "pictures"])
def test_an_exported_file_is_measured_by_all_that_read_it(model, tmp_path, capsys, options):
    for package in ("onnxscript", "onnxruntime", "openvino"):
        pytest.importorskip(package)
    file = tmp_path / "model.onnx"
    assert main(["export", str(model), "-o", str(file), *options]) == 0
    numbers = tmp_path / "speed.json"
    words = ["--batch", "1", "2", "--rounds", "1", "--seconds", "0.01", "--report", str(numbers)]
    assert main(["bench", str(file), *words]) == 0
    printed = capsys.readouterr().out
    assert "ONNX Runtime float32" in printed and "OpenVINO float32" in printed
    assert f"vitkit evaluate {file} DATA" in printed
    rows = json.loads(numbers.read_text())["runtimes"]
    assert [row["library"] for row in rows] == ["ONNX Runtime", "OpenVINO"]
    assert all(row["images_per_second"]["2"] > 0 and row["agreement"] is None for row in rows)
    assert rows[0]["start"] > 0.1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("fast.onnx --data photos", "--data is for the model that it was exported from"),
        ("fast.onnx --precisions int8", "--precisions is for the model that it was exported from"),
        ("fast.onnx --merge 4", "--merge is for the model that it was exported from"),
        ("fast.onnx --runtimes torch", "--runtimes is torch"),
        ("fast.onnx", "there is no file fast.onnx"),
    ],
)
def test_what_a_file_cannot_be_asked_is_a_sentence(capsys, words, sentence):
    pytest.importorskip("onnxruntime")
    assert main(["bench", *words.split()]) == 1
    assert sentence in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_processes_are_started(model, monkeypatch):
    monkeypatch.setattr("vitkit.exporting.speed.measuring.STARTS", 1)
    ((seconds, megabytes),) = measure_starts([model])
    assert 0.1 < seconds < 120 and 100 < megabytes < 4000
    with pytest.raises(ValueError, match="failed: "):
        measure_starts([model / "nothing"])


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    for package in ("onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    file = tmp_path_factory.mktemp("exported") / "model.onnx"
    export(model, output=file)
    return file


@pytest.mark.slow
def test_a_file_in_a_process_of_its_own_gives_the_same_answers_and_may_die(exported, capsys):
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 16, 16), dtype=np.uint8)
    expected = open_file(exported).logits(images)

    def here(images):
        return np.zeros((len(images), 2), np.float32)

    with isolated_files() as open_isolated:
        process = open_isolated(exported, "onnx")
        np.testing.assert_array_equal(process.runtime.logits(images), expected)
        found = [of_exported(process), Contender("PyTorch", "float32", here)]
        speeds = measure(found, images, Plan((1, 3), 1, 1e-9))
        assert all(set(speed.images_per_second) == {1, 3} for speed in speeds)

        # As a library's segmentation fault ends it
        process._process.kill()
        dead, alive = measure(found, images, Plan((1, 3), 1, 1e-9))
        assert dead.images_per_second == {} and set(alive.images_per_second) == {1, 3}
        with pytest.raises(WorkerDied, match=r"computes model\.onnx ended by SIGKILL"):
            process.runtime.logits(images)
    assert "ONNX Runtime float32 is measured no further: " in capsys.readouterr().err


@pytest.mark.slow
def test_errors_come_from_the_process_as_they_are(exported, tmp_path):
    damaged = tmp_path / "model.onnx"
    damaged.write_bytes(exported.read_bytes()[:200])
    with (
        isolated_files() as open_isolated,
        pytest.raises(BadWeights, match=r"model\.onnx cannot be opened by ONNX Runtime"),
    ):
        open_isolated(damaged, "onnx")


@pytest.mark.slow
def test_a_runtime_whose_process_ends_loses_no_other_figures(model, tmp_path, capsys, monkeypatch):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    monkeypatch.setattr("vitkit.exporting.speed.isolated.CHILD", crash)

    def no_start(models):
        raise VitkitError("vitkit predict failed")

    monkeypatch.setattr("vitkit.apps.bench.function.measure_starts", no_start)
    words = "--runtimes torch onnx --precisions float32 --batch 1 --rounds 1 --seconds 0.01"
    assert main(["bench", str(model), *words.split()]) == 0
    printed = capsys.readouterr()
    errors = " ".join(printed.err.split())
    assert "ONNX Runtime float32 is left out: the process in which ONNX Runtime" in errors
    assert "the start of processes is not measured: vitkit predict failed" in errors
    assert "PyTorch float32" in printed.out and "images/s" in printed.out
    assert "ONNX Runtime" not in printed.out
