"""Mean attention distance and entropy: by hand, slowly, and on real weights."""

from math import log

import numpy as np
import pytest
import torch
from inspected import FAMILY, GRID, IMAGES, N, classifier, recorded, uniform

from vitkit.inspection import attention_distance, attention_entropy
from vitkit.inspection.figures import passes as small
from vitkit.inspection.figures.attention_statistics import patch_distances


def slow_distances(weights, grid, stride, prefix):
    """(plain, renormalised, share of the prefix) of each head, query by query."""
    images, heads = weights.shape[:2]
    results = np.zeros((3, heads))
    for head in range(heads):
        of_queries = []
        for image in range(images):
            for q in range(grid[0] * grid[1]):
                row = weights[image, head, prefix + q, prefix:]
                total = 0.0
                for k, weight in enumerate(row):
                    down = stride * (q // grid[1] - k // grid[1])
                    across = stride * (q % grid[1] - k % grid[1])
                    total += weight * (down**2 + across**2) ** 0.5
                of_queries.append((total, total / row.sum(), 1 - row.sum()))
        results[:, head] = np.mean(of_queries, 0)
    return results


@pytest.mark.parametrize("name", ["token", "registers", "hybrid", "relative", "no pooling"])
def test_distance_is_that_of_the_definition(name):
    own = classifier(FAMILY[name])
    config = own.model.config
    found = attention_distance(own, IMAGES)
    grid = own.model.grid(IMAGES)
    layers = recorded(own.model, IMAGES)[-config.depth :]  # a hybrid's ResNet here has none
    assert found.layers == ("layer 1", "layer 2") and found.images == 2
    for layer, weights in enumerate(layers):
        slow = slow_distances(weights, grid, config.tiling.stride[0], config.prefix)
        for values, expected in zip((found.plain, found.renormalised), slow[:2], strict=True):
            np.testing.assert_allclose(values[layer], expected, rtol=1e-6)
        np.testing.assert_allclose(found.prefix_share[layer], slow[2], atol=1e-6)


def test_distance_of_a_map_model_and_an_axial_one():
    own = classifier(FAMILY["MAP"])
    found = attention_distance(own, IMAGES)
    assert found.layers == ("layer 1", "layer 2")  # the learned query is nowhere
    slow = slow_distances(recorded(own.model, IMAGES)[1], GRID, 16, 0)
    np.testing.assert_allclose(found.plain[1], slow[0], rtol=1e-6)

    own = classifier(FAMILY["axial"])
    found = attention_distance(own, IMAGES)
    assert found.layers[2:] == ("layer 2, rows", "layer 2, columns")
    layers = recorded(own.model, IMAGES)
    rows = slow_distances(layers[2], (1, 6), 16, 0)[0]
    columns = slow_distances(layers[3], (4, 1), 16, 0)[0]
    np.testing.assert_allclose(found.plain[2:], [rows, columns], rtol=1e-6)
    torch.testing.assert_close(found.plain, found.renormalised, rtol=1e-6, atol=0)


def test_by_hand_uniform_attention():
    """The mean distance between two of 4 x 6 points is that of two uniform draws of them; of the
    class token's share 1/25 nothing is left in `plain`."""
    found = attention_distance(uniform(FAMILY["token"]), IMAGES)
    points = [(16 * (i // 6), 16 * (i % 6)) for i in range(N)]
    mean = np.mean([np.hypot(a - c, b - d) for a, b in points for c, d in points])
    assert found.uniform[0] == pytest.approx(mean, rel=1e-6)
    np.testing.assert_allclose(found.renormalised, mean, rtol=1e-6)
    np.testing.assert_allclose(found.plain, mean * N / (N + 1), rtol=1e-6)
    np.testing.assert_allclose(found.prefix_share, 1 / (N + 1), rtol=1e-5)

    found = attention_distance(uniform(FAMILY["axial"]), IMAGES)
    # Of 1, ..., n, two draws are (n² - 1) / 3n apart
    np.testing.assert_allclose(found.plain[0], 16 * 35 / 18, rtol=1e-6)
    np.testing.assert_allclose(found.plain[1], 16 * 15 / 12, rtol=1e-6)


@pytest.mark.parametrize("name", ["token", "MAP", "axial", "distilled"])
def test_entropy_is_that_of_the_definition(name):
    own = classifier(FAMILY[name])
    found = attention_entropy(own, IMAGES)
    for layer, weights in enumerate(recorded(own.model, IMAGES)):
        expected = -(weights * np.log(weights)).sum(-1).mean((0, 2))
        np.testing.assert_allclose(found.nats[layer], expected, rtol=1e-6)
        assert found.highest[layer] == log(weights.shape[-1])
    assert len(found.layers) == layer + 1


def test_entropy_of_uniform_attention_is_the_highest():
    found = attention_entropy(uniform(FAMILY["MAP"]), IMAGES)
    np.testing.assert_allclose(found.nats, log(N), rtol=1e-6)
    assert found.highest == (log(N),) * 3


def test_means_are_over_all_images_in_whatever_batches(monkeypatch):
    own = classifier(FAMILY["token"])
    images = torch.cat([IMAGES, IMAGES.flip(3), IMAGES.flip(2)[:1]])
    whole = attention_distance(own, images)
    parts = attention_distance(own, iter([images[:2], images[2:]]))
    monkeypatch.setattr(small, "LARGEST", 1)  # one image at a time
    single = attention_distance(own, images)
    entropy = attention_entropy(own, images)
    for other in (parts, single):
        assert other.images == 5
        torch.testing.assert_close(whole.plain, other.plain, rtol=1e-6, atol=0)
    monkeypatch.undo()
    torch.testing.assert_close(entropy.nats, attention_entropy(own, images).nats)


def test_what_has_no_meaning_is_refused():
    own = classifier(FAMILY["token"])
    for function in (attention_distance, attention_entropy):
        with pytest.raises(ValueError, match="no images to look at"):
            function(own, [])
        with pytest.raises(ValueError, match="expected prepared images"):
            function(own, IMAGES[0])
        with pytest.raises(ValueError, match="4 x 3 patches come after images of 4 x 6"):
            function(own, [IMAGES, IMAGES[..., :48]])


@pytest.mark.slow
def test_the_real_model_agrees_with_the_reference(real):
    own, images, expected = real
    distance = attention_distance(own, images)
    np.testing.assert_allclose(distance.plain, expected["distance_plain"], rtol=1e-5)
    np.testing.assert_allclose(distance.renormalised, expected["distance_renormalised"], rtol=1e-5)
    entropy = attention_entropy(own, images)
    np.testing.assert_allclose(entropy.nats, expected["entropy"], rtol=1e-5)


def test_distances_are_between_the_middles_of_patches():
    distances = patch_distances((2, 3), (12, 4))
    assert distances[0, 1] == 4 and distances[0, 3] == 12
    assert distances[0, 5] == pytest.approx((12**2 + 8**2) ** 0.5)
