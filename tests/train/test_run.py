"""What a run promises: the same result again, after an interruption, after damage; sentences for
what cannot run."""

import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from vitkit.models import create
from vitkit.objectives import SelfDistillation, Supervised
from vitkit.objectives.supervised import SupervisedLearner
from vitkit.system.span import Span
from vitkit.train import Interrupted, Optim, last_metrics, primary_metric, train
from vitkit.train.checkpoints import checkpoints
from vitkit.train.recipe import Facts, resolve
from vitkit.train.state import State, trained
from vitkit.train.step import clip_gradient, gradient, keys_of
from vitkit.train.tune import Tune


def weights(workdir):
    return load_file(workdir / "model" / "model.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def curve(workdir):
    """metrics.jsonl as it is written, without what a clock says."""
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [
        {k: v for k, v in line.items() if k not in ("images_per_second", "data_wait")}
        for line in lines
    ]


def test_a_finished_run_holds_what_it_should(tiny, quiet, tmp_path):
    classifier = train(tiny, tmp_path, "cpu", quiet)
    assert {p.name for p in tmp_path.iterdir()} == {
        "LAST", "LOCK", "checkpoints", "data.json", "metrics.jsonl", "model", "recipe.json"
    }  # fmt: skip
    assert [p.name for p in checkpoints(tmp_path)] == ["step-00000030", "step-00000024"]
    ran = json.loads((tmp_path / "recipe.json").read_text())
    assert (ran["length"], ran["model"]["classes"], ran["optim"]["warmup"]) == (
        "30 steps",
        10,
        "5 steps",
    )
    data = json.loads((tmp_path / "data.json").read_text())
    assert (data["source"], data["counts"], data["skipped"]) == (
        "digits",
        {"train": 1438, "test": 359},
        {},
    )
    lines = curve(tmp_path)
    assert [x["step"] for x in lines if x["event"] == "training"] == [5, 10, 15, 20, 25, 30]
    assert [x["step"] for x in lines if x["event"] == "evaluation"] == [10, 20, 30]
    metrics = [x["metrics"] for x in lines if x["event"] == "evaluation"]
    assert all(of_step["test/seen"]["value"] == 359 for of_step in metrics)
    assert classifier.labels == tuple("0123456789")
    top1 = last_metrics(tmp_path)["test/top1"]
    assert classifier.origin["metrics"]["test/top1"] == top1.text()
    assert (
        primary_metric(tmp_path) == top1 and top1.value == metrics[-1]["test/top1"]["value"] > 0.1
    )
    assert not classifier.model.training


def test_the_same_recipe_gives_the_same_bits_for_any_number_of_workers(tiny, quiet, tmp_path):
    train(tiny, tmp_path / "a", "cpu", quiet)
    train(replace(tiny, data=replace(tiny.data, workers=2)), tmp_path / "b", "cpu", quiet)
    train(replace(tiny, seed=1), tmp_path / "c", "cpu", quiet)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert curve(tmp_path / "a") == curve(tmp_path / "b")
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


@contextmanager
def events(stop=(), poison=()):
    Eventful.stop, Eventful.poison = set(stop), set(poison)
    try:
        yield
    finally:
        Eventful.stop, Eventful.poison = set(), set()


@dataclass(frozen=True)
class Eventful(Supervised):
    """The loss, but something happens at some steps: step numbers are in torch's seed, as the loop
    sets it."""

    stop: ClassVar[set[int]] = set()
    poison: ClassVar[set[int]] = set()

    def learner(self, model, preprocessing):
        return EventfulLearner(model, self)


class EventfulLearner(SupervisedLearner):
    def forward(self, images, labels, keys):
        loss, step = super().forward(images, labels, keys), torch.initial_seed()
        if step in self.objective.stop:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss * float("nan") if step in self.objective.poison else loss


@pytest.mark.parametrize("step", [0, 7, 29])
def test_stopped_and_continued_is_as_if_nothing_happened(tiny, quiet, tmp_path, step):
    tiny = replace(tiny, objective=Eventful())
    train(tiny, tmp_path / "whole", "cpu", quiet)
    with events(stop=[step]), pytest.raises(Interrupted):
        train(tiny, tmp_path / "broken", "cpu", quiet)
    train(tiny, tmp_path / "broken", "cpu", quiet)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "broken"))
    assert curve(tmp_path / "whole") == curve(tmp_path / "broken")


