"""Hidden states and attention weights: what is shown of a model, and that it changes nothing."""

import copy
from dataclasses import replace

import pytest
import torch
from networks import FAMILY, batch_for, random_images, random_model

from vitkit.data import Preprocessing
from vitkit.models import create, hidden_states, recording, vit
from vitkit.weights import Classifier

SMALL = vit("mu/8", image=(32, 24), classes=5, depth=3)  # 4 x 3 patches


def small(**changes):
    """A random model of a few blocks."""
    return random_model(replace(SMALL, **changes))


class TestRecording:
    x = random_images(2, 3, 32, 24)

    @pytest.mark.parametrize("training", [False, True])
    def test_outputs_stay_the_same(self, training):
        model = small(dropout=0.2, attention_dropout=0.2, stochastic_depth=0.2)
        model.train(training)
        torch.manual_seed(0)
        before = [model(self.x), model(self.x)]
        torch.manual_seed(0)
        with recording(model):
            during = [model(self.x), model(self.x)]
        torch.testing.assert_close(during, before, atol=0, rtol=0)
        assert not any(module._forward_hooks for module in model.modules())

    def test_weights_are_those_of_every_token(self):
        """Also of the last block, which answers for the class token alone."""
        model = small()
        with torch.no_grad(), recording(model) as record:
            model(self.x)
        assert [tuple(m.shape) for m in record.attention] == [(2, 2, 13, 13)] * 3
        for weights in record.attention:
            torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 13))
        states = [record.embedding, *record.states]
        for block, state, weights in zip(model.blocks, states, record.attention, strict=False):
            q, k, _ = block.attention.qkv(block.norm1(state)).chunk(3, -1)
            expected = (q[..., 16:] @ k[..., 16:].mT / 4).softmax(-1)  # second of two heads
            torch.testing.assert_close(weights[:, 1], expected, atol=1e-6, rtol=1e-5)

    def test_the_last_forward_pass_counts(self):
        model = small(pool="map")
        with recording(model) as record:
            model(self.x)
            model(self.x[:1])
        shapes = [tuple(weights.shape) for weights in record.attention]
        assert shapes == [(1, 2, 12, 12)] * 3 + [(1, 2, 1, 12)]
        assert record.states[0].shape == (1, 12, 32)

    def test_a_mask_is_seen(self):
        model = small()
        causal = torch.ones(13, 13).tril().bool()
        with recording(model) as record:
            model.encoder(model.embed(self.x), (4, 3), mask=causal)
        assert not record.attention[0].triu(1).any()

    def test_a_recording_without_a_pass_is_an_error(self):
        with (
            pytest.raises(RuntimeError, match="no forward pass ran"),
            recording(create(SMALL)),
        ):
            pass

    def test_other_modules_are_refused(self):
        with pytest.raises(ValueError, match="Linear is not a model of vitkit's"):
            recording(torch.nn.Linear(1, 1)).__enter__()

    def test_a_model_that_recomputes_is_recorded_in_evaluation_only(self):
        model = small().train()
        model.recompute = True
        with pytest.raises(ValueError, match="set model.recompute to False"):
            recording(model).__enter__()
        model.eval()
        with recording(model) as record:
            model(self.x)
            model.encode(self.x)
        assert record.features is None and len(record.states) == 3  # the last pass had no head

    def test_nothing_stays_after_an_error(self):
        model = small()
        with pytest.raises(ValueError, match="cannot be cut"), recording(model):
            model(random_images(1, 3, 7, 7))
        assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.slow
def test_a_compiled_model_is_recorded_as_the_model_itself():
    model = small(depth=2)
    compiled = torch.compile(copy.deepcopy(model), backend="eager", dynamic=False)
    x = random_images(2, 3, 32, 24)
    with torch.no_grad():
        compiled(x)
        with recording(model) as record:
            model(x)
        with recording(compiled) as compiled_record:
            torch.testing.assert_close(compiled(x), model(x))
    torch.testing.assert_close(compiled_record.attention, record.attention)
    torch.testing.assert_close(compiled_record.states, record.states)


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
    x = batch_for(config, 1)
    with torch.inference_mode():
        expected = model(x)
        with recording(model) as record:
            assert torch.equal(model(x), expected)
        states = hidden_states(model, x, form="map")
    assert len(states) == len(model.blocks) + 1 == len(record.states) + 1
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
    with pytest.raises(ValueError, match="layer '3' is not a whole number"):
        hidden_states(model, X, "3")
    with pytest.raises(ValueError, match="form is 'grid'; it must be one of tokens, class, map"):
        hidden_states(model, X, form="grid")
    with pytest.raises(ValueError, match='no class token .its pool is "gap"'):
        hidden_states(random_model(replace(SMALL, pool="gap")), X, form="class")
    with pytest.raises(ValueError, match="a ResNet's states are feature maps"):
        hidden_states(random_model(FAMILY["BiT"]), X, norm=True)
    classifier = Classifier(model, Preprocessing(size=(32, 24)), tuple("abcde"))
    with pytest.raises(ValueError, match=r"Classifier is not .* give its \.model"):
        hidden_states(classifier, X)
