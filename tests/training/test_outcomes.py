"""What steps gave is looked at some steps later, as on a GPU, and the run is the same to the bit as
one that looks at once."""

import os
from dataclasses import dataclass, replace

import pytest
import torch
import torch.distributed as dist
from processes import INTERRUPTED, together
from rich.console import Console
from runs import Eventful, EventfulLearner, assert_same_run, checkpoint_steps, curve, events
from torch.utils._python_dispatch import TorchDispatchMode

from vitkit.objectives import SelfDistillation
from vitkit.objectives.distillation import SelfDistillationLearner
from vitkit.recipes import Optim
from vitkit.system.errors import Interrupted
from vitkit.system.processes.ranks import world
from vitkit.system.span import Span
from vitkit.training import loop as loop_module
from vitkit.training import outcomes, run_recipe


@pytest.fixture
def short(tiny):
    return replace(
        tiny, objective=Eventful(), length=Span(18), evaluate_every=Span(9), log_every=4, keep=3
    )


def later(monkeypatch, steps):
    """Look so many steps later, on the CPU too."""
    monkeypatch.setitem(outcomes.LAG, "cpu", steps)


@dataclass(frozen=True)
class EventfulDistillation(SelfDistillation):
    """It has a teacher and a centre, which follow each step."""

    def learner(self, model, preprocessing=None):
        return EventfulTeacher(model, self, preprocessing)


class EventfulTeacher(SelfDistillationLearner):
    def before(self, step, total):
        super().before(step, total)
        self.step = step

    def forward(self, images, labels, keys):
        loss = super().forward(images, labels, keys)
        return loss * float("nan") if self.step in Eventful.poison else loss


DISTILLATION = EventfulDistillation(
    local_views=0, outputs=32, hidden=16, bottleneck=8, last_layer_still=Span(5)
)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="adam"),
        pytest.param({"optim": Optim("sgd", lr=0.1)}, id="sgd"),
        pytest.param(
            {"optim": Optim("sgd", lr=0.1, momentum=0.0), "average": 0.0},
            id="sgd without momentum",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"objective": DISTILLATION, "batch": 16}, id="a teacher", marks=pytest.mark.slow
        ),
    ],
)
def test_it_is_the_run_that_looks_at_once(short, changes, quiet, tmp_path, monkeypatch):
    """With steps that are skipped, the last one among them, and three after which it goes back."""
    poison = [3, 7, 8, 9, 17]
    recipe = replace(short, **changes)
    with events(poison=poison):
        run_recipe(recipe, tmp_path / "at once", "cpu", quiet)
        later(monkeypatch, 2)
        run_recipe(recipe, tmp_path / "later", "cpu", quiet)
    assert_same_run(tmp_path / "later", tmp_path / "at once")
    lines = curve(tmp_path / "later")
    found = [line["step"] for line in lines if line["event"] == "skipped"]
    assert found == [step + 1 for step in poison]
    assert [line["step"] for line in lines if line["event"] == "rollback"] == [10]


@pytest.mark.slow
def test_stopped_while_steps_are_awaited_it_continues_to_the_same_bits(
    short, quiet, tmp_path, monkeypatch
):
    """Also if the third bad step is among them."""
    with events(poison=[7, 8, 9]):
        run_recipe(short, tmp_path / "undisturbed", "cpu", quiet)
    later(monkeypatch, 3)
    with events(poison=[7, 8, 9], stop=[9]), pytest.raises(Interrupted):
        run_recipe(short, tmp_path / "run", "cpu", quiet)
    with events(poison=[7, 8, 9]):
        run_recipe(short, tmp_path / "run", "cpu", quiet)
    assert_same_run(tmp_path / "run", tmp_path / "undisturbed")


