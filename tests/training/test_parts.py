"""Which images train and which measure, when settings are chosen and in the run after that."""

from dataclasses import replace

import numpy as np
import pytest

from vitkit.data import Splits, open_splits, subset
from vitkit.training import Data
from vitkit.training.data import divide


@pytest.fixture
def digits():
    """The digits as train, val and test."""
    splits = open_splits("digits")
    count = len(splits.train)
    val = subset(splits.train, range(count // 3))
    train = subset(splits.train, range(count // 3, count))
    return Splits(train, val, splits.test, splits.labels, (), None)


def rows(part) -> list[int]:
    return sorted(part.rows.tolist())


def test_as_given(digits):
    parts = divide(digits, Data())
    assert list(parts) == ["train", "val", "test"] and parts["train"] is digits.train


def test_choosing_does_not_see_the_test_part(digits):
    parts = divide(digits, Data(parts="select"))
    assert list(parts) == ["train", "val"] and parts["val"] is digits.val


def test_the_final_run_trains_on_all_but_the_test_part(digits):
    parts = divide(digits, Data(parts="final"))
    assert list(parts) == ["train", "test"] and parts["test"] is digits.test
    assert rows(parts["train"]) == sorted(rows(digits.train) + rows(digits.val))
    targets = np.r_[digits.train.targets, digits.val.targets]
    assert np.array_equal(np.bincount(parts["train"].targets), np.bincount(targets))


@pytest.mark.parametrize("last", ["val", "test"])
def test_without_a_third_part_some_training_images_are_held_out(digits, last):
    """ImageNet has a validation part and no test part: the final run is measured on the validation
    part."""
    two = replace(digits, **{"val": None, "test": None, last: digits.test})
    parts = divide(two, Data(parts="select", hold_out=0.25))
    assert list(parts) == ["train", "val"]
    assert rows(parts["train"]) + rows(parts["val"]) != rows(two.train)
    assert sorted(rows(parts["train"]) + rows(parts["val"])) == rows(two.train)
    assert len(parts["val"]) == pytest.approx(0.25 * len(two.train), abs=10)
    assert not set(rows(parts["val"])) & set(rows(digits.test))
    final = divide(two, Data(parts="final"))
    assert list(final) == ["train", last] and final["train"] is two.train
    other = divide(two, Data(parts="select", hold_out=0.25, split_seed=1))
    assert rows(other["val"]) != rows(parts["val"])
