"""What objectives that hide some patches of an image share: images as patches and back, some
patches of all, and a patch's mean colour as a class.

Legend: B batch, C channels, (h, w) grid, N = h·w patches, M some of them, P pixels along a patch's
side, which may be others down than across.
"""

import torch
from torch import Tensor, nn

from vitkit.models import Grid, VisionTransformer, as_pair


def patchify(images: Tensor, size: Grid | int) -> Tensor:
    """(B, C, h·P, w·P) -> (B, N, P·P·C), in raster order, channels last within a patch. `size` is a
    patch's height and width, or the side of a square."""
    b, c, height, width = images.shape
    down, across = as_pair(size)
    x = images.view(b, c, height // down, down, width // across, across)  # (B, C, h, P, w, P)
    x = x.permute(0, 2, 4, 3, 5, 1)  # (B, h, w, P, P, C)
    return x.flatten(3).flatten(1, 2)


def unpatchify(patches: Tensor, grid: Grid, size: Grid | int) -> Tensor:
    """(B, N, P·P·C) -> (B, C, h·P, w·P): the inverse of `patchify`."""
    x = patches.unflatten(2, (*as_pair(size), -1)).unflatten(1, grid)  # (B, h, w, P, P, C)
    x = x.permute(0, 5, 1, 3, 2, 4)  # (B, C, h, P, w, P)
    return x.flatten(4).flatten(2, 3)


def gather_patches(x: Tensor, which: Tensor) -> Tensor:
    """(B, N, ...), (B, M) indices -> (B, M, ...), those patches."""
    return x.gather(1, _index(which, x))


def scatter_patches(x: Tensor, which: Tensor, values: Tensor) -> Tensor:
    """(B, N, ...), (B, M) indices, (B, M, ...) values -> (B, N, ...) with those patches
    replaced."""
    return x.scatter(1, _index(which, x), values)


def _index(which: Tensor, x: Tensor) -> Tensor:
    """(B, M) -> (B, M, ...), repeated along the axes of x that follow its patches, as gather and
    scatter want it."""
    ones = [1] * (x.ndim - 2)
    return which.view(*which.shape, *ones).expand(-1, -1, *x.shape[2:])


def mean_colours(levels: Tensor, size: Grid | int, bins: int) -> Tensor:
    """uint8 (B, C, h·P, w·P) -> int64 (B, h, w): the mean colour of every part of this size as one of
    bins^C classes.

    The mean m of a channel, from 0 to 1, falls into bin floor(bins · m), the last one if m is 1.
    The bins are the digits of the class, red's the highest.
    """
    b, c, height, width = levels.shape
    down, across = as_pair(size)
    parts = levels.long().view(b, c, height // down, down, width // across, across)
    sums = parts.sum((3, 5))  # (B, C, h, w), from 0 to 255·P·P

    # In integers: means fall on the edge between two bins more often than one thinks
    digits = (sums * bins // (255 * down * across)).clamp(max=bins - 1)
    return sum(digits[:, i] * bins ** (c - 1 - i) for i in range(c))


def colour_levels(colours: Tensor, channels: int, bins: int) -> Tensor:
    """Classes of `mean_colours`, in any shape (...) -> (..., C), the middle of each channel's bin,
    from 0 to 255."""
    digits = [colours // bins ** (channels - 1 - i) % bins for i in range(channels)]
    return (torch.stack(digits, -1) + 0.5) * (255 / bins)


def with_patches(model: nn.Module) -> VisionTransformer:
    """The model itself. Raises ValueError if it does not have several patches, so that some can be
    hidden, or if they overlap, so that the others show what a hidden one is to be."""
    if not isinstance(model, VisionTransformer):
        raise ValueError(
            f"a {type(model).__name__} has no patch embeddings to hide; choose a Vision Transformer"
        )
    if model.config.grid == (1, 1):
        raise ValueError(
            "an image of one patch has no other patches to predict it from; choose a smaller patch"
        )
    if model.config.tiling.overlaps:
        raise ValueError(
            f"a hidden patch can be seen in its neighbours, as patches overlap (stride "
            f"{model.config.stride}); to hide some, leave out --model.stride, and give the stride to "
            "the fine-tuning"
        )
    return model
