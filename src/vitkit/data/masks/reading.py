"""The codes of a mask's file: values of grey, indices of a palette, or colours. A mask is untrusted like any
image file.

Legend: h w pixels of a mask.
"""

import io

import numpy as np

from vitkit.data.images import pillow, stacks
from vitkit.data.images.pictures import open_image
from vitkit.data.images.pillow import as_bad_image
from vitkit.data.images.readers import Encoded
from vitkit.data.masks.legend import VALUES, packed
from vitkit.system.environment import max_pixels
from vitkit.system.errors import BadData, BadImage

GREY = ("1", "L", "LA", "P", "PA")  # modes of Pillow whose first channel is a value


def codes_of(data: bytes | np.ndarray, name: str, coloured: bool = False) -> np.ndarray:
    """The codes of a mask (legend.py): int32 (h, w).

    A palette's indices are its values; with `coloured` they are looked up. A mask of colours whose red, green
    and blue are all the same is one of values. Raises BadImage for what is no mask, with its name.
    """
    pixels = _pixels(data, name, coloured)
    if pixels.ndim == 3:
        red, green, blue = (pixels[..., channel].astype(np.int32) for channel in range(3))
        if coloured:
            return packed(red, green, blue)
        if (red != green).any() or (green != blue).any():
            raise BadImage(
                f"{name} is a mask of colours, and other masks have values: save all of them alike, or name "
                "the colours in `legend`"
            )
        return red
    if coloured:
        if pixels.max() > 255:
            raise BadImage(f"{name} is a mask of 16 bits, and the classes have colours of 8 bits")
        grey = pixels.astype(np.int32)
        return packed(grey, grey, grey)
    return pixels.astype(np.int32)


def is_coloured(data: bytes | np.ndarray, name: str) -> bool:
    """Whether a mask has colours rather than values: red, green and blue that differ. Raises BadImage."""
    pixels = _pixels(data, name, coloured=False)
    return pixels.ndim == 3 and bool((pixels[..., :1] != pixels[..., 1:3]).any())


def _pixels(data: bytes | np.ndarray, name: str, coloured: bool) -> np.ndarray:
    """The numbers of a mask's file, whole ones from 0 to 65,535: (h, w), or (h, w, 3 or more) of colours."""
    if isinstance(data, bytes) and stacks.is_npy(data):
        with as_bad_image(name):
            data = _array_in(data, name)
    if isinstance(data, np.ndarray):
        return _whole(data, name)
    with as_bad_image(name):
        picture = open_image(data, name)
        if not isinstance(picture.reader, Encoded):
            raise BadImage(
                f"{name} is a {picture.kind} of a kind that masks are not read from; save it as PNG"
            )
        image = picture.reader.image
        if coloured and image.mode in ("P", "PA"):
            image = image.convert("RGB")
        image.load()
        if pillow.is_png_of_16_bits(data):
            raise BadImage(f"{name} is a mask of colours of 16 bits; save it with 8 bits")
        array = np.asarray(image)
        if image.mode in GREY and array.ndim == 3:  # with opacity
            array = array[..., 0]
        if image.mode not in (*GREY, "RGB", "RGBA") and not pillow.is_grey_of_many_bits(image):
            raise BadImage(
                f"{name} has the colours {image.mode}; a mask has grey, a palette, or RGB: save it as PNG"
            )
    return _whole(array, name)


def _array_in(data: bytes, name: str) -> np.ndarray:
    """The array of a .npy file, none of it unpickled. Raises BadImage beyond the limits."""
    header = stacks.header(data)
    if header.height * header.width > max_pixels():
        raise BadImage(
            f"{name} has {header.height} x {header.width} pixels; {max_pixels():,} are accepted"
        )
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)


def _whole(array: np.ndarray, name: str) -> np.ndarray:
    """The array, if its shape and its numbers are those of a mask. Raises BadImage."""
    if array.dtype == bool:
        array = array.astype(np.uint8)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    shape_is_right = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if not shape_is_right or not array.size:
        shape = " x ".join(map(str, array.shape))
        raise BadImage(f"{name} is an array of {shape}; a mask is one of height x width")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all() or (array != np.round(array)).any():
            raise BadImage(f"{name} has values that are not whole; a mask has whole ones")
    elif array.dtype.kind not in "iu":
        raise BadImage(f"{name} holds {array.dtype}; a mask has whole numbers")
    if array.min() < 0 or array.max() >= VALUES:
        raise BadImage(
            f"{name} has values from {array.min():g} to {array.max():g}; a mask has 0 to {VALUES - 1}"
        )
    return array


def check_size(mask: np.ndarray, size: tuple[int, int], name: str, image: str = "") -> None:
    """Raises BadData if a mask does not have the (height, width) of its image. `name` is that of the mask, `image`
    that of the image, if it is known."""
    if mask.shape[:2] != size:
        raise BadData(
            f"{name} is {mask.shape[1]} x {mask.shape[0]} pixels, and its image {image + ' ' if image else ''}is "
            f"{size[1]} x {size[0]} (upright): make the mask again at the size of its image"
        )
