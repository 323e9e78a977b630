"""The paper's studies on the digits: what is planned, that it is resumed and shared exactly, and that
every study makes its table and its figure."""

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from described import described, figure_in_words
from margins import at_most
from pictures import encoded, photograph
from PIL import Image
from processes import Forked
from quick_ones import quick_ones
from rich.console import Console
from scipy.stats import ttest_rel, tukey_hsd

from vitkit.apps.studies import STUDIES, StudyTable, budget
from vitkit.apps.studies.base import (
    check_square_patches,
    on_a_share,
    on_other_images,
    resnet_like,
    small_vit,
)
from vitkit.apps.studies.budget import Budget, BudgetPlan, plan
from vitkit.apps.studies.function import StudyPlace, _check, _words, write
from vitkit.apps.studies.paper import compute, data_size, image_size
from vitkit.apps.studies.protocol import (
    Ask,
    Results,
    _decide,
    begin,
    refuse_without_accuracy,
    run_study,
)
from vitkit.apps.studies.uncertainty import LEVEL, best_and_worst, range_test
from vitkit.cli.entry import main
from vitkit.data import Preprocessing, Splits, open_splits, subset
from vitkit.evaluation import COUNT, SHARE, Metric
from vitkit.inspection import write_figure
from vitkit.models import RESAMPLE, create, vit
from vitkit.models.positions import resample
from vitkit.objectives import MaskedPatches
from vitkit.recipes import Optim
from vitkit.training import (
    Row,
    differences,
    divide,
    most_shards,
    read_rows,
    run_recipe,
    to_json,
)
from vitkit.training.grids.grid import _check_cells, of_shard
from vitkit.weights import Classifier, load, save

KNOWN = Path(__file__).with_name("studies.json")
TRAINED = [name for name in STUDIES if name not in ("speed", "resolution")]


@pytest.fixture(scope="module")
def digits():
    return open_splits("digits")


@pytest.fixture
def ask(digits):
    recipe = small_vit("digits", digits)
    model = replace(recipe.model, width=24, depth=2, mlp=48, heads=2)
    recipe = replace(recipe, model=model, precision="float32", batch=20)
    return Ask(data="digits", recipe=recipe, seeds=2)


@pytest.fixture
def settled(ask):
    """With an augmentation that is not tested on the images first."""
    augmentation = replace(ask.recipe.data.augmentation, auto=False)
    data = replace(ask.recipe.data, augmentation=augmentation)
    return replace(ask, recipe=replace(ask.recipe, data=data))


@pytest.fixture
def known_speed(monkeypatch):
    """A step of every model takes 0.01 s, which is not measured."""
    monkeypatch.setattr("vitkit.apps.studies.budget.seconds_of_a_step", lambda *_: 0.01)


def invented(study, ask, tmp_path):
    """Results of a study whose runs were not made: every cell has a value of its own."""
    rows = []
    for number, cell in enumerate(study.cells(ask, 30, tmp_path)):
        value = 0.4 + 0.01 * (number % 7) + 0.001 * (number % 3)
        metric = Metric("test/top1", value, SHARE)
        rows.append(Row(cell.name, cell.settings, metric, True, 30))
    return Results(ask, BudgetPlan(30, len(rows), 1e-6, 1.0), rows, rows)


@pytest.mark.parametrize("text, amount, unit", [
    ("30m", 1800, "seconds"), ("2h", 7200, "seconds"), ("90 s", 90, "seconds"),
    ("0.5exaflops", 0.5, "exaflops"), ("2e-3 exaflops", 2e-3, "exaflops"), ("500steps", 500, "steps"),
])  # fmt: skip
def test_a_budget_is_a_time_operations_or_steps(text, amount, unit):
    assert Budget.parse(text) == Budget(amount, unit)


@pytest.mark.parametrize("text", ["", "30", "m", "-3m", "0m", "1e400steps", "30 parsecs"])
def test_what_is_no_budget_is_refused(text):
    with pytest.raises(ValueError, match="cannot be .*; write it like 30m"):
        Budget.parse(text)


def test_the_steps_use_up_the_budget(ask, digits, known_speed, tmp_path):
    def grid(steps):
        return STUDIES["positions"].cells(ask, steps, tmp_path)

    by_steps = plan(grid, Budget(200, "steps"), digits, "cpu")
    assert (by_steps.steps, by_steps.runs) == (200, 16)
    by_exaflops = plan(grid, Budget(by_steps.exaflops, "exaflops"), digits, "cpu")
    assert by_exaflops.steps in (199, 200)  # but for rounding
    by_time = plan(grid, Budget(1e6, "seconds"), digits, "cpu")
    assert 0.99e6 < by_time.seconds <= 1e6 and by_time.steps > 20
    with pytest.raises(ValueError, match="a budget of 1 s leaves 16 runs 0 steps each.*give"):
        plan(grid, Budget(1, "seconds"), digits, "cpu")


