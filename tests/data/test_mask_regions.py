"""The regions of a mask are those of a slow search, and classes that it does not have cost nothing."""

import time

import numpy as np
import pytest

from vitkit.data import IGNORED, regions


def slow(mask, classes, smallest):
    """Each region by flooding from its first pixel: class, box, area and pixels."""
    found = []
    for number in range(classes):
        left = set(zip(*map(list, np.nonzero(mask == number)), strict=True))
        while left:
            first = min(left)
            left.discard(first)
            region, edge = {first}, [first]
            while edge:
                y, x = edge.pop()
                near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
                left -= near
                region |= near
                edge += near
            if len(region) >= smallest:
                found.append((number, sorted(region)))
    return found


@pytest.mark.parametrize("smallest", (1, 3, 40))
@pytest.mark.parametrize("seed", range(3))
def test_regions_are_those_of_a_slow_search(seed, smallest):
    random = np.random.default_rng(seed)
    mask = random.choice([0, 2, 2, 3, 254, IGNORED], (17, 23)).astype(np.uint8)
    mask[:4] = IGNORED  # so that boxes do not begin at the corner
    expected = slow(mask, 255, smallest)
    found = list(regions(mask, 255, smallest))
    assert [each.number for each in found] == [number for number, _ in expected]
    for region, (_, pixels) in zip(found, expected, strict=True):
        left, top, width, height = region.box
        assert region.inside.shape == (height, width) and region.area == len(pixels)
        rows, columns = np.nonzero(region.inside)
        own = sorted(zip((rows + top).tolist(), (columns + left).tolist(), strict=True))
        assert own == pixels
    others = [each.number for each in regions(mask, 255, smallest, without=[2])]
    assert others == [each.number for each in found if each.number != 2]
    assert not list(regions(mask, 2, smallest)) or mask.min() < 2
    assert list(regions(np.full((3, 3), IGNORED, np.uint8), 255)) == []


def test_absent_classes_cost_nothing():
    mask = np.zeros((1500, 2000), np.uint8)
    mask[500:900, 300:700] = 1

    def seconds(classes):
        began = time.process_time()
        assert len(list(regions(mask, classes))) == 2
        return time.process_time() - began

    assert min(seconds(150) for _ in range(3)) < 3 * min(seconds(2) for _ in range(3))
