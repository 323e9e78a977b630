"""Google's RandAugment, operation by operation, beside Pillow and the published formulas; which
ones are drawn."""

from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_sample_image

from vitkit.data.augmentation.colours import GREY, OPERATIONS, draw_operations


@pytest.fixture(scope="module")
def photo():
    """A real one, 224 x 240 pixels."""
    flower = Image.fromarray(load_sample_image("flower.jpg"))
    return flower.resize((240, 224), Image.Resampling.BICUBIC)


def after(name, photo, magnitude, seed=0):
    """A photo after an operation, (h, w, 3); the photo itself stays as it is."""
    image = torch.from_numpy(np.array(photo)).permute(2, 0, 1)
    before = image.clone()
    kind = OPERATIONS[name]
    generator = torch.Generator().manual_seed(seed)
    value = kind.draw(magnitude / 10, image.shape[1:], generator)
    changed = kind.apply(image, value)
    assert changed.dtype == torch.uint8 and torch.equal(image, before)
    return changed.permute(1, 2, 0).numpy()


def affine(photo, *coefficients):
    return photo.transform(photo.size, Image.Transform.AFFINE, coefficients, fillcolor=(GREY,) * 3)


def about_grey(photo, factor):
    """The published contrast: pixels / 256 in place of the mean, which is 210 for this photo of 224
    x 240."""
    return np.clip(210 + factor * (np.array(photo).astype(float) - 210), 0, 255).astype(np.uint8)


def brightened(photo, addition):
    values = np.array(photo).astype(int)
    return np.where(values < 128, np.minimum(values + addition, 255), values)


EXPECTED = {  # name: at a magnitude of 10, at 15, at 20
    "AutoContrast": [lambda p: ImageOps.autocontrast(p)] * 3,
    "Equalize": [lambda p: ImageOps.equalize(p)] * 3,
    "Invert": [lambda p: ImageOps.invert(p)] * 3,
    "Posterize": [
        lambda p: ImageOps.posterize(p, 4),
        lambda p: ImageOps.posterize(p, 6),
        lambda p: p,
    ],
    "Solarize": [
        lambda p: ImageOps.invert(p),
        lambda p: ImageOps.solarize(p, 128),
        lambda p: ImageOps.invert(p),
    ],
    "Color": [lambda p, f=f: ImageEnhance.Color(p).enhance(f) for f in (1.9, 2.8, 3.7)],
    "Contrast": [lambda p, f=f: about_grey(p, f) for f in (1.9, 2.8, 3.7)],
    "Brightness": [lambda p, f=f: ImageEnhance.Brightness(p).enhance(f) for f in (1.9, 2.8, 3.7)],
    "Sharpness": [lambda p, f=f: ImageEnhance.Sharpness(p).enhance(f) for f in (1.9, 2.8, 3.7)],
    "SolarizeAdd": [lambda p, a=a: brightened(p, a) for a in (110, 165, 220)],
}
# By how many levels results may differ, as sums are rounded elsewhere.
ROUNDED = {"AutoContrast": 1, "Contrast": 1, "Brightness": 1, "Color": 3, "Sharpness": 4}
# The share of pixels that may differ.
DIFFERENT = {"ShearX": 0.06, "ShearY": 0.06, "Rotate": 0.01}

MOVED = {  # by its sign and the magnitude over 10
    "Rotate": lambda p, s: p.rotate(30 * s, fillcolor=(GREY,) * 3),
    "ShearX": lambda p, s: affine(p, 1, 0.3 * s, -0.15 * s, 0, 1, 0),
    "ShearY": lambda p, s: affine(p, 1, 0, 0, 0.3 * s, 1, -0.15 * s),
    "TranslateX": lambda p, s: affine(p, 1, 0, 100 * s, 0, 1, 0),
    "TranslateY": lambda p, s: affine(p, 1, 0, 0, 0, 1, 100 * s),
}


def test_these_are_all_sixteen():
    assert len(OPERATIONS) == 16 and {*EXPECTED, *MOVED, "Cutout"} == set(OPERATIONS)


@pytest.mark.parametrize(("column", "magnitude"), [(0, 10), (1, 15), (2, 20)])
@pytest.mark.parametrize("name", EXPECTED)
def test_operations_change_values_as_pillow_or_the_published_formula_does(
    name, column, magnitude, photo
):
    expected = np.array(EXPECTED[name][column](photo)).astype(int)
    difference = np.abs(after(name, photo, magnitude) - expected)
    assert difference.max() <= ROUNDED.get(name, 0)


@pytest.mark.parametrize("magnitude", [10, 20])
@pytest.mark.parametrize("name", MOVED)
def test_moves_are_to_either_side_and_uncover_grey(name, magnitude, photo):
    """Of a shear's rows one in ten lies between two pixels."""
    either_way = [np.array(MOVED[name](photo, sign * magnitude / 10)) for sign in (1, -1)]
    directions = set()
    for seed in range(8):
        moved = after(name, photo, magnitude, seed)
        different = [(moved != expected).any(-1).mean() for expected in either_way]
        assert min(different) <= DIFFERENT.get(name, 0)
        directions.add(different.index(min(different)))
    assert directions == {0, 1}


@pytest.mark.parametrize(("magnitude", "side"), [(10, 80), (20, 160)])
def test_cutout_is_a_square_around_any_pixel(magnitude, side, photo):
    white = Image.new("RGB", photo.size, "white")
    heights = []
    widths = []
    for seed in range(60):
        hole = (after("Cutout", white, magnitude, seed) == GREY).all(-1)
        rows = hole.any(1).nonzero()[0]
        columns = hole.any(0).nonzero()[0]
        assert len(rows) == rows[-1] + 1 - rows[0] and len(columns) == columns[-1] + 1 - columns[0]
        assert hole.sum() == len(rows) * len(columns)
        heights.append(len(rows))
        widths.append(len(columns))
    assert max(heights) == max(widths) == side
    assert side / 2 <= min(heights) < 0.8 * side  # cut off by the border


def test_a_magnitude_of_zero_is_not_without_effect(photo):
    """AugReg's light1: all but moves and additions change the image, posterize to one bit."""
    pixels = np.array(photo)
    same = {name for name in OPERATIONS if np.array_equal(after(name, photo, 0), pixels)}
    assert same == {*MOVED, "Cutout", "SolarizeAdd"}
    assert np.array_equal(after("Posterize", photo, 0), pixels & 128)


def test_layers_are_drawn_alike_and_from_all_each_time():
    generator = torch.Generator().manual_seed(0)
    drawn = [step for _ in range(1600) for step in draw_operations(2, 15, (4, 4), generator)]
    factors = {step.value for step in drawn if step.name == "Color"}
    assert factors == {1.8 * 1.5 + 0.1} and len(drawn) == 3200
    assert {step.value for step in drawn if step.name == "Rotate"} == {45.0, -45.0}
    names = [step.name for step in drawn]
    assert len(set(names)) == 16
    assert all(150 < count < 250 for count in Counter(names).values())
    twice = sum(first == second for first, second in zip(names[::2], names[1::2], strict=True))
    assert 65 < twice < 135  # one in sixteen
