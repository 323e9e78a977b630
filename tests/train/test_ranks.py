"""Several processes are one run: forked ranks on gloo, one thread each. With torchrun itself:
test_torchrun.py."""

import multiprocessing
import os
import signal
import socket
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file

from vitkit.objectives import MaskedAutoencoder, MaskedPatches, SelfDistillation, Supervised
from vitkit.objectives.supervised import SupervisedLearner
from vitkit.system.ranks import (
    any_rank,
    from_every_rank,
    from_rank_0,
    process_group,
    sum_over_ranks,
    world,
)
from vitkit.system.span import Span
from vitkit.system.watchdog import watchdog
from vitkit.train import Interrupted, Optim, primary_metric, train
from vitkit.train.checkpoints import checkpoints
from vitkit.train.log import read_metrics

INTERRUPTED = 75


def together(ranks, act, *args):
    """Run act(*args) in so many forked processes that know of each other, as torchrun's do; their
    exit codes."""
    import torch.distributed.fsdp
    import torch.distributed.tensor  # noqa: F401 once here, rather than in every child

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def child(rank):
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        try:
            act(*args)
        except Interrupted:
            os._exit(INTERRUPTED)
        os._exit(0)

    children = [
        multiprocessing.get_context("fork").Process(target=child, args=(rank,))
        for rank in range(ranks)
    ]
    for one in children:
        one.start()
    for one in children:
        one.join(120)
        one.kill()
    return [one.exitcode for one in children]


def run(recipe, workdir):
    train(recipe, workdir, "cpu", Console(quiet=True))


@dataclass(frozen=True)
class Told(Supervised):
    """The loss, but the last rank gets SIGTERM in the middle of step 8."""

    def learner(self, model, preprocessing=None):
        return ToldLearner(model, self)


class ToldLearner(SupervisedLearner):
    """A parameter and a buffer beside the model, as objectives have them."""

    def __init__(self, model, objective):
        super().__init__(model, objective)
        self.scale = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(()))
        self.told = not os.environ.get("TOLD")

    def forward(self, images, labels, keys):
        if self.seen == 7 and not self.told and world().rank == world().world_size - 1:
            self.told = True
            os.kill(os.getpid(), signal.SIGTERM)
        return super().forward(images, labels, keys) * self.scale.mean()

    def updated(self, step, total):
        self.seen += 1


@pytest.fixture
def recipe(tiny):
    """With dropout, which is the same as long as the micro-batches are; SGD, for Adam makes whole
    steps of rounding."""
    optim = Optim("sgd", lr=0.3, weight_decay=1e-3, warmup=Span(5))
    return replace(
        tiny, objective=Told(), optim=optim, batch=48, micro_batch=12, length=Span(12), log_every=1
    )


def curves_meet(one, other):
    ours, theirs = (read_metrics(workdir / "metrics.jsonl") for workdir in (one, other))
    assert [(x["event"], x["step"]) for x in ours] == [(x["event"], x["step"]) for x in theirs]
    for x, y in zip(ours, theirs, strict=True):
        for name in x.keys() & {"step", "loss", "norm", "lr", "metrics"}:
            ours_now, theirs_now = (values(line[name]) for line in (x, y))
            assert ours_now == pytest.approx(theirs_now, rel=1e-5, abs=1e-5), (x, y)


def values(entry):
    """The numbers of an evaluation by their names; any other entry of a line as it is."""
    if isinstance(entry, dict):
        return {name: metric.value for name, metric in entry.items()}
    return entry


def weights_meet(one, other):
    ours, theirs = (load_file(workdir / "model" / "model.safetensors") for workdir in (one, other))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_one_and_two_ranks_are_the_same_run(recipe, tmp_path, monkeypatch):
    """Loss curve, accuracy and weights; stopped in the middle, on two ranks or on one, and
    continued on the other."""
    run(recipe, tmp_path / "one")
    assert together(2, run, recipe, tmp_path / "two") == [0, 0]
    curves_meet(tmp_path / "one", tmp_path / "two")
    weights_meet(tmp_path / "one", tmp_path / "two")
    for workdir, before in ((tmp_path / "2-1", 2), (tmp_path / "1-2", 1)):
        monkeypatch.setenv("TOLD", "yes")
        assert together(before, run, recipe, workdir) == [INTERRUPTED] * before
        monkeypatch.delenv("TOLD")
        last, *others = checkpoints(workdir)
        assert last.name == "step-00000008" and [path.name for path in others] == [
            "step-00000006",
            "step-00000000",
        ]
        assert len(list(last.glob("*.safetensors"))) == before
        assert together(3 - before, run, recipe, workdir) == [0] * (3 - before)
        curves_meet(tmp_path / "one", workdir)
        weights_meet(tmp_path / "one", workdir)
    assert len(list(checkpoints(tmp_path / "2-1")[0].glob("*.safetensors"))) == 1
    assert [path.name for path in checkpoints(tmp_path / "2-1")] == [
        "step-00000012",
        "step-00000006",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, {"recompute": True}, {"average": 0.0, "optim": Optim(lr=1e-3)}]
)
def test_four_ranks_too(recipe, tmp_path, changes):
    recipe = replace(recipe, **changes)
    run(recipe, tmp_path / "one")
    assert together(4, run, recipe, tmp_path / "four") == [0] * 4
    curves_meet(tmp_path / "one", tmp_path / "four")
    if recipe.optim.name == "sgd":
        weights_meet(tmp_path / "one", tmp_path / "four")


SMALL = SelfDistillation(
    local_views=0, outputs=32, hidden=16, bottleneck=8, last_layer_still=Span(5)
)
OBJECTIVES = [MaskedPatches(), MaskedAutoencoder(depth=1), SMALL]


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda one: type(one).__name__)
def test_objectives_with_parameters_and_teachers(recipe, tmp_path, objective):
    recipe = replace(recipe, objective=objective, optim=Optim("sgd", lr=0.01, clip_each=True))
    run(recipe, tmp_path / "one")
    assert together(2, run, recipe, tmp_path / "two") == [0, 0]
    curves_meet(tmp_path / "one", tmp_path / "two")
    weights_meet(tmp_path / "one", tmp_path / "two")


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
    ours, theirs = (primary_metric(tmp_path / name).value for name in ("one", "two"))
    assert ours == pytest.approx(theirs, rel=1e-4) and 10 < ours < 150
    head = load_file(tmp_path / "one" / "model" / "model.safetensors")
    (bias,) = (
        tensor for name, tensor in head.items() if name.endswith(("head.bias", "classifier.bias"))
    )
    assert 500 < bias.item() < 760


def exchange(path):
    with process_group("cpu"):
        rank, ranks = world()
        assert sum_over_ranks(torch.tensor([rank, 1.0])).tolist() == [1.0, 2.0] and ranks == 2
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


def rest(resting):
    with process_group("cpu", patience=1.0):
        watchdog.heartbeat()
        if resting:
            watchdog.pause()
        time.sleep(5)


def test_a_rank_that_rests_is_not_taken_for_one_that_hangs():
    assert together(2, rest, True) == [0, 0]
    assert together(2, rest, False) == [1, 1]


def test_alone_nothing_is_exchanged():
    total = torch.ones(2)
    assert world() == (0, 1) and sum_over_ranks(total) is total and from_every_rank(3) == [3]
    assert from_rank_0(lambda: 5) == 5 and any_rank(True) and not any_rank(False)


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
    from vitkit.train.run import locked

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
        with pytest.raises(ValueError, match="another process is training into"):
            run(tiny, tmp_path)
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
    with locked(tmp_path):
        pass
