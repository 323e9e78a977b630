"""Answers that differ from a model's by a tie, in every command that compares answers."""

import numpy as np
import torch

from vitkit.apps.faster.losses import ReferenceComparison
from vitkit.evaluation import tied_answers
from vitkit.exporting.agreement import TOLERANCE, compared
from vitkit.exporting.bounds import keeps_accuracy, wrong

LABELS = ("ant", "bee", "wasp")


def test_a_tie_is_another_class_with_the_same_probability():
    assert not tied_answers(
        np.array([[3e-5, 2e-5, 1e-5]]), np.array([1])
    ).any()  # of very many classes
    probabilities = np.array([[0.5, 0.5 - 1e-6, 1e-6], [0.5, 0.4, 0.1], [0.5, 0.5, 0.0]])
    assert tied_answers(probabilities, np.array([1, 1, 0])).tolist() == [True, False, False]
    assert tied_answers(probabilities, np.array([1, 1, 2]), 0.2).tolist() == [True, True, False]


def even(images):
    """The probabilities of a model that cannot tell two classes apart, and those of a file that rounds
    otherwise: (N, 3) each."""
    expected = np.tile(np.float32([0.45 + 1e-7, 0.45, 0.1]), (images, 1))
    given = expected[:, [1, 0, 2]]
    return expected, given


def test_an_exported_file_may_decide_ties_otherwise():
    expected, given = even(40)
    agreement = compared(expected, given, ["ant"] * 40, LABELS, "photographs")
    assert agreement.same == 1 and agreement.ties == 40
    assert (agreement.accuracy, agreement.models_accuracy) == (0, 1)  # as they are counted
    assert agreement.lost == 0 and agreement.interval_of_loss[0] < 0
    assert wrong(agreement, "float32", "softmax", 0.99) == ""
    assert "(counting 40 ties: two classes whose probabilities are" in str(agreement)
    assert "less than 0.001 % apart)" in str(agreement)


def test_what_is_no_tie_is_another_answer():
    expected, given = even(40)
    given[:20] = [0.1, 0.2, 0.7]
    agreement = compared(expected, given, [None] * 40, LABELS, "photographs")
    assert agreement.same == 0.5 and agreement.ties == 20
    assert "50.0% of its answers" in wrong(agreement, "float32", "softmax", 0.99)


def test_a_tie_that_float32_tells_apart_may_be_a_loss():
    """A tenth of the images, all turned the same way, of which nobody knows the right answers."""
    expected = np.tile(np.float32([0.9, 0.05, 0.05]), (500, 1))
    expected[:50] = [0.401, 0.399, 0.2]
    given = expected.copy()
    given[:50] = [0.399, 0.401, 0.2]
    agreement = compared(expected, given, [None] * 500, LABELS, "photographs", TOLERANCE["int8"])
    assert agreement.same == 1 and (agreement.ties, agreement.exact_ties) == (50, 0)
    assert agreement.interval_of_loss[1] > 0.1 and not keeps_accuracy(agreement)
    exact = compared(*even(500), [None] * 500, LABELS, "photographs", TOLERANCE["int8"])
    assert exact.exact_ties == 500 and keeps_accuracy(exact)


def test_shorter_numbers_have_more_ties():
    expected = np.tile(np.float32([0.45, 0.447, 0.103]), (10, 1))
    given = expected[:, [1, 0, 2]]
    ties = {}
    for precision, tolerance in TOLERANCE.items():
        ties[precision] = compared(expected, given, [None] * 10, LABELS, "", tolerance).ties
    assert ties == {"float32": 0, "float16": 0, "bfloat16": 10, "int8": 10}


def test_a_candidate_loses_nothing_by_a_tie():
    """Which `faster` judges: the reference is right on all of them by chance alone."""
    reference = torch.tensor([[2.0, 2.0 - 1e-7, 0.0]], dtype=torch.float64).repeat(50, 1)
    comparison = ReferenceComparison(reference, np.zeros(50, int))
    evaluated = comparison.of(reference[:, [1, 0, 2]])
    assert evaluated.lost == evaluated.won == evaluated.differing == 0
    evaluated = comparison.of(torch.tensor([[0.0, 0.0, 2.0]]).repeat(50, 1))
    assert evaluated.lost == evaluated.differing == 40
