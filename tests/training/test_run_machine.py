"""A run computes as it began, and says so if it cannot."""

import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from runs import Eventful, assert_same_run, events

from vitkit.models import layers as dense
from vitkit.system import matmul
from vitkit.system.errors import Interrupted
from vitkit.system.span import Span
from vitkit.training import run_recipe
from vitkit.training.record.machine import MACHINE, restore_numerics

pytestmark = pytest.mark.skipif(not matmul.available(), reason="this PyTorch has no oneDNN")


@pytest.fixture(autouse=True)
def every_product(monkeypatch):
    """All dense layers are large enough for oneDNN, and nothing is chosen yet."""
    monkeypatch.delenv("VITKIT_MATMUL")
    monkeypatch.setattr(dense, "LEAST_WORK", 0)
    matmul.use(None)
    yield
    matmul.use(None)


def stopped(recipe, run_dir, console):
    with events(stop=[7]), pytest.raises(Interrupted):
        run_recipe(recipe, run_dir, "cpu", console)


@pytest.mark.slow
def test_a_run_continues_with_the_libraries_it_began_with(tiny, tmp_path, monkeypatch, capsys):
    """Though a measurement would now choose another one: the bits are those of an undisturbed run."""
    recipe = replace(tiny, objective=Eventful(), length=Span(12))
    monkeypatch.setattr(matmul, "measure", lambda: matmul.OneDnn(True, False, True))
    run_recipe(recipe, tmp_path / "undisturbed", "cpu", Console(quiet=True))
    stopped(recipe, tmp_path / "stopped", Console(quiet=True))

    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "another cache"))
    monkeypatch.setattr(matmul, "measure", lambda: matmul.NONE)
    matmul.use(None)
    run_recipe(recipe, tmp_path / "stopped", "cpu")
    assert_same_run(tmp_path / "stopped", tmp_path / "undisturbed")
    assert json.loads((tmp_path / "stopped" / MACHINE).read_text())["matmul"] == [True, False, True]
    assert "last bits" not in capsys.readouterr().err


def test_what_differs_is_said(tiny, tmp_path, monkeypatch, capsys):
    recipe = replace(tiny, objective=Eventful(), length=Span(12))
    monkeypatch.setenv("VITKIT_MATMUL", "onednn")
    stopped(recipe, tmp_path, Console(quiet=True))

    facts = json.loads((tmp_path / MACHINE).read_text())
    (tmp_path / MACHINE).write_text(json.dumps(facts | {"torch": "1.0", "device": "an abacus"}))
    monkeypatch.setenv("VITKIT_MATMUL", "torch")
    run_recipe(recipe, tmp_path, "cpu")
    output = " ".join(capsys.readouterr().err.split())
    assert "this run began on another machine" in output
    assert "device an abacus -> " in output and "PyTorch 1.0 -> " in output
    assert "dense layers by onednn -> torch" in output


@pytest.mark.parametrize(
    ("record", "continues", "sentence"),
    [
        (None, False, ""),
        (None, True, f"{MACHINE} is missing or damaged"),
        ({}, True, ""),
        ({"threads": 96, "ranks": 8}, True, "(threads a process 96 -> THREADS; processes 8 -> 1)"),
        ({"threads": 96}, False, ""),
    ],
)
def test_what_a_run_began_on_is_compared_only_when_it_continues(
    record, continues, sentence, tmp_path, monkeypatch
):
    monkeypatch.setattr(matmul, "measure", lambda: matmul.NONE)
    cpu = torch.device("cpu")
    if record is not None:
        restore_numerics(tmp_path, cpu, "float32", False, [].append)
        facts = json.loads((tmp_path / MACHINE).read_text())
        (tmp_path / MACHINE).write_text(json.dumps(facts | record))
    said = []
    restore_numerics(tmp_path, cpu, "float32", continues, said.append)
    assert len(said) == bool(sentence)
    assert sentence.replace("THREADS", str(torch.get_num_threads())) in "".join(said)
    written = json.loads((tmp_path / MACHINE).read_text())
    assert {"device", "torch", "threads", "ranks", "matmul"} == written.keys()
    if continues and record:
        assert written["threads"] == 96  # of the beginning


@pytest.mark.parametrize("content", ["", "[]", '{"matmul": ["yes"]}', '{"matmul": 3}'])
def test_a_damaged_record_stops_nothing(tiny, tmp_path, content, monkeypatch):
    monkeypatch.setattr(matmul, "measure", lambda: matmul.NONE)
    recipe = replace(tiny, objective=Eventful(), length=Span(8))
    stopped(recipe, tmp_path, Console(quiet=True))
    (tmp_path / MACHINE).write_text(content)
    run_recipe(recipe, tmp_path, "cpu", Console(quiet=True))
