"""Boxes of images, and which way is up.

Boxes are (top, left, height, width) in pixels of the upright image.
"""

import numpy as np

Box = tuple[int, int, int, int]

# What makes a stored image of each Exif orientation upright: swap its rows and columns, then mirror
# top and bottom, then left and right.
TURNS = {
    1: (False, False, False),
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}


def checked(box: Box, size: tuple[int, int]) -> Box:
    """The same box, which must lie within an image of `size` (height, width)."""
    top, left, height, width = box
    assert min(top, left) >= 0 and min(height, width) > 0, box
    assert top + height <= size[0] and left + width <= size[1], (box, size)
    return box


def cut(pixels: np.ndarray, box: Box | None) -> np.ndarray:
    """A box of pixels (h, w, C), as a view; None for all."""
    if box is None:
        return pixels
    top, left, height, width = checked(box, pixels.shape[:2])
    return pixels[top : top + height, left : left + width]


def reduced(box: Box, reduce: int, size: tuple[int, int]) -> Box:
    """The box of an image at 1/reduce of its size, `size` (height, width), that covers a box of the
    full one."""
    top, left, height, width = box
    bottom = min(-(-(top + height) // reduce), size[0])
    right = min(-(-(left + width) // reduce), size[1])
    top = top // reduce
    left = left // reduce
    return top, left, bottom - top, right - left


def before_turn(box: Box, size: tuple[int, int], orientation: int) -> Box:
    """Where a box of the upright image, of `size` (height, width), lies in the image as it is
    stored."""
    swapped, flip_rows, flip_columns = TURNS[orientation]
    top, left, height, width = box
    if flip_rows:
        top = size[0] - top - height
    if flip_columns:
        left = size[1] - left - width
    if swapped:
        return left, top, width, height
    return top, left, height, width


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Pixels (h, w, 3) as they are stored, turned upright by Exif's orientation, contiguous."""
    swapped, flip_rows, flip_columns = TURNS[orientation]
    if swapped:
        pixels = pixels.transpose(1, 0, 2)
    if flip_rows:
        pixels = pixels[::-1]
    if flip_columns:
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