def test_the_step_of_a_model_is_timed_once(ask, monkeypatch):
    """For each size of its batches, in the precision that suits the device."""
    timed = []

    def seconds_of_a_step(model, recipe, device):
        assert model.config == recipe.model and device.type == "cpu"
        timed.append((recipe.batch, recipe.precision))
        return 0.01 * len(timed)

    monkeypatch.setattr("vitkit.apps.studies.budget.seconds_of_a_step", seconds_of_a_step)
    known = {}
    larger = replace(ask.recipe, batch=40)
    times = [budget._seconds(recipe, known, "cpu") for recipe in (ask.recipe, larger, ask.recipe)]
    assert times == [0.01, 0.02, 0.01]
    assert timed == [(20, "float32"), (40, "float32")]


def test_smaller_parts_lie_within_larger_ones_and_have_every_class(digits, ask):
    train = digits.train

    def learned(share, seed):
        """The names of the images that a run on a share of them learns from."""
        part = divide(digits, on_a_share(ask.recipe, share, seed).data)["train"]
        return {part.name(i) for i in range(len(part))}

    count = len(train)
    few = learned(100 / count, 3)
    more = learned(500 / count, 3)
    other = learned(100 / count, 4)
    assert (len(few), len(more)) == (100, 500) and few < more and few != other
    classes = [train.targets[i] for i in range(len(train)) if train.name(i) in few]
    assert all(9 <= classes.count(number) <= 11 for number in range(10))


