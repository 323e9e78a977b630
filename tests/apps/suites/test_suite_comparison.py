"""Several models on one suite: what is compared, the paper's figures beside it, and the command."""

import json
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex

from vitkit import cli
from vitkit.apps.suites.comparison import compare_models, comparison_markdown, draw_comparison
from vitkit.apps.suites.running import Outcome
from vitkit.apps.suites.task import Suite, Task
from vitkit.apps.suites.vtab import VTAB
from vitkit.data import Preprocessing
from vitkit.evaluation import share_right
from vitkit.models import create, vit
from vitkit.weights import Classifier, save


def outcome(suite, values, **changes):
    """The outcome of a model with these accuracies, in percent, on the first tasks of a suite."""
    metrics = {}
    for task, value in zip(suite.tasks, values, strict=False):
        if value is not None:
            right = np.arange(1000) < round(value * 10)
            metrics[task.name] = [[share_right(name, right)] for name in ("linear", "neighbours")]
    return replace(Outcome(suite, metrics, {}, {}), **changes)


OWN = Suite(
    "own", (Task("alone"), Task("birds", "natural"), Task("cats", "natural"), Task("count", "structured"))
)  # fmt: skip


def percent(row):
    return [None if metric is None else round(100 * metric.value, 2) for metric in row.values]


def test_the_means_of_figure_2_are_those_of_table_9():
    """The paper's own accuracies give the paper's bars: all 19 tasks first, then the groups."""
    theirs = [task.published for task in VTAB.tasks]
    models = {"H/14": outcome(VTAB, [h for h, _, _ in theirs])}
    models["L/16"] = outcome(VTAB, [low for _, _, low in theirs])
    compared = compare_models(models)
    assert compared.models[:2] == ("H/14", "L/16") and len(compared.models) == 5
    expected = {  # of all tasks by Table 2, which has a digit more than Table 9
        ("mean (VTAB)", ""): [77.63, 72.72, 77.63, 76.28, 72.72],
        ("mean of 7", "natural"): [86.69, 83.27, 86.69, 85.56, 83.27],
        ("mean of 4", "specialised"): [87.0, 84.65, 87.0, 86.72, 84.65],
        ("mean of 8", "structured"): [65.03, 57.5, 65.03, 62.96, 57.5],
    }
    assert [(row.name, row.group) for row in compared.rows] == list(expected)
    for row in compared.rows:
        assert percent(row) == pytest.approx(expected[row.name, row.group], abs=0.011)

    # Student's interval of Table 2's three runs: 4.303 / sqrt(3) standard deviations, 0.23 points
    low, high = compared.rows[0].values[2].interval
    assert (high - low) / 2 == pytest.approx(0.0023 * 4.3027 / 3**0.5, rel=1e-4)
    assert all(metric.interval is None for row in compared.rows[1:] for metric in row.values[2:])
    text = comparison_markdown(compared)
    assert "| 77.6 ± 0.6 | 76.3 ± 1.1 | 72.7 ± 0.5 |\n" in text  # the paper's
    assert "the models answered the same test images" in text


def test_only_tasks_that_all_models_have_are_compared():
    compared = compare_models(
        {"a": outcome(OWN, [10, 20, 40, 60]), "b": outcome(OWN, [30, None, 50, None])}
    )
    assert [(row.name, row.group, percent(row)) for row in compared.rows] == [
        ("mean of 2 of 4", "", [25, 40]),
        ("alone", "", [10, 30]),
        ("mean of 1 of 2", "natural", [40, 50]),
    ]
    assert compared.metric == "linear"
    assert compared.sentences[0].endswith("not all models have a result: birds, count")
    with pytest.raises(ValueError, match="no task has a result of each of a, b"):
        compare_models({"a": outcome(OWN, [10]), "b": outcome(OWN, [None, 20])})
    few = compare_models({"a": outcome(VTAB, [90.0]), "b": outcome(VTAB, [91.0])})
    # Over the same task, of one kind of run
    assert percent(few.rows[0]) == [
        90,
        91,
        95.3,
        95.4,
        90.8,
    ]
    assert few.rows[0].values[2].interval is None


