"""What may be answered and what counts as right, against numpy on the same logits."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from tables import classifier_of, part_of, random_answers

from vitkit.evaluation import answers
from vitkit.evaluation.benchmarks.choice import among_all, among_the_datas, several_are_right

MODEL = tuple(f"m{k}" for k in range(9))


def asked(table, targets, names, choice):
    return answers(classifier_of(table, MODEL), part_of(targets, names), choice=choice)


def test_among_the_datas_classes_is_a_model_with_only_these():
    table, _ = random_answers(40, 9)
    targets = np.random.default_rng(1).integers(0, 3, 40)
    names = ("m7", "m2", "m4")
    given = asked(table, targets, names, among_the_datas(names, MODEL))
    alone = answers(classifier_of(table[:, [2, 4, 7]], ("m2", "m4", "m7")), part_of(targets, names))
    assert given.labels == names
    same = {"m7": 2, "m2": 0, "m4": 1}
    assert [same[given.labels[k]] for k in given.predicted] == alone.predicted.tolist()
    for name in ("rank", "rank_in_data", "confidence", "loss", "right"):
        np.testing.assert_allclose(getattr(given, name), getattr(alone, name), rtol=1e-6)


def test_every_class_that_an_object_is_counts_as_right():
    table, _ = random_answers(60, 9, scale=1.0)
    targets = np.random.default_rng(2).integers(0, 2, 60)
    right = {"clock": (3, 8), "fish": (5,)}
    names = [tuple(f"m{k}" for k in several) for several in right.values()]
    given = asked(table, targets, tuple(right), several_are_right(tuple(right), names, MODEL))

    logits = table.numpy().astype(np.float64)
    order = np.argsort(-logits, axis=1)
    classes = list(right.values())
    for row, target in enumerate(targets):
        own = list(classes[target])
        # the first place of any right class among all nine
        assert given.rank[row] == min(np.flatnonzero(np.isin(order[row], own)))
        assert given.loss[row] == pytest.approx(-np.log(softmax(logits[row])[own].sum()), rel=1e-5)
        # among the three classes that the images may be
        among = [k for k in order[row] if k in (3, 8, 5)]
        assert given.rank_in_data[row] == min(among.index(k) for k in own)
        likeliest = order[row][0]
        same = next((several for several in classes if likeliest in several), (likeliest,))
        assert given.confidence[row] == pytest.approx(softmax(logits[row])[list(same)].sum(), 1e-5)
        name = given.labels[given.predicted[row]]
        assert name == {3: "clock", 8: "clock", 5: "fish"}.get(likeliest, f"m{likeliest}")


def test_all_classes_are_what_they_were_without_a_choice():
    table, targets = random_answers(30, 9)
    given = asked(table, targets, MODEL, among_all(MODEL, MODEL))
    expected = -log_softmax(table.numpy().astype(np.float64), axis=1)[np.arange(30), targets]
    np.testing.assert_allclose(given.loss, expected, rtol=1e-5, atol=1e-6)
    assert given.predicted.tolist() == table.argmax(1).tolist()


def test_infinite_logits_are_still_found():
    table = torch.zeros(3, 9)
    table[1, 0] = torch.inf
    choice = several_are_right(("clock",), [("m3", "m8")], MODEL)
    assert asked(table, [0, 0, 0], ("clock",), choice).finite.tolist() == [True, False, True]


def test_a_class_that_the_model_lacks_is_a_sentence():
    for make in (
        lambda: among_the_datas(("m1", "zebra"), MODEL),
        lambda: several_are_right(("clock",), [("m1", "zebra")], MODEL),
    ):
        with pytest.raises(ValueError, match="1 of 2 classes that the model does not know: zebra"):
            make()
