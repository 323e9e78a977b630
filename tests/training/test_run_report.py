"""The report of a run: what the run kept, what is computed when someone asks, and several side by
side."""

import json
import re
from dataclasses import replace

import pytest

from vitkit import models
from vitkit.cli import main
from vitkit.evaluation.metrics.answers import read_answers
from vitkit.objectives import MaskedAutoencoder
from vitkit.recipes import recipe
from vitkit.system.span import Span
from vitkit.training import train
from vitkit.training.recipe import Recipe
from vitkit.training.record.reading import read_run
from vitkit.training.record.values import to_json
from vitkit.training.reports.held_out import open_part
from vitkit.training.reports.report import report
from vitkit.training.reports.settings import defaults, settings_section
from vitkit.weights import load


def short(**changes):
    digits = recipe("digits")
    optim = replace(digits.optim, warmup=Span(2))
    data = replace(digits.data, workers=0)
    digits = replace(
        digits, data=data, optim=optim, length=Span(12), evaluate_every=Span(6), log_every=3
    )
    return replace(digits, **changes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        train(short(seed=seed), folder / f"seed{seed}", "cpu")
    return folder


def headings(page: str) -> list[str]:
    return re.findall("<h2>(.*?)</h2>", page)


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


def test_a_small_model_is_reported_on_at_the_end_of_its_run(runs):
    page = report(runs / "seed0").read_text()
    assert headings(page)[:4] == [
        "Last evaluation", "Curves", "Which classes are confused", "Most confident mistakes",
    ]  # fmt: skip
    assert "Filters" not in page and "adds its filters" in page
    mistakes = page[page.index("Most confident mistakes") : page.index("<h2>Data")]
    assert mistakes.count("<figure>") == 24 and "gallery pairs" in mistakes

    # The summary, the cost and the machine
    top1 = read_run(runs / "seed0").primary().text()
    words = f"from scratch, on 1,438 training images of digits: test/top1 is {top1} after 12 steps"
    assert words in page
    for text in ("1,152", "exaFLOPs", "1.68e-08", "PyTorch", "threads a process"):
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
    section = r"Which classes are confused.*?</table>.*?</table>"
    assert re.search(section, page, re.S)[0] == re.search(section, before, re.S)[0]


@pytest.mark.usefixtures("without_drawings")
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
def test_masked_pretraining_shows_its_pictures_and_costs_less(runs, tmp_path):
    """A quarter of the patches goes through the encoder: fewer operations an image than
    classification takes, decoder and all."""
    objective = MaskedAutoencoder(width=32, depth=1, heads=2)
    masked = short(objective=objective, length=Span(3), evals=())
    masked = replace(masked, model=replace(masked.model, depth=8))
    train(masked, tmp_path / "mae", "cpu")
    page = report(tmp_path / "mae", inside=True).read_text()
    assert "What it sees, and makes of it" in page and "Filters" in page
    assert "Which classes are confused" not in page
    exaflops = json.loads((tmp_path / "mae" / "begun.json").read_text())["exaflops_of_an_image"]
    assert 0 < exaflops < 0.7 * models.exaflops(masked.model, 1)
    assert re.search("objective.class</th><td>MaskedAutoencoder</td><td>Supervised<", page)


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
    assert "is no run, but holds 2 runs: vitkit report" in err


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
