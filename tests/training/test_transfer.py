"""The transfer protocol on the digits: which rate is chosen, what is written, and that nothing runs
twice."""

import json
import math
import shutil
from dataclasses import dataclass, replace

import pytest
from margins import at_least

from vitkit.data import Augmentation
from vitkit.evaluation import NATS, SHARE, Eval, Metric
from vitkit.objectives import MaskedPatches
from vitkit.recipes import Optim, Recipe
from vitkit.system.span import Span
from vitkit.training import Transfer, run_recipe, transfer, transfer_tables
from vitkit.training.grids.selection import Regularisation, best, select
from vitkit.training.grids.transfer_protocol import _final_cells, _on_all_but_test
from vitkit.training.record.metrics import last_metrics, read_metrics


@pytest.fixture
def recipe(tiny):
    """Whose rate learns nothing."""
    end = Span(30)
    plain = replace(tiny.model, depth=1, dropout=0.0, stochastic_depth=0.0)
    data = replace(tiny.data, augmentation=Augmentation(crop="none"))
    recipe = Recipe(plain, data, optim=Optim(lr=1e-9), length=end, batch=50)
    return replace(recipe, evaluate_every=end, save_every=end)


@pytest.mark.slow
def test_the_better_rate_is_chosen_and_every_seed_runs_with_it(recipe, tmp_path):
    outcome = transfer(recipe, tmp_path, rates=(1e-2, 1e-6), seeds=2, device="cpu")
    assert outcome.lr == 1e-2 and outcome.selection[1e-2].beats(outcome.selection[1e-6])
    assert [metric.name for metric in outcome.runs.values()] == ["test/top1"] * 2
    assert list(outcome.runs) == [0, 1]
    values = [metric.value for metric in outcome.runs.values()]
    assert outcome.mean() == (
        pytest.approx(sum(values) / 2),
        pytest.approx(abs(values[0] - values[1]) / 2**0.5),
    )
    at_least(values, 0.25)
    written = json.loads((tmp_path / "transfer.json").read_text())
    assert (written["lr"], written["mean"]) == (1e-2, outcome.mean()[0])
    assert set(written["selection"]) == {"0.01", "1e-06"}

    # Choosing never looked at the test part
    for run in ("select/lr-0.01", "select/lr-1e-06"):
        record = json.loads((tmp_path / run / "data.json").read_text())
        assert record["counts"] == {"train": 1295, "val": 143}
        assert last_metrics(tmp_path / run)
        assert not [name for name in last_metrics(tmp_path / run) if name.startswith("test")]
    for run in (".", "seed-1"):
        record = json.loads((tmp_path / run / "data.json").read_text())
        assert record["counts"] == {"train": 1438, "test": 359}

    changed = (tmp_path / "select/lr-0.01/metrics.jsonl").stat().st_mtime_ns
    shutil.rmtree(tmp_path / "seed-1" / "model")  # as if it had been killed before it ended
    assert transfer(recipe, tmp_path, rates=(1e-2, 1e-6), seeds=2, device="cpu") == outcome
    assert (tmp_path / "select/lr-0.01/metrics.jsonl").stat().st_mtime_ns == changed


def test_one_run_is_a_run_like_any_other(recipe, tmp_path):
    outcome = transfer(replace(recipe, length=Span(2), seed=5), tmp_path, device="cpu")
    assert (list(outcome.runs), outcome.selection, outcome.mean()[1]) == ([5], {}, 0.0)
    assert (tmp_path / "model").is_dir() and not (tmp_path / "select").exists()
    with pytest.raises(ValueError, match="`seeds` is 0"):
        transfer(recipe, tmp_path, seeds=0)


def test_a_rate_that_diverges_is_not_chosen_and_ends_nothing(recipe, tmp_path, capsys):
    wild = replace(recipe, optim=Optim("sgd", clip=0.0), length=Span(12), evaluate_every=Span(12))
    outcome = transfer(wild, tmp_path, rates=(0.1, 1e20), device="cpu")
    assert (outcome.lr, outcome.selection[1e20]) == (0.1, None)
    assert outcome.selection[0.1].value > 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "learning rate 1e+20 on held-out images failed, and has no value: 3 steps in a" in shown
    with pytest.raises(FloatingPointError, match="no learning rate of 1e[+]20 works"):
        select(wild, tmp_path, (1e20,), "cpu")


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
    with pytest.raises(ValueError, match="no evaluator for held-out images"):
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


