"""Arrays of pixels: levels, boxes, and orientation.

Levels are uint8, or float32 for more than 8 bits. Boxes are (top, left, height, width) in pixels of
the upright image.

Legend: h w pixels, C channels.
"""

import numpy as np

from vitkit.system.errors import BadImage

Box = tuple[int, int, int, int]

# How a stored image of each Exif orientation becomes upright: whether to swap rows and columns, then
# to mirror top and bottom, then left and right
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


def levels(array: np.ndarray, name: str) -> np.ndarray:
    """Convert numbers of any type to levels: uint8 unchanged, else float32. Integers of 16 bits, and of 8
    with a sign, are divided by the largest value of their type; other values are unchanged. Raises
    BadImage for values that are not finite numbers."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == bool:
        return array.astype(np.uint8) * 255
    if array.dtype.kind not in "uif":
        raise BadImage(f"{name} holds {array.dtype}; an image is of integers or floats")
    if array.dtype.kind in "ui" and array.dtype.itemsize <= 2:
        return np.divide(array, np.iinfo(array.dtype).max, dtype=np.float32)
    array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise BadImage(f"{name} holds values that are not finite")
    return array


def as_floats(array: np.ndarray) -> np.ndarray:
    """uint8 from 0 to 255, or float32 -> float32 from 0 to 1."""
    if array.dtype == np.uint8:
        return np.divide(array, 255, dtype=np.float32)
    return array


def as_bytes(array: np.ndarray, name: str) -> np.ndarray:
    """uint8, or float32 from 0 to 1 -> uint8, rounded to the nearest level. Raises BadImage for floats
    outside of 0 to 1."""
    if array.dtype == np.uint8:
        return array
    least = float(array.min())
    most = float(array.max())
    if least < 0 or most > 1:
        raise BadImage(
            f"{name} holds values from {least:.4g} to {most:.4g}, which are not levels of 8 bits; give "
            "them to the model unchanged with `data.preprocessing.values='float32'`"
        )
    return (array * 255).round().astype(np.uint8)


def on_white(array: np.ndarray) -> np.ndarray:
    """Composite RGBA (h, w, 4) on white: float32 (h, w, 3), from 0 to 1."""
    array = as_floats(array)
    alpha = array[..., 3:]
    return array[..., :3] * alpha + (1 - alpha)


def grey(array: np.ndarray) -> np.ndarray:
    """The luma of RGB (h, w, 3), with Pillow's weights: (h, w, 1) of the same type. The luma of three
    equal channels equals each of them to the bit."""
    if array.dtype == np.uint8:
        parts = array.astype(np.uint32) * np.array([19595, 38470, 7471], np.uint32)
        return ((parts.sum(2, keepdims=True) + 0x8000) >> 16).astype(np.uint8)
    if (array == array[..., :1]).all():
        return array[..., :1]
    return array @ np.array([[0.299], [0.587], [0.114]], np.float32)


# Boxes and orientation


def checked(box: Box, size: tuple[int, int]) -> Box:
    """Assert that a box lies within an image of `size` (height, width), and return it."""
    top, left, height, width = box
    assert min(top, left) >= 0 and min(height, width) > 0, box
    assert top + height <= size[0] and left + width <= size[1], (box, size)
    return box


def cut(pixels: np.ndarray, box: Box | None) -> np.ndarray:
    """A view of a box of pixels (h, w, C); None for all pixels."""
    if box is None:
        return pixels
    top, left, height, width = checked(box, pixels.shape[:2])
    return pixels[top : top + height, left : left + width]


def reduced(box: Box, reduce: int, size: tuple[int, int]) -> Box:
    """The smallest box of an image at 1/reduce of its size, `size` (height, width), that covers a box of the
    full image."""
    top, left, height, width = box
    bottom = min(-(-(top + height) // reduce), size[0])
    right = min(-(-(left + width) // reduce), size[1])
    top = top // reduce
    left = left // reduce
    return top, left, bottom - top, right - left


def before_turn(box: Box, size: tuple[int, int], orientation: int) -> Box:
    """The box in the stored image of a box in the upright image, whose size is `size` (height, width)."""
    swapped, flip_rows, flip_columns = TURNS[orientation]
    top, left, height, width = box
    if flip_rows:
        top = size[0] - top - height
    if flip_columns:
        left = size[1] - left - width
    if swapped:
        return left, top, width, height
    return top, left, height, width


def upright_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """(height, width) of the upright image of a stored image of this size."""
    swapped, _, _ = TURNS[orientation]
    return size[::-1] if swapped else size


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Apply an Exif orientation to stored pixels (h, w, 3); the result is contiguous."""
    swapped, flip_rows, flip_columns = TURNS[orientation]
    if swapped:
        pixels = pixels.transpose(1, 0, 2)
    if flip_rows:
        pixels = pixels[::-1]
    if flip_columns:
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
