"""Folds of cross-validation: which examples are left out together, and predicted by a fit to all others.

A fold has one example of each class. An example that is left out alone would be misclassified more often
than a new image, because the fit has one example less of its class only. Images of one group, such as a
burst, are always in the same fold.

Legend: N examples, K classes, M folds, B examples of the largest fold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

FOLDS = 100  # largest number of folds, unless one would have more than FOLD examples
FOLD = 256  # largest number of examples in a fold


@dataclass(frozen=True, eq=False)
class Folds:
    """The folds of a cross-validation."""

    members: Tensor
    """The examples of each fold, int64 (M, B), padded with -1. An example may be in several folds: those of
    a small class are left out again and again, along with the examples of a larger class."""
    answered: Tensor
    """Whether the fold predicts the example, bool (M, B): each example is predicted by one fold."""
    fold: Tensor
    """The fold that predicts each example, int64 (N,)."""
    more: Tensor
    """Factor of an example's weight that makes up for the left-out examples of its class, so that the class
    has the same total weight in each fit: float64 (N,)."""
    known: Tensor
    """Whether the fit without the fold has an example of the example's class, bool (N,): False for the only
    example, or group, of a class."""

    def of(self, examples: Tensor) -> "Folds":
        """The folds of a subset of the examples, given by their indices (n,). With an example, the subset must
        contain all other examples that the same fold predicts."""
        new_index = torch.full((len(self.fold),), -1)
        new_index[examples] = torch.arange(len(examples))
        kept = self.fold[examples].unique()
        new_fold = torch.full((len(self.members),), -1)
        new_fold[kept] = torch.arange(len(kept))
        members = self.members[kept]
        is_kept = (members >= 0) & (new_index[members] >= 0)
        return Folds(
            torch.where(is_kept, new_index[members], -1),
            self.answered[kept] & is_kept,
            new_fold[self.fold[examples]],
            self.more[examples],
            self.known[examples],
        )


def folds_of(groups: np.ndarray) -> Folds:
    """A fold for each group of examples, from the number of each one's group, (N,)."""
    folds = _members(groups)
    everything = [np.ones(len(examples), dtype=bool) for examples in folds]
    found = _folds(folds, everything, np.arange(len(groups)))
    return replace(found, known=torch.ones_like(found.known))


def balanced_folds(
    classes: np.ndarray,
    groups: np.ndarray | None = None,
    most: int | None = None,
    keys: np.ndarray | None = None,
) -> Folds:
    """Folds with one example of each class, or a hundredth of a large class's examples, drawn with a fixed
    seed.

    classes: class of each example, (N,), from 0.
    groups: examples with the same number (N,) stay together; None if each is a group of its own.
    most: largest number of folds; None for FOLDS, or as many as keep each below FOLD examples.
    keys: random numbers, (N,), that decide the draw. If they are derived from the examples, the folds do
        not depend on the examples' order.

    A class with a single group is a fold of its own: a fit without it does not know the class.
    """
    count = len(classes)
    if groups is None:
        groups = np.arange(count)
    if most is None:
        most = max(FOLDS, -(-count // FOLD))
    if keys is None:
        keys = np.random.default_rng(0).permutation(count)
    chunks = [_chunks(own, most, keys) for own in _units(classes, groups)]

    # A fold has the next chunk of each class, starting over for classes with fewer chunks than others
    several = [own for own in chunks if len(own) > 1]
    folds = []
    answered = []
    for number in range(max(map(len, several), default=0)):
        parts = [own[number % len(own)] for own in several]
        is_first = [np.full(len(own[number % len(own)]), number < len(own)) for own in several]
        folds.append(np.concatenate(parts))
        answered.append(np.concatenate(is_first))
    for own in chunks:
        if len(own) == 1:
            folds.append(own[0])
            answered.append(np.ones(len(own[0]), dtype=bool))
    return _folds(folds, answered, classes)


def _units(classes: np.ndarray, groups: np.ndarray) -> list[list[np.ndarray]]:
    """The groups of each class, each as the indices of its examples. A group with several classes belongs
    to the most frequent one."""
    units: list[list[np.ndarray]] = [[] for _ in range(int(classes.max()) + 1)]
    for examples in _members(groups):
        own = np.bincount(classes[examples]).argmax()
        units[own].append(examples)
    return units


def _members(groups: np.ndarray) -> list[np.ndarray]:
    """The indices of the examples of each group."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order])) + 1
    return np.split(order, starts)


def _chunks(units: Sequence[np.ndarray], most: int, keys: np.ndarray) -> list[np.ndarray]:
    """Splits the groups of a class into a limited number of chunks of about equal size."""
    if not units:
        return []
    sizes = np.array([len(unit) for unit in units])
    first = np.array([keys[unit].min() for unit in units])
    order = np.lexsort((first, -sizes))  # the largest first
    number = min(most, len(units))
    if sizes.max() == 1:
        shuffled = np.concatenate([units[i] for i in order])
        return np.array_split(shuffled, number)
    chunks: list[list[np.ndarray]] = [[] for _ in range(number)]
    filled = np.zeros(number, dtype=int)
    for i in order:
        smallest = filled.argmin()
        chunks[smallest].append(units[i])
        filled[smallest] += sizes[i]
    return [np.concatenate(chunk) for chunk in chunks]


def _folds(
    folds: Sequence[np.ndarray], answered: Sequence[np.ndarray], classes: np.ndarray
) -> Folds:
    """Folds from the examples of each, and whether the fold predicts each of them."""
    longest = max(map(len, folds))
    members = np.full((len(folds), longest), -1)
    answers = np.zeros((len(folds), longest), dtype=bool)
    fold = np.zeros(len(classes), dtype=np.int64)
    lost = np.zeros(len(classes))
    for number, (examples, is_first) in enumerate(zip(folds, answered, strict=True)):
        members[number, : len(examples)] = examples
        answers[number, : len(examples)] = is_first
        fold[examples[is_first]] = number
        lost[examples[is_first]] = np.bincount(classes[examples])[classes[examples[is_first]]]

    # The mean number of examples of the class that are left out with an example
    sizes = np.bincount(classes)
    mean = np.bincount(classes, lost) / np.maximum(sizes, 1)
    more = np.where(mean < sizes, sizes / np.maximum(sizes - mean, 1e-9), 1)
    return Folds(
        torch.from_numpy(members),
        torch.from_numpy(answers),
        torch.from_numpy(fold),
        torch.from_numpy(more[classes]),
        torch.from_numpy(lost < sizes[classes]),
    )
