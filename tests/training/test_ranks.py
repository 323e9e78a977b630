"""Several processes are one run. Here they are forked and meet by gloo; test_torchrun.py has the
real torchrun."""

import datetime
import os
import signal
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from margins import at_most
from PIL import Image
from processes import INTERRUPTED, together
from rich.console import Console
from runs import assert_nearly_same_weights, checkpoint_steps, weights

from vitkit.objectives import MaskedAutoencoder, MaskedPatches, SelfDistillation, Supervised
from vitkit.objectives.supervised import SupervisedLearner
from vitkit.recipes import Optim
from vitkit.system.processes import ranks
from vitkit.system.processes.ranks import (
    any_rank,
    from_every_rank,
    from_rank_0,
    long_from_rank_0,
    process_group,
    sum_over_ranks,
    world,
)
from vitkit.system.processes.watchdog import watchdog
from vitkit.system.span import Span
from vitkit.training import read_run, run_recipe
from vitkit.training.record.metrics import read_metrics
from vitkit.training.state.checkpoints import checkpoints, read_sealed


def run(recipe, run_dir):
    run_recipe(recipe, run_dir, "cpu", Console(quiet=True))


@dataclass(frozen=True)
class Stopping(Supervised):
    """The supervised loss, but with STOP in the environment the last rank gets SIGTERM in the
    middle of step 8."""

    def learner(self, model, preprocessing=None):
        return StoppingLearner(model, self)


class StoppingLearner(SupervisedLearner):
    """It has a parameter and a buffer beside the model, as those of other objectives do."""

    def __init__(self, model, objective):
        super().__init__(model, objective)
        self.scale = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("updates", torch.zeros(()))
        self.stops = "STOP" in os.environ

    def forward(self, images, labels, keys):
        if self.updates == 7 and self.stops and world().rank == world().world_size - 1:
            self.stops = False
            os.kill(os.getpid(), signal.SIGTERM)
        return super().forward(images, labels, keys) * self.scale.mean()

    def updated(self, step, total):
        self.updates += 1


@pytest.fixture
def recipe(tiny):
    """With dropout, which any number of ranks draws alike if the micro-batches are the same; with
    SGD, because Adam turns rounding errors into whole steps."""
    return replace(
        tiny,
        objective=Stopping(),
        optim=Optim("sgd", lr=0.3, weight_decay=1e-3, warmup=Span(5)),
        batch=48,
        micro_batch=12,
        length=Span(12),
        log_every=1,
    )


def assert_same_run(run_dir, reference):
    """Up to rounding."""
    assert_same_log(run_dir, reference)
    assert_nearly_same_weights(run_dir, reference)


def assert_same_log(run_dir, reference):
    lines = read_metrics(run_dir / "metrics.jsonl")
    expected_lines = read_metrics(reference / "metrics.jsonl")
    for line, expected in zip(lines, expected_lines, strict=True):
        assert (line["event"], line["step"]) == (expected["event"], expected["step"])
        given, wanted = numbers(line), numbers(expected)
        assert given.keys() == wanted.keys()
        for name, value in wanted.items():
            at_most(abs(given[name] - value), 2e-5 * max(1, abs(value)))  # six digits are logged


def numbers(line):
    """What a line of the log measures, by name; without what depends on the clock."""
    values = {name: line[name] for name in ("loss", "norm", "lr") if name in line}
    for name, metric in line.get("metrics", {}).items():
        values[name] = metric.value
    return values


def files_of_last_checkpoint(run_dir):
    """How many there are, each with a checksum."""
    last = checkpoints(run_dir)[0]
    files = {path.name for path in last.glob("*.safetensors")}
    assert read_sealed(last / "state.json")["sha256"].keys() == files
    return len(files)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks_before", "ranks_after"), [(2, 1), (1, 2)])
def test_a_run_may_be_stopped_and_continued_on_another_number_of_ranks(
    recipe, tmp_path, monkeypatch, ranks_before, ranks_after
):
    """It is the run of one rank that was never stopped: loss curve, accuracy and weights."""
    run(recipe, tmp_path / "undisturbed")
    run_dir = tmp_path / "run"
    monkeypatch.setenv("STOP", "yes")
    assert together(ranks_before, run, recipe, run_dir) == [INTERRUPTED] * ranks_before
    monkeypatch.delenv("STOP")
    # One rank alone stops between two micro-batches, and several at the end of the step
    stopped_at = 7 if ranks_before == 1 else 8
    assert checkpoint_steps(run_dir) == [stopped_at, 6, 0]
    assert files_of_last_checkpoint(run_dir) == ranks_before

    assert together(ranks_after, run, recipe, run_dir) == [0] * ranks_after
    assert checkpoint_steps(run_dir) == [12, 6]
    assert files_of_last_checkpoint(run_dir) == ranks_after
    assert_same_run(run_dir, tmp_path / "undisturbed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"average": 0.0, "optim": Optim(lr=1e-3)},
        {"shard_group": 2, "micro_batch": 6, "recompute": True},
        {"shard_group": 1, "optim": Optim("sgd", lr=0.3, clip_each=True)},
    ],
)
def test_four_ranks_too(recipe, tmp_path, changes):
    recipe = replace(recipe, **changes)
    run(recipe, tmp_path / "one")
    assert together(4, run, recipe, tmp_path / "four") == [0] * 4
    assert_same_log(tmp_path / "four", tmp_path / "one")
    if recipe.optim.name == "sgd":
        assert_nearly_same_weights(tmp_path / "four", tmp_path / "one")


