"""What `vitkit plan` says, held to what a run has: what a training step keeps in memory, counted without
running it, is what autograd keeps in a real one."""

import gc
from dataclasses import replace

import pytest
import torch
from margins import at_most
from runs import FACTS, state_of
from torch._subclasses.fake_tensor import FakeTensor

from vitkit.data import Preprocessing
from vitkit.models import Backbone, ResNetConfig, attention, create, named, vit
from vitkit.objectives import MaskedAutoencoder, MaskedPatches, SelfDistillation, Supervised
from vitkit.objectives.supervised import SupervisedLearner
from vitkit.recipes import Data, Facts, Optim, Recipe, Tune, resolve
from vitkit.system.span import Span
from vitkit.training.footprint import count, relative_flops
from vitkit.training.optim import apply_tuning
from vitkit.training.planning import GIB, Machine, advice, memory, spent
from vitkit.training.state.state import trained


def recipe_of(model, **settings):
    data = Data("x", preprocessing=Preprocessing(size=model.image))
    return resolve(Recipe(model, data, **settings), Facts(1024, tuple("abcde")))


def small(**changes):
    settings = {"image": (48, 64), "width": 96, "mlp": 384, "depth": 2, "classes": 0}
    return vit("Ti/16", **(settings | changes))


def saved_bytes(recipe, images):
    """Bytes that a real forward pass saves for the backward pass: each storage once, without
    parameters."""
    model = create(recipe.model, seed=0)
    apply_tuning(model, recipe.tune)
    learner = recipe.objective.learner(model, recipe.data.preprocessing).train()
    for module in learner.modules():
        if hasattr(module, "recompute"):
            module.recompute = recipe.recompute
    parameters = {p.untyped_storage().data_ptr() for p in learner.parameters()}
    saved = {}

    def save(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = tensor  # kept, so that no other gets the same address
        return tensor

    pixels = torch.rand(images, recipe.model.channels, *recipe.model.image)
    targets = torch.zeros(images, dtype=torch.long)
    hooks = torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=recipe.precision == "bfloat16"):
        loss = learner(pixels, targets, torch.arange(images))
    total = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    del loss
    return total


def measured(recipe):
    """What each image adds, so without the weights that autocast has cast."""
    return (saved_bytes(recipe, 4) - saved_bytes(recipe, 2)) / 2


@pytest.fixture(autouse=True)
def fused_attention(monkeypatch):
    """Attention as on a GPU, also for small images."""
    monkeypatch.setattr(attention, "unfused_is_faster", lambda *_: False)


CHANGES = [  # of a model of one block, unless they say more
    {"depth": 2},
    {"pool": "gap"},
    {"pool": "gap", "norm": "pooled"},
    {"pool": "map"},
    {"registers": 4},
    {"layer_scale": 0.1, "swiglu": True},
    {"embedding_norm": True, "gelu": "quick"},
    {"pool": "token-gap"},
    {"pool": "token-quarters"},
    {"pool": "token-gap-quarters", "read_blocks": 2, "depth": 2},
    {"pool": "token-pyramid", "read_blocks": 2, "depth": 2},
    {"representation": 64},
    {"pool": "distilled", "registers": 1, "classes": 5},
    {"positions": "rotary", "pool": "gap"},
    {"positions": "learned2d"},
    {"inject": "every", "depth": 2},
    {"stochastic_depth": 0.1, "depth": 2},
]


CAST = ({"depth": 2}, {"pool": "map"}, {"layer_scale": 0.1, "swiglu": True}, {"pool": "token-gap"})


@pytest.mark.parametrize(
    ("changes", "precision"),
    [
        *[(changes, "float32") for changes in CHANGES],
        *[
            pytest.param(changes, "bfloat16", marks=() if changes in CAST else pytest.mark.slow)
            for changes in CHANGES
        ],
    ],
    ids=str,
)
def test_vision_transformers(changes, precision):
    recipe = recipe_of(small(**({"depth": 1} | changes)), precision=precision)
    # autocast casts a MAP head's probe, a row an image, on GPUs only
    probe = 2 * 96 if changes.get("pool") == "map" and precision == "bfloat16" else 0
    assert count(recipe).image == measured(recipe) + probe


