"""Patches that overlap, and patches that are no squares: cut, counted, and carried to other grids."""

from math import prod

import pytest
import torch
from networks import random_images, random_model

from vitkit.models import Backbone, Tiling, cost, create, parameters, vit, with_stride
from vitkit.models.positions import resample

OVERLAP = vit("mu/16", patch=(16, 8), stride=(12, 4), image=(64, 48), classes=5)


def test_patches_are_cut_where_the_config_says():
    """Eq. 1 by hand, one patch after the other."""
    model = random_model(OVERLAP)
    images = random_images(2, 3, 64, 48)
    weight = model.stem.project.weight.flatten(1)  # (D, C·P·P)
    rows = []
    for top in range(0, 64 - 16 + 1, 12):
        for left in range(0, 48 - 8 + 1, 4):
            patch = images[:, :, top : top + 16, left : left + 8].flatten(1)
            rows.append(patch @ weight.T + model.stem.project.bias)
    embedded = model.patch_embed(images)
    assert embedded.shape == (2, 5 * 11, 32)
    torch.testing.assert_close(embedded, torch.stack(rows, 1), atol=1e-5, rtol=1e-5)


def test_a_hybrids_patches_overlap_on_its_feature_map():
    stem = Backbone((1,), 0.5)  # 4 pixels to a position
    config = vit("R26+mu/32", stem=stem, patch=(4, 2), stride=2, image=(64, 32), classes=5)
    assert config.tiling == Tiling((16, 8), (8, 8))
    assert config.grid == (7, 4)
    model = random_model(config)
    assert model.stem(random_images(1, 3, 64, 32)).shape == (1, 32, 7, 4)
    with pytest.raises(ValueError, match="patches of 16 x 8 every 8 x 8 pixels"):
        model(random_images(1, 3, 64, 36))


def test_a_stride_of_the_patch_is_the_same_model():
    """To the bit, and the same configuration."""
    plain = vit("mu/16", image=64, classes=5)
    for same in ({"stride": 16}, {"stride": (16, 16)}, {"patch": (16, 16)}, {"patch": [16, 16]}):
        assert vit("mu/16", image=64, classes=5, **same) == plain
    images = random_images(2, 3, 64, 64)
    first = random_model(plain)
    again = random_model(vit("mu/16", image=64, classes=5, patch=(16, 16), stride=16))
    assert torch.equal(first(images), again(images))
    assert (plain.patch, plain.stride) == (16, None)


@pytest.mark.parametrize(
    ("tiling", "image", "grid"),
    [
        (Tiling((16, 16), (16, 16)), (224, 224), (14, 14)),
        (Tiling((16, 16), (8, 8)), (224, 224), (27, 27)),
        (Tiling((16, 8), (16, 8)), (32, 32), (2, 4)),
        (Tiling((16, 16), (12, 12)), (256, 124), (21, 10)),  # TransReID's stride
    ],
)
def test_the_grid_is_what_fits(tiling, image, grid):
    assert tiling.grid(image) == grid
    assert tiling.fits(image)
    assert tiling.image(grid) == image == tiling.fitting((image[0] + 3, image[1] + 1))
    assert not tiling.fits((image[0] + 1, image[1]))
    assert tiling.fitting((1, 1)) == tiling.size


def test_a_name_makes_the_largest_image_that_fits():
    assert vit("B/16").image == (224, 224)
    assert vit("B/16", stride=12).image == (220, 220)
    assert vit("B/16", patch=(16, 10)).image == (224, 220)
    assert vit("R26+B/32", patch=2, stride=1).image == (224, 224)
    assert vit("B/16", stride=12, image=(40, 28)).grid == (3, 2)


