"""Masks as the targets of a source: each is read when a batch needs it, and moved as its image is moved.

Legend: N images, h w pixels.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitkit.data.masks.coco import CocoMasks
from vitkit.data.masks.legend import Legend
from vitkit.data.masks.reading import check_size, codes_of
from vitkit.data.sources.stores import Files, Store


@dataclass(frozen=True, eq=False)
class Masks:
    """The masks of N images. Travels to worker processes."""

    store: Store
    """Where the masks are."""
    rows: np.ndarray
    """Which row of the store each mask is: int64 (N,)."""
    legend: Legend
    """What the values of masks stand for."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: np.ndarray) -> "Masks":
        """The masks of these images, given by int64 or bool as in numpy."""
        return replace(self, rows=self.rows[rows])

    def mask(self, i: int) -> np.ndarray:
        """The class number of every pixel of image i, uint8 (h, w), IGNORED where pixels do not count. Raises
        BadImage if the mask cannot be read, and BadData for a value that is no class."""
        name = self.name(i)
        codes = codes_of(self.store.read(int(self.rows[i])), name, self.legend.coloured)
        return self.legend.class_map(codes, name)

    def read(self, i: int, size: tuple[int, int], image: str = "") -> np.ndarray:
        """`mask` of image i, which has this (height, width) and, in errors, the name `image`. Raises BadData for a mask
        of another size too."""
        mask = self.mask(i)
        check_size(mask, size, self.name(i), image)
        return mask

    def name(self, i: int) -> str:
        """The name by which a user knows the mask of image i."""
        name = self.store.name(int(self.rows[i]))
        if isinstance(self.store, Files | CocoMasks):
            return name
        return f"the mask of {name}"

    def prepare(self) -> None:
        """Load data that worker processes should share into memory; call this before they are started."""
        self.store.prepare(self.rows)

    def tobytes(self) -> bytes:
        """A digest that identifies these masks without reading them: their names and sizes, and the legend."""
        digest = hashlib.sha256(json.dumps(self.legend.to_json(), sort_keys=True).encode())
        for row in self.rows.tolist():
            digest.update(self.store.identity(row).encode("utf-8", "surrogateescape") + b"\0")
        return digest.digest()


def joined(several: Sequence[Masks]) -> Masks:
    """The masks of several parts of one data set."""
    first = several[0]
    assert all(
        each.store is first.store for each in several
    )  # parts of one data set share its store
    return replace(first, rows=np.concatenate([each.rows for each in several]))
