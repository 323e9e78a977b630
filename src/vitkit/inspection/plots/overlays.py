"""Maps of patches, laid over the image that the patches were cut from.

Patches may overlap. What they have in common are cells: rectangles whose pixels are in the same
patches. Where patches lie side by side, each is a cell.

Legend: B images, (h, w) the grid of patches, (m, n) that of cells.
"""

from math import gcd

import torch
from torch import Tensor

from vitkit.models import Tiling


def over_image(maps: Tensor, tiling: Tiling) -> Tensor:
    """Maps of patches, (B, h, w), as maps of cells, (B, m, n): the mean of the patches that a cell is
    in. Cells are equally large and cover the image; of patches side by side the maps are the same."""
    if not tiling.overlaps:
        return maps
    down = membership(maps.shape[1], tiling.size[0], tiling.stride[0]).to(maps)  # (m, h)
    across = membership(maps.shape[2], tiling.size[1], tiling.stride[1]).to(maps)  # (n, w)
    return down @ maps @ across.T


def membership(count: int, size: int, stride: int) -> Tensor:
    """How much of each patch along one side is in a cell's mean: float32 (cells, count), each row
    with the sum 1."""
    cell = gcd(size, stride)  # pixels
    first = torch.arange(count) * (stride // cell)  # of each patch
    number = torch.arange((size + (count - 1) * stride) // cell)[:, None]
    inside = (number >= first) & (number < first + size // cell)
    return inside / inside.sum(1, keepdim=True)
