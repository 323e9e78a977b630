"""Which photographs to ask about, and the head of a session, beside slow computations of the same."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from vitkit.apps.label import next_to_label
from vitkit.apps.label.active_learning import Cover
from vitkit.apps.label.head import L2, solve, unsureness
from vitkit.evaluation import fit_temperature


def clusters(counts, seed=0, dimensions=12, spread=0.5):
    """Features of clusters of so many photographs, and which each is of."""
    draws = np.random.default_rng(seed)
    centres = 3 * draws.normal(size=(len(counts), dimensions))
    of = np.repeat(np.arange(len(counts)), counts)
    return centres[of] + spread * draws.normal(size=(len(of), dimensions)), of


def weights_of(labels):
    counts = np.bincount(labels)
    return len(labels) / np.count_nonzero(counts) / counts[labels]


@pytest.mark.parametrize("dimensions", [5, 60], ids=["more photographs", "more features"])
def test_head_is_weighted_ridge(dimensions):
    x, labels = clusters([3, 20, 9], dimensions=dimensions, spread=3)
    head = solve(x, labels)

    # scikit-learn's, classes alike
    weights = weights_of(labels)
    targets = np.where(np.eye(3)[labels] > 0, 1.0, -1.0)
    centred = np.sqrt(weights)[:, None] * (x - np.average(x, 0, weights))
    l2 = L2 * np.square(centred).sum() / min(x.shape)

    def expected(rows):
        return Ridge(l2).fit(x[rows], targets[rows], weights[rows])

    everything = expected(np.arange(len(x)))
    torch.testing.assert_close(
        head.scores(x).double(), torch.tensor(everything.predict(x)), atol=1e-5, rtol=1e-5
    )
    for row in range(0, len(x), 4):
        others = np.delete(np.arange(len(x)), row)
        answer = torch.tensor(expected(others).predict(x[[row]]))[0]
        torch.testing.assert_close(head.left_out[row].double(), answer, atol=1e-5, rtol=1e-5)


def test_classes_count_alike():
    # A class with many labels does not take what lies between it and another
    x, labels = clusters([4, 200], spread=2.0)
    middle = (x[labels == 0].mean(0) + x[labels == 1].mean(0)) / 2
    scores = solve(x, labels).scores(middle[None])[0]
    assert abs(scores[0] - scores[1]) < 0.2


def test_numbers_of_classes_stay():
    x, labels = clusters([5, 5])
    head = solve(x, np.where(labels == 0, 7, 3))
    assert head.classes.tolist() == [3, 7]
    assert head.classes[head.scores(x[:1]).argmax()] == 7


def test_screens_do_not_say_how_sure_the_model_is():
    x, labels = clusters([40, 40], spread=6.0)
    everything = solve(x, labels)
    chosen = unsureness(everything.left_out).numpy() < 0.7
    apart = solve(x, labels, chosen)
    single = torch.from_numpy(~chosen)
    expected = fit_temperature(everything.left_out[single], torch.from_numpy(labels)[single])
    assert apart.temperature == pytest.approx(expected, rel=1e-3)
    assert apart.temperature > 1.2 * everything.temperature
    torch.testing.assert_close(apart.weight, everything.weight)


def test_next_is_what_adds_most_cover():
    x, of = clusters([12, 9, 5])
    labels = np.full(len(x), -1)
    labels[[0, 1]] = 0
    labels[12] = 1
    head = solve(x[labels >= 0], labels[labels >= 0])

    # The same by its formula
    unit = x - x.mean(0)
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    squares = np.square(unit[:, None] - unit).sum(2)
    near = np.exp(-squares / (0.25 * np.median(squares)))
    unsure = unsureness(head.scores(x)).numpy() ** 2
    covered = near[:, labels >= 0].max(1)
    expected = []
    for _ in range(4):
        gain = unsure @ np.maximum(near - covered[:, None], 0)
        gain[(labels >= 0)] = -1
        gain[expected] = -1
        expected.append(int(gain.argmax()))
        covered = np.maximum(covered, near[:, expected[-1]])
    assert next_to_label(x, labels, 4).tolist() == expected
    assert of[expected[0]] == 2  # of which nothing is known


def test_first_ones_are_typical_of_the_largest_groups():
    x, of = clusters([30, 20, 10, 1], spread=0.3)
    first = next_to_label(x, np.full(len(x), -1), 3)
    assert sorted(of[first]) == [0, 1, 2]


def test_of_many_a_sample_is_looked_at(monkeypatch):
    monkeypatch.setattr("vitkit.apps.label.active_learning.MEASURED", 50)
    monkeypatch.setattr("vitkit.apps.label.active_learning.CANDIDATES", 80)
    x, _ = clusters([300, 200])
    labels = np.full(len(x), -1)
    asked = []
    while (labels < 0).any():
        chosen = next_to_label(x, labels, 60)
        asked += chosen.tolist()
        labels[chosen] = 0
    assert sorted(asked) == list(range(500))


def test_cover_remembers_as_it_would_compute():
    x, _ = clusters([20, 20])
    kept = Cover(x)
    settled = np.zeros(40, bool)
    unsure = torch.ones(40)
    for labelled in ([3], [3, 30], [3, 30, 7], [3, 30]):  # the last one was taken back
        settled[:] = False
        settled[labelled] = True
        rows = np.array(labelled)
        expected = Cover(x).next(rows, settled, unsure, 5)
        assert kept.next(rows, settled, unsure, 5).tolist() == expected.tolist()


@pytest.mark.parametrize(
    "features, labels, count, words",
    [
        (np.zeros((3, 2)), np.zeros(2), 1, "(3, 2) and labels (2,)"),
        (np.zeros(3), np.zeros(3), 1, "(3,) and labels (3,)"),
        (np.zeros((3, 2)), -np.ones(3), 0, "count is 0"),
        (np.full((3, 2), np.nan), -np.ones(3), 1, "NaN"),
    ],
)
def test_what_does_not_fit_is_said(features, labels, count, words):
    with pytest.raises(ValueError, match="hold" if words == "NaN" else "are|is") as error:
        next_to_label(features, labels, count)
    assert words in str(error.value)


def test_nothing_left_to_ask():
    assert not len(next_to_label(np.ones((3, 2)), np.zeros(3, int), 2))
    assert not len(next_to_label(np.ones((0, 2)), np.zeros(0, int), 2))
    assert sorted(next_to_label(np.ones((3, 2)), np.array([-1, 0, -1]), 5)) == [0, 2]


@pytest.mark.parametrize(
    "features, labels, words",
    [
        (np.eye(2), ["cat", ""], "labels the numbers of classes"),
        (np.eye(2), [0.5, -1], "labels the numbers of classes"),
        ([[1, None]], [-1], "features are object"),
        (1e200 * np.eye(2), [0, 1], "beyond 1e"),
    ],
)
def test_arrays_that_are_no_features(features, labels, words):
    with pytest.raises(ValueError, match=words):
        next_to_label(features, labels)


def test_features_that_say_nothing():
    for features in (np.ones((4, 3)), np.zeros((4, 0)), [[1, 1], [1, 1], [1, 1], [1, 1]]):
        asked = next_to_label(features, [0, -1, 1, -1], 9)
        assert sorted(asked) == [1, 3]
