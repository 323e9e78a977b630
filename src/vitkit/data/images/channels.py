"""Images of as many channels as a model takes, in uint8 or uncut in float32.

A file's channels are kept as they are. Beside that, grey is repeated for red, green and blue; colours
make grey by their luma; and of 4 channels the last is opacity for those files that have three.
Others are refused: nobody knows which of twelve bands is red.

Legend: h w pixels, c channels of a file, C those of a model.
"""

from typing import Literal

import numpy as np

from vitkit.data.images.boxes import Box
from vitkit.data.images.files import Picture
from vitkit.data.images.levels import BadImage, as_bytes, as_floats, grey

Values = Literal["uint8", "float32"]


def decode(
    picture: Picture, channels: int, values: Values, box: Box | None = None, reduce: int = 1
) -> np.ndarray:
    """A picture, or a box of it, as (h, w, C): uint8, or float32 from 0 to 1. Raises BadImage.

    `reduce` is for photographs in JPEG, as `Encoded.pixels` has it.
    """
    # Photographs: the way of nearly all models
    if values == "uint8" and channels == 3:
        return picture.pixels(box, reduce)
    if values == "uint8" and channels == 1:
        return grey(picture.pixels(box, reduce))

    stored = with_channels(picture.stored(channels, box), channels, picture.name)
    if values == "float32":
        return as_floats(stored)
    return as_bytes(stored, picture.name)


def with_channels(stored: np.ndarray, channels: int, name: str) -> np.ndarray:
    """(h, w, c) -> (h, w, C), of the same type. Raises BadImage if nobody knows how."""
    own = stored.shape[2]
    if own == channels:
        return stored
    if own == 3 and channels == 1:
        return grey(stored)
    if own == 1 and channels in (3, 4):
        stored = np.repeat(stored, 3, axis=2)
        own = 3
    if own == 3 and channels == 4:
        opaque = 1 if stored.dtype == np.float32 else 255
        alpha = np.full_like(stored[..., :1], opaque)
        stored = np.concatenate([stored, alpha], axis=2)
    if stored.shape[2] == channels:
        return stored
    raise BadImage(
        f"{name} has {own} channels, and the model's images have {channels}; a model of such images "
        f"has --model.channels {own}"
    )
