"""What an example's answer is: a class, several classes, a number, or nothing at all.

Legend: N examples, B batch, K classes, M classes of all examples together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

TargetKind = Literal["class", "classes", "number", "none"]
NO_TARGET = -1  # what a batch holds for an example without a target: no class has this number


@dataclass(frozen=True, eq=False)
class Lists:
    """A list of values for each of N examples, end to end: 21,000 classes of 10 million images fit
    in memory.

    The values are class numbers, or the classes' names before they are numbered.
    """

    values: np.ndarray
    """(M,): the lists of all examples, one after the other."""
    ends: np.ndarray
    """int64 (N,): where the list of each example ends."""

    @classmethod
    def of(cls, lists: Sequence[Sequence]) -> "Lists":
        """The same lists, without repetitions in a list; values are all int or all str."""
        flat = []
        ends = []
        for values in lists:
            flat += dict.fromkeys(values)
            ends.append(len(flat))
        dtype = object if flat and isinstance(flat[0], str) else np.int64
        return cls(np.array(flat, dtype=dtype), np.array(ends, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, rows: np.ndarray) -> "Lists":
        """The lists of these rows, int64 or bool as numpy takes them."""
        counts = self.counts[rows]
        ends = np.cumsum(counts, dtype=np.int64)
        old_starts = (self.ends - self.counts)[rows]
        new_starts = ends - counts
        # Value j of the result, which is of list i, was value j - new_starts[i] + old_starts[i].
        shift = np.repeat(old_starts - new_starts, counts)
        return Lists(self.values[np.arange(counts.sum()) + shift], ends)

    @property
    def counts(self) -> np.ndarray:
        """int64 (N,): the length of each list."""
        return np.diff(self.ends, prepend=0)

    @property
    def owners(self) -> np.ndarray:
        """int64 (M,): which example each value belongs to."""
        return np.repeat(np.arange(len(self)), self.counts)

    def row(self, i: int) -> np.ndarray:
        """The values of example i."""
        start = int(self.ends[i - 1]) if i else 0
        return self.values[start : int(self.ends[i])]

    def multi_hot(self, classes: int) -> np.ndarray:
        """float32 (N, K): 1 where an example is of a class."""
        rows = np.zeros((len(self), classes), dtype=np.float32)
        rows[self.owners, self.values] = 1
        return rows

    def tobytes(self) -> bytes:
        """The bytes that tell these lists from others, for a digest."""
        return self.ends.tobytes() + self.values.tobytes()


def concatenate(several: Sequence[np.ndarray] | Sequence[Lists]) -> np.ndarray | Lists:
    """The targets of several parts of one data set, one after the other."""
    if not isinstance(several[0], Lists):
        return np.concatenate(several)
    counts = np.concatenate([lists.counts for lists in several])
    values = np.concatenate([lists.values for lists in several])
    return Lists(values, np.cumsum(counts, dtype=np.int64))


# The labels of rows, before they are targets: class numbers, int64 (N,); class names, objects (N,); numbers to
# predict, float64 (N,); several classes, by number or by name, as Lists of N; None for images
# without labels.
RowLabels = np.ndarray | Lists | None
