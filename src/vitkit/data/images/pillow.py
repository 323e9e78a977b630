"""A stored image as Pillow opens it, made 8-bit RGB: grey of more bits, transparency, palettes, and
which way is up.

Other failures than those named here are Pillow's own, of which there are many: `as_bad_image` makes
one kind of them.
"""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from PIL import Image

from vitkit.system.environment import max_pixels
from vitkit.system.errors import BadImage, VitkitError

# What Pillow decodes by itself, the frequent first. EPS and WMF would start other programs; TGA has
# no signature.
FORMATS = (
    "PNG", "JPEG", "GIF", "BMP", "PPM", "WEBP", "TIFF",
    "DIB", "JPEG2000", "AVIF", "ICO", "QOI", "SGI", "PCX",
)  # fmt: skip

HEIF = "HEIF"  # what telephones write, as .heic; by pi-heif or pillow-heif
HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")

PNG = b"\x89PNG\r\n\x1a\n"
ORIENTATION = 0x0112  # tag of Exif
EXIF = 0x8769  # tag of what a camera wrote
# Tags of TIFF
BITS_PER_SAMPLE = 258
STRIP_PLACES = 273
STRIP_ROWS = 278
PLANES = 284
TILE_WIDTH = 322
TILE_HEIGHT = 323
TILE_PLACES = 324
SEPARATE = 2  # value of PLANES: one channel after the other
# Bytes for each pixel: 4 in Pillow, 3 in the result, and what the decoders of some formats keep.
USUAL_MEMORY = 7
MEMORY = {"JPEG2000": 19, "WEBP": 16, "AVIF": 10, HEIF: 12}
STRIP = 1 << 20  # pixels that are converted at once
REMEDY = "if you trust it, raise the limits with `max_pixels=N`"
UPRIGHT = 1  # Exif's orientations are 1 to 8


def open_lazily(data: bytes) -> Image.Image:
    """The image in a file's bytes; only its header is read. Raises ImportError, with a sentence,
    for a HEIF file if no package is installed that reads it."""
    formats: tuple[str, ...] = FORMATS
    if is_heif(data):
        add_heif()
        formats = (HEIF,)
    return Image.open(io.BytesIO(data), formats=formats)


def is_heif(data: bytes) -> bool:
    """Whether these are a HEIF file's bytes, by the brands that they begin with. AVIF, which Pillow
    reads, has the same container."""
    length = int.from_bytes(data[:4], "big")
    brands = data[8 : min(length, 256)]
    return data[4:8] == b"ftyp" and data[8:12] in HEIF_BRANDS and b"avif" not in brands


def add_heif() -> None:
    """Enable Pillow to read HEIF, once per process. Raises ImportError, with a sentence."""
    if HEIF in Image.OPEN:
        return
    try:
        import pi_heif as reader
    except ImportError:
        try:
            import pillow_heif as reader
        except ImportError:
            raise ImportError(
                "it is a HEIF image, as telephones write them, and no package that reads them is "
                "installed: pip install 'vitkit[heic]'"
            ) from None
    reader.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False)


