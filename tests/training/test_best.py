"""A run that keeps its best weights, and one that ends when it gains no more: each does so whether it was
disturbed or not."""

import shutil
from dataclasses import dataclass, replace

import pytest
import torch
from runs import Eventful, events, same

import vitkit
from vitkit.data import open_splits
from vitkit.evaluation import (
    SHARE,
    Accuracy,
    Classification,
    Errors,
    Eval,
    MeanAveragePrecision,
    Metric,
    Neighbours,
    answers_of_logits,
    batches_of,
)
from vitkit.evaluation.evaluator import concatenated
from vitkit.evaluation.metrics.other_targets import errors, several
from vitkit.objectives import MaskedAutoencoder, MaskedPatches, Supervised
from vitkit.objectives.patches import Reconstruction
from vitkit.system.errors import Interrupted
from vitkit.system.span import Span
from vitkit.training import Cell, read_run, run_grid, run_recipe
from vitkit.training.record.metrics import best_step, last_metrics, read_metrics


@pytest.fixture(scope="module")
def rising_and_falling(tiny):
    """A run whose accuracy is not the best at its end, for its last steps are far too large."""
    return replace(
        tiny,
        optim=replace(
            tiny.optim, name="sgd", lr=0.6, schedule="constant", clip=0.0, weight_decay=0
        ),
        average=0.0,
        length=Span(24),
        evaluate_every=Span(3),
        save_every=Span(6),
        best="test/top1",
    )


@pytest.fixture(scope="module")
def finished(rising_and_falling, quiet, tmp_path_factory):
    """The directory of that run, which no test changes, and what it returned."""
    run_dir = tmp_path_factory.mktemp("finished")
    return run_dir, run_recipe(rising_and_falling, run_dir, "cpu", quiet)


def accuracy(classifier):
    test = open_splits("digits").test
    parts = (
        (classifier.logits(b.images)[b.real],) for b in batches_of(classifier, test, "", 64, 0)
    )
    (logits,) = concatenated(parts)
    return float(answers_of_logits(classifier, test, logits).right.mean())


def measured(run_dir):
    """The evaluations of a run, and their accuracies."""
    lines = [line for line in read_metrics(run_dir / "metrics.jsonl") if "metrics" in line]
    return lines, [line["metrics"]["test/top1"].value for line in lines]


def test_the_model_is_that_of_the_best_evaluation(rising_and_falling, finished, tmp_path, quiet):
    run_dir, classifier = finished
    lines, values = measured(run_dir)
    assert max(values) > values[-1]
    step = lines[values.index(max(values))]["step"]
    assert classifier.origin["steps"] == step == best_step(lines, "test/top1")
    assert accuracy(classifier) == pytest.approx(max(values))
    assert read_run(run_dir).primary().value == max(values)

    # Its last weights are others
    unmeasured = replace(rising_and_falling, best="", evaluate_every=Span(0))
    last = run_recipe(unmeasured, tmp_path, "cpu", quiet)
    assert accuracy(last) == pytest.approx(values[-1])


@pytest.mark.slow
@pytest.mark.parametrize("moment", [7, 12, 21])
def test_a_run_that_was_interrupted_keeps_the_same(
    rising_and_falling, finished, moment, tmp_path, quiet, monkeypatch
):
    undisturbed = finished[1]

    from vitkit.training import loop

    def killed(run):
        if run.state.step == moment:
            raise RuntimeError("killed")
        return keep_best(run)

    keep_best = loop.keep_best
    monkeypatch.setattr(loop, "keep_best", killed)
    with pytest.raises(RuntimeError, match="killed"):
        run_recipe(rising_and_falling, tmp_path / "two", "cpu", quiet)
    monkeypatch.undo()
    continued = run_recipe(rising_and_falling, tmp_path / "two", "cpu", quiet)
    assert continued.origin["steps"] == undisturbed.origin["steps"]
    assert same(continued.model.state_dict(), undisturbed.model.state_dict())
    kept = sorted(path.name for path in (tmp_path / "two" / "best").iterdir())
    assert kept and kept[-1] == f"step-{continued.origin['steps']:08d}"
    assert vitkit.load(tmp_path / "two" / "best" / kept[-1], quiet=True)


def test_a_run_ends_when_that_metric_gains_no_more(rising_and_falling, tmp_path, quiet):
    patient = replace(rising_and_falling, early_stop=2)
    run_recipe(patient, tmp_path, "cpu", quiet)
    _, values = measured(tmp_path)
    assert len(values) < 8
    assert max(values[-2:]) <= max(values[:-2])


