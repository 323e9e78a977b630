"""Images in their own aspect ratios (NaViT, Dehghani et al. 2023; SigLIP 2's NaFlex): the grid of patches
for each image, and batches of images of several sizes.

A batch of images of one size is an array (B, C, h, w). A batch of several sizes is an array (B, M) with
a row for each image: the number of patches in a column and in a row of the image, as two numbers each,
its C h w values, and padding. `computed_by_size` groups its images by size to compute on them.

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
LEAST = 0.85  # smallest number of patches of a grid, as a share of the allowed number
LONGEST = 255  # most patches along a side of a grid with rule "native"
BYTE = 256  # base of the two numbers that store a number of patches, as the numbers may have 8 bits
MOST_ALONG = BYTE**2 - 1  # most patches along a side that two numbers can store
HEADER = 4  # numbers in a row before the values of the image
NAFLEX_STEP = 1e-5  # NaFlex's tolerance in its search for the scale, and the bounds of the search
NAFLEX_SCALES = (NAFLEX_STEP / 10, 100.0)


def grid_of(picture: Size, most: int, patch: Size) -> Size:
    """The grid, of at most `most` patches and at least LEAST of that, whose aspect ratio is closest to that of
    a picture of (height, width) pixels; of equally close ones the largest."""
    wanted = log(picture[0] / picture[1])

    def rank(grid: Size) -> tuple[float, int]:
        own = log(grid[0] * patch[0] / (grid[1] * patch[1]))
        return abs(own - wanted), -grid[0] * grid[1]

    return min(_grids(most), key=rank)


def naflex_grid_of(picture: Size, most: int, patch: Size) -> Size:
    """The grid of SigLIP 2's NaFlex (Tschannen et al. 2025) for a picture of (height, width) pixels.

    Both sides are multiplied by the same scale and rounded up to whole patches. The scale is the largest
    that gives at most `most` patches. It is found by bisection with the bounds and the tolerance of
    Transformers' Siglip2ImageProcessor, so it is equal to the last bit.
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
    """All grids of at most `most` patches and at least LEAST of that."""
    grids = []
    for rows in range(1, min(most, LONGEST) + 1):
        for columns in range(1, min(most // rows, LONGEST) + 1):
            if rows * columns >= LEAST * most:
                grids.append((rows, columns))
    return grids


def of_one_size(sizes: Sequence[Any]) -> list[int]:
    """Indices of the largest group of images with equal sizes."""
    [(size, _)] = Counter(sizes).most_common(1)
    return [number for number, own in enumerate(sizes) if own == size]


def row_length(channels: int, most: int, patch: Size) -> int:
    """M, the length of a row for an image of at most this many patches."""
    return HEADER + channels * most * patch[0] * patch[1]


def put(image: "np.ndarray | Tensor", row: Any, patch: Size) -> None:
    """Write an image (C, h, w) into a row (M,) of a batch; both are arrays, or both are tensors."""
    rows = image.shape[1] // patch[0]
    columns = image.shape[2] // patch[1]
    for place, number in enumerate((*divmod(rows, BYTE), *divmod(columns, BYTE))):
        row[place] = number
    values = image.reshape(-1)
    row[HEADER : HEADER + len(values)] = values


def together(images: Sequence[np.ndarray], length: int, patch: Size) -> np.ndarray:
    """Combine images (C, h, w) to a batch: (B, C, h, w) if they have one size, otherwise (B, length)."""
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
    """Group a batch by size: yields the numbers of the images and the images (b, C, h, w), as an array or a
    tensor like the batch. A row of zeros, which is padding, is an image of one patch."""
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
    """(C, h, w) of an image, from the header of its row."""
    rows = max(BYTE * int(header[0]) + int(header[1]), 1)
    columns = max(BYTE * int(header[2]) + int(header[3]), 1)
    return channels, rows * patch[0], columns * patch[1]


def computed_by_size(
    compute: Callable[[Any], Sequence[Any]], images: Any, channels: int, patch: Size
) -> list[Any]:
    """Apply `compute` to the images of each size in a batch of any sizes.

    compute: images (b, C, h, w) -> several results (b, ...).

    Returns the same number of results (B, ...), in the order of the batch.
    """
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
    """Concatenate arrays or tensors (b, ...)."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import torch

    return torch.cat(list(parts))
