"""Left-out answers against fits without each fold, and on draws whose accuracy on new images is known."""

import numpy as np
import pytest
import torch
from margins import at_least, at_most

from vitkit.evaluation import (
    LeaveOut,
    balanced_folds,
    fit_probe,
    fit_temperature,
    left_out_quality,
    row_products,
    share_of_answers,
    targets,
)
from vitkit.evaluation.probes.folds import folds_of
from vitkit.evaluation.probes.probe import best_for_classes
from vitkit.evaluation.probes.quality import CURVE, OTHERS, share_of_left_out
from vitkit.evaluation.probes.ridge import centred_ridge

pytestmark = pytest.mark.whole_statistics


def some(count, width, classes=4):
    generator = torch.Generator().manual_seed(count)
    x = 3 * torch.randn(count, width, generator=generator, dtype=torch.float64) + 5
    return x, torch.arange(count) % classes


def unequal():
    """30, 7, 2 examples, and one."""
    return torch.tensor([0] * 30 + [1] * 7 + [2] * 2 + [3])


# Folds


def test_folds_leave_out_one_of_each_class_and_answer_each_example_once():
    classes = unequal().numpy()
    folds = balanced_folds(classes)
    for number, (members, answered) in enumerate(zip(folds.members, folds.answered, strict=True)):
        there = members[members >= 0].numpy()
        several = classes[there] < 3
        assert sorted(classes[there].tolist()) == ([0, 1, 2] if several.all() else [3])
        assert (folds.fold[members[answered]] == number).all()
    assert sorted(folds.members[folds.answered].tolist()) == list(range(40))
    assert folds.more[[0, 30, 37, 39]].tolist() == pytest.approx([30 / 29, 7 / 6, 2, 1])


def test_folds_do_not_depend_on_the_order_of_the_examples():
    classes = unequal().numpy()
    keys = np.random.default_rng(0).random(40)
    order = np.random.default_rng(1).permutation(40)
    one = balanced_folds(classes, keys=keys).fold[order]
    assert torch.equal(one, balanced_folds(classes[order], keys=keys[order]).fold)


def test_a_large_class_is_left_out_in_hundredths():
    classes = np.repeat([0, 1], [1_000, 130])
    folds = balanced_folds(classes)
    assert folds.members.shape == (100, 12)
    assert np.bincount(folds.fold).min() >= 11


@pytest.mark.parametrize("mixed", [False, True])
def test_groups_stay_together(mixed):
    classes = np.repeat(np.arange(3), 20)
    groups = np.arange(60) // 4
    if mixed:
        groups[19] = groups[20]  # of two classes
    folds = balanced_folds(classes, groups)
    for group in np.unique(groups):
        assert len(np.unique(folds.fold[groups == group])) == 1
    for members in folds.members:
        there = members[members >= 0].numpy()
        assert np.isin(groups, groups[there]).sum() == len(there)


def test_groups_of_unequal_sizes_make_equal_folds():
    groups = np.array([0, 1, 2, 3, 4, 5, 6, 6, 6, 6, 6, 6])
    folds = balanced_folds(np.zeros(12, dtype=int), groups, most=2)
    assert np.bincount(folds.fold).tolist() == [6, 6]


def test_a_class_without_examples_has_no_part_in_folds():
    folds = balanced_folds(np.array([0, 0, 2, 2, 2]))
    assert sorted(folds.members[folds.answered].tolist()) == [0, 1, 2, 3, 4]


