"""A run keeps its model as ONNX, and answers by it without PyTorch where that is the same answer."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from pictures import encoded, photograph

from vitkit.apps.serve.functions.serve import open_model
from vitkit.cli.entry import main
from vitkit.data import Preprocessing
from vitkit.models import create, vit
from vitkit.prediction import request, runtime_of
from vitkit.runtimes import Eager, FileRuntime, folder_of, is_kept, libraries, onnx_of_run
from vitkit.runtimes.onnx_of_run import kept_runtime
from vitkit.system import machine
from vitkit.training.functions import keeping
from vitkit.weights import Classifier, save

pytestmark = pytest.mark.slow  # a run is trained and exported first

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

WITHOUT_BFLOAT16 = {"avx2", "fma"}


def classifier(seed: int = 0) -> Classifier:
    network = create(vit("mu/8", image=(16, 24), classes=3), seed=seed).eval()
    torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(seed))
    return Classifier(network, Preprocessing(size=(16, 24)), ("ant", "bee", "wasp"))


@pytest.fixture(autouse=True)
def runs_keep_a_file(monkeypatch):
    """Unlike in other tests."""
    monkeypatch.delenv("VITKIT_KEEP_ONNX")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A run with the file that it keeps."""
    run_dir = tmp_path_factory.mktemp("kept") / "run"
    save(classifier(), run_dir / "model")
    (run_dir / "recipe.json").write_text("{}")
    assert main(["export", str(run_dir), "-o", str(run_dir / "model.onnx")]) == 0
    return run_dir


@pytest.fixture
def run_dir(exported, tmp_path, monkeypatch):
    """A copy of it on a CPU without bfloat16 and without a GPU, on which nothing was measured."""
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "cpu_flags", lambda: WITHOUT_BFLOAT16)
    monkeypatch.setattr(machine, "GPUS", ())
    return shutil.copytree(exported, tmp_path / "run")


@pytest.fixture
def images(tmp_path):
    names = []
    for seed in range(6):
        path = tmp_path / f"{seed}.png"
        path.write_bytes(encoded(photograph(40, 50, seed), "PNG"))
        names.append(str(path))
    return names


def opened(run_dir, precision="auto", runtime="auto", device="auto"):
    return kept_runtime(run_dir, runtime, precision, device)


def test_the_answers_are_the_models(run_dir, images, capsys):
    answers = {}
    for runtime in ("auto", "torch"):
        words = ["predict", str(run_dir), *images, "--json", "--workers", "0", "--runtime", runtime]
        assert main([*words, "--precision", "float32"]) == 0
        lines = capsys.readouterr().out.splitlines()
        answers[runtime] = [json.loads(line) for line in lines]
    assert len(answers["auto"]) == len(images)
    for ours, theirs in zip(answers["auto"], answers["torch"], strict=True):
        assert ours["labels"] == theirs["labels"]
        np.testing.assert_allclose(ours["probabilities"], theirs["probabilities"], atol=1e-5)


def test_it_is_used_for_a_run_and_for_the_model_in_it(run_dir, images):
    for name in (run_dir, run_dir / "model"):
        runtime = runtime_of(request(str(name), tuple(images), {}))
        assert isinstance(runtime, FileRuntime) and runtime.path == run_dir / "model.onnx"
        assert isinstance(open_model(str(name)), FileRuntime)
    assert (
        runtime.made_of == json.loads((run_dir / "model.onnx.json").read_text())["kept"]["made_of"]
    )


def test_another_model_beside_it_is_answered_by_itself(run_dir, images):
    """Its file is of the folder model/ alone, whatever else is in the same directory."""
    save(classifier(seed=1), run_dir / "best")
    assert opened(run_dir / "best") is None
    assert isinstance(runtime_of(request(str(run_dir / "best"), tuple(images), {})), Eager)
    file = run_dir / "model.onnx"
    assert main(["export", str(run_dir / "best"), "-o", str(file)]) == 0
    assert not is_kept(file) and opened(run_dir) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"runtime": "torch"},
        {"precision": "bfloat16"},
        {"device": "mps"},
        {"device": "cuda"},
    ],
    ids=str,
)
def test_what_only_pytorch_does_is_pytorchs(run_dir, changes):
    assert opened(run_dir) is not None
    assert opened(run_dir, **changes) is None


@pytest.mark.parametrize("changes", [{"merge": 1}, {"crop": "native"}], ids=str)
def test_another_computation_is_pytorchs(run_dir, images, changes):
    assert isinstance(runtime_of(request(str(run_dir), tuple(images), changes)), Eager)