def check_tiff(image: Image.Image) -> None:
    """Raises VitkitError for a TIFF that lists fewer strips or tiles than its rows take. Pillow would
    leave the missing rows black."""
    from PIL.TiffImagePlugin import TiffImageFile  # which has been imported to open it

    assert isinstance(image, TiffImageFile)
    tags = image.tag_v2
    if TILE_PLACES in tags:
        places = tags[TILE_PLACES]
        width, height = tags[TILE_WIDTH], tags[TILE_HEIGHT]
    elif STRIP_PLACES in tags:
        places = tags[STRIP_PLACES]
        width, height = image.width, tags.get(STRIP_ROWS) or image.height
    else:  # the pixels are elsewhere, as in old JPEG in TIFF: its decoder knows where
        return
    pieces = -(-image.width // width) * -(-image.height // height)
    if tags.get(PLANES) == SEPARATE:
        pieces *= len(tags.get(BITS_PER_SAMPLE, (1,)))
    check_pieces(len(places), pieces)
    if 0 in places[:pieces]:
        raise VitkitError(
            "one of its strips or tiles is left out (it is said to be at byte 0), as GDAL's SPARSE_OK "
            "does with empty ones; save it again with all of them"
        )


def check_pieces(listed: int, needed: int) -> None:
    """Raises VitkitError for a TIFF that lists fewer strips or tiles than it needs."""
    if listed < needed:
        raise VitkitError(
            f"it is truncated: it has {listed:,} of the {needed:,} strips or tiles that its size takes"
        )


def memory(image: Image.Image) -> int:
    """Bytes that decoding takes, its result among them: measured, and rounded up."""
    bytes_per_pixel = MEMORY.get(image.format or "", USUAL_MEMORY)
    if image.info.get("progressive"):  # a JPEG's coefficients wait for the last scan
        bytes_per_pixel += 2 * len(image.getbands())
    return bytes_per_pixel * image.width * image.height


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


def can_open(data: bytes, size: tuple[int, int] | None = None) -> bool:
    """Whether Pillow reads a file, and if a size (height, width) is given, as an image of that
    size."""
    try:
        with quiet():
            image = open_lazily(data)
    except Exception:  # a damaged file raises nearly anything
        return False
    return size is None or image.size == size[::-1]


@contextmanager
def quiet(library: str = "PIL") -> Iterator[None]:
    """A context in which a library neither logs nor warns about files that it cannot read: vitkit
    reports them once."""
    logger = logging.getLogger(library)
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def channels(image: Image.Image) -> int:
    """How many channels an image has: 1 for grey, 3 for colours, 4 with transparency."""
    if image.has_transparency_data:
        return 4
    if image.mode in ("1", "L") or is_grey_of_many_bits(image):
        return 1
    return 3


def is_grey_of_many_bits(image: Image.Image) -> bool:
    """Whether it is grey of more than 8 bits."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def grey_of_many_bits(image: Image.Image) -> np.ndarray:
    """Such an image, uncut, as it is stored: float32 (h, w, 1), integers from 0 to 1. Floats are as
    they are: what holds one image need not hold the next. Raises VitkitError for values that are no
    numbers."""
    image.load()
    values = np.asarray(image).astype(np.float32)
    if image.mode != "F":
        black, white = _black_and_white(image)
        values = (values - black) / (white - black)
    return values[..., None].astype(np.float32)


def is_png_of_16_bits(data: bytes) -> bool:
    """Whether it is a PNG of 16-bit colours, which Pillow cuts to 8."""
    return data[:8] == PNG and data[24:25] == b"\x10" and data[25:26] in (b"\x02", b"\x06")


def png_of_16_bits(data: bytes) -> np.ndarray:
    """Such a file's uint16 (h, w, 3), or with alpha (h, w, 4). Raises RuntimeError."""
    import torch
    from torchvision.io import ImageReadMode, decode_png

    encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return decode_png(encoded, ImageReadMode.UNCHANGED).permute(1, 2, 0).numpy()


def rgb(image: Image.Image, box: tuple[int, int, int, int]) -> np.ndarray:
    """uint8 (h, w, 3), writable: a box (top, left, height, width) of an image as it is stored.

    Strips of rows are converted one after the other: copies of a whole image, with transparency or
    of more than 8 bits, would take several times its memory. Raises VitkitError for values that are
    no numbers.
    """
    image.load()
    levels = None
    if is_grey_of_many_bits(image):
        levels = _black_and_white(image)
    top, left, height, width = box
    pixels = np.empty((height, width, 3), np.uint8)
    for first in range(0, height, _strip_rows(width)):
        end = min(first + _strip_rows(width), height)
        strip = image
        if (top + first, left, end - first, width) != (0, 0, image.height, image.width):
            strip = image.crop((left, top + first, left + width, top + end))
        if levels is not None:
            strip = _eight_bits(strip, *levels)
        pixels[first:end] = np.asarray(_as_rgb(strip))
    return pixels


def _strip_rows(width: int) -> int:
    """Rows that are converted at once."""
    return max(STRIP // width, 1)


def _as_rgb(image: Image.Image) -> Image.Image:
    """An image of 8 bits a channel in mode RGB, on white where it is transparent."""
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode != "RGB":
        image = image.convert("RGB")
    return image


def _eight_bits(image: Image.Image, black: float, white: float) -> Image.Image:
    """Grey of more than 8 bits as mode L, between these two levels."""
    values = np.asarray(image).astype(np.float64)
    grey = (values - black) * (255 / (white - black))
    grey = grey.round().clip(0, 255).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey)


def _black_and_white(image: Image.Image) -> tuple[float, float]:
    """The levels of black and white in a grey image. Raises VitkitError for values that are no
    numbers."""
    if image.mode.startswith("I;16"):
        tags = getattr(image, "tag_v2", {})
        bits = tags.get(BITS_PER_SAMPLE, (16,))[0]
        return 0.0, float(2**bits - 1)
    least, most = _extremes(image)
    usual_whites = (1.0, 255.0, 65535.0) if image.mode == "F" else (65535.0,)
    if least >= 0:
        for white in usual_whites:
            if most <= white:
                return 0.0, white
    return least, max(most, least + 1e-9)


def _extremes(image: Image.Image) -> tuple[float, float]:
    """The least and the largest value of an image. Raises VitkitError if one is no number."""
    lows = []
    highs = []
    for first in range(0, image.height, _strip_rows(image.width)):
        end = min(first + _strip_rows(image.width), image.height)
        values = np.asarray(image.crop((0, first, image.width, end)))
        if not np.isfinite(values).all():
            raise VitkitError("it holds values that are not finite")
        lows.append(float(values.min()))
        highs.append(float(values.max()))
    return min(lows), max(highs)


# Limits and failures


@contextmanager
def as_bad_image(name: str) -> Iterator[None]:
    """A block in which whatever a decoder raises becomes BadImage, but not Ctrl-C. Its warnings are
    silenced, as the pixels are right nevertheless."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = -(-max_pixels() // 2)  # Pillow refuses from twice as many on
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except BadImage:
        raise
    except Image.UnidentifiedImageError:
        known = ", ".join(FORMATS)
        raise BadImage(
            f"{name} is not an image of a format that is read here ({known}), or its "
            "header is damaged"
        ) from None
    except Image.DecompressionBombError as error:
        raise BadImage(f"{name} is refused as a decompression bomb: {error}; {REMEDY}") from error
    except MemoryError as error:
        raise BadImage(f"{name} takes more memory to decode than there is") from error
    except Exception as error:
        raise BadImage(f"{name} cannot be decoded: {_reason(error)}") from error
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _reason(error: Exception) -> str:
    """What a decoder says is wrong. A damaged file makes it raise nearly anything: what is not meant
    for readers gets its kind before it, as KeyError: 317."""
    lines = str(error).splitlines() or [""]
    if isinstance(error, ValueError | OSError | RuntimeError | ImportError | SyntaxError):
        return lines[0] or type(error).__name__
    return f"it is damaged ({type(error).__name__}: {lines[0]})"


def limit_for_good(max_pixels: int) -> None:
    """As in a block of `as_bad_image`, from now on: for a process whose threads decode at once.
    When one of them restores the limits at the end of its block, it restores what the others
    need."""
    Image.MAX_IMAGE_PIXELS = -(-max_pixels // 2)
    warnings.simplefilter("ignore")
