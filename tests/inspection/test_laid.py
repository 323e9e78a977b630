"""Maps of overlapping patches, laid over the image."""

import pytest
import torch

from vitkit.data import Preprocessing
from vitkit.inspection.catalogue import Subject, occlusion_plate, rollout_plate
from vitkit.inspection.figures.attention_statistics import patch_distances
from vitkit.inspection.photographs import over_image
from vitkit.models import create, vit
from vitkit.models.tiling import Tiling
from vitkit.webapp.viewer import View, drawn, patch_at
from vitkit.weights import Classifier

OVERLAP = Tiling((16, 8), (12, 4))


def by_pixel(weights, tiling):
    """The mean of the patches that each pixel is in, slowly."""
    height, width = tiling.image(weights.shape)
    total = torch.zeros(height, width)
    count = torch.zeros(height, width)
    for row in range(weights.shape[0]):
        for column in range(weights.shape[1]):
            top = row * tiling.stride[0]
            left = column * tiling.stride[1]
            area = (slice(top, top + tiling.size[0]), slice(left, left + tiling.size[1]))
            total[area] += weights[row, column]
            count[area] += 1
    return total / count


@pytest.mark.parametrize("tiling", [OVERLAP, Tiling((16, 16), (8, 8)), Tiling((7, 9), (5, 9))])
def test_a_cell_has_the_mean_of_its_patches(tiling):
    maps = torch.rand(2, 5, 4, generator=torch.Generator().manual_seed(0))
    laid = over_image(maps, tiling)
    height, width = tiling.image((5, 4))
    down = height // laid.shape[1]
    across = width // laid.shape[2]
    pixels = laid.repeat_interleave(down, 1).repeat_interleave(across, 2)
    assert pixels.shape == (2, height, width)
    for one, expected in zip(pixels, maps, strict=True):
        torch.testing.assert_close(one, by_pixel(expected, tiling))


def test_maps_of_patches_side_by_side_stay_as_they_are():
    maps = torch.rand(2, 5, 4)
    assert over_image(maps, Tiling((16, 8), (16, 8))) is maps


def test_distances_are_between_the_middles_of_patches():
    distances = patch_distances((2, 3), (12, 4))
    assert distances[0, 1] == 4 and distances[0, 3] == 12
    assert distances[0, 5] == pytest.approx((12**2 + 8**2) ** 0.5)


def test_figures_of_overlapping_patches():
    config = vit("mu/16", patch=(16, 8), stride=(12, 4), image=(64, 48), classes=3)
    classifier = Classifier(create(config, seed=0).eval(), Preprocessing((64, 48)), tuple("abc"))
    images = torch.randint(0, 256, (2, 3, 64, 48), dtype=torch.uint8)
    subject = Subject(classifier, images, ("one", "two"))
    assert rollout_plate(subject).arrays["rollout"].shape == (2, 5, 11)
    assert occlusion_plate(subject).arrays["deletion"].shape == (2, 15)


def test_the_app_frames_the_patch_that_is_clicked():
    """A picture of twice the model's pixels."""
    import numpy as np

    view = View(torch.zeros(1), np.zeros((128, 96, 3), np.uint8), OVERLAP)
    grid = (5, 11)
    framed = np.argwhere((drawn(view, np.ones(grid), (2, 3)) == [255, 196, 0]).all(-1))
    assert framed.min(0).tolist() == [2 * 24, 2 * 12]
    assert framed.max(0).tolist() == [2 * 40 - 1, 2 * 20 - 1]
    for row in range(5):
        for column in range(11):
            middle = (2 * (12 * row + 8), 2 * (4 * column + 4))
            assert patch_at(middle[1], middle[0], (128, 96), grid, OVERLAP) == (row, column)
    assert patch_at(0, 0, (128, 96), grid, OVERLAP) == (0, 0)
    assert patch_at(95, 127, (128, 96), grid, OVERLAP) == (4, 10)