def test_what_it_looks_at_is_pytorchs(run_dir, images):
    runtime = runtime_of(request(str(run_dir), tuple(images), {}), looking=True)
    assert not isinstance(runtime, FileRuntime)
    assert isinstance(runtime_of(request(str(run_dir), tuple(images), {}), in_batches=True), Eager)


def test_a_machine_has_one_answer(run_dir, tmp_path, monkeypatch):
    """Where auto is bfloat16, or may be, or is a GPU's, the file answers only if it is asked for."""
    for flags in ({"avx2", "avx512_bf16"}, set()):
        monkeypatch.setattr(machine, "cpu_flags", lambda flags=flags: flags)
        assert opened(run_dir) is None
        assert opened(run_dir, "float32") is not None
    monkeypatch.setattr(machine, "GPUS", (str(tmp_path),))
    assert opened(run_dir, "float32") is None
    assert opened(run_dir, "float32", device="cpu") is not None


def test_what_bench_has_found_of_this_model_goes_before(run_dir):
    """Of another model, or what `vitkit faster` keeps of this one, says nothing about the fastest."""
    for measured in (classifier(seed=1), classifier()):
        folder = folder_of(measured)
        folder.mkdir(parents=True)
        (folder / "faster-0123456789abcdef.json").write_text("{}")
        assert opened(run_dir) is not None
        (folder / "fastest-float32.json").write_text("{}")
    assert opened(run_dir) is None


def test_it_is_of_one_model(run_dir, images, capsys):
    # People's text beside the model decides nothing
    (run_dir / "model" / "README.md").write_text("mine")
    assert opened(run_dir) is not None

    # Another model is answered by itself
    other = classifier(seed=1)
    save(other, run_dir / "model")
    assert opened(run_dir) is None and not is_kept(run_dir / "model.onnx")
    runtime = runtime_of(request(str(run_dir), tuple(images), {"precision": "float32"}))
    prepared = other.batch([photograph(40, 50)])
    with torch.inference_mode():
        expected = other.logits(prepared).numpy()
    np.testing.assert_allclose(runtime.logits(prepared.numpy()), expected, atol=1e-5)

    # And whoever asks why it is slower is told
    capsys.readouterr()
    runtime_of(request(str(run_dir), tuple(images), {}))
    assert "writes it again" not in capsys.readouterr().err
    runtime_of(request(str(run_dir), tuple(images), {"verbose": True}))
    call = f"vitkit.export({str(run_dir)!r}, output={str(run_dir / 'model.onnx')!r})"
    assert f"{call} writes it" in capsys.readouterr().err


def test_limits_for_unknown_images_are_part_of_the_model(run_dir):
    (run_dir / "model" / "unknown.safetensors").write_bytes(b"others")
    assert opened(run_dir) is None


def test_whoever_names_a_file_of_an_earlier_model_is_told(run_dir, images, tmp_path, capsys):
    words = ["predict", str(run_dir / "model.onnx"), images[0], "--workers", "0"]
    assert main(words) == 0
    assert "another model" not in capsys.readouterr().err
    save(classifier(seed=1), run_dir / "model")
    assert main(words) == 0
    assert f"vitkit export {run_dir} -o {run_dir}/model.onnx writes it" in capsys.readouterr().err

    # Taken somewhere else, it is a file like any other
    for name in ("model.onnx", "model.onnx.json"):
        shutil.copy(run_dir / name, tmp_path / name)
    words[1] = str(tmp_path / "model.onnx")
    assert main(words) == 0
    assert "another model" not in capsys.readouterr().err


@pytest.mark.parametrize("value, is_written", [("0", False), ("", True), ("no", True)])
def test_a_variable_of_the_environment_keeps_no_file(
    value, is_written, run_dir, monkeypatch, capsys
):
    monkeypatch.setattr(keeping, "auto_is_float32", lambda: True)
    monkeypatch.setenv("VITKIT_KEEP_ONNX", value)
    (run_dir / "model.onnx").unlink()
    keeping.keep(run_dir)
    assert (run_dir / "model.onnx").exists() is is_written
    assert ("only 0 means" in capsys.readouterr().err) is (value == "no")


