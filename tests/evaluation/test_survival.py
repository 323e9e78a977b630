"""Which changes of an image the classes survive, on pictures whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest
from margins import at_least, at_most

from vitkit.data import Augmentation, Preprocessing, from_dataset
from vitkit.evaluation import surviving, surviving_in_pixels
from vitkit.models import create, vit
from vitkit.training import about_survival
from vitkit.weights import Classifier

SIDE = 32


@pytest.fixture(scope="module")
def model():
    """Not trained, which sees well enough what is where."""
    config = vit("mu/8", image=(SIDE, SIDE), classes=2, depth=2, width=48)
    return Classifier(create(config, seed=0), Preprocessing((SIDE, SIDE)), ("a", "b"))


def discs(place, channel, count=100):
    """So many pictures of a disc; `place` and `channel` say by the class, 0 or 1, from what range the
    centre is drawn, as shares of the width, and whether the disc is red, 0, or blue, 2."""
    random = np.random.default_rng(0)
    pictures = []
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for i in range(count):
        label = i % 2
        picture = random.integers(60, 90, (SIDE, SIDE, 3))
        x = random.uniform(*place[label]) * SIDE
        y = random.uniform(0.3, 0.7) * SIDE
        inside = (columns - x) ** 2 + (rows - y) ** 2 < 25
        picture[inside, channel[label]] += 120
        pictures.append((picture.clip(0, 255).astype(np.uint8), label))
    return from_dataset(pictures, labels=("left", "right"))


@pytest.mark.slow
def test_a_disc_on_the_left_is_another_one_if_it_is_mirrored(model):
    """The class is the half that the disc is in."""
    sides = discs(place=((0.2, 0.45), (0.55, 0.8)), channel=(0, 0))
    survival = surviving(model, sides, Augmentation())
    assert not survival.augmentation.flip
    assert survival.augmentation.crop != "inception"
    mirrored, crops, *_ = survival.trials
    at_least(mirrored.whole, 96, best=100)
    at_most(mirrored.changed, 73)
    at_most(mirrored.p_value, 1e-6)
    assert not mirrored.survives and not crops.survives
    said = about_survival(survival)
    assert f"does not preserve the classes: mirrored images ({mirrored.changed} of 100" in said


@pytest.mark.slow
def test_a_red_disc_stays_red(model):
    """The class is its colour: it survives mirrors and crops, and no change of the hue."""
    colours = discs(place=((0.3, 0.7), (0.3, 0.7)), channel=(0, 2))
    asked = Augmentation(crop="pad_crop", pad=3, colour_jitter=(0.0, 0.0, 0.0, 0.5))
    survival = surviving(model, colours, asked)
    assert survival.augmentation == replace(asked, colour_jitter=(0.0, 0.0, 0.0, 0.0))
    assert [trial.survives for trial in survival.trials] == [True, True, False]
    assert "mirrored images and shifts stay: on 100 images they cost no answers" in about_survival(
        survival
    )


@pytest.mark.slow
def test_labels_that_chance_has_drawn_switch_nothing_off(model):
    """The error of the test: nothing can be lost where nothing is known."""
    pictures = discs(place=((0.3, 0.7), (0.3, 0.7)), channel=(0, 0), count=40)
    survival = surviving(model, pictures, Augmentation())
    assert survival.augmentation == Augmentation()
    assert surviving(model, pictures, Augmentation()) == survival  # always


# From scratch, where no model sees the images


PIXELS = Preprocessing((SIDE, SIDE))
SHIFTS = Augmentation(crop="pad_crop", pad=4)


def test_pixels_tell_that_a_mirrored_disc_is_another_one():
    sides = discs(place=((0.2, 0.45), (0.55, 0.8)), channel=(0, 0))
    survival = surviving_in_pixels(PIXELS, sides, Augmentation())
    assert not survival.augmentation.flip and survival.augmentation.crop != "inception"
    assert surviving_in_pixels(PIXELS, sides, SHIFTS).augmentation == replace(SHIFTS, flip=False)


def arrows(count=100):
    """Arrows anywhere, that point to the left or to the right by the class."""
    random = np.random.default_rng(0)
    pictures = []
    for i in range(count):
        picture = random.integers(60, 90, (SIDE, SIDE, 3), dtype=np.uint8)
        top, left = random.integers(2, 14, 2)
        for row in range(13):
            reach = 13 - 2 * abs(row - 6)
            picture[top + row, left : left + reach] = 230
        if i % 2:
            picture = picture[:, ::-1]
        pictures.append((np.ascontiguousarray(picture), i % 2))
    return from_dataset(pictures, labels=("right", "left"))


def test_pixels_tell_which_way_an_arrow_points():
    survival = surviving_in_pixels(PIXELS, arrows(), SHIFTS)
    assert survival.augmentation == replace(SHIFTS, flip=False)


@pytest.mark.parametrize("asked", [Augmentation(), replace(SHIFTS, rand_augment=(2, 9))])
def test_pixels_leave_on_what_costs_nothing(asked):
    colours = discs(place=((0.3, 0.7), (0.3, 0.7)), channel=(0, 2))
    assert surviving_in_pixels(PIXELS, colours, asked).augmentation.flip
    chance = discs(place=((0.3, 0.7), (0.3, 0.7)), channel=(0, 0), count=40)
    assert surviving_in_pixels(PIXELS, chance, asked).augmentation == asked