@pytest.mark.parametrize("changed", ["a", "b"])
def test_no_mean_has_the_name_of_the_suite_unless_every_model_earned_it(changed):
    models = {name: outcome(OWN, [10, 20, 40, 60]) for name in "ab"}
    assert compare_models(models).rows[0].name == "mean (own)"
    models[changed] = replace(models[changed], deviations={"image": "images of 32 x 32"})
    assert compare_models(models).rows[0].name == "mean of 4"


def test_every_model_has_a_bar_with_its_interval_in_every_row():
    models = {"a": outcome(VTAB, [90.0] * 19), "b": outcome(VTAB, [80.0] * 19)}
    compared = compare_models(models)
    figure = draw_comparison(compared)
    axes = figure.axes[0]
    bars = [container for container in axes.containers if hasattr(container, "patches")]
    assert [[round(bar.get_height(), 2) for bar in of_model] for of_model in bars] == [
        [percent(row)[number] for row in compared.rows] for number in range(5)
    ]
    places = sorted(bar.get_x() for of_model in bars for bar in of_model)
    assert min(np.diff(places)) > 0.99  # no bar covers another
    assert axes.get_ylim()[0] == 0 and axes.get_ylabel() == "linear, %"
    colours = [to_hex(of_model[0].get_facecolor()) for of_model in bars]
    assert len(set(colours)) == 5 and all(c[1:3] == c[3:5] == c[5:] for c in colours[2:])
    whiskers = axes.collections[0].get_segments()
    assert len(axes.collections) == 2 * 4 + 3  # the paper's have an interval over all tasks alone
    low, high = compared.rows[0].values[0].interval
    assert whiskers[0][:, 1] == pytest.approx([100 * low, 100 * high])


def model_at(path, seed):
    config = vit("mu/16", image=(32, 32), classes=2, width=16, depth=1, mlp=16, heads=1)
    save(Classifier(create(config, seed=seed), Preprocessing(size=(32, 32)), ("0", "1")), path)
    return str(path)


@pytest.mark.slow
def test_the_command_compares_what_each_model_has_alone(tmp_path, monkeypatch, capsys):
    from test_suites import of_colours

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")
    of_colours(tmp_path / "tasks/first")
    of_colours(tmp_path / "tasks/second", seed=1)
    (tmp_path / "own.toml").write_text('[tasks.first]\ngroup = "natural"\n[tasks.second]\n')
    one = model_at(tmp_path / "models/one.v1", 0)
    two = model_at(tmp_path / "models/one.v2", 1)  # names that differ behind a dot alone
    words = ["suite", "own.toml", one, "--against", two, "--data", "tasks", "--device", "cpu"]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "all models, linear in percent" in out and "mean of 1, natural" in out
    assert "the models answered the same test images" in " ".join(out.split())
    first = tmp_path / "runs/own-features-one.v1"
    assert (first / "comparison.png").stat().st_size > 5000
    text = (first / "comparison.md").read_text()
    assert text.startswith("|  | group | one.v1 | one.v2 |\n")

    # Each model's own results are those of a run of its own, and run once
    before = [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("cell.json"))]
    assert cli.main(["suite", "own.toml", two, "--data", "tasks", "--device", "cpu", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert cli.main([*words, "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert [p.stat().st_mtime_ns for p in sorted(tmp_path.rglob("cell.json"))] == before
    assert "comparison" not in alone and both["comparison"]["metric"] == "linear"
    for line, row in zip(
        (alone["lines"][-1], alone["lines"][-2]), both["comparison"]["rows"][::2], strict=True
    ):
        assert row["values"]["one.v2"] == line["linear"]

    # A directory that was given has the first model's results, and its neighbours those of the others
    assert cli.main([*words, "--workdir", "mine/all"]) == 0
    assert (tmp_path / "mine/all/first/cell.json").exists()
    assert (tmp_path / "mine/all-one.v2/first/cell.json").exists()


def test_models_of_one_name_are_refused_before_anything_runs(tmp_path, capsys):
    one = model_at(tmp_path / "a/model", 0)
    two = model_at(tmp_path / "b/a", 1)
    (tmp_path / "own.toml").write_text("[tasks.first]\n")
    assert cli.main(["suite", str(tmp_path / "own.toml"), one, "--against", two]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "two models are called 'a'," in said and "leave one out, or rename it" in said
