"""What so many images can tell about an exported file: a loss is refused where it shows, and that there
is none is said only where that shows."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from vitkit.data import Preprocessing
from vitkit.exporting import Agreement, exporting, sample_trial
from vitkit.exporting.agreement import agree, compared
from vitkit.exporting.bounds import conclusion, images_needed, keeps_accuracy, wrong
from vitkit.models import create, vit
from vitkit.runtimes import Export, eager
from vitkit.weights import Classifier


def agreement(images, lost=0, won=0, labelled=True):
    """A file that loses and wins so many images of which the model is right on 70 %."""
    same = 1 - (lost + won) / images
    given = Agreement("photographs", images, images, same, 0.0, 0.0, 1.0)
    if not labelled:
        return given
    accuracy = 0.7 - (lost - won) / images
    return replace(
        given, accuracy=accuracy, models_accuracy=0.7, labelled=images, lost=lost, won=won
    )


def refused(given):
    return wrong(given, "int8", "softmax", 0.9) != ""


def test_a_file_with_the_same_answers_is_written_and_praised_for_enough_images_alone():
    assert not any(refused(agreement(images)) for images in (1, 50, 500))
    assert [keeps_accuracy(agreement(images)) for images in (50, 380, 381, 500)] == [
        False, False, True, True,
    ]  # fmt: skip
    assert conclusion(agreement(500)) == (
        "it loses less than 1 point of accuracy, at 95 % confidence: 500 images"
    )
    assert conclusion(agreement(50)) == (
        "that it loses less than 1 point of accuracy is not shown by 50 images; about 390 could (`data`, "
        "`limit`)"
    )
    assert keeps_accuracy(agreement(500, labelled=False))  # no answer differs, so none is lost


@pytest.mark.parametrize("images", [50, 100, 500, 2000])
def test_a_file_that_loses_three_points_is_never_said_to_keep_its_accuracy(images):
    """One that loses 3.5 % of the images and wins 0.5 %; and from 500 on it is mostly refused."""
    counts = np.random.default_rng(0).multinomial(images, (0.035, 0.005, 0.96), size=200)
    files = [agreement(images, lost, won) for lost, won, _ in counts.tolist()]
    assert sum(map(keeps_accuracy, files)) <= 1
    share = np.mean([refused(file) for file in files])
    if images >= 500:
        assert share > 0.75
    else:
        assert share < 0.25


@pytest.mark.parametrize("images", [50, 100, 500, 2000])
def test_a_file_of_equal_accuracy_is_hardly_ever_refused(images):
    counts = np.random.default_rng(1).multinomial(images, (0.02, 0.02, 0.96), size=200)
    files = [agreement(images, lost, won) for lost, won, _ in counts.tolist()]
    assert np.mean([refused(file) for file in files]) <= 0.03


def test_how_many_images_it_takes():
    for lost, won in ((0, 0), (4, 4), (5, 2)):
        needed = images_needed(agreement(500, lost, won))
        for images, enough in ((0.85 * needed, False), (1.02 * needed, True)):
            images = int(images)
            scaled = agreement(images)
            scaled = replace(scaled, lost=lost * images / 500, won=won * images / 500)
            assert keeps_accuracy(scaled) == enough
    assert images_needed(agreement(500, 15, 5)) is None
    assert "more images could show whether it does" in conclusion(agreement(500, 15, 5))
    assert "more images would not show it either, because it loses more" in conclusion(
        agreement(500, 40, 5)
    )
    assert conclusion(agreement(500, 10, 10, labelled=False)).endswith("with their right answers")


def test_parts_of_two_photographs_are_no_evidence():
    trial = sample_trial()
    assert trial.photographs == 2
    given = replace(agreement(64, labelled=False), photographs=2)
    assert conclusion(given) == (
        "no evidence of its accuracy: 64 images (of 2 photographs); `data=DATA` measures on your own"
    )
    assert not keeps_accuracy(replace(agreement(2000), photographs=2))


def test_copies_count_once():
    """The interval of 1,000 images of 100 photographs is that of 100."""
    copies = replace(agreement(1000, 10, 20), photographs=100)
    few = agreement(100, 1, 2)
    assert copies.interval_of_same == pytest.approx(few.interval_of_same)
    assert copies.interval_of_loss == pytest.approx(few.interval_of_loss)
    assert "is not shown by 1,000 images (of 100 photographs); about " in conclusion(copies)
    assert "of 1,000 images (of 100 photographs) have" in str(copies)


def test_who_is_right_where_they_differ():
    expected = np.eye(3)[[0, 1, 2, 0, 1]]
    given = np.eye(3)[[0, 2, 2, 1, 0]]
    truths = ["a", "b", "c", "b", "x"]  # the last is no class of the model
    found = compared(expected, given, truths, ("a", "b", "c"), "data")
    assert (found.labelled, found.lost, found.won) == (4, 1, 1)
    assert found.accuracy == found.models_accuracy == 0.75


def test_numbers_are_compared_as_numbers():
    """No class of a regression could be the same, and `agreement=0` accepts anything here too."""
    expected = np.array([[10.0], [30.0]])
    found = compared(expected, np.array([[10.5], [27.5]]), [None] * 2, ("age",), "people")
    found = replace(found, of_numbers=True)
    assert str(found).startswith("outputs for 2 images differ by 2.5 at most, 1.5 in the mean")
    assert "vary by 10 (standard deviation)" in str(found) and "class" not in str(found)
    assert wrong(found, "int8", "none", 0.9) == ""
    assert "differ by 2.5, and 0.03 is accepted" in wrong(found, "float32", "none", 0.99)
    assert wrong(found, "float32", "none", 0) == ""
    assert wrong(replace(found, largest=np.nan), "int8", "none", 0.9) != ""


def test_a_regressions_answers_are_numbers():
    model = create(vit("mu/8", image=(16, 16), classes=1), seed=0)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    classifier = Classifier(model, Preprocessing(size=(16, 16)), ("age",), activation="none")
    found = agree(eager(classifier, "cpu"), eager(classifier, "cpu"), sample_trial())
    assert found.of_numbers and found.largest == 0 < found.spread


@pytest.mark.parametrize(
    ("to", "precision", "calibrated", "packages", "images"),
    [
        ("onnx", "float32", False, ["onnx", "onnxscript", "onnxruntime"], False),
        ("onnx", "int8", False, ["onnx", "onnxscript", "onnxruntime"], True),
        ("page", "int8", False, ["onnx", "onnxscript", "onnxruntime"], True),
        ("openvino", "float16", False, ["openvino"], False),
        ("openvino", "int8", False, ["openvino", "nncf"], False),
        ("openvino", "int8", True, ["openvino", "nncf"], True),
        ("torch", "float32", False, [], False),
    ],
)
def test_a_file_needs_packages_and_images_of_its_kind(to, precision, calibrated, packages, images):
    wanted = Export(to, precision, calibrated=calibrated)
    assert exporting.needed(wanted) == packages
    assert exporting.needs_calibration(wanted) == images
