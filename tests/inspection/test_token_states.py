"""Norms, similarity and colours of tokens, and alignment of layers: by hand and slowly."""

from itertools import permutations

import numpy as np
import pytest
import torch
from inspected import FAMILY, GRID, IMAGES, N, classifier, small

from vitkit.inspection import alignment, patch_similarity, token_colours, token_norms
from vitkit.inspection.figures.alignment import hsic
from vitkit.models import Backbone, LeNetConfig, ResNetConfig, recording

MANY = torch.cat([IMAGES, IMAGES.flip(2), IMAGES.flip(3), IMAGES // 2])


def states(own, images):
    """z_0, ..., z_L as numpy."""
    with recording(own.model) as record, torch.no_grad():
        own.model(own.preprocessing.normalise(images))
    return [state.double().numpy() for state in (record.embedding, *record.states)]


@pytest.mark.parametrize("name", ["token", "registers", "axial", "hybrid", "MAP", "no pooling"])
def test_norms_are_those_of_the_states(name):
    own = classifier(FAMILY[name])
    prefix = own.model.config.prefix
    found = token_norms(own, IMAGES)
    grid = own.model.grid(IMAGES)
    assert found.patches.shape == (2, 3, *grid) and found.prefix.shape == (2, 3, prefix)
    for layer, state in enumerate(states(own, IMAGES)):
        norms = (state**2).sum(-1) ** 0.5
        np.testing.assert_allclose(found.patches[:, layer].flatten(1), norms[:, prefix:], rtol=1e-5)
        np.testing.assert_allclose(found.prefix[:, layer], norms[:, :prefix], rtol=1e-5)
    again = token_norms(own, iter([IMAGES[:1], IMAGES[1:]]))
    torch.testing.assert_close(again.patches, found.patches)


@pytest.mark.parametrize("name", ["token", "mean", "masked autoencoder"])
def test_similarity_to_a_patch(name):
    own = classifier(FAMILY[name])
    config = own.model.config
    last = states(own, IMAGES)[-1]
    if config.norm == "tokens":
        last = own.model.norm(torch.from_numpy(last).float()).detach().double().numpy()
    patches = last[:, config.prefix :]
    chosen = patches[:, 2 * 6 + 5]
    products = np.einsum("bnd,bd->bn", patches, chosen)
    lengths = np.linalg.norm(patches, axis=-1) * np.linalg.norm(chosen, axis=-1)[:, None]
    found = patch_similarity(own, IMAGES, (2, 5))
    np.testing.assert_allclose(found.flatten(1), products / lengths, atol=1e-6)
    torch.testing.assert_close(found[:, 2, 5], torch.ones(2))
    assert patch_similarity(own, IMAGES, (0, 0), layer=1).shape == (2, *GRID)
    with pytest.raises(ValueError, match="patch is the patch 4, 0; rows are numbered 0 to 3"):
        patch_similarity(own, IMAGES, (4, 0))
    with pytest.raises(ValueError, match="there is no layer 3"):
        patch_similarity(own, IMAGES, (0, 0), layer=3)


def test_known_directions_become_colours():
    """A model without layers that do anything: its states are its patches' mean colours. Red, green
    and blue vary by known amounts, so each is a component."""
    own = classifier(small(pool="gap", positions="none", norm="pooled"))
    with torch.no_grad():
        own.model.stem.project.weight.zero_()
        own.model.stem.project.bias.zero_()
        for channel in range(3):
            own.model.stem.project.weight[channel, channel] = 1 / 256
        for block in own.model.blocks:
            for layer in (block.attention.out, block.mlp.contract):
                layer.weight.zero_()
                layer.bias.zero_()
    values = torch.stack([torch.arange(N) % 2 * 200, torch.arange(N) % 3 * 40, torch.arange(N)], 1)
    images = values.T.reshape(1, 3, *GRID).repeat_interleave(16, 2).repeat_interleave(16, 3).byte()
    colours = token_colours(own, images)
    assert colours.shape == (1, *GRID, 3) and colours.min() == 0 and colours.max() == 1
    for component in range(3):
        pair = torch.stack([colours[0, ..., component].flatten(), values[:, component].float()])
        assert abs(torch.corrcoef(pair)[0, 1]) > 0.97


def test_colours_are_those_of_principal_components():
    own = classifier(FAMILY["token"])
    last = own.model.norm(torch.from_numpy(states(own, IMAGES)[-1]).float())[:, 1:]
    rows = last.detach().flatten(0, 1).double().numpy()
    rows = rows - rows.mean(0)
    _, _, components = np.linalg.svd(rows, full_matrices=False)
    colours = token_colours(own, IMAGES)
    for i in range(3):
        values = rows @ components[i]
        low, high = np.quantile(values, [0.01, 0.99])
        expected = ((values - low) / (high - low)).clip(0, 1)
        drawn = colours[..., i].flatten().numpy()
        error = min(abs(drawn - expected).max(), abs(1 - drawn - expected).max())
        assert error < 1e-4
    with pytest.raises(ValueError, match="need at least four of each: give more images"):
        token_colours(
            classifier(LeNetConfig(channels=3, classes=5)), torch.zeros(1, 3, 32, 32).byte()
        )


def test_of_a_resnet_the_positions_of_its_map_are_patches():
    own = classifier(ResNetConfig(Backbone((1, 1)), (64, 96), classes=5))
    assert token_colours(own, IMAGES).shape == (2, 8, 12, 3)
    assert patch_similarity(own, IMAGES, (7, 11)).shape == (2, 8, 12)
    with pytest.raises(ValueError, match="a ResNet has feature maps and no tokens"):
        token_norms(own, IMAGES)


# Alignment


def slow_hsic(first, second):
    """The mean over all four different images, as a U-statistic is defined."""
    n = len(first)
    terms = [
        first[i, j] * (second[i, j] + second[q, r] - 2 * second[i, q])
        for i, j, q, r in permutations(range(n), 4)
    ]
    return np.mean(terms)


def test_hsic_is_the_u_statistic():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(2, 7, 5)) + 3  # not centred
    first, second = features @ features.transpose(0, 2, 1)
    found = hsic(torch.from_numpy(first), torch.from_numpy(second))
    assert float(found) == pytest.approx(slow_hsic(first, second), rel=1e-9)


@pytest.mark.parametrize("name", ["token", "axial", "hybrid", "no pooling"])
def test_alignment_of_layers_is_that_of_their_states(name):
    own = classifier(FAMILY[name])
    found = alignment(own, MANY[:6])
    assert found.first == found.second == ("embedding", "block 1", "block 2")
    kernels = []
    for state in states(own, MANY[:6]):
        rows = state.reshape(6, -1)
        kernels.append(rows @ rows.T)
    for i, first in enumerate(kernels):
        for j, second in enumerate(kernels):
            own_terms = slow_hsic(first, first) * slow_hsic(second, second)
            expected = slow_hsic(first, second) / own_terms**0.5
            assert float(found.values[i, j]) == pytest.approx(expected, abs=1e-4)


def test_alignment_of_two_models():
    own = classifier(FAMILY["token"])
    resnet = classifier(ResNetConfig(Backbone((1, 1)), (64, 96), classes=5))
    found = alignment(own, MANY, resnet, MANY)
    assert found.values.shape == (3, len(resnet.model.blocks) + 1) and found.images == 8
    same = alignment(own, MANY, own, iter([MANY]))
    np.testing.assert_allclose(same.values, alignment(own, MANY).values)
    np.testing.assert_allclose(same.values.diagonal(), 1)


def test_small_batches_give_what_large_ones_do(monkeypatch):
    """On average: the estimate is unbiased. Two layers of states that have nothing in common are
    near 0 with batches of four as with all; the biased estimate would be far above."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 400, 4, 50, generator=generator, dtype=torch.float64)
    kernels = features @ features.mT  # (2, 400, 4, 4)
    between = hsic(kernels[0], kernels[1]).mean()
    within = hsic(kernels[0], kernels[0]).mean() * hsic(kernels[1], kernels[1]).mean()
    assert abs(between / within.sqrt()) < 0.05
    rotation = torch.linalg.qr(torch.randn(50, 50, generator=generator, dtype=torch.float64))[0]
    turned = 7 * features[0] @ rotation
    turned = turned @ turned.mT
    between = hsic(kernels[0], turned).sum()
    within = hsic(kernels[0], kernels[0]).sum() * hsic(turned, turned).sum()
    torch.testing.assert_close(between / within.sqrt(), torch.ones_like(between))


def test_too_few_images_are_refused():
    own = classifier(FAMILY["token"])
    with pytest.raises(ValueError, match="from at least 4"):
        alignment(own, IMAGES)
    with pytest.raises(ValueError, match="there are no images"):
        alignment(own, [])
    with pytest.raises(ValueError, match="8 images for one model and 7 for the other"):
        alignment(own, MANY, own, MANY[:7])
    with pytest.raises(ValueError, match="go together"):
        alignment(own, MANY, own)
