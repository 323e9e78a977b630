"""Which images train and which measure, when settings are chosen and in the run after that."""

from dataclasses import replace

import numpy as np
import pytest

from vitkit.data import Splits, open_splits, subset
from vitkit.training import Data
from vitkit.training.data import about_classes, about_subset, divide, refuse_one_class


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
def test_three_parts_choose_the_weights_without_the_test_part(digits, last):
    given = divide(digits, Data(parts="three"))
    assert given == divide(digits, Data())
    two = replace(digits, **{"val": None, "test": None, last: digits.test})
    parts = divide(two, Data(parts="three"))
    chosen = divide(two, Data(parts="select"))
    assert list(parts) == ["train", "val", "test"] and parts["test"] is digits.test
    assert rows(parts["train"]) == rows(chosen["train"])
    assert rows(parts["val"]) == rows(chosen["val"])


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


def test_a_subset_lies_within_every_larger_one(digits):
    """Figure 4: 9M, 30M and 90M of 303M images. What measures stays whole."""
    whole = set(rows(digits.train))
    larger = whole
    for share in (0.5, 0.3, 100, 0.03):
        parts = divide(digits, Data(subset=share))
        assert parts["test"] is digits.test and parts["val"] is digits.val
        smaller = set(rows(parts["train"]))
        assert smaller < larger
        larger = smaller
    assert len(rows(divide(digits, Data(subset=100))["train"])) == 100
    assert divide(digits, Data(subset=1))["train"] is digits.train
    other = divide(digits, Data(subset=0.5, subset_seed=1))["train"]
    assert set(rows(other)) != set(rows(divide(digits, Data(subset=0.5))["train"]))


def test_a_subset_by_class_has_each_classs_share(digits):
    counts = np.bincount(digits.train.targets)
    order = np.argsort(digits.train.targets, kind="stable")
    uneven = subset(digits.train, order[: counts[:3].sum() + 7])  # 7 of the fourth class
    uneven = replace(uneven, labels=uneven.labels[:4])
    splits = replace(digits, train=uneven, labels=uneven.labels)
    before = set()
    for number in (4, 5, 40, 100, len(uneven)):
        train = divide(splits, Data(subset=number, subset_by_class=True))["train"]
        assert len(train) == number
        shares = np.bincount(train.targets, minlength=4) - number * np.bincount(
            uneven.targets
        ) / len(uneven)
        assert np.abs(shares).max() < 1
        assert (np.bincount(train.targets, minlength=4) > 0).all()
        assert before <= set(rows(train))
        before = set(rows(train))


def test_subsets_that_cannot_be(digits):
    for share in (0, -1, 5000, float("nan")):
        with pytest.raises(ValueError, match=r"subset is .*; it is a share of the \d+ training"):
            divide(digits, Data(subset=share))
    numbers = replace(digits.train, target_kind="number")
    with pytest.raises(ValueError, match="needs images of one class each; the targets of 'x'"):
        divide(replace(digits, train=numbers), Data("x", subset=0.5, subset_by_class=True))


def test_classes_without_an_image_in_a_subset_are_said(digits):
    data = Data(subset=3)
    said = " ".join(about_subset(divide(digits, data)["train"], data))
    assert "a subset of 3 images (seed 0)" in said
    assert "of 10 classes have no image in it" in said
    assert about_subset(digits.train, Data()) == []


def test_one_class_and_unequal_ones(digits):
    order = np.argsort(digits.train.targets, kind="stable")
    zeros = subset(digits.train, order[:20])
    with pytest.raises(ValueError, match=r"images of 'x' that train \(20\) are of one class, '0'"):
        refuse_one_class(zeros, Data("x"))
    refuse_one_class(digits.train, Data("x"))
    uneven = subset(digits.train, np.r_[order[:60], order[-5:]])
    (said,) = about_classes(uneven, "equal")
    assert said.startswith("unbalanced: 0 has 12 times the images of 9.")
    assert about_classes(uneven, "balanced") == about_classes(digits.train, "equal") == []
