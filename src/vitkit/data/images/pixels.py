"""Images that a program has in memory, as open_image takes them: (h, w, 3) or (h, w), uint8, or
float32 from 0 to 1, which a model that sees more than 8 bits gets uncut.

Arrays have their channels last, as Pillow, OpenCV and matplotlib have them; tensors first, as
torchvision has them. Channels are red, green and blue.

Legend: B images, h w pixels.
"""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitkit.data.images import pillow
from vitkit.data.images.files import BadImage, upright

OVERSHOOT = 1e-3  # by which rounding may leave the range from 0 to 1


def pixels_of_pillow(image: Image.Image, name: str) -> np.ndarray:
    """A Pillow image of any mode as uint8 (h, w, 3), made RGB and turned upright as a file is; with
    transparency as uint8 (h, w, 4), and grey of 16 bits as uint16 (h, w).

    Raises BadImage if its file cannot be decoded.
    """
    try:
        turn = pillow.orientation(image)
        if image.mode == "RGBA":
            return upright(np.asarray(image), turn)
        if image.mode.startswith("I;16"):
            return upright(np.asarray(image)[..., None], turn)[..., 0]
        pixels = pillow.rgb(image, (0, 0, image.height, image.width))
    except Exception as error:  # a damaged file raises nearly anything
        raise BadImage(f"{name} cannot be decoded: {str(error) or type(error).__name__}") from error
    return upright(pixels, turn)


def images_of_array(array: np.ndarray, name: str) -> list[np.ndarray]:
    """The image of an array (h, w), (h, w, 1), (h, w, 3) or (h, w, 4), or the images of a batch
    (B, h, w, channels): each (h, w, 3), (h, w, 4) or (h, w), uint8 or float32 as it was.

    uint8, float from 0 to 1, or 16-bit grey; the fourth channel is alpha. Images of other channels,
    uint8, uint16 or float32 (h, w, C), stay as they are. Raises ValueError, with what it got, for
    anything else.
    """
    if _is_bands(array):
        if array.ndim == 4:
            return list(array)
        return [array]
    channels_last = array.ndim == 2 or (array.ndim in (3, 4) and array.shape[-1] in (1, 3, 4))
    if not channels_last or not array.size:
        advice = ""
        if array.ndim in (3, 4) and array.shape[-3] in (1, 3):
            advice = "; the channels come first here: give array.transpose(1, 2, 0)"
            if array.ndim == 4:
                advice = "; the channels come first here: give array.transpose(0, 2, 3, 1)"
        raise ValueError(
            f"{name} is an array of {array.dtype} {array.shape}; an image is (h, w, 3) or (h, w), "
            f"and several are (B, h, w, 3){advice}"
        )
    if array.dtype == np.uint16 and array.ndim == 2:
        return [array]
    levels = _levels(array, name)
    if levels.shape[-1] == 1 and levels.ndim > 2:
        levels = levels[..., 0]
    if array.ndim == 4:
        return list(levels)
    return [levels]


def _is_bands(array: np.ndarray) -> bool:
    """Whether it is (h, w, C) or (B, h, w, C) of other channels than grey, colours and opacity."""
    if array.ndim not in (3, 4) or array.dtype not in (np.uint8, np.uint16, np.float32):
        return False
    height, width, channels = array.shape[-3:]
    is_16_bits = array.dtype == np.uint16
    has_others = channels not in (1, 3, 4) or is_16_bits
    return has_others and height not in (1, 3) and channels < min(height, width)


def _levels(array: np.ndarray, name: str) -> np.ndarray:
    """The same array, floats as float32. Raises ValueError for floats outside of 0 to 1, and for
    other types."""
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind != "f":
        raise ValueError(
            f"{name} is an array of {array.dtype}; values are uint8 from 0 to 255, or float from 0 "
            "to 1"
        )
    least = float(array.min())
    most = float(array.max())
    if not (least >= -OVERSHOOT and most <= 1 + OVERSHOOT):  # NaN is outside too
        advice = "an image as it is before mean and standard deviation: vitkit normalises it itself"
        if least >= 0 and most > 2:
            advice = "it as uint8, or divide it by 255"
        raise ValueError(
            f"{name} has values from {least:.4g} to {most:.4g}; floats go from 0 to 1: give {advice}"
        )
    return array.astype(np.float32).clip(0, 1)


def images_of_tensor(tensor: Tensor, name: str) -> list[np.ndarray]:
    """The image of a tensor (3, h, w), (1, h, w) or (h, w), or the images of a batch (B, 3, h, w),
    on any device: each (h, w, 3) or (h, w), uint8 or float32 as it was.

    uint8, or float from 0 to 1; of other channels, (C, h, w), as arrays of such are. Raises
    ValueError, with what it got, for anything else.
    """
    channels_first = tensor.ndim == 2
    if tensor.ndim in (3, 4):
        channels, height, width = tensor.shape[-3:]
        is_bands = channels < min(height, width) and width not in (1, 3)
        channels_first = channels in (1, 3) or is_bands
    if not channels_first or not tensor.numel():
        advice = ""
        if tensor.ndim in (3, 4) and tensor.shape[-1] in (1, 3):
            advice = "; the channels come last here: give tensor.movedim(-1, -3)"
        raise ValueError(
            f"{name} is a tensor of {str(tensor.dtype).removeprefix('torch.')} "
            f"{tuple(tensor.shape)}; an image is (3, h, w), and several are (B, 3, h, w){advice}"
        )
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        tensor = tensor.to(torch.float32)  # numpy has no bfloat16
    array = tensor.numpy()
    if array.ndim > 2:
        array = np.moveaxis(array, -3, -1)
    return images_of_array(array, name)
