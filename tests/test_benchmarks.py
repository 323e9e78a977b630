"""The benchmarks run, and compare the same work: side_by_side.same_work stops them otherwise."""

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vitkit.system.span import Span

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def side_by_side(monkeypatch):
    pytest.importorskip("timm")
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import side_by_side

    return side_by_side


@pytest.mark.parametrize(
    ("script", "precisions"),
    [("forward", ["float32", "autocast", "bfloat16"]), ("step", ["float32", "autocast"])],
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

    laptop = pretraining.SIZES["laptop"]
    model = replace(laptop.model, width=24, depth=1, mlp=24, patch=8, heads=2)
    small = replace(laptop, model=model, optim=replace(laptop.optim, warmup=Span(1)))
    monkeypatch.setitem(pretraining.SIZES, "laptop", small)
    output = tmp_path / "result.json"
    words = "--data digits --target digits --ways scratch masked supervised --side 40 --steps 5 --length 5steps --seeds 2"
    words += f" --device cpu --workdir {tmp_path / 'runs'} --output {output}"
    monkeypatch.setattr(sys, "argv", [f"{BENCHMARKS}/pretraining.py", *words.split()])
    pretraining.main()
    found = json.loads(output.read_text())
    assert str(tmp_path) not in output.read_text() and found["command"].startswith(
        "python benchmarks/pretraining.py"
    )
    ways = ["scratch", "masked", "supervised"]
    assert [(row["from"], row["seed"]) for row in found["fine-tuning"]] == [
        (way, s) for s in (0, 1) for way in ways
    ]
    assert [line["step"] for line in found["pre-training"]["masked"]] == [1, 2, 3, 4, 5]
    assert "test/top1" in found["pre-training"]["supervised"][-1]
    assert (
        "from 4 x 4 to 5 x 5 patches" in (out := capsys.readouterr().out)
        and out.count("| supervised |") == 1
    )


def test_sharding_is_compared_with_none(monkeypatch, tmp_path):
    """One rank under FSDP2 beside none; the script itself stops where their losses differ."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import side_by_side

    monkeypatch.setattr(side_by_side, "TURN", 0)
    output = tmp_path / "result.json"
    words = f"--models mu/16 --batches 2 --seconds-per-row 0 --output {output}"
    monkeypatch.setattr(sys, "argv", [f"{BENCHMARKS}/sharding.py", *words.split()])
    runpy.run_path(f"{BENCHMARKS}/sharding.py", run_name="__main__")
    (row,) = json.loads(output.read_text())["results"]
    assert set(row["images_per_second"]) == {"sharded", "plain"} and row["rounds"] == 5
    assert not torch.distributed.is_initialized()
