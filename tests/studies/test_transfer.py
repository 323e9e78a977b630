"""The transfer protocol on the digits: which rate is chosen, what is written, and that nothing runs
twice."""

import json
import math
import shutil
from dataclasses import dataclass, replace

import pytest

from vitkit.evaluate import Eval, Metric
from vitkit.evaluate.metric import NATS, SHARE
from vitkit.objectives import MaskedPatches
from vitkit.studies import transfer
from vitkit.studies.transfer import best, select
from vitkit.system.span import Span
from vitkit.training import Data, Optim, Recipe
from vitkit.training.log import last_metrics


@pytest.fixture
def recipe():
    from vitkit.data import Augmentation, Preprocessing
    from vitkit.models import ViTConfig

    return Recipe(
        model=ViTConfig(width=24, depth=1, mlp=48, heads=2, patch=2, image=(8, 8), classes=0),
        data=Data(
            "digits",
            preprocessing=Preprocessing(size=(8, 8)),
            augmentation=Augmentation(crop="none"),
            workers=0,
        ),
        optim=Optim(lr=1e-9),
        length=Span(60),
        batch=50,
        evaluate_every=Span(60),
        save_every=Span(60),
    )


def test_the_better_rate_is_chosen_and_every_seed_runs_with_it(recipe, tmp_path):
    outcome = transfer(recipe, tmp_path, rates=(3e-3, 1e-6), seeds=2, device="cpu")
    assert outcome.lr == 3e-3 and outcome.selection[3e-3].beats(outcome.selection[1e-6])
    assert [metric.name for metric in outcome.runs.values()] == ["test/top1"] * 2
    assert list(outcome.runs) == [0, 1]
    values = [metric.value for metric in outcome.runs.values()]
    assert outcome.mean() == (
        pytest.approx(sum(values) / 2),
        pytest.approx(abs(values[0] - values[1]) / 2**0.5),
    )
    assert all(value > 0.25 for value in values)
    written = json.loads((tmp_path / "transfer.json").read_text())
    assert (written["lr"], written["mean"]) == (3e-3, outcome.mean()[0])
    assert set(written["selection"]) == {"0.003", "1e-06"}

    # Choosing never looked at the test part
    for run in ("select/lr-0.003", "select/lr-1e-06"):
        record = json.loads((tmp_path / run / "data.json").read_text())
        assert record["counts"] == {"train": 1295, "val": 143}
        assert last_metrics(tmp_path / run)
        assert not [name for name in last_metrics(tmp_path / run) if name.startswith("test")]
    for run in (".", "seed-1"):
        record = json.loads((tmp_path / run / "data.json").read_text())
        assert record["counts"] == {"train": 1438, "test": 359}

    changed = (tmp_path / "select/lr-0.003/metrics.jsonl").stat().st_mtime_ns
    shutil.rmtree(tmp_path / "seed-1" / "model")  # as if it had been killed before it ended
    assert transfer(recipe, tmp_path, rates=(3e-3, 1e-6), seeds=2, device="cpu") == outcome
    assert (tmp_path / "select/lr-0.003/metrics.jsonl").stat().st_mtime_ns == changed


def test_one_run_is_a_run_like_any_other(recipe, tmp_path):
    outcome = transfer(replace(recipe, length=Span(2), seed=5), tmp_path, device="cpu")
    assert (list(outcome.runs), outcome.selection, outcome.mean()[1]) == ([5], {}, 0.0)
    assert (tmp_path / "model").is_dir() and not (tmp_path / "select").exists()
    with pytest.raises(ValueError, match="seeds is 0"):
        transfer(recipe, tmp_path, seeds=0)


def test_a_rate_that_diverges_is_not_chosen_and_ends_nothing(recipe, tmp_path, capsys):
    wild = replace(recipe, optim=Optim("sgd", clip=0.0), length=Span(30), evaluate_every=Span(30))
    outcome = transfer(wild, tmp_path, rates=(0.1, 1e20), device="cpu")
    assert (outcome.lr, outcome.selection[1e20]) == (0.1, None)
    assert outcome.selection[0.1].value > 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "learning rate 1e+20 on held-out images failed, and has no value: 3 steps in a" in shown
    with pytest.raises(FloatingPointError, match="no learning rate of 1e[+]20 works"):
        transfer(wild, tmp_path, rates=(1e20,), device="cpu")


@pytest.mark.slow
def test_what_learns_without_labels_is_selected_by_its_loss(recipe, tmp_path):
    masked = replace(recipe, objective=MaskedPatches())
    outcome = transfer(masked, tmp_path, rates=(1e-9, 3e-3), device="cpu")
    losses = outcome.selection
    assert losses[3e-3].unit.better == "lower"
    assert outcome.lr == 3e-3 and losses[3e-3].value < losses[1e-9].value


def test_the_best_rate_by_the_metrics_own_direction():
    def measured(*values, unit):
        rates = (0.003, 0.01, 0.03)
        return {rate: Metric("x", value, unit) for rate, value in zip(rates, values, strict=True)}

    assert best(measured(0.9, 0.8, 0.9, unit=SHARE)) == 0.003  # of equal ones the lowest
    assert best(measured(0.9, 0.8, 0.8, unit=NATS)) == 0.01
    assert best(measured(0.1, math.nan, 0.2, unit=SHARE)) == 0.03
    assert best(measured(0.1, 0.2, 0.2, unit=SHARE) | {0.1: None}) == 0.01  # which failed
    with pytest.raises(ValueError, match="measures nothing on held-out images"):
        best({0.1: None})


@dataclass(frozen=True)
class Lost:
    """An evaluator whose metric is NaN, as the precision is if no image has a class."""

    def judges(self, target_kind):
        return True

    def measure(self, subject, part):
        yield Metric("map", math.nan, SHARE)


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_final_metric_that_is_nan_is_null_in_transfer_json(recipe, tmp_path, seeds):
    recipe = replace(recipe, length=Span(2), evals=(Eval(Lost()),))
    transfer(recipe, tmp_path, seeds=seeds, device="cpu")
    text = (tmp_path / "transfer.json").read_text()
    written = json.loads(text)
    assert "NaN" not in text
    assert written["mean"] is None and written["std"] is None
    assert written["runs"]["0"] == {
        "metric": "test/map", "value": None, "unit": "share", "note": "nan"
    }  # fmt: skip


def test_rates_that_learn_nothing_are_not_said_to_diverge(recipe, tmp_path):
    still = replace(recipe, length=Span(2))
    values = select(still, tmp_path, (1e-9, 1e-8), "cpu")
    assert None not in values.values()


def test_a_seed_that_fails_is_no_result(recipe, tmp_path):
    wild = replace(recipe, optim=Optim("sgd", lr=1e20, clip=0.0), length=Span(30))
    with pytest.raises(FloatingPointError, match="3 steps in a row were not finite"):
        transfer(wild, tmp_path, device="cpu")
    assert not (tmp_path / "transfer.json").exists()
