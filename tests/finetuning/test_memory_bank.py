"""A memory bank of good images, and the promise of its threshold."""

import time

import numpy as np
import pytest
import torch
from margins import at_least, at_most

from vitkit.finetuning.memory_bank import (
    anomaly_score,
    covering,
    fit_threshold,
    left_out_scores,
    memory_bank,
    with_copies,
)
from vitkit.models.head import distances_to


def directions(*shape, seed=0):
    draws = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=draws), dim=-1)


def test_a_good_image_is_left_out_with_its_group():
    patches = directions(6, 9, 8)
    patches[3] = patches[2]  # the same photograph twice, in one group
    groups = np.array([0, 1, 2, 2, 3, 4])
    scores = left_out_scores(patches, groups, memory_bank(patches))
    for i, group in enumerate(groups.tolist()):
        others = patches[torch.from_numpy(groups != group)].flatten(0, 1)
        assert scores[i] == pytest.approx(anomaly_score(patches[i], others), abs=1e-6)
    at_least(scores[3], 0.05)  # not 0, though its copy is in memory


def test_left_out_scores_are_those_of_all_distances():
    """Though most patches are compared with a few rows of the memory only."""
    patches = directions(12, 300, 6)  # more patches than are compared together; two make the score
    patches[:, :100] = directions(1, 100, 6, seed=1)  # that all images share
    groups = np.array([0, 0, *range(1, 11)])
    bank = memory_bank(patches, most=1200)
    scores = left_out_scores(patches, groups, bank)
    for i in (0, 1, 7):
        others = bank.patches[torch.from_numpy(groups[bank.images] != groups[i])]
        assert scores[i] == pytest.approx(anomaly_score(patches[i], others), abs=1e-6)


def test_copies_belong_to_the_groups_of_each_other():
    patches = directions(6, 9, 8)
    groups = np.array([0, 1, 2, 3, 3, 4])
    assert with_copies(patches, groups)[1] == 0
    patches[2] = patches[0] + 1e-6  # a copy of image 0, and another of 4, whose group has 3 in it
    patches[5] = patches[4]
    found, copies = with_copies(patches, groups)
    assert copies == 2 and len(np.unique(found)) == 3
    assert found[0] == found[2] and found[3] == found[4] == found[5]
    patches[1, :-1] = patches[0, :-1]  # but for one patch
    assert with_copies(patches, groups)[1] == 2


def test_of_many_patches_each_image_keeps_some_whatever_the_others_are():
    patches = directions(20, 9, 4)
    bank = memory_bank(patches, most=60)
    assert bank.patches.shape == (60, 4)
    assert bank.images.tolist() == np.repeat(np.arange(20), 3).tolist()
    for patch, image in zip(bank.patches, bank.images.tolist(), strict=True):
        assert (patches[image] == patch).all(1).any()
    fewer = memory_bank(patches[5:], most=45)
    assert torch.equal(fewer.patches, bank.patches[15:])
    whole = left_out_scores(patches, np.arange(20), memory_bank(patches))
    drawn = left_out_scores(patches, np.arange(20), bank)
    assert (drawn >= whole - 1e-6).all()  # with less in memory, nothing is nearer


def test_what_is_kept_covers_the_rest():
    draws = torch.Generator().manual_seed(2)
    noise = 0.01 * torch.randn(200, 16, generator=draws)
    rows = directions(5, 16, seed=1).repeat_interleave(40, 0) + noise
    rows = torch.nn.functional.normalize(rows, dim=-1)
    chosen = covering(rows, 5)
    assert sorted((chosen // 40).tolist()) == [0, 1, 2, 3, 4]  # one of each cluster
    at_most(distances_to(rows[None], rows[chosen]).max().item(), 0.02)


@pytest.mark.parametrize(
    ("count", "rejected"), [(2, 1 / 3), (10, 1 / 11), (18, 1 / 19), (19, 0.05), (100, 5 / 101)]
)
def test_the_threshold_promises_what_the_images_allow(count, rejected):
    scores = np.arange(count) / count
    threshold = fit_threshold(scores)
    assert threshold.rejected == pytest.approx(rejected)
    above = (scores > threshold.value).sum()
    assert (above + 1) / (count + 1) == pytest.approx(rejected)
    low, high = threshold.interval
    assert low < rejected < high


@pytest.mark.slow
def test_the_promise_and_its_interval_hold():
    draws = np.random.default_rng(0)
    rates = []
    inside = 0
    for _ in range(400):
        threshold = fit_threshold(draws.lognormal(size=60))
        rate = (draws.lognormal(size=4000) > threshold.value).mean()
        rates.append(rate)
        low, high = threshold.interval
        inside += low <= rate <= high
    at_most(abs(np.mean(rates) - 0.05), 0.006)
    at_least(inside / 400, 0.92)


@pytest.mark.parametrize(("of_group", "low"), [(0.0, 0.99), (1.0, 0.97), (30.0, 0.90)])
@pytest.mark.slow
def test_the_promise_is_about_images_of_other_groups(of_group, low):
    """Whether images of one group are as different as others, or all alike."""
    draws = np.random.default_rng(1)
    groups = np.repeat(np.arange(40), 25)
    rates = []
    promised = []
    inside = 0
    for _ in range(300):
        own = draws.normal(0, of_group, 40)[groups] + draws.normal(size=len(groups))
        threshold = fit_threshold(own, groups)
        others = draws.normal(0, of_group, 4000) + draws.normal(size=4000)
        rate = (others > threshold.value).mean()
        rates.append(rate)
        promised.append(threshold.rejected)
        inside += threshold.interval[0] <= rate <= threshold.interval[1]
    at_most(abs(np.mean(rates) - 0.05), 0.027)  # of 41 places for the next group
    at_most(np.mean(rates), np.mean(promised) + 0.004)
    at_least(np.mean(rates), 0.02)
    at_least(inside / 300, low)


def test_images_in_groups_of_one_are_images_without_groups():
    scores = np.random.default_rng(2).normal(size=57)
    assert fit_threshold(scores, np.arange(57)) == fit_threshold(scores)
    twice = fit_threshold(np.tile(scores, 2), np.tile(np.arange(57), 2))
    assert twice.value == fit_threshold(scores).value and twice.images == 57


def test_hundreds_of_images_that_are_nearly_copies_are_compared_quickly():
    """A hundred thousand pairs."""
    patches = directions(1, 64, 32).repeat(500, 1, 1)
    patches[:250, 33] = directions(250, 32, seed=1)  # one patch is another
    start = time.perf_counter()
    found, copies = with_copies(patches.half(), np.arange(500))
    at_most(time.perf_counter() - start, 5.0)
    assert copies == 249 and len(np.unique(found)) == 251


def test_shots_of_a_burst_count_once():
    scores = np.array([0.1, 0.2, 0.3, 0.9, 0.8])
    assert fit_threshold(scores, np.array([0, 0, 1, 2, 2])).images == 3