@pytest.mark.slow
def test_groups_of_two_continue_on_another_number_of_ranks(recipe, tmp_path, monkeypatch):
    """One group writes each number, and any ranks read it; a group that does not fit is refused."""
    run(recipe, tmp_path / "undisturbed")
    run_dir = tmp_path / "run"
    monkeypatch.setenv("STOP", "yes")
    recipe = replace(recipe, shard_group=2)
    assert together(4, run, recipe, run_dir) == [INTERRUPTED] * 4
    monkeypatch.delenv("STOP")
    assert files_of_last_checkpoint(run_dir) == 2

    def refused():
        with pytest.raises((ValueError, RuntimeError), match="4 processes are not whole groups"):
            run(replace(recipe, shard_group=3), run_dir)

    assert together(4, refused) == [0] * 4
    assert together(2, run, replace(recipe, shard_group=1), run_dir) == [0] * 2
    assert_same_run(run_dir, tmp_path / "undisturbed")


SMALL = SelfDistillation(
    local_views=0, outputs=32, hidden=16, bottleneck=8, last_layer_still=Span(5)
)
OBJECTIVES = [MaskedPatches(), MaskedAutoencoder(width=16, depth=1, heads=2), SMALL]


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda value: type(value).__name__)
def test_objectives_with_parameters_and_teachers(recipe, tmp_path, objective):
    recipe = replace(recipe, objective=objective, optim=Optim("sgd", lr=0.01, clip_each=True))
    run(recipe, tmp_path / "one")
    assert together(2, run, recipe, tmp_path / "two") == [0, 0]
    assert_same_run(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_numbers_have_their_own_unit_on_two_ranks_too(recipe, tmp_path):
    colours = np.random.default_rng(0).integers(0, 256, (60, 3)).tolist()
    lines = ["image,label"]
    for i, colour in enumerate(colours):
        Image.new("RGB", (8, 8), tuple(colour)).save(tmp_path / f"{i}.png")
        lines.append(f"{i}.png,{500.5 + colour[0]}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    data = replace(recipe.data, source=str(tmp_path / "table.csv"))
    recipe = replace(recipe, data=data, objective=Supervised("squared"), length=Span(6))
    run(recipe, tmp_path / "one")
    assert together(2, run, recipe, tmp_path / "two") == [0, 0]
    error = read_run(tmp_path / "one").primary().value
    assert error > 10
    at_most(error, 150)
    at_most(abs(read_run(tmp_path / "two").primary().value - error), 1e-4 * error)
    for name in ("one", "two"):
        assert 500 < weights(tmp_path / name)["classifier.bias"].item() < 760


def exchange(path):
    with process_group("cpu"):
        rank, world_size = world()
        assert world_size == 2
        assert sum_over_ranks(torch.tensor([rank, 1.0])).tolist() == [1.0, 2.0]
        assert any_rank(rank == 1) and not any_rank(False)
        assert from_every_rank({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
        assert from_rank_0(lambda: os.getpid()) == from_every_rank(os.getpid())[0]
        with pytest.raises(ValueError, match="only there"):
            from_rank_0(lambda: int("only there"))
        (path / str(rank)).touch()
    assert world() == (0, 1)


def test_what_ranks_say_to_each_other(tmp_path):
    assert together(2, exchange, tmp_path) == [0, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def sleep(seconds, pausing):
    with process_group("cpu", patience=0.5):
        watchdog.heartbeat()
        if pausing:
            watchdog.pause()
        time.sleep(seconds)


@pytest.mark.slow
def test_a_rank_that_pauses_is_not_taken_for_one_that_hangs():
    assert together(2, sleep, 1.5, True) == [0, 0]
    assert together(2, sleep, 30, False) == [1, 1]  # ended by the watchdog, long before


def work_long(path):
    """Longer than a collective operation may take."""
    ranks.timedelta = lambda seconds: datetime.timedelta(seconds=3)

    def work(result):
        time.sleep(5)
        return int(result)

    with process_group("cpu"):
        assert long_from_rank_0(lambda: work("7") + world().rank) == 7
        with pytest.raises(ValueError, match="only there"):
            long_from_rank_0(lambda: work("only there"))
        (path / str(world().rank)).touch()


@pytest.mark.slow
def test_other_ranks_wait_for_long_work(tmp_path):
    assert together(2, work_long, tmp_path) == [0, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_alone_nothing_is_exchanged():
    total = torch.ones(2)
    assert world() == (0, 1) and sum_over_ranks(total) is total and from_every_rank(3) == [3]
    assert (
        from_rank_0(lambda: 5) == 5 == long_from_rank_0(lambda: 5)
        and any_rank(True)
        and not any_rank(False)
    )


def test_a_batch_that_cannot_be_shared_is_a_sentence(recipe, tmp_path):
    def refused():
        with pytest.raises(
            (ValueError, RuntimeError),
            match="a batch of 49 cannot be shared equally by 2 processes",
        ):
            run(replace(recipe, batch=49), tmp_path)

    assert together(2, refused) == [0, 0]


def test_two_processes_do_not_train_into_the_same_directory(tiny, tmp_path):
    """The lock of a process that was killed is gone with it, also where a child of it lives on."""
    from vitkit.training import locked

    read, write = os.pipe()
    holder = os.fork()
    if not holder:
        with locked(tmp_path):
            if not os.fork():
                time.sleep(10)
                os._exit(0)
            os.write(write, b"!")
            signal.pause()
    os.read(read, 1)
    try:
        with pytest.raises(ValueError, match="another process is training in"):
            run(tiny, tmp_path)
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
    with locked(tmp_path):
        pass
