"""Images at their own proportions (NaViT, Dehghani et al. 2023; SigLIP 2's NaFlex): on which grid of
patches each is read, and batches of images of several sizes.

A batch of images of one size is an array (B, C, h, w). Of several sizes it is one row of numbers an image,
(B, M): how many patches are in a column and in a row of the image, in two numbers each, its C h w values, and
numbers that mean nothing. Whoever computes it takes it apart into images of one size (`computed_by_size`).

Legend: B batch, C channels, h w pixels of an image, (P, P') height and width of a patch in pixels.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import ceil, isqrt, log
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Size = tuple[int, int]
"""(height, width), in pixels or in patches."""
LEAST = 0.85  # smallest share of the allowed patches that an image has
LONGEST = 255  # patches along a side, of the grids whose proportions are nearest
BYTE = 256  # the numbers of an image may have 8 bits, so patches along a side are said in two
MOST_ALONG = BYTE**2 - 1  # largest number of patches along a side
HEADER = 4  # numbers before the values of an image
NAFLEX_STEP = 1e-5  # how exactly NaFlex looks for the scale of a picture, and between which two
NAFLEX_SCALES = (NAFLEX_STEP / 10, 100.0)


def grid_of(picture: Size, most: int, patch: Size) -> Size:
    """The grid whose proportions are nearest to those of a picture of (height, width) pixels, of those with
    `most` patches or a few less; of equals that with the most."""
    wanted = log(picture[0] / picture[1])

    def rank(grid: Size) -> tuple[float, int]:
        own = log(grid[0] * patch[0] / (grid[1] * patch[1]))
        return abs(own - wanted), -grid[0] * grid[1]

    return min(_grids(most), key=rank)


def naflex_grid_of(picture: Size, most: int, patch: Size) -> Size:
    """The grid on which SigLIP 2's NaFlex (Tschannen et al. 2025) reads a picture of (height, width) pixels:
    each side is scaled alike and rounded up to whole patches, by the largest scale that gives at most
    `most`.

    As Transformers' Siglip2ImageProcessor looks for it, to the last bit of the scale: by halving.
    """

    def grid(scale: float) -> Size:
        rows, columns = (
            max(ceil(side * scale / own), 1) for side, own in zip(picture, patch, strict=True)
        )
        return rows, columns

    low, high = NAFLEX_SCALES
    while high - low >= NAFLEX_STEP:
        scale = (low + high) / 2
        rows, columns = grid(scale)
        if rows * columns <= most:
            low = scale
        else:
            high = scale
    return grid(low)


def squarest(patches: int) -> Size:
    """The grid with exactly this number of patches that is closest to a square."""
    rows = isqrt(patches)
    while patches % rows:
        rows -= 1
    return rows, patches // rows


@cache
def _grids(most: int) -> list[Size]:
    """All grids of `most` patches or a little less."""
    grids = []
    for rows in range(1, min(most, LONGEST) + 1):
        for columns in range(1, min(most // rows, LONGEST) + 1):
            if rows * columns >= LEAST * most:
                grids.append((rows, columns))
    return grids


def of_one_size(sizes: Sequence[Any]) -> list[int]:
    """The indices of the largest group of images that have the same size."""
    [(size, _)] = Counter(sizes).most_common(1)
    return [number for number, own in enumerate(sizes) if own == size]


def row_length(channels: int, most: int, patch: Size) -> int:
    """M, for images of at most this many patches."""
    return HEADER + channels * most * patch[0] * patch[1]


def put(image: "np.ndarray | Tensor", row: Any, patch: Size) -> None:
    """Write an image, (C, h, w), into a row of a batch, (M,), an array or a tensor as the image is."""
    rows = image.shape[1] // patch[0]
    columns = image.shape[2] // patch[1]
    for place, number in enumerate((*divmod(rows, BYTE), *divmod(columns, BYTE))):
        row[place] = number
    values = image.reshape(-1)
    row[HEADER : HEADER + len(values)] = values


def together(images: Sequence[np.ndarray], length: int, patch: Size) -> np.ndarray:
    """A batch of images, (C, h, w) each: (B, C, h, w) if they have one size, else rows of `length`."""
    if len({image.shape for image in images}) == 1:
        return np.stack(images)
    rows = np.zeros((len(images), length), images[0].dtype)
    for image, row in zip(images, rows, strict=True):
        put(image, row, patch)
    return rows


def image_of(images: "np.ndarray", number: int, channels: int, patch: Size) -> "np.ndarray":
    """One image of a batch, (C, h, w)."""
    if images.ndim == 4:
        return images[number]
    row = images[number]
    shape = _shape(row[:HEADER].tolist(), channels, patch)
    return row[HEADER : HEADER + shape[0] * shape[1] * shape[2]].reshape(shape)


def by_size(images: Any, channels: int, patch: Size) -> Iterator[tuple[list[int], Any]]:
    """The images of each size: their numbers in the batch, and (b, C, h, w). Arrays of a batch that is an
    array, tensors of a tensor. A row of zeros, which fills up a batch, is an image of one patch."""
    if images.ndim == 4:
        yield list(range(len(images))), images
        return
    members: dict[tuple, list[int]] = {}
    for number, header in enumerate(images[:, :HEADER].tolist()):
        members.setdefault(tuple(header), []).append(number)
    for header, numbers in members.items():
        shape = _shape(header, channels, patch)
        values = images[numbers, HEADER : HEADER + shape[0] * shape[1] * shape[2]]
        yield numbers, values.reshape(len(numbers), *shape)


def _shape(header: Sequence[float], channels: int, patch: Size) -> tuple[int, int, int]:
    """(C, h, w) of an image, by the first numbers of its row."""
    rows = max(BYTE * int(header[0]) + int(header[1]), 1)
    columns = max(BYTE * int(header[2]) + int(header[3]), 1)
    return channels, rows * patch[0], columns * patch[1]


def computed_by_size(
    compute: Callable[[Any], Sequence[Any]], images: Any, channels: int, patch: Size
) -> list[Any]:
    """What `compute` makes of images of one size, (b, C, h, w) -> several (b, ...), for a batch of images of
    any sizes: as many (B, ...)."""
    if images.ndim == 4:
        return list(compute(images))
    order = []
    parts = []
    for numbers, group in by_size(images, channels, patch):
        order += numbers
        parts.append(compute(group))
    back = np.argsort(order)
    results = []
    for each in zip(*parts, strict=True):
        joined = _joined(each)
        results.append(joined[back] if isinstance(joined, np.ndarray) else joined[back.tolist()])
    return results


def _joined(parts: Sequence[Any]) -> Any:
    """Arrays, or tensors, (b, ...) each, one after the other."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import torch

    return torch.cat(list(parts))
