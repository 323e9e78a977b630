"""The benchmarks run, and what they compare does the same work."""

import json
import os
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from margins import at_least, at_most
from pictures import encoded, photograph
from processes import Forked
from served import make_classifier
from tracing import traced_once

from vitkit.system.span import Span
from vitkit.weights import save

SOAK = 0.25  # minutes: a worker is killed after eight seconds
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Scripts import one another, as when they are run."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def forked(monkeypatch):
    """A script's processes are forked from this one, which imports the peers for all of them."""
    pytest.importorskip("timm")
    transformers = pytest.importorskip("transformers")
    for name in ("AutoImageProcessor", "ViTForImageClassification", "Trainer", "pipeline"):
        getattr(transformers, name)
    monkeypatch.setattr(subprocess, "Popen", Forked)


@pytest.fixture
def side_by_side(monkeypatch):
    """The module, for turns as short as can be."""
    pytest.importorskip("timm")
    pytest.importorskip("transformers")
    import side_by_side

    monkeypatch.setattr(side_by_side, "TURN", 0)
    monkeypatch.setattr(side_by_side, "PAUSE", 0)
    return side_by_side


@pytest.fixture
def run(monkeypatch, tmp_path):
    """run(script, words): the results of a benchmark, which name none of the user's folders."""

    def run(script: str, words: str, function=None) -> dict:
        output = tmp_path / "results.json"
        command = [f"{BENCHMARKS}/{script}.py", *words.split(), "--output", str(output)]
        monkeypatch.setattr(sys, "argv", command)
        if function is None:
            runpy.run_path(command[0], run_name="__main__")
        else:
            function()
        text = output.read_text()
        assert str(tmp_path) not in text and str(BENCHMARKS) not in text
        result = json.loads(text)
        assert result["command"].startswith(f"python benchmarks/{script}.py --")
        return result

    return run


@pytest.mark.parametrize(
    ("script", "precisions"),
    [("forward", ["float32", "autocast", "bfloat16"]), ("step", ["float32", "autocast"])],
)
@pytest.mark.slow
def test_four_libraries_are_timed_in_every_precision(script, precisions, side_by_side, run):
    result = run(script, "--models mu/16 --batches 2 --modes eager --seconds-per-row 0")
    assert [row["precision"] for row in result["results"]] == precisions
    for row in result["results"]:
        libraries = {"vitkit", "timm", "transformers", "torchvision"}
        assert set(row["images_per_second"]) == libraries
        low, high = row["ratio_95_percent"]
        assert row["rounds"] == 5 and 0 < low <= high


