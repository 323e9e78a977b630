"""What a run promises: the same result again, after an interruption, after damage; sentences for
what cannot run."""

import io
import os
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from runs import (
    FACTS,
    Eventful,
    assert_same_run,
    batch_of,
    capture_compiled,
    checkpoint_steps,
    curve,
    events,
    losses,
    random_levels,
    read_json,
    same,
    state_of,
    weights,
)

from vitkit.data import Preprocessing
from vitkit.evaluation import Accuracy, Eval
from vitkit.models import create
from vitkit.objectives import MaskedPatches, SelfDistillation, Supervised
from vitkit.objectives.supervised import SupervisedLearner
from vitkit.recipes import Data, Facts, Optim, Tune, resolve
from vitkit.system.errors import Interrupted
from vitkit.system.span import Span
from vitkit.training import read_run, run_recipe
from vitkit.training.record.metrics import last_metrics
from vitkit.training.run import check_apart
from vitkit.training.state.checkpoints import checkpoints, step_of
from vitkit.training.state.state import trained
from vitkit.training.step import _seed, clip_gradient, gradient, keys_of, update
from vitkit.weights import License


@pytest.fixture(scope="module")
def finished(tiny, quiet, tmp_path_factory):
    """The directory of a finished run of `tiny`, which no test changes, and what it returned."""
    run_dir = tmp_path_factory.mktemp("finished")
    return run_dir, run_recipe(tiny, run_dir, "cpu", quiet)


@pytest.fixture
def copied(finished, tmp_path):
    """A directory of the same finished run, which a test may change."""
    return Path(shutil.copytree(finished[0], tmp_path / "first"))


@pytest.fixture(scope="module")
def short(tiny):
    """Twelve steps with `events`, and a checkpoint after each sixth."""
    return replace(tiny, objective=Eventful(), length=Span(12), evaluate_every=Span(6))


@pytest.fixture(scope="module")
def undisturbed(short, quiet, tmp_path_factory):
    """The directory of a finished run of `short`."""
    run_dir = tmp_path_factory.mktemp("undisturbed")
    run_recipe(short, run_dir, "cpu", quiet)
    return run_dir


def test_a_finished_run_holds_what_it_should(finished):
    run_dir, classifier = finished
    assert {p.name for p in run_dir.iterdir()} == {
        "LAST", "LOCK", "answers.safetensors", "begun.json", "checkpoints", "data.json",
        "finished.json", "machine.json", "metrics.jsonl", "model", "recipe.json",
    }  # fmt: skip
    assert checkpoint_steps(run_dir) == [30, 24]
    ran = read_json(run_dir / "recipe.json")
    assert ran["length"] == "30 steps"
    assert ran["model"]["classes"] == 10
    assert ran["optim"]["warmup"] == "5 steps"
    data = read_json(run_dir / "data.json")
    assert data["source"] == "digits"
    assert data["counts"] == {"train": 1438, "test": 359}
    assert data["skipped"] == {}
    lines = curve(run_dir)
    assert [x["step"] for x in lines if x["event"] == "training"] == [5, 10, 15, 20, 25, 30]
    assert [x["step"] for x in lines if x["event"] == "evaluation"] == [10, 20, 30]
    metrics = [x["metrics"] for x in lines if x["event"] == "evaluation"]
    assert all(of_step["test/seen"]["value"] == 359 for of_step in metrics)
    assert classifier.labels == tuple("0123456789")
    top1 = last_metrics(run_dir)["test/top1"]
    assert classifier.origin["metrics"]["test/top1"] == top1.text()
    assert read_run(run_dir).primary() == top1
    assert top1.value == metrics[-1]["test/top1"]["value"] > 0.1
    assert not classifier.model.training


def test_the_same_recipe_gives_the_same_bits_for_any_number_of_workers(tiny, quiet, tmp_path):
    few = replace(tiny, length=Span(6), evaluate_every=Span(6))
    run_recipe(few, tmp_path / "a", "cpu", quiet)
    run_recipe(replace(few, data=replace(few.data, workers=2)), tmp_path / "b", "cpu", quiet)
    run_recipe(replace(few, seed=1), tmp_path / "c", "cpu", quiet)
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


