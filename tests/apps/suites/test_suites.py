"""Suites on tiny images: what runs, what is missing, what a mean is called."""

import contextlib
import io
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from canaries import Canaries
from pictures import encoded
from rich.console import Console

from vitkit import cli
from vitkit.apps.suites import SuiteTable, running
from vitkit.apps.suites.comparison import compare_models
from vitkit.apps.suites.function import _protocol, _table, _workdirs
from vitkit.apps.suites.images import TaskImages, find
from vitkit.apps.suites.measurements import Frozen
from vitkit.apps.suites.robustness import ROBUSTNESS
from vitkit.apps.suites.running import LIGHT, PAPER, FineTuning, Outcome, run_suite
from vitkit.apps.suites.table import cell, lines, markdown, mean, over_seeds
from vitkit.apps.suites.task import Suite, Task, read_suite
from vitkit.apps.suites.vtab import (
    VTAB,
    clevr_count,
    clevr_distance,
    dsprites_class,
    kitti_distance,
)
from vitkit.data import Preprocessing, open_parts
from vitkit.evaluation import SHARE, Fewshot, Metric, Part, Subject, share_right
from vitkit.models import create, vit
from vitkit.recipes.table_4 import TASKS
from vitkit.system.span import Span
from vitkit.training import Row
from vitkit.weights import Classifier, Hints, load, save

# Table 9 of the paper, ViT-H/14 pre-trained on JFT
TABLE_9 = [95.3, 85.5, 75.2, 99.7, 97.2, 65.0, 88.9, 83.3, 96.7, 91.4]
TABLE_9 += [76.6, 91.7, 63.8, 53.1, 79.4, 63.3, 84.5, 33.2, 51.2]


def of_colours(folder, lists=False, seed=0):
    """A task that any features solve: red and blue squares, 4 a class to learn from, 3 to test."""
    random = np.random.default_rng(seed)
    for part, count in (("train", 3), ("val", 1), ("test", 3)):
        lines = []
        for label, name in enumerate(("blue", "red")):
            for i in range(count):
                pixels = random.integers(0, 40, (32, 32, 3), dtype=np.uint8)
                pixels[..., 2 - 2 * label] += 200
                path = folder / part / name / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(encoded(pixels, "PNG"))
                lines.append(f"{part}/{name}/{i}.png {label}")
        if lists:
            file = {"train": "train800", "val": "val200", "test": "test"}[part]
            (folder / f"{file}.txt").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model, two tasks, one that is broken, and the suite of them."""
    folder = tmp_path_factory.mktemp("suite")
    of_colours(folder / "tasks/first")
    of_colours(folder / "tasks/second", lists=True, seed=1)
    (folder / "tasks/broken").mkdir()
    config = vit("mu/16", image=(32, 32), classes=2, width=16, depth=1, mlp=16, heads=1)
    classifier = Classifier(create(config, seed=0), Preprocessing(size=(32, 32)), ("0", "1"))
    save(classifier, folder / "model")
    (folder / "own.toml").write_text(
        '[tasks.first]\ngroup = "natural"\n[tasks.second]\ngroup = "structured"\n'
        '[tasks.broken]\ngroup = "structured"\n'
    )
    return folder


def results(folder):
    """When each finished cell was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.rglob("cell.json")}


# The runner


def test_a_lopsided_interval_is_a_range():
    assert cell(share_right("top1", np.arange(10) < 10)) == "100.0 (72.2 to 100.0)"
    assert cell(share_right("top1", np.arange(1000) < 724)) == "72.4 ± 2.8"


def test_no_number_of_a_narrow_table_is_cut():
    """At 80 columns 61.8 ± 15.5 was 61.8 ± 1."""
    names = ("linear", "left_out", "5-shot", "10-shot", "neighbours")
    share = Metric("", 0.618, SHARE, (0.463, 0.773))
    by_column = [[replace(share, name=name)] for name in names]
    task = Task("a task with a very long name that a person may have given it")
    suite = Suite("own", (task,))
    outcome = Outcome(suite, {task.name: by_column}, {}, {})
    for width in (60, 80, 100):
        console = Console(file=io.StringIO(), width=width)
        console.print(_table(outcome))
        printed = console.file.getvalue()
        assert printed.count("61.8") == printed.count("15.5") == 2 * len(names), printed
        assert max(map(len, printed.splitlines())) <= width


