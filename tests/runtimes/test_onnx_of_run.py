"""To which model the ONNX file of a run belongs: by digests, whatever is in the files.

test_kept.py asks real files and runs.
"""

import json

import pytest

from vitkit.runtimes import digest_of_folder, is_kept, onnx_of_run, run_of, tie, was_kept
from vitkit.runtimes.onnx_of_run import is_of_an_earlier_model


@pytest.fixture
def run_dir(tmp_path):
    """A run with a file that was tied to its model."""
    (tmp_path / "model").mkdir()
    for name in ("recipe.json", "model/config.json", "model/model.safetensors", "model/README.md"):
        (tmp_path / name).write_text(name)
    (tmp_path / "model.onnx").write_bytes(b"a graph")
    (tmp_path / "model.onnx.json").write_text(json.dumps({"precision": "float32"}))
    tie(tmp_path / "model.onnx", digest_of_folder(tmp_path), "the classifier's digest")
    return tmp_path


def test_it_is_of_the_model_that_it_was_tied_to(run_dir):
    assert is_kept(run_dir / "model.onnx") and not is_of_an_earlier_model(run_dir / "model.onnx")
    written = json.loads((run_dir / "model.onnx.json").read_text())
    assert written["precision"] == "float32"
    assert written["kept"]["made_of"] == "the classifier's digest"
    for name in (run_dir, run_dir / "model"):
        assert run_of(name) == run_dir
    (run_dir / "model/README.md").write_text("words for people decide no answer")
    assert is_kept(run_dir / "model.onnx")


@pytest.mark.parametrize("name", ["model/config.json", "model/model.safetensors", "model/new.json"])
def test_it_is_of_no_other_model(name, run_dir):
    (run_dir / name).write_text("another model's")
    assert not is_kept(run_dir / "model.onnx")
    assert was_kept(run_dir / "model.onnx") and is_of_an_earlier_model(run_dir / "model.onnx")


def test_neither_another_file_nor_another_version_is_it(run_dir, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(onnx_of_run, "__version__", "0.0.0")
        assert not is_kept(run_dir / "model.onnx")
    assert is_kept(run_dir / "model.onnx")
    (run_dir / "model.onnx").write_bytes(b"another graph")
    assert not is_kept(run_dir / "model.onnx") and was_kept(run_dir / "model.onnx")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"kept": 3}', '{"kept": {"files": 1}}'])
def test_a_record_that_says_nothing_ties_nothing(text, run_dir):
    (run_dir / "model.onnx.json").write_text(text)
    assert not is_kept(run_dir / "model.onnx")


def test_no_other_folder_is_a_runs(run_dir, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (run_dir / "model").rename(elsewhere / "model")
    assert run_of(elsewhere / "model") is None and run_of(run_dir / "best") is None
    assert not is_kept(run_dir / "model.onnx")
    assert not is_of_an_earlier_model(run_dir / "model.onnx")  # no model is beside it