@pytest.mark.parametrize("step", [0, 7, 11])
def test_stopped_and_continued_is_as_if_nothing_happened(short, undisturbed, quiet, tmp_path, step):
    with events(stop=[step]), pytest.raises(Interrupted):
        run_recipe(short, tmp_path, "cpu", quiet)
    run_recipe(short, tmp_path, "cpu", quiet)
    assert_same_run(tmp_path, undisturbed)


def test_a_stop_does_not_wait_for_the_other_micro_batches(short, quiet, tmp_path):
    """The step that was begun is computed anew, to the same bits."""
    recipe = replace(
        short, micro_batch=10, length=Span(6), evaluate_every=Span(6), save_every=Span(6)
    )
    run_recipe(recipe, tmp_path / "undisturbed", "cpu", quiet)
    with events(stop=[3]), pytest.raises(Interrupted):
        run_recipe(recipe, tmp_path / "stopped", "cpu", quiet)
    assert checkpoint_steps(tmp_path / "stopped")[0] == 3  # the newest, and not 4
    run_recipe(recipe, tmp_path / "stopped", "cpu", quiet)
    assert_same_run(tmp_path / "stopped", tmp_path / "undisturbed")


def test_a_batch_is_no_larger_than_an_epoch(tiny):
    """256 of 81 images were one step in two epochs, and the recipe's own warm-up as long as the run."""
    facts = Facts(81, tuple("0123456789"))
    optim = replace(tiny.optim, schedule="cosine", warmup=Span(0.1, "epochs"))
    recipe = replace(tiny, batch=256, length=Span(2, "epochs"), optim=optim)
    resolved = resolve(recipe, facts)
    assert (resolved.batch, resolved.length.n, resolved.optim.warmup.n) == (80, 2, 1)
    assert resolve(resolved, facts) == resolved
    in_steps = resolve(replace(recipe, length=Span(4)), facts)  # which asks for so many images
    assert in_steps.batch == 256

    # The warm-up of a run of one step; but one that is really longer is refused
    once = resolve(replace(recipe, length=Span(1, "epochs")), facts)
    assert (once.length.n, once.optim.warmup.n) == (1, 0)
    longer = replace(recipe, optim=replace(optim, warmup=Span(3, "epochs")))
    with pytest.raises(
        ValueError, match="a warm-up of 3 epochs leaves nothing of the run's 2 steps"
    ):
        resolve(longer, facts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "`batch` is 0"),
        ({"average": 1.0}, "`average` is 1.0"),
        ({"keep": 0}, "keep is 0"),
        ({"length": Span(0)}, "is not one step of 50 images"),
        ({"optim": Optim(warmup=Span(30))}, "a warm-up of 30 steps leaves nothing"),
        ({"seed": -1}, "`seed` is -1; it must be from 0 to"),
        ({"seed": 2**45}, "`seed` is 35184372088832; it must be from 0 to"),
        ({"batch": 49, "objective": Supervised(mixup=0.2)}, "a batch of 49 .* has odd ones"),
        ({"micro_batch": 7, "objective": Supervised(cutmix=1.0)}, "micro-batches of 7 has odd"),
        ({"save_every": Span(-5)}, "`save_every` is -5 steps; a duration is 0 or more"),
        ({"optim": Optim(warmup=Span(-5))}, "`optim.warmup` is -5 steps"),
        ({"data": Data("digits", subset=-1)}, "`data.subset` is -1"),
        ({"data": Data("digits", split_seed=-1)}, "`data.split_seed` is -1; it must be 0 or more"),
        ({"data": Data("digits", keep_decoded=-1)}, "`data.keep_decoded` is -1"),
        ({"data": Data("digits", workers=-2)}, "`data.workers` is -2"),
        ({"evals": (Eval(Accuracy(), Span(-1, "epochs")),)}, "`evals.0.every` is -1 epochs"),
    ],
)
def test_settings_that_cannot_run_are_refused_before_the_images_are_read(tiny, changes, message):
    with pytest.raises(ValueError, match=message):
        resolve(replace(tiny, **changes), FACTS)