@pytest.mark.slow
def test_what_is_there_runs_what_is_not_is_said_and_nothing_runs_twice(
    place, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")
    words = ["suite", str(place / "own.toml"), str(place / "model"), "--data", str(place / "tasks")]
    words += ["--workdir", str(tmp_path / "run"), "--device", "cpu"]
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    assert "first" in out and "mean of 1 of 2" in out and "mean of 2 of 3" in out
    assert "mean (own)" not in out and "broken: " in err and "no images" in err
    before = results(tmp_path / "run")
    assert set(before) == {"first", "second"}

    assert cli.main([*words, "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert results(tmp_path / "run") == before
    first = table["lines"][0]
    assert list(first)[3:] == ["linear", "left_out", "5-shot", "10-shot", "neighbours"]
    assert first["linear"]["value"] == 1 and first["neighbours"]["value"] == 1
    text = (tmp_path / "run/table.md").read_text()
    assert text.startswith("| task | group | linear | left_out | 5-shot |")


@pytest.mark.slow
def test_shards_share_a_suite(place, tmp_path, monkeypatch):
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    suite = Suite("two", (Task("first"), Task("second")))
    model, tasks = str(place / "model"), str(place / "tasks")
    part = run_suite(suite, model, tasks, tmp_path / "run", device="cpu", shard=(1, 2))
    assert set(part.metrics) == {"second"} and part.reasons == {"first": "has not run yet"}
    whole = run_suite(suite, model, tasks, tmp_path / "run", device="cpu", shard=(0, 2))
    assert set(whole.metrics) == {"first", "second"} and whole.is_whole
    with pytest.raises(ValueError, match="shard is 2 of 2"):
        run_suite(suite, model, tasks, tmp_path / "run", shard=(2, 2))


def test_few_shot_accuracy_is_that_of_the_evaluator(place, monkeypatch, tmp_path):
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    images = str(place / "tasks/first")
    frozen = Frozen(str(place / "model"), "", images, "", shots=(1, 2))
    classifier = load(place / "model", quiet=True).for_inference()
    sources = open_parts(images).sources
    part = Part(sources["test"], None, sources["train"])
    expected = {m.name: m for m in Fewshot((1, 2)).measure(Subject(classifier), part)}
    measured = {metric.name: metric for metric in frozen.measure("cpu")}
    for name in ("1-shot", "2-shot"):
        assert measured[name].value == expected[f"{name}/top1"].value
        assert measured[name].interval == expected[f"{name}/top1"].interval


def test_changed_images_are_no_finished_task(place, tmp_path, monkeypatch):
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    of_colours(tmp_path / "tasks/first")
    suite = Suite("one", (Task("first"),))
    model, tasks = str(place / "model"), str(tmp_path / "tasks")
    run_suite(suite, model, tasks, tmp_path / "run", device="cpu")
    (tmp_path / "tasks/first/test/red/2.png").unlink()
    with pytest.raises(ValueError, match="holds a run of another recipe .digest: "):
        run_suite(suite, model, tasks, tmp_path / "run", device="cpu")


@pytest.mark.slow
def test_fine_tuning_chooses_a_setting_for_each_task_and_runs_every_seed(place, tmp_path):
    suite = Suite("two", (Task("first"), Task("second", flip=False, crop=False)))
    protocol = FineTuning(rates=(1e-9, 0.1), steps=(3,), batch=4)
    outcome = run_suite(
        suite, str(place / "model"), str(place / "tasks"), tmp_path, protocol,
        seeds=2, hints=Hints(image=(32, 32)), device="cpu",
    )  # fmt: skip
    assert [len(seeds) for [seeds] in outcome.metrics.values()] == [2, 2]
    assert len(list(tmp_path.glob("select/*/*/model"))) == 4
    augmentations = {}
    for path in tmp_path.glob("*/seed-0/recipe.json"):
        recipe = json.loads(path.read_text())
        assert recipe["data"]["parts"] == "final" and recipe["batch"] == 4
        values = recipe["data"]["augmentation"]
        augmentations[path.parents[1].name] = (values["crop"], values["flip"])
    assert augmentations == {"first": ("resize_crop", True), "second": ("none", False)}
    assert not outcome.is_whole
    assert {"settings", "image"} <= outcome.deviations.keys()


def test_a_folder_without_any_task_is_an_error_that_says_where_to_get_them(place, tmp_path, capsys):
    assert cli.main(["suite", "vtab", str(place / "model"), "--data", str(tmp_path)]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "has the images of no task (caltech101, cifar, dtd, ...)" in error
    assert "https://data.caltech.edu" in error


# The table


def with_values(values, **changes):
    """An outcome of VTAB with these accuracies, in percent, of its first tasks."""
    metrics = {}
    for task, value in zip(VTAB.tasks, values, strict=False):
        metrics[task.name] = [[share_right("top1", np.arange(1000) < value * 10)]]
    return replace(Outcome(VTAB, metrics, {}, {}), **changes)


def test_the_means_are_those_of_table_9():
    table = {line[:2]: line for line in lines(with_values(TABLE_9)) if line.is_mean}
    means = {name: round(line.values[0].value * 100, 2) for name, line in table.items()}
    assert means == {
        ("mean of 7", "natural"): 86.69,
        ("mean of 4", "specialised"): 87.0,
        ("mean of 8", "structured"): 65.03,
        ("mean (VTAB)", ""): 77.63,
    }


def test_the_papers_figures_stand_beside_ones_own():
    """Table 9's three models, whose means over all tasks the paper states: 77.6, 76.3 and 72.7."""
    outcome = with_values(TABLE_9)
    last = lines(outcome)[-1]
    assert [round(figure, 1) for figure in last.published] == [77.6, 76.3, 72.7]
    assert tuple(task.published[0] for task in VTAB.tasks) == tuple(TABLE_9)
    text = markdown(outcome)
    assert (
        "| task | group | top1 | paper: H/14, JFT | paper: L/16, JFT | paper: L/16, I21k |" in text
    )
    assert re.search(r"\| Caltech101 \| natural \| 95.3 [^|]*\| 95.3 \| 95.4 \| 90.8 \|", text)
    few = with_values(TABLE_9[:2])  # means are over the same tasks
    assert lines(few)[-1].published[0] == pytest.approx((95.3 + 85.5) / 2)
    first, *others = few.suite.tasks  # a mean of some tasks is none beside a mean of all
    unpublished = replace(few.suite, tasks=(replace(first, published=()), *others))
    assert lines(replace(few, suite=unpublished))[-1].published == ()


@pytest.mark.parametrize(
    "outcome",
    [
        with_values(TABLE_9[:18]),
        with_values(TABLE_9, deviations={"cifar": "50,000 images to learn from instead of 1,000"}),
    ],
)
def test_no_mean_is_called_vtab_that_is_not_over_all_19_on_their_images(outcome):
    last = lines(outcome)[-1]
    assert "VTAB" not in last.name and f"{len(outcome.metrics)}" in last.name
    assert "(VTAB)" not in markdown(outcome)


def test_the_interval_of_a_mean_adds_the_squares_of_half_widths():
    rows = [
        [replace(share_right("top1", np.arange(10) < 5), interval=(0.5 - w, 0.5 + w))]
        for w in (0.03, 0.04)
    ]
    [metric] = mean(rows)
    assert metric.interval == pytest.approx((0.475, 0.525))


def test_no_mean_s_interval_goes_beyond_all_and_none():
    alone = share_right("top1", np.arange(10) < 10)
    assert mean([[alone]])[0].interval == pytest.approx(alone.interval)
    ends = [
        mean([[alone], [alone]])[0],
        over_seeds([alone, share_right("top1", np.arange(10) < 9)]),
    ]
    assert [metric.interval[1] for metric in ends] == [1.0, 1.0]


# VTAB


def test_vtab_has_the_paper_s_tasks_groups_and_protocols():
    groups = [task.group for task in VTAB.tasks]
    assert [groups.count(group) for group in ("natural", "specialised", "structured")] == [7, 4, 8]
    assert {task.train for task in VTAB.tasks} == {1000}
    assert (PAPER.rates, PAPER.steps, PAPER.batch) == ((0.01,), (2500,), 512)
    assert LIGHT.settings == [(0.1, 2500), (0.1, 10_000), (0.01, 2500), (0.01, 10_000)]
    unmirrored = {task.name for task in VTAB.tasks if not task.flip}
    assert unmirrored == {"dsprites_loc", "dsprites_ori", "smallnorb_azi"}
    uncropped = {task.name for task in VTAB.tasks if not task.crop}
    assert uncropped == {"clevr_count", "clevr_dist", "dmlab", "dsprites_loc", "kitti"}
    assert {task.name for task in VTAB.tasks} == set(TASKS)


def test_labels_follow_the_rules_of_task_adaptation():
    assert [clevr_count(3), clevr_count(10)] == [0, 7]
    assert [clevr_distance([d, 50]) for d in (7.9, 8, 8.2, 8.7, 9.1, 9.6, 11)] == [
        0,
        0,
        1,
        2,
        3,
        4,
        5,
    ]
    assert kitti_distance([3], [1.0]) == 3  # a pedestrian is no vehicle
    assert [kitti_distance([0, 5], [z, 1.0]) for z in (5, 8, 15, 30)] == [0, 0, 1, 2]
    assert [dsprites_class(value, 40) for value in (0, 2, 3, 39)] == [0, 0, 1, 15]
    assert [dsprites_class(value, 32) for value in (0, 1, 2, 31)] == [0, 0, 1, 15]
    with pytest.raises(ValueError, match="3 to 10 objects, not 11"):
        clevr_count(11)


# Files


def test_lists_of_vtab_1k_are_read_and_the_union_only_alone(tmp_path):
    of_colours(tmp_path, lists=True)
    (tmp_path / "train800val200.txt").write_text("nothing here")
    sources = open_parts(str(tmp_path)).sources
    assert {part: len(source) for part, source in sources.items()} == {
        "train": 6,
        "val": 2,
        "test": 6,
    }
    assert sources["test"].targets.tolist() == [0, 0, 0, 1, 1, 1]
    (tmp_path / "val200.txt").unlink()
    with pytest.raises(ValueError, match="train800val200.txt line 1 is 'nothing here'"):
        open_parts(str(tmp_path))
    (tmp_path / "train800val200.txt").write_text("../../secret.png 1")
    with pytest.raises(ValueError, match="leads out of"):
        open_parts(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tasks = 3", "has no tasks"),
        ("[tasks.a]\ngruop = 'x'", "sets 'gruop' of the task a; there are group"),
        ("[tasks.a]\ntrain = 'x'", "train of the task a to 'x'; it is a whole number"),
        ("[tasks.'a/b']", "its name is that of a folder"),
        ("[tasks.a.columns]\nlable = 'x'", "sets 'lable' of the task a; there are image"),
        ("[tasks", "is not TOML"),
        ("title = 1\n[tasks.a]", "sets 'title'"),
    ],
)
def test_a_suite_that_is_malformed_gets_a_sentence(text, message, tmp_path):
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_suite(tmp_path / "own.toml")


@pytest.mark.parametrize(
    ("value", "message"),
    [("[" * 3000 + "]" * 3000, "nested too deeply"), ("1" * 5000, "number of too many digits")],
)
def test_a_suite_that_python_cannot_read_gets_a_sentence(value, message, tmp_path):
    (tmp_path / "own.toml").write_text(f"[tasks.d]\ndata = {value}\n")
    with pytest.raises(ValueError, match=f"own.toml is not TOML of a suite.*{message}"):
        read_suite(tmp_path / "own.toml")


def test_settings_that_cannot_be_are_refused(place, capsys):
    words = ["suite", str(place / "own.toml"), str(place / "model"), "--data", str(place / "tasks")]
    for more, message in (
        (["--rates", "0.1"], "are for fine-tuning"),
        (["--tasks", "third"], "has no task 'third'; it has first, second, broken"),
        (["--protocol", "paper", "--seeds", "0"], "--seeds is 0"),
    ):
        assert cli.main([*words, *more]) == 1
        assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("number", [0, -0.1, math.nan, math.inf])
def test_rates_are_above_0_and_finite(number):
    with pytest.raises(ValueError, match=r"rates are .*; give one or more, above 0"):
        FineTuning(rates=(0.01, number))


def test_lengths_and_batches_are_above_0():
    for steps in ((), (0,), (500, -1)):
        with pytest.raises(ValueError, match=r"steps are .*; give one or more, above 0"):
            FineTuning(steps=steps)
    with pytest.raises(ValueError, match="`batch` is 0; it is at least 1"):
        FineTuning(batch=0)
    assert FineTuning(rates=(1e-9,), steps=(1,), batch=1).settings == [(1e-9, 1)]


# Suites from a stranger


@pytest.fixture
def canaries(tmp_path):
    with contextlib.closing(Canaries(tmp_path / "canaries")) as planted:
        yield planted


@pytest.mark.parametrize("protocol", ["features", "light"])
@pytest.mark.parametrize("form", ["[tasks.a]\ndata = '{}'", "[tasks.'{}']"])
def test_a_suite_runs_no_code(protocol, form, place, canaries, capsys, monkeypatch):
    monkeypatch.chdir(canaries.folder)
    (canaries.folder / "theirs.toml").write_text(form.format("evil.py:sing"))
    words = ["suite", "theirs.toml", str(place / "model"), "--protocol", protocol]
    assert cli.main([*words, "--from-hub"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "theirs.toml names the Python function evil.py:sing, and vitkit runs no code" in said
    assert canaries.sang() == []


@pytest.mark.parametrize("kind", ["address", "braces"])
def test_a_suite_fetches_nothing_that_nobody_asked_for(kind, place, canaries, capsys, monkeypatch):
    address = getattr(canaries, kind)
    monkeypatch.chdir(canaries.folder)
    (canaries.folder / "theirs.toml").write_text(f"[tasks.a]\ndata = '{address}'")
    words = ["suite", "theirs.toml", str(place / "model")]
    assert cli.main(words) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "vitkit fetches nothing that a file names; --from-hub fetches it" in said
    assert canaries.sang() == []

    # With --from-hub it is opened
    asked = []
    monkeypatch.setattr(
        "vitkit.apps.suites.images._images", lambda where, columns: asked.append(where)
    )
    find(Task("a", data=address), ".", canaries.folder, from_hub=True)
    assert asked == [address] or kind == "braces"


# What the command shows


def test_the_command_shows_each_task_below_its_group_and_what_comes_next(tmp_path):
    shown = SuiteTable("runs/a", "features", with_values(TABLE_9[:8]), tmp_path)
    console = Console(file=io.StringIO(), width=80)
    for part in shown.shown():
        console.print(part, soft_wrap=True)
    lines_shown = console.file.getvalue().splitlines()
    assert lines_shown[0] == "runs/a on VTAB, protocol features: top-1 in percent"
    names = [line.split("  ")[0].strip() for line in lines_shown if line.strip()]
    assert names.index("natural") + 1 == names.index("Caltech101")
    assert names.index("specialised") + 1 == names.index("Camelyon")
    assert "mean of 7, natural" in names and "mean of 1 of 4, specialised" in names
    assert lines_shown[-2] == f"wrote table.md and results.parquet in {tmp_path}"
    assert lines_shown[-1].startswith("next: the same with `protocol='paper'`")
    first, *_ = shown.rows()
    assert first == {"task": "Caltech101", "group": "natural", "mean": False, "top1": 0.953}
    values = json.loads(next(iter(replace(shown, json=True).shown())))
    assert values["suite"] == "VTAB" and values["lines"][0]["name"] == "Caltech101"
    assert values["lines"][0]["top1"]["value"] == 0.953


@pytest.mark.parametrize(
    ("model", "folder"),
    [
        ("runs/pets/model", "vtab-features-pets"),
        ("some where/m.npz", "vtab-features-m"),
    ],
)
def test_results_have_a_folder_for_each_model(model, folder, tmp_path):
    places = _workdirs([model, "other"], VTAB, "features", None)
    assert list(places) == [model, "other"]
    assert places["other"].as_posix() == "runs/vtab-features-other"
    assert places[model].as_posix() == f"runs/{folder}"
    given = _workdirs([model, "other"], VTAB, "features", tmp_path / "here")
    assert given == {model: tmp_path / "here", "other": tmp_path / "here-other"}
    with pytest.raises(ValueError, match="two models are called 'other', a/other and b/other"):
        _workdirs(["a/other", "b/other"], VTAB, "features", None)


def test_a_protocol_takes_what_it_trains_with():
    assert _protocol("features", VTAB, 1, {"rates": (), "batch": 0}) == "features"
    changed = _protocol("light", VTAB, 3, {"rates": (0.1,), "steps": (), "batch": 64})
    assert (changed.rates, changed.steps, changed.batch) == ((0.1,), LIGHT.steps, 64)
    for seeds, asked in ((2, {}), (1, {"batch": 8})):
        with pytest.raises(ValueError, match="are for fine-tuning; give `protocol='paper'`"):
            _protocol("features", VTAB, seeds, asked)
        with pytest.raises(ValueError, match="robustness measures a model as it is"):
            _protocol("paper", ROBUSTNESS, seeds, asked)


# Fine-tuning's runs


def test_every_setting_of_every_task_is_tried_and_the_best_runs_with_every_seed(place):
    images = TaskImages(str(place / "tasks/first"), 8, 6, 2, "digest")
    protocol = FineTuning(rates=(0.1, 0.01), steps=(100, 7), batch=64)
    tasks = {Task("first", "natural", "First"): images}
    model = str(place / "model")
    tried = running._selection_cells(protocol, model, tasks, Hints())
    assert [cell.name for cell in tried] == [
        "select/first/lr-0.1-steps-100",
        "select/first/lr-0.1-steps-7",
        "select/first/lr-0.01-steps-100",
        "select/first/lr-0.01-steps-7",
    ]
    assert tried[0].title == "First, learning rate 0.1, 100 steps, on held-out images"
    assert all(cell.recipe.data.parts == "select" for cell in tried)
    one = FineTuning(rates=(0.1,), steps=(100,))
    assert running._selection_cells(one, model, tasks, Hints()) == []

    final = running._final_cells(protocol, model, tasks, Hints(), {"first": (0.01, 7)}, (3, 4))
    assert [(cell.name, cell.title) for cell in final] == [
        ("first/seed-3", "First, seed 3"),
        ("first/seed-4", "First, seed 4"),
    ]
    assert final[1].settings == {"task": "first", "lr": 0.01, "steps": 7, "seed": 4}
    recipe = final[1].recipe
    assert (recipe.seed, recipe.optim.lr, recipe.batch, recipe.keep) == (4, 0.01, 64, 1)
    assert (recipe.length, recipe.evaluate_every, recipe.save_every) == (Span(7), Span(7), Span(1))
    assert recipe.optim.warmup == Span(1) and tried[0].recipe.optim.warmup == Span(20)
    assert recipe.name == "suite-first" and tried[0].recipe.save_every == Span(10)
    assert running._final_cells(protocol, model, tasks, Hints(), {}, (3,)) == []


def test_of_equal_settings_the_first_is_the_best():
    rows = []
    for task, lr, value in (("a", 0.1, 0.5), ("a", 0.01, 0.6), ("a", 0.001, 0.6), ("b", 0.1, 0.2)):
        settings = {"task": task, "lr": lr, "steps": 10}
        rows.append(Row("cell", settings, Metric("val/top1", value, SHARE), True, 10))
    rows.append(rows[0]._replace(primary=False, metric=Metric("val/other", 0.9, SHARE)))
    assert running._best(rows) == {"a": (0.01, 10), "b": (0.1, 10)}


def test_models_side_by_side_are_a_table_and_plain_values(tmp_path):
    outcomes = {"a": with_values(TABLE_9), "b": with_values(TABLE_9[:7])}
    compared = compare_models(outcomes)
    shown = SuiteTable("a", "features", outcomes["a"], tmp_path, compared)
    console = Console(file=io.StringIO(), width=120)
    for part in shown.shown():
        console.print(part, soft_wrap=True)
    text = console.file.getvalue()
    assert "all models, top1 in percent" in text and "mean of 7, natural" in text
    assert (
        f"wrote table.md, results.parquet, comparison.md and comparison.png in {tmp_path}" in text
    )
    assert all(sentence in text for sentence in compared.sentences)
    values = shown.to_json()["comparison"]
    assert values["metric"] == "top1" and values["remarks"] == list(compared.sentences)
    first = values["rows"][0]
    assert (first["name"], first["group"]) == ("mean of 7 of 19", "")
    assert list(first["values"]) == ["a", "b", *VTAB.published]
    assert first["values"]["a"]["value"] == pytest.approx(np.mean(TABLE_9[:7]) / 100)
    none = compared.rows[0].__class__("x", "", (None,) * 5)
    empty = replace(compared, rows=(none,))
    values = replace(shown, comparison=empty).to_json()["comparison"]["rows"][0]["values"]
    assert set(values.values()) == {None}