def test_a_seed_that_fails_is_no_result(recipe, tmp_path):
    wild = replace(recipe, optim=Optim("sgd", lr=1e20, clip=0.0), length=Span(30))
    with pytest.raises(FloatingPointError, match="3 steps in a row were not finite"):
        transfer(wild, tmp_path, device="cpu")
    assert not (tmp_path / "transfer.json").exists()


def test_an_error_of_the_settings_ends_the_selection_at_the_first_run(recipe, tmp_path, capsys):
    """It would be every candidate's. One that diverges lets the others go on."""
    wrong = replace(recipe, data=replace(recipe.data, source=str(tmp_path / "photoz")))
    with pytest.raises(ValueError, match="photoz"):
        transfer(wrong, tmp_path / "run", rates=(1e-3, 3e-3), device="cpu")
    said = capsys.readouterr().err
    assert "learning rate 0.001 on held-out images (1 of 2)" in said
    assert "failed" not in said and "(2 of 2)" not in said
    assert not (tmp_path / "run/select/lr-0.003").exists()
    with pytest.raises(ValueError, match="`best='val/top1'`: .* choose from"):
        unlabelled = replace(recipe, best="val/top1", objective=MaskedPatches())
        transfer(unlabelled, tmp_path / "best", rates=(1e-3, 3e-3), device="cpu")
    assert "(2 of 2)" not in capsys.readouterr().err


def test_seeds_that_cannot_run_are_said_once(recipe, tmp_path, capsys):
    with pytest.raises(ValueError, match="`micro_batch` -1"):
        transfer(replace(recipe, micro_batch=-1), tmp_path, seeds=3, device="cpu")
    assert "(2 of 3)" not in capsys.readouterr().err


def test_the_final_directory_is_looked_at_before_anything_is_trained(recipe, tmp_path):
    quick = replace(recipe, length=Span(2))
    rates = (1e-3, 3e-3)
    transfer(quick, tmp_path / "run", rates=rates, seeds=2, device="cpu")

    # Another recipe: refused with what differs, and nothing is trained for it
    shutil.move(tmp_path / "run/select", tmp_path / "select")
    for other in (replace(quick, batch=25), replace(quick, length=Span(1, "epochs"))):
        with pytest.raises(
            ValueError, match=r"run holds a run of another recipe .(batch|len)[^;]*."
        ):
            transfer(other, tmp_path / "run", rates=rates, device="cpu")
    with pytest.raises(ValueError, match=r"another recipe .data.hold_out: 0.1 -> 0.2."):
        data = replace(quick.data, hold_out=0.2)
        transfer(replace(quick, data=data), tmp_path / "run", rates=rates, device="cpu")

    # Rates among which there is not the one that ran; and regularisation
    with pytest.raises(ValueError, match=r"another recipe .optim.lr: 0.00\d+ -> 0.1."):
        transfer(quick, tmp_path / "run", rates=(0.1, 0.2), device="cpu")
    with pytest.raises(ValueError, match=r"another recipe .optim.weight_decay: 0.0 -> 0.2."):
        decays = Regularisation(weight_decays=(0.7,))
        own = replace(quick, optim=replace(quick.optim, weight_decay=0.2))
        transfer(own, tmp_path / "run", rates, 1, "cpu", decays)
    with pytest.raises(ValueError, match="seed-1 holds a run of another recipe"):
        shutil.rmtree(tmp_path / "run/seed-1")
        run_recipe(replace(quick, seed=9), tmp_path / "run/seed-1", "cpu")
        transfer(quick, tmp_path / "run", rates=rates, seeds=2, device="cpu")
    assert not (tmp_path / "run/select").exists()

    # Somebody's files, and a file
    (tmp_path / "mine/model").mkdir(parents=True)
    with pytest.raises(ValueError, match="mine holds model, which is not from a run"):
        transfer(quick, tmp_path / "mine", rates=rates, device="cpu")
    with pytest.raises(ValueError, match="is a file, and a run is a directory"):
        transfer(quick, tmp_path / "run/recipe.json", rates=rates, device="cpu")


