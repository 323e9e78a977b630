"""What `vitkit plan` says, held to what a run has."""

from dataclasses import replace

import pytest

from vitkit.models import create, vit
from vitkit.objectives import MaskedAutoencoder, SelfDistillation
from vitkit.system.span import Span
from vitkit.training import Data, Facts, Optim, Recipe, resolve
from vitkit.training.footprint import count
from vitkit.training.optim import Tune
from vitkit.training.plan import GIB, Machine, advice, memory, spent
from vitkit.training.state.state import State, trained


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
def test_weights_gradients_and_optimiser_are_as_large_as_a_run_has_them(tiny, optim):
    recipe = resolve(replace(tiny, optim=optim), Facts(100, tuple("0123456789")))
    learner = recipe.objective.learner(create(recipe.model))
    average = {name: value.clone() for name, value in trained(learner).items()}
    state = State(learner, recipe.optim.build(learner), average)
    for parameter in learner.parameters():
        parameter.grad = parameter.detach().clone()
    state.optimizer.step()
    needs = memory(recipe, 1, count(recipe))
    sizes = {"learner": 0, "average": 0, "optimizer": 0}
    for name, tensor in state.tensors().items():
        if not name.startswith("optimizer.step"):  # Adam's count, a number
            sizes[name.split(".")[0]] += tensor.nbytes
    assert needs.weights == sizes["learner"]
    assert needs.average == sizes["average"]
    assert needs.optimizer == sizes["optimizer"]
    assert needs.gradients == sum(p.grad.nbytes for p in learner.parameters())


def test_what_is_sharded_and_what_is_not(large):
    counted = count(large)
    one = memory(large, 1, counted)
    eight = memory(large, 8, counted)
    for name in ("weights", "gradients", "optimizer"):
        assert getattr(eight, name) == getattr(one, name) / 8
    assert eight.activations == one.activations / 8  # of an eighth of the batch
    assert memory(replace(large, micro_batch=128), 8, counted).activations == eight.activations
    assert memory(replace(large, micro_batch=64), 8, counted).activations == eight.activations / 2
    assert eight.gathered < one.gathered


def test_time_and_energy(large):
    machine = Machine(gpus=4, tflops=100, mfu=0.5, watts=500)
    takes = spent(large, machine)
    macs = 61.5e9  # of an image in L/16; two operations each, and three passes
    assert takes.exaflops == pytest.approx(10 * 1024 * 6 * macs / 1e18, rel=0.02)
    assert takes.hours * 3600 == pytest.approx(takes.exaflops * 1e18 / (4 * 100e12 * 0.5))
    assert takes.images_per_second == pytest.approx(10 * 1024 / (takes.hours * 3600))
    assert takes.kwh == pytest.approx(takes.hours * 4 * 0.5)
    assert spent(replace(large, recompute=True), machine).hours == pytest.approx(
        takes.hours * 4 / 3
    )


def test_advice_is_true(large):
    machine = Machine(gpus=1, memory=24)
    counted = count(large)

    def needed(recipe, gpus):
        return memory(recipe, gpus, counted).total / GIB

    sentence = advice(large, machine, counted)
    assert sentence.startswith("It does not fit. Change one: --micro-batch ")
    most = int(sentence.split("--micro-batch ")[1].split(";")[0])
    assert needed(replace(large, micro_batch=most), 1) <= 24
    assert needed(replace(large, micro_batch=2 * most), 1) > 24
    gpus = int(sentence.split("--gpus ")[1].rstrip("."))
    assert needed(large, gpus) <= 24
    assert needed(large, gpus // 2) > 24
    assert advice(replace(large, micro_batch=most), machine, counted) == "It fits."
    assert "Nothing short of a smaller model" in advice(large, Machine(gpus=1, memory=2.1), counted)
    with pytest.raises(ValueError, match="mfu is 40; it is a share"):
        Machine(mfu=40)


@pytest.mark.parametrize(
    "objective",
    [SelfDistillation(outputs=16, local_views=0), MaskedAutoencoder(width=8, heads=1, depth=1)],
    ids=lambda objective: type(objective).__name__,
)
def test_objectives_that_see_more_or_less_than_an_image_have_a_time_of_their_own(tiny, objective):
    facts = Facts(100, tuple("0123456789"))
    plain = spent(resolve(tiny, facts), Machine())
    other = spent(resolve(replace(tiny, objective=objective), facts), Machine())
    assert other.exaflops != pytest.approx(plain.exaflops, rel=0.1)
    assert other.images_per_second * other.exaflops == pytest.approx(
        plain.images_per_second * plain.exaflops
    )


def test_a_linear_probe_keeps_almost_nothing(tiny):
    whole = resolve(tiny, Facts(100, tuple("0123456789")))
    probe = replace(whole, tune=Tune(blocks=0))
    needs = memory(probe, 1, count(probe))
    all_needs = memory(whole, 1, count(whole))
    assert needs.weights == all_needs.weights
    assert needs.gradients == 4 * (24 + 1) * 10
    assert needs.optimizer == 2 * needs.gradients
    assert needs.activations < all_needs.activations / 20
    assert spent(probe, Machine()).exaflops < spent(whole, Machine()).exaflops / 2
