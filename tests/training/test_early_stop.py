"""A run that gains no more ends early; and it ends so whether it was disturbed or not."""

from dataclasses import replace

import pytest
import torch

from vitkit.system.errors import Interrupted
from vitkit.system.span import Span
from vitkit.training import train
from vitkit.training.record.metrics import read_metrics


@pytest.fixture
def stuck(tiny):
    """A run whose weights hardly move: its metrics gain nothing after the first evaluation."""
    return replace(
        tiny,
        optim=replace(tiny.optim, lr=1e-12),
        average=0.0,
        evaluate_every=Span(4),
        save_every=Span(3),
        length=Span(60),
        early_stop=3,
    )


def test_a_run_that_gains_nothing_ends_early(stuck, tmp_path, quiet):
    classifier = train(stuck, tmp_path, "cpu", quiet)
    steps = classifier.origin["steps"]
    assert 16 <= steps < 60 and steps % 4 == 0
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["step"] == steps

    # What the rule says, by hand: no metric of the last three beats the best before them
    lines = read_metrics(tmp_path / "metrics.jsonl")
    measured = [line["metrics"] for line in lines if "primary" in line]
    latest = measured[-3:]
    for name in ("test/top1", "test/loss"):
        ours = [metrics[name].value for metrics in latest]
        earlier = [metrics[name].value for metrics in measured[:-3]]
        if name == "test/top1":
            assert max(ours) <= max(earlier)
        else:
            assert min(ours) >= min(earlier)

    # Called again, it is finished
    assert train(stuck, tmp_path, "cpu", quiet).origin["steps"] == steps


@pytest.mark.slow
def test_a_run_that_was_interrupted_ends_at_the_same_step(stuck, tmp_path, quiet, monkeypatch):
    undisturbed = train(stuck, tmp_path / "one", "cpu", quiet)

    from vitkit.training import loop

    def interrupted(run, is_last=False):
        if run.state.step == 10:
            raise Interrupted
        return evaluate(run, is_last)

    evaluate = loop.evaluate
    monkeypatch.setattr(loop, "evaluate", interrupted)
    with pytest.raises(Interrupted):
        train(stuck, tmp_path / "two", "cpu", quiet)
    monkeypatch.undo()
    continued = train(stuck, tmp_path / "two", "cpu", quiet)
    assert continued.origin["steps"] == undisturbed.origin["steps"]
    theirs = undisturbed.model.state_dict()
    for name, weight in continued.model.state_dict().items():
        assert torch.equal(weight, theirs[name]), name