@pytest.mark.slow
def test_exported_graphs_are_timed_beside_the_peers(side_by_side, run, tmp_path, monkeypatch):
    for package in ("openvino", "nncf", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    words = f"--models mu/16 --batches 2 1 --seconds-per-row 0 --files {tmp_path / 'files'}"
    words += " --peers timm"  # both are exported in the same way
    import runtimes

    monkeypatch.setattr(runtimes, "IMAGES", 4)
    with traced_once():
        result = run("runtimes", words, runtimes.main)
    rows = [(row["runtime"], row["precision"], row["batch"]) for row in result["results"]]
    kinds = [("onnx", "float32"), ("onnx", "int8-calibrated")]
    kinds += [("openvino", p) for p in ("float32", "int8", "int8-calibrated")]
    assert rows == [(*kind, batch) for kind in kinds for batch in (2, 1)]
    for row in result["results"]:
        assert set(row["images_per_second"]) == {"vitkit", "timm"}
        assert row["rounds"] == 5 and row["times_timm_eager_float32"] > 0
        largest = {"float32": 1e-4}.get(row["precision"], 0.2)
        at_most(list(row["error"].values()), largest)

    # Interrupted, it goes on behind the last row, with the files that are there
    whole = tmp_path / "results.json"
    kept = result["results"][:-3]
    whole.write_text(json.dumps(result | {"results": kept}))
    monkeypatch.setattr(runtimes, "write_ours", None)
    monkeypatch.setattr(runtimes, "write_peers", None)
    again = run("runtimes", words, runtimes.main)["results"]
    assert again[:-3] == kept and len(again) == len(result["results"])


@pytest.mark.slow
def test_changes_of_a_step_compute_the_same(side_by_side, run, capsys):
    """The script itself stops where losses or gradients differ. Nothing is compiled here."""
    import step_variants

    words = "--models mu/16 --batch 2 --micro-batch 2 --seconds-per-row 0"
    (row,) = run("step_variants", words, step_variants.main)["results"]
    measured = set(row["speed"])
    assert measured >= {"as it is", "bfloat16 stream", "separate q, k, v", "patches by product"}
    assert row["differences"]["as it is"] == [0, 0] != row["differences"]["separate q, k, v"]
    assert "CUDA graphs: left out" in capsys.readouterr().out


@pytest.mark.slow
def test_the_profile_of_a_step_leaves_nothing_out(side_by_side, run, capsys):
    result = run("step", "--profile --models digits --steps 1")
    (row,) = result["results"]
    times = row["milliseconds"]
    for part in ("waiting", "forward", "backward", "clipping", "optimiser", "average", "rest"):
        assert 0 < times[part] < times["step"]
        assert row["share"][part] == pytest.approx(times[part] / times["step"], abs=1e-3)
    assert "digits, batch 96, float32" in capsys.readouterr().out


def test_other_weights_are_noticed(side_by_side):
    config = side_by_side.config("mu/16")
    models = side_by_side.stacks(config)
    images = torch.randn(2, 3, *config.image, generator=torch.Generator().manual_seed(0))
    side_by_side.same_work(models, images)
    with torch.no_grad():
        models["torchvision"].heads.head.bias += 1e-2
    with pytest.raises(AssertionError, match="torchvision"):
        side_by_side.same_work(models, images)


def test_the_ratio_is_to_the_fastest_peer(side_by_side):
    times = {"vitkit": [0.1, 0.1, 0.1], "slow": [0.3, 0.3, 0.3], "fast": [0.2, 0.2, 0.2]}
    summary = side_by_side.summary(times, batch=8)
    assert summary["fastest_peer"] == "fast" and summary["ratio"] == 2
    assert summary["images_per_second"] == {"vitkit": 80, "slow": 26.67, "fast": 40}


def test_axial_attention_computes_what_einsum_does():
    """The script stops if the numbers differ; here on a small grid."""
    import axial

    for forms in (axial.transformer_layer(1, 3, 128), axial.resnet_unit(1, 3, 64)):
        torch.testing.assert_close(forms["vitkit"](), forms["einsum"](), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_pretraining_compares_three_ways(monkeypatch, tmp_path, capsys, run):
    import pretraining

    laptop = pretraining.SIZES["laptop"]
    model = replace(laptop.model, width=24, depth=1, mlp=24, patch=8, heads=2)
    small = replace(laptop, model=model, optim=replace(laptop.optim, warmup=Span(1)))
    monkeypatch.setitem(pretraining.SIZES, "laptop", small)
    words = "--data digits --target digits --ways scratch masked supervised --side 40 --steps 5"
    words += f" --length 2steps --seeds 1 --device cpu --workdir {tmp_path / 'runs'}"
    result = run("pretraining", words, pretraining.main)

    ways = ["scratch", "masked", "supervised"]
    assert [row["from"] for row in result["fine-tuning"]] == ways
    assert [line["step"] for line in result["pre-training"]["masked"]] == [1, 2, 3, 4, 5]
    assert "test/top1" in result["pre-training"]["supervised"][-1]
    printed = capsys.readouterr()
    assert "from 4 x 4 to 5 x 5 patches" in printed.err  # --side 40
    assert printed.out.count("| supervised |") == 1


def test_pretraining_gives_the_mean_of_seeds():
    import pretraining

    rows = [{"from": "scratch", "test/top1": accuracy} for accuracy in (0.5, 0.52)]
    last_line = pretraining.table(rows).splitlines()[-1]
    assert last_line == "| scratch | 50.00, 52.00 | 51.00 | 1.41 |"


@pytest.mark.slow
def test_streams_in_both_types_train_the_same_model(monkeypatch, tmp_path, capsys, run):
    import residual

    model = replace(residual.RECIPE.model, width=24, depth=1, mlp=24, patch=8, heads=2)
    monkeypatch.setattr(residual, "RECIPE", replace(residual.RECIPE, model=model))
    words = f"--data digits --steps 20 --seeds 1 --workdir {tmp_path / 'runs'}"
    plain, changed = run("residual", words, residual.main)["runs"]
    assert (plain["residual"], changed["residual"]) == ("float32", "bfloat16")
    assert plain["curve"] != changed["curve"]
    for ours, theirs in zip(plain["curve"], changed["curve"], strict=True):
        assert ours["step"] == theirs["step"]
        at_most([abs(ours["loss"] - theirs["loss"])], 0.05)
    assert "| difference | |" in capsys.readouterr().out


def test_sharding_is_compared_with_none(side_by_side, run):
    """One rank under FSDP2 beside none; the script itself stops where their losses differ."""
    result = run("sharding", "--models mu/16 --batches 2 --seconds-per-row 0")
    (row,) = result["results"]
    assert set(row["images_per_second"]) == {"sharded", "plain"} and row["rounds"] == 5
    assert not torch.distributed.is_initialized()


@pytest.mark.slow
def test_checkpoints_of_simulated_ranks_are_written_and_read_in_both_ways(run):
    """The script itself stops where a load does not fill a rank's shards."""
    rows = run("checkpoints", "--model mu/16 --ranks 2 6")["results"]
    assert [(row["ranks"], row["way"]) for row in rows] == [
        (2, "before"),
        (2, "now"),
        (6, "before"),
        (6, "now"),
    ]
    assert rows[3]["opened"] == 6 * 3 < rows[2]["opened"]
    assert not torch.distributed.is_initialized()


@pytest.fixture
def loader(monkeypatch, tmp_path):
    """The module, for batches of 4, with files to read in tmp_path/files."""
    import loader

    monkeypatch.setattr(loader, "BATCH", 4)
    monkeypatch.setattr(loader, "WORKERS", 1)
    for i in range(8):
        path = tmp_path / "files" / str(i % 2) / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(photograph(60, 80, i)))
    return loader


@pytest.mark.slow
def test_the_loader_is_compared_with_torchvision_s(loader, run, tmp_path):
    words = f"--data {tmp_path / 'files'} --images 24 --rounds 1 --only TurboJPEG ImageFolder"
    result = run("loader", words, loader.main)
    assert {row["pipeline"] for row in result["results"]} == {
        "vitkit without TurboJPEG",
        "torchvision ImageFolder, PIL",
    }
    assert result["data"]["median_size"] == "80x60"


def test_the_variants_of_the_loader_differ_in_what_they_say(loader, tmp_path):
    files = tmp_path / "files"
    images = next(loader.vitkit(files)(0)).images
    assert torch.equal(next(loader.vitkit(files, turbojpeg=False)(0)).images, images)
    assert not torch.equal(next(loader.vitkit(files, torchvisions_crops=True)(0)).images, images)


@pytest.mark.slow
def test_the_queue_of_what_needs_a_gpu_works_at_toy_size_on_a_cpu(tmp_path):
    """A piece whose script measures, and one that trains and fails for want of data; other tests run the other
    scripts."""
    for part, count in (("train", 24), ("test", 8)):
        for i in range(count):
            path = tmp_path / "images" / part / "ab"[i % 2] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(photograph(32, 32, i), "PNG"))
    images = str(tmp_path / "images")
    pieces = ["run_step", "cifar10"]
    command = ["bash", str(BENCHMARKS / "gpu.sh"), "--device", "cpu"]
    command += ["--results", str(tmp_path / "results"), *pieces]
    environment = os.environ | {"PYTHON": sys.executable}
    environment.pop("CIFAR10", None)  # one piece fails for want of it, and the other is done
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "failed, or not finished: cifar10\n" in ended.stderr
    environment["CIFAR10"] = images
    for _ in range(2):  # the second time, all are done
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("done already") == len(pieces)
    written = {path.name for path in (tmp_path / "results").glob("*.json*")}
    assert written == {"run-step.json", "cifar10.jsonl"}