@pytest.mark.slow
def test_selection_runs_serve_another_best(recipe, tmp_path, capsys):
    """Which weights a run saves decides no step of it. The final run is another one, so it needs a
    directory of its own, to which they may be copied."""
    quick = replace(recipe, length=Span(12), evaluate_every=Span(3))
    rates = (1e-3, 3e-3)
    transfer(quick, tmp_path / "a", rates=rates, device="cpu")
    by_validation = replace(quick, best="val/top1")
    with pytest.raises(ValueError, match=r"best: .* val/top1.*copy \S*a/select into the other one"):
        transfer(by_validation, tmp_path / "a", rates=rates, device="cpu")

    shutil.copytree(tmp_path / "a/select", tmp_path / "b/select")
    capsys.readouterr()
    outcome = transfer(by_validation, tmp_path / "b", rates=rates, device="cpu")
    assert capsys.readouterr().err.count("finished before") == 2
    for rate, metric in outcome.selection.items():
        lines = read_metrics(tmp_path / f"b/select/lr-{rate:g}/metrics.jsonl")
        values = [line["metrics"]["val/top1"].value for line in lines if "metrics" in line]
        assert len(values) == 4 and metric.value == max(values)

    # And back
    shutil.copytree(tmp_path / "b/select", tmp_path / "c/select")
    last = select(quick, tmp_path / "c", rates, "cpu")
    for rate, metric in last.items():
        assert metric == last_metrics(tmp_path / f"c/select/lr-{rate:g}")["val/top1"]

    # A run that ends by it is another run
    patient = replace(by_validation, early_stop=5)
    with pytest.raises(ValueError, match="lr-0.001 holds a run of another recipe .best"):
        select(patient, tmp_path / "c", rates, "cpu")


# What is shown of it


def shown(outcome):
    """The cells of the tables and the sentences."""
    lines = []
    for part in transfer_tables(outcome):
        if isinstance(part, str):
            lines.append(part)
        else:
            heads = [column.header for column in part.columns]
            rows = zip(*(column.cells for column in part.columns), strict=True)
            lines += [tuple(heads), *map(tuple, rows)]
    return lines


def top1(value):
    return Metric("test/top1", value, SHARE)


def test_what_was_tried_is_shown_with_what_was_chosen_and_every_seed():
    outcome = Transfer(
        lr=0.01,
        selection={0.001: top1(0.5), 0.01: top1(0.75), 0.1: None},
        runs={0: top1(0.7), 1: top1(0.8)},
        regularised="dropout 0.1",
        regularisation=(("as it is", top1(0.6)), ("dropout 0.1", top1(0.65))),
    )
    assert shown(outcome) == [
        ("learning rate", "test/top1", ""),
        ("0.001", "50.00 %", ""),
        ("0.01", "75.00 %", "chosen"),
        ("0.1", "failed", ""),
        ("regularisation", "test/top1", ""),
        ("as it is", "60.00 %", ""),
        ("dropout 0.1", "65.00 %", "chosen"),
        ("seed", "test/top1"),
        ("0", "70.00 %"),
        ("1", "80.00 %"),
        "test/top1: 75.00 % ± 7.07 % (mean and standard deviation of 2 seeds)",
    ]


@pytest.mark.parametrize(("chosen", "is_told"), [(0.001, True), (0.01, False), (0.1, True)])
def test_a_best_rate_at_an_end_of_those_tried_is_told(chosen, is_told):
    selection = {rate: top1(0.5) for rate in (0.001, 0.01, 0.1)}
    lines = shown(Transfer(chosen, selection, {0: top1(0.5)}))
    told = f"the best rate, {chosen:g}, is at the end of those tried: try beyond it with `rates`"
    assert (told in lines) == is_told
    assert shown(Transfer(0.1, {}, {0: top1(0.5)})) == []
    assert shown(Transfer(0.1, {}, {0: top1(0.5), 1: None})) == []


@pytest.mark.parametrize(
    ("best", "parts"), [("", "final"), ("test/top1", "final"), ("val/top1", "three")]
)
def test_the_final_run_keeps_a_part_only_to_choose_its_weights_by(best, parts, recipe):
    assert _on_all_but_test(replace(recipe, best=best)).data.parts == parts


def test_every_seed_has_a_run_and_the_first_the_directory(recipe):
    cells = _final_cells(replace(recipe, seed=3), 3)
    assert [(cell.name, cell.recipe.seed, cell.title) for cell in cells] == [
        (".", 3, "seed 3"),
        ("seed-4", 4, "seed 4"),
        ("seed-5", 5, "seed 5"),
    ]
    assert cells[1].settings == {"lr": recipe.optim.lr, "seed": 4}
