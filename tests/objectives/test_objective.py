"""An objective is one file, wherever it lies: trained by a recipe, named in what is saved, set on
the command line."""

import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from runs import batch_of, random_levels, read_json, state_of

from vitkit.cli.entry import main
from vitkit.data import Preprocessing
from vitkit.evaluation import Eval, Neighbours
from vitkit.models import create
from vitkit.objectives import (
    MaskedAutoencoder,
    MaskedPatches,
    Objective,
    SelfDistillation,
    Supervised,
)
from vitkit.objectives.supervised import sigmoid_cross_entropy
from vitkit.recipes import recipe
from vitkit.system.span import Span
from vitkit.training import differences, run_recipe, to_json
from vitkit.training.record.values import class_name
from vitkit.training.step import gradient

PAGE = Path(__file__).parents[2] / "docs" / "pretraining.md"
OTHER = '''

@dataclass(frozen=True)
class Other(Focal):
    """Another class, with the same settings."""


def other():
    return replace(digits(), objective=Other())
'''
QUICK = "--length 2steps --optim.warmup 0 --batch 16 --data.no-check --device cpu".split()


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The objective that the documentation shows, and another one."""
    (focal,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "mine.py").write_text(focal + OTHER)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mine.py"


def test_one_of_ones_own_is_trained_from_a_file(file, capsys):
    """And another class with the same settings is another recipe: its run is not taken for this
    one's."""
    words = ["--objective.gamma", "3", "--workdir", "run", *QUICK]
    assert main(["train", "mine.py:recipe", *words]) == 0
    ran = read_json(file.parent / "run" / "recipe.json")
    assert ran["objective"] == {"class": "mine.py:Focal", "gamma": 3.0}
    assert main(["train", str(file), *words]) == 1  # no function is named
    capsys.readouterr()
    assert main(["train", "mine.py:other", *words]) == 1
    assert "objective.class: mine.py:Focal -> mine.py:Other" in capsys.readouterr().err
    assert main(["train", f"{file}:recipe", *words]) == 0
    assert "this run is finished" in capsys.readouterr().out


@pytest.mark.slow
def test_its_settings_are_on_the_command_line(file):
    """Without a word of the library that reads it, on standard error or as a warning."""
    command = [sys.executable, "-W", "error", "-m", "vitkit", "train", "mine.py:recipe"]
    command.append("--help-all")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    assert "--objective.gamma" in done.stdout and "How much less; 0 is" in done.stdout


def test_what_is_saved_names_what_is_not_declared(file, tiny):
    saved = to_json(recipe("mine.py:recipe"))
    assert saved["objective"]["class"] == "mine.py:Focal"
    assert saved["model"]["class"] == "ViTConfig" and "class" not in saved["optim"]
    assert to_json(tiny)["objective"]["class"] == "Supervised"

    @dataclass(frozen=True)
    class Mine(Neighbours):
        pass

    both = [to_json(replace(tiny, evals=(Eval(kind(k=5)),))) for kind in (Neighbours, Mine)]
    (text,) = differences(*both, free=True)  # a run may go on with other evaluators
    assert text == f"evals.0.evaluator.class: Neighbours -> {class_name(Mine)}"


@pytest.mark.parametrize("objective", [Supervised(), MaskedPatches(), SelfDistillation()])
def test_ours_are_objectives(objective):
    assert isinstance(objective, Objective)
    assert len(objective.evaluators("class")) == 1
    assert objective.head("class", 7) in (0, 7)


def test_two_in_one_directory_are_two_recipes(tiny, quiet, tmp_path):
    tiny = replace(tiny, length=Span(2), optim=replace(tiny.optim, warmup=Span(0)))
    run_recipe(replace(tiny, objective=MaskedPatches()), tmp_path, "cpu", quiet)
    with pytest.raises(ValueError, match=r"objective.class: MaskedPatches -> Supervised"):
        run_recipe(tiny, tmp_path, "cpu", quiet)


DISTILLED = SelfDistillation(outputs=40, hidden=32, bottleneck=8, local_views=2, local_size=16)
WITHOUT_LABELS = [
    MaskedPatches(), MaskedPatches("colours"), MaskedPatches("pixels"),
    MaskedAutoencoder(width=16, depth=1, heads=2), DISTILLED,
]  # fmt: skip


@pytest.mark.parametrize("objective", WITHOUT_LABELS, ids=lambda each: type(each).__name__)
def test_micro_batches_are_the_batch(objective, tiny):
    """Loss and gradients; what a learner keeps from a step, such as a teacher's centre, too."""
    model = replace(tiny.model, patch=8, image=(32, 32), dropout=0, stochastic_depth=0)
    data = replace(tiny.data, preprocessing=Preprocessing(size=(32, 32)))
    recipe = replace(tiny, model=model, data=data, objective=objective, batch=8)
    results = []
    for micro in (8, 3):
        torch.manual_seed(0)
        learner = objective.learner(create(model, seed=0), data.preprocessing)
        if isinstance(objective, MaskedPatches):  # its new layer is zero
            torch.nn.init.normal_(learner.predict.weight)
        state = state_of(recipe, learner)
        batch = batch_of(random_levels(8, (32, 32)))
        loss = gradient(replace(recipe, micro_batch=micro), state, batch)
        learner.updated(1, 100)
        gradients = [p.grad for p in learner.parameters() if p.grad is not None]
        results.append([*loss, *gradients, *learner.buffers()])
    assert results[0][1] > 0
    torch.testing.assert_close(*results, atol=1e-6, rtol=1e-4)


def test_unknown_labels_add_nothing_to_the_loss():
    """NaN: no loss and no gradient, also if classes are smoothed."""
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    truth = (torch.arange(18).reshape(6, 3) % 3 == 0).float()
    unknown = torch.arange(18).reshape(6, 3) % 4 == 1
    objective = Supervised("sigmoid", label_smoothing=0.1, off_target=0.01)
    learner = objective.learner(torch.nn.Identity())
    targets = learner.spread(learner.as_rows(truth.masked_fill(unknown, torch.nan)))
    loss = sigmoid_cross_entropy(logits, targets)
    loss.backward()
    each = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, learner.spread(truth), reduction="none"
    )
    torch.testing.assert_close(loss, each[~unknown].sum() / 6)
    assert (logits.grad[unknown] == 0).all() and (logits.grad[~unknown] != 0).all()
