"""Two runs side by side."""

import json
from dataclasses import replace

import pytest

from vitkit.cli import main
from vitkit.system.span import Span
from vitkit.training import train
from vitkit.training.record.history import read_run
from vitkit.training.reports.comparison import results, settings, verdict


@pytest.fixture(scope="module")
def runs(tiny, quiet, tmp_path_factory):
    """Two short runs on digits, with two learning rates."""
    folder = tmp_path_factory.mktemp("runs")
    short = replace(tiny, length=Span(12), evaluate_every=Span(6), log_every=3)
    for name, lr in (("fast", 0.003), ("slow", 1e-6)):
        optim = replace(tiny.optim, lr=lr, warmup=Span(2))
        train(replace(short, optim=optim), folder / name, "cpu", quiet)
    return folder


def test_what_differs_and_what_was_reached(runs):
    first, second = read_run(runs / "fast"), read_run(runs / "slow")
    assert settings([first, second]) == [("optim.lr", ("0.003", "1e-06"))]
    assert settings([first, first]) == []
    rows = {row.name: row.values for row in results([first, second])}
    assert next(iter(rows)) == "test/top1" and "%" in rows["test/top1"][0]
    assert rows["steps"] == ("12", "12") and rows["images seen"] == ("600", "600")
    points = first.points()["test/top1"]
    assert [step for step, _ in points] == [6, 12]
    assert rows["test/top1"][0] == points[-1][1].text()


def test_the_best_evaluation_is_named_if_it_was_not_the_last(runs):
    first = read_run(runs / "fast")
    for line in first.lines:
        if line.get("metrics") and line["step"] == 6:
            line["metrics"]["test/top1"] = replace(line["metrics"]["test/top1"], value=0.999)
    rows = {row.name: row.values for row in results([first, read_run(runs / "slow")])}
    assert rows["test/top1, at its best"][0] == "99.90 % at step 6"


def test_the_verdict_says_when_there_is_none(runs):
    first, second = read_run(runs / "fast"), read_run(runs / "slow")
    assert "test/top1 is the same in all" in verdict([first, first])
    assert "by test/top1" in verdict([first, second]) or "same in all" in verdict([first, second])
    other = replace(second, data=second.data | {"fingerprint": {"train": "", "test": "another"}})
    assert "measured on different images" in verdict([first, other])
    assert "so neither is better" in verdict([first, replace(second, lines=[])])
    assert "so none is better" in verdict([first, second, replace(second, lines=[])])


def with_top1(run, name, value, interval):
    """The same run with another result."""
    lines = []
    for line in run.lines:
        if "test/top1" in line.get("metrics", {}):
            top1 = replace(line["metrics"]["test/top1"], value=value, interval=interval)
            line = line | {"metrics": line["metrics"] | {"test/top1": top1}}
        lines.append(line)
    return replace(run, lines=lines, run_dir=run.run_dir.with_name(name))


def test_the_best_of_three_and_those_that_may_be_as_good(runs):
    one = read_run(runs / "fast")
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


def test_the_command_prints_and_writes_a_page(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["compare", str(runs / "fast"), str(runs / "slow")]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "optim.lr" in out and "test/top1" in out and "wrote comparison.html" in out
    page = (tmp_path / "comparison.html").read_text()
    assert page.count("<img class=drawing") == 7  # four of the training, and three metrics
    assert "optim.lr" in page and "1e-06" in page

    # As JSON; and what is no run
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"] == {"optim.lr": ["0.003", "1e-06"]}
    (runs / "slow" / "metrics.jsonl").rename(tmp_path / "elsewhere")
    assert main(words) == 1
    assert "has not trained yet" in capsys.readouterr().err
