"""Studies whose runs are fine-tuned on other data sets: which runs there are, which figures count, and
that the paper's panels stand beside them (Figures 3 and 5)."""

from dataclasses import replace

import pytest

from vitkit.apps.studies import STUDIES
from vitkit.apps.studies.base import small_vit
from vitkit.apps.studies.budget import BudgetPlan
from vitkit.apps.studies.paper import compute, data_size
from vitkit.apps.studies.protocol import Ask, Results, begin, run_study
from vitkit.apps.studies.targets import by_target
from vitkit.data import open_splits
from vitkit.evaluation import SHARE, Metric
from vitkit.training import Best, Row, most_shards
from vitkit.training.grids.grid import of_shard

TARGETS = ("digits", "some/pets")
AXES = {"data-size": ("model", "images"), "compute": compute.SETTINGS}


@pytest.fixture(scope="module")
def ask():
    recipe = small_vit("digits", open_splits("digits"))
    model = replace(recipe.model, width=24, depth=2, mlp=48, heads=2)
    recipe = replace(recipe, model=model, precision="float32", batch=20)
    return Ask(data="digits", recipe=recipe, seeds=2, targets=TARGETS)


def reached(study, ask, tmp_path, without=()):
    """What the runs of a study are said to have reached: 30 % on their own images, on the first target
    40 % and on the second 60 %, and a point more with each seed."""
    rows = []
    for cell in study.cells(ask, 30, tmp_path):
        value = {"digits": 0.4, "pets": 0.6}.get(cell.settings.get("target"), 0.3)
        metric = Metric("test/top1", value + 0.01 * cell.settings.get("seed", 0), SHARE)
        if cell.name not in without:
            rows.append(Row(cell.name, cell.settings, metric, True, 30))
    return Results(ask, BudgetPlan(30, len(rows), 1e-6, 1.0), rows, rows)


@pytest.mark.parametrize("name, runs", [("data-size", 4 * 3), ("compute", 2 * 8)])
def test_every_run_is_fine_tuned_on_every_target(name, runs, ask, tmp_path):
    cells = STUDIES[name].cells(ask, 30, tmp_path)
    assert len(cells) == 2 * runs * (1 + len(TARGETS))
    own = {cell.name: cell for cell in cells if not cell.after}
    assert len(own) == 2 * runs == most_shards(cells)
    for cell in cells:
        if not cell.after:
            continue
        first = own[cell.after]
        tuned = cell.recipe
        assert tuned.init == str(tmp_path / first.name) and tuned.optim.name == "sgd"
        assert (tuned.model, tuned.seed) == (first.recipe.model, first.recipe.seed)
        assert (tuned.length.n, tuned.best, tuned.data.subset) == (15, "", 1.0)  # all of the target
        assert tuned.data.source in TARGETS and tuned.data.augmentation.auto
        assert cell.settings.items() > first.settings.items()
        assert set(first.settings) >= {*AXES[name], "seed"}
    assert len({cell.name for cell in cells}) == len(cells)


def test_what_was_chosen_by_trials_is_fine_tuned_in_the_same_shard(ask, tmp_path):
    regularised = replace(ask, regularise=True, targets=("digits",))
    cells = STUDIES["data-size"].cells(regularised, 30, tmp_path)
    by_name = {cell.name: cell for cell in cells}
    tuned = [cell for cell in cells if "target" in cell.settings]
    assert len(tuned) == 2 * 12
    chosen = [cell for cell in tuned if isinstance(by_name[cell.after].recipe, Best)]
    assert len(chosen) == 2 * 9  # of the three smaller parts
    for i in range(3):
        shard = {cell.name for cell in of_shard(cells, (i, 3))}
        assert all(cell.after in shard for cell in tuned if cell.name in shard)


@pytest.mark.parametrize("name", sorted(AXES))
def test_the_average_is_over_runs_that_ended_on_all_targets(name, ask, tmp_path):
    study = STUDIES[name]
    cells = study.cells(ask, 30, tmp_path)
    lost = next(cell for cell in cells if cell.settings.get("target") == "pets")
    results = reached(study, ask, tmp_path, without=[lost.name])
    on_each = by_target(results, *AXES[name])
    assert list(on_each) == ["average of 2", "digits", "pets"]
    setting = tuple(lost.settings[axis] for axis in AXES[name])
    values = {
        target: {seed: round(metric.value, 4) for seed, metric in runs[setting].items()}
        for target, runs in on_each.items()
    }
    assert values == {
        "average of 2": {1: 0.51}, "digits": {0: 0.4, 1: 0.41}, "pets": {1: 0.61}
    }  # fmt: skip
    alone = replace(ask, targets=())
    own = by_target(reached(study, alone, tmp_path), *AXES[name])
    assert {m.value for runs in own[""].values() for m in runs.values()} == {0.3, 0.31}
    one = replace(ask, targets=("digits",))
    assert list(by_target(reached(study, one, tmp_path), *AXES[name])) == ["digits"]


def titles(figure):
    return [axes.get_title() for axes in figure.axes]