def test_cost_and_parameters_follow_the_grid():
    plain = vit("B/16")
    overlap = vit("B/16", stride=8)
    assert cost(overlap).tokens == 1 + 27 * 27
    assert parameters(overlap) - parameters(plain) == (27 * 27 - 14 * 14) * 768
    rectangles = vit("B/16", patch=(16, 8))
    assert cost(rectangles).tokens == 1 + 14 * 28
    fewer = 16 * 8 * 3 * 768  # numbers of E
    more = (14 * 28 - 14 * 14) * 768  # positions
    assert parameters(rectangles) - parameters(plain) == more - fewer
    # The projection sees every pixel of every patch
    without = cost(vit("B/16", stride=8, channels=1)).macs
    assert cost(overlap).macs - without == prod((27, 27, 16, 16)) * 2 * 768


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"stride": 17}, "a stride of 17 leaves pixels between patches of 16"),
        ({"patch": (16, 8), "stride": 9}, "a stride of 9 leaves pixels between patches of"),
        ({"stride": 0}, "stride is 0; it is a whole number of at least 1, or two of them"),
        ({"patch": (16, 0)}, r"patch is \(16, 0\); it is a whole"),
        (
            {"patch": (16,)},
            r"^patch is \(16,\); it is a whole .*, or two of them: height and width$",
        ),
        ({"patch": None}, "^patch is None; it is a whole"),
        ({"stride": (8, 4, 2)}, r"^stride is \(8, 4, 2\); it is a whole .*: height and width$"),
        ({"stride": 8.0}, "^stride is 8.0; it is a whole"),
        ({"stride": True}, "^stride is True; it is a whole"),
        ({"stride": 12, "image": 224}, "every 12 x 12 pixels; choose .* such as 220 x 220"),
        ({"patch": (16, 8), "image": (24, 24)}, "a multiple of 16 and a width that is a mult"),
        ({"patch": 15, "image": 224}, "patches of 15 x 15; choose multiples of 15"),
    ],
)
def test_what_does_not_fit_is_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        vit("B/16", **settings)


def test_images_of_another_size_are_refused_with_one_that_fits():
    model = create(OVERLAP)
    with pytest.raises(ValueError, match="more, such as 52 x 44 .its Preprocessing does"):
        model(torch.zeros(1, 3, 60, 44))


def test_a_hybrids_stride_is_asked_for_in_pixels():
    """Its field has positions of the feature map, of 4 pixels each."""
    stem = Backbone((1,), 0.5)
    config = vit("R26+mu/32", stem=stem, patch=(4, 2), image=(64, 32), classes=5)
    dense = config.with_stride(8)
    assert (dense.stride, dense.tiling) == (2, Tiling((16, 8), (8, 8)))
    assert dense.with_stride(None) == config == config.with_stride((16, 8))
    model = with_stride(random_model(config), (8, 4))
    assert (model.config.stride, model.config.grid) == ((2, 1), (7, 7))
    for stride in (6, 12, (20, 4)):
        with pytest.raises(ValueError, match="of 16 x 8 pixels, .* every 4 pixels; choose a mult"):
            config.with_stride(stride)
    with pytest.raises(ValueError, match="stride is 8.0; it is a whole"):
        config.with_stride(8.0)


@pytest.mark.parametrize("positions", ["learned", "learned2d", "sincos", "rotary"])
def test_another_stride_keeps_the_projection_and_resamples_positions(positions):
    model = random_model(vit("mu/16", image=(64, 48), classes=5, positions=positions))
    dense = with_stride(model, 8)
    assert (dense.config.grid, dense.config.image) == ((7, 5), (64, 48))
    images = random_images(2, 3, 64, 48)

    # What is cut at both strides is the same to the bit
    coarse = model.stem(images)
    torch.testing.assert_close(dense.stem(images)[:, :, ::2, ::2], coarse, atol=1e-6, rtol=1e-6)
    assert dense.stem.project.weight.data_ptr() == model.stem.project.weight.data_ptr()
    if positions == "learned":
        expected = resample(model.positions.table, (4, 3), (7, 5), "google")
        assert torch.equal(dense.positions.table, expected)
    if positions == "rotary":
        assert dense.config.position_grid == (4, 3)
    assert dense(images).isfinite().all()


def test_another_stride_and_size_at_once_resample_once():
    model = random_model(vit("mu/16", image=64, classes=5))
    dense = with_stride(model, 12, (76, 52), "timm")
    expected = resample(model.positions.table, (4, 4), (6, 4), "timm")
    assert torch.equal(dense.positions.table, expected)
    assert (dense.config.stride, dense.config.resample) == (12, "timm")
    # Without a size: the largest that fits
    assert with_stride(model, 12).config.image == (64, 64)
    assert with_stride(model, 11).config.image == (60, 60)
    # And back
    again = with_stride(with_stride(model, 8), None)
    assert again.config == model.config
