"""Figures of a model of good images: equal to scikit-learn's, and to a slow definition of AUPRO."""

import numpy as np
import pytest
from scipy.ndimage import label
from sklearn.metrics import roc_auc_score

from vitkit.evaluation.metrics.defects import auroc, detection
from vitkit.evaluation.metrics.overlap import per_region_overlap


def test_auroc_is_scikit_learns_also_with_ties():
    draws = np.random.default_rng(0)
    for levels in (3, 1000):
        scores = draws.integers(0, levels, 200).astype(float)
        is_bad = draws.random(200) < 0.3
        assert auroc(scores, is_bad) == pytest.approx(roc_auc_score(is_bad, scores), abs=1e-12)
    assert np.isnan(auroc(scores, np.zeros(200, bool)))


def test_detection_counts_on_both_sides_of_the_threshold():
    excess = np.array([-1.0, -0.5, 0.0, 0.5, 1.0, -0.1])
    is_bad = np.array([False, False, False, False, True, True])
    found = {metric.name: metric for metric in detection(excess, is_bad)}
    assert found["false_alarms"].value == 0.25 and found["missed"].value == 0.5  # 0 is on it: good
    assert found["auroc"].value == pytest.approx(roc_auc_score(is_bad, excess))
    low, high = found["false_alarms"].interval
    assert low < 0.25 < high
    assert found["good"].value == 4 and found["different"].value == 2


def test_an_area_by_few_bad_images_has_an_interval():
    """Some of the bootstrap's draws have no bad image."""
    draws = np.random.default_rng(0)
    excess = np.concatenate([draws.normal(0, 1, 24), draws.normal(1, 1, 3)])
    first = detection(excess, np.arange(27) >= 24)[0]
    low, high = first.interval
    assert first.name == "auroc" and low < first.value < high


def test_scores_that_are_not_finite_are_no_answers():
    excess = np.array([-1.0, np.nan, np.inf])
    with pytest.raises(ValueError, match="NaN or infinity for 2 images"):
        detection(excess, np.array([False, False, True]))


def test_detection_without_others_has_false_alarms_alone():
    names = [metric.name for metric in detection(np.array([-1.0, 1.0]), np.zeros(2, bool))]
    assert names == ["false_alarms", "good", "different"]


@pytest.mark.parametrize("levels", [None, 4, 40])
def test_aupro_is_what_its_definition_says(levels):
    """Also if many pixels have one score."""
    draws = np.random.default_rng(1)
    maps = []
    masks = []
    for number in range(4):
        mask = np.zeros((20, 24), bool)
        if number:
            mask[3:8, 4 : 6 + number] = True
            mask[14:17, 10:13] = True
        scores = draws.random((20, 24)) + 0.4 * mask
        if levels:
            scores = np.floor(scores * levels)
        maps.append(scores)
        masks.append(mask)
    regions = [separate(mask) for mask in masks]
    for largest in (0.05, 0.3, 1.0):
        expected = slow_overlap(maps, regions, largest)
        assert per_region_overlap(maps, regions, largest) == pytest.approx(expected, abs=1e-9)
    perfect = [mask.astype(float) for mask in masks]
    assert per_region_overlap(perfect, regions) == pytest.approx(1.0)


def test_aupro_of_a_map_without_differences_is_that_of_chance():
    mask = np.zeros((8, 8), bool)
    mask[2:4, 2:4] = True
    assert per_region_overlap([np.ones((8, 8))], [separate(mask)]) == pytest.approx(0.15)


def separate(mask):
    """The regions of a mask, each by the numbers of its pixels."""
    numbered, count = label(mask, np.ones((3, 3)))
    return [np.flatnonzero(numbered == k) for k in range(1, count + 1)]


def slow_overlap(maps, regions, largest=0.3):
    """Every score by itself, and straight lines between: as MVTec's program computes it (Bergmann et al. 2020)."""
    good = []
    for scores, own in zip(maps, regions, strict=True):
        good.append(np.delete(scores.reshape(-1), np.concatenate([[], *own]).astype(int)))
    good = np.concatenate(good)
    shares = [0.0]
    overlap = [0.0]
    for threshold in np.unique(np.concatenate([each.reshape(-1) for each in maps]))[::-1]:
        found = [
            (scores.reshape(-1)[region] >= threshold).mean()
            for scores, own in zip(maps, regions, strict=True)
            for region in own
        ]
        shares.append((good >= threshold).mean())
        overlap.append(np.mean(found))
    area = 0.0
    for i in range(1, len(shares)):
        if shares[i - 1] >= largest or shares[i] == shares[i - 1]:
            continue
        end = min(shares[i], largest)
        part = (end - shares[i - 1]) / (shares[i] - shares[i - 1])
        height = overlap[i - 1] + part * (overlap[i] - overlap[i - 1])
        area += (end - shares[i - 1]) * (overlap[i - 1] + height) / 2
    return area / largest
