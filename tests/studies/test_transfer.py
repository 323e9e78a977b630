"""The transfer protocol on the digits: what is chosen, what is kept, and that nothing runs twice."""

import json
import shutil
from dataclasses import replace

import pytest

from vitkit.objectives import MaskedPatches
from vitkit.studies import transfer
from vitkit.studies.transfer import Transfer, best, select
from vitkit.system.span import Span
from vitkit.train import Data, Optim, Recipe
from vitkit.train.log import read_metrics


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
        length=Span(90),
        batch=50,
        evaluate_every=Span(90),
        save_every=Span(90),
    )


def test_the_better_rate_is_chosen_and_every_seed_runs_with_it(recipe, tmp_path):
    found = transfer(recipe, tmp_path, rates=(3e-3, 1e-6), seeds=2, device="cpu")
    assert found.lr == 3e-3 == max(found.selection, key=found.selection.get)
    assert found.metric() == "test/top1" and list(found.runs) == [0, 1]
    values = [metrics["test/top1"] for metrics in found.runs.values()]
    assert found.mean() == (
        pytest.approx(sum(values) / 2),
        pytest.approx(abs(values[0] - values[1]) / 2**0.5),
    )
    assert all(value > 0.25 for value in values)
    kept = json.loads((tmp_path / "transfer.json").read_text())
    assert (kept["lr"], kept["mean"]) == (3e-3, found.mean()[0])
    assert set(kept["selection"]) == {"0.003", "1e-06"}
    counts = {
        name: json.loads((tmp_path / name / "data.json").read_text())["counts"]
        for name in ("select/lr-0.003", "select/lr-1e-06", ".", "seed-1")
    }
    assert counts["select/lr-0.003"] == {"train": 1295, "val": 143}
    assert counts["."] == counts["seed-1"] == {"train": 1438, "test": 359}
    for run in ("select/lr-0.003", "select/lr-1e-06"):  # choosing never looked at the test part
        lines = read_metrics(tmp_path / run / "metrics.jsonl")
        assert not [name for line in lines for name in line if name.startswith("test")]

    written = (tmp_path / "select/lr-0.003/metrics.jsonl").stat().st_mtime_ns
    shutil.rmtree(tmp_path / "seed-1" / "model")  # as if it had been killed before it ended
    assert transfer(recipe, tmp_path, rates=(3e-3, 1e-6), seeds=2, device="cpu") == found
    assert (tmp_path / "select/lr-0.003/metrics.jsonl").stat().st_mtime_ns == written


def test_one_run_is_a_run_like_any_other(recipe, tmp_path):
    found = transfer(replace(recipe, length=Span(2), seed=5), tmp_path, device="cpu")
    assert (list(found.runs), found.selection, found.mean()[1]) == ([5], {}, 0.0)
    assert (tmp_path / "model").is_dir() and not (tmp_path / "select").exists()
    with pytest.raises(ValueError, match="seeds is 0"):
        transfer(recipe, tmp_path, seeds=0)


def test_a_rate_that_diverges_is_not_chosen_and_ends_nothing(recipe, tmp_path, capsys):
    wild = replace(recipe, optim=Optim("sgd", clip=0.0), length=Span(30), evaluate_every=Span(30))
    found = transfer(wild, tmp_path, rates=(0.1, 1e20), device="cpu")
    assert (found.lr, found.selection[1e20]) == (0.1, None) and found.selection[0.1] > 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "learning rate 1e+20 on held-out images failed, and has no value: 3 steps in a" in shown
    with pytest.raises(FloatingPointError, match="no learning rate of 1e[+]20 works"):
        transfer(wild, tmp_path, rates=(1e20,), device="cpu")


def test_only_what_learns_labels_is_selected_by_them(recipe, tmp_path):
    with pytest.raises(
        ValueError, match="selected by accuracy, which MaskedPatches does not learn"
    ):
        transfer(replace(recipe, objective=MaskedPatches()), tmp_path, rates=(0.1,), device="cpu")


def test_of_equal_rates_the_lowest_is_chosen_and_none_that_failed():
    assert best({0.03: 0.9, 0.003: 0.9, 0.01: 0.8, 0.1: None}) == 0.003


def test_without_a_held_out_part_there_is_no_mean():
    assert Transfer(0.1, {}, {0: {}}).metric() == ""


def test_rates_that_learn_nothing_are_not_said_to_diverge(recipe, tmp_path):
    still = replace(recipe, length=Span(2))
    values = select(still, tmp_path, (1e-9, 1e-8), "cpu")
    assert None not in values.values()


def test_a_seed_that_fails_is_no_result(recipe, tmp_path):
    wild = replace(recipe, optim=Optim("sgd", lr=1e20, clip=0.0), length=Span(30))
    with pytest.raises(FloatingPointError, match="3 steps in a row were not finite"):
        transfer(wild, tmp_path, device="cpu")
    assert not (tmp_path / "transfer.json").exists()