def test_a_run_whose_last_step_is_not_finite_is_finished(tiny, quiet, tmp_path, capsys):
    tiny = replace(tiny, length=Span(8), save_every=Span(4), objective=Eventful())
    with events(poison=[7]):
        run_recipe(tiny, tmp_path, "cpu", quiet)
    assert checkpoint_steps(tmp_path) == [8, 4]
    before = (tmp_path / "metrics.jsonl").read_text()
    run_recipe(tiny, tmp_path, "cpu")
    assert "this run is finished after 8 steps" in capsys.readouterr().err
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_another_recipe_in_the_same_directory_is_refused(tiny, copied, quiet):
    with pytest.raises(ValueError, match=r"another recipe \(optim.lr: 0.002 -> 0.5\)"):
        run_recipe(replace(tiny, optim=replace(tiny.optim, lr=0.5)), copied, "cpu", quiet)
    # Settings that do not change the weights may be others
    run_recipe(replace(tiny, log_every=7), copied, "cpu", quiet)


@pytest.mark.slow
def test_settings_that_were_refused_do_not_occupy_a_directory(tiny, quiet, tmp_path):
    """The next run there is as in a new directory."""
    odd = replace(tiny, batch=48, micro_batch=15, objective=Supervised(mixup=0.2))
    refused = [
        (replace(tiny, tune=Tune(blocks=9)), "the model has 2 blocks"),
        (replace(tiny, init=str(tmp_path / "none")), "none"),
        (odd, "make the batch and the micro-batch even"),
    ]
    for recipe, message in refused:
        with pytest.raises((ValueError, OSError), match=message):
            run_recipe(recipe, tmp_path / "run", "cpu", quiet)
    good = replace(odd, micro_batch=16, seed=1, length=Span(6))
    run_recipe(good, tmp_path / "run", "cpu", quiet)
    run_recipe(good, tmp_path / "new", "cpu", quiet)
    assert_same_run(tmp_path / "run", tmp_path / "new")


@pytest.fixture(scope="module")
def stopped(short, quiet, tmp_path_factory):
    """The directory of a run that was stopped in step 9."""
    run_dir = tmp_path_factory.mktemp("stopped")
    with events(stop=[8]), pytest.raises(Interrupted):
        run_recipe(short, run_dir, "cpu", quiet)
    return run_dir


