"""How many of the rest a model gets right: intervals hold what they say, in simulated sessions whose truth is
known."""

import numpy as np
import pytest
from margins import at_least, at_most

from vitkit.apps.label.estimate import LEAST, TO_GAIN, WORTH_SAYING, Drawn, share_right


def session(draws, count=1_000, drawn=40, taken=300, growth=0.0):
    """A model that is right the more often the surer it is, and the more labels it has learned from: what it
    said of photographs that were drawn when it had learned from 5, 10, 15 ... labels, how sure it is of what is
    left when a screen has taken away the surest, and how often it is right on that."""
    sure = draws.beta(2, 2, size=count)
    logit = draws.uniform(3, 8) * (sure - draws.uniform(0.2, 0.6))
    random = draws.choice(count, drawn, replace=False)
    labels = 5 * np.arange(1, drawn + 1)
    then = logit[random] + growth * np.log(labels / labels[-1])
    right = draws.random(drawn) < 1 / (1 + np.exp(-then))
    left = np.setdiff1d(np.arange(count), random)
    left = left[np.argsort(sure[left])][: len(left) - taken]
    true = draws.random(len(left)) < 1 / (1 + np.exp(-logit[left]))
    return Drawn(right, sure[random], labels), sure[left], true.mean()


@pytest.mark.parametrize("growth", [0.0, 1.0])
@pytest.mark.parametrize("drawn, taken", [(15, 0), (40, 300), (60, 800)])
@pytest.mark.slow
def test_intervals_hold_the_truth(drawn, taken, growth):
    draws = np.random.default_rng(drawn)
    sessions, least = 100, 0.95
    if drawn < 20:  # what is supposed of the growth counts more than what is seen of it
        sessions, least = 200, 0.9
    inside, off = [], []
    for _ in range(sessions):
        said, left, true = session(draws, drawn=drawn, taken=taken, growth=growth)
        found = share_right(said, left, 5 * drawn, 50)
        inside.append(found.low <= true <= found.high)
        off.append(found.share - true)
    at_least(np.mean(inside), least)
    at_most(abs(np.mean(off)), 0.06, why="seeded: the same on every processor")


@pytest.mark.parametrize(
    "taken, growth, direction",
    [(700, 0.0, 1), (0, 1.0, -1)],
    ids=["what screens take away", "what the model has learned since"],
)
def test_it_is_allowed_for(taken, growth, direction):
    draws = np.random.default_rng(0)
    plain, weighed = [], []
    for _ in range(100):
        said, left, true = session(draws, drawn=60, taken=taken, growth=growth)
        plain.append(said.right.mean() - true)
        weighed.append(share_right(said, left, 300, 50).share - true)
    assert direction * np.mean(plain) > 0.1
    assert abs(np.mean(weighed)) < 0.03


def test_nothing_is_said_of_few():
    said = Drawn(np.ones(LEAST, bool), np.linspace(0, 1, LEAST), np.full(LEAST, 50))
    left = np.linspace(0, 1, WORTH_SAYING)
    assert share_right(said, left[1:], 50, 50) is None
    assert share_right(Drawn(*(values[1:] for values in said)), left, 50, 50) is None
    found = share_right(said, left, 50, 50)
    assert 0.9 < found.share < 1
    assert found.low < 0.8
    assert found.photographs == LEAST
    assert found.gain is None


def test_no_more_labels_are_promised_than_are_left():
    said, left, _ = session(np.random.default_rng(0), drawn=TO_GAIN)
    assert share_right(said, left[:50], 150, 50).gain is not None
    assert share_right(said, left[:49], 150, 50).gain is None


def test_more_labels_gain_what_those_before_did():
    draws = np.random.default_rng(1)
    gains = {}
    for growth in (0.0, 1.0):
        found = []
        for _ in range(50):
            said, left, _ = session(draws, drawn=2 * TO_GAIN, taken=0, growth=growth)
            found.append(share_right(said, left, 10 * TO_GAIN, 10 * TO_GAIN).gain)
        gains[growth] = np.mean(found)
    # Twice the labels: the logit of a half becomes log 2 larger, and the share two thirds
    assert 0.08 < gains[1.0] < 0.2
    assert 0 <= gains[0.0] < 0.7 * gains[1.0]
