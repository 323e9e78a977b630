"""Evaluators of a run: each when it is due, on the images it is meant for, once."""

import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from runs import FACTS, digits_as_files, read_json

from vitkit.cli.entry import main
from vitkit.evaluation import NATS, SHARE, Accuracy, Eval, Fewshot, Metric, Neighbours
from vitkit.objectives import SelfDistillation
from vitkit.recipes import Facts, resolve
from vitkit.system.errors import Interrupted
from vitkit.system.span import Span
from vitkit.training import read_run, run_recipe
from vitkit.training.evaluation import evaluate
from vitkit.training.record.log import Log
from vitkit.training.record.metrics import last_metrics, read_metrics
from vitkit.training.run import Run
from vitkit.training.schedule import Schedule


@pytest.fixture
def sketches(tmp_path):
    """Thirty digits as files, in folders of other names than their classes' order."""
    return digits_as_files(tmp_path / "sketches", 30)


def evaluations(run_dir):
    lines = read_metrics(run_dir / "metrics.jsonl")
    return [(line["step"], line["evaluator"]) for line in lines if line["event"] == "evaluation"]


@pytest.mark.slow
def test_each_has_its_own_span_and_images(tiny, quiet, tmp_path, sketches):
    evals = (Eval(Accuracy()), Eval(Neighbours(k=3), Span(15)), Eval(Accuracy(), data=sketches))
    run_recipe(replace(tiny, evals=evals), tmp_path / "run", "cpu", quiet)
    steps = {}
    for step, title in evaluations(tmp_path / "run"):
        steps.setdefault(title, []).append(step)
    every = [10, 20, 30]
    assert steps == {"Accuracy": every, "Neighbours": [15, 30], "Accuracy on sketches": every}
    metrics = last_metrics(tmp_path / "run")
    assert metrics["sketches/seen"].value == 30 and metrics["test/neighbours/seen"].value == 359
    assert read_run(tmp_path / "run").primary() == metrics["test/top1"]
    ran = read_json(tmp_path / "run" / "recipe.json")
    assert [each["every"] for each in ran["evals"]] == ["10 steps", "15 steps", "10 steps"]
    data = read_json(tmp_path / "run" / "data.json")
    assert data["others"]["sketches"][0] == 30 and "sketches" not in data["counts"]


def test_one_that_learns_has_training_images_of_its_own(tiny, quiet, tmp_path, folder):
    """The run's own, or those of the data that it measures on."""
    shapes = folder(
        {f"{part}/{k}/{i}.png": 8 for part in ("train", "test") for k in "ab" for i in "12"}
    )
    evals = (Eval(Fewshot((2,), seeds=2)), Eval(Fewshot((1,)), data=str(shapes)))
    recipe = replace(tiny, evals=evals, length=Span(6))
    run_recipe(recipe, tmp_path / "run", "cpu", quiet)
    metrics = last_metrics(tmp_path / "run")
    assert metrics["test/fewshot/seen"].value == 359 and metrics["photos/fewshot/seen"].value == 4
    assert 0.1 < metrics["test/2-shot/top1"].value < 0.9
    assert {"test/2-shot/deviation", "photos/1-shot/top1"} < set(metrics)
    data = read_json(tmp_path / "run" / "data.json")
    assert data["others"]["photos/train"][0] == 4  # they were checked too

    alone = folder({"train/a/1.png": 8, "train/b/1.png": 8}, "alone")
    with pytest.raises(ValueError, match="learns from training images and measures on others"):
        evals = (Eval(Fewshot(), data=str(alone)),)
        run_recipe(replace(recipe, evals=evals), tmp_path / "other", "cpu", quiet)


TOP1 = Metric("top1", 0.5, SHARE)


@dataclass(frozen=True)
class Nosy:
    """An evaluator of one's own, that interrupts the run the first time."""

    flag: str

    def judges(self, target_kind):
        return True

    def measure(self, subject, part):
        if not Path(self.flag).exists():
            Path(self.flag).touch()
            raise Interrupted
        yield Metric("nosy", math.inf, NATS)


