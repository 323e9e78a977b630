"""The report of a run: what the run kept, what is computed when someone asks, and several side by
side."""

import contextlib
import html
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from margins import at_most

from vitkit import models
from vitkit.apps.report import report as reports
from vitkit.cli.entry import main
from vitkit.data import Augmentation
from vitkit.evaluation import read_answers, write_answers
from vitkit.objectives import MaskedAutoencoder
from vitkit.recipes import Recipe, recipe
from vitkit.system.span import Span
from vitkit.training import (
    open_part,
    read_run,
    report,
    results,
    run_recipe,
    settings,
    to_json,
    verdict,
    write_comparison,
)
from vitkit.training.record.values import defaults
from vitkit.training.reports.comparison import metric_panels
from vitkit.training.reports.report import settings_section
from vitkit.weights import load


def short(**changes):
    digits = recipe("digits")
    optim = replace(digits.optim, warmup=Span(2))
    data = replace(digits.data, workers=0, augmentation=Augmentation(crop="none", flip=False))
    model = replace(digits.model, width=32, depth=2, mlp=64, heads=2)
    digits = replace(
        digits,
        model=model,
        data=data,
        optim=optim,
        length=Span(12),
        evaluate_every=Span(6),
        log_every=3,
    )
    return replace(digits, **changes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        run_recipe(short(seed=seed), folder / f"seed{seed}", "cpu")
    return folder


def headings(page: str) -> list[str]:
    return re.findall("<h2>(.*?)</h2>", page)


@pytest.mark.slow
def test_the_answers_of_the_last_evaluation_are_kept(runs):
    """They give the very numbers that were written down, and those of the finished model."""
    kept = read_answers(runs / "seed0" / "answers.safetensors")
    run = read_run(runs / "seed0")
    assert (kept.part, kept.step, len(kept.answers)) == ("test", 12, run.data["counts"]["test"])
    assert kept.answers.right.mean() == run.primary().value
    source = open_part(run, "test")
    model = load(runs / "seed0", quiet=True)
    for i in (0, 5):
        (answer,) = model.logits(model.batch([source[i][0]])).argmax(1).tolist()
        assert answer == kept.answers.predicted[i]
        assert source.targets[i] == kept.answers.truth[i]


@pytest.mark.slow
def test_a_small_model_is_reported_on_at_the_end_of_its_run(runs):
    page = report(runs / "seed0").read_text()
    assert headings(page)[:4] == [
        "Last evaluation", "Curves", "Which classes are confused", "Most confident mistakes",
    ]  # fmt: skip
    assert "Filters" not in page and "adds its filters" in page
    assert page.count("weakest class: ") == 1
    assert page.index("% right") < page.index("weakest class: ") < page.index("Last evaluation")
    mistakes = page[page.index("Most confident mistakes") : page.index("<h2>Data")]
    assert mistakes.count("<figure>") == 24 and "gallery pairs" in mistakes

    # The summary, the cost and the machine
    top1 = read_run(runs / "seed0").primary().text()
    words = f"from scratch, on 1,438 training images of digits: test/top1 is {top1} after 12 steps"
    assert words in page
    for text in ("1,152", "exaFLOPs", "2.35e-09", "PyTorch", "threads a process"):
        assert text in page, text
    for curve in ("training loss", "learning rate", "gradient norm", "waiting for data"):
        assert f'alt="{curve} by step"' in page
    assert page.index(">optim.lr<") < page.index("other settings, at their defaults")
    assert page.index("other settings, at their defaults") < page.index(">optim.momentum<")


@pytest.mark.slow
def test_what_is_asked_for_is_computed(runs, tmp_path, capsys):
    """Answers that were not kept come out as they were; and the inside of the model is shown."""
    run_dir = runs / "seed1"
    before = report(run_dir).read_text()
    (run_dir / "answers.safetensors").rename(tmp_path / "answers")
    assert "Which classes are confused" not in report(run_dir).read_text()
    assert main(["report", str(run_dir), "--output", str(tmp_path / "page.html")]) == 0
    assert f"wrote {tmp_path / 'page.html'}" in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text()
    for title in ("Filters", "Position embeddings", "Attention distance"):
        assert title in headings(page)
    (tmp_path / "answers").rename(run_dir / "answers.safetensors")
    section = r"Which classes are confused.*?</table>"
    assert re.search(section, page, re.S)[0] == re.search(section, before, re.S)[0]


@pytest.mark.slow
def test_images_that_are_gone_or_others_are_a_sentence(runs, tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    for file in (runs / "seed0").glob("*.*"):
        (run_dir / file.name).write_bytes(file.read_bytes())
    data = json.loads((run_dir / "data.json").read_text())
    changed = data | {"fingerprint": data["fingerprint"] | {"test": "another"}}
    (run_dir / "data.json").write_text(json.dumps(changed))
    page = report(run_dir, inside=True).read_text()
    assert "The images of test cannot be opened again: &#x27;digits&#x27; has changed" in page
    assert "Which classes are confused" in page  # that needs no image
    assert "The run has no finished model yet" in page

    # Answers of another step are not the run's, and a damaged file is none
    lines = (run_dir / "metrics.jsonl").read_text()
    later = json.dumps({"event": "skipped", "step": 14, "loss": 1.0})
    (run_dir / "metrics.jsonl").write_text(f"{lines}{later}\n")
    assert "Which classes are confused" not in report(run_dir).read_text()
    (run_dir / "metrics.jsonl").write_text(lines)
    (run_dir / "answers.safetensors").write_bytes(b"no answers")
    assert read_answers(run_dir / "answers.safetensors") is None
    assert "Which classes are confused" not in report(run_dir).read_text()
    with pytest.raises(ValueError, match="is no run"):
        report(tmp_path)


@pytest.mark.slow
def test_a_run_without_model_and_answers_is_reported_on(runs, tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    for file in (runs / "seed0").glob("*.json*"):
        (run_dir / file.name).write_bytes(file.read_bytes())
    page = report(run_dir, inside=True).read_text()
    assert "The run has no finished model yet" in page
    assert "Which classes are confused" not in page


@pytest.mark.slow
@pytest.mark.whole_reports
def test_masked_pretraining_shows_its_pictures_and_costs_less(runs, tmp_path):
    """A quarter of the patches goes through the encoder: fewer operations an image than
    classification takes, decoder and all."""
    objective = MaskedAutoencoder(width=32, depth=1, heads=2)
    masked = short(objective=objective, length=Span(3), evals=())
    masked = replace(masked, model=replace(masked.model, depth=8))
    run_recipe(masked, tmp_path / "mae", "cpu")
    page = report(tmp_path / "mae", inside=True).read_text()
    assert "Inputs and predictions of the objective" in page and "Filters" in page
    assert "Which classes are confused" not in page
    exaflops = json.loads((tmp_path / "mae" / "begun.json").read_text())["exaflops_of_an_image"]
    assert exaflops > 0
    at_most(exaflops, 0.7 * models.exaflops(masked.model, 1))
    assert re.search("objective.class</th><td>MaskedAutoencoder</td><td>Supervised<", page)


@pytest.mark.slow
def test_several_runs_side_by_side(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [str(runs / "seed0"), str(runs / "seed1")]
    assert main(["report", *words]) == 0
    out = capsys.readouterr().out
    assert "wrote runs.html" in out and "images seen" in out
    page = (tmp_path / "runs.html").read_text()
    assert "<th>seed</th><td>0</td><td>1</td>" in page
    assert main(["report", *words, words[0]]) == 1
    assert "seed0 is given twice" in capsys.readouterr().err
    assert main(["report"]) != 0
    capsys.readouterr()
    assert main(["report", str(runs)]) == 1
    err = " ".join(capsys.readouterr().err.split())
    assert "is not a run, but holds 2 runs: vitkit report" in err


def test_the_defaults_of_each_part_are_those_of_its_class():
    digits = replace(short(), objective=MaskedAutoencoder(rate=0.5))
    values = to_json(digits)
    usual = defaults(values, Recipe)
    assert usual["optim"]["lr"] == 0.001 and usual["model"]["width"] == 768
    assert usual["objective"]["class"] == "Supervised"
    assert usual["objective"]["rate"] == MaskedAutoencoder().rate
    page = settings_section(values)
    assert re.search(r"objective.rate</th><td>0.5</td>", page)
    assert page.index("objective.rate") < page.index("at their defaults")
    unknown = settings_section({**values, "objective": {"class": "mine.py:Own", "depth": 3}})
    assert re.search(r"objective.depth</th><td>3</td><td>none</td>", unknown)


# Runs side by side


@pytest.fixture(scope="module")
def compared(tiny, quiet, tmp_path_factory):
    """Two short runs on digits, with two learning rates."""
    folder = tmp_path_factory.mktemp("runs")
    tiny = replace(tiny, length=Span(12), evaluate_every=Span(6), log_every=3)
    for name, lr in (("fast", 0.003), ("slow", 1e-6)):
        optim = replace(tiny.optim, lr=lr, warmup=Span(2))
        run_recipe(replace(tiny, optim=optim), folder / name, "cpu", quiet)
    return folder


@pytest.mark.slow
def test_what_differs_and_what_was_reached(compared):
    first, second = read_run(compared / "fast"), read_run(compared / "slow")
    assert settings([first, second]) == [("optim.lr", ("0.003", "1e-06"))]
    assert settings([first, first]) == []
    rows = {row.name: row.values for row in results([first, second])}
    assert next(iter(rows)) == "test/top1" and "%" in rows["test/top1"][0]
    assert rows["steps"] == ("12", "12") and rows["images seen"] == ("600", "600")
    points = first.points()["test/top1"]
    assert [step for step, _ in points] == [6, 12]
    assert rows["test/top1"][0] == points[-1][1].text()


def test_what_was_measured_once_is_no_curve(compared):
    runs = {name: read_run(compared / name) for name in ("fast", "slow")}
    assert "test/top1" in [panel.title for panel in metric_panels(runs)]
    for run in runs.values():
        run.lines[:] = [line for line in run.lines if line.get("step") == 12]
    assert not metric_panels(runs)


def test_the_best_evaluation_is_named_if_it_was_not_the_last(compared):
    first = read_run(compared / "fast")
    for line in first.lines:
        if line.get("metrics") and line["step"] == 6:
            line["metrics"]["test/top1"] = replace(line["metrics"]["test/top1"], value=0.999)
    rows = {row.name: row.values for row in results([first, read_run(compared / "slow")])}
    assert rows["test/top1, at its best"][0] == "99.90 % at step 6"


def test_the_verdict_says_when_there_is_none(compared):
    first, second = read_run(compared / "fast"), read_run(compared / "slow")
    assert "test/top1 is the same in all" in verdict([first, first])
    assert "by test/top1" in verdict([first, second]) or "same in all" in verdict([first, second])
    other = replace(second, data=second.data | {"fingerprint": {"train": "", "test": "another"}})
    assert "measured on different images" in verdict([first, other])
    assert "so neither is better" in verdict([first, replace(second, lines=[])])
    assert "so none is better" in verdict([first, second, replace(second, lines=[])])


def test_a_page_of_runs_has_the_settings_in_which_they_differ(compared, tmp_path):
    """Without curves, which take a second to draw."""
    runs = [read_run(compared / name) for name in ("fast", "slow")]
    for run in runs:
        run.lines[:] = [line for line in run.lines if line["event"] == "evaluation"][-1:]
    page = write_comparison(tmp_path / "runs.html", runs, ["a note"]).read_text()
    assert "a note" in page and verdict(runs) in html.unescape(page)
    cells = re.findall("<t[dh][^>]*>(.*?)</t[dh]>", page)
    place = cells.index("optim.lr")
    assert cells[place : place + 3] == ["optim.lr", "0.003", "1e-06"]
    same = write_comparison(tmp_path / "same.html", [runs[0], runs[0]]).read_text()
    assert "None: the recipes are equal." in same


def with_top1(run, name, value, interval):
    """The same run with another result."""
    lines = []
    for line in run.lines:
        if "test/top1" in line.get("metrics", {}):
            top1 = replace(line["metrics"]["test/top1"], value=value, interval=interval)
            line = line | {"metrics": line["metrics"] | {"test/top1": top1}}
        lines.append(line)
    return replace(run, lines=lines, run_dir=run.run_dir.with_name(name))


def test_the_best_of_three_and_those_that_may_be_as_good(compared):
    one = read_run(compared / "fast")
    three = [
        with_top1(one, "a", 0.5, (0.45, 0.55)),
        with_top1(one, "b", 0.9, (0.85, 0.95)),
        with_top1(one, "c", 0.88, (0.83, 0.93)),
    ]
    sentence = verdict(three)
    assert "b is best by test/top1" in sentence
    assert f"overlaps with that of {three[2].run_dir}:" in sentence
    sentence = verdict(three[:2])
    assert sentence == f"{three[1].run_dir} is better than {three[0].run_dir} by test/top1"


@pytest.mark.whole_reports
@pytest.mark.slow
def test_the_command_prints_and_writes_a_page(compared, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["compare", str(compared / "fast"), str(compared / "slow")]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "optim.lr" in out and "test/top1" in out and "wrote comparison.html" in out
    page = (tmp_path / "comparison.html").read_text()
    assert page.count("<img class=drawing") == 7  # four of the training, and three metrics
    assert "optim.lr" in page and "1e-06" in page

    # As JSON; and what is no run
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"] == {"optim.lr": ["0.003", "1e-06"]}
    (compared / "slow" / "metrics.jsonl").rename(tmp_path / "elsewhere")
    assert main(words) == 1
    assert "has not trained yet" in capsys.readouterr().err


DAMAGED = {
    "recipe.json": [
        b"[" * 100_000,
        b"[]",
        {"data": "photos"},
        {"data": {}},
        {"batch": "16"},
        {
            "data": {
                "source": "digits",
                "columns": {"x": 1},
                "parts": "two",
                "hold_out": 0.1,
                "split_seed": 0,
            }
        },
    ],
    "data.json": [
        b"null",
        {"counts": []},
        {"counts": {}},
        {"counts": {"test": "many"}},
        {"skipped": {"test": 3}},
        {"skipped": {"test": [["x", "y"]]}},
        {"fingerprint": "0"},
        {"fingerprint": {}},
    ],
    "begun.json": [
        b"[" * 100_000,
        {"seconds": 1.5, "date": None},
        {"exaflops_of_an_image": "x"},
        {"seconds": "long"},
    ],
}
"""Of each file, what stands in it instead, or the values that do. Each has ended report with a
traceback, or stands beside one that has."""


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param(name, change, marks=pytest.mark.slow if number else ())
        for name, changes in DAMAGED.items()
        for number, change in enumerate(changes)
    ],
)
@pytest.mark.slow
def test_damaged_records_are_a_page_or_a_sentence(name, change, runs, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(runs / "seed0", copy)
    text = change
    if isinstance(change, dict):
        text = json.dumps(json.loads((copy / name).read_bytes()) | change).encode()
    (copy / name).write_bytes(text)
    with contextlib.suppress(ValueError):
        page = write_report_of(copy, runs / "seed1").read_text()
        assert "</html>" in page


def write_report_of(*places) -> Path:
    """The page about runs, as `vitkit report` writes it."""
    return reports(*places, output=places[0] / "page.html").path


@pytest.mark.parametrize(
    "line",
    [
        {"event": "evaluation", "step": 10**30, "evaluator": "test", "metrics": {}},
        {"event": "evaluation", "step": "last", "evaluator": "test", "metrics": {}},
        {
            "event": "evaluation",
            "step": 3,
            "evaluator": "test",
            "metrics": {"x" * 100_000: {"value": 1.0, "unit": "share", "interval": None}},
        },
        {"event": "evaluation", "step": 3, "evaluator": "x" * 100_000, "metrics": {}},
    ],
)
def test_an_event_that_no_figure_can_draw_counts_as_damaged(line, runs, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(runs / "seed0", copy)
    before = read_run(copy).lines
    with (copy / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    assert read_run(copy).lines == before


@pytest.mark.parametrize("index", [-1, pytest.param(2**63 - 1, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_answers_of_images_that_are_not_there_are_a_sentence(index, runs, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(runs / "seed0", copy)
    kept = read_answers(copy / "answers.safetensors")
    kept.answers.indices[0] = index
    write_answers(copy / "answers.safetensors", kept)
    (sentence,) = reports(copy, runs / "seed1", output=copy / "page.html").notes
    assert "answers do not belong to the" in sentence
