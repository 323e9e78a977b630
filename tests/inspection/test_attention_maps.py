"""What a model looks at: rollout and raw attention against plain numpy, by hand, and on real weights."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from inspected import FAMILY, GRID, IMAGES, N, classifier, recorded, small, uniform

from vitkit.inspection import layer_names, logits_and_rollout, raw_attention, rollout
from vitkit.inspection.figures.passes import attention_by_layer
from vitkit.models import Backbone, vit

# What is read of the final tokens: how many come before the patches, and the shares of all
READ = {
    "token": (1, [1] + [0] * N),
    "distilled": (2, [0.5, 0.5] + [0] * N),
    "token and mean": (3, [0.5, 0, 0] + [0.5 / N] * N),
    "registers": (5, [1] + [0] * (N + 4)),
    "corner": (0, [1] + [0] * (N - 1)),
    "mean": (0, [1 / N] * N),
    "MAP": (0, None),
}


def rolled(matrices):
    """Â_L ... Â_1 of one image's (T, T) matrices, as the definition has it."""
    product = np.eye(len(matrices[0]))
    for matrix in matrices:
        step = matrix + np.eye(len(matrix))
        product = (step / step.sum(1, keepdims=True)) @ product
    return product


@pytest.mark.parametrize("name", READ)
def test_rollout_is_the_product_of_the_recorded_matrices(name):
    own = classifier(FAMILY[name])
    layers = recorded(own.model, IMAGES)
    prefix, shares = READ[name]
    for image, drawn in enumerate(rollout(own, IMAGES).double().numpy()):
        matrices = [weights[image].mean(0) for weights in layers]
        if shares is None:  # a MAP head
            shares = matrices.pop()[0]
        row = np.asarray(shares) @ rolled(matrices)
        np.testing.assert_allclose(row.sum(), 1)
        np.testing.assert_allclose(drawn, row[prefix:].reshape(GRID), atol=1e-7)
        shares = READ[name][1]


def test_rollout_of_axial_layers_is_that_of_attention_among_all_patches():
    own = classifier(FAMILY["axial"])
    h, w = GRID
    for image in range(2):
        matrices = []
        for i, weights in enumerate(recorded(own.model, IMAGES)):
            full = np.zeros((h, w, h, w))
            for y in range(h):
                for x in range(w):
                    if i % 2 == 0:
                        full[y, x, y] = weights[image * h + y].mean(0)[x]
                    else:
                        full[y, x, :, x] = weights[image * w + x].mean(0)[y]
            matrices.append(full.reshape(N, N))
            drawn = raw_attention(own, IMAGES, i, query=(2, 5))[image]
            np.testing.assert_allclose(drawn, full[2, 5], atol=1e-7)
        expected = rolled(matrices).mean(0).reshape(GRID)
        np.testing.assert_allclose(rollout(own, IMAGES)[image], expected, atol=1e-7)
    assert layer_names(own.model.config)[:2] == ("layer 1, rows", "layer 1, columns")


@pytest.mark.parametrize("depth", [1, 3])
def test_by_hand_uniform_attention(depth):
    """Every row of A is 1/T: after L layers 2^-L of the class token is still its own, and the rest
    is spread evenly over all tokens."""
    own = uniform(small(depth=depth))
    expected = torch.full((2, *GRID), (1 - 0.5**depth) / (N + 1))
    torch.testing.assert_close(rollout(own, IMAGES), expected)
    raw = raw_attention(own, IMAGES, depth - 1)
    torch.testing.assert_close(raw, torch.full((2, *GRID), 1 / (N + 1)))


@pytest.mark.parametrize("name", ["token", "token and mean", "mean"])
def test_raw_attention_is_the_recorded_matrix(name):
    own = classifier(FAMILY[name])
    layers = recorded(own.model, IMAGES)
    prefix, shares = READ[name]
    for layer in range(2):
        by_patch = layers[layer][:, 1, prefix + 2 * 6 + 5, prefix:].reshape(2, *GRID)
        np.testing.assert_allclose(
            raw_attention(own, IMAGES, layer, 1, (2, 5)), by_patch, atol=1e-7
        )
        by_reader = np.asarray(shares) @ layers[layer].mean(1)
        by_reader = by_reader[:, prefix:].reshape(2, *GRID)
        np.testing.assert_allclose(raw_attention(own, IMAGES, layer), by_reader, atol=1e-7)


