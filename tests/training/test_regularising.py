"""Weight decay, dropout and label smoothing chosen on held-out images, and weights that those choose
too."""

import json
from dataclasses import replace

import pytest

from vitkit.apps.studies import STUDIES
from vitkit.apps.studies.paper import data_size
from vitkit.apps.studies.protocol import Ask, begin, run_study
from vitkit.cli.entry import main
from vitkit.models import LeNetConfig, vit
from vitkit.objectives import MaskedPatches, Supervised
from vitkit.recipes import Data, Optim, Recipe
from vitkit.system.span import Span
from vitkit.training import (
    USUAL,
    Best,
    Cell,
    folder_of,
    read_rows,
    regularisation_of,
    regularisation_text,
    regularised,
    run_grid,
    transfer,
)
from vitkit.training.grids import selection
from vitkit.training.grids.grid import of_shard
from vitkit.training.grids.selection import Regularisation
from vitkit.training.record.metrics import read_metrics


@pytest.fixture
def recipe(tiny):
    return replace(tiny, length=Span(12), evaluate_every=Span(4), save_every=Span(12), average=0.0)


def test_every_combination_is_tried_and_the_recipe_as_it_is():
    recipe = Recipe(vit("mu/16"), Data("digits"), optim=Optim(weight_decay=0.05))
    recipes = regularised(recipe, USUAL)
    assert recipes[0] == recipe and len(recipes) == 13
    texts = [regularisation_text(regularisation_of(each)) for each in recipes]
    assert len(set(texts)) == 13
    assert texts[-1] == "weight decay 0.3, dropout 0.1, label smoothing 0.1"
    assert folder_of(regularisation_of(recipes[-1])) == "decay-0.3-dropout-0.1-smoothing-0.1"
    assert len(regularised(recipe, Regularisation(dropouts=(0.0, 0.2)))) == 2  # one is its own


def test_what_a_model_or_an_objective_lacks_is_left_alone():
    recipe = Recipe(LeNetConfig(), Data("digits"))
    assert len(regularised(recipe, USUAL)) == 7
    with pytest.raises(ValueError, match="`dropouts` are given, and a LeNetConfig has no dropout"):
        regularised(recipe, Regularisation(dropouts=(0.1,)))
    masked = Recipe(vit("mu/16"), Data("digits"), objective=MaskedPatches())
    assert list(regularisation_of(masked)) == ["weight decay", "dropout"]
    assert len(regularised(masked, USUAL)) == 7
    numbers = replace(recipe, objective=Supervised("squared"))
    assert list(regularisation_of(numbers)) == ["weight decay"]


@pytest.mark.slow
def test_the_best_on_held_out_images_is_that_of_the_final_runs(recipe, tmp_path):
    values = Regularisation(label_smoothings=(0.0, 0.99))
    outcome = transfer(recipe, tmp_path, device="cpu", regularisation=values)
    tried = dict(outcome.regularisation)
    assert len(tried) == 2 and {metric.name for metric in tried.values()} == {"val/top1"}
    best = max(metric.value for metric in tried.values())
    assert tried[outcome.regularised].value == best
    ran = json.loads((tmp_path / "recipe.json").read_text())
    smoothing = ran["objective"]["label_smoothing"]
    assert outcome.regularised.endswith(f"label smoothing {smoothing:g}")
    assert ran["data"]["parts"] == "final"
    written = json.loads((tmp_path / "transfer.json").read_text())
    assert written["regularised"] == outcome.regularised and len(written["regularisation"]) == 2


@pytest.mark.slow
def test_the_best_validation_accuracy_is_chosen_by_and_the_test_part_is_not(recipe, tmp_path):
    """--select with --best val/top1: as in Section 4.3."""
    wanted = replace(recipe, best="val/top1")
    outcome = transfer(wanted, tmp_path, rates=(1e-3, 3e-3), device="cpu")
    for rate, metric in outcome.selection.items():
        lines = read_metrics(tmp_path / f"select/lr-{rate:g}/metrics.jsonl")
        values = [line["metrics"]["val/top1"].value for line in lines if "metrics" in line]
        assert len(values) == 3 and metric.value == max(values)

    # The final run tests at the step that is best by its own held-out images
    ran = json.loads((tmp_path / "recipe.json").read_text())
    assert ran["data"]["parts"] == "three"
    lines = [
        line["metrics"] for line in read_metrics(tmp_path / "metrics.jsonl") if "metrics" in line
    ]
    best = max(lines, key=lambda metrics: metrics["val/top1"].value)
    assert outcome.runs[0] == best["test/top1"]
    with pytest.raises(ValueError, match="`best='test/top1'` .* test part.*`best='val/top1'`"):
        transfer(replace(recipe, best="test/top1"), tmp_path / "t", (1e-3,), device="cpu")