@pytest.mark.slow
def test_both_kernels_of_attention_are_timed(run):
    rows = run("attention", "--rounds 1 --tokens 65")["results"]
    assert [row["dtype"] for row in rows] == ["torch.float32", "torch.bfloat16"]
    assert all(len(row["milliseconds"]) == 2 for row in rows)


@pytest.mark.slow
def test_two_runs_are_compared_in_their_bits(run):
    """On a CPU they have the same ones, asked for or not."""
    rows = run("same_bits", "--models mu/16 --batch 2 --micro-batch 1 --steps 1")["results"]
    assert [(row["precision"], row["deterministic"]) for row in rows] == [
        *(("float32", False), ("float32", True), ("bfloat16", False), ("bfloat16", True))
    ]
    assert all(row["differing"] == 0 and row["weights"] > 10 for row in rows)


def test_all_l2_of_the_few_shot_fit_are_compared_with_scikit_learn_s():
    from argparse import Namespace

    import fewshot

    options = Namespace(examples=60, width=20, classes=7, values=4)
    assert fewshot.difference(options) < 1e-9
    assert fewshot.measure("vitkit", options).keys() == {"seconds", "peak_mib"}


def test_features_are_timed_beside_the_forward_pass(tmp_path, run):
    from vitkit.data import Preprocessing
    from vitkit.models import create, vit
    from vitkit.weights import Classifier, save

    config = vit("mu/4", image=(8, 8), depth=1, classes=10)
    labels = tuple(map(str, range(10)))
    save(Classifier(create(config, seed=0), Preprocessing((8, 8)), labels), tmp_path / "model")
    result = run("features", f"--model {tmp_path / 'model'} --data digits --rounds 1")
    assert set(result["rounds"]) == {"forward", "features"} and result["images"] == 359


