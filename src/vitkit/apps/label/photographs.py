"""The photographs of a sitting: which there are, and what the model has seen of them.

Legend: N photographs, D width of the features.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np


class PhotographFolder:
    """The photographs of a folder, by rows. Not for several threads at once."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """All that there ever were, relative to their folder, by row."""
        self.row: dict[str, int] = {}
        self.features = np.empty((0, 0), np.float16)
        """What the model saw, (N, D); at least of those that it has seen."""
        self.is_seen = np.empty(0, bool)
        self.broken: dict[str, str] = {}
        """Those that cannot be read or are gone, and why."""
        self.drawn: list[str] = []
        """All of them in an order that nobody chose, the same whenever a photograph arrives."""

    def arrive(self, names: Sequence[str]) -> None:
        """Add photographs that have arrived in the folder."""
        new = [name for name in names if name not in self.row]
        if not new:
            return
        for name in new:
            self.row[name] = len(self.names)
            self.names.append(name)
            if problem := _problem_of_name(name):  # neither a page nor a table can name it
                self.broken[name] = problem
        is_seen = np.zeros(len(self.names), bool)
        is_seen[: len(self.is_seen)] = self.is_seen
        self.is_seen = is_seen
        self.drawn = sorted(self.names, key=_lot)

    def see(self, names: Sequence[str], features: np.ndarray) -> None:
        """Add the features of photographs, (n, D)."""
        if len(self.features) < len(self.names) or not self.features.shape[1]:
            grown = np.zeros((len(self.names), features.shape[1]), np.float16)
            grown[: len(self.features), : self.features.shape[1]] = self.features
            self.features = grown
        rows = [self.row[name] for name in names]
        most = np.finfo(np.float16).max
        self.features[rows] = np.clip(features, -most, most)
        self.is_seen[rows] = True

    def recover(self, name: str) -> None:
        """A photograph that could not be read may be readable now."""
        if not _problem_of_name(name):
            self.broken.pop(name, None)

    def unseen(self, first: Iterable[str], most: int | None = None) -> list[str]:
        """The photographs that the model has to process, at most this many; those of `first` come
        first."""
        waits = ~self.is_seen
        waits[self.rows(self.broken)] = False
        leading = [row for row in self.rows(first) if waits[row]]
        waits[leading] = False
        rows = [*leading, *np.flatnonzero(waits)[:most].tolist()]
        return [self.names[row] for row in rows[:most]]

    def rows(self, names: Iterable[str]) -> list[int]:
        """Rows of the photographs that exist now."""
        return [self.row[name] for name in names if name in self.row]

    def was_seen(self, name: str) -> bool:
        """Whether a photograph is there, and the model has seen it."""
        return name in self.row and bool(self.is_seen[self.row[name]])

    def seen_but(self, names: Iterable[str]) -> np.ndarray:
        """Which photographs the model has seen, without those of `names`: bool (N,)."""
        seen = self.is_seen.copy()
        seen[self.rows(names)] = False
        return seen


def _problem_of_name(name: str) -> str:
    """Why the name of a file cannot stand in a table of labels; "" if it can."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8; rename the file"
    if any(unicodedata.category(character) == "Cc" for character in name):
        return "its name holds control characters; rename the file"
    return ""


def _lot(name: str) -> bytes:
    """What decides when a photograph is drawn."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
