"""Patches as pixels, and some of them: what objectives that hide parts of an image share.

Legend: B batch, C channels, N = h·w patches, M some of them, P pixels along a patch's side.
"""

import torch
from torch import Tensor, nn

from vitkit.models import VisionTransformer


def patchify(images: Tensor, side: int) -> Tensor:
    """(B, C, h·P, w·P) -> (B, N, P·P·C), raster order, channels last within a patch."""
    b, c, height, width = images.shape
    x = images.view(b, c, height // side, side, width // side, side)  # (B, C, h, P, w, P)
    return x.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def unpatchify(patches: Tensor, grid: tuple[int, int], side: int) -> Tensor:
    """(B, N, P·P·C) -> (B, C, h·P, w·P): `patchify` undone."""
    x = patches.unflatten(2, (side, side, -1)).unflatten(1, grid)  # (B, h, w, P, P, C)
    return x.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)


def gather_patches(x: Tensor, which: Tensor) -> Tensor:
    """(B, N, ...), (B, M) -> (B, M, ...), those patches."""
    return x.gather(1, _index(which, x))


def scatter_patches(x: Tensor, which: Tensor, values: Tensor) -> Tensor:
    """(B, N, ...), (B, M), (B, M, ...) -> (B, N, ...) with those patches replaced."""
    return x.scatter(1, _index(which, x), values)


def _index(which: Tensor, x: Tensor) -> Tensor:
    """(B, M) -> (B, M, ...), repeated along the axes that follow the patches of x."""
    ones = [1] * (x.ndim - 2)
    return which.view(*which.shape, *ones).expand(-1, -1, *x.shape[2:])


def mean_colours(levels: Tensor, side: int, bins: int) -> Tensor:
    """uint8 (B, C, h·P, w·P) -> int64 (B, h, w): the mean colour of every square as one number, red
    counting most.

    A channel's mean m from 0 to 1 is floor(bins · m), bins - 1 where m is 1. In integers, for means
    fall on the edges between two bins more often than one thinks.
    """
    b, c, height, width = levels.shape
    squares = levels.long().view(b, c, height // side, side, width // side, side)
    sums = squares.sum((3, 5))  # (B, C, h, w), from 0 to 255·P·P
    digits = (sums * bins // (255 * side**2)).clamp(max=bins - 1)
    return sum(digits[:, i] * bins ** (c - 1 - i) for i in range(c))


def colour_levels(colours: Tensor, channels: int, bins: int) -> Tensor:
    """Numbers of `mean_colours`, in any shape (...) -> (..., C) the middle of their bins, from 0 to
    255."""
    digits = [colours // bins ** (channels - 1 - i) % bins for i in range(channels)]
    return (torch.stack(digits, -1) + 0.5) * (255 / bins)


def with_patches(model: nn.Module) -> VisionTransformer:
    """The model, if it has more than one patch to hide some of. Raises ValueError if it has not."""
    if not isinstance(model, VisionTransformer):
        raise ValueError(
            f"a {type(model).__name__} has no patch embeddings to hide; choose a Vision Transformer"
        )
    if model.config.grid == (1, 1):
        raise ValueError(
            "an image of one patch has no other patches to predict it from; choose a smaller patch"
        )
    return model