def test_changes_of_a_taught_model_are_timed_in_both_ways(run):
    rows = run("teaching", "--sizes 30 8 3 --sizes 20 1001 2 --rounds 1")["results"]
    assert rows[0]["everything"] > 0 and rows[0]["from sums"] >= 0
    assert rows[1]["features"] == 1001 and "from sums" not in rows[1]


@pytest.fixture
def small_model(tmp_path):
    """The folder of a model with a class token, for digits."""
    from vitkit.data import Preprocessing
    from vitkit.models import create, vit
    from vitkit.weights import Classifier

    config = vit("mu/4", image=(16, 16), depth=2, classes=10)
    model = create(config, seed=0)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    labels = tuple(map(str, range(10)))
    save(Classifier(model, Preprocessing((16, 16)), labels), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.slow
def test_precisions_are_compared_answer_by_answer(small_model, run):
    """The digits' labels are the classes, so the accuracies are those of `vitkit evaluate`."""
    result = run("precision", f"--model {small_model} --images digits")
    exact, rounded = (result["results"][each] for each in ("float32", "bfloat16"))
    assert exact["same answers"] == result["photographs"] == 359
    assert exact["largest difference of a logit"] == 0 < rounded["largest difference of a logit"]
    from vitkit import evaluate

    shown = evaluate(str(small_model), "digits", precision="float32", quiet=True)
    at_most(abs(exact["top1"] - 100 * shown["top1"]), 0.01)


@pytest.mark.slow
def test_the_numbers_of_inspection_are_those_of_its_figures(small_model, run):
    result = run("inspected", f"--model {small_model} --images digits --count 8")
    assert result["photographs"] == 8
    assert len(result["distance"]["mean of each layer"]) == 2
    assert -1 <= result["positions"]["neighbours"] <= 1
    assert result["alignment"]["of the last with each"][-1] == 1
    assert set(result["occlusion"]) == {
        *("rollout", "relevance", "gradient rollout", "attention of the last layer")
    }


def test_whole_processes_are_timed(importable, capsys):
    from end_to_end import Contender, print_table, row, timed

    quick = Contender("cold", "vitkit", [sys.executable, "-c", "pass"])
    long = Contender("cold", "other", [sys.executable, "-c", "import time; time.sleep(0.5)"])
    rows = [row(each, [timed(each), timed(each)]) for each in (quick, long)]
    assert rows[1]["seconds"] > 0.5 > rows[1]["cpu_seconds"] and len(rows[1]["rounds"]) == 2
    print_table(rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("| cold | vitkit |") and lines[-2].endswith("| 1.00 |")
    failing = Contender("cold", "lost", [sys.executable, "-c", "raise SystemExit('no model')"])
    with pytest.raises(RuntimeError, match="lost failed: no model"):
        timed(failing)


@pytest.mark.slow
def test_peers_do_the_same_work(run, shared, forked):
    """vitkit's commands, timm and Transformers, one after the other on the real model."""
    weights = shared("weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors")
    images = shared("data/imagenet_val500.parquet")
    train = shared("data/ants_bees-train.parquet")
    words = f"--model {weights} --images {images} --limit 4 --rounds 1"
    words += f" --train {train} --tasks cold predict evaluate"
    result = run("end_to_end", words)
    named = [(each["task"], each["name"]) for each in result["results"]]
    assert len(named) == len(set(named)) == 10
    assert all(each["seconds"] > 0 for each in result["results"])


@pytest.mark.slow
def test_predict_is_timed_beside_the_bare_forward(run, shared, forked):
    weights = shared("weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors")
    images = shared("data/imagenet_val500.parquet")
    result = run("predict", f"--model {weights} --images {images} --count 12 --rounds 1")
    assert [each["part"] for each in result["results"]] == ["processes", "running"]
    for each in result["results"]:
        assert each["share"] > 0 and each["share_of_cpu"] > 0
        assert set(each["images_per_second"]) == {"predict", "bare"}


@pytest.mark.slow
def test_unknown_images(run, tmp_path):
    """Every way has its numbers, against another set, images without a subject and a class kept away."""
    from vitkit.data import Preprocessing
    from vitkit.models import create, vit
    from vitkit.weights import Classifier, save

    network = create(vit("mu/8", image=(16, 16), depth=2), seed=0)
    model = save(Classifier(network, Preprocessing(size=(16, 16)), ()), tmp_path / "model")
    for name, shade in (("first", 0), ("second", 80)):
        for i in range(60):
            file = tmp_path / name / "abc"[i % 3] / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = photograph(20, 20, i) // (2 + i % 3) + shade
            file.write_bytes(encoded(pixels.astype("uint8"), "PNG"))
    words = f"--model {model} --data {tmp_path / 'first'} {tmp_path / 'second'} --draws 2"
    result = run("unknown", words)
    ways = ["before", "product", "before, limit of nearest", "product, limit of any"]
    for head in ("token", "blocks"):
        of_head = result["summary"][head]
        assert list(of_head)[:4] == ways
        for numbers in of_head.values():
            assert 0 <= numbers["auroc"] <= 1 and 0 <= numbers["kept away, auroc"] <= 1
            for key in (
                "detected",
                "rejected",
                "worst",
                "changed",
                "without a subject",
                "kept away",
            ):
                assert 0 <= numbers[key] <= 100
    assert {"second", "black", "noise", "text", "blur", "dark", "a class kept away"} <= set(
        result["pairs"]["first, token, product"]
    )
    assert len(result["choice"]) == 4 and next(iter(result["sets"])) == "first, token, before"


@pytest.mark.slow
def test_what_is_printed_is_compared_with_new_images(run, tmp_path):
    model = tiny(tmp_path / "model")
    result = run("honesty", f"--model {model} --data digits --draws 2")
    assert [each["images a class"] for each in result["balanced"]] == [2, 3, 5, 10, 20, 40]
    for each in (*result["balanced"], *result["rare"]):
        assert 0 <= each["printed"] <= 100 and 0 <= each["accuracy"] <= 100
        assert each["difference"] == pytest.approx(each["printed"] - each["accuracy"], abs=0.02)
    at_most(abs(result["noise"][1]["printed"] - 2), 6)
    assert 0 <= result["rare"][0]["scikit-learn ridge: recall"] <= 100


@pytest.mark.slow
def test_every_reading_has_its_head(run, tmp_path):
    model = tiny(tmp_path / "model")
    (heads,) = run("heads", f"--model {model} --data digits --splits 2")["heads"].values()
    readings = [f"{pool} of 2" for pool in ("token-gap", "token-gap-quarters", "token-pyramid")]
    for name in ("token of 1", *readings):
        at_least(heads[name]["test"], 40, best=100)  # a guess is 10
        at_most(heads[name]["error of test"], 5)
    assert sum(heads["chosen"].values()) == 2 and set(heads["chosen"]) <= {"token of 1", *readings}
    assert heads["finetune"]["test"] >= heads["token of 1"]["test"]
    for what in ("the class token", "what was chosen"):
        for name in ("logistic regression", "discriminant analysis"):
            at_least(heads[f"scikit-learn's {name} on {what}"]["test"], 40, best=100)


@pytest.mark.slow
def test_pictures_of_mixed_shapes_are_measured_beside_the_square(run):
    speeds = run("proportions", "--model mu/16 --batch 14 --rounds 2")["speeds"]
    assert list(speeds) == ["square", "240 x 320", "mixed"]
    assert speeds["square"]["of the square's tokens a second"] == 1
    assert speeds["240 x 320"]["tokens"] == 301 and 170 < speeds["mixed"]["tokens"] < 197


def tiny(path):
    """A model of two blocks for the digits, with random weights."""
    from vitkit.data import Preprocessing
    from vitkit.models import create, vit
    from vitkit.weights import Classifier, save

    network = create(vit("mu/2", image=(8, 8), depth=2), seed=0)
    return save(Classifier(network, Preprocessing(size=(8, 8)), ()), path)


def test_being_watched_takes_no_time(importable, capsys):
    import time

    from first_hour_peers import Watch, is_due

    watch = Watch(time.monotonic() - 10, limit=10.4)
    watch.point(lambda: time.sleep(0.5) or 0.75)
    assert not watch.is_over() and watch.watched > 0.5
    seconds, accuracy = json.loads(capsys.readouterr().out)
    assert 10 <= seconds < 10.4 and accuracy == 0.75
    assert [step for step in range(1, 11) if is_due(step, 10, 4)] == [3, 5, 8, 10]


def test_the_time_to_the_same_accuracy_is_compared(importable, capsys):
    from first_hour import print_tables

    row = {
        "set": "ants",
        "vitkit": {"points": [[5.0, 0.9], [60.0, 0.95]]},
        "timm": {"points": [[20.0, 0.8], [30.0, 0.9], [58.0, 0.88]]},
        "scikit-learn": {"points": [[12.0, 0.96]]},
    }
    print_tables([row])
    lines = capsys.readouterr().out.splitlines()
    assert "| ants | timm | 80.0 % after 20 s | 88.0 % | 58 s |" in lines
    assert "| ants | timm | 90.0 % | 30 s | 5 s | 6.0 |" in lines
    assert lines[-1] == "| ants | scikit-learn | 96.0 % | 12 s | never |  |"


@pytest.mark.slow
def test_the_first_hour_is_measured_for_all_four(run, shared, monkeypatch, forked):
    """Whole processes on the real model, with next to no images, and no time for the peers."""
    import first_hour

    def at_once(words, folder):
        library, weights, own, _, points = words
        return by_peer([library, weights, own, "1", points], folder)

    by_peer = first_hour.by_peer
    monkeypatch.setattr(first_hour, "by_peer", at_once)
    pytest.importorskip("sklearn")
    weights = shared("weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors")
    data = shared("data/ants_bees-train.parquet").parent
    words = f"--model {weights} --data {data} --sets ants_bees --images 14 --tested 8"
    result = run("first_hour", f"{words} --minutes 0.001 --points 1", first_hour.main)
    (row,) = result["results"]
    assert (row["train"], row["test"]) == (14, 8)
    for name in ("vitkit", "transformers", "timm", "scikit-learn"):
        assert row[name]["ended"] > row[name]["points"][0][0] > 0


@pytest.mark.slow  # a process for each figure
def test_figures_are_measured_beside_a_forward_pass(side_by_side, forked, run, capsys):
    words = "--models mu/16 --image 32 --batch 2 --rounds 1 --figures rollout"
    result = run("inspection", words)
    names = [row["figure"] for row in result["results"]]
    assert names == ["forward", "all attention kept", "rollout"]
    assert all(row["milliseconds"] > 0 for row in result["results"])
    assert result["results"][0]["times_a_forward_pass"] == 1
    assert "rollout" in capsys.readouterr().out


@pytest.mark.slow  # a server of two processes
@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_a_soak_of_seconds_loses_nothing(tmp_path):
    pytest.importorskip("onnxscript")
    files = [{"bytes": encoded(photograph(40, 50, i)), "path": None} for i in range(6)]
    pq.write_table(pa.table({"image": files, "label": [0] * 6}), tmp_path / "photos.parquet")
    save(make_classifier(), tmp_path / "model")
    words = f"--model model --images photos.parquet --output soak.json --minutes {SOAK} --pause 0.5"
    script = BENCHMARKS / "soak.py"
    run = Forked(
        [sys.executable, script, *words.split()],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said, _ = run.communicate(timeout=300)
    assert run.returncode == 0, said
    result = json.loads((tmp_path / "soak.json").read_text())
    honest = result["honest"]
    assert honest["answered"] > 20 and (honest["wrong"], honest["lost"], honest["failures"]) == (
        0,
        0,
        0,
    )
    assert result["happened"]["kill"] == 1 and result["exit_status"] == 0


@pytest.mark.slow  # a server in a process of its own
def test_a_server_under_load_answers_everybody(run, tmp_path):
    files = [{"bytes": encoded(photograph(40, 50, i)), "path": None} for i in range(6)]
    pq.write_table(pa.table({"image": files, "label": [0] * 6}), tmp_path / "photos.parquet")
    save(make_classifier(), tmp_path / "model")
    words = f"--model {tmp_path / 'model'} --images {tmp_path / 'photos.parquet'}"
    result = run("serve", f"{words} --clients 3 --seconds 0.3 --rounds 2 --batch 2")
    assert result["shares"]["bare"] == 1 and result["medians"]["served"] > 0
    for load in result["rounds"]:
        assert load["answers"] >= 3 and load["not_answered"] == 0
        assert 0 < load["p50_ms"] <= load["p95_ms"] and load["memory_mb"] > 50


@pytest.mark.slow
def test_error_rates_are_simulated_by_the_rules_themselves(run):
    """Every case has its row; the critical values that are interpolated are those of the test."""
    results = run("error_rates", "--parts exports laws --draws 5")["results"]
    assert len(results["exports"]) == 6 * 4 and len(results["laws"]) == 2 * 3 * 3 * 6 + 3 * 4
    keeps = [row["said to keep its accuracy"] for row in results["exports"]]
    assert keeps[:4] == [0.0, 0.0, 1.0, 1.0]  # of files whose answers are the model's


@pytest.mark.slow
def test_error_rates_of_studies_are_those_of_the_test(importable, monkeypatch):
    """Each case is compared with `range_test` on the way."""
    import error_rates

    monkeypatch.setattr(error_rates, "SETTINGS", (3,))
    rows = list(error_rates.studies(400))
    assert len(rows) == 3 * 5
    at_most([row["paired"] for row in rows if row["case"] in ("equal", "unequal")], 0.09)


@pytest.mark.slow
def test_what_is_fetched_of_remote_data_is_counted(run, monkeypatch):
    """By several ranks, each with several workers: they share every chunk in the most ways."""
    pytest.importorskip("aiohttp")
    import remote_data

    for name in ("KEEP", "WINDOW"):  # which the script sets
        monkeypatch.setattr(remote_data.stores, name, getattr(remote_data.stores, name))
    monkeypatch.setattr(remote_data.tar, "RANGE", remote_data.tar.RANGE)
    monkeypatch.setattr(remote_data, "SHAPES", ((2, 2),))
    result = run("remote_data", "--megabytes 24 --shards 2", remote_data.main)
    (row,) = result["results"]
    assert (row["ranks"], row["workers"]) == (2, 2)
    at_least(row["opened, foreign"], 0.9)
    assert row["opened, foreign"] <= 1
    at_most(row["opened, packed"], 0.1)
    for name, more in (("epoch", 0.4), ("evaluated", 0.2)):  # 24 chunks, 3 of them at seams
        at_least(row[name], 0.9)
        at_most(row[name] - 1, more)