def test_a_grid_compares_the_best(rising_and_falling, finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "a")  # which is not run again
    (row,) = [
        row for row in run_grid([Cell("a", rising_and_falling)], tmp_path, "cpu") if row.primary
    ]
    best = vitkit.load(tmp_path / "a", quiet=True)
    assert row.step == best.origin["steps"]
    assert row.metric.value == pytest.approx(accuracy(best))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "val/top1",
            "choose from test/top1, test/top5, .*. `data.parts='three'` holds out training",
        ),
        ("test/top2", "choose from test/top1, test/top5, test/balanced_accuracy, test/loss$"),
        ("top1", "choose from test/top1"),
        ("test/seen", "choose from test/top1"),
    ],
)
def test_a_metric_that_is_not_measured_is_refused_before_the_first_step(
    rising_and_falling, tmp_path, quiet, name, sentence
):
    with pytest.raises(ValueError, match=f"`best={name!r}`: .* not measure that; {sentence}"):
        run_recipe(replace(rising_and_falling, best=name), tmp_path, "cpu", quiet)
    assert not (tmp_path / "checkpoints").exists()


@dataclass(frozen=True)
class Guessed:
    """An evaluator that does not say what it measures."""

    def judges(self, target_kind):
        return True

    def measure(self, subject, part):
        yield Metric("mine", 1.0, SHARE)


def test_what_is_not_known_before_is_refused_at_the_first_evaluation(
    rising_and_falling, tmp_path, quiet
):
    mine = replace(rising_and_falling, evals=(Eval(Guessed(), name="my"),), length=Span(4))
    run_recipe(replace(mine, best="my/test/mine"), tmp_path / "right", "cpu", quiet)
    with pytest.raises(ValueError, match=r"choose from my/test/\.\.\.$"):
        run_recipe(replace(mine, best="test/mine"), tmp_path / "wrong", "cpu", quiet)
    with pytest.raises(ValueError, match="choose from my/test/mine$"):
        run_recipe(replace(mine, best="my/test/other"), tmp_path / "late", "cpu", quiet)


@pytest.mark.parametrize(
    ("evaluator", "objective"),
    [
        (Accuracy(), Supervised()),
        (Classification(), Supervised()),
        (Neighbours(), Supervised()),
        (Reconstruction(), MaskedPatches()),
        (Reconstruction(), MaskedAutoencoder(width=16, depth=1, heads=2)),
    ],
)
def test_evaluators_say_what_they_measure(
    evaluator, objective, rising_and_falling, tmp_path, quiet
):
    """Nothing that can be the best is missing, or a right `best` would be refused."""
    recipe = replace(rising_and_falling, best="", length=Span(1), objective=objective)
    run_recipe(replace(recipe, evals=(Eval(evaluator),)), tmp_path, "cpu", quiet)
    metrics = last_metrics(tmp_path).values()
    names = {metric.name for metric in metrics if metric.unit.better != "neither"}
    assert names and names <= {f"test/{figure}" for figure in evaluator.figures}


def test_evaluators_of_other_targets_say_what_they_measure():
    targets = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    scores = torch.rand(3, 2)
    names = [metric.name for metric in several(scores, scores > 0.5, targets)]
    assert [*names, "loss"] == list(MeanAveragePrecision.figures)
    assert [each.name for each in errors(scores[:, 0], scores[:, 1])] == list(Errors.figures)


@pytest.fixture
def stuck(tiny):
    """A run whose weights do not move: its metrics gain nothing after the first evaluation."""
    return replace(
        tiny,
        objective=Eventful(),
        optim=replace(tiny.optim, lr=1e-50),  # 0 in float32
        average=0.0,
        evaluate_every=Span(4),
        save_every=Span(3),
        length=Span(60),
        early_stop=3,
    )


@pytest.mark.slow
def test_a_run_that_gains_nothing_ends_early_and_at_the_same_step_if_interrupted(
    stuck, tmp_path, quiet
):
    steps = run_recipe(stuck, tmp_path / "one", "cpu", quiet).origin["steps"]
    assert steps == 16  # the first evaluation is the best, and three gain nothing
    assert read_metrics(tmp_path / "one" / "metrics.jsonl")[-1]["step"] == steps

    # What the rule says, by hand: no metric of the last three beats the best before them
    lines, accuracies = measured(tmp_path / "one")
    losses = [line["metrics"]["test/loss"].value for line in lines]
    assert max(accuracies[-3:]) <= max(accuracies[:-3]) and min(losses[-3:]) >= min(losses[:-3])

    # Called again it is finished; interrupted, it ends there too
    assert run_recipe(stuck, tmp_path / "one", "cpu", quiet).origin["steps"] == steps
    with events(stop=[9]), pytest.raises(Interrupted):
        run_recipe(stuck, tmp_path / "two", "cpu", quiet)
    assert run_recipe(stuck, tmp_path / "two", "cpu", quiet).origin["steps"] == steps
