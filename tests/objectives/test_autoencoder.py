"""The masked autoencoder: the encoder does not see what is hidden, and the loss is that of one image
and one patch at a time."""

from dataclasses import replace

import pytest
import torch
from runs import random_levels
from safetensors.torch import load_file

from vitkit.data import Preprocessing, uniforms
from vitkit.models import ViTConfig, create, sincos
from vitkit.objectives import MaskedAutoencoder
from vitkit.objectives.patches import patchify, unpatchify
from vitkit.system.span import Span
from vitkit.training import run_recipe
from vitkit.training.record.metrics import read_metrics
from vitkit.weights import load

CONFIG = ViTConfig(width=24, depth=2, mlp=48, heads=2, patch=8, image=(32, 24), classes=0)
PREPARE = Preprocessing(size=(32, 24))
SMALL = MaskedAutoencoder(width=16, depth=1, heads=2)
KEYS = torch.arange(4)


def levels(n, seed=0):
    return random_levels(n, (32, 24), seed)


def learner_of(objective=SMALL, **changes):
    torch.manual_seed(0)
    return objective.learner(create(replace(CONFIG, **changes), seed=0), PREPARE)


@pytest.mark.parametrize("changes", [{}, {"pool": "gap"}, {"registers": 2, "positions": "sincos"}])
def test_the_encoder_never_sees_what_is_hidden(changes):
    learner = learner_of(**changes)
    images = PREPARE.normalise(levels(4))
    tokens = []
    learner.model.blocks[0].register_forward_pre_hook(
        lambda _, inputs: tokens.append(inputs[0].shape[1])
    )
    predicted, hidden = learner.predictions(images, KEYS)
    assert tokens == [learner.model.config.prefix + 3]
    assert hidden.shape == (4, 9)

    # Other pixels in hidden patches change nothing, in visible ones they do
    patches = patchify(images, 8)
    patches = patches.scatter(1, hidden[..., None].expand(-1, -1, 192), 0.7)
    of_others, _ = learner.predictions(unpatchify(patches, (4, 3), 8), KEYS)
    assert torch.equal(predicted, of_others)
    of_brighter, _ = learner.predictions(images + 0.1, KEYS)
    assert not torch.allclose(predicted, of_brighter)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("changes", [{}, {"pool": "gap"}])
def test_loss_one_image_at_a_time(changes, normalised):
    learner = learner_of(replace(SMALL, normalised=normalised), **changes)
    images = PREPARE.normalise(levels(4))
    model = learner.model
    losses = []
    for image, key in zip(images, KEYS, strict=True):
        order = uniforms(key[None], 12, 0)[0].argsort().tolist()
        visible, hidden = order[:3], order[3:]

        # The encoder, of the visible patches
        prefix, patches = model.embed(image[None])[0].tensor_split([model.config.prefix])
        x = torch.stack([*prefix, *(patches[i] for i in visible)])[None]
        for block in model.blocks:
            x = block(x)
        x = learner.enter(model.norm(x))[0]

        # The decoder, of all patches
        states = [learner.mask[0, 0]] * 12
        for i, state in zip(visible, x[len(prefix) :], strict=True):
            states[i] = state
        positions = sincos((4, 3), 16, "sincos-mae")[0]
        y = torch.cat([x[: len(prefix)], torch.stack(states) + positions])[None]
        for block in learner.decoder.blocks:
            y = block(y)
        y = learner.predict(learner.decoder.norm(y))[0, len(prefix) :]

        # The loss, of the hidden patches
        for i in hidden:
            top = 8 * (i // 3)
            left = 8 * (i % 3)
            patch = image[:, top : top + 8, left : left + 8]
            target = patch.permute(1, 2, 0).flatten()
            if normalised:
                target = (target - target.mean()) / (target.var() + 1e-6) ** 0.5
            losses.append(((y[i] - target) ** 2).mean())
    torch.testing.assert_close(learner(images, None, KEYS), torch.stack(losses).mean())


def test_every_weight_of_the_decoder_learns():
    learner = learner_of()
    learner(PREPARE.normalise(levels(4)), None, KEYS).backward()
    still = {name for name, p in learner.named_parameters() if p.grad is None or not p.grad.any()}
    assert not still


def test_a_perfect_prediction_draws_the_image():
    learner = learner_of()
    images = levels(4)
    normal = PREPARE.normalise(images)

    def perfect(images, keys):
        hidden = uniforms(keys, 12, 0).argsort(dim=1)[:, 3:]
        pixels = patchify(images, 8).gather(1, hidden[..., None].expand(-1, -1, 192))
        deviation = (pixels.var(-1, keepdim=True) + 1e-6).sqrt()
        return (pixels - pixels.mean(-1, keepdim=True)) / deviation, hidden

    learner.predictions = perfect
    shown = learner.pictures(normal, KEYS)
    assert list(shown) == ["image", "seen", "predicted"]
    assert torch.equal(shown["predicted"], images) and torch.equal(shown["image"], images)
    assert (patchify(shown["seen"], 8) == 128).all(-1).sum(1).tolist() == [9] * 4


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "relative"},
        {"positions": "rotary", "width": 32},
        {"inject": "every"},
        {"mixer": "axial", "pool": "gap"},
    ],
)
def test_models_that_need_every_patch_are_refused(changes):
    with pytest.raises(ValueError, match="needs every patch"):
        learner_of(**changes)


def test_the_rate_must_leave_something():
    with pytest.raises(ValueError, match=r"rate is 1\.0"):
        MaskedAutoencoder(rate=1.0)
    learner = learner_of(replace(SMALL, rate=0.99))
    _, hidden = learner.predictions(PREPARE.normalise(levels(4)), KEYS)
    assert hidden.shape == (4, 11)


def test_a_run_learns_and_a_label_can_follow(tiny, quiet, tmp_path):
    recipe = replace(
        tiny, objective=SMALL, model=replace(tiny.model, dropout=0, stochastic_depth=0)
    )
    run_recipe(recipe, tmp_path / "first", "cpu", quiet)
    lines = read_metrics(tmp_path / "first" / "metrics.jsonl")
    metrics = [line["metrics"] for line in lines if line["event"] == "evaluation"]
    losses = [of_step["test/loss"].value for of_step in metrics]
    assert losses == sorted(losses, reverse=True) and len(losses) == 3
    assert metrics[-1]["test/seen"].value == 359
    assert set(load_file(tmp_path / "first" / "pictures.safetensors")) == {
        "image",
        "seen",
        "predicted",
    }
    kept = load(tmp_path / "first", quiet=True).pretraining
    assert {"mask", "enter.weight", "decoder.norm.bias", "predict.weight"} <= kept.keys()
    labelled = replace(tiny, init=str(tmp_path / "first"), length=Span(6))
    second = run_recipe(labelled, tmp_path / "second", "cpu", quiet)
    assert second.model.config.classes == 10 and not second.pretraining
