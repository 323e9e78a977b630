"""Whole pictures, one at a time, for models that prepare images themselves."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from vitkit.data.images.files import open_image
from vitkit.data.images.preprocessing import Preprocessing
from vitkit.data.loading.loader import Batch
from vitkit.data.loading.workers import in_order
from vitkit.data.sources.source import Source


@dataclass(frozen=True, eq=False)
class WholePictures:
    """Every example of a source once, in batches of one image, uint8 (1, 3, height, width), upright.
    It has a length, and each iteration begins anew."""

    source: Source
    workers: int
    share: tuple[int, int] = (0, 1)
    """This rank, and how many there are; all get equally many batches."""

    def __len__(self) -> int:
        return -(-len(self.source) // self.share[1])

    def __iter__(self) -> Iterator[Batch]:
        self.source.prepare()
        rank, world_size = self.share
        indices = range(rank, len(self) * world_size, world_size)
        return in_order(partial(_whole, self.source), indices, min(self.workers, len(self)))


def _whole(source: Source, index: int) -> Batch:
    """The batch of an example; behind the last one, the last again as padding. Raises BadImage."""
    is_real = index < len(source)
    index = min(index, len(source) - 1)
    data, _ = source[index]
    picture = open_image(data, source.name(index))
    colours = Preprocessing().decode(picture)  # red, green and blue, of 8 bits
    pixels = np.ascontiguousarray(colours.transpose(2, 0, 1))
    return Batch(
        torch.from_numpy(pixels)[None],
        torch.from_numpy(source.targets_of(np.array([index]))),
        torch.tensor([is_real]),
        torch.tensor([index]),
    )
