"""docs/functions.ipynb calls the function of every command, on photographs, and runs."""

import ast
import json
import re
from pathlib import Path

import pytest
import torch

import vitkit
from vitkit.cli.table import COMMANDS
from vitkit.data import Preprocessing, open_source
from vitkit.weights.proof import convert_weights

NOTEBOOK = Path(__file__).parents[2] / "docs/functions.ipynb"
WEIGHTS = "vit_tiny_patch16_224.safetensors"
SUITE = "[tasks.photos]\n"


def cells() -> list[str]:
    """The code of its cells."""
    every = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in every if cell["cell_type"] == "code"]


def test_it_calls_every_verb():
    called = set()
    for cell in cells():
        for node in ast.walk(ast.parse(cell)):
            if isinstance(node, ast.Call):
                called.add(ast.unparse(node.func))
    text = NOTEBOOK.read_text()
    called |= {f"vitkit.{name}" for name in re.findall(r"`vitkit\.(\w+)\(", text)}
    assert {f"vitkit.{command.function}" for command in COMMANDS} <= called


@pytest.fixture
def folder(tmp_path, monkeypatch, shared):
    """Real photographs of ants and bees in folders, a random model of 32 pixels, and a suite."""
    monkeypatch.chdir(tmp_path)
    source = open_source(str(shared("data/ants_bees-test.parquet")))
    counts = {0: 0, 1: 0}
    for i in range(len(source)):
        data, target = source[i]
        counts[target] += 1
        part = "train" if counts[target] <= 8 else "test"
        if counts[target] > 12:
            continue
        file = Path("photos", part, ("ant", "bee")[target], f"{i}.jpg")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    model = vitkit.create("Ti/16", image=(32, 32), classes=3, gelu="erf", depth=2, seed=0).eval()
    torch.nn.init.normal_(model.head.weight, std=0.1, generator=torch.Generator().manual_seed(0))
    classifier = vitkit.Classifier(model, Preprocessing(size=(32, 32)), ("cat", "dog", "owl"))
    convert_weights(classifier, Path(WEIGHTS), "timm")
    Path("mine.toml").write_text(SUITE)
    return tmp_path


@pytest.mark.slow
def test_it_runs_and_shows_every_result(folder, capsys):
    """Each result is text, HTML, and a table where it has rows; nothing is printed."""
    pytest.importorskip("onnxscript")
    pytest.importorskip("pandas")
    names = {}
    for cell in cells():
        *lines, last = ast.parse(cell).body
        exec(compile(ast.Module(lines, []), NOTEBOOK.name, "exec"), names)
        if not isinstance(last, ast.Expr):
            exec(compile(ast.Module([last], []), NOTEBOOK.name, "exec"), names)
            continue
        value = eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names)
        if type(value).__module__.startswith("vitkit."):
            assert str(value) and value._repr_html_(), cell
            if hasattr(value, "rows"):
                assert len(value.to_frame()) == len(value.rows()), cell
    out, _ = capsys.readouterr()
    assert out == ""
    assert 0 <= names["evaluation"].accuracy <= 1
    assert names["made"].classifier.labels == ("ant", "bee")
    assert {path.name for path in Path("sorted").iterdir()} <= {"ant", "bee", "unsure", "unknown"}
    for name in (
        "report.html",
        "review.html",
        "model.onnx",
        "features.npz",
        "runs/small/report.html",
    ):
        assert Path(name).exists(), name
