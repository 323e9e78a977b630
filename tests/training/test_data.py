"""Which images of a run train and which measure; some are left out, the others kept decoded."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from runs import digits_as_files, read_json, same, weights

from vitkit.data import Pixels, Splits, open_splits, subset
from vitkit.evaluation import Accuracy, Eval
from vitkit.recipes import Data
from vitkit.system.errors import BadImage
from vitkit.system.span import Span
from vitkit.training import divide, run_recipe
from vitkit.training.data import about_classes, about_subset, open_data, refuse_one_class


@pytest.fixture
def photos(tiny, tmp_path):
    """The recipe on 60 digits as files, 10 of them a test part."""
    source = digits_as_files(tmp_path / "photos", 60, lambda i: "train" if i % 6 < 5 else "test")
    data = replace(tiny.data, source=source)
    return replace(
        tiny,
        data=data,
        batch=20,
        length=Span(6),
        evaluate_every=Span(6),
        optim=replace(tiny.optim, warmup=Span(1)),
    )


def is_in_memory(data, run_dir):
    run_data = open_data(data, (), run_dir, lambda _: None)
    return isinstance(run_data.train.store, Pixels)


def test_images_in_memory_change_no_weight_and_a_run_goes_on_without_them(photos, quiet, tmp_path):
    encoded = replace(photos, data=replace(photos.data, keep_decoded=0.0))
    run_recipe(photos, tmp_path / "in-memory", "cpu", quiet)
    run_recipe(encoded, tmp_path / "encoded", "cpu", quiet)
    assert same(weights(tmp_path / "in-memory"), weights(tmp_path / "encoded"))

    # It is not another recipe
    run_recipe(encoded, tmp_path / "in-memory", "cpu", quiet)


def test_images_are_kept_in_memory_if_they_fit_and_are_always_the_same(photos, tmp_path):
    assert is_in_memory(photos.data, tmp_path)
    assert not is_in_memory(replace(photos.data, keep_decoded=0.0), tmp_path)
    augmentation = replace(photos.data.augmentation, reduced_decode=True)
    assert not is_in_memory(replace(photos.data, augmentation=augmentation), tmp_path)


def test_unchecked_a_broken_image_stops_the_run_when_its_turn_comes(photos, quiet, tmp_path):
    first = open_data(photos.data, (), tmp_path / "none", lambda _: None).train.name(0)
    with open(first, "r+b") as file:  # noqa: PTH123
        file.truncate(40)
    data = replace(photos.data, keep_decoded=0.0)
    with pytest.raises(BadImage, match="1 broken image in"):
        open_data(data, (), tmp_path / "none", lambda _: None)
    unchecked = replace(photos, data=replace(data, check=False))
    assert open_data(unchecked.data, (), tmp_path / "none", lambda _: None).record["skipped"] == {}
    with pytest.raises(BadImage, match="00.png is not an image"):
        run_recipe(unchecked, tmp_path / "run", "cpu", quiet)


def test_another_setting_of_the_data_is_not_taken_for_other_images(photos, quiet, tmp_path):
    run_recipe(photos, tmp_path, "cpu", quiet)
    select = replace(photos, data=replace(photos.data, parts="select"))
    with pytest.raises(ValueError, match=r"another recipe \(data.parts: given -> select\)"):
        run_recipe(select, tmp_path, "cpu", quiet)


def test_a_run_that_never_trained_may_have_other_images_and_checks_them(photos, quiet, tmp_path):
    run_dir = tmp_path / "run"
    mistyped = replace(photos, init=str(tmp_path / "none"))
    with pytest.raises((OSError, ValueError), match="none"):
        run_recipe(mistyped, run_dir, "cpu", quiet)

    # Then with images of an evaluator's own, one of them broken
    sketches = tmp_path / "sketches"
    shutil.copytree(tmp_path / "photos" / "test", sketches)
    broken = sorted(sketches.rglob("*.png"))[0]
    broken.write_bytes(b"no image")
    evals = (Eval(Accuracy()), Eval(Accuracy(), data=str(sketches)))
    with pytest.raises(BadImage, match=f"1 broken image in '{sketches}'"):
        run_recipe(replace(photos, evals=evals), run_dir, "cpu", quiet)

    # Then on other parts
    select = replace(photos, length=Span(2), data=replace(photos.data, parts="select"))
    run_recipe(select, run_dir, "cpu", quiet)
    assert read_json(run_dir / "data.json")["counts"].keys() == {"train", "val"}


def test_listed_images_are_left_out_and_a_changed_list_is_another_run(photos, quiet, tmp_path):
    whole = open_data(photos.data, (), tmp_path / "none", lambda _: None).train
    drop = tmp_path / "drop.txt"
    drop.write_text("".join(f"{whole.name(i)}\tlike something\n" for i in (3, 7)), "utf-8")
    sentences = []
    data = replace(photos.data, exclude=str(drop))
    run_data = open_data(data, (), tmp_path / "none", sentences.append)
    names = {whole.name(i) for i in range(50)}
    remaining = {run_data.train.name(i) for i in range(48)}
    assert names - remaining == {whole.name(3), whole.name(7)}
    assert len(run_data.held_out["test"]) == 10
    assert sentences == [f"2 training images that {drop} lists are left out"]
    run_recipe(replace(photos, data=data), tmp_path / "run", "cpu", quiet)
    record = read_json(tmp_path / "run" / "data.json")
    assert record["counts"] == {"train": 48, "test": 10}
    drop.write_text(f"{whole.name(3)}\n", "utf-8")
    with pytest.raises(ValueError, match="has changed since this run began"):
        run_recipe(replace(photos, data=data), tmp_path / "run", "cpu", quiet)


# Parts


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


def test_choosing_does_not_see_the_test_part(digits):
    parts = divide(digits, Data())
    assert list(parts) == ["train", "val", "test"] and parts["train"] is digits.train
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
        with pytest.raises(ValueError, match=r"subset is .* (share of the \d+|finite number)"):
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
