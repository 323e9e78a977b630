"""What the weights alone show: principal components of filters, similarity of positions."""

import numpy as np
import pytest
import torch
from inspected import FAMILY, GRID, N, classifier, small

from vitkit.inspection import filter_components, position_similarity
from vitkit.models import Backbone, LeNetConfig, ResNetConfig, standardised


def cosine_table(vectors):
    """Cosines of all pairs, one by one."""
    table = np.zeros((len(vectors), len(vectors)))
    for i, a in enumerate(vectors):
        for j, b in enumerate(vectors):
            table[i, j] = a @ b / (a @ a) ** 0.5 / (b @ b) ** 0.5
    return table


# Filters


def test_known_filters_come_back():
    """Filters that are mixtures of three orthogonal ones, of known strengths."""
    own = classifier(small())
    generator = np.random.default_rng(0)
    basis = np.linalg.qr(generator.normal(size=(768, 3)))[0].T  # (3, 768)
    mixing = np.linalg.qr(generator.normal(size=(own.model.config.width, 3)))[0]
    weight = own.model.stem.project.weight
    with torch.no_grad():
        rows = torch.from_numpy(mixing * [9, 4, 1] @ basis)
        weight.copy_(rows.reshape(weight.shape))
    found = filter_components(own, count=3, centred=False)
    np.testing.assert_allclose(found.values[:3], [9, 4, 1], rtol=1e-5)
    np.testing.assert_allclose(found.shares[:3], np.array([81, 16, 1]) / 98, rtol=1e-5)
    components = found.components.flatten(1).numpy()
    np.testing.assert_allclose(abs(components @ basis.T), np.eye(3), atol=1e-5)
    peaks = np.take_along_axis(components, abs(components).argmax(1)[:, None], 1)
    assert (peaks > 0).all()
    # A mean filter that all have is the first thing that centring takes away
    with torch.no_grad():
        weight.add_(torch.from_numpy(100 * basis[2].reshape(weight.shape[1:])))
    centred = filter_components(own, count=2)
    assert centred.values[0] < 9.1
    assert filter_components(own, count=2, centred=False).values[0] > 500


def test_filters_of_hybrids_resnets_and_lenet_are_those_that_see_the_pixels():
    hybrid = classifier(FAMILY["hybrid"])
    assert filter_components(hybrid).components.shape == (28, 3, 7, 7)
    backbone = Backbone((1, 1))
    resnet = classifier(ResNetConfig(backbone, (32, 48), classes=5))
    conv = resnet.model.root.conv
    kernel = standardised(conv.weight, conv.how, conv.eps).flatten(1).detach().double()
    values = torch.linalg.svdvals(kernel - kernel.mean(0))
    torch.testing.assert_close(filter_components(resnet).values, values.float())
    deployed = resnet.for_inference()
    torch.testing.assert_close(filter_components(deployed).values, values.float())
    lenet = classifier(LeNetConfig(channels=3, classes=5))
    assert filter_components(lenet, count=6).components.shape == (6, 3, 5, 5)
    with pytest.raises(ValueError, match="6 filters of 75 numbers have 1 to 6 principal"):
        filter_components(lenet)


# Positions


@pytest.mark.parametrize("inject", ["stem", "every"])
def test_similarity_of_learned_positions(inject):
    own = classifier(small(inject=inject, registers=1, prefix_positions=1))
    positions = own.model.positions
    block = 0
    if inject == "every":
        block = 1
        positions = positions[1]
    found = position_similarity(own, block=block)
    expected = cosine_table(positions.table[0].detach().numpy())
    np.testing.assert_allclose(found.cosines, expected, atol=1e-6)
    assert found.cosines.shape == (N + 1, N + 1) and found.prefix == 1
    assert found.tiles.shape == (*GRID, *GRID) and found.prefix_maps.shape == (1, *GRID)
    torch.testing.assert_close(found.tiles[3, 2, 1, 5], found.cosines[1 + 20, 1 + 11])
    with pytest.raises(ValueError, match="block is 7"):
        position_similarity(own, block=7)


@pytest.mark.parametrize("kind", ["learned2d", "sincos", "sincos-moco", "sincos-mae"])
def test_similarity_of_other_positions_that_are_added(kind):
    own = classifier(small(positions=kind))
    table = own.model.positions.full_table(GRID, *(["cpu"] * kind.startswith("sincos")))[0]
    found = position_similarity(own)
    if kind != "learned2d":
        table = table[1:]  # the class token has none
        # Fixed ones fall off alike in all places
        torch.testing.assert_close(found.tiles[0, 0, 2, 3], found.tiles[1, 1, 3, 4])
    np.testing.assert_allclose(found.cosines, cosine_table(table.detach().numpy()), atol=1e-6)
    assert position_similarity(own, grid=(2, 3)).tiles.shape == (2, 3, 2, 3)


@pytest.mark.parametrize("kind", ["rotary", "rotary-dinov3"])
def test_similarity_of_rotary_positions(kind):
    """A vector whose pairs are alike, rotated as the model rotates its queries."""
    own = classifier(small(positions=kind))
    width = own.model.config.width // own.model.config.heads
    vector = torch.zeros(1, 1, N + 1, width)
    vector[..., : width // 2] = 1
    rotated, _, _ = own.model.positions.in_attention(GRID)(vector, vector)
    found = position_similarity(own)
    assert found.prefix == 0
    np.testing.assert_allclose(found.cosines, cosine_table(rotated[0, 0, 1:].numpy()), atol=1e-5)


def test_similarity_of_relative_positions():
    own = classifier(small(positions="relative"))
    table = own.model.positions[1].offsets.table[0].detach().numpy()
    found = position_similarity(own, block=1)
    assert found.prefix == 1 and found.cosines.shape == (N + 1, N + 1)
    every = cosine_table(table)
    for query, key in ((0, 0), (3, 20), (20, 3), (24, 0)):
        assert found.cosines[query, key] == pytest.approx(every[N, N + query - key], abs=1e-6)
    with pytest.raises(ValueError, match="no meaning on 2 x 3"):
        position_similarity(own, grid=(2, 3))


def test_the_real_model_agrees_with_the_reference(real):
    own, _, expected = real
    similarity = position_similarity(own)
    np.testing.assert_allclose(similarity.cosines, expected["position_similarity"], atol=1e-6)
    for name, centred in (("filters_centred", True), ("filters_uncentred", False)):
        filters = filter_components(own, centred=centred)
        np.testing.assert_allclose(filters.values, expected[f"{name}_values"], rtol=1e-5)
        products = filters.components.flatten(1).numpy() @ expected[f"{name}_components"].T
        np.testing.assert_allclose(abs(products), np.eye(28), atol=1e-4)