@dataclass(frozen=True)
class Careless:
    """An evaluator of one's own, that may leave the model in evaluation mode."""

    leaves: bool

    def judges(self, target_kind):
        return True

    def measure(self, subject, part):
        if self.leaves:
            subject.classifier.model.eval()
        yield TOP1


def test_the_training_goes_on_in_training_mode_whatever_an_evaluator_does(tiny, quiet, tmp_path):
    """In evaluation mode there is no dropout, and the weights would differ."""
    model = replace(tiny.model, dropout=0.3)
    recipe = replace(tiny, model=model, length=Span(8), evaluate_every=Span(4))
    trained = []
    for leaves in (False, True):
        evals = (Eval(Careless(leaves)),)
        model = run_recipe(replace(recipe, evals=evals), tmp_path / str(leaves), "cpu", quiet).model
        trained.append(list(model.parameters()))
    torch.testing.assert_close(*trained, atol=0, rtol=0)


def test_what_was_measured_before_an_interruption_is_not_measured_again(tiny, quiet, tmp_path):
    evals = (Eval(Accuracy()), Eval(Nosy(str(tmp_path / "flag"))))
    recipe = replace(tiny, evals=evals, length=Span(10))
    with pytest.raises(Interrupted):
        run_recipe(recipe, tmp_path / "run", "cpu", quiet)
    assert evaluations(tmp_path / "run") == [(10, "Accuracy")]
    run_recipe(recipe, tmp_path / "run", "cpu", quiet)
    assert evaluations(tmp_path / "run") == [(10, "Accuracy"), (10, "Nosy")]
    assert last_metrics(tmp_path / "run")["test/nosy"].value == math.inf
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_the_ones_that_the_documentation_shows(tiny, quiet, tmp_path, sketches, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "evaluation.md"
    names = {}
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(code, names)
    monkeypatch.chdir(tmp_path)
    evals = (*names["evals"], Eval(names["Confidence"]()))
    run_recipe(replace(tiny, evals=evals, length=Span(6)), tmp_path / "run", "cpu", quiet)
    metrics = last_metrics(tmp_path / "run")
    assert "sketches/top1" in metrics and 0 < metrics["test/confidence"].value < 1


def test_what_is_not_finite_is_null_with_a_note(quiet, tmp_path):
    log = Log(tmp_path, 0, 10, console=quiet)
    log.training(3, 8, math.nan, math.inf, 0.1)
    log.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert line["loss"] is line["norm"] is None and line["lr"] == 0.1
    assert line["notes"] == {"loss": "nan", "norm": "inf"}
    (again,) = read_metrics(tmp_path / "metrics.jsonl")
    assert math.isnan(again["loss"]) and again["norm"] == math.inf and "notes" not in again


def test_a_step_without_an_evaluation_leaves_the_text_of_the_bar(tiny, quiet, tmp_path):
    log = Log(tmp_path, 0, 30, console=quiet)
    log.training(5, 50, loss=0.5, norm=1.0, lr=1e-3)
    recipe = resolve(tiny, FACTS)
    schedule = Schedule(tmp_path, recipe.length.n, None, print)
    evaluate(Run(recipe, tmp_path, None, SimpleNamespace(step=6), schedule, log, None))
    (task,) = log.bar.tasks
    assert "loss 0.5" in task.fields["text"]
    log.close()


def test_unless_told_they_are_the_objectives(tiny):
    assert resolve(tiny, FACTS).evals == (Eval(Accuracy(), Span(10)),)
    distilled = replace(tiny, objective=SelfDistillation(local_size=4))
    assert resolve(distilled, FACTS).evals == (Eval(Neighbours(), Span(10)),)
    assert resolve(distilled, Facts(100, (), "none")).evals == ()


@pytest.mark.parametrize(
    ("evals", "message"),
    [
        (
            (Eval(Accuracy()), Eval(Accuracy(), Span(3))),
            "two of the recipe's evals have the name Acc",
        ),
        ((Eval(Neighbours(3)), Eval(Neighbours(5))), "have the name Neighbours"),
    ],
)
def test_two_of_one_name_are_refused(tiny, evals, message):
    with pytest.raises(ValueError, match=message):
        resolve(replace(tiny, evals=evals), FACTS)


@pytest.mark.parametrize(
    ("data", "images"),
    [
        ("sketches/", "sketches"),
        ("imagenet.v2", "imagenet.v2"),
        ("tables/more.csv", "more"),
        ("photos/test", "photos-test"),
        ("photos/test.parquet", "photos-test"),
    ],
)
def test_metrics_on_other_images_begin_with_the_name_of_their_folder(data, images):
    each = Eval(Accuracy(), data=data)
    assert each.images == images
    assert each.title == f"Accuracy on {images}"
    assert each.named(TOP1, images).name == f"{images}/top1"


def test_an_objective_without_pictures_decodes_no_images_for_them(
    tiny, quiet, tmp_path, monkeypatch
):
    monkeypatch.setattr("vitkit.training.evaluation.SHOWN", 0)  # no batch can be made of no images
    short = replace(tiny, length=Span(6), evaluate_every=Span(6))
    run_recipe(short, tmp_path, "cpu", quiet)
    assert not (tmp_path / "pictures.safetensors").exists()


@pytest.mark.parametrize("data", [".", "test.csv", "/"])
def test_images_whose_path_gives_no_name_need_one(data):
    with pytest.raises(ValueError, match="give this Eval a name of its own"):
        Eval(Accuracy(), data=data)
    assert Eval(Accuracy(), data=data, name="here").named(TOP1, "here").name == "here/top1"


def test_two_of_one_kind_are_told_apart_by_name(tiny):
    evals = (Eval(Neighbours(5), name="five"), Eval(Neighbours(20)))
    titles = [each.title for each in resolve(replace(tiny, evals=evals), FACTS).evals]
    assert titles == ["Neighbours (five)", "Neighbours"]
    names = [each.named(TOP1, "test").name for each in evals]
    assert names == ["five/test/top1", "test/top1"]


def test_images_that_cannot_be_judged_by_are_refused(tiny, quiet, tmp_path, sketches):
    distilled = replace(tiny, objective=SelfDistillation(), evals=(Eval(Neighbours()),))
    with pytest.raises(ValueError, match="Neighbours cannot measure on 'digits', whose targets"):
        resolve(distilled, Facts(100, (), "none"))
    (tmp_path / "more" / "sketches").mkdir(parents=True)
    both = [Eval(Accuracy(), data=sketches), Eval(Neighbours(), data=f"{tmp_path}/more/sketches")]
    with pytest.raises(ValueError, match="would both be called sketches"):
        run_recipe(replace(tiny, evals=tuple(both)), tmp_path / "run", "cpu", quiet)
    with pytest.raises(ValueError, match="there is no folder"):
        run_recipe(
            replace(tiny, evals=(Eval(Accuracy(), data="x"),)), tmp_path / "run", "cpu", quiet
        )


def test_named_on_the_command_line_they_have_settings(tmp_path, capsys):
    words = ["train", "digits", "--evals", "neighbours", "accuracy", "--workdir", str(tmp_path)]
    words += "--evals.0.evaluator.k 3 --evals.0.every 1steps --length 2steps --batch 16".split()
    words += "--optim.warmup 0 --data.no-check --data.workers 0 --device cpu".split()
    words += "--model.width 24 --model.depth 1 --model.mlp 48 --model.heads 2".split()
    assert main(words) == 0
    assert evaluations(tmp_path) == [(1, "Neighbours"), (2, "Neighbours"), (2, "Accuracy")]
    assert read_run(tmp_path).primary().name == "test/neighbours/top1"
    assert read_json(tmp_path / "recipe.json")["evals"][0]["evaluator"]["k"] == 3
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path), "digits", "--evals", "neighbours", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["neighbours/top1", "neighbours/seen"]