# Answers


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (20, 20)])
@pytest.mark.parametrize("l2", [0.1, 100.0])
def test_scores_without_an_example_are_those_of_a_fit_without_it(shape, l2):
    x, classes = some(*shape)
    y = targets(classes, 4)
    scores = LeaveOut(x, y).scores(l2)
    for i in range(len(x)):
        others = torch.arange(len(x)) != i
        weights, bias = centred_ridge(x[others], y[others], torch.ones(len(x) - 1).double()).head(
            l2
        )
        torch.testing.assert_close(scores[i], weights @ x[i] + bias, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("width", [10, 60])
@pytest.mark.parametrize("balanced", [False, True])
def test_scores_without_a_fold_are_those_of_a_fit_in_which_each_class_counts_as_before(
    width, balanced
):
    classes = unequal()
    x, _ = some(40, width)
    y = targets(classes, 4)
    weights = torch.ones(40, dtype=torch.float64)
    if balanced:
        weights = 10 / classes.bincount().double()[classes]
    folds = balanced_folds(classes.numpy())
    scores = LeaveOut(x, y, folds, weights).scores(3.0)
    for members, answered in zip(folds.members, folds.answered, strict=True):
        others = torch.ones(40, dtype=torch.bool)
        others[members[members >= 0]] = False
        own = (weights * folds.more)[others]
        if 3 not in classes[~others]:
            totals = torch.zeros(4, dtype=torch.float64).index_add_(0, classes[others], own)
            before = torch.zeros(4, dtype=torch.float64).index_add_(0, classes, weights)
            torch.testing.assert_close(totals, before)
        head, bias = centred_ridge(x[others], y[others], own).head(3.0)
        asked = members[answered]
        expected = x[asked] @ head.mT + bias
        torch.testing.assert_close(scores[asked], expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("images", "width", "views"), [(30, 8, 2), (9, 40, 3), (12, 12, 1)])
@pytest.mark.parametrize("l2", [0.1, 100.0])
def test_scores_of_another_view_are_those_of_a_fit_without_the_image_s_views(
    images, width, views, l2
):
    x, _ = some(images * views, width)
    x = x.reshape(images, views, width)
    queries, classes = some(images, width)
    queries = queries + 1  # other views than those that are learned from
    y = targets(classes, 4)
    scores = LeaveOut(x, y, queries=queries).scores(l2)
    for i in range(images):
        others = torch.arange(images) != i
        rows = x[others].reshape(-1, width)
        of_views = y[others].repeat_interleave(views, 0)
        weights, bias = centred_ridge(rows, of_views, torch.ones(len(rows)).double()).head(l2)
        torch.testing.assert_close(scores[i], weights @ queries[i] + bias, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("count", [12, 900])  # all l2 together, and one after the other
def test_scores_by_many_l2_are_those_by_each(count):
    x, classes = some(count, 100)
    fit = LeaveOut(x, targets(classes, 4), folds_of(np.arange(count) // 3))
    many = (0.01, 1.0, 30.0)
    for l2, scores in zip(many, fit.scores_by(many), strict=True):
        torch.testing.assert_close(scores, fit.scores(l2), rtol=1e-10, atol=1e-10)


# What they are for


@pytest.mark.parametrize(("classes", "each"), [(50, 2), (6, 6)])
def test_on_noise_left_out_answers_are_right_as_often_as_chance(classes, each):
    """Each image's own label must not help: 50 classes of 2 images would be answered right four times
    as often as chance."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(classes).repeat(each)
    folds = balanced_folds(y.numpy())
    shares = []
    for _ in range(10):
        x = torch.randn(classes * each, 192, generator=generator)
        fit = LeaveOut(x, targets(y, classes), folds)
        right = best_for_classes(fit, y)[2].argmax(1) == y
        shares.append(right.double().mean().item())
    error = np.std(shares, ddof=1) / np.sqrt(len(shares))
    assert abs(np.mean(shares) - 1 / classes) < 3 * error


def drawn(random, centres, each, spread):
    y = np.tile(np.arange(len(centres)), each)
    x = centres[y] + spread * random.normal(size=(len(y), centres.shape[1]))
    return x.astype(np.float32), y


@pytest.mark.parametrize(("each", "draws"), [(8, 12), (20, 8)])
@pytest.mark.slow
def test_their_interval_holds_the_accuracy_on_new_images(each, draws):
    """On average they are as good as it, too, but for what the one image that is missing is worth."""
    held = []
    differences = []
    for seed in range(draws):
        random = np.random.default_rng(seed)
        centres = random.normal(size=(6, 20))
        x, y = drawn(random, centres, each, 2.0)
        fitted = fit_probe("linear", x, y, 6)
        new, truth = drawn(random, centres, 300, 2.0)
        accuracy = (fitted.logits(torch.tensor(new)).argmax(1).numpy() == truth).mean()
        share, (low, high) = share_of_left_out(fitted.left_out.argmax(1).numpy() == y, y)
        held.append(low <= accuracy <= high)
        differences.append(share - accuracy)
    at_least(np.mean(held), 0.95 - 1.7 * np.sqrt(0.95 * 0.05 / draws))
    error = np.std(differences, ddof=1) / np.sqrt(draws)
    at_most(np.mean(differences), 3 * error)
    at_most(-np.mean(differences), 3 * error + 0.02)


def test_its_upper_end_allows_for_the_image_that_is_missing():
    right = np.arange(60) < 45
    classes = np.arange(60) % 6
    share, (low, high) = share_of_left_out(right, classes)
    same, (same_low, without) = share_of_answers(right, classes, fewer=1 + OTHERS / 10)
    assert (share, low) == (same, same_low) == (0.75, same_low)
    assert 1 - high == pytest.approx((1 - without) * (9 / 10) ** CURVE)


def test_answers_that_count_for_nothing_tell_nothing():
    """And weights count by their proportions."""
    right = np.random.default_rng(0).random(400) < 0.8
    classes = np.zeros(400, int)
    weights = np.repeat([3.0, 1e-6], 200)
    share, interval = share_of_answers(right, classes, weights)
    expected, interval_of_half = share_of_answers(right[:200], classes[:200])
    assert share == pytest.approx(expected, abs=1e-5)
    assert interval == pytest.approx(interval_of_half, abs=1e-3)


def test_shots_of_one_object_are_one_answer():
    right = np.repeat(np.random.default_rng(0).random(40) < 0.8, 5)
    classes = np.tile(np.arange(2), 100)
    groups = np.arange(200) // 5
    share, apart = share_of_left_out(right, classes)
    same, together = share_of_left_out(right, classes, groups=groups)
    assert same == share
    ratio = (together[1] - together[0]) / (apart[1] - apart[0])
    assert ratio == pytest.approx(np.sqrt(5), rel=0.1)


def test_in_bursts_an_object_is_answered_by_other_objects():
    """Five shots of each of 60 objects, whose classes are noise."""
    random = np.random.default_rng(0)
    objects = random.normal(size=(60, 30))
    groups = np.repeat(np.arange(60), 5)
    x = (objects[groups] + 0.05 * random.normal(size=(300, 30))).astype(np.float32)
    y = groups % 3
    alone = fit_probe("linear", x, y, 3).left_out.argmax(1).numpy() == y
    together = fit_probe("linear", x, y, 3, groups=groups).left_out.argmax(1).numpy() == y
    assert alone.mean() > 0.7
    assert together.mean() < 0.5


def test_a_rare_class_is_answered_if_classes_count_alike():
    random = np.random.default_rng(0)
    centres = 1.2 * random.normal(size=(2, 10))
    y = np.repeat([0, 1], [400, 6])
    x = (centres[y] + random.normal(size=(406, 10))).astype(np.float32)
    new = (centres[1] + random.normal(size=(500, 10))).astype(np.float32)
    recalls = []
    for balanced in (False, True):
        fitted = fit_probe("linear", x, y, 2, balanced)
        recalls.append((fitted.logits(torch.tensor(new)).argmax(1) == 1).double().mean().item())
    assert recalls[0] < 0.5 < 0.8 < recalls[1]


def test_where_classes_count_alike_answers_are_as_sure_as_images_are():
    random = np.random.default_rng(0)
    classes = torch.tensor([0] * 60 + [1] * 60 + [2] * 3)
    x = torch.from_numpy(random.normal(size=(3, 8))[classes] + random.normal(size=(123, 8)))
    weights = 1 / torch.bincount(classes).double()[classes]
    fit = LeaveOut(x, targets(classes, 3), balanced_folds(classes.numpy()), weights)
    _, _, logits = best_for_classes(fit, classes)
    assert fit_temperature(logits, classes) == pytest.approx(1, abs=1e-3)


def test_every_group_has_its_fold():
    folds = folds_of(np.array([4, 1, 4, 2, 1]))
    assert sorted(sorted(members[members >= 0].tolist()) for members in folds.members) == [
        [0, 2],
        [1, 4],
        [3],
    ]


@pytest.mark.parametrize("shape", [(30, 8), (8, 30)])
def test_the_scale_is_the_mean_eigenvalue(shape):
    x, classes = some(*shape)
    weights = torch.linspace(0.5, 2, len(x), dtype=torch.float64)
    y = targets(classes, 4)
    fit = LeaveOut(x, y, weights=weights)
    assert fit.scale == pytest.approx(centred_ridge(x, y, weights).scale, rel=1e-9)


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (20, 20)])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_the_head_is_that_of_a_fit_to_all(shape, scale, monkeypatch):
    monkeypatch.setattr("vitkit.evaluation.probes.cross_validation.COLUMNS", 7)
    x, classes = some(*shape)
    x = scale * x
    y = targets(classes, 4)
    weights = torch.linspace(0.5, 2, len(x), dtype=torch.float64)
    weight, bias = LeaveOut(x, y, weights=weights).head(0.5 * scale**2)
    expected = centred_ridge(x, y, weights).head(0.5 * scale**2)
    torch.testing.assert_close(weight, expected[0], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(bias, expected[1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("views", [1, 2])
def test_products_that_are_given_are_not_computed_again(views, monkeypatch):
    x, classes = some(12 * views, 40)
    y = targets(classes[:12], 4)
    around = row_products(x + 7)
    expected = LeaveOut(x.unflatten(0, (12, views)), y).scores(2.0)
    monkeypatch.setattr("vitkit.evaluation.probes.cross_validation.row_products", None)
    fit = LeaveOut(x.unflatten(0, (12, views)), y, products=around)
    torch.testing.assert_close(fit.scores(2.0), expected)


def test_features_that_are_all_the_same_say_nothing():
    x = torch.full((5, 8), 3.0, dtype=torch.float64)
    fit = LeaveOut(x, targets(torch.arange(5) % 2, 2))
    weight, bias = fit.head(1.0)
    assert fit.scale == 1 and weight.abs().max() < 1e-12
    assert fit.scores(1.0).isfinite().all() and bias.tolist() == pytest.approx([0.2, -0.2])


@pytest.mark.parametrize("width", [20, 60])
def test_some_of_the_folds_leave_out_what_all_do(width):
    classes = unequal()
    x, _ = some(40, width)
    y = targets(classes, 4)
    fit = LeaveOut(x, y, balanced_folds(classes.numpy()))
    inside = torch.where(fit.folds.fold % 5 != 2)[0]
    part = fit.of(inside)
    scores = part.scores(2.0)
    for members, answered in zip(part.folds.members, part.folds.answered, strict=True):
        others = torch.ones(len(inside), dtype=torch.bool)
        others[members[members >= 0]] = False
        rows = inside[others]
        head, bias = centred_ridge(x[rows], y[rows], fit.folds.more[rows]).head(2.0)
        asked = members[answered]
        expected = x[inside[asked]] @ head.mT + bias
        torch.testing.assert_close(scores[asked], expected, rtol=1e-8, atol=1e-8)


def test_the_only_image_of_a_class_tells_nothing_of_the_others():
    """It is answered wrongly in any case, and would make all answers unsure."""
    random = np.random.default_rng(0)
    centres = 2 * random.normal(size=(3, 10))
    y = np.repeat([0, 1, 2], [40, 40, 1])
    x = (centres[y] + random.normal(size=(81, 10))).astype(np.float32)
    fitted = fit_probe("linear", x, y, 3, balanced=True)
    assert fitted.known.tolist() == [True] * 80 + [False]
    assert fitted.left_out[:80].softmax(1).amax(1).mean() > 0.8
    (metric, *_) = left_out_quality(fitted, y, balanced=True)
    assert metric.value == (fitted.left_out[:80].argmax(1).numpy() == y[:80]).mean()
    for method in ("logistic", "prototype"):
        assert fit_probe(method, x, y, 3, balanced=True).known.tolist() == fitted.known.tolist()


def test_one_image_of_each_class_is_a_head_that_says_something():
    random = np.random.default_rng(0)
    x = random.normal(size=(6, 40)).astype(np.float32)
    fitted = fit_probe("linear", x, np.arange(6), 6)
    probabilities = fitted.logits(torch.tensor(x)).softmax(1)
    assert (probabilities.argmax(1) == torch.arange(6)).all() and probabilities.amax() > 0.2


@pytest.mark.parametrize("classes", [[0, 0, 1, 1, 2, 2, 3], [0, 0, 0, 1, 1, 1, 2]])
def test_logistic_regression_knows_every_class_in_every_fold(classes):
    x = np.random.default_rng(0).normal(size=(len(classes), 4)).astype(np.float32)
    count = max(classes) + 1
    fitted = fit_probe("logistic", x, np.array(classes), count)
    assert fitted.weight.shape == (count, 4)
    assert fitted.left_out[:-1].isfinite().all()


@pytest.mark.parametrize("balanced", [False, True])
def test_more_features_than_examples_are_solved_for_by_their_products(balanced):
    x, classes = some(20, 300)
    counts = torch.ones(20, dtype=torch.float64)
    fitted = fit_probe("linear", x.numpy(), classes.numpy(), 4, balanced)
    weight, bias = centred_ridge(x, targets(classes, 4), counts).head(fitted.strength)
    torch.testing.assert_close(fitted.weight * fitted.temperature, weight, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(fitted.bias * fitted.temperature, bias, rtol=1e-7, atol=1e-9)
