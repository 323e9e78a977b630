"""Metrics of masks, compared with slow and independent computations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pictures import encoded, photograph
from scipy.ndimage import binary_erosion

import vitkit
from vitkit.data import IGNORED, Preprocessing, splits_with_masks
from vitkit.evaluation import SegmentationScores, count_pixels
from vitkit.evaluation.metrics.segmentation import boundary, boundary_width
from vitkit.models import create, vit
from vitkit.system.errors import BadData
from vitkit.weights import Classifier, dense

K = 4


@pytest.fixture
def pairs():
    """Masks of three sizes with ignored pixels, and predictions that agree in part."""
    random = np.random.default_rng(0)
    made = []
    for height, width in ((40, 60), (33, 21), (64, 64)):
        coarse = random.integers(0, K - 1, (height // 8 + 1, width // 8 + 1), dtype=np.uint8)
        truth = coarse.repeat(8, 0).repeat(8, 1)[:height, :width]
        predicted = np.roll(truth, 2, axis=1)
        noise = random.random(truth.shape) < 0.1
        predicted = np.where(noise, random.integers(0, K, truth.shape), predicted).astype(np.uint8)
        truth = np.where(random.random(truth.shape) < 0.05, IGNORED, truth).astype(np.uint8)
        made.append((truth, predicted))
    return made


def scores_of(pairs, groups=None):
    counts = [count_pixels(truth, predicted, K) for truth, predicted in pairs]
    return SegmentationScores.of(tuple("abcd"), counts, groups)


def metrics_of(pairs):
    return {metric.name: metric for metric in scores_of(pairs).metrics()}


def test_iou_dice_and_accuracy_are_those_of_a_confusion_matrix(pairs):
    confusion = np.zeros((K, K))
    for truth, predicted in pairs:
        for t, p in zip(truth.reshape(-1).tolist(), predicted.reshape(-1).tolist(), strict=True):
            if t != IGNORED:
                confusion[t, p] += 1
    right = np.diag(confusion)
    either = confusion.sum(0) + confusion.sum(1) - right
    found = metrics_of(pairs)
    assert found["miou"].value == pytest.approx((right / either).mean(), abs=1e-12)
    assert found["dice"].value == pytest.approx((2 * right / (either + right)).mean(), abs=1e-12)
    assert found["pixel_accuracy"].value == pytest.approx(right.sum() / confusion.sum(), abs=1e-12)
    for name, value in zip("abcd", right / either, strict=True):
        assert found[f"iou/{name}"].value == pytest.approx(value, abs=1e-12)


@pytest.mark.slow
def test_metrics_are_those_of_torchmetrics(pairs):
    torchmetrics = pytest.importorskip("torchmetrics", reason="needs torchmetrics to compare with")
    truth = torch.cat([torch.from_numpy(t.astype(np.int64)).reshape(-1) for t, _ in pairs])
    predicted = torch.cat([torch.from_numpy(p.astype(np.int64)).reshape(-1) for _, p in pairs])
    kinds = {
        "miou": ("multiclass_jaccard_index", "macro"),
        "dice": ("multiclass_f1_score", "macro"),
        "pixel_accuracy": ("multiclass_accuracy", "micro"),
    }
    found = metrics_of(pairs)
    for name, (function, average) in kinds.items():
        compute = getattr(torchmetrics.functional.classification, function)
        theirs = compute(predicted, truth, K, average=average, ignore_index=IGNORED)
        assert found[name].value == pytest.approx(float(theirs), abs=1e-6)


def test_boundary_iou_is_that_of_its_paper(pairs):
    inside = np.zeros((2, K))
    for truth, predicted in pairs:
        width = max(1, round(0.02 * np.hypot(*truth.shape)))
        assert boundary_width(truth.shape) == width
        predicted = np.where(truth == IGNORED, IGNORED, predicted)
        for k in range(K):
            own, other = (
                (region == k) & ~binary_erosion(region == k, np.ones((3, 3)), width)
                for region in (truth, predicted)
            )
            inside[:, k] += (own & other).sum(), (own | other).sum()
    known = inside[1] > 0
    found = metrics_of(pairs)["boundary_iou"].value
    assert found == pytest.approx((inside[0][known] / inside[1][known]).mean(), abs=1e-12)


def test_a_region_at_the_border_of_the_image_ends_there():
    region = np.ones((9, 9), bool)
    assert boundary(region, 2).sum() == 81 - 25
    assert not boundary(np.zeros((9, 9), bool), 2).any()


def test_what_is_ignored_counts_nowhere(pairs):
    truth, predicted = pairs[0]
    other = predicted.copy()
    other[truth == IGNORED] = (other[truth == IGNORED] + 1) % K
    assert (other != predicted).any()
    for name, own in vars(count_pixels(truth, predicted, K)).items():
        assert np.array_equal(own, getattr(count_pixels(truth, other, K), name)), name


def test_a_class_that_is_nowhere_has_no_iou(pairs):
    truth, predicted = pairs[0]
    predicted = np.where(predicted == 3, 0, predicted).astype(np.uint8)
    scores = scores_of([(truth, predicted)])
    names = [metric.name for metric in scores.metrics()]
    assert np.isnan(scores.iou()[3]) and "iou/d" not in names and "iou/c" in names
    value = next(scores.metrics()).value
    assert value == pytest.approx(np.nanmean(scores.iou()[:3]))


def test_intervals_resample_images_and_groups_together(pairs):
    few = next(scores_of(pairs * 4).metrics())
    many = next(scores_of(pairs * 40).metrics())
    grouped = next(scores_of(pairs * 40, np.arange(120) % 3).metrics())
    width = [each.interval[1] - each.interval[0] for each in (few, many, grouped)]
    assert few.value == many.value == grouped.value
    assert width[1] < width[0] and width[1] < width[2]
    assert few.interval[0] < few.value < few.interval[1]


def test_an_interval_is_of_the_classes_of_the_estimate():
    """A class of one image, badly predicted, is missing from a third of the draws."""
    truth = np.zeros((20, 20), np.uint8)
    truth[:, 10:] = 1
    noisy = np.where(np.random.default_rng(0).random((9, 20, 20)) < 0.05, 1 - truth, truth)
    rare = truth.copy()
    rare[:4, :4] = 2
    pairs = [(truth, each.astype(np.uint8)) for each in noisy] + [(rare, truth)]
    scores = SegmentationScores.of(("a", "b", "c"), [count_pixels(*pair, 3) for pair in pairs])
    found = {metric.name: metric for metric in scores.metrics()}
    for name in ("miou", "dice", "boundary_iou"):
        low, high = found[name].interval
        assert low < found[name].value < high and high - low < 0.1, name
    assert found["iou/c"].value == 0


def test_the_worst_tenth_of_few_images_has_no_interval():
    random = np.random.default_rng(0)
    made = list(random.integers(0, 2, (60, 2, 16, 16), dtype=np.uint8))
    for count, known in ((12, False), (60, True)):
        found = metrics_of(made[:count])
        assert (found["image_miou_worst_tenth"].interval is not None) == known


def test_the_worst_images_come_first(pairs):
    truth = pairs[0][0]
    perfect = np.where(truth == IGNORED, 0, truth).astype(np.uint8)
    scores = scores_of([(truth, perfect), *pairs])
    assert scores.image_iou()[0] == 1 and scores.worst(10)[-1] == 0
    assert scores.worst(2).tolist() == np.argsort(scores.image_iou())[:2].tolist()
    everything = np.full_like(truth, IGNORED)
    assert len(scores_of([(everything, perfect), *pairs]).worst(10)) == 3


def test_nothing_to_evaluate_is_refused():
    with pytest.raises(BadData, match="no image"):
        SegmentationScores.of(("a", "b"), [])
    nothing = count_pixels(np.full((4, 4), IGNORED, np.uint8), np.zeros((4, 4), np.uint8), 2)
    with pytest.raises(BadData, match="ignore every pixel"):
        SegmentationScores.of(("a", "b"), [nothing])


# Images with masks


@pytest.fixture(scope="module")
def model():
    """A small model with random weights that tells objects from the background."""
    config = vit("mu/16", image=(16, 16), patch=4, depth=1, classes=0)
    plain = Classifier(create(config, seed=0), Preprocessing(size=(16, 16)), ())
    return dense(plain, ("background", "object"), blocks=1, tokens=16)


@pytest.fixture
def measured(model, tmp_path):
    """A function that measures the model on masks of these values."""
    (tmp_path / "legend.txt").write_text("background\nobject\n")

    def measure(*values, **settings):
        for kind, content in (("photos", photograph(16, 16)), ("masks", None)):
            (tmp_path / kind).mkdir(exist_ok=True)
            for number, value in enumerate(values):
                mask = np.zeros((16, 16), np.uint8)
                mask[4:9, 3:12] = value
                file = tmp_path / kind / f"{number}.png"
                file.write_bytes(encoded(mask if content is None else content, "PNG"))
        given = {"masks": tmp_path / "masks", "legend": tmp_path / "legend.txt", "device": "cpu"}
        return vitkit.evaluate(model, tmp_path / "photos", **(given | settings))

    return measure


def test_an_object_of_255_is_not_ignored_unasked(measured):
    with pytest.raises(BadData, match="'background' and pixels of 255, which are ignored"):
        measured(255, 255)
    assert measured(255, 255, ignore=255)["pixel_accuracy"] >= 0
    assert measured(255, 255, legend=None)["iou/object"] >= 0  # 255 is the object
    assert measured(255, 1)["iou/object"] >= 0  # as Pascal VOC has it


def test_classes_that_no_mask_has_are_named(measured, capsys):
    measured(0, 0)
    assert "no mask has object" in capsys.readouterr().err
    measured(1, 0)
    assert "no mask has" not in capsys.readouterr().err


@pytest.mark.parametrize("groups", ("none", "auto", "scene"))
def test_a_model_is_measured_on_the_part_that_its_training_held_out(model, tmp_path, groups):
    """Whatever the training kept together; and if there are other images now, that is said."""
    (tmp_path / "legend.txt").write_text("background\nobject\n")
    random = np.random.default_rng(0)
    lines = ["image,mask,scene"]
    for number in range(20):
        mask = np.zeros((16, 16), np.uint8)
        mask[4:9, 3 : 5 + number % 9] = 1
        pixels = random.integers(0, 255, (16, 16, 3)).astype(np.uint8)
        for kind, content in (("photo", pixels), ("mask", mask)):
            (tmp_path / f"{kind}{number}.png").write_bytes(encoded(content, "PNG"))
        lines.append(f"photo{number}.png,mask{number}.png,{number // 4}")
    data = tmp_path / "data.csv"
    data.write_text("\n".join(lines))
    splits = splits_with_masks(str(data), "mask", None, 3, groups)
    origin = {"data": str(data), "held_out": splits.made_fingerprint, "split_seed": 3}
    origin["groups"] = groups
    given = {"masks": "mask", "legend": tmp_path / "legend.txt", "device": "cpu"}
    trained = replace(model, origin=origin)
    found = vitkit.evaluate(trained, data, **given)
    assert len(splits.test) < 8 and f"on {len(splits.test)} images" in str(found)
    assert "the test part that was held out when the model was trained" in found.images
    train = vitkit.evaluate(trained, data, split="train", **given)
    assert "images that the model learned from" in train.images

    data.write_text("\n".join(lines[:10]))
    found = vitkit.evaluate(trained, data, **given)
    assert "has changed since, so it may know some of them" in found.images