def test_figure_5_has_both_panels_here_and_in_the_paper(ask, tmp_path):
    study = STUDIES["compute"]
    both = ["the paper: average of 5", "the paper: ImageNet"]
    figure = study.draw(reached(study, ask, tmp_path))
    assert titles(figure) == ["here: average of 2", "here: digits", *both]
    one = study.draw(reached(study, replace(ask, targets=("digits",)), tmp_path))
    assert titles(one) == ["here: digits", *both]
    own = study.draw(reached(study, replace(ask, targets=()), tmp_path))
    assert titles(own) == ["here", *both]
    for panel, largest in ((2, {95.82, 95.36, 95.09}), (3, {88.08, 87.12, 87.22})):
        lines = figure.axes[panel].lines
        assert {max(line.get_ydata()) for line in lines} == largest  # Table 6: ViT, hybrid, ResNet
    here = figure.axes[1].lines[0].get_ydata()
    assert list(here) == pytest.approx([40.5] * len(here))


def test_table_6_has_every_target_and_the_laws_answer_for_each_panel(ask, tmp_path):
    study = STUDIES["compute"]
    both = ("the paper: average of 5", "the paper: ImageNet")
    table = study.table(reached(study, ask, tmp_path))
    assert table.columns[4:] == ("average of 2", "digits", "pets", *both)
    assert table.rows[0][4:] == ("50.5 ± 0.7", "40.5 ± 0.7", "60.5 ± 0.7", "", "")
    assert ("ViT", "H/14", "14 ep.", "4,262", "", "", "", "95.82", "88.08") in table.rows
    assert sum("Games-Howell" in note for note in table.notes) == 3
    named = "average of 2: the best of 16 settings (ViT half, 0.5) and the worst (ViT half, 0.5)"
    assert table.notes[1].startswith(named)
    sentences = study.predict(reached(study, ask, tmp_path), "1e-3")
    assert {sentence.split(":")[0] for sentence in sentences} == {"average of 2", "digits"}


def test_the_averages_of_the_paper_are_those_of_its_five_data_sets():
    """Table 6's rows of R50x1 and H/14: ImageNet, CIFAR-10, CIFAR-100, Pets, Flowers."""
    for family, model, of_five in (
        ("ResNet", ("R50x1", 7), (77.54, 97.67, 86.07, 91.11, 94.26)),
        ("ViT", ("H/14", 14), (88.08, 99.50, 94.71, 97.11, 99.71)),
    ):
        _, average, imagenet = compute.TABLE_6[family][model]
        assert (average, imagenet) == (round(sum(of_five) / 5, 2), of_five[0])


def test_figure_3_stands_beside_the_transfer(ask, tmp_path):
    study = STUDIES["data-size"]
    results = reached(study, ask, tmp_path)
    figure = study.draw(results)
    assert titles(figure) == ["here: average of 2", "here: digits", "the paper: ImageNet"]
    theirs = {line.get_label(): list(line.get_ydata()) for line in figure.axes[2].lines}
    assert theirs["ViT-L/16"] == [76.53, 85.15, 87.12] and len(theirs["ViT-H/14"]) == 2
    table = study.table(results)
    assert table.title.startswith("Figure 3") and table.columns[:2] == ("target", "images")
    assert [row[0] for row in table.rows] == ["average of 2"] * 4 + ["digits"] * 4 + ["pets"] * 4
    assert table.rows[0][2:] == ("50.5 ± 0.7",) * 3
    own = study.table(reached(study, replace(ask, targets=()), tmp_path))
    assert own.title.startswith("Figure 4") and own.rows[0][1:] == ("30.5 ± 0.7",) * 3


@pytest.mark.parametrize("name", sorted(AXES))
def test_targets_that_cannot_be_told_apart_are_refused(name, ask):
    study = STUDIES[name]
    with pytest.raises(ValueError, match="two targets are called 'pets', a/pets and b/pets"):
        study.check(replace(ask, targets=("a/pets", "b/pets")))
    with pytest.raises(ValueError, match="`fewshot` by 5-shot accuracy; leave one of them out"):
        study.check(replace(ask, fewshot="digits"))
    study.check(replace(ask, targets=(), fewshot="digits"))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(AXES))
def test_the_transfer_is_made(name, ask, tmp_path, monkeypatch):
    monkeypatch.setattr(data_size, "SHARES", (1.0, 0.1))
    monkeypatch.setattr(data_size, "EVALUATIONS", 2)
    monkeypatch.setattr(compute, "LENGTHS", (1.0,))
    smallest = ("ViT half", "ViT base", "hybrid half", "R5 x0.5")  # of every family
    families = compute.families

    def small_ones(base):
        return {key: model for key, model in families(base).items() if key[1] in smallest}

    monkeypatch.setattr(compute, "families", small_ones)
    study = STUDIES[name]
    one = replace(ask, seeds=1, targets=("digits",))
    asked, decided = begin(study, one, "20steps", tmp_path, "cpu")
    results = run_study(study, asked, decided, tmp_path, "cpu")
    assert not results.failures()
    runs = by_target(results, *AXES[name])["digits"]
    cells = [cell for cell in study.cells(asked, 20, tmp_path) if cell.after]
    assert len(runs) == len(cells) > 3
    study.table(results)
    study.draw(results)
