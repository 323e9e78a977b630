"""The images of a labelling session, and their features.

Legend: N images, D width of the features.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np


class PhotographFolder:
    """The images of a folder, by row. Not thread-safe."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """Names of all images so far, relative to their folder, by row."""
        self.row: dict[str, int] = {}
        self.features = np.empty((0, 0), np.float16)
        """Features, (N, D); valid only in the rows of images with features."""
        self.is_seen = np.empty(0, bool)
        self.broken: dict[str, str] = {}
        """The unreadable and deleted images, and why."""
        self.drawn: list[str] = []
        """All images in a pseudo-random order, which new images do not change."""

    def arrive(self, names: Sequence[str]) -> None:
        """Add images that have appeared in the folder."""
        new = [name for name in names if name not in self.row]
        if not new:
            return
        for name in new:
            self.row[name] = len(self.names)
            self.names.append(name)
            if problem := _problem_of_name(name):  # a name that neither a page nor a table can hold
                self.broken[name] = problem
        is_seen = np.zeros(len(self.names), bool)
        is_seen[: len(self.is_seen)] = self.is_seen
        self.is_seen = is_seen
        self.drawn = sorted(self.names, key=_sort_key)

    def see(self, names: Sequence[str], features: np.ndarray) -> None:
        """Add the features of images, (n, D)."""
        if len(self.features) < len(self.names) or not self.features.shape[1]:
            grown = np.zeros((len(self.names), features.shape[1]), np.float16)
            grown[: len(self.features), : self.features.shape[1]] = self.features
            self.features = grown
        rows = [self.row[name] for name in names]
        most = np.finfo(np.float16).max
        self.features[rows] = np.clip(features, -most, most)
        self.is_seen[rows] = True

    def recover(self, name: str) -> None:
        """Try an unreadable image again."""
        if not _problem_of_name(name):
            self.broken.pop(name, None)

    def unseen(self, first: Iterable[str], most: int | None = None) -> list[str]:
        """The images without features, at most this many; those of `first` come
        first."""
        waits = ~self.is_seen
        waits[self.rows(self.broken)] = False
        leading = [row for row in self.rows(first) if waits[row]]
        waits[leading] = False
        rows = [*leading, *np.flatnonzero(waits)[:most].tolist()]
        return [self.names[row] for row in rows[:most]]

    def rows(self, names: Iterable[str]) -> list[int]:
        """Rows of those images that exist now."""
        return [self.row[name] for name in names if name in self.row]

    def was_seen(self, name: str) -> bool:
        """Whether an image exists and has features."""
        return name in self.row and bool(self.is_seen[self.row[name]])

    def seen_but(self, names: Iterable[str]) -> np.ndarray:
        """The images with features, except those of `names`: bool (N,)."""
        seen = self.is_seen.copy()
        seen[self.rows(names)] = False
        return seen


def _problem_of_name(name: str) -> str:
    """Why a file's name cannot be in a table of labels; "" if it can."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8; rename the file"
    if any(unicodedata.category(character) == "Cc" for character in name):
        return "its name holds control characters; rename the file"
    return ""


def _sort_key(name: str) -> bytes:
    """The sort key of the pseudo-random order: a digest of the name."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
