"""Five shots of one object are not five objects: intervals hold the truth, and equal models are seldom called
different, where images come in groups."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from tables import classifier_of, measured, part_of

from vitkit.data import Lists, Source
from vitkit.data.sources.stores import Arrays
from vitkit.evaluation import (
    SHARE,
    Errors,
    Kept,
    MeanAveragePrecision,
    answers,
    answers_of_logits,
    class_scores,
    classification,
    exchanged,
    in_groups,
    read_answers,
    report,
    share_right,
    wilson,
    write_answers,
)
from vitkit.evaluation.metrics.calibration import (
    calibrate,
    coverage_curve,
    measured_calibration,
    perfect_error,
    reliability,
)
from vitkit.evaluation.metrics.classification import figures_of
from vitkit.evaluation.metrics.metric import GroupSums, resampled, share_interval, with_intervals
from vitkit.evaluation.metrics.other_targets import errors, several
from vitkit.evaluation.metrics.paired import _of_figures, _of_shares, mcnemar, paired

CLASSES = 4
DRAWS = 100
OBJECTS = 10
SHOTS = 5
FIGURES = ("top1", "balanced_accuracy", "loss", "calibration_error")


def objects(count, random):
    """The classes of objects, (G,), and what a model makes of each: logits (G, K)."""
    truth = random.integers(0, CLASSES, count)
    logits = 2 * random.normal(size=(count, CLASSES))
    logits[np.arange(count), truth] += 3
    return truth, logits


def shots(truth, logits, random, each=SHOTS):
    """Answers to several shots of each object, which hardly differ."""
    number = np.repeat(np.arange(len(truth)), each)
    seen = logits[number] + 0.4 * random.normal(size=(len(number), CLASSES))
    store = Arrays("x", np.zeros((len(number), 1, 1), np.uint8))
    labels = tuple("abcd")
    source = Source(store, np.arange(len(number)), truth[number], labels, groups=number)
    model = classifier_of(torch.zeros(1, CLASSES), labels)
    return answers_of_logits(model, source, torch.tensor(seen, dtype=torch.float32))


@pytest.fixture(scope="module")
def truth():
    """The figures of very many objects."""
    random = np.random.default_rng(1)
    given = shots(*objects(40_000, random), random, each=1)
    balanced, _, error, loss = figures_of(given)(np.arange(len(given)))
    top1 = float(given.right.mean())
    return dict(zip(FIGURES, (top1, balanced, loss, error), strict=True))


@pytest.mark.slow
def test_printed_intervals_hold_the_truth_of_new_objects(truth):
    """Of 50 shots of 10 objects. As if of 50 objects, top1's holds in about two thirds."""
    random = np.random.default_rng(0)
    held = dict.fromkeys(FIGURES, 0)
    alone = 0
    for _ in range(DRAWS):
        given = shots(*objects(OBJECTS, random), random)
        by_name = {metric.name: metric for metric in classification(given)}
        for name in FIGURES:
            interval = by_name[name].interval
            if interval is not None:
                held[name] += interval[0] <= truth[name] <= interval[1]
        low, high = wilson(given.right.sum(), len(given))
        alone += low <= truth["top1"] <= high
    assert alone / DRAWS < 0.8
    assert held["top1"] / DRAWS > 0.92
    assert held["balanced_accuracy"] / DRAWS > 0.92
    assert held["loss"] / DRAWS > 0.88
    assert held["calibration_error"] / DRAWS > 0.88


def test_equal_models_are_seldom_called_different():
    """By the groups in 5 % of draws at most; by the images in about a third."""
    random = np.random.default_rng(2)
    by_groups = []
    by_images = []
    for _ in range(150):
        classes, logits = objects(OBJECTS, random)
        other_logits = 2 * random.normal(size=logits.shape)
        other_logits[np.arange(OBJECTS), classes] += 3
        first = shots(classes, logits, random).right
        second = shots(classes, other_logits, random).right
        number = np.repeat(np.arange(OBJECTS), SHOTS)
        by_groups.append(exchanged(first, second, number))
        by_images.append(exchanged(first, second))
    assert np.mean(np.array(by_images) < 0.05) > 0.2
    assert np.mean(np.array(by_groups) < 0.05) <= 0.05


