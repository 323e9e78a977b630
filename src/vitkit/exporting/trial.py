"""Images that an exported file is tried on, and calibrated with."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from vitkit.data import BadImage, open_image, open_parts, open_source
from vitkit.prediction import Examples, Item, words_of_model

CROPS = 64  # of scikit-learn's two photographs
TRIED = 500  # images to try a file on, at most
CALIBRATED = 300  # images to calibrate with, at most


class Trial(NamedTuple):
    """Images to try an exported file on."""

    name: str
    """Where they are from, for people."""
    items: Sequence[Item]
    """With the names of their classes, as the model has them, if they are known."""
    for_calibration: Sequence[Item]
    """Others, to calibrate with."""


def trial_on(
    data: str, labels: Sequence[str], tried: int = TRIED, calibrate: str | None = ""
) -> Trial:
    """The test part of a data set to try a file on, and images to calibrate with.

    calibrate: another data set, whose training part, or all of which, is for that; None is nothing.
    By default it is the training part of `data`, and every second image if `data` has but one part:
    then it is tried on the others.
    """
    source = open_source(data)
    items = _items(source, labels)
    if calibrate is None:
        return Trial(data, _spread(items, tried), ())
    if calibrate:
        return Trial(data, _spread(items, tried), to_calibrate(calibrate))
    train = open_parts(data).sources.get("train")
    if train is None or np.isin(train.rows, source.rows).any():
        return Trial(data, _spread(items[1::2], tried), _spread(items[::2], CALIBRATED))
    return Trial(data, _spread(items, tried), _spread(_items(train, labels), CALIBRATED))


def to_calibrate(data: str) -> list[Item]:
    """Images of a data set to calibrate with, or to fit on: of its training part, or of all."""
    source = open_parts(data).sources.get("train") or open_source(data)
    return _spread(_items(source, ()), CALIBRATED)


def _items(source, labels: Sequence[str]) -> list[Item]:
    """All items of a data set."""
    examples = Examples(source, words_of_model(source.labels, labels))
    return [examples.item(i) for i in range(len(examples))]


def _spread(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many of the items, evenly from all."""
    count = min(len(items), most)
    return [items[i * len(items) // count] for i in range(count)]


def sample_trial() -> Trial:
    """Parts of two photographs that come with scikit-learn: a temple and a flower."""
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    generator = np.random.default_rng(0)
    items = []
    for i in range(2 * CROPS):
        photograph = photographs[i % 2]
        height, width = photograph.shape[:2]
        side = int(generator.integers(height // 3, height))
        top = int(generator.integers(0, height - side + 1))
        left = int(generator.integers(0, width - side + 1))
        part = np.ascontiguousarray(photograph[top : top + side, left : left + side])
        items.append(Item(f"part {i}", partial(_same, part)))
    name = f"{CROPS} parts of scikit-learn's two photographs"
    return Trial(name, items[:CROPS], items[CROPS:])


def _same(array: np.ndarray) -> np.ndarray:
    return array


def pixels_of(item: Item) -> np.ndarray | None:
    """The picture, upright, uint8 (height, width, 3); None for one that cannot be read."""
    try:
        return np.ascontiguousarray(open_image(item.read(), item.name).pixels())
    except (BadImage, OSError):
        return None
