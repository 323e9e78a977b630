"""The benchmarks run, and compare the same work: side_by_side.same_work stops them otherwise."""

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vitkit.train import Span

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def side_by_side(monkeypatch):
    pytest.importorskip("timm")
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import side_by_side

    return side_by_side


@pytest.mark.parametrize(
    ("script", "precisions"), [("forward", ["float32", "autocast", "bfloat16"]), ("step", ["float32", "autocast"])]
)
def test_a_row_of_every_precision(script, precisions, side_by_side, monkeypatch, tmp_path):
    output = tmp_path / "results.json"
    words = "--models mu/16 --batches 2 --modes eager --seconds-per-row 0 --output".split()
    monkeypatch.setattr(sys, "argv", [f"{BENCHMARKS}/{script}.py", *words, str(output)])
    monkeypatch.setattr(side_by_side, "TURN", 0)
    runpy.run_path(f"{BENCHMARKS}/{script}.py", run_name="__main__")
    text = output.read_text()
    result = json.loads(text)
    assert [row["precision"] for row in result["results"]] == precisions
    for row in result["results"]:
        assert set(row["images_per_second"]) == {"vitkit", "timm", "transformers", "torchvision"}
        low, high = row["ratio_95_percent"]
        assert row["rounds"] == 5 and 0 < low <= high
    assert str(tmp_path) not in text and str(BENCHMARKS) not in text
    assert result["command"].startswith(f"python benchmarks/{script}.py --models mu/16")


def test_other_weights_are_noticed(side_by_side):
    c = side_by_side.config("mu/16")
    models = side_by_side.stacks(c)
    images = torch.randn(2, 3, *c.image, generator=torch.Generator().manual_seed(0))
    side_by_side.same_work(models, images)
    with torch.no_grad():
        models["torchvision"].heads.head.bias += 1e-2
    with pytest.raises(AssertionError, match="torchvision"):
        side_by_side.same_work(models, images)


def test_pretraining_makes_its_table(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import pretraining

    model = replace(pretraining.BASE.model, width=24, depth=1, mlp=24, patch=8, heads=2)
    optim = replace(pretraining.BASE.optim, warmup=Span(1))
    monkeypatch.setattr(pretraining, "BASE", replace(pretraining.BASE, model=model, optim=optim))
    monkeypatch.setattr(pretraining, "LENGTH", Span(2))
    output = tmp_path / "result.json"
    words = (
        f"--data digits --few digits --workdir {tmp_path / 'runs'} --steps 2 --seeds 2 --device cpu --output {output}"
    )
    monkeypatch.setattr(sys, "argv", [f"{BENCHMARKS}/pretraining.py", *words.split()])
    pretraining.main()
    found = json.loads(output.read_text())
    assert str(tmp_path) not in output.read_text() and found["command"].startswith("python benchmarks/pretraining.py")
    assert [(row["from"], row["seed"]) for row in found["fine-tuning"]] == [
        ("scratch", 0), ("masked patches", 0), ("scratch", 1), ("masked patches", 1)
    ]  # fmt: skip
    assert found["pre-training"][-1]["test/loss"] > 0
    assert capsys.readouterr().out.count("| masked patches |") == 1
