"""How many of the rest a model gets right: intervals hold what they say, in simulated sittings whose truth is
known."""

import numpy as np
import pytest

from vitkit.labelling.estimate import LEAST, WORTH_SAYING, gain, share_right


def sitting(draws, count=1_000, drawn=40, taken=300):
    """A model that is right the more often the surer it is: right on what was drawn, how sure it is of that and of
    what is left when a screen has taken away the surest, and how often it is right on that."""
    sure = draws.beta(2, 2, size=count)
    chance = 1 / (1 + np.exp(-draws.uniform(3, 8) * (sure - draws.uniform(0.2, 0.6))))
    right = draws.random(count) < chance
    random = draws.choice(count, drawn, replace=False)
    left = np.setdiff1d(np.arange(count), random)
    left = left[np.argsort(sure[left])][: len(left) - taken]
    return right[random], sure[random], sure[left], right[left].mean()


@pytest.mark.parametrize("drawn, taken", [(15, 0), (40, 300), (60, 800)])
def test_intervals_hold_the_truth(drawn, taken):
    draws = np.random.default_rng(drawn)
    inside, off = [], []
    for _ in range(200):
        right, sure, left, true = sitting(draws, drawn=drawn, taken=taken)
        found = share_right(right, sure, left)
        inside.append(found.low <= true <= found.high)
        off.append(found.share - true)
    assert np.mean(inside) >= 0.95
    assert abs(np.mean(off)) < 0.02


def test_what_screens_take_away_is_allowed_for():
    draws = np.random.default_rng(0)
    plain, weighed = [], []
    for _ in range(100):
        right, sure, left, true = sitting(draws, drawn=60, taken=700)
        plain.append(right.mean() - true)
        weighed.append(share_right(right, sure, left).share - true)
    assert np.mean(plain) > 0.1
    assert abs(np.mean(weighed)) < 0.03


def test_nothing_is_said_of_few():
    right = np.ones(LEAST, bool)
    sure = np.linspace(0, 1, LEAST)
    left = np.linspace(0, 1, WORTH_SAYING)
    assert share_right(right, sure, left[1:]) is None
    assert share_right(right[1:], sure[1:], left) is None
    found = share_right(right, sure, left)
    assert 0.9 < found.share < 1
    assert found.low < 0.8
    assert found.photographs == LEAST


def test_more_labels_gain_by_a_power():
    right = np.arange(100) < 80
    before = (
        np.arange(100) < 60
    )  # twice the errors with half of the labels: errors fall as 1 / labels
    assert gain(right, before, 50, 50) == pytest.approx(0.1)
    assert gain(right, right, 50, 50) == 0
    assert gain(before, right, 50, 50) is None
    assert gain(right[:20], before[:20], 50, 50) is None
