"""Intermediate layers: the blocks' own states, in every form, of every family."""

from dataclasses import replace

import pytest
import torch
from networks import FAMILY, random_images, random_model

from vitkit.data import Preprocessing
from vitkit.models import hidden_states, vit
from vitkit.weights import Classifier

SMALL = vit("mu/8", image=(32, 24), classes=5, depth=3)  # 4 x 3 patches
X = random_images(2, 3, 32, 24)


def test_layers_are_numbered_as_in_the_paper():
    model = random_model(SMALL)
    states = hidden_states(model, X)
    assert list(states) == [0, 1, 2, 3]
    torch.testing.assert_close(states[0], model.embed(X))
    for number, block in enumerate(model.blocks, 1):
        expected = block(states[number - 1], grid=(4, 3))
        torch.testing.assert_close(states[number], expected)
    torch.testing.assert_close(model.norm(states[3]), model.encode(X))
    last = hidden_states(model, X, [-1, -4])
    assert torch.equal(last[-1], states[3]) and torch.equal(last[-4], states[0])
    assert torch.equal(hidden_states(model, X, 2)[2], states[2])
    assert list(hidden_states(model, X, torch.tensor([2, 3]))) == [2, 3]


@pytest.mark.parametrize("registers", [0, 2])
def test_forms_are_the_same_tokens(registers):
    model = random_model(replace(SMALL, registers=registers))
    tokens = hidden_states(model, X, [2], norm=True)[2]
    assert tokens.shape == (2, 13 + registers, 32)
    assert torch.equal(hidden_states(model, X, [2], "class", norm=True)[2], tokens[:, 0])
    grid = hidden_states(model, X, [2], form="map", norm=True)[2]
    assert grid.shape == (2, 32, 4, 3)
    assert torch.equal(grid[:, :, 3, 1], tokens[:, 1 + registers + 3 * 3 + 1])
    larger = random_images(1, 3, 48, 64)
    assert hidden_states(model, larger, [1], form="map")[1].shape == (1, 32, 6, 8)


@pytest.mark.parametrize("name", FAMILY)
def test_every_family(name):
    model = random_model(FAMILY[name])
    config = model.config
    x = random_images(1, config.channels, *config.image)
    states = hidden_states(model, x, form="map")
    assert len(states) == len(model.blocks) + 1
    assert all(state.ndim == 4 and len(state) == 1 for state in states.values())
    if config.title == "Vision Transformer":
        assert states[1].shape == (1, config.width, *config.grid)


def test_gradients_flow():
    model = random_model(SMALL)
    hidden_states(model, X, [1])[1].sum().backward()
    assert model.blocks[0].mlp.expand.weight.grad is not None
    assert model.blocks[1].mlp.expand.weight.grad is None


def test_what_has_no_meaning_is_refused():
    model = random_model(SMALL)
    for layer in (4, -5):
        with pytest.raises(ValueError, match=f"no layer {layer}: the model has 3 blocks"):
            hidden_states(model, X, [layer])
    with pytest.raises(ValueError, match="layer '3' is no whole number"):
        hidden_states(model, X, "3")
    with pytest.raises(ValueError, match="form is 'grid'; it is one of tokens, class, map"):
        hidden_states(model, X, form="grid")
    with pytest.raises(ValueError, match='no class token .its pool is "gap"'):
        hidden_states(random_model(replace(SMALL, pool="gap")), X, form="class")
    with pytest.raises(ValueError, match="a ResNet's states are feature maps"):
        hidden_states(random_model(FAMILY["BiT"]), X, norm=True)
    classifier = Classifier(model, Preprocessing(size=(32, 24)), tuple("abcde"))
    with pytest.raises(ValueError, match=r"Classifier is not .* give its \.model"):
        hidden_states(classifier, X)
