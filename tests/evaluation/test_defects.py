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


def test_aupro_is_what_its_definition_says():
    draws = np.random.default_rng(1)
    maps = []
    masks = []
    for number in range(6):
        mask = np.zeros((20, 24), bool)
        if number:
            mask[3:8, 4 : 6 + number] = True
            mask[14:17, 10:13] = True
        maps.append(draws.random((20, 24)) + 0.4 * mask)
        masks.append(mask)
    regions = []
    for mask in masks:
        numbered, count = label(mask)
        regions.append([numbered == k for k in range(1, count + 1)])
    assert per_region_overlap(maps, regions) == pytest.approx(slow_overlap(maps, regions), abs=2e-3)
    perfect = [mask.astype(float) for mask in masks]
    assert per_region_overlap(perfect, regions) == pytest.approx(1.0)


def slow_overlap(maps, regions, largest=0.3):
    """Every threshold by itself, as Bergmann et al. (2020) define it."""
    points = []
    good = np.concatenate(
        [
            scores[~np.any([np.zeros(scores.shape, bool), *own], axis=0)]
            for scores, own in zip(maps, regions, strict=True)
        ]
    )
    for threshold in np.unique(good):
        found = [
            (scores[region] > threshold).mean()
            for scores, own in zip(maps, regions, strict=True)
            for region in own
        ]
        points.append(((good > threshold).mean(), np.mean(found)))
    shares, overlap = map(np.array, zip(*sorted(points), strict=True))
    at = np.linspace(0, largest, 20_001)
    return np.trapezoid(np.interp(at, shares, overlap), at) / largest
