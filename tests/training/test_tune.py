"""Which parameters are trained and which stay; a run with adapters saves an ordinary model."""

import shutil
from dataclasses import replace

import pytest
import torch
from runs import same

from vitkit.models import create
from vitkit.recipes import Optim, Tune
from vitkit.system.span import Span
from vitkit.training import run_recipe
from vitkit.training.optim import apply_tuning, merged
from vitkit.training.state.checkpoints import point_to


@pytest.fixture(scope="module")
def published(tiny, quiet, tmp_path_factory):
    """Trained weights, and a recipe that begins with them and in which every parameter that is
    trained changes."""
    run_dir = tmp_path_factory.mktemp("first")
    short = replace(tiny, average=0, length=Span(6))
    weights = run_recipe(short, run_dir, "cpu", quiet).model.state_dict()
    recipe = replace(
        tiny,
        init=str(run_dir),
        model=replace(tiny.model, dropout=0.0, stochastic_depth=0.0),
        average=0.0,
        length=Span(3),
        optim=Optim(lr=1e-2),
    )
    return weights, recipe


def changed_names(before, model) -> set[str]:
    after = model.state_dict()
    return {name for name in before if not torch.equal(after[name], before[name])}


@pytest.mark.parametrize(
    ("blocks", "still"),
    [
        (0, ("stem", "cls", "positions", "blocks", "norm")),
        (1, ("stem", "cls", "positions", "blocks.0")),
    ],
)
def test_the_last_blocks_are_trained_and_nothing_else(published, quiet, tmp_path, blocks, still):
    before, recipe = published
    recipe = replace(recipe, tune=Tune(blocks=blocks))
    model = run_recipe(recipe, tmp_path / "second", "cpu", quiet).model
    expected = {name for name in before if not name.startswith(still)}
    assert expected
    assert changed_names(before, model) == expected


def test_adapters_change_the_blocks_matrices_and_are_gone_when_saved(published, quiet, tmp_path):
    before, recipe = published
    model = run_recipe(replace(recipe, tune=Tune(lora=2)), tmp_path / "second", "cpu", quiet).model
    matrices = {n for n in before if n.startswith("blocks") and before[n].ndim == 2}
    assert changed_names(before, model) == matrices | {"head.weight", "head.bias"}
    name = "blocks.0.mlp.expand.weight"
    difference = model.state_dict()[name] - before[name]
    assert torch.linalg.matrix_rank(difference, rtol=1e-3) == 2


def test_adapters_begin_as_no_change_and_merge_to_the_same_model(tiny):
    config = replace(tiny.model, classes=10, dropout=0.0, stochastic_depth=0.0)
    torch.manual_seed(0)  # the rounding of large outputs decides
    images = torch.randn(3, 3, 8, 8)
    plain = create(config, seed=3).eval()
    torch.nn.init.normal_(plain.head.weight)
    adapted = create(config, seed=4).eval()
    adapted.load_state_dict(plain.state_dict())
    apply_tuning(adapted, Tune(lora=2))
    torch.testing.assert_close(adapted(images), plain(images))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    expected = adapted(images)
    ordinary = merged(adapted)
    assert ordinary.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(ordinary(images), expected, atol=1e-5, rtol=1e-5)
    assert (ordinary(images) - plain(images)).abs().max() > 1e-2


def test_a_run_with_adapters_continues(published, quiet, tmp_path):
    _, recipe = published
    recipe = replace(recipe, tune=Tune(lora=2), length=Span(6), save_every=Span(3))
    undisturbed = run_recipe(recipe, tmp_path, "cpu", quiet).model.state_dict()
    shutil.rmtree(tmp_path / "model")
    point_to(tmp_path, "step-00000003")  # as if it had been killed after this step
    continued = run_recipe(recipe, tmp_path, "cpu", quiet).model.state_dict()
    assert same(continued, undisturbed)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"blocks": -2}, "`tune.blocks` is -2"),
        ({"lora": -1}, "`tune.lora` is -1"),
        ({"lora": 4, "blocks": 1}, "choose one of them"),
    ],
)
def test_what_cannot_be_tuned_is_a_sentence(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        Tune(**settings)


def test_a_model_has_only_so_many_blocks(tiny):
    with pytest.raises(ValueError, match="`tune.blocks` is 3; the model has 2 blocks"):
        apply_tuning(create(tiny.model), Tune(blocks=3))
    with pytest.raises(ValueError, match="this model has none"):
        apply_tuning(create(tiny.model), Tune(blocks=0))