def test_a_second_call_on_a_finished_run_does_nothing(tiny, quiet, tmp_path):
    first = train(tiny, tmp_path, "cpu", quiet)
    before = (tmp_path / "metrics.jsonl").read_text()
    second = train(tiny, tmp_path, "cpu", quiet)
    assert (tmp_path / "metrics.jsonl").read_text() == before
    assert same(first.model.state_dict(), second.model.state_dict())


def test_another_recipe_in_the_same_directory_is_refused(tiny, quiet, tmp_path):
    train(tiny, tmp_path, "cpu", quiet)
    with pytest.raises(ValueError, match=r"another recipe \(optim.lr: 0.002 -> 0.5\)"):
        train(replace(tiny, optim=replace(tiny.optim, lr=0.5)), tmp_path, "cpu", quiet)
    train(
        replace(tiny, log_every=7), tmp_path, "cpu", quiet
    )  # what does not change the weights may change


def test_settings_that_were_refused_do_not_occupy_a_directory(tiny, quiet, tmp_path):
    """Neither before the first step nor in it; the run is then as in a new directory."""
    odd = replace(tiny, batch=48, micro_batch=15, objective=Supervised(mixup=0.2))
    for refused, message in (
        (replace(tiny, tune=Tune(blocks=9)), "the model has 2 blocks"),
        (replace(tiny, init=str(tmp_path / "none")), "none"),
        (odd, "make the batch, the micro-batch"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            train(refused, tmp_path / "run", "cpu", quiet)
    train(replace(odd, micro_batch=16, seed=1), tmp_path / "run", "cpu", quiet)
    train(replace(odd, micro_batch=16, seed=1), tmp_path / "new", "cpu", quiet)
    assert same(weights(tmp_path / "run"), weights(tmp_path / "new"))
    assert curve(tmp_path / "run") == curve(tmp_path / "new")


class TestDamage:
    def interrupted(self, tiny, quiet, workdir):
        with events(stop=[20]), pytest.raises(Interrupted):
            train(replace(tiny, objective=Eventful()), workdir, "cpu", quiet)
        return checkpoints(workdir)

    @pytest.mark.parametrize("how", ["flipped", "truncated", "gone", "no counters"])
    def test_falls_back_to_the_checkpoint_before(self, tiny, quiet, tmp_path, how, capsys):
        last, before, *_ = self.interrupted(tiny, quiet, tmp_path / "run")
        file = last / "state.safetensors"
        if how == "flipped":
            content = bytearray(file.read_bytes())
            content[-100] ^= 1
            file.write_bytes(content)
        elif how == "truncated":
            file.write_bytes(file.read_bytes()[:-50])
        elif how == "gone":
            file.unlink()
        else:
            (last / "state.json").write_text("{}")
        train(replace(tiny, objective=Eventful()), tmp_path / "run", "cpu")
        said = capsys.readouterr().out
        assert (
            "is damaged" in said
            and "trying the one before" in said
            and f"continuing at step {int(before.name[5:])}" in said
        )

    def test_a_damaged_one_does_not_count_among_those_that_are_kept(self, tiny, tmp_path):
        learner = tiny.objective.learner(
            create(resolve(tiny, Facts(1437, tuple("0123456789"))).model, seed=1)
        )
        state = State(learner, tiny.optim.build(learner))
        for state.step in (6, 12):
            state.save(tmp_path, keep=2)
        (tmp_path / "checkpoints" / "step-00000012" / "state.safetensors").write_bytes(b"")
        with pytest.raises(ValueError, match="its checksum does not fit"):
            state.load(tmp_path / "checkpoints" / "step-00000012")
        state.load(tmp_path / "checkpoints" / "step-00000006")
        for state.step, left in ((18, ["18", "06"]), (24, ["24", "18"])):
            state.save(tmp_path, keep=2)
            assert [path.name[-2:] for path in checkpoints(tmp_path)] == left

    def test_all_damaged_is_a_sentence(self, tiny, quiet, tmp_path):
        for checkpoint in self.interrupted(tiny, quiet, tmp_path):
            (checkpoint / "state.json").unlink()
        with pytest.raises(ValueError, match="every checkpoint in .* is damaged; remove"):
            train(replace(tiny, objective=Eventful()), tmp_path, "cpu", quiet)

    def test_a_full_disk_loses_nothing(self, tiny, quiet, tmp_path):
        """A limit on file sizes stands in for a disk without room: the system refuses the
        checkpoint's last bytes."""
        kept = self.interrupted(tiny, quiet, tmp_path)
        digest = {p: p.read_bytes() for c in kept for p in c.iterdir()}
        model = create(resolve(tiny, Facts(1437, tuple("0123456789"))).model, seed=1)
        learner = tiny.objective.learner(model)
        state = State(learner, tiny.optim.build(learner), step=25)
        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, old[1]))
        try:
            with pytest.raises(
                OSError,
                match="could not write a checkpoint at step 25 .* the earlier ones are untouched",
            ):
                state.save(tmp_path, keep=2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        assert {p: p.read_bytes() for c in checkpoints(tmp_path) for p in c.iterdir()} == digest
        assert not list((tmp_path / "checkpoints").glob(".*"))


class TestNotFinite:
    def test_a_bad_step_is_skipped_counted_and_written_down(self, tiny, quiet, tmp_path):
        with events(poison=[3, 8]):
            train(replace(tiny, objective=Eventful()), tmp_path, "cpu", quiet)
        lines = [line for line in curve(tmp_path) if line["event"] == "skipped"]
        assert [line["step"] for line in lines] == [4, 9]
        assert all(len(line["indices"]) == 50 and line["notes"]["loss"] == "nan" for line in lines)
        state = json.loads((checkpoints(tmp_path)[0] / "state.json").read_text())
        assert (state["skipped"], state["rollbacks"]) == (2, 0)
        assert all(t.isfinite().all() for t in weights(tmp_path).values())

    def test_three_in_a_row_go_back_to_the_last_good_checkpoint(self, tiny, quiet, tmp_path):
        with events(poison=[8, 9, 10]):
            train(replace(tiny, average=0.9, objective=Eventful()), tmp_path, "cpu", quiet)
        found = [(line["event"], line["step"], line.get("checkpoint")) for line in curve(tmp_path)]
        assert ("rollback", 11, "step-00000006") in found
        state = json.loads((checkpoints(tmp_path)[0] / "state.json").read_text())
        assert (state["step"], state["skipped"], state["rollbacks"]) == (30, 3, 1)

    def test_an_interruption_before_does_not_change_where_it_goes_back_to(
        self, tiny, quiet, tmp_path
    ):
        for name, stop in (("whole", []), ("broken", [6])):
            with events(stop=stop, poison=[8, 9, 10]):
                if stop:
                    with pytest.raises(Interrupted):
                        train(replace(tiny, objective=Eventful()), tmp_path / name, "cpu", quiet)
                    assert [path.name[-2:] for path in checkpoints(tmp_path / name)] == [
                        "07",
                        "06",
                        "00",
                    ]
                train(replace(tiny, objective=Eventful()), tmp_path / name, "cpu", quiet)
        assert same(weights(tmp_path / "whole"), weights(tmp_path / "broken"))
        assert curve(tmp_path / "whole") == curve(tmp_path / "broken")

    def test_again_after_that_it_stops(self, tiny, quiet, tmp_path):
        sentence = "not finite at step 18, after going back once already; lower --optim.lr"
        with (
            events(poison=[8, 9, 10, 15, 16, 17]),
            pytest.raises(FloatingPointError, match=sentence),
        ):
            train(replace(tiny, objective=Eventful()), tmp_path, "cpu", quiet)


def batch_of(n, labels=10):
    from vitkit.data import Batch

    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return Batch(
        images,
        torch.randint(0, labels, (n,), generator=generator),
        torch.ones(n, dtype=torch.bool),
        torch.arange(n),
    )


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
    grads, norms = [], []
    for recipe in (replace(whole, micro_batch=16), replace(whole, micro_batch=micro)):
        model = create(resolve(recipe, Facts(100, tuple("0123456789"))).model, seed=0)
        torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
        learner = recipe.objective.learner(model)
        state = State(learner, recipe.optim.build(learner))
        norms.append(gradient(recipe, state, batch_of(16)))
        grads.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(norms[0], norms[1], atol=1e-6, rtol=1e-5)
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_clipping_is_of_the_global_norm(tiny):
    model = create(resolve(tiny, Facts(100, tuple("0123456789"))).model, seed=0)
    recipe = replace(tiny, batch=16, micro_batch=16, optim=replace(tiny.optim, clip=0.01))
    learner = recipe.objective.learner(model)
    _, norm = gradient(recipe, State(learner, recipe.optim.build(learner)), batch_of(16))
    total = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    assert norm > 0.01
    assert total.item() == pytest.approx(0.01, rel=1e-3)


def test_the_norm_is_exact_whatever_the_sizes_of_its_parts():
    """One large derivative beside a million small ones, which a float32 sum forgets."""
    layer = torch.nn.Linear(2048, 512)
    for parameter in layer.parameters():
        parameter.grad = torch.full_like(parameter, 0.1)
    layer.weight.grad[0, 0] = 1e3
    exact = (1e6 + 0.01 * (2048 * 512 + 512 - 1)) ** 0.5
    assert clip_gradient(layer, Optim(clip=0)).item() == pytest.approx(exact, rel=1e-7)
    assert (
        clip_gradient(layer, Optim(clip=2 * exact)).item() == pytest.approx(exact, rel=1e-7)
        and layer.weight.grad[0, 0] == 1e3
    )
    assert clip_gradient(layer, Optim(clip=1)).item() == pytest.approx(exact, rel=1e-7)
    assert clip_gradient(layer, Optim(clip=0)).item() == pytest.approx(1, rel=1e-6)


def test_or_of_each_parameters_own(tiny):
    grads, norms = [], []
    for clip in (0.0, 0.1):
        model = create(resolve(tiny, Facts(100, tuple("0123456789"))).model, seed=0)
        torch.nn.init.normal_(
            model.head.weight, std=0.1, generator=torch.Generator().manual_seed(1)
        )
        recipe = replace(
            tiny, batch=16, micro_batch=16, optim=replace(tiny.optim, clip=clip, clip_each=True)
        )
        learner = recipe.objective.learner(model)
        _, norm = gradient(recipe, State(learner, recipe.optim.build(learner)), batch_of(16))
        grads.append([p.grad for p in model.parameters()])
        norms.append(norm)
    assert torch.equal(*norms)
    assert any(free.norm() < 0.1 for free in grads[0]) and any(
        free.norm() > 0.1 for free in grads[0]
    )
    for free, short in zip(*grads, strict=True):
        torch.testing.assert_close(
            short, free * min(1, 0.1 / free.norm().item()), atol=1e-7, rtol=1e-3
        )


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
    train(
        replace(tiny, objective=Still(), optim=optim, length=Span(8), average=0.0),
        tmp_path,
        "cpu",
        quiet,
    )
    ran, before = weights(tmp_path), create(tiny.model, seed=0).state_dict()
    left = np.prod([1 - 0.1 * (0.5 - 0.2 * (1 + np.cos(np.pi * step / 8))) for step in range(8)])
    name = "vit.encoder.layer.0.intermediate.dense.weight"
    torch.testing.assert_close(ran[name], before["blocks.0.mlp.expand.weight"] * left)
    assert torch.equal(ran["vit.embeddings.position_embeddings"], before["positions.table"])


def test_polyak_average_by_hand(tiny):
    model = create(resolve(tiny, Facts(100, tuple("0123456789"))).model, seed=0)
    learner = tiny.objective.learner(model)
    average = {name: value.clone() for name, value in trained(learner).items()}
    state = State(learner, tiny.optim.build(learner), average)
    expected = model.norm.weight.detach().clone()
    for step in range(1, 60):
        with torch.no_grad():
            model.norm.weight.add_(0.1 * step)
        state.step = step
        state.update_average(0.8)
        factor = min(0.8, (1 + step) / (10 + step))
        expected = factor * expected + (1 - factor) * model.norm.weight.detach()
    torch.testing.assert_close(state.average["model.norm.weight"], expected)
    kept = model.norm.weight.detach().clone()
    with state.averaged():
        torch.testing.assert_close(model.norm.weight.detach(), expected)
    assert torch.equal(model.norm.weight, kept)


class TestWeightsToBeginWith:
    def test_the_new_head_has_the_recipe_s_bias(self, tiny, quiet, tmp_path):
        """Its first loss is that of a head of its own: -10 and one label among ten, whatever the
        rest has learned."""
        train(tiny, tmp_path / "first", "cpu", quiet)
        unsure = replace(tiny.model, head_bias=-10.0)
        found = replace(
            tiny,
            init=str(tmp_path / "first"),
            model=unsure,
            objective=Supervised("sigmoid"),
            log_every=1,
        )
        train(replace(found, length=Span(1), optim=Optim()), tmp_path / "second", "cpu", quiet)
        assert curve(tmp_path / "second")[0]["loss"] == pytest.approx(
            10 + 10 * np.log1p(np.exp(-10)), rel=1e-4
        )

    def test_a_run_begins_where_another_ended_with_a_new_head(self, tiny, quiet, tmp_path):
        first = train(tiny, tmp_path / "first", "cpu", quiet)
        still = replace(
            tiny, init=str(tmp_path / "first"), average=0, length=Span(1), optim=Optim(lr=1e-30)
        )
        second = train(still, tmp_path / "second", "cpu", quiet)
        kept = {
            name: t for name, t in first.model.state_dict().items() if not name.startswith("head")
        }
        for name, tensor in kept.items():
            assert torch.equal(second.model.state_dict()[name], tensor), name
        assert second.model.head.weight.abs().max() < 1e-20 < first.model.head.weight.abs().max()
        assert second.origin["init"] == str(tmp_path / "first")

    def test_the_average_begins_there_too(self, tiny, quiet, tmp_path):
        first = train(tiny, tmp_path / "first", "cpu", quiet)
        still = replace(tiny, init=str(tmp_path / "first"), length=Span(1), optim=Optim(lr=1e-30))
        second = train(still, tmp_path / "second", "cpu", quiet)
        torch.testing.assert_close(second.model.norm.weight, first.model.norm.weight)

    def test_another_architecture_is_refused_by_name(self, tiny, quiet, tmp_path):
        train(tiny, tmp_path / "first", "cpu", quiet)
        other = replace(tiny, init=str(tmp_path / "first"), model=replace(tiny.model, heads=3))
        with pytest.raises(
            ValueError, match=r"holds another model than the recipe's \(heads: 2 -> 3\)"
        ):
            train(other, tmp_path / "second", "cpu", quiet)


def test_keys_are_a_function_of_seed_step_and_place():
    keys = keys_of(3, 7, 64)
    assert torch.equal(keys, keys_of(3, 7, 64))
    assert len({*keys.tolist(), *keys_of(3, 8, 64).tolist(), *keys_of(4, 7, 64).tolist()}) == 192


class TestOptions:
    @pytest.mark.parametrize(
        "changes",
        [{"precision": "bfloat16"}, {"recompute": True}, {"compile": True}, {"tensorboard": True}],
        ids=lambda c: next(iter(c)),
    )
    def test_each_trains(self, tiny, quiet, tmp_path, changes):
        train(replace(tiny, **changes), tmp_path, "cpu", quiet)
        losses = [line["loss"] for line in curve(tmp_path) if line["event"] == "training"]
        assert losses[-1] < losses[0] or len(losses) == 1
        assert bool(list(tmp_path.glob("tensorboard/events*"))) == ("tensorboard" in changes)

    def test_recomputing_changes_no_bit(self, tiny, quiet, tmp_path):
        train(tiny, tmp_path / "a", "cpu", quiet)
        train(replace(tiny, recompute=True), tmp_path / "b", "cpu", quiet)
        assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))