STAGES = {
    "post": Backbone(units=(1, 1)),
    "pre": Backbone(units=(1, 1), order="pre"),
    "batch": Backbone(units=(1, 1), norm="batch", standardise="none"),
}


@pytest.mark.parametrize("name", STAGES)
def test_resnets_and_hybrids(name):
    resnet = ResNetConfig(STAGES[name], image=(32, 32), classes=0)
    assert count(recipe_of(resnet)).image == measured(recipe_of(resnet))
    hybrid = small(stem=STAGES[name], patch=1, image=(32, 32))
    assert count(recipe_of(hybrid)).image == measured(recipe_of(hybrid))


@pytest.mark.parametrize("mixer", ["axial", "local", "augmented"])
def test_attention_with_a_bias_is_counted_nearly(mixer):
    """Not exactly: a CPU has no fused kernel for it."""
    backbone = Backbone(units=(1, 1), mixer=mixer, standardise="none")
    recipe = recipe_of(ResNetConfig(backbone, image=(32, 32), classes=0))
    assert count(recipe).image == pytest.approx(measured(recipe), rel=0.1)


@pytest.mark.parametrize(
    "objective",
    [
        Supervised(mixup=0.2, cutmix=1.0),
        MaskedPatches(),
        MaskedPatches("pixels"),
        MaskedAutoencoder(width=64, depth=2, heads=2),
        pytest.param(
            SelfDistillation(outputs=64, hidden=32, local_views=2, local_size=32),
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda objective: type(objective).__name__,
)
def test_objectives(objective):
    recipe = recipe_of(small(pool="gap", image=(64, 64)), objective=objective)
    assert count(recipe).image == measured(recipe)


@pytest.mark.parametrize("tune", [Tune(blocks=0), Tune(blocks=1), Tune(lora=4)], ids=repr)
@pytest.mark.slow
def test_a_part_of_the_model_keeps_less(tune):
    recipe = recipe_of(small(), tune=tune)
    counted = count(recipe)
    assert counted.image == measured(recipe)
    whole = count(replace(recipe, tune=Tune()))
    assert counted.image < whole.image and counted.trained < whole.trained
    assert 1 / 3 < relative_flops(recipe) < 1


def test_dropout_keeps_masks_of_a_byte():
    """On a GPU; on a CPU they are float32."""
    plain = recipe_of(small())
    dropping = recipe_of(small(dropout=0.1))
    masks = count(dropping).image - count(plain).image
    assert 4 * masks == measured(dropping) - measured(plain)


@pytest.mark.parametrize("pool", ["token", "gap"])
def test_recomputing_keeps_the_inputs_of_blocks(pool):
    """And in the backward pass all that one block after the other saves."""
    recipe = recipe_of(small(pool=pool), recompute=True)
    deeper = replace(recipe, model=replace(recipe.model, depth=3))
    block = count(deeper).image - count(recipe).image
    assert count(recipe).image_recomputed == measured(recipe) + block
    assert count(recipe).image_recomputed < count(recipe).image


@pytest.mark.slow
def test_a_large_model_is_counted_without_memory_for_it():
    """H/14, whose weights alone would take 2.5 GB; within 1 % of a formula for its layers."""
    model = named("H/14", classes=0)
    at_most(abs(count(recipe_of(model)).image / 660.5e6 - 1), 0.01)
    at_most(abs(count(recipe_of(model, precision="bfloat16")).image / 372e6 - 1), 0.01)


@pytest.mark.slow
def test_operations_of_objectives_that_see_more_or_less():
    model = small(pool="gap", image=(64, 64))
    at_most(abs(relative_flops(recipe_of(model)) - 1), 0.01)
    hiding = MaskedAutoencoder(width=32, depth=1, heads=2)
    at_most(relative_flops(recipe_of(model, objective=hiding)), 0.6)
    views = SelfDistillation(outputs=64, hidden=32, local_views=0)
    at_most(abs(relative_flops(recipe_of(model, objective=views)) - (2 + 2 / 3)), 0.2)


def test_counting_leaves_no_trace():
    random_state = torch.get_rng_state()
    gc.freeze()  # what is there already is not looked at, here and later (conftest.py)
    assert count(recipe_of(small(), objective=Supervised(mixup=0.2))).image > 0
    gc.collect()
    assert not any(type(value) is FakeTensor for value in gc.get_objects())
    assert torch.equal(random_state, torch.get_rng_state())
    assert not torch.is_autocast_enabled("cuda")


class LookingLearner(SupervisedLearner):
    def forward(self, images, targets, keys):
        return images.mean() * images.sum().item()


class Looking(Supervised):
    """An objective whose loss depends on the value of a tensor."""

    def learner(self, model, preprocessing=None):
        return LookingLearner(model, self)


def test_an_objective_that_looks_at_values_cannot_be_counted():
    recipe = recipe_of(small(), objective=Looking())
    with pytest.raises(ValueError, match="the needs of Looking cannot be counted"):
        count(recipe)


# What follows from it, by formulas


@pytest.fixture(scope="module")
def large():
    model = vit("L/16", classes=0)
    return recipe_of(model, batch=1024, precision="bfloat16", length=Span(10, "epochs"))


@pytest.fixture(scope="module")
def counted(large):
    return count(large)


@pytest.mark.parametrize("optim", [Optim(), Optim("sgd")])
def test_weights_gradients_and_optimiser_are_as_large_as_a_run_has_them(tiny, optim):
    recipe = resolve(replace(tiny, optim=optim), FACTS)
    state = state_of(recipe)
    learner = state.learner
    state.average = {name: value.clone() for name, value in trained(learner).items()}
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


def test_what_is_sharded_and_what_is_not(large, counted):
    one = memory(large, 1, counted)
    eight = memory(large, 8, counted)
    for name in ("weights", "gradients", "optimizer"):
        assert getattr(eight, name) == getattr(one, name) / 8
    assert eight.activations == one.activations / 8  # of an eighth of the batch
    assert memory(replace(large, micro_batch=128), 8, counted).activations == eight.activations
    assert memory(replace(large, micro_batch=64), 8, counted).activations == eight.activations / 2
    assert eight.gathered < one.gathered

    # Micro-batches add up before gradients are summed; a group of two shares less
    adding = memory(replace(large, micro_batch=64), 8, counted)
    assert adding.gathered == eight.gathered + 4 * counted.trained
    pairs = memory(replace(large, shard_group=2), 8, counted)
    assert pairs.weights == one.weights / 2 and pairs.activations == eight.activations


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


def test_advice_is_true(large, counted):
    machine = Machine(gpus=1, memory=24)

    def needed(recipe, gpus):
        return memory(recipe, gpus, counted).total / GIB

    sentence = advice(large, machine, counted)
    assert sentence.startswith("It does not fit. Change one: `micro_batch=")
    most = int(sentence.split("`micro_batch=")[1].split("`")[0])
    assert needed(replace(large, micro_batch=most), 1) <= 24
    assert needed(replace(large, micro_batch=2 * most), 1) > 24
    gpus = int(sentence.split("`gpus=")[1].split("`")[0])
    assert needed(large, gpus) <= 24
    assert needed(large, gpus // 2) > 24
    whole = advice(replace(large, micro_batch=most), machine, counted)
    assert whole.startswith("It fits. `residual=bfloat16` makes steps faster")
    narrow = replace(large, micro_batch=most, residual="bfloat16")
    assert advice(narrow, machine, counted) == "It fits."
    assert "Only a smaller model would" in advice(large, Machine(gpus=1, memory=2.1), counted)
    with pytest.raises(ValueError, match="mfu is 40; it is a share"):
        Machine(mfu=40)