def test_attention_of_a_map_head():
    own = classifier(FAMILY["MAP"])
    assert layer_names(own.model.config) == ("layer 1", "layer 2", "pooling")
    pooling = recorded(own.model, IMAGES)[2]
    for head, expected in ((None, pooling.mean(1)), (1, pooling[:, 1])):
        drawn = raw_attention(own, IMAGES, 2, head)
        np.testing.assert_allclose(drawn, expected.reshape(2, *GRID), atol=1e-7)
        torch.testing.assert_close(drawn.sum((1, 2)), torch.ones(2))
    with pytest.raises(ValueError, match="a learned query attends to the patches"):
        raw_attention(own, IMAGES, 2, query=(0, 0))


def test_one_pass_gives_the_same_logits_and_leaves_the_model_alone():
    own = classifier(FAMILY["token"])
    before = own.logits(IMAGES)
    logits, weights = logits_and_rollout(own, IMAGES)
    assert torch.equal(logits, before) and torch.equal(own.logits(IMAGES), before)
    assert weights.dtype == torch.float32 and not weights.requires_grad
    assert not any(module._forward_hooks for module in own.model.modules())


def test_a_model_for_inference_without_a_head_and_in_bfloat16():
    own = classifier(replace(FAMILY["token"], classes=0))
    expected = rollout(own, IMAGES)
    torch.testing.assert_close(rollout(own.for_inference(), IMAGES), expected)
    with torch.autocast("cpu", torch.bfloat16):
        drawn = rollout(own, IMAGES)
    torch.testing.assert_close(drawn, expected, atol=1e-3, rtol=0.05)
    assert drawn.dtype == torch.float32


def test_of_a_hybrid_the_layers_of_its_transformer_count():
    stem = Backbone((1, 1), mixer="axial")
    own = classifier(vit("R26+mu/32", image=(64, 96), classes=5, stem=stem, patch=2, depth=2))
    grid = own.model.grid(IMAGES)
    matrices = recorded(own.model, IMAGES)[-2:]
    expected = rolled([weights[1].mean(0) for weights in matrices])[0, 1:].reshape(grid)
    np.testing.assert_allclose(rollout(own, IMAGES)[1], expected, atol=1e-7)
    drawn = raw_attention(own, IMAGES, 1, 0, (0, 1))[1]
    np.testing.assert_allclose(drawn, matrices[1][1, 0, 2, 1:].reshape(grid), atol=1e-7)


def test_what_is_not_there_is_refused():
    own = classifier(FAMILY["token"])
    for arguments, words in (
        ((2,), "layer is 2; the model's 2 layers of attention are numbered 0 to 1"),
        ((0, 2), "head is 2; the model's 2 heads are numbered 0 to 1"),
        ((0, None, (4, 0)), "rows are numbered 0 to 3, columns 0 to 5"),
    ):
        with pytest.raises(ValueError, match=words):
            raw_attention(own, IMAGES, *arguments)
    with pytest.raises(ValueError, match="an output for every token"):
        rollout(classifier(replace(FAMILY["token"], pool="none")), IMAGES)


@pytest.mark.slow
def test_the_real_model_agrees_with_the_reference(real):
    own, images, expected = real
    np.testing.assert_allclose(rollout(own, images), expected["rollout"], atol=1e-6)
    first = expected["attention_first_image_layers_0_5_11"]
    for i, layer in enumerate((0, 5, 11)):
        drawn = raw_attention(own, images[:1], layer, 2, (3, 7))[0]
        matrix = first[i, 2, 1 + 3 * 14 + 7, 1:].reshape(14, 14)
        np.testing.assert_allclose(drawn, matrix, atol=1e-6)


def test_one_layer_s_attention_is_kept_at_a_time():
    """Of a model of six layers, and of its graph: when a layer is seen, those before it are gone."""
    own = classifier(replace(FAMILY["registers"], depth=6))
    seen = []

    def see(layer, weights):
        assert [weak() is None for weak in seen] == [True] * layer
        seen.append(weakref.ref(weights))

    with attention_by_layer(own.model, see):
        own.logits(IMAGES)
    assert len(seen) == 6
