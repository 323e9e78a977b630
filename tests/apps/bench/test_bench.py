"""`vitkit bench`: every runtime is measured, in turns, and said with its agreement."""

import json
import os
import resource
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from margins import at_most
from matplotlib.figure import Figure
from pictures import photograph
from PIL import Image
from served import make_model_of_masks

from vitkit import bench, export
from vitkit.apps.bench.figures import draw_bars, draw_curves
from vitkit.apps.bench.function import described
from vitkit.apps.bench.output import recommendation, tables
from vitkit.cli.entry import main
from vitkit.cli.spelling import as_command
from vitkit.data import Preprocessing, open_splits, subset
from vitkit.evaluation import compute_features, fit_probe, with_probe
from vitkit.exporting import (
    Agreement,
    Implementation,
    RuntimeSpeed,
    Turns,
    is_worth_measuring,
    isolated_files,
    measure,
    measure_starts,
    of_exported,
    remember,
    trial_on,
    with_less_work,
)
from vitkit.exporting.speed import measuring
from vitkit.exporting.speed.isolated import Isolated
from vitkit.models import create, vit
from vitkit.runtimes import folder_of, open_file
from vitkit.runtimes.fastest import remembered
from vitkit.system.errors import BadWeights, VitkitError, WorkerDied
from vitkit.system.functions.steps import steps_as
from vitkit.weights import Classifier, load, save


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    network = create(vit("mu/8", image=16, classes=3, depth=3), seed=0)
    torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(0))
    classifier = Classifier(network, Preprocessing(size=(16, 16)), ("ant", "bee", "wasp"))
    return save(classifier, tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("count", [1, 2])
def test_each_runtime_has_a_bar_for_each_size_of_batch(count):
    speeds = [
        RuntimeSpeed({1: 3.0 + i, 8: 20.0 + i}, {1: 1.0, 8: 1.0}, None, None) for i in range(count)
    ]
    axes = Figure().subplots()
    draw_bars(axes, ["PyTorch", "OpenVINO"][:count], speeds)
    drawn = {bars.get_label(): [bar.get_width() for bar in bars] for bars in axes.containers}
    assert drawn == {"batch 1": [3.0, 4.0][:count], "batch 8": [20.0, 21.0][:count]}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["PyTorch", "OpenVINO"][:count]


def tried(library, precision, same, accuracy=None, **settings):
    """A implementation that answers as the model does on such a share of 200 images."""
    agreement = Agreement(
        "photos", 200, 200, same, 0.01, 0.001, 1.0, cost=1 - same, accuracy=accuracy
    )
    return Implementation(library, precision, None, agreement, **settings)


def at_rates(*rates):
    """Speeds of so many images a second in batches of 8, and half as many of one."""
    return [
        RuntimeSpeed({1: rate / 2, 8: rate}, {1: 1.0, 8: 1.0}, 2000 / rate, 4000 / rate)
        for rate in rates
    ]


FOUND = [
    tried("PyTorch", "float32", 1.0, 0.9),
    tried("OpenVINO", "float32", 1.0, 0.9, file=Path("openvino-float32.xml")),
    tried("OpenVINO", "int8", 0.995, 0.88, file=Path("openvino-int8.xml"), is_calibrated=True),
    tried("PyTorch", "float32", 0.95, 0.85, less="8 merged"),
    tried("PyTorch", "float32", 0.9, 0.8, less="16 merged"),
    tried("PyTorch", "float32", 0.97, 0.87, less="exits at 0.9"),
]


def test_curves_go_from_the_whole_model_to_the_least_work():
    axes = Figure().subplots()
    draw_curves(axes, FOUND, at_rates(10.0, 20.0, 40.0, 12.0, 14.0, 15.0))
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
    assert lines == {
        "the whole model": [[10, 90], [20, 90], [40, 88]],
        "tokens merged in a block": [[10, 90], [12, 85], [14, 80]],
        "early exits": [[10, 90], [15, 87]],
    }
    texts = {text.get_text(): text.xy for text in axes.texts}
    assert texts["8 merged"] == (12, 85) and texts["OpenVINO int8, calibrated"] == (40, 88)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("images per second, batch 8", "accuracy, %")

    # Without labels a good answer is the model's own
    without = [replace(each, agreement=replace(each.agreement, accuracy=None)) for each in FOUND]
    axes = Figure().subplots()
    draw_curves(axes, without, at_rates(10.0, 20.0, 40.0, 12.0, 14.0, 15.0))
    assert axes.get_lines()[1].get_xydata().tolist() == [[10, 100], [12, 95], [14, 90]]
    assert axes.get_ylabel() == "the model's own answers, %"


def test_the_fastest_is_recommended_with_the_call_that_writes_it():
    said = recommendation("RUN", FOUND[:3], at_rates(10.0, 20.0, 40.0), "softmax")
    assert said.splitlines() == [
        "the fastest with the same answers: OpenVINO float32, 2.00 times PyTorch float32 at batch 8; "
        "vitkit.export('RUN', output='model.xml')",
        "the fastest: OpenVINO int8, calibrated, 4.00 times PyTorch float32 at batch 8; "
        "vitkit.export('RUN', output='model.xml', precision='int8', data=data, calibrate=data)",
    ]
    said = recommendation("RUN", FOUND[:3], at_rates(50.0, 20.0, 40.0), "softmax")
    assert said == (
        "the fastest with the same answers: PyTorch float32; nothing is faster at batch 8"
    )


def test_a_table_has_a_column_for_what_is_known(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    speeds = at_rates(10.0, 20.0, 40.0)
    speeds[0] = replace(speeds[0], start=1.234, megabytes=567.8)
    (text,) = tables(FOUND[:3], speeds)
    rows = [line.split() for line in text.splitlines()]
    assert rows[2] == "PyTorch float32 5.0 10.0 200.0 400.0 1.23 568 100.0% 0.00% 90.0%".split()
    assert rows[4][-6:] == "20.0 40.0 50.0 100.0 99.5% 0.50% 88.0%".split()[1:]
    monkeypatch.setenv("COLUMNS", "80")
    assert len(list(tables(FOUND[:3], speeds))) == 2


def test_the_fastest_of_each_precision_is_kept(model, tmp_path, monkeypatch):
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    for ending in ("xml", "bin"):
        (tmp_path / f"openvino-float32.{ending}").write_text(ending)
    found = [replace(FOUND[1], file=tmp_path / "openvino-float32.xml"), FOUND[0], FOUND[3]]
    found.append(tried("PyTorch", "bfloat16", 1.0))
    classifier = load(model, quiet=True)
    (kept,) = remember(classifier, found, at_rates(20.0, 10.0, 90.0, 30.0))
    assert (kept.library, kept.precision, kept.times) == ("OpenVINO", "float32", 2.0)
    assert (kept.same, kept.images, kept.file) == (1.0, 200, "openvino-float32.xml")
    assert (folder_of(classifier) / "openvino-float32.bin").read_text() == "bin"
    (slower,) = remember(classifier, found, at_rates(5.0, 10.0, 90.0, 30.0))
    assert (slower.library, slower.times, slower.file) == ("PyTorch", 1.0, "")


@pytest.mark.parametrize(
    ("library", "precision", "has_bfloat16", "expected"),
    [
        ("torch", "float32", True, False),  # what the others are compared with
        ("torch", "bfloat16", True, True),
        ("torch", "bfloat16", False, False),
        ("torch", "int8", True, False),
        ("compiled", "float32", False, True),
        ("onnx", "bfloat16", True, False),
        ("onnx", "int8", False, True),
        ("openvino", "bfloat16", True, True),
    ],
)
def test_what_a_machine_can_compute_is_measured(
    library, precision, has_bfloat16, expected, monkeypatch
):
    monkeypatch.setattr("vitkit.exporting.speed.candidates.missing_packages", lambda export: [])
    monkeypatch.setattr(
        "vitkit.exporting.speed.candidates.has_bfloat16", lambda device: has_bfloat16
    )
    assert is_worth_measuring(library, precision) == expected


def test_all_are_measured_in_turns():
    calls = []

    def implementation(name):
        def compute(images):
            calls.append((name, images.shape))
            return np.zeros((len(images), 2), np.float32)

        return Implementation(name, "float32", compute)

    images = np.zeros((2, 3, 4, 6), np.uint8)  # fewer than a batch: they are repeated
    speeds = measure([implementation("a"), implementation("b")], images, Turns((1, 3), 3, 1e-9))
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

    # Its own picture may be replaced
    words = "--runtimes torch --precisions float32 --batch 1 --rounds 1 --seconds 0.01 --limit 8"
    command = ["bench", str(model), *words.split(), "--no-start-up", "--report", str(picture)]
    assert main(command) == 0


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
    plan = Turns()
    facts = described("/home/me/my models/fast.onnx", plan, [], [], "images")
    assert facts["model"] == "fast.onnx"
    monkeypatch.setenv("COLUMNS", "60")
    speed = RuntimeSpeed(dict.fromkeys(plan.batches, 1.0), {}, 1.0, 1.0)
    alone = Implementation("ONNX Runtime", "float32", None)
    (only,) = tables([alone], [speed])
    assert "p95 ms" in only and "start s" not in only
    both = list(tables([alone], [replace(speed, start=2.0, megabytes=100.0)]))
    assert len(both) == 2 and "start s" in both[1] and "same" not in both[1]


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--preprocessing"]], ids=["prepared", "pictures"])
def test_an_exported_file_is_measured_by_all_that_read_it(
    model, tmp_path, capsys, monkeypatch, options
):
    monkeypatch.setattr("vitkit.exporting.speed.measuring.STARTS", 1)
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
def test_a_file_that_classifies_every_pixel_is_timed_by_pixels_of_one_size(
    tmp_path, capsys, monkeypatch
):
    for package in ("onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    monkeypatch.setattr("vitkit.exporting.speed.measuring.STARTS", 1)
    file = tmp_path / "pixels.onnx"
    masks = make_model_of_masks()
    export(masks, output=file)
    seen = []
    turn = Isolated.turn

    def turned(self, images, batch, seconds):
        seen.append(images.shape[1:])
        assert self.runtime.logits(images[:batch]).shape == (batch, 3, *images.shape[2:])
        return turn(self, images, batch, seconds)

    monkeypatch.setattr(Isolated, "turn", turned)
    found = bench(str(file), batch=(1, 2), rounds=1, seconds=0.01, runtimes="onnx")
    [row] = found.rows()
    assert row["images_per_second.1"] > 0 and row["start"] > 0 and row["agreement"] is None
    printed = capsys.readouterr()
    assert "is not measured" not in printed.err
    with steps_as(as_command):
        assert f"next: vitkit evaluate {file} DATA --masks masks/, for its IoU" in str(found)
    # Whole images, in as many patches as the model reads
    assert len(set(seen)) == 1 and len(seen) == 2
    height, width = seen[0][1:]
    assert height % 4 == width % 4 == 0 and 32 < height * width / 16 <= 64


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
        found = [of_exported(process), Implementation("PyTorch", "float32", here)]
        speeds = measure(found, images, Turns((1, 3), 1, 1e-9))
        assert all(set(speed.images_per_second) == {1, 3} for speed in speeds)

        # As a library's segmentation fault ends it
        process._process.kill()
        dead, alive = measure(found, images, Turns((1, 3), 1, 1e-9))
        assert dead.images_per_second == {} and set(alive.images_per_second) == {1, 3}
        with pytest.raises(WorkerDied, match=r"computes model\.onnx ended by SIGKILL"):
            process.runtime.logits(images)
    assert "ONNX Runtime float32 is not measured any further: " in capsys.readouterr().err


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

    def no_start(models, command):
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


@pytest.fixture(scope="module")
def of_digits():
    """A model with a solved head for digits, and 60 of them to try it on."""
    config = vit("mu/16", image=(8, 8), patch=2, width=16, mlp=32, depth=3, classes=10)
    splits = open_splits("digits")
    classifier = Classifier(create(config, seed=0), Preprocessing((8, 8)), splits.labels)
    few = subset(splits.train, np.arange(200))
    learned = compute_features(classifier.for_inference(), few, cached=False)
    fitted = fit_probe("linear", learned.x, learned.y, 10)
    classifier = with_probe(classifier, fitted, splits.labels, "softmax")
    return classifier, trial_on("digits", splits.labels, tried=60)


def test_what_leaves_work_out_is_compared_with_the_whole_model(of_digits):
    classifier, trial = of_digits
    merged, early = with_less_work(classifier, trial, merge=[3], sure=[0.3])
    assert (merged.name, early.name) == (
        "PyTorch float32, 3 merged",
        "PyTorch float32, exits at 0.3",
    )
    answers = classifier.logits(classifier.batch([item.read() for item in trial.items])).argmax(1)
    right = [
        classifier.labels[k] == item.truth for k, item in zip(answers, trial.items, strict=True)
    ]
    for implementation in (merged, early):
        agreement = implementation.agreement
        assert agreement.images == agreement.labelled == 60
        assert agreement.models_accuracy == pytest.approx(np.mean(right))
        assert agreement.accuracy < agreement.models_accuracy
        assert agreement.lost > agreement.won


@pytest.mark.parametrize(("code", "sentence"), [(0, ""), (3, "vitkit predict RUN failed: no run")])
def test_a_start_is_a_prediction_of_one_photograph_in_a_process(code, sentence, monkeypatch):
    started = []

    class Process:
        pid = -1
        returncode = code

        def __init__(self, words, stdout, stderr):
            started.append(words)
            stderr.write("Traceback\nno run\n")
            self.looks = iter([None, None, code])

        def poll(self):
            return next(self.looks)

    memory = iter([100.0, 250.0])
    monkeypatch.setattr(measuring, "_peak_megabytes", lambda pid: next(memory))
    monkeypatch.setattr(measuring.subprocess, "Popen", Process)
    if sentence:
        with pytest.raises(VitkitError, match=sentence):
            measuring._start("RUN", "one.jpg")
    else:
        seconds, megabytes = measuring._start("RUN", "one.jpg")
        assert 0 < seconds < 10 and megabytes == 250
    words = ["-m", "vitkit", "predict", "RUN", "one.jpg", "--device", "cpu"]
    assert started == [[sys.executable, *words]]


def test_starts_are_medians_of_several_that_take_turns(monkeypatch):
    order = []
    figures = {"a": iter([(3.0, 10.0), (1.0, 30.0), (2.0, 20.0)]), "b": iter([(4.0, None)] * 3)}

    def start(model, photograph, command):
        assert command == "predict"
        order.append(model)
        with Image.open(photograph) as image:
            assert image.size == (640, 480)
        return next(figures[model])

    monkeypatch.setattr(measuring, "_start", start)
    assert measure_starts(["a", "b"]) == [(2.0, 20.0), (4.0, None)]
    assert order == ["a", "b"] * 3


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_the_peak_of_a_process_is_in_megabytes():
    peak = measuring._peak_megabytes(os.getpid())
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    assert peak == pytest.approx(usage, rel=0.1)
    assert measuring._peak_megabytes(2**30) is None
