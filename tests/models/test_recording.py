"""Recording: what it shows of a model, and that it changes nothing."""

import copy
from dataclasses import replace

import pytest
import torch
from networks import random_images, random_model

from vitkit.models import create, named, recording, vit

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

    def test_states_are_those_of_every_token(self):
        model = small()
        with torch.inference_mode():
            with recording(model, attention=False) as record:
                logits = model(self.x)
            torch.testing.assert_close(record.embedding, model.embed(self.x))
            torch.testing.assert_close(model.norm(record.states[-1]), model.encode(self.x))
            torch.testing.assert_close(model.head(record.features), logits)
        assert len(record.states) == 3 and record.attention == []

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

    @pytest.mark.parametrize("name", ["BiT-R50x1", "Axial-R50", "LeNet-5", "R26+mu/32"])
    def test_every_family(self, name):
        config = named(name, classes=5)
        if name != "LeNet-5":
            config = replace(config, image=(64, 64))
        if hasattr(config, "backbone"):
            config = replace(config, backbone=replace(config.backbone, units=(1, 1)))
        model = random_model(config)
        x = random_images(1, config.channels, *config.image)
        with torch.inference_mode():
            expected = model(x)
            with recording(model) as record:
                assert torch.equal(model(x), expected)
        assert len(record.states) == len(model.blocks)


def test_a_compiled_model_is_recorded_as_the_model_itself():
    model = small(depth=2)
    compiled = torch.compile(copy.deepcopy(model), backend="eager")
    x = random_images(2, 3, 32, 24)
    with torch.no_grad():
        compiled(x)
        with recording(model) as record:
            model(x)
        with recording(compiled) as compiled_record:
            torch.testing.assert_close(compiled(x), model(x))
    torch.testing.assert_close(compiled_record.attention, record.attention)
    torch.testing.assert_close(compiled_record.states, record.states)
