"""The numbers of an image: levels of 8 bits, uint8, or numbers of more, float32.

Legend: h w pixels, C channels.
"""

import numpy as np


class BadImage(ValueError):
    """An image that cannot be used; the message names it and says what is wrong."""


def levels(array: np.ndarray, name: str) -> np.ndarray:
    """Numbers of any type as uint8, if they are that, else as float32: integers of 16 bits, and of
    8 with a sign, divided by the largest of their type, others as they are.

    Raises BadImage for what is no number.
    """
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
    """uint8 from 0 to 255, or float32 -> float32, levels from 0 to 1."""
    if array.dtype == np.uint8:
        return np.divide(array, 255, dtype=np.float32)
    return array


def as_bytes(array: np.ndarray, name: str) -> np.ndarray:
    """uint8, or float32 from 0 to 1 -> uint8, the nearest levels. Raises BadImage for floats beyond
    0 to 1, which have none."""
    if array.dtype == np.uint8:
        return array
    least = float(array.min())
    most = float(array.max())
    if least < 0 or most > 1:
        raise BadImage(
            f"{name} holds values from {least:.4g} to {most:.4g}, which are no levels of 8 bits; give "
            "them to the model as they are with --data.preprocessing.values float32"
        )
    return (array * 255).round().astype(np.uint8)


def on_white(array: np.ndarray) -> np.ndarray:
    """Red, green, blue and alpha of (h, w, 4), laid on white: float32 (h, w, 3), from 0 to 1."""
    array = as_floats(array)
    alpha = array[..., 3:]
    return array[..., :3] * alpha + (1 - alpha)


def grey(array: np.ndarray) -> np.ndarray:
    """The luma of red, green and blue (h, w, 3), by the weights that Pillow has: (h, w, 1), of the
    same type. Of three equal channels it is one of them, to the bit."""
    if array.dtype == np.uint8:
        parts = array.astype(np.uint32) * np.array([19595, 38470, 7471], np.uint32)
        return ((parts.sum(2, keepdims=True) + 0x8000) >> 16).astype(np.uint8)
    if (array == array[..., :1]).all():
        return array[..., :1]
    return array @ np.array([[0.299], [0.587], [0.114]], np.float32)