class TestResolve:
    facts = Facts(1437, tuple("0123456789"))

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"batch": 0}, "batch is 0"),
            ({"average": 1.0}, "average is 1.0"),
            ({"keep": 0}, "keep is 0"),
            ({"length": Span(0)}, "is not one step of 50 images"),
        ],
    )
    def test_sentences(self, tiny, changes, sentence):
        with pytest.raises(ValueError, match=sentence):
            resolve(replace(tiny, **changes), self.facts)

    def test_size_and_classes_must_fit(self, tiny):
        with pytest.raises(
            ValueError, match=r"set both: --model.image 16 16 --data.preprocessing.size 16 16"
        ):
            resolve(
                replace(
                    tiny,
                    data=replace(
                        tiny.data, preprocessing=replace(tiny.data.preprocessing, size=(16, 16))
                    ),
                ),
                self.facts,
            )
        with pytest.raises(ValueError, match="the model has 7 classes, the data 10"):
            resolve(replace(tiny, model=replace(tiny.model, classes=7)), self.facts)
        with pytest.raises(ValueError, match="a warm-up of 30 steps leaves nothing"):
            resolve(replace(tiny, optim=replace(tiny.optim, warmup=Span(30))), self.facts)

    def test_spans_become_steps_and_nothing_else_changes(self, tiny):
        recipe = replace(tiny, length=Span(2, "epochs"), evaluate_every=Span(500, "images"))
        found = resolve(recipe, self.facts)
        assert (found.length, found.evaluate_every) == (Span(57, "steps"), Span(10, "steps"))
        assert resolve(found, self.facts) == found
        distilled = replace(tiny, objective=SelfDistillation(teacher_warmup=Span(100, "images")))
        objective = resolve(distilled, self.facts).objective
        assert objective == SelfDistillation(teacher_warmup=Span(2), last_layer_still=Span(29))


def test_a_module_of_ones_own_can_call_train(tmp_path):
    """Called from a thread, where signals cannot be caught, and with workers from a plain
    script."""
    script = tmp_path / "mine.py"
    script.write_text(
        "import threading\nfrom dataclasses import replace\n"
        "from vitkit.recipes import recipe\nfrom vitkit.system.span import Span\nfrom vitkit.train import train\n"
        "def main():\n    r = recipe('digits')\n"
        "    train(replace(r, length=Span(4), batch=16, optim=replace(r.optim, warmup=Span(1))), 'run', 'cpu')\n"
        "if __name__ == '__main__':\n    t = threading.Thread(target=main)\n    t.start()\n    t.join()\n"
    )
    subprocess.run(
        [sys.executable, "-W", "error", str(script)], check=True, cwd=tmp_path, timeout=120
    )
    assert (tmp_path / "run" / "model" / "config.json").exists()