class Waits(TorchDispatchMode):
    """Counts what would wait for a GPU: a number of a tensor that Python asks for."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default):
            self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("lag", "waits"), [(0, 1), (2, 0)])
def test_a_step_waits_for_nothing(short, quiet, tmp_path, monkeypatch, lag, waits):
    """One that is looked at at once waits to know whether it is finite."""
    counted = {}
    gradient = loop_module.gradient
    advance = loop_module.advance

    def watched_gradient(recipe, state, *rest):
        with Waits() as found:
            outcome = gradient(recipe, state, *rest)
        counted[state.step + 1] = found.count
        return outcome

    def watched_advance(recipe, state, *rest, **settings):
        with Waits() as found:
            advance(recipe, state, *rest, **settings)
        counted[state.step] += found.count

    # On a CPU alone, F.one_hot looks whether the classes are in its range
    monkeypatch.setattr(
        torch.nn.functional,
        "one_hot",
        lambda classes, count: torch.eye(count, dtype=torch.int64)[classes],
    )
    later(monkeypatch, lag)
    monkeypatch.setattr(loop_module, "gradient", watched_gradient)
    monkeypatch.setattr(loop_module, "advance", watched_advance)
    run_recipe(replace(short, length=Span(9), evaluate_every=Span(0)), tmp_path, "cpu", quiet)
    assert len(counted) == 9
    assert set(counted.values()) == {waits}


# Several ranks


@dataclass(frozen=True)
class OnOneRank(Eventful):
    """Its events are on the last rank alone, whose loss is not finite or that is asked to stop."""

    def learner(self, model, preprocessing=None):
        return OnOneRankLearner(model, self)


class OnOneRankLearner(EventfulLearner):
    def before(self, step, total):
        is_last = world().rank == world().world_size - 1
        self.step = step if is_last else -1


def run(recipe, run_dir, lag):
    outcomes.LAG["cpu"] = lag
    run_recipe(recipe, run_dir, "cpu", Console(quiet=True))


@pytest.mark.slow
def test_two_ranks_skip_and_stop_at_the_same_step(short, tmp_path):
    recipe = replace(short, objective=OnOneRank(), optim=Optim(), batch=48)
    with events(poison=[3, 7, 8, 9]):
        assert together(2, run, recipe, tmp_path / "at once", 0) == [0, 0]
    with events(poison=[3, 7, 8, 9], stop=[12]):
        assert together(2, run, recipe, tmp_path / "later", 2) == [INTERRUPTED] * 2
    assert checkpoint_steps(tmp_path / "later")[0] == 15  # asked in the 13th, known two later
    with events(poison=[3, 7, 8, 9]):
        assert together(2, run, recipe, tmp_path / "later", 2) == [0, 0]
    assert_same_run(tmp_path / "later", tmp_path / "at once")


def count_exchanges(recipe, run_dir):
    """What each step exchanges: the fewest of its own, and the most sums of gradients, which are
    FSDP's."""
    counted = []

    def counting(name):
        real = getattr(dist, name)

        def called(*arguments, **settings):
            counted.append(name)
            return real(*arguments, **settings)

        setattr(dist, name, called)

    counting("all_reduce")
    for name in ("reduce_scatter_single", "reduce_scatter_tensor"):  # by PyTorch's version
        if hasattr(dist, name):
            counting(name)
    gradient = loop_module.gradient

    def marked(*arguments):
        counted.append("step")
        return gradient(*arguments)

    loop_module.gradient = marked
    run(recipe, run_dir, 2)
    steps = ",".join(counted).split("step")[1:]
    own = min(step.count("all_reduce") for step in steps)
    sums = max(step.count("reduce_scatter") for step in steps)
    (run_dir / f"exchanges-{os.environ['RANK']}").write_text(f"{own} {sums}")


@pytest.mark.slow
def test_a_step_has_one_exchange_of_its_own_and_sums_gradients_once(short, tmp_path):
    """Once in two micro-batches, for each of two blocks and what is beside them."""
    recipe = replace(short, batch=48, micro_batch=12)
    assert together(2, count_exchanges, recipe, tmp_path) == [0, 0]
    assert [path.read_text() for path in sorted(tmp_path.glob("exchanges-*"))] == ["1 3", "1 3"]