@pytest.mark.parametrize("groups", [4, 9, 40])
def test_the_interval_of_a_difference_holds_that_no_difference_is(groups):
    random = np.random.default_rng(groups)
    held = 0
    count = 150
    for _ in range(count):
        number = np.repeat(np.arange(groups), SHOTS)
        first, second = random.random((2, groups)) < 0.7
        of_both = _of_shares("top1", first[number], second[number], number)
        low, high = of_both.difference.interval
        held += low <= 0 <= high
    assert held / count > 0.93


def test_a_difference_of_shares_of_two_groups_is_possible():
    number = np.repeat([0, 1], 6)
    first = answered(number == 0, number)
    second = answered(np.arange(12) % 3 > 0, number)
    found = {each.difference.name: each.difference.interval for each in _of_figures(first, second)}
    for name in ("balanced_accuracy", "macro_f1", "calibration_error"):
        low, high = found[name]
        assert -1 <= low < high <= 1


def answered(right, groups):
    """Answers to images of class 0 or 1, right or wrong, in groups."""
    count = len(right)
    truth = np.arange(count) % 2
    logits = np.zeros((count, 2), np.float32)
    logits[np.arange(count), np.where(right, truth, 1 - truth)] = 1
    store = Arrays("x", np.zeros((count, 1, 1), np.uint8))
    source = Source(store, np.arange(count), truth, ("a", "b"), groups=groups)
    model = classifier_of(torch.zeros(1, 2), ("a", "b"))
    return answers_of_logits(model, source, torch.tensor(logits))


def test_a_comparison_says_that_it_is_of_groups():
    number = np.repeat(np.arange(6), 5)
    first = answered(np.repeat([1, 1, 1, 1, 1, 0], 5) > 0, number)
    second = answered(np.repeat([0, 0, 1, 1, 1, 0], 5) > 0, number)
    compared = paired(first, second)
    assert (compared.only_first, compared.groups) == (10, 6)
    assert compared.p_value == pytest.approx(0.5)  # of two groups, both to the first
    assert "on 6 groups of images, p = 0.5" in compared.sentence
    alone = paired(replace(first, groups=None), replace(second, groups=None))
    assert alone.p_value == pytest.approx(2**-9) and "McNemar's exact test, p" in alone.sentence
    assert alone.groups == 0


# The exact test


def test_exchanging_whole_groups_is_counted_out():
    """Against all ways to exchange the models on groups of several sizes."""
    random = np.random.default_rng(3)
    for _ in range(20):
        number = np.sort(random.integers(0, 7, 24))
        first, second = random.random((2, 24)) < 0.6
        sums = np.bincount(np.unique(number, return_inverse=True)[1], first.astype(int) - second)
        ways = np.array(list(itertools.product([-1, 1], repeat=len(sums)))) @ sums
        expected = np.mean(np.abs(ways) >= abs(sums.sum()) - 1e-9)
        assert exchanged(first, second, number) == pytest.approx(expected)
        greater = np.mean(ways >= sums.sum() - 1e-9)
        assert exchanged(first, second, number, "greater") == pytest.approx(greater)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (5, 0), (3, 3), (11, 23), (40, 17)])
def test_of_images_that_are_alone_it_is_mcnemars(first, second):
    one = np.repeat([True, False, True], [first, second, 4])
    other = np.repeat([False, True, True], [first, second, 4])
    assert exchanged(one, other) == pytest.approx(mcnemar(first, second))
    alone = np.arange(len(one))
    assert exchanged(one, other, alone) == pytest.approx(mcnemar(first, second))
    greater = exchanged(one, other, alternative="greater")
    assert greater == pytest.approx(mcnemar(first, second, "greater"))


