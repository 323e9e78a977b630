"""Augmentation is drawn, then applied: it stays inside the image, is repeatable, and moves a mask
as it moves the image."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, photograph

from vitkit.data import Augmentation, Preprocessing, open_image
from vitkit.data.augmentation.colours import draw_erased
from vitkit.data.augmentation.draws import Draw, apply, apply_geometry, augment, draw, inception_box
from vitkit.data.augmentation.settings import check_fits
from vitkit.data.images import pictures
from vitkit.data.images.resizing import resize


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("change", [
    {"crop": "centre"}, {"area": (0, 1)}, {"area": (0.5, 0.2)}, {"area": (0.5, 1.5)}, {"area": (0.5,)}, {"pad": -1},
    {"rand_augment": (1, 31)}, {"rand_augment": (-1, 3)}, {"rand_augment": (1, 21), "rand_augment_by": "google"},
    {"rand_augment_by": "timm"}, {"interpolation": "area"}, {"resize": -1},
    {"colour_jitter": (0.4, 0.4, 0.4)}, {"colour_jitter": (0, 0, 0, 0.6)}, {"colour_jitter": (-1, 0, 0, 0)}, {"erase": 1.1},
])  # fmt: skip
def test_impossible_augmentations_are_refused(change):
    with pytest.raises(ValueError, match=f"^{next(iter(change))} is "):
        Augmentation(**change)


def test_a_crop_must_fit_the_resize():
    with pytest.raises(ValueError, match=r"resize is 0; a resize_crop needs"):
        Augmentation(crop="resize_crop")
    with pytest.raises(ValueError, match=r"resize is 200; .* make it 224 or more"):
        check_fits(Augmentation(crop="resize_crop", resize=200), Preprocessing())


WAYS = [
    Augmentation(),
    Augmentation(antialias=False, flip=False),
    Augmentation(interpolation="bicubic", area=(0.3, 0.5)),
    Augmentation(reduced_decode=True),
    Augmentation(crop="resize_crop", resize=40),
    Augmentation(crop="resize_crop", resize=40, reduced_decode=True),
    Augmentation(crop="pad_crop", pad=3),
    Augmentation(crop="none", flip=False),
    Augmentation(crop="none", rand_augment=(2, 9)),
    Augmentation(crop="none", rand_augment=(2, 20), rand_augment_by="google"),
    Augmentation(colour_jitter=(0.4, 0.4, 0.2, 0.1), erase=0.5),
]


@pytest.mark.parametrize("how", WAYS)
@settings(max_examples=12, deadline=None)
@given(
    height=st.integers(1, 64),
    width=st.integers(1, 64),
    seed=st.integers(0, 1000),
    kind=st.sampled_from(["JPEG", "PNG"]),
)
def test_every_augmentation_takes_every_image(how, height, width, seed, kind):
    data = encoded(photograph(height, width, seed), kind)
    before = torch.random.get_rng_state()
    made = [
        augment(open_image(data, "x"), how, Preprocessing(size=(24, 32)), generator(seed))
        for _ in range(2)
    ]
    assert made[0].dtype == torch.uint8 and made[0].shape == (3, 24, 32)
    assert torch.equal(*made)
    assert torch.equal(before, torch.random.get_rng_state())  # which is the model's


def test_an_inception_crop_is_a_box_of_the_image_resized():
    pixels = photograph(60, 80)
    how = Augmentation(flip=False)
    top, left, height, width = inception_box(60, 80, how.area, generator(3))
    part = pixels[top : top + height, left : left + width].copy()
    expected = resize(part, (24, 24), "bilinear", antialias=True)
    to = Preprocessing(size=(24, 24))
    assert torch.equal(augment(open_image(pixels, "x"), how, to, generator(3)), expected)


@pytest.fixture
def decodes(monkeypatch) -> list:
    """The (box, reduction) of everything that is decoded."""
    calls = []
    pixels = pictures.Encoded.pixels

    def counting(self, box=None, reduce=1):
        calls.append((box, reduce))
        return pixels(self, box, reduce)

    monkeypatch.setattr(pictures.Encoded, "pixels", counting)
    return calls


def test_only_the_box_is_decoded(decodes):
    picture = open_image(encoded(photograph(90, 120)), "x")
    augment(picture, Augmentation(area=(0.1, 0.2)), Preprocessing(), generator())
    ((box, _),) = decodes
    assert 0.09 * 90 * 120 < box[2] * box[3] < 0.21 * 90 * 120


def test_a_reduced_decode_keeps_at_least_the_pixels_that_are_needed(decodes):
    picture = open_image(encoded(photograph(400, 500)), "x.jpg")
    to = Preprocessing(size=(60, 60))
    for seed in range(60):
        augment(picture, Augmentation(reduced_decode=True), to, generator(seed))
    assert {reduce for _, reduce in decodes} == {1, 2, 4}
    assert all(min(box[2:]) // reduce >= 60 or reduce == 1 for box, reduce in decodes)


def test_flips_mirror_half_of_the_images():
    pixels = photograph(8, 8)
    how = Augmentation(crop="none")
    to = Preprocessing(size=(8, 8))
    upright = torch.from_numpy(pixels).permute(2, 0, 1)
    made = [augment(open_image(pixels, "x"), how, to, generator(seed)) for seed in range(400)]
    flips = sum(torch.equal(image, upright.flip(-1)) for image in made)
    assert 160 < flips < 240
    assert sum(torch.equal(image, upright) for image in made) == 400 - flips


def test_a_padded_crop_shifts_by_up_to_the_padding():
    white = open_image(np.full((8, 8, 3), 255, np.uint8), "x")
    how = Augmentation(crop="pad_crop", pad=2, flip=False)
    black_borders = set()
    for seed in range(200):
        image = augment(white, how, Preprocessing(size=(8, 8)), generator(seed))[0]
        columns = int((image.amax(0) == 0).sum())
        rows = int((image.amax(1) == 0).sum())
        black_borders.add((columns, rows))
    assert black_borders == {(x, y) for x in range(3) for y in range(3)}


def test_colour_jitter_is_torchvisions_functions_in_the_order_drawn():
    from torchvision.transforms import v2

    picture = open_image(photograph(32, 32), "x")
    to = Preprocessing(size=(32, 32))
    strength = (0.4, 0.4, 0.4, 0.1)
    how = Augmentation(crop="none", flip=False, colour_jitter=strength)
    for seed in range(4):
        made = augment(picture, how, to, generator(seed))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(generator(seed).integers(2**63)))
            drawn = v2.ColorJitter(*strength).make_params([])
        want = to(picture).contiguous()
        for i in drawn["fn_idx"].tolist():
            name = ("brightness", "contrast", "saturation", "hue")[i]
            want = getattr(v2.functional, f"adjust_{name}")(want, drawn[f"{name}_factor"])
        assert torch.equal(made, want)


def test_erasing_fills_a_rectangle_of_a_share_of_the_images_with_the_mean():
    picture = open_image(np.full((40, 60, 3), 255, np.uint8), "x")
    to = Preprocessing(size=(40, 60), mean=(0.485, 0.456, 0.406))
    how = Augmentation(crop="none", flip=False, erase=0.4)
    mean = torch.tensor([124, 116, 104], dtype=torch.uint8).view(3, 1, 1)
    shares = []
    for seed in range(200):
        image = augment(picture, how, to, generator(seed))
        if (image == 255).all():
            continue
        hole = (image != 255).all(0)
        rows = hole.any(1).nonzero()[:, 0]
        columns = hole.any(0).nonzero()[:, 0]
        box = image[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        assert torch.equal(box, mean.expand_as(box))
        assert hole.sum() == box[0].numel()
        shares.append(box[0].numel() / (40 * 60))
    assert 55 < len(shares) < 105
    assert 0.015 < min(shares) < 0.1 and 0.25 < max(shares) < 0.35
    assert to.normalise(box[None])[0].abs().max() < 0.01  # nearly 0 for the model


def test_an_image_that_no_rectangle_fits_stays_whole():
    assert {draw_erased(1.0, (1, 400), seed) for seed in range(10)} == {None}


def test_what_is_drawn_is_a_value_that_says_everything():
    how = Augmentation(
        colour_jitter=(0.4, 0, 0.2, 0.1), rand_augment=(2, 10), erase=1.0, rand_augment_by="google"
    )
    to = Preprocessing(size=(24, 32))
    drawn = draw((60, 80), how, to, generator(2))
    assert drawn == draw((60, 80), how, to, generator(2)) != draw((60, 80), how, to, generator(3))
    top, left, height, width = drawn.box
    assert top >= 0 and top + height <= 60 and left >= 0 and left + width <= 80
    colours, *operations = drawn.colour_changes
    brightness, contrast, saturation, hue = colours.amounts
    assert 0.6 <= brightness <= 1.4 and contrast is None and 0.8 <= saturation <= 1.2
    assert -0.1 <= hue <= 0.1 and sorted(colours.order) == [0, 1, 2, 3]
    assert len(operations) == 2 and len(drawn.erased) == 4
    picture = open_image(photograph(60, 80), "x")
    made = apply(drawn, picture, how, to)
    assert torch.equal(made, augment(picture, how, to, generator(2)))
    left_alone = apply(Draw(drawn.box), picture, how, to)  # a draw may be edited
    assert torch.equal(left_alone, apply_geometry(Draw(drawn.box), picture, how, to))
    mirrored = apply(Draw(drawn.box, flip=True), picture, how, to)
    assert torch.equal(mirrored, left_alone.flip(-1))


@pytest.mark.parametrize("how", [
    Augmentation(area=(0.2, 0.6)),
    Augmentation(crop="resize_crop", resize=40),
    Augmentation(crop="pad_crop", pad=5),
    Augmentation(crop="none"),
    Augmentation(area=(0.2, 0.6), colour_jitter=(0.2, 0.2, 0.2, 0.0)),
])  # fmt: skip
@pytest.mark.parametrize("rule", ["square", "shorter"])
def test_a_mask_goes_where_the_image_goes(how, rule):
    """The image is white where the mask is 7; after the same draw it still is, but for blurred
    borders."""
    mask = np.zeros((60, 80), np.uint8)
    mask[10:35, 15:50] = 7
    image = np.where(mask[..., None] == 7, 255, 0).astype(np.uint8).repeat(3, axis=2)
    to = Preprocessing(size=(32, 32), rule=rule)
    for seed in range(20):
        drawn = draw((60, 80), how, to, generator(seed))
        made = apply(drawn, open_image(image, "x"), how, to)
        moved = apply_geometry(drawn, open_image(mask, "mask"), how, to, "nearest")
        assert set(moved.unique().tolist()) <= {0, 7}
        assert ((made[0] > 127) == (moved[0] == 7)).float().mean() > 0.93
