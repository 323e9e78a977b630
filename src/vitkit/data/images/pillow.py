"""Convert images that Pillow opens to 8-bit RGB: grey of more bits, transparency, palettes, and
orientation.

Pillow may also raise exceptions of its own, of many classes; `as_bad_image` converts them to BadImage.
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

# Formats that Pillow decodes by itself, frequent ones first. EPS and WMF would start other programs, and
# TGA has no signature.
FORMATS = (
    "PNG", "JPEG", "GIF", "BMP", "PPM", "WEBP", "TIFF",
    "DIB", "JPEG2000", "AVIF", "ICO", "QOI", "SGI", "PCX",
)  # fmt: skip

HEIF = "HEIF"  # the format of telephones, .heic; read by pi-heif or pillow-heif
HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")

PNG = b"\x89PNG\r\n\x1a\n"
ORIENTATION = 0x0112  # tag of Exif
EXIF = 0x8769  # tag of the camera's own record
# Tags of TIFF
BITS_PER_SAMPLE = 258
STRIP_PLACES = 273
STRIP_ROWS = 278
PLANES = 284
TILE_WIDTH = 322
TILE_HEIGHT = 323
TILE_PLACES = 324
SEPARATE = 2  # value of PLANES: channels are stored one after the other
# Bytes of memory for each pixel: 4 in Pillow, 3 in the result, and the buffers of some decoders
USUAL_MEMORY = 7
MEMORY = {"JPEG2000": 19, "WEBP": 16, "AVIF": 10, HEIF: 12}
STRIP = 1 << 20  # pixels that are converted together
REMEDY = "if you trust it, raise the limits with `max_pixels=N`"
UPRIGHT = 1  # Exif's orientations are 1 to 8


def open_lazily(data: bytes) -> Image.Image:
    """The image in the bytes of a file, of which only the header is read. Raises ImportError, with a
    sentence, for a HEIF file if no package that reads it is installed."""
    formats: tuple[str, ...] = FORMATS
    if is_heif(data):
        add_heif()
        formats = (HEIF,)
    return Image.open(io.BytesIO(data), formats=formats)


def is_heif(data: bytes) -> bool:
    """Whether these are the bytes of a HEIF file, by the brands in its first box. AVIF, which Pillow
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
    """Raise VitkitError for a TIFF that lists fewer strips or tiles than its size requires. Pillow would
    leave the missing rows black."""
    from PIL.TiffImagePlugin import TiffImageFile  # already imported by Image.open

    assert isinstance(image, TiffImageFile)
    tags = image.tag_v2
    if TILE_PLACES in tags:
        places = tags[TILE_PLACES]
        width, height = tags[TILE_WIDTH], tags[TILE_HEIGHT]
    elif STRIP_PLACES in tags:
        places = tags[STRIP_PLACES]
        width, height = image.width, tags.get(STRIP_ROWS) or image.height
    else:  # the pixels are elsewhere, as in old JPEG in TIFF, and the decoder finds them
        return
    pieces = -(-image.width // width) * -(-image.height // height)
    if tags.get(PLANES) == SEPARATE:
        pieces *= len(tags.get(BITS_PER_SAMPLE, (1,)))
    check_pieces(len(places), pieces)
    if 0 in places[:pieces]:
        raise VitkitError(
            "one of its strips or tiles is missing (its offset is 0), as GDAL's SPARSE_OK "
            "does with empty ones; save it again with all of them"
        )


def check_pieces(listed: int, needed: int) -> None:
    """Raise VitkitError for a TIFF that lists fewer strips or tiles than it needs."""
    if listed < needed:
        raise VitkitError(
            f"it is truncated: it has {listed:,} of the {needed:,} strips or tiles that its size requires"
        )


def memory(image: Image.Image) -> int:
    """Bytes of memory that decoding takes, including its result: measured, and rounded up."""
    bytes_per_pixel = MEMORY.get(image.format or "", USUAL_MEMORY)
    if image.info.get("progressive"):  # all coefficients of a JPEG are kept until the last scan
        bytes_per_pixel += 2 * len(image.getbands())
    return bytes_per_pixel * image.width * image.height


def orientation(image: Image.Image) -> int:
    """The Exif orientation of an image, 1 to 8; UPRIGHT if it has none."""
    if image.format == "TIFF":  # Pillow applies it by itself
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
    """Whether Pillow reads a file; with a `size` (height, width), also whether the image has that size."""
    try:
        with quiet():
            image = open_lazily(data)
    except Exception:  # a damaged file may raise any exception
        return False
    return size is None or image.size == size[::-1]


@contextmanager
def quiet(library: str = "PIL") -> Iterator[None]:
    """Silence the log messages and warnings of a library about files that it cannot read, because vitkit
    reports them itself."""
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
    """Number of channels of an image: 1 for grey, 3 for colours, 4 with transparency."""
    if image.has_transparency_data:
        return 4
    if image.mode in ("1", "L") or is_grey_of_many_bits(image):
        return 1
    return 3


def is_grey_of_many_bits(image: Image.Image) -> bool:
    """Whether an image is grey with more than 8 bits."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def grey_of_many_bits(image: Image.Image) -> np.ndarray:
    """Grey of more than 8 bits with all of its bits: float32 (h, w, 1). Integers are scaled to 0 to 1.
    Floats are unchanged, because a scale that fits one image need not fit the next. Raises VitkitError for
    values that are not finite."""
    image.load()
    values = np.asarray(image).astype(np.float32)
    if image.mode != "F":
        black, white = _black_and_white(image)
        values = (values - black) / (white - black)
    return values[..., None].astype(np.float32)


def is_png_of_16_bits(data: bytes) -> bool:
    """Whether a file is a PNG of 16-bit colours, which Pillow reduces to 8 bits."""
    return data[:8] == PNG and data[24:25] == b"\x10" and data[25:26] in (b"\x02", b"\x06")


def png_of_16_bits(data: bytes) -> np.ndarray:
    """Decode a PNG of 16-bit colours: uint16 (h, w, 3), or (h, w, 4) with alpha. Raises RuntimeError."""
    import torch
    from torchvision.io import ImageReadMode, decode_png

    encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return decode_png(encoded, ImageReadMode.UNCHANGED).permute(1, 2, 0).numpy()


def rgb(image: Image.Image, box: tuple[int, int, int, int]) -> np.ndarray:
    """A box (top, left, height, width) of a stored image: uint8 (h, w, 3), writable.

    Strips of rows are converted one after the other, because copies of a whole image with transparency
    or more than 8 bits would take several times its memory. Raises VitkitError for values that are not
    finite.
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
    """Number of rows that are converted together."""
    return max(STRIP // width, 1)


def _as_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of 8 bits a channel to mode RGB, composited on white where it is transparent."""
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode != "RGB":
        image = image.convert("RGB")
    return image


def _eight_bits(image: Image.Image, black: float, white: float) -> Image.Image:
    """Convert grey of more than 8 bits to mode L, scaled from these two levels."""
    values = np.asarray(image).astype(np.float64)
    grey = (values - black) * (255 / (white - black))
    grey = grey.round().clip(0, 255).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey)


def _black_and_white(image: Image.Image) -> tuple[float, float]:
    """The values of black and white in a grey image. Raises VitkitError for values that are not finite."""
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
    """The smallest and the largest value of an image. Raises VitkitError if one is not finite."""
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


# Limits and errors


@contextmanager
def as_bad_image(name: str) -> Iterator[None]:
    """A context in which every exception of a decoder becomes BadImage, but not Ctrl-C. Warnings of
    decoders are ignored, because the pixels are correct nevertheless."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = -(-max_pixels() // 2)  # Pillow refuses images of twice this size
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
        raise BadImage(
            f"{name} is refused as a decompression bomb: {str(error).rstrip('.')}; {REMEDY}"
        ) from error
    except MemoryError as error:
        raise BadImage(f"{name} takes more memory to decode than is available") from error
    except Exception as error:
        raise BadImage(f"{name} cannot be decoded: {_reason(error)}") from error
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _reason(error: Exception) -> str:
    """The reason that a decoder gives. A damaged file may raise any exception; a message that is not
    meant for users, such as "317" of a KeyError, is preceded by the name of its class."""
    lines = str(error).splitlines() or [""]
    if isinstance(error, ValueError | OSError | RuntimeError | ImportError | SyntaxError):
        return lines[0] or type(error).__name__
    return f"it is damaged ({type(error).__name__}: {lines[0]})"


def limit_for_good(max_pixels: int) -> None:
    """Set the limits of `as_bad_image` permanently, for a process that decodes in several threads: a thread
    that leaves `as_bad_image` would otherwise reset the limits for the others."""
    Image.MAX_IMAGE_PIXELS = -(-max_pixels // 2)
    warnings.simplefilter("ignore")