# The interval of a share


def test_groups_of_one_change_nothing():
    right = np.arange(30) % 3 > 0
    assert share_interval(right, np.arange(30)) == share_interval(right) == wilson(20, 30)
    mean = {"mean": SHARE}

    def figures(rows):
        return np.array([right[rows].mean()])

    alone = with_intervals(mean, figures, 30)
    assert with_intervals(mean, figures, 30, groups=np.arange(30)[::-1]) == alone


@pytest.mark.parametrize("right", [np.ones(50), np.zeros(50), np.repeat([1, 0], 25)])
def test_shots_that_are_all_alike_tell_as_much_as_the_objects(right):
    """With Student's quantile for ten of them, so more widely than Wilson's interval of ten."""
    number = np.repeat(np.arange(10), 5)
    low, high = share_interval(right, number)
    of_objects = wilson(right.sum() / 5, 10)
    assert low <= of_objects[0] and of_objects[1] <= high
    assert high - low < 1.35 * (of_objects[1] - of_objects[0])


def test_shots_that_have_nothing_in_common_tell_nearly_as_much_as_so_many_images():
    random = np.random.default_rng(0)
    right = random.random(2000) < 0.8
    low, high = share_interval(right, np.repeat(np.arange(400), 5))
    alone = wilson(right.sum(), 2000)
    assert high - low == pytest.approx(alone[1] - alone[0], rel=0.2)


def test_a_group_never_tells_less_than_one_image_nor_more_than_each_of_its_own():
    random = np.random.default_rng(5)
    for _ in range(50):
        number = random.integers(0, 6, 40)
        right = random.random(40) < random.random()
        counts = np.unique(number, return_counts=True)[1]
        effect = GroupSums.of(right, number).design_effect(0.25)
        assert 1 <= effect <= (counts @ counts) / 40 + 1e-12


def test_groups_are_resampled_as_wholes():
    number = np.array([7, 3, 7, 3, 9, 3])
    drawn = resampled(lambda rows: np.bincount(rows, minlength=6), 6, number)
    assert (drawn[:, 0] == drawn[:, 2]).all()  # of group 7
    assert (drawn[:, 1] == drawn[:, 3]).all() and (drawn[:, 1] == drawn[:, 5]).all()
    assert (drawn[:, 0] + drawn[:, 1] + drawn[:, 4] == 3).all()  # three groups are drawn
    assert len(np.unique(drawn, axis=0)) > 5


# Everything that has an interval


def test_every_interval_of_a_report_knows_the_groups():
    random = np.random.default_rng(4)
    given = shots(*objects(30, random), random)
    alone = replace(given, groups=None)
    pairs = [(classification(given), classification(alone))]
    pairs.append((class_scores(given), class_scores(alone)))
    sure = (given.confidence, given.right)
    pairs.append((reliability(*sure, given.groups), reliability(*sure)))
    pairs.append((coverage_curve(*sure, given.groups), coverage_curve(*sure)))
    for ours, theirs in pairs:
        widths = np.array([np.ptp(each.interval) for each in ours if each.interval])
        narrower = np.array([np.ptp(each.interval) for each in theirs if each.interval])
        assert len(widths) == len(narrower)
        assert np.median(widths / np.maximum(narrower, 1e-9)) > 1.2
    assert perfect_error(given.confidence, given.groups) > 1.3 * perfect_error(given.confidence)
    ours = measured_calibration("e", *sure, given.groups).interval
    assert ours[1] > measured_calibration("e", *sure).interval[1]


def test_the_curve_of_coverage_adds_answer_after_answer():
    random = np.random.default_rng(6)
    given = shots(*objects(12, random), random)
    order = np.argsort(-given.confidence, kind="stable")
    points = coverage_curve(given.confidence, given.right, given.groups)
    for count in (5, 23, 60):
        first = order[:count]
        expected = share_interval(given.right[first], given.groups[first])
        if len(np.unique(given.groups[first])) < count:
            assert points[count - 1].interval == pytest.approx(expected)