class TestDamage:
    @pytest.fixture
    def run_dir(self, stopped, tmp_path):
        """The same, which a test may change."""
        return Path(shutil.copytree(stopped, tmp_path / "run"))

    @pytest.mark.parametrize("how", ["flipped", "gone", "no counters"])
    def test_falls_back_to_the_checkpoint_before(self, short, run_dir, how, capsys):
        last, before, *_ = checkpoints(run_dir)  # newest first
        file = last / "state.safetensors"
        if how == "flipped":
            content = bytearray(file.read_bytes())
            content[-100] ^= 1
            file.write_bytes(content)
        elif how == "gone":
            file.unlink()
        else:
            (last / "state.json").write_text("{}")
        run_recipe(short, run_dir, "cpu")
        output = capsys.readouterr().err
        assert "is damaged" in output
        assert "trying the one before" in output
        assert f"continuing at step {step_of(before)}" in output

    def test_a_damaged_one_does_not_count_among_those_that_are_kept(self, tiny, tmp_path):
        state = state_of(resolve(tiny, FACTS))
        for state.step in (6, 12):
            state.save(tmp_path, keep=2)
        (tmp_path / "checkpoints" / "step-00000012" / "state.safetensors").write_bytes(b"")
        with pytest.raises(ValueError, match="its checksum does not match"):
            state.load(tmp_path / "checkpoints" / "step-00000012")
        state.load(tmp_path / "checkpoints" / "step-00000006")
        for state.step, remaining in ((18, [18, 6]), (24, [24, 18])):
            state.save(tmp_path, keep=2)
            assert checkpoint_steps(tmp_path) == remaining

    def test_all_damaged_is_a_sentence(self, short, quiet, run_dir):
        for checkpoint in checkpoints(run_dir):
            (checkpoint / "state.json").unlink()
        with pytest.raises(ValueError, match="every checkpoint in .* is damaged; remove"):
            run_recipe(short, run_dir, "cpu", quiet)

    def test_a_full_disk_loses_nothing(self, tiny, run_dir):
        """The system limits the size of files, which stands in for a disk without room: it refuses
        the checkpoint's last bytes."""
        folder = run_dir / "checkpoints"
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        state = state_of(resolve(tiny, FACTS))
        state.step = 25
        message = "could not write a checkpoint at step 25 .* the earlier ones are intact"
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        try:
            with pytest.raises(OSError, match=message):
                state.save(run_dir, keep=2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert after == before


@pytest.fixture(scope="module")
def rolled_back(short, quiet, tmp_path_factory):
    """The directory of a run with three such steps in a row."""
    run_dir = tmp_path_factory.mktemp("rolled-back")
    with events(poison=[8, 9, 10]):
        run_recipe(short, run_dir, "cpu", quiet)
    return run_dir


class TestNotFinite:
    def test_a_bad_step_is_skipped_counted_and_written_down(self, short, quiet, tmp_path):
        with events(poison=[3, 8]):
            run_recipe(short, tmp_path, "cpu", quiet)
        lines = [line for line in curve(tmp_path) if line["event"] == "skipped"]
        assert [line["step"] for line in lines] == [4, 9]
        for line in lines:
            assert len(line["indices"]) == 50
            assert line["notes"]["loss"] == "nan"
        state = read_json(checkpoints(tmp_path)[0] / "state.json")
        assert (state["skipped"], state["rollbacks"]) == (2, 0)
        assert all(tensor.isfinite().all() for tensor in weights(tmp_path).values())

    def test_three_in_a_row_go_back_to_the_last_good_checkpoint(self, rolled_back):
        (rollback,) = [line for line in curve(rolled_back) if line["event"] == "rollback"]
        assert (rollback["step"], rollback["checkpoint"]) == (11, "step-00000006")
        state = read_json(checkpoints(rolled_back)[0] / "state.json")
        assert (state["step"], state["skipped"], state["rollbacks"]) == (12, 3, 1)

    def test_an_interruption_before_does_not_change_where_it_goes_back_to(
        self, short, rolled_back, quiet, tmp_path
    ):
        with events(stop=[6]), pytest.raises(Interrupted):
            run_recipe(short, tmp_path, "cpu", quiet)
        assert checkpoint_steps(tmp_path) == [7, 6, 0]
        with events(poison=[8, 9, 10]):
            run_recipe(short, tmp_path, "cpu", quiet)
        assert_same_run(tmp_path, rolled_back)

    def test_again_after_that_it_stops(self, tiny, quiet, tmp_path):
        sentence = "not finite at step 18, after one rollback already; lower `optim.lr`"
        with (
            events(poison=[8, 9, 10, 15, 16, 17]),
            pytest.raises(FloatingPointError, match=sentence),
        ):
            run_recipe(replace(tiny, objective=Eventful()), tmp_path, "cpu", quiet)


def gradients_of(recipe):
    """Loss, norm, and the gradient of each parameter for a random batch. The head is not zero, or
    nothing would reach what is below it."""
    state = state_of(resolve(recipe, FACTS))
    head = state.learner.model.head
    torch.nn.init.normal_(head.weight, std=0.1, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(16) % 10
    loss, norm, _ = gradient(recipe, state, batch_of(random_levels(16, (8, 8)), targets))
    return loss, norm, [parameter.grad for parameter in state.learner.parameters()]


@pytest.mark.parametrize(
    ("micro", "objective"),
    [(micro, Supervised(loss, 0.1)) for micro in (1, 4, 7, 16) for loss in ("softmax", "sigmoid")]
    + [(6, Supervised(loss, 0.1, mixup=0.5, cutmix=1.0)) for loss in ("softmax", "sigmoid")],
)
def test_accumulated_micro_batches_are_the_big_batch(tiny, micro, objective):
    whole = replace(
        tiny,
        model=replace(tiny.model, dropout=0, stochastic_depth=0),
        batch=16,
        objective=objective,
    )
    loss, norm, grads = gradients_of(replace(whole, micro_batch=16))
    micro_loss, micro_norm, micro_grads = gradients_of(replace(whole, micro_batch=micro))
    torch.testing.assert_close(micro_loss, loss, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(micro_norm, norm, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(micro_grads, grads, atol=1e-6, rtol=1e-4)


def test_clipping_is_of_the_global_norm(tiny):
    optim = replace(tiny.optim, clip=0.01)
    _, norm, grads = gradients_of(replace(tiny, batch=16, micro_batch=16, optim=optim))
    assert norm > 0.01
    clipped = torch.stack([grad.norm() for grad in grads]).norm()
    assert clipped.item() == pytest.approx(0.01, rel=1e-3)


def test_the_norm_is_exact_whatever_the_sizes_of_its_parts():
    """One large derivative beside a million small ones, which a float32 sum forgets."""
    layer = torch.nn.Linear(2048, 512)
    for parameter in layer.parameters():
        parameter.grad = torch.full_like(parameter, 0.1)
    layer.weight.grad[0, 0] = 1e3
    exact = (1e6 + 0.01 * (2048 * 512 + 512 - 1)) ** 0.5
    for clip in (0, 2 * exact):  # it is not clipped
        assert clip_gradient(layer.parameters(), Optim(clip=clip)).item() == pytest.approx(
            exact, rel=1e-7
        )
        assert layer.weight.grad[0, 0] == 1e3
    assert clip_gradient(layer.parameters(), Optim(clip=1)).item() == pytest.approx(exact, rel=1e-7)
    assert clip_gradient(layer.parameters(), Optim(clip=0)).item() == pytest.approx(1, rel=1e-6)


def test_clipping_may_be_of_the_norm_of_each_parameter(tiny):
    recipe = replace(tiny, batch=16, micro_batch=16)
    free = replace(tiny.optim, clip=0.0)
    clipping = replace(tiny.optim, clip=0.1, clip_each=True)
    _, norm, grads = gradients_of(replace(recipe, optim=free))
    _, clipped_norm, clipped_grads = gradients_of(replace(recipe, optim=clipping))
    assert torch.equal(norm, clipped_norm)
    norms = [grad.norm().item() for grad in grads]
    assert min(norms) < 0.1 < max(norms)
    expected = [grad * min(1, 0.1 / size) for grad, size in zip(grads, norms, strict=True)]
    torch.testing.assert_close(clipped_grads, expected, atol=1e-7, rtol=1e-3)


@dataclass(frozen=True)
class Still(Supervised):
    """A loss without a gradient."""

    def learner(self, model, preprocessing=None):
        return StillLearner(model, self)


class StillLearner(SupervisedLearner):
    def forward(self, images, labels, keys):
        return super().forward(images, labels, keys) * 0


def test_a_weight_decay_that_grows_does_so_in_the_run(tiny, quiet, tmp_path):
    """Without a gradient a weight is what every step's lr * decay leaves of it, and one that does
    not decay stays."""
    optim = Optim(
        lr=0.1, schedule="constant", weight_decay=0.1, weight_decay_end=0.5, decay_on="kernels"
    )
    recipe = replace(tiny, objective=Still(), optim=optim, length=Span(8), average=0.0)
    after = run_recipe(recipe, tmp_path, "cpu", quiet).model.state_dict()
    before = create(tiny.model, seed=0).state_dict()
    share = 1.0
    for step in range(8):
        decay = 0.5 - 0.2 * (1 + np.cos(np.pi * step / 8))
        share *= 1 - 0.1 * decay
    name = "blocks.0.mlp.expand.weight"
    torch.testing.assert_close(after[name], before[name] * share)
    assert torch.equal(after["positions.table"], before["positions.table"])


def test_polyak_average_by_hand(tiny):
    recipe = resolve(tiny, FACTS)
    state = state_of(recipe)
    state.average = {name: value.clone() for name, value in trained(state.learner).items()}
    model = state.learner.model
    expected = model.norm.weight.detach().clone()
    for step in range(1, 60):
        with torch.no_grad():
            model.norm.weight.add_(0.1 * step)
        state.step = step
        update(recipe, state, step)  # without gradients, which change nothing
        factor = min(0.8, (1 + step) / (10 + step))
        expected = factor * expected + (1 - factor) * model.norm.weight.detach()
    torch.testing.assert_close(state.average["model.norm.weight"], expected)
    weight = model.norm.weight.detach().clone()
    with state.averaged():
        torch.testing.assert_close(model.norm.weight.detach(), expected)
    assert torch.equal(model.norm.weight, weight)


class TestWeightsToBeginWith:
    def test_the_new_head_has_the_recipe_s_bias(self, tiny, finished, quiet, tmp_path):
        """The first loss is that of a new head: a bias of -10 and one class among ten, whatever the
        encoder has learned."""
        second = replace(
            tiny,
            init=str(finished[0]),
            model=replace(tiny.model, head_bias=-10.0),
            objective=Supervised("sigmoid"),
            optim=Optim(),
            length=Span(1),
            log_every=1,
        )
        run_recipe(second, tmp_path, "cpu", quiet)
        expected = 10 + 10 * np.log1p(np.exp(-10))
        assert curve(tmp_path)[0]["loss"] == pytest.approx(expected, rel=1e-4)

    def test_a_run_begins_where_another_ended_with_a_new_head(
        self, tiny, finished, copied, quiet, tmp_path
    ):
        first = finished[1]
        card = copied / "model" / "README.md"
        card.write_text("---\nlicense: cc-by-nc-4.0\n---\n")
        still = replace(tiny, init=str(copied), average=0, length=Span(1), optim=Optim(lr=1e-30))
        second = run_recipe(still, tmp_path / "second", "cpu", quiet)
        after = second.model.state_dict()
        for name, tensor in first.model.state_dict().items():
            if not name.startswith("head"):
                assert torch.equal(after[name], tensor), name
        assert second.model.head.weight.abs().max() < 1e-20 < first.model.head.weight.abs().max()
        assert second.origin["init"] == "first"  # no path of this machine
        assert second.license == License("cc-by-nc-4.0")

        # Continued where those weights are no more, it is under their licence all the same
        shutil.rmtree(copied)
        shutil.rmtree(tmp_path / "second" / "model")
        (tmp_path / "second" / "finished.json").unlink()
        assert run_recipe(still, tmp_path / "second", "cpu", quiet).license == second.license

    def test_the_average_begins_there_too(self, tiny, finished, quiet, tmp_path):
        run_dir, first = finished
        still = replace(tiny, init=str(run_dir), length=Span(1), optim=Optim(lr=1e-30))
        second = run_recipe(still, tmp_path, "cpu", quiet)
        torch.testing.assert_close(second.model.norm.weight, first.model.norm.weight)

    def test_another_architecture_is_refused_by_name(self, tiny, finished, quiet, tmp_path):
        other = replace(tiny, init=str(finished[0]), model=replace(tiny.model, heads=3))
        message = r"has another architecture than the recipe's model \(heads: 2 -> 3\)"
        with pytest.raises(ValueError, match=message):
            run_recipe(other, tmp_path, "cpu", quiet)


def test_keys_are_a_function_of_seed_step_and_place():
    keys = keys_of(3, 7, 64)
    assert torch.equal(keys, keys_of(3, 7, 64))
    assert len({*keys.tolist(), *keys_of(3, 8, 64).tolist(), *keys_of(4, 7, 64).tolist()}) == 192


def test_the_device_that_trains_is_seeded_and_no_other(monkeypatch):
    seeded = []
    for name in ("cuda", "mps"):
        module = getattr(torch, name)
        monkeypatch.setattr(module, "manual_seed", lambda seed, name=name: seeded.append(name))
    with torch.random.fork_rng(devices=[]):
        for name in ("cpu", "cuda", "mps"):
            _seed(torch.device(name), 3)
            assert torch.initial_seed() == 3
    assert seeded == ["cuda", "mps"]


class TestOptions:
    @pytest.mark.parametrize(
        "changes",
        [
            {"precision": "bfloat16"},
            {"track": "tensorboard"},
            pytest.param({"compile": True}, marks=pytest.mark.slow),
        ],
        ids=lambda c: next(iter(c)),
    )
    def test_each_trains(self, tiny, quiet, tmp_path, changes, monkeypatch):
        few = replace(tiny, length=Span(15), evaluate_every=Span(15))
        compiled = capture_compiled(monkeypatch)
        run_recipe(replace(few, **changes), tmp_path, "cpu", quiet)
        assert len(compiled) == ("compile" in changes)
        assert losses(tmp_path)[-1] < losses(tmp_path)[0]
        assert any(tmp_path.glob("tensorboard/events*")) == ("track" in changes)

    def test_a_run_goes_on_in_the_precision_that_it_began_in(
        self, tiny, quiet, tmp_path, monkeypatch
    ):
        """What ran is written down, whatever the machine would choose now."""
        open_to_both = replace(tiny, precision="auto", length=Span(6), evals=())
        for has, other in ((True, "float32"), (False, "bfloat16")):
            run_dir = tmp_path / str(has)
            monkeypatch.setattr("vitkit.system.machine.has_bfloat16", lambda _, has=has: has)
            run_recipe(open_to_both, run_dir, "cpu", quiet)
            began_in = read_json(run_dir / "recipe.json")["precision"]
            assert began_in != other
            monkeypatch.setattr("vitkit.system.machine.has_bfloat16", lambda _, has=has: not has)
            console = Console(file=io.StringIO(), width=1000)
            run_recipe(open_to_both, run_dir, "cpu", console)
            text = console.file.getvalue()
            assert f"this run began in {began_in} and continues in it" in text
            assert read_json(run_dir / "recipe.json")["precision"] == began_in

    def test_recomputing_changes_no_bit(self, short, undisturbed, quiet, tmp_path):
        run_recipe(replace(short, recompute=True), tmp_path, "cpu", quiet)
        assert same(weights(tmp_path), weights(undisturbed))


class TestResolve:
    def test_size_and_classes_must_fit(self, tiny):
        larger = replace(tiny.data, preprocessing=Preprocessing(size=(16, 16)))
        message = r"or `model.image=\(16, 16\)` and `data.preprocessing.size=\(16, 16\)`"
        with pytest.raises(ValueError, match=message):
            resolve(replace(tiny, data=larger), FACTS)
        with pytest.raises(ValueError, match="the model has 7 classes, the data 10"):
            resolve(replace(tiny, model=replace(tiny.model, classes=7)), FACTS)
        masked = replace(tiny, objective=MaskedPatches(), model=replace(tiny.model, classes=10))
        with pytest.raises(ValueError, match="10 classes, but the objective learns without"):
            resolve(masked, FACTS)

    def test_spans_become_steps_and_nothing_else_changes(self, tiny):
        recipe = replace(tiny, length=Span(2, "epochs"), evaluate_every=Span(500, "images"))
        resolved = resolve(recipe, FACTS)
        assert resolved.length == Span(57, "steps")
        assert resolved.evaluate_every == Span(10, "steps")
        assert resolve(resolved, FACTS) == resolved
        distilled = replace(tiny, objective=SelfDistillation(teacher_warmup=Span(100, "images")))
        objective = resolve(distilled, FACTS).objective
        assert objective == SelfDistillation(teacher_warmup=Span(2), last_layer_still=Span(29))


SCRIPT = """
import threading
from dataclasses import replace

from vitkit.recipes import recipe
from vitkit.system.span import Span
from vitkit.training import run_recipe


def main():
    digits = recipe("digits")
    optim = replace(digits.optim, warmup=Span(1))
    data = replace(digits.data, check=False, workers=1)
    run_recipe(replace(digits, data=data, optim=optim, length=Span(2), batch=16), "run", "cpu")


if __name__ == "__main__":
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
"""


@pytest.mark.slow
def test_a_script_can_call_train(tmp_path):
    """From a thread, which cannot catch signals, and with worker processes."""
    (tmp_path / "mine.py").write_text(SCRIPT)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "mine.py"]
    subprocess.run(command, check=True, cwd=tmp_path, env=environment, timeout=120)
    assert (tmp_path / "run" / "model" / "config.json").exists()


def test_a_run_may_be_called_like_its_data_set(tmp_path, monkeypatch):
    """The folder "digits" is then the run's, and the images are scikit-learn's."""
    monkeypatch.chdir(tmp_path)
    run_dir = Path("digits")
    check_apart(run_dir, "digits")
    run_dir.mkdir()
    (run_dir / "recipe.json").write_text("{}")
    check_apart(run_dir, "digits")
