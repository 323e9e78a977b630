"""What `vitkit plan` says, held to what a run has."""

from dataclasses import replace

import pytest

from vitkit.models import create, vit
from vitkit.objectives import MaskedAutoencoder, SelfDistillation
from vitkit.system.span import Span
from vitkit.train import Data, Facts, Optim, Recipe, resolve
from vitkit.train.plan import GIB, Machine, advice, memory, spent
from vitkit.train.state import State, trained
from vitkit.train.tune import Tune


@pytest.fixture
def large():
    recipe = Recipe(
        vit("L/16", classes=0),
        Data("x"),
        batch=1024,
        precision="bfloat16",
        length=Span(10, "epochs"),
    )
    return resolve(recipe, Facts(1024, tuple("abc")))


@pytest.mark.parametrize("optim", [Optim(), Optim("sgd")])
def test_weights_gradients_and_optimiser_to_the_byte(tiny, optim):
    recipe = resolve(replace(tiny, optim=optim), Facts(100, tuple("0123456789")))
    learner = recipe.objective.learner(create(recipe.model))
    average = {name: value.clone() for name, value in trained(learner).items()}
    state = State(learner, recipe.optim.build(learner), average)
    for parameter in learner.parameters():
        parameter.grad = parameter.detach().clone()
    state.optimizer.step()
    needs = memory(recipe, 1)
    held = {"learner": 0, "average": 0, "optimizer": 0}
    for name, tensor in state.tensors().items():
        held[name.split(".")[0]] += tensor.nbytes if not name.startswith("optimizer.step") else 0
    assert (needs.weights, needs.average, needs.optimizer) == (
        held["learner"],
        held["average"],
        held["optimizer"],
    )
    assert needs.gradients == sum(p.grad.nbytes for p in learner.parameters())


def test_what_is_sharded_and_what_is_not(large):
    one, eight = memory(large, 1), memory(large, 8)
    for name in ("weights", "gradients", "optimizer"):
        assert getattr(eight, name) == getattr(one, name) / 8
    assert eight.activations == one.activations / 8  # of an eighth of the batch
    assert memory(replace(large, micro_batch=128), 8).activations == eight.activations
    assert memory(replace(large, micro_batch=64), 8).activations == eight.activations / 2
    assert eight.gathered < one.gathered


def test_time_and_energy(large):
    machine = Machine(gpus=4, tflops=100, mfu=0.5, watts=500)
    takes = spent(large, machine)
    assert takes.exaflops == pytest.approx(
        10 * 1024 * 6 * 61.5e9 / 1e18, rel=0.02
    )  # 61.6 GMACs an image
    assert takes.hours * 3600 == pytest.approx(takes.exaflops * 1e18 / (4 * 100e12 * 0.5))
    assert takes.images_per_second == pytest.approx(10 * 1024 / (takes.hours * 3600))
    assert takes.kwh == pytest.approx(takes.hours * 4 * 0.5)
    assert spent(replace(large, recompute=True), machine).hours == pytest.approx(
        takes.hours * 4 / 3
    )


def test_advice_is_true(large):
    machine = Machine(gpus=1, memory=24)
    said = advice(large, machine)
    assert said.startswith("It does not fit. Change one: --micro-batch ")
    most = int(said.split("--micro-batch ")[1].split(";")[0])
    assert (
        memory(replace(large, micro_batch=most), 1).total
        <= 24 * GIB
        < memory(replace(large, micro_batch=2 * most), 1).total
    )
    gpus = int(said.split("--gpus ")[1].rstrip("."))
    assert memory(large, gpus).total <= 24 * GIB < memory(large, gpus // 2).total
    assert advice(replace(large, micro_batch=most), machine) == "It fits."
    assert "Nothing short of a smaller model" in advice(large, Machine(gpus=1, memory=2.1))
    with pytest.raises(ValueError, match="mfu is 40; it is a share"):
        Machine(mfu=40)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective": SelfDistillation()}, "no formula here for SelfDistillation"),
        ({"objective": MaskedAutoencoder()}, "no formula here for MaskedAutoencoder"),
        ({"tune": Tune(blocks=0)}, "no formula here for a run that trains a part"),
    ],
)
def test_what_has_no_formula_is_said(large, change, message):
    with pytest.raises(ValueError, match=message):
        memory(replace(large, **change), 8)