def test_a_temperature_is_tried_on_other_objects():
    """Halves of shots would hold the same objects on both sides."""
    random = np.random.default_rng(8)
    given = shots(*objects(6, random), random, each=20)
    logits = np.log(np.full((120, 4), 0.1))
    logits[np.arange(120), given.truth] += np.repeat(random.normal(1, 2, 6), 20)
    known = replace(given, logits=logits.astype(np.float32))
    assert calibrate(known).loss_after != calibrate(replace(known, groups=None)).loss_after


@pytest.mark.parametrize("kind", ["number", "classes"])
def test_numbers_and_several_classes_know_the_groups(kind):
    random = np.random.default_rng(7)
    number = np.repeat(np.arange(20), 5)
    truth = random.normal(size=20)[number]
    answered = truth + random.normal(size=20)[number]
    if kind == "number":
        ours = errors(torch.tensor(answered), torch.tensor(truth), number)
        alone = errors(torch.tensor(answered), torch.tensor(truth))
    else:
        scores = torch.tensor(answered)[:, None]
        targets = torch.tensor(truth > 0).double()[:, None]
        ours = several(scores, scores > 0, targets, number)
        alone = several(scores, scores > 0, targets)
    for one, other in zip(ours, alone, strict=True):
        assert np.ptp(one.interval) > 1.5 * np.ptp(other.interval)


@pytest.mark.parametrize("kind", ["class", "classes", "number"])
def test_evaluators_read_the_groups_of_the_images(kind):
    random = np.random.default_rng(9)
    table = random.normal(size=(40, 3)).astype(np.float32)
    number = np.repeat(np.arange(8), 5)
    labels = ("a", "b", "c")
    targets = random.integers(0, 3, 8)[number]
    evaluator = None
    if kind == "classes":
        targets = Lists.of([[target] for target in targets.tolist()])
        evaluator = MeanAveragePrecision()
    if kind == "number":
        table = table[:, :1]
        targets = random.normal(size=8)[number].astype(np.float32)
        labels = ("0",)
        evaluator = Errors()
    activation = {"class": "softmax", "classes": "sigmoid", "number": "none"}[kind]
    model = classifier_of(torch.tensor(table[number]), labels, activation)
    part = part_of(targets, labels, kind=kind)
    grouped = part._replace(source=replace(part.source, groups=number))
    if evaluator is None:
        assert (answers(model, grouped).groups == number).all()
        return
    ours = measured(evaluator, model, grouped)
    alone = measured(evaluator, model, part)
    for name in evaluator.figures[:3]:
        assert np.ptp(ours[name].interval) > 1.3 * np.ptp(alone[name].interval)


# What a run keeps


def test_kept_answers_keep_their_groups_and_older_ones_have_none(tmp_path):
    random = np.random.default_rng(0)
    given = shots(*objects(5, random), random)
    for groups in (given.groups, None):
        write_answers(tmp_path / "a", Kept(replace(given, groups=groups), "test", 3))
        kept = read_answers(tmp_path / "a").answers
        if groups is None:
            assert kept.groups is None
        else:
            assert (kept.groups == groups).all()


def test_a_page_of_older_answers_takes_the_groups_of_the_images():
    random = np.random.default_rng(0)
    classes, logits = objects(5, random)
    given = shots(classes, logits, random)
    number = np.repeat(np.arange(5), SHOTS)
    store = Arrays("x", np.zeros((25, 1, 1), np.uint8))
    source = Source(store, np.arange(25), classes[number], tuple("abcd"), groups=number)
    older = replace(given, groups=None)
    found = report(older, source, "", "", {})
    assert found.metrics[0] == share_right("top1", given.right, number)
    assert any("5 groups as independent" in note for note in found.notes)
    alone = replace(source, groups=np.arange(25))  # each image is a group of its own
    assert in_groups(older, alone).groups is None