# Their tables and figures are compared with known ones below: of these, two are written and emptied at once
@pytest.mark.parametrize("name", quick_ones(TRAINED, ("positions", "transfer")))
def test_every_study_has_a_table_and_a_figure(name, ask, tmp_path):
    study = STUDIES[name]
    if "targets" in study.needs:
        ask = replace(ask, targets=("digits",))
    study.check and study.check(ask)
    reached = invented(study, ask, tmp_path)
    table = study.table(reached)
    assert table.rows and all(len(row) == len(table.columns) for row in table.rows)
    text = table.markdown()
    assert any(f"{100 * row.metric.value:.1f}"[:2] in text for row in reached.rows)
    write_figure(study.draw(reached), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000
    empty = reached._replace(rows=reached.rows[:1], curves=reached.curves[:1])
    study.table(empty)
    study.draw(empty)


def in_words(study, ask, tmp_path):
    """The table and the figure of a study whose runs were not made, and what its first runs are."""
    results = invented(study, ask, tmp_path)
    if study.name == "speed":
        # Of one model, more than is tried
        batches = [row.metric.value * 1e5 for row in results.rows]
        for row, batch in zip(list(results.rows), batches, strict=True):
            largest = Metric(image_size.LARGEST, batch, COUNT)
            results.rows.append(row._replace(metric=largest, primary=False))
    lines = study.table(results).markdown().splitlines() + figure_in_words(study.draw(results))
    usual = to_json(ask.recipe)
    for cell in study.cells(ask, 30, tmp_path):
        if cell.settings.get("seed", 0) == 0:
            changes = [described(cell.recipe)]
            if cell.run():
                changes = differences(usual, to_json(cell.run()))
            words = [f"{cell.name}: {cell.settings}", cell.title, cell.after, *changes]
            lines.append("; ".join(filter(None, words)).replace(str(tmp_path), "STUDY"))
    return lines


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_the_runs_the_table_and_the_figure_that_people_know(name, ask, tmp_path):
    """`KEEP_STUDIES=1 pytest tests/studies -k people_know` writes the file again: read what changes."""
    if "targets" in STUDIES[name].needs:
        ask = replace(ask, targets=("digits",))
    if name == "resolution":
        ask = replace(ask, sizes=(4, 16))
    lines = in_words(STUDIES[name], ask, tmp_path)
    known = json.loads(KNOWN.read_text())
    if os.environ.get("KEEP_STUDIES"):
        known[name] = lines
        KNOWN.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
    assert lines == known[name]


def settings_of(values):
    """(K, S) -> what K settings reached with S seeds."""
    runs = {}
    for number, of_seed in enumerate(values):
        runs[(f"setting {number}",)] = {
            seed: Metric("top1", value, SHARE) for seed, value in enumerate(of_seed)
        }
    return runs


def test_a_study_that_says_more_than_chance_says_so():
    values = np.array([[0.40, 0.41, 0.42], [0.41, 0.40, 0.41], [0.60, 0.62, 0.61]])
    deviation, verdict = best_and_worst(settings_of(values))
    assert deviation == "runs that differ by their seed alone deviate by 0.9"
    assert verdict.startswith(
        "the best of 3 settings (setting 2) and the worst (setting 1) differ by 20.3: more than chance "
        "gives (p < 0.001;"
    )
    assert verdict.endswith("; Games-Howell over all settings, paired by seed)")
    verdict = best_and_worst(settings_of(values[:2] - [[0.003], [0]]))[1]
    assert "no more than chance gives, so this study shows no difference (p = 0." in verdict
    assert "give several `seeds`" in best_and_worst(settings_of([[0.4], [0.5]]))[0]
    assert "three `seeds` or more" in best_and_worst(settings_of(values[:, :2]))[-1]


@pytest.mark.parametrize("values, verdict", [
    ([[0.5, 0.5]] * 3, "shows no difference (p = 1;"),  # as with a single class
    ([[0.5, 0.5], [0.5, 0.5], [0.6, 0.6]], "more than chance gives (p < 0.001;"),
    ([[0.5, 0.7], [0.6, 0.8]], "more than chance gives (p < 0.001;"),  # the seeds vary alone
])  # fmt: skip
def test_settings_that_do_not_vary_are_equal_or_not(values, verdict):
    assert verdict in best_and_worst(settings_of(values))[1]


def test_settings_of_other_seeds_are_not_paired():
    """As when a run failed: then it is scipy's own test, of settings that may vary unequally."""
    values = np.random.default_rng(0).normal(0.5, 0.01, (4, 5))
    runs = settings_of(values)
    del runs[("setting 1",)][2]
    expected = tukey_hsd(values[0], np.delete(values[1], 2), *values[2:], equal_var=False).pvalue
    means = [np.mean([metric.value for metric in of_seed.values()]) for of_seed in runs.values()]
    p = range_test(list(runs.values()))
    assert p == pytest.approx(expected[np.argmax(means), np.argmin(means)])
    assert "paired" not in best_and_worst(runs)[1]


def test_two_settings_are_compared_seed_by_seed():
    values = np.array([[0.40, 0.50, 0.60], [0.41, 0.52, 0.61]])
    assert range_test(list(settings_of(values).values())) == pytest.approx(
        ttest_rel(*values).pvalue
    )


@pytest.mark.slow
@pytest.mark.parametrize("seeds_matter", [0.0, 2.0])
def test_the_best_and_the_worst_of_many_differ_by_chance(seeds_matter):
    """Of studies of five kinds that do not differ, one in twenty at most says that they do, whether
    their runs deviate alike or not, and whether a seed does the same to all of them."""
    random = np.random.default_rng(0)
    deviations = np.array([1, 1, 1, 3, 3])[:, None]
    wrong = 0
    for _ in range(100):
        values = deviations * random.normal(size=(5, 3)) + seeds_matter * random.normal(size=3)
        wrong += range_test(list(settings_of(0.5 + 0.01 * values).values())) < LEVEL
    at_most(wrong, 9)  # 5 and two standard errors


def test_pairing_by_seed_finds_what_the_seeds_hide():
    """Four settings of which one is better by four deviations, and seeds that matter twice as much."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(12):
        values = random.normal(size=(4, 5)) + 2 * random.normal(size=5)
        values[0] += 4
        paired = list(settings_of(0.01 * values).values())
        unpaired = [{(i, seed): m for seed, m in each.items()} for i, each in enumerate(paired)]
        found.append((range_test(paired) < LEVEL, range_test(unpaired) < LEVEL))
    with_pairs, without = np.sum(found, axis=0)
    assert with_pairs >= 11 and without <= 8


@pytest.mark.parametrize("name", sorted(TRAINED))
def test_every_study_judges_the_best_and_the_worst(name, ask, tmp_path):
    study = STUDIES[name]
    if name == "transfer":
        ask = replace(ask, targets=("digits", "cifar10"))
    notes = study.table(invented(study, replace(ask, seeds=3), tmp_path)).notes
    judged = [note for note in notes if "Games-Howell over all settings, paired by seed" in note]
    assert len(judged) == len(ask.targets or [""])


def test_a_study_goes_on_with_the_plan_that_it_began_with(settled, known_speed, tmp_path):
    study = STUDIES["positions"]
    _, first = begin(study, settled, "50steps", tmp_path, "cpu")
    assert begin(study, settled, "", tmp_path, "cpu")[1] == first
    with pytest.raises(ValueError, match=r"budget: 50steps -> 60steps.*choose another"):
        begin(study, settled, "60steps", tmp_path, "cpu")
    more = begin(study, replace(settled, seeds=3), "", tmp_path, "cpu")[1]
    assert (more.steps, more.runs) == (first.steps, 24)
    with pytest.raises(ValueError, match="fewshot:  -> digits"):
        begin(study, replace(settled, fewshot="digits"), "", tmp_path, "cpu")
    masked = replace(settled, recipe=replace(settled.recipe, objective=MaskedPatches()))
    with pytest.raises(ValueError, match="by MaskedPatches names no classes; give one with labels"):
        begin(study, masked, "", tmp_path, "cpu")
    numbers = replace(open_splits("digits"), target_kind="number")
    with pytest.raises(ValueError, match="the images of digits do not have one class each"):
        refuse_without_accuracy(settled, numbers)
    digits = open_splits("digits")
    ones = subset(digits.train, np.flatnonzero(digits.train.targets == 1))
    with pytest.raises(ValueError, match="all images of digits to learn from are of one class"):
        refuse_without_accuracy(settled, replace(digits, train=ones))
    with pytest.raises(ValueError, match="study: positions -> pooling"):
        begin(STUDIES["pooling"], settled, "", tmp_path, "cpu")
    with pytest.raises(ValueError, match="the study positions needs `data`"):
        begin(study, Ask(), "", tmp_path, "cpu")
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(ValueError, match="study.json is damaged.*choose another `workdir`"):
        begin(study, settled, "", tmp_path, "cpu")


def test_what_earlier_code_has_begun_goes_on(settled, known_speed, tmp_path):
    """A setting that has come since then has its default."""
    study = STUDIES["positions"]
    _, first = begin(study, settled, "50steps", tmp_path, "cpu")
    record = json.loads((tmp_path / "study.json").read_text())
    del record["ask"]["memory"], record["ask"]["recipe"]["data"]["preprocessing"]["values"]
    (tmp_path / "study.json").write_text(json.dumps(record))
    assert begin(study, settled, "", tmp_path, "cpu")[1] == first


@pytest.mark.slow
def test_of_two_processes_that_decide_at_once_the_first_decides_for_both(ask, tmp_path):
    study = STUDIES["positions"]
    ask, theirs = begin(study, ask, "50steps", tmp_path, "cpu")
    record = (tmp_path / "study.json").read_bytes()
    ours = _decide(study, ask, "50steps", open_splits("digits"), tmp_path, "cpu")
    assert ours == theirs and (tmp_path / "study.json").read_bytes() == record
    assert not list(tmp_path.glob("study.json.*"))


def test_settings_that_a_study_does_not_read_are_refused(ask, known_speed, tmp_path):
    for name, changes, word in (
        ("pooling", {"model": "B/16"}, "model"),
        ("positions", {"targets": ("digits",)}, "targets"),
        ("compute", {"sizes": (64,)}, "sizes"),
        ("speed", {"data": "digits"}, "data"),
    ):
        asked = replace(ask, **changes)
        if name == "speed":
            asked = Ask(**changes)
        with pytest.raises(ValueError, match=f"the study {name} has no use for `{word}`;"):
            begin(STUDIES[name], asked, "20steps", tmp_path, "cpu")
    resnet = replace(ask, recipe=resnet_like(ask.recipe), targets=("digits",))
    with pytest.raises(ValueError, match="transfer compares Vision Transformers"):
        begin(STUDIES["transfer"], resnet, "20steps", tmp_path, "cpu")


@pytest.mark.parametrize("settings", [{"patch": (16, 8)}, {"stride": 8}])
def test_patches_that_are_rectangles_or_overlap_are_not_varied(settings, ask):
    check_square_patches(vit("mu/16"))
    with pytest.raises(ValueError, match="leave out model.stride, and give one number for model"):
        check_square_patches(vit("mu/16", **settings))
    with pytest.raises(ValueError, match="this study varies the side of square patches"):
        STUDIES["compute"].check(Ask(recipe=replace(ask.recipe, model=vit("mu/16", **settings))))


def test_several_sets_are_pre_trained_on(ask, photographs, tmp_path):
    """Every model on every set, then on every target with every seed."""
    study = STUDIES["transfer"]
    asked = replace(ask, pretrain=(str(photographs),), targets=("digits",))
    study.check(asked)
    cells = study.cells(asked, 20, tmp_path)
    first = {cell.name: cell.recipe.data.source for cell in cells if cell.name.endswith("trained")}
    assert first == {
        f"{model}/{name}/pre-trained": source
        for model in ("ViT", "ResNet")
        for name, source in (("digits", "digits"), (photographs.name, str(photographs)))
    }
    tuned = [cell for cell in cells if cell.after]
    assert len(tuned) == 2 * 2 * 2 and {cell.recipe.data.source for cell in tuned} == {"digits"}
    assert all(cell.recipe.init == str(tmp_path / cell.after) for cell in tuned)
    reached = invented(study, asked, tmp_path)
    rows = [row[:2] for row in study.table(reached).rows]
    assert rows[:3] == [("ViT", "none"), ("ViT", "digits"), ("ViT", photographs.name)]
    for changes, sentence in (
        (
            {"pretrain": ("digits",)},
            "two sets to pre-train on are called 'digits', digits and digits;",
        ),
        ({"pretrain": ("a/none",)}, "a/none cannot be a row of its own: 'none' is what the table"),
        (
            {"targets": ("a/b c", "b-c.parquet")},
            "two targets are called 'b-c', a/b c and b-c.parquet",
        ),
    ):
        with pytest.raises(ValueError, match=sentence):
            study.check(replace(asked, **changes))
    with pytest.raises(ValueError, match="the study pooling has no use for `pretrain`"):
        begin(STUDIES["pooling"], replace(ask, pretrain=("digits",)), "20steps", tmp_path, "cpu")


def test_a_folder_may_be_the_current_one(ask, photographs, tmp_path, monkeypatch):
    """It is called by its own name: "." is no folder within a study's."""
    monkeypatch.chdir(photographs)
    study = STUDIES["transfer"]
    asked = replace(ask, pretrain=(".",), targets=(".",))
    study.check(asked)
    cells = study.cells(asked, 20, tmp_path)
    named = {cell.settings["target"] for cell in cells if "target" in cell.settings}
    assert named == {photographs.name}
    names = {cell.name for cell in cells}
    assert f"ViT/{photographs.name}/{photographs.name}/seed-0" in names
    _check_cells(cells, (0, 1))


def test_what_cannot_be_measured_is_refused_once(
    settled, photographs, known_speed, tmp_path, capsys
):
    for images in (photographs, min(photographs.iterdir())):
        asked = replace(settled, fewshot=str(images))
        with pytest.raises(ValueError, match="`fewshot` learns from the train part of .*photos"):
            begin(STUDIES["pooling"], asked, "20steps", tmp_path / "s", "cpu")
    assert not (tmp_path / "s").exists()
    (tmp_path / "file").write_text("")
    words = ["study", "pooling", "--data", "digits", "--device", "cpu", "--budget", "20steps"]
    for workdir, sentence in (
        ("file", "is a file, and a study is a directory"),
        ("file/s", "could not be"),
    ):
        assert main([*words, "--workdir", str(tmp_path / workdir)]) == 1
        said = capsys.readouterr().err
        assert sentence in said and "Errno" not in said


def test_the_time_of_measuring_is_counted(ask, digits, photographs, tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "_seconds", lambda recipe, known, device: 1.0)

    def fixed(**changes):
        """The seconds that no step takes, beside those of opening and saving."""
        asked = replace(ask, seeds=1, **changes)
        cells = STUDIES["pooling"].cells(asked, 100, tmp_path)
        cost = budget._cost(cells, digits, "cpu")
        return cost.fixed / len(cells) - budget.OVERHEAD

    own = len(digits.test) / (3 * ask.recipe.batch)
    evaluations = round(fixed() / own)
    assert evaluations >= 1 and fixed() == pytest.approx(evaluations * own)
    both = (len(digits.test) + len(digits.train)) / (3 * ask.recipe.batch)
    assert fixed(fewshot="digits") == pytest.approx(evaluations * (own + both))


def test_a_broken_image_is_named_before_anything_runs(ask, photographs, tmp_path):
    first = sorted(photographs.rglob("*.*"))[0]
    first.write_bytes(first.read_bytes()[:200])
    asked = replace(ask, data=str(photographs))
    with pytest.raises(
        ValueError, match=rf"1 image to t.* on cannot be used.*{first.name}.*doctor"
    ):
        begin(STUDIES["pooling"], asked, "20steps", tmp_path / "s", "cpu")
    assert not (tmp_path / "s").exists()


def test_shares_of_few_images_that_are_the_same_are_one(ask, tmp_path, monkeypatch):
    few = subset(open_splits("digits").train, range(10))
    monkeypatch.setattr(
        data_size, "splits_at", lambda data, typed: Splits(few, None, None, (), (), None)
    )
    cells = STUDIES["data-size"].cells(replace(ask, seeds=1), 20, tmp_path)
    # Two are for validation; a share of one image, which is of one class, is left out
    assert sorted({cell.settings["images"] for cell in cells}) == [2, 8]
    assert len({cell.name for cell in cells}) == len(cells)


def test_the_models_of_compute_are_of_three_families(ask):
    families = [family for family, _ in compute.families(ask.recipe.model)]
    assert [families.count(name) for name in compute.FAMILIES] == [3, 2, 3]


def test_the_laws_answer_questions(ask, tmp_path):
    reached = invented(STUDIES["data-size"], ask, tmp_path)
    sentences = STUDIES["data-size"].predict(reached, "5000")
    assert len([s for s in sentences if "with 5,000 images: " in s]) == 3
    with pytest.raises(ValueError, match="'many'; data-size takes a number of images"):
        STUDIES["data-size"].predict(reached, "many")
    for nonsense in ("nan", "inf", "0", "-5"):
        with pytest.raises(ValueError, match="it is 1 image or more"):
            STUDIES["data-size"].predict(reached, nonsense)
    reached = invented(STUDIES["compute"], ask, tmp_path)
    assert any("exaFLOPs: " in s for s in STUDIES["compute"].predict(reached, "1e-6"))
    for nonsense in ("nan", "inf", "0", "-1"):
        with pytest.raises(ValueError, match="it is a number of exaFLOPs above 0"):
            STUDIES["compute"].predict(reached, nonsense)
    by_name = STUDIES["compute"].predict(reached, "BiT-R50x1")
    assert by_name[0].startswith("ResNet with ")


def test_the_command_lists_and_describes_the_studies(capsys):
    assert main(["study"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in STUDIES)
    assert main(["study", "poolin"]) == 1
    assert "did you mean 'pooling'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["study", "positions", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "It needs --data, and takes --recipe, --fewshot, --seeds. Without --budget its" in said
    assert "61.4 % without positions" in said and "A small budget: " in said and "--budget" in said


def test_a_shard_without_cells_has_nothing_to_do(capsys, tmp_path):
    words = ["study", "speed", "--models", "Ti/16", "--sizes", "32", "64", "--shard", "3/8"]
    assert main([*words, "--workdir", str(tmp_path / "s"), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "shard 3/8 has nothing to do: the cells of this study are 2 shards at most" in said
    assert [file.name for file in (tmp_path / "s").iterdir()] == ["study.json"]


def test_cells_that_follow_others_are_no_shards_of_their_own(ask, tmp_path):
    """Of the regularisation of a model on a part of the images, all runs are one shard."""
    cells = STUDIES["data-size"].cells(replace(ask, regularise=True), 20, tmp_path)
    most = most_shards(cells)
    assert most == 3 * 2 + 3 * 3  # three models on all images with two seeds, and on three parts
    shards = [of_shard(cells, (i, most + 2)) for i in range(most + 2)]
    assert all(shards[:most]) and not any(shards[most:])
    assert sum(map(len, shards)) == len(cells)


POOLING = [
    *("study", "pooling", "--data", "digits", "--seeds", "1", "--device", "cpu"),
    *("--budget", "21steps", "--workdir"),
]


class Whole(NamedTuple):
    """A study that one process ran without interruption."""

    folder: Path
    seconds: float


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITKIT_CACHE", str(folder / "cache"))
        began = time.monotonic()
        assert main([*POOLING, str(folder / "s")]) == 0
    return Whole(folder / "s", time.monotonic() - began)


def check_same(folder, whole):
    """Raises AssertionError unless a study has the table and the figures of one that was not interrupted."""
    assert (folder / "table.md").read_text() == (whole.folder / "table.md").read_text()
    assert read_rows(folder) == read_rows(whole.folder)
    tables = [pq.read_table(each / "results.parquet") for each in (folder, whole.folder)]
    assert tables[0] == tables[1]


@pytest.mark.slow
def test_the_command_draws_again_and_answers(whole, capsys, tmp_path):
    words = [*POOLING, str(tmp_path / "s")]
    assert main([*words, "--draw"]) == 1
    assert "so there is nothing to draw" in capsys.readouterr().err
    shutil.copytree(whole.folder, tmp_path / "s")
    (tmp_path / "s/results.parquet").unlink()  # as in a study that was interrupted
    assert main([*words, "--draw"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "4 runs, mostly of 21 steps of 128 images" in said and "mean of the patches" in said
    assert "give several --seeds" in said
    check_same(tmp_path / "s", whole)
    assert len(pq.read_table(tmp_path / "s/results.parquet")) > 4
    assert main([*words, "--draw", "--predict", "5"]) == 1
    assert "fits no law" in capsys.readouterr().err
    assert json.loads((tmp_path / "s/study.json").read_text())["plan"]["steps"] == 21
    for wrong, sentence in (
        (["--jobs", "-1"], "--jobs is -1"),
        (["--jobs", "2", "--shard", "1/2"], "does not go with --shard"),
        (["--on", "slurm"], "say how many, with --jobs"),
    ):
        assert main([*words, *wrong]) == 1 and sentence in capsys.readouterr().err
    (tmp_path / "s/token-lr-0.001/seed-0/cell.json").write_text("{")  # runs again, at no cost
    assert main(words) == 0
    check_same(tmp_path / "s", whole)
    capsys.readouterr()
    assert main([*words, "--shard", "0", "2"]) == 2
    assert (
        "are two words, and it is one, which counts from 1: --shard 1/2" in capsys.readouterr().err
    )
    for shard in ("0/2", "3/2", "a", "1"):
        assert main([*words, "--shard", shard]) == 1
        assert "it is 1/4 to 4/4, for four processes" in capsys.readouterr().err


@pytest.mark.slow
def test_jobs_give_what_one_process_gave(whole, tmp_path):
    # In a process of its own: importing submitit ends what other tests have begun to log
    words = [sys.executable, "-m", "vitkit", *POOLING, str(tmp_path / "s"), "--jobs", "16"]
    process = Forked(words, stdout=subprocess.PIPE, text=True)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "are 4 shards at most, so --jobs 16 starts no more" in said and "failed" not in said
    assert all(f"shard {number}/4 has ended" in said for number in (1, 2, 3, 4))
    check_same(tmp_path / "s", whole)


def logged(folder):
    """How many bytes all runs of a study have logged: of CELL/seed-0, not below, where folders come and
    go."""
    return sum(path.stat().st_size for path in folder.glob("*/*/metrics.jsonl"))


@pytest.mark.slow
def test_killed_at_random_moments_a_study_ends_with_the_same_table(whole, tmp_path):
    words = [*POOLING, str(tmp_path / "s")]
    for moment in (random.uniform(0, 0.5), random.uniform(0, 0.5)):
        before = logged(tmp_path / "s")
        with Forked([sys.executable, "-m", "vitkit", *words], stdout=subprocess.DEVNULL) as killed:
            while killed.poll() is None and logged(tmp_path / "s") == before:
                time.sleep(0.02)
            time.sleep(moment * whole.seconds)
            killed.send_signal(signal.SIGKILL)
    assert main(words) == 0
    check_same(tmp_path / "s", whole)


@pytest.fixture
def published(tmp_path):
    """A small model with a head and learned positions, as published weights are."""
    config = vit("mu/16", image=(48, 48), classes=3)
    save(
        Classifier(create(config, seed=0), Preprocessing(size=(48, 48)), tuple("abc")),
        tmp_path / "model",
    )
    return str(tmp_path / "model")


@pytest.mark.slow
def test_weights_are_resampled_in_the_way_that_is_studied(published, photographs, tmp_path):
    """Fine-tuning begins with the table that the method gives, and the model says which it was."""
    study = STUDIES["resolution"]
    asked = Ask(data=str(photographs), model=published, sizes=(32, 48), seeds=1)
    asked, _ = begin(study, asked, "20steps", tmp_path / "s", "cpu")
    cells = study.cells(asked, 1, tmp_path / "s")
    assert len(cells) == 1 + 2 * len(RESAMPLE)
    old = load(published, quiet=True).model.positions.table
    for cell in cells[1::2]:
        still = replace(cell.recipe, optim=Optim(lr=1e-30), evals=(), precision="float32")
        trained = run_recipe(still, tmp_path / cell.name, "cpu", Console(quiet=True)).model
        assert trained.config.resample == cell.settings["resample"]
        expected = resample(old, (3, 3), (2, 2), cell.settings["resample"])
        torch.testing.assert_close(trained.positions.table, expected)


def test_resolution_judges_the_sizes_and_the_ways_to_resample(ask, tmp_path):
    study = STUDIES["resolution"]
    table = study.table(invented(study, replace(ask, seeds=3, sizes=(4, 16)), tmp_path))
    assert [row[1] for row in table.rows] == ["4", "8", "16"] * 2
    assert not any("–" in row for row in table.rows)
    (judged,) = (note for note in table.notes if "the best of" in note)
    assert f"the best of {1 + 2 * 2 * len(RESAMPLE)} settings" in judged


@pytest.mark.slow
def test_resolution_trains_and_tests_at_every_size(published, photographs, tmp_path):
    study = STUDIES["resolution"]
    asked = Ask(data=str(photographs), model=published, sizes=(64,), seeds=1)
    asked, decided = begin(study, asked, "20steps", tmp_path / "s", "cpu")
    reached = run_study(study, asked, decided, tmp_path / "s", "cpu")
    assert not reached.failures()
    groups = 1 + 2 * len(RESAMPLE)  # each at another size: fine-tuned there, or only tested
    assert len(reached.group("how", "side", "resample")) == groups
    table = study.table(reached)
    assert len(table.rows) == 4 and not any("–" in row for row in table.rows)
    study.draw(reached)


@pytest.mark.slow
def test_transfer_begins_with_what_was_pre_trained(ask, published, tmp_path):
    study = STUDIES["transfer"]
    asked, decided = begin(
        study, replace(ask, seeds=1, targets=("digits",)), "20steps", tmp_path, "cpu"
    )
    reached = run_study(study, asked, decided, tmp_path, "cpu")
    assert not reached.failures()
    assert [row[:2] for row in study.table(reached).rows] == [
        (model, size) for model in ("ViT", "ResNet") for size in ("none", "a tenth", "all")
    ]


# Others run to their end above, or in test_transfer_targets.py
@pytest.mark.slow
@pytest.mark.parametrize("name", ["optimizer", "shape", "axial"])
def test_a_study_runs_end_to_end(name, ask, tmp_path):
    study = STUDIES[name]
    small = replace(ask, seeds=1)
    asked, decided = begin(study, small, "20steps", tmp_path, "cpu")
    reached = run_study(study, asked, decided, tmp_path, "cpu")
    assert not reached.failures()
    study.table(reached)
    study.draw(reached)


@pytest.fixture
def large_photographs(tmp_path):
    """A folder of two classes of 24 photographs each, of several sizes above 128 pixels; the studies of
    small images decode them without processes of their own, these not."""
    for number in range(48):
        file = tmp_path / "large" / ("dull", "lively")[number % 2] / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = photograph(130 + 2 * number, 230 - 2 * number, seed=number)
        file.write_bytes(encoded(pixels // (1 + number % 2)))
    return str(tmp_path / "large")


def of_photographs(ask, folder):
    """What is asked for, of photographs: with the recipe that suits their size, of a small model."""
    recipe = small_vit(folder, open_splits(folder))
    model = replace(recipe.model, width=24, depth=1, mlp=24, heads=1)
    return replace(ask, data=folder, recipe=replace(recipe, model=model, batch=2), seeds=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["positions", "self-supervision"])
def test_a_study_of_photographs_runs_end_to_end(name, ask, large_photographs, tmp_path):
    study = STUDIES[name]
    asked = of_photographs(ask, large_photographs)
    assert asked.recipe.data.workers == -1 and asked.recipe.model.image == (128, 128)
    asked, decided = begin(study, asked, "20steps", tmp_path / "study", "cpu")
    reached = run_study(study, asked, decided, tmp_path / "study", "cpu")
    assert not reached.failures()
    assert study.table(reached).rows
    study.draw(reached)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_the_models_of_a_study_take_photographs(name, ask, large_photographs, tmp_path):
    asked = replace(of_photographs(ask, large_photographs), targets=(large_photographs,))
    runs = [cell.run() for cell in STUDIES[name].cells(asked, 20, tmp_path)]
    configs = {run.model for run in runs if run is not None}
    assert configs
    for config in configs:
        model = create(replace(config, classes=2), seed=0).eval()
        with torch.inference_mode():
            assert model(torch.zeros(1, 3, *config.image)).shape == (1, 2)


def test_a_study_mirrors_no_images_whose_classes_do_not_survive_it(known_speed, tmp_path, capsys):
    """A disc left or right: with every second image mirrored no kind of positions could learn it."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:32, :32]
    for i in range(120):
        side = i % 2
        x = random.uniform(6, 12) + 14 * side
        inside = (columns - x) ** 2 + (rows - random.uniform(8, 24)) ** 2 < 16
        pixels = random.integers(0, 40, (32, 32, 3)) + 180 * inside[..., None]
        path = tmp_path / "discs" / ("left", "right")[side] / f"{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    ask = Ask(data=str(tmp_path / "discs"), seeds=1)
    for _ in range(2):  # the second time, as its directory says
        decided, _ = begin(STUDIES["positions"], ask, "40steps", tmp_path / "study", "cpu")
        augmentation = decided.recipe.data.augmentation
        assert (augmentation.flip, augmentation.crop, augmentation.auto) == (
            False,
            "pad_crop",
            False,
        )
        assert (
            "training images: switched off, because it does not preserve the classes: mirrored"
            in (capsys.readouterr().err)
        )

    # Another data set is asked for itself
    other = on_other_images(decided.recipe, "digits")
    assert other.data.source == "digits" and other.data.augmentation.auto


# What the command shows and starts


@pytest.fixture
def shown_study(ask, tmp_path):
    """A study of which one run has not ended."""
    reached = invented(STUDIES["positions"], replace(ask, seeds=3), tmp_path)
    reached = reached._replace(rows=reached.rows[:-1], curves=reached.curves[:-1])
    return StudyTable(STUDIES["positions"], reached, tmp_path)


def test_a_study_shows_its_table_what_is_missing_and_what_comes_next(shown_study, tmp_path):
    console = Console(file=io.StringIO(), width=120)
    for part in shown_study.shown():
        console.print(part, soft_wrap=True)
    text = console.file.getvalue()
    assert text.strip().startswith("Table 8: position embeddings")
    for row in STUDIES["positions"].table(shown_study.results).rows:
        assert row[-1] in text
    assert "23 of 24 cells have ended so far" in text
    assert f"wrote table.md, figure.png and results.parquet in {tmp_path}" in text
    assert f"next: vitkit.compare(), or vitkit.report(), of runs below {tmp_path}" in text
    empty = replace(shown_study, results=shown_study.results._replace(rows=[], curves=[]))
    assert list(empty.shown()) == ["nothing has been measured yet"]
    assert list(replace(shown_study, results=None).shown()) == []


def test_what_a_study_writes_says_its_size_and_its_limits(shown_study, tmp_path, capsys):
    failed = shown_study.results.rows[0]._replace(cell="broken", primary=False, error="no memory")
    results = shown_study.results
    write(replace(shown_study, results=results._replace(rows=[*results.rows, failed])))
    assert "broken failed: no memory" in capsys.readouterr().err
    text = (tmp_path / "table.md").read_text()
    assert "- 24 runs, mostly of 30 steps of 20 images; 1e-06 exaFLOPs of training" in text
    assert STUDIES["positions"].limits in text
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_a_job_gets_the_words_that_ask_for_the_same(tmp_path):
    place = StudyPlace("transfer", tmp_path, "cpu", (0, 1), 2, "local", (), False)
    asked = Ask(
        data="photos", fewshot="few", pretrain=("one", "two"), targets=("digits",), model="model",
        models=("Ti/16",), sizes=(64, 128), memory=0.5, seeds=4, regularise=True,
    )  # fmt: skip
    words = _words(place, asked, "2h", "digits")
    assert words == [
        *("study", "transfer", "--data", "photos", "--budget", "2h", "--recipe", "digits"),
        *("--fewshot", "few", "--model", "model", "--device", "cpu", "--pretrain", "one", "two"),
        *("--targets", "digits", "--models", "Ti/16", "--sizes", "64", "128", "--regularise"),
        *("--seeds", "4", "--memory", "0.5", "--workdir", str(tmp_path)),
    ]
    assert "--regularise" not in _words(place, Ask(), "", "")


@pytest.mark.parametrize(
    ("changes", "has_shard", "sentence"),
    [
        ({"jobs": -1}, False, "`jobs` is -1; it is a number of processes"),
        ({"jobs": 2}, True, "it does not go with `shard`"),
        ({"jobs": 2, "draw": True}, False, "it does not go with `jobs`"),
        ({"on": "slurm"}, False, "say how many, with `jobs`"),
        ({"job_options": ("mem=4",)}, False, "say how many, with `jobs`"),
        ({}, True, ""),
        ({"jobs": 2, "on": "slurm", "job_options": ("mem=4",)}, False, ""),
    ],
)
def test_settings_of_jobs_that_do_not_go_together(
    changes, has_shard, sentence, tmp_path, monkeypatch
):
    monkeypatch.setitem(_check.__globals__, "check_submitit", lambda: None)
    place = StudyPlace("pooling", tmp_path, "cpu", (0, 1), 0, "local", (), False)
    expected = nullcontext()
    if sentence:
        expected = pytest.raises(ValueError, match=sentence)
    with expected:
        _check(replace(place, **changes), has_shard)
