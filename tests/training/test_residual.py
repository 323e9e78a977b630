"""A residual stream in bfloat16: what it is, where it is refused, and what it changes."""

from dataclasses import replace
from io import StringIO

import pytest
import torch
from rich.console import Console

import vitkit
from vitkit.models import create, recording, vit
from vitkit.objectives import MaskedPatches
from vitkit.system.machine import Picked
from vitkit.system.span import Span
from vitkit.training import run_recipe
from vitkit.training.footprint import count
from vitkit.training.optim import set_residual

SMALL = vit("mu/8", image=(16, 16), classes=3, depth=2)


@pytest.mark.parametrize(
    "changes",
    [{}, {"layer_scale": 0.1}, {"branch_norm": "after"}, {"inject": "every"}, {"pool": "gap"}],
)
def test_states_between_layers_are_bfloat16_and_close(changes):
    model = create(replace(SMALL, **changes), seed=0).eval()
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    states = {}
    logits = {}
    for dtype in (None, torch.bfloat16):
        model.residual_dtype = dtype
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), recording(model) as record:
            logits[dtype] = model(images)
        states[dtype] = record.states
    assert {z.dtype for z in states[torch.bfloat16]} == {torch.bfloat16}
    assert {z.dtype for z in states[None]} == {torch.float32}
    torch.testing.assert_close(
        states[torch.bfloat16][-1].float(), states[None][-1], atol=0.05, rtol=0.05
    )
    with torch.no_grad():  # without autocast the stream is the weights'
        model.residual_dtype = torch.bfloat16
        torch.testing.assert_close(
            model(images), create(replace(SMALL, **changes), seed=0).eval()(images)
        )


@pytest.fixture
def recipe(tiny):
    """Three steps of a tiny model, with a residual stream in bfloat16."""
    optim = replace(tiny.optim, warmup=Span(1))
    return replace(
        tiny, optim=optim, length=Span(3), precision="bfloat16", residual="bfloat16", evals=()
    )


@pytest.mark.parametrize("objective", [None, MaskedPatches()])
def test_a_run_trains_with_it_and_its_model_is_an_ordinary_one(
    recipe, tmp_path, quiet, monkeypatch, objective
):
    seen = []
    original = vitkit.models.VisionTransformer.in_stream
    monkeypatch.setattr(
        vitkit.models.VisionTransformer,
        "in_stream",
        lambda model, z: seen.append(original(model, z).dtype) or original(model, z),
    )
    if objective is not None:
        recipe = replace(recipe, objective=objective)
    run_recipe(recipe, tmp_path / "run", "cpu", quiet)
    assert torch.bfloat16 in seen
    assert vitkit.load(tmp_path / "run", quiet=True).model.residual_dtype is None


def test_where_it_means_nothing_it_is_refused(recipe, tmp_path, quiet):
    with pytest.raises(vitkit.BadSettings, match="`precision` is float32; change one"):
        run_recipe(replace(recipe, precision="float32"), tmp_path / "run", "cpu", quiet)
    resnet = vitkit.models.named("R50x1", image=(32, 32))
    with pytest.raises(vitkit.BadSettings, match="a Vision Transformer, and ResNet has none"):
        run_recipe(replace(recipe, model=resnet), tmp_path / "run", "cpu", quiet)


def test_where_auto_is_float32_so_is_the_stream(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "vitkit.training.choices.pick_precision", lambda *_: Picked("float32", "no bfloat16")
    )
    said = Console(file=StringIO())
    run_recipe(replace(recipe, precision="auto"), tmp_path / "run", "cpu", said)
    assert "the residual stream is float32 too" in said.file.getvalue()


def test_recomputing_keeps_half_as_much_of_the_stream(recipe):
    """Which is all that it keeps of a block. LayerNorms keep their input in float32 in any case."""
    narrow = replace(recipe, model=replace(recipe.model, classes=3), micro_batch=8)
    wide = replace(narrow, residual="float32")
    tokens, blocks, saved = 5 * 24, 2, 2  # bytes of a number
    difference = count(wide).image_recomputed - count(narrow).image_recomputed
    assert difference == pytest.approx(tokens * blocks * saved, rel=0.05)
    assert count(narrow).image == count(wide).image


def test_only_the_models_of_a_learner_are_changed(recipe):
    learner = torch.nn.ModuleList([create(SMALL), torch.nn.Linear(1, 1)])
    set_residual(learner, replace(recipe, residual="float32"))
    assert learner[0].residual_dtype is None
    set_residual(learner, recipe)
    assert learner[0].residual_dtype == torch.bfloat16
