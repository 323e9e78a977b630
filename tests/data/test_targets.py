"""What an example's answer may be: Lists keep several classes an image."""

import numpy as np
import torch

from vitkit.data import Preprocessing, Source, eval_batches, split_off, subset, together
from vitkit.data.stores import Arrays
from vitkit.data.targets import Lists

SEVERAL = [[0, 2], [], [1], [2, 1, 2]]


def source(targets, target, labels=()):
    images = np.zeros((len(targets), 4, 4), np.uint8)
    return Source(Arrays("x", images), np.arange(len(targets)), targets, labels, target)


def test_lists_are_taken_joined_and_made_rows_of_ones():
    lists = Lists.of(SEVERAL)
    assert [lists.row(i).tolist() for i in range(4)] == [[0, 2], [], [1], [2, 1]]
    picked = lists[np.array([3, 1, 0, 0])]
    assert [picked.row(i).tolist() for i in range(4)] == [[2, 1], [], [0, 2], [0, 2]]
    assert picked.multi_hot(3).tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 1], [1, 0, 1]]
    assert lists[np.array([], int)].multi_hot(3).shape == (0, 3)
    first, second = (source(lists, "classes", ("a", "b", "c")) for _ in "12")
    both = together(first, subset(second, [2, 0]))
    assert [both.targets.row(i).tolist() for i in range(6)] == [
        [0, 2],
        [],
        [1],
        [2, 1],
        [1],
        [0, 2],
    ]


def test_a_batch_holds_what_each_kind_of_target_is():
    kinds = {
        "class": (np.array([1, 0, 1]), torch.tensor([1, 0, 1]), "b"),
        "classes": (Lists.of([[0, 1], [], [1]]), torch.tensor([[1.0, 1], [0, 0], [0, 1]]), "a, b"),
        "number": (np.array([2.5, -1, 0], np.float32), torch.tensor([2.5, -1, 0]), "2.5"),
        "none": (np.full(3, -1), torch.tensor([-1, -1, -1]), None),
    }
    for kind, (targets, expected, answer) in kinds.items():
        part = source(targets, kind, ("a", "b") if kind in ("class", "classes") else ())
        first, second = eval_batches(part, Preprocessing(size=(4, 4)), 2, 0)
        assert torch.equal(torch.cat([first.targets, second.targets])[:3], expected), kind
        assert first.targets.dtype == expected.dtype and part.answer(0) == answer
        assert not second.targets[1].any()  # padding is zeros
        train, test = split_off(part, 0.4, 0)
        assert sorted([*train, *test]) == [0, 1, 2] and len(test) == 1
