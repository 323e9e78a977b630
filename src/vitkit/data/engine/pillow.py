"""A stored image as Pillow opens it, made 8-bit RGB: grey of more bits, transparency, palettes, and
which way is up.

Other failures than those named here are Pillow's own, of which there are many (images.py makes
BadImage of them).
"""

import io

import numpy as np
from PIL import Image

# What Pillow decodes by itself, the frequent first. EPS and WMF would start other programs; TGA has
# no signature.
FORMATS = (
    "PNG", "JPEG", "GIF", "BMP", "PPM", "WEBP", "TIFF",
    "DIB", "JPEG2000", "AVIF", "ICO", "QOI", "SGI", "PCX",
)  # fmt: skip

ORIENTATION = 0x0112  # tag of Exif
BITS_PER_SAMPLE = 258  # tag of TIFF
UPRIGHT = 1  # Exif's orientations are 1 to 8


def open_lazily(data: bytes) -> Image.Image:
    """The image in a file's bytes; only its header is read."""
    return Image.open(io.BytesIO(data), formats=FORMATS)


def orientation(image: Image.Image) -> int:
    """Exif's orientation of an image, 1 to 8; upright if it says none."""
    if image.format == "TIFF":  # Pillow turns these itself
        return UPRIGHT
    if image.format == "PNG":  # its Exif may come after the pixels
        image.load()
    try:
        value = image.getexif().get(ORIENTATION, UPRIGHT)
    except Exception:  # unreadable Exif is no reason to refuse the pixels
        return UPRIGHT
    if isinstance(value, int) and 1 <= value <= 8:
        return value
    return UPRIGHT


def rgb(image: Image.Image, box: tuple[int, int, int, int]) -> np.ndarray:
    """uint8 (h, w, 3), writable: a box (top, left, height, width) of an image as it is stored.

    Raises ValueError for values that are no numbers.
    """
    image.load()
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = _eight_bits(image)
    top, left, height, width = box
    if box != (0, 0, image.height, image.width):
        image = image.crop((left, top, left + width, top + height))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode != "RGB":
        image = image.convert("RGB")
    return np.array(image)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Grey of more than 8 bits as mode L. Raises ValueError for values that are no numbers."""
    values = np.asarray(image).astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError("it holds values that are not finite")
    black, white = _black_and_white(image, values.min(), values.max())
    grey = (values - black) * (255 / (white - black))
    grey = grey.round().clip(0, 255).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey)


def _black_and_white(image: Image.Image, least: float, most: float) -> tuple[float, float]:
    """The levels of black and white in a grey image whose values go from `least` to `most`."""
    if image.mode.startswith("I;16"):
        tags = getattr(image, "tag_v2", {})
        bits = tags.get(BITS_PER_SAMPLE, (16,))[0]
        return 0.0, float(2**bits - 1)
    usual_whites = (1.0, 255.0, 65535.0) if image.mode == "F" else (65535.0,)
    if least >= 0:
        for white in usual_whites:
            if most <= white:
                return 0.0, white
    return least, max(most, least + 1e-9)
