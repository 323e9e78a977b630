"""Random subsets of training images, each within every larger one of the same seed (Section 4.3,
Figure 4)."""

import numpy as np

from vitkit.data.sources.source import Source, subset


def subset_size(images: int, share: float) -> int:
    """How many of so many images a share is, or a number of images if it is above 1. Raises
    ValueError for a number that is none, and for more than there are."""
    if not 0 < share <= max(images, 1):
        raise ValueError(
            f"subset is {share:g}; it is a share of the {images:,} training images, above 0 and up to "
            "1, or a number of them"
        )
    count = share
    if share <= 1:
        count = share * images
    return max(round(count), 1)


def random_subset(source: Source, count: int, seed: int, by_class: bool = False) -> Source:
    """So many examples, drawn by `seed`, in the order of the source: those of a smaller count are
    among them.

    by_class: every class has its share of them, rounded up or down, and at least one example if there
    are as many examples as classes. It is for sources whose targets are one class each.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    order = random.permutation(len(source))
    if by_class:
        order = order[_by_turns(source.targets[order])]
    return subset(source, np.sort(order[:count]))


def _by_turns(classes: np.ndarray) -> np.ndarray:
    """An order of examples with these classes, (N,): the k-th of n examples of a class stands at k / n
    of it, k from 0, so that every beginning has each class's share."""
    turns = np.empty(len(classes))
    for number in np.unique(classes):
        members = np.flatnonzero(classes == number)
        turns[members] = np.arange(len(members)) / len(members)
    return np.argsort(turns, kind="stable")
