"""Folds: which examples are left out together, to be answered by a fit to all others.

One example of each class is left out at a time. Left out alone, it would be given to another class more
often than a new image is, for of its class alone an example is missing. Images of one group, such as a
burst, are never on both sides.

Legend: N examples, K classes, M folds, B the most examples of one.
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
    """The examples that are left out together."""

    members: Tensor
    """The examples of each fold, int64 (M, B); -1 for none. An example may be in several: of a small
    class one is left out with every one of a large class."""
    answered: Tensor
    """Whether the fold answers it, bool (M, B): each example is answered once."""
    fold: Tensor
    """The fold that answers each example, int64 (N,)."""
    more: Tensor
    """By how much the others of an example's class count more, so that they count for as much as the
    class does with it: float64 (N,)."""
    known: Tensor
    """Whether a fit without the fold knows the example's class, bool (N,): not if it is the only one, or
    group, of its class."""

    def of(self, examples: Tensor) -> "Folds":
        """The folds of some examples, (n,), which are all that these folds answer."""
        number = torch.full((len(self.fold),), -1)
        number[examples] = torch.arange(len(examples))
        kept = self.fold[examples].unique()
        place = torch.full((len(self.members),), -1)
        place[kept] = torch.arange(len(kept))
        members = self.members[kept]
        is_there = (members >= 0) & (number[members] >= 0)
        return Folds(
            torch.where(is_there, number[members], -1),
            self.answered[kept] & is_there,
            place[self.fold[examples]],
            self.more[examples],
            self.known[examples],
        )


def folds_of(groups: np.ndarray) -> Folds:
    """A fold for each group of examples: those that have the same number, (N,)."""
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
    """Folds of one example of each class, drawn at random but always alike; of large classes, of a
    hundredth of their examples.

    classes: (N,), from 0.
    groups: examples with the same number (N,) stay together; None if each is a group of its own.
    most: folds, at most; None for FOLDS, or as many as keep each below FOLD examples.
    keys: random numbers, (N,), by which examples are drawn. If they come with the examples, folds do
        not depend on the order of these.

    A class that is one group has a fold of its own: without it nothing knows the class.
    """
    count = len(classes)
    if groups is None:
        groups = np.arange(count)
    if most is None:
        most = max(FOLDS, -(-count // FOLD))
    if keys is None:
        keys = np.random.default_rng(0).permutation(count)
    chunks = [_chunks(own, most, keys) for own in _units(classes, groups)]

    # Of each class its next chunk, from the first again if it has fewer than others
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
    """The groups of each class, as the examples of each. A group of several classes is one of the
    class that most of it has."""
    units: list[list[np.ndarray]] = [[] for _ in range(int(classes.max()) + 1)]
    for examples in _members(groups):
        own = np.bincount(classes[examples]).argmax()
        units[own].append(examples)
    return units


def _members(groups: np.ndarray) -> list[np.ndarray]:
    """The examples of each group."""
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
    """Folds of these examples, some of which each answers."""
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

    # How many of its class an example of a class is left out with
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