@pytest.mark.slow
def test_the_command_says_what_it_costs_and_what_it_chose(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = "train digits digits --length 6steps --batch 20 --device cpu --workdir run"
    assert main([*words.split(), "--weight-decays", "0.2", "--label-smoothings", "0", "0.1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "3 runs on held-out images choose the regularisation first" in said
    assert "chosen" in said and "wrote run/model" in said


def test_a_study_chooses_for_its_small_parts(tiny, tmp_path, monkeypatch):
    """Two shards run what one does; the whole set is not searched for."""
    monkeypatch.setattr("vitkit.apps.studies.budget.seconds_of_a_step", lambda *_: 0.01)
    study = STUDIES["data-size"]
    recipe = replace(tiny, average=0.0, precision="float32", batch=20)
    asked = Ask(data="digits", recipe=recipe, seeds=2, regularise=True)
    asked, decided = begin(study, asked, "20steps", tmp_path, "cpu")
    cells = study.cells(asked, decided.steps, tmp_path)
    trials = [cell for cell in cells if "of images" in cell.settings]
    assert (decided.runs, len(cells) - len(trials)) == (len(cells), 24)
    assert len(trials) == 3 * (13 + 13 + 7)  # the ResNet has no dropout; of 3 parts
    whole = [cell for cell in cells if cell.settings.get("images") == 1295]
    assert len(whole) == 6 and all(isinstance(cell.recipe, Recipe) for cell in whole)
    shards = [of_shard(cells, (i, 2)) for i in range(2)]
    assert sorted(cell.name for shard in shards for cell in shard) == sorted(c.name for c in cells)
    for shard in shards:
        names = {cell.name for cell in shard}
        assert all(names.issuperset(cell.follows()) for cell in shard)


@pytest.mark.slow
def test_a_cell_follows_the_best_of_others(tiny, tmp_path):
    still = Optim(lr=1e-50)  # 0 in float32
    slow = replace(tiny, length=Span(12), average=0.0, optim=still)
    fast = replace(slow, optim=Optim(lr=1e-2))
    trials = [Cell("slow", slow), Cell("fast", fast, after="slow")]
    final = [(cell.name, replace(cell.recipe, seed=1)) for cell in trials]
    grid = [*trials, Cell("final", Best(tuple(final)), {"seed": 1}, after="slow")]
    rows = run_grid(grid, tmp_path, "cpu")
    assert {row.cell for row in rows if row.error is None} == {"slow", "fast", "final"}
    assert json.loads((tmp_path / "final/recipe.json").read_text())["optim"]["lr"] == 1e-2
    written = (tmp_path / "final/metrics.jsonl").stat().st_mtime_ns
    assert run_grid(grid, tmp_path, "cpu") == rows
    assert (tmp_path / "final/metrics.jsonl").stat().st_mtime_ns == written
    wrong = [(name, replace(recipe, batch=10)) for name, recipe in final]
    with pytest.raises(ValueError, match="final holds a run of another recipe .batch: 50 -> 10"):
        run_grid([*trials, Cell("final", Best(tuple(wrong)), {"seed": 1})], tmp_path, "cpu")
    nothing = [("slow", replace(slow, keep=0)), ("fast", fast)]
    failing = [Cell("slow", nothing[0][1]), Cell("final", Best(tuple(nothing)), after="slow")]
    with pytest.raises(ValueError, match="keep is 0"):
        run_grid(failing, tmp_path / "failing", "cpu")
    rows = read_rows(tmp_path / "failing")
    assert "and none of them has a result" in {row.cell: row.error for row in rows}["final"]


@pytest.mark.slow
def test_the_study_says_what_it_chose(tiny, tmp_path, monkeypatch):
    """Of a few values: test_a_study_chooses_for_its_small_parts counts the trials of all."""
    monkeypatch.setattr(data_size, "SHARES", (1.0, 0.1))
    monkeypatch.setattr(data_size, "EVALUATIONS", 2)
    for module in (data_size, selection):
        monkeypatch.setattr(module, "USUAL", Regularisation((0.1,), (0.0, 0.1)))
    study = STUDIES["data-size"]
    recipe = replace(tiny, average=0.0, precision="float32", batch=20)
    asked = Ask(data="digits", recipe=recipe, seeds=1, regularise=True)
    asked, decided = begin(study, asked, "20steps", tmp_path, "cpu")
    reached = run_study(study, asked, decided, tmp_path, "cpu")
    assert not reached.failures()
    notes = study.table(reached).notes
    assert sum(note.startswith("chosen for ") for note in notes) == 3
    chosen = next(note for note in notes if note.startswith("chosen for ViT, 130 images"))
    ran = json.loads((tmp_path / "ViT/130-images/seed-0/recipe.json").read_text())
    assert (
        f"weight decay {ran['optim']['weight_decay']:g}, dropout {ran['model']['dropout']:g}"
        in chosen
    )
    assert ran["data"]["parts"] == "three" and ran["best"] == "val/top1"
