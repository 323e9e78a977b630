"""Golden loss curves: what each objective's loss is, step by step, on the digits.

They hold whatever is between a recipe and its loss: data, augmentation, initial weights, dropout,
optimiser, schedule. A change that means to leave training as it is leaves these numbers as they
are; one that does not, writes them anew and says why: `GOLDEN=write python -m pytest
tests/objectives/test_golden.py`.
"""

import json
import os
import platform
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from packaging.version import Version

from vitkit.objectives import MaskedAutoencoder, MaskedPatches, SelfDistillation, Supervised
from vitkit.system.span import Span
from vitkit.training import run_recipe
from vitkit.training.record.metrics import read_metrics

GOLDEN = Path(__file__).with_name("golden.json")
STEPS = 12
TOLERANCE = 1e-4  # relative: processors round differently
OBJECTIVES = {
    "softmax": Supervised(),
    "sigmoid-mixup-cutmix": Supervised("sigmoid", off_target=0.01, mixup=0.2, cutmix=1.0),
    "masked-colour": MaskedPatches("colour"),
    "masked-pixels": MaskedPatches("pixels"),
    "autoencoder": MaskedAutoencoder(width=16, depth=1, heads=2),
    "distillation": SelfDistillation(
        outputs=48, hidden=32, bottleneck=16, local_views=2, local_size=4, last_layer_still=Span(4)
    ),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_losses_are_those_written_down(name, tiny, tmp_path, quiet):
    if platform.machine() != "x86_64":
        pytest.skip("PyTorch draws other dropout on other processors")
    if Version(torch.__version__) < Version("2.14"):
        pytest.skip(
            "the losses were written down with PyTorch 2.14, and older ones draw other numbers"
        )
    recipe = replace(
        tiny,
        model=replace(tiny.model, patch=2),
        objective=OBJECTIVES[name],
        data=replace(tiny.data, check=False),
        optim=replace(tiny.optim, lr=1e-2),
        length=Span(STEPS),
        micro_batch=26,
        log_every=1,
        evaluate_every=Span(0),
        save_every=Span(0),
    )
    run_recipe(recipe, tmp_path, "cpu", quiet)

    lines = read_metrics(tmp_path / "metrics.jsonl")
    losses = [line["loss"] for line in lines if line["event"] == "training"]
    golden = json.loads(GOLDEN.read_text("utf-8")) if GOLDEN.exists() else {}
    if os.environ.get("GOLDEN") == "write":
        golden[name] = losses
        GOLDEN.write_text(json.dumps(golden, indent=1) + "\n", "utf-8")
    assert losses == pytest.approx(golden[name], rel=TOLERANCE)