def test_a_run_that_ends_replaces_no_file_of_somebodys(run_dir, monkeypatch, capsys):
    monkeypatch.setattr(keeping, "auto_is_float32", lambda: True)
    file = run_dir / "model.onnx"
    record = run_dir / "model.onnx.json"
    written = json.loads(record.read_text())
    del written["kept"]  # as one in another precision has none
    record.write_text(json.dumps(written))
    before = file.stat().st_mtime_ns
    keeping.keep(run_dir)
    assert file.stat().st_mtime_ns == before and not is_kept(file)
    assert f"{file} stays as it is" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error, sentence",
    [
        (RuntimeError("onnxscript is too new\nand more"), "PyTorch: onnxscript is too new\n"),
        (KeyboardInterrupt(), "model.onnx') writes it\n"),
    ],
    ids="fails interrupted".split(),
)
def test_a_run_ends_well_whatever_its_export_raises(run_dir, monkeypatch, capsys, error, sentence):
    """PyTorch and what converts for it may not fit each other, and people do not wait."""

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(keeping, "auto_is_float32", lambda: True)
    monkeypatch.setattr(torch.onnx, "export", fail)
    save(classifier(seed=1), run_dir / "model")
    keeping.keep(run_dir)
    assert capsys.readouterr().err.endswith(sentence)
    assert not is_kept(run_dir / "model.onnx")


@pytest.mark.parametrize("damage", ["cut", "no record", "record", "version", "metadata"])
def test_a_damaged_file_is_not_used(run_dir, damage, monkeypatch):
    file = run_dir / "model.onnx"
    record = run_dir / "model.onnx.json"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    if damage == "no record":
        record.unlink()
    if damage == "record":
        record.write_text('{"kept": []}')
    if damage == "version":
        monkeypatch.setattr(onnx_of_run, "__version__", "0.0.1")
    if damage == "metadata":  # even if the record is of these bytes
        file.write_bytes(b"no network")
        written = json.loads(record.read_text())
        onnx_of_run.tie(file, written["kept"]["files"], written["kept"]["made_of"])
    assert opened(run_dir) is None


def test_a_library_that_cannot_be_imported_leaves_it_to_pytorch(run_dir, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for module in (onnx_of_run, libraries):
        monkeypatch.setattr(module, "is_installed", lambda _: True)
    assert opened(run_dir) is None


def test_other_files_of_a_run_are_no_kept_ones(run_dir, tmp_path):
    (run_dir / "model.onnx").unlink()
    for words in (["-o", "other.onnx"], ["-o", "model.onnx", "--precision", "float16"]):
        words[1] = str(run_dir / words[1])
        assert main(["export", str(run_dir), *words]) == 0
        assert "kept" not in json.loads((run_dir / f"{words[1]}.json").read_text())
    assert opened(run_dir) is None


def test_a_run_writes_it_at_its_end(run_dir, monkeypatch, capsys):
    file = run_dir / "model.onnx"
    monkeypatch.setattr(keeping, "auto_is_float32", lambda: True)
    before = file.stat().st_mtime_ns
    keeping.keep(run_dir)
    assert file.stat().st_mtime_ns == before  # it is this model's already

    save(classifier(seed=1), run_dir / "model")
    keeping.keep(run_dir)
    assert is_kept(file) and opened(run_dir) is not None
    assert "answers come sooner, without PyTorch" in capsys.readouterr().err

    # Nothing is written where answers would not be computed by it, and a model without an answer has none
    file.unlink()
    monkeypatch.setattr(keeping, "auto_is_float32", lambda: False)
    keeping.keep(run_dir)
    assert not file.exists()
    monkeypatch.setattr(keeping, "auto_is_float32", lambda: True)
    save(
        Classifier(create("mu/8", image=(16, 24), classes=0), Preprocessing(size=(16, 24)), ()),
        run_dir / "model",
    )
    keeping.keep(run_dir)
    assert not file.exists()
    assert "no classification head" in capsys.readouterr().err


def test_finetuning_ends_with_it(photographs, tmp_path, monkeypatch, capsys):
    """From photographs to an answer, as on a laptop."""
    monkeypatch.setattr(machine, "cpu_flags", lambda: WITHOUT_BFLOAT16)
    monkeypatch.setattr(machine, "GPUS", ())
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    network = create(vit("mu/8", image=(32, 32), classes=3), seed=0)
    save(Classifier(network, Preprocessing(size=(32, 32)), ("a", "b", "c")), tmp_path / "weights")
    run_dir = tmp_path / "run"
    words = ["finetune", str(tmp_path / "weights"), str(photographs), "--minutes", "0.01"]
    assert main([*words, "--workdir", str(run_dir), "--device", "cpu"]) == 0
    assert "is kept beside the model" in capsys.readouterr().out
    runtime = runtime_of(request(str(run_dir), (str(photographs),), {}))
    assert isinstance(runtime, FileRuntime) and set(runtime.labels) == {"blue", "red"}
