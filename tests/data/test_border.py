"""The border where the bytes of a file become a picture: a picture, or one sentence with its name."""

import contextlib
import io
import struct
from random import Random

import numpy as np
import pytest
from fuzzing.mutations import damaged_bytes
from pictures import encoded, photograph
from PIL import Image
from tiffs import (
    STRIP_PLACES,
    STRIP_ROWS,
    STRIP_SIZES,
    damaged_tiffs,
    tiff,
    truncated_tiffs,
    with_last_zero,
    with_tag,
)

from vitkit.data import (
    Picture,
    Preprocessing,
    in_memory,
    open_image,
    picture_for_people,
    picture_to_look_at,
)
from vitkit.data.images import stacks
from vitkit.data.images.readers import Encoded
from vitkit.system.errors import BadImage

PIXELS = photograph(24, 30)


def use(data: bytes) -> None:
    """Ask everything of a picture. Raises AssertionError for pixels of another shape than it says."""
    picture = open_image(data, "x.file")
    height, width = picture.size
    assert min(height, width, picture.channels) > 0
    stored = picture.stored(picture.channels)
    assert stored.shape[:2] == (height, width)
    assert stored.dtype in (np.uint8, np.float32)
    box = (height // 4, width // 4, max(height // 2, 1), max(width // 2, 1))
    assert picture.stored(5, box).shape[:2] == box[2:]
    assert picture_to_look_at(picture).shape == (height, width, 3)
    assert picture_for_people(in_memory(picture)).shape == (height, width, 3)
    with contextlib.suppress(BadImage):
        assert picture.pixels().shape == (height, width, 3)


class Broken:
    """A reader whose decoder raises something, whatever is asked."""

    name = "x.file"

    def __init__(self, error: BaseException):
        self.error = error

    def _raise(self, *arguments):
        raise self.error

    kind = size = channels = many_bits = property(_raise)
    exif = pixels = stored = _raise


ASKED = {
    "kind": lambda picture: picture.kind,
    "size": lambda picture: picture.size,
    "channels": lambda picture: picture.channels,
    "many_bits": lambda picture: picture.many_bits,
    "exif": lambda picture: picture.exif(),
    "pixels": lambda picture: picture.pixels(),
    "stored": lambda picture: picture.stored(3),
    "prepared": lambda picture: Preprocessing((8, 8)).array(picture),
    "for people": picture_for_people,
    "in memory": in_memory,
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize(
    "error",
    [
        AttributeError("'NoneType' object has no attribute 'itemsize'"),
        IndexError(),
        KeyError(317),
        MemoryError(),
        RecursionError("too deep"),
        SyntaxError("broken PNG"),
        TypeError("a\nb"),
        ZeroDivisionError("division by zero"),
        struct.error("unpack requires 4 bytes"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_decoder_raises_is_a_broken_image_with_its_name(asked, error):
    with pytest.raises(BadImage, match=r"^x\.file [^\n]+$"):
        ASKED[asked](Picture(Broken(error)))


def test_ctrl_c_is_no_broken_image():
    with pytest.raises(KeyboardInterrupt):
        Picture(Broken(KeyboardInterrupt())).pixels()


def test_a_mistake_of_ours_behind_the_border_is_none_of_the_image():
    picture = open_image(encoded(PIXELS), "x.jpg")
    with pytest.raises(AssertionError):  # a box that is no part of it
        picture.pixels((0, 0, 100, 100))


@pytest.mark.parametrize(
    "given",
    [np.zeros((24, 30, 0), np.uint8), np.zeros((0, 30, 3), np.uint8), PIXELS[:5], PIXELS[0]],
)
def test_other_pixels_than_the_header_promised_are_damage(given, monkeypatch):
    picture = open_image(encoded(PIXELS, "PNG"), "x.png")
    monkeypatch.setattr(Encoded, "pixels", lambda *arguments: given)
    with pytest.raises(BadImage, match=r"^x\.png is damaged: .* 24 x 30 pixels"):
        picture.pixels()
    with pytest.raises(BadImage, match=r"^x\.png is damaged"):
        picture.stored(3)


def test_tiffs_that_ended_commands_are_named():
    pytest.importorskip("tifffile", reason="the extra tiff is not installed")
    for name, data in damaged_tiffs().items():
        with pytest.raises(BadImage, match=r"^x\.file [^\n]+$"):
            use(data)
            pytest.fail(f"{name} was read")
    use(tiff())  # the one that is not damaged


def test_a_tiff_without_some_of_its_pixels_is_truncated_and_not_black():
    pytest.importorskip("imagecodecs", reason="the extra tiff is not installed")
    for name, data in truncated_tiffs().items():
        with pytest.raises(BadImage, match=r"^x\.file [^\n]+(strips or tiles|truncated)"):
            use(data)
            pytest.fail(f"without {name} it was read")
    with pytest.raises(BadImage, match="truncated: it has 1 of the 7 strips"):
        use(truncated_tiffs()["rows of a photograph"])
    use(with_tag(tiff(), STRIP_SIZES, 0))  # in one piece, as some programs write it


def test_of_a_tiff_only_the_strips_that_it_needs_have_to_be_there():
    pytest.importorskip("tifffile", reason="the extra tiff is not installed")
    data = tiff((24, 30, 3), "u1", photometric="rgb", rowsperstrip=8)
    without_last = with_last_zero(data, STRIP_PLACES)
    with pytest.raises(BadImage, match=r"strips .* missing .*SPARSE_OK"):
        use(without_last)
    use(with_tag(without_last, STRIP_ROWS, 12))  # two would do
    with pytest.raises(BadImage, match=r"^x\.file cannot be decoded: (?!it is damaged)"):
        use(with_tag(data, STRIP_ROWS, 0))


def heif() -> bytes:
    pytest.importorskip("pillow_heif", reason="what writes HEIF is not installed")
    import pillow_heif

    file = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(PIXELS)).save(file)
    return file.getvalue()


def tiff_if_read(*arguments, **settings) -> bytes:
    pytest.importorskip("imagecodecs", reason="the extra tiff is not installed")
    return tiff(*arguments, **settings)


SEEDS = {
    "jpeg": lambda: encoded(PIXELS),
    "progressive": lambda: encoded(PIXELS, progressive=True),
    "png": lambda: encoded(PIXELS, "PNG"),
    "deep png": lambda: encoded(PIXELS[..., 0].astype(np.uint16) * 257, "PNG"),
    "gif": lambda: encoded(PIXELS, "GIF"),
    "bmp": lambda: encoded(PIXELS, "BMP"),
    "ppm": lambda: encoded(PIXELS, "PPM"),
    "webp": lambda: encoded(PIXELS, "WEBP"),
    "lossless webp": lambda: encoded(PIXELS, "WEBP", lossless=True),
    "tiff": lambda: encoded(PIXELS, "TIFF", compression="tiff_lzw"),
    "jpeg 2000": lambda: encoded(PIXELS, "JPEG2000"),
    "avif": lambda: encoded(PIXELS, "AVIF"),
    "heif": heif,
    "ico": lambda: encoded(PIXELS, "ICO", sizes=[(24, 24)]),
    "sgi": lambda: encoded(PIXELS, "SGI"),
    "pcx": lambda: encoded(PIXELS, "PCX"),
    "five channels": tiff_if_read,
    "planes": lambda: tiff_if_read((5, 6, 8), planarconfig="separate"),
    "tiles": lambda: tiff_if_read((20, 20, 5), tile=(16, 16), compression="lzw"),
    "big tiff": lambda: tiff_if_read(bigtiff=True),
}
"""A small file of each format that is read."""


@pytest.mark.parametrize("kind", SEEDS)
def test_damaged_files_of_every_format_are_pictures_or_sentences(kind):
    whole = SEEDS[kind]()
    use(whole)
    random = Random(kind)
    refused = 0
    for number in range(25):
        data = damaged_bytes(whole, random)
        try:
            use(data)
        except BadImage as error:
            assert "x.file" in str(error) and "\n" not in str(error), number
            refused += 1
    assert refused  # some of them were damaged so that it mattered


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize(("magic", "places", "counts"), [(42, 4, 2), (43, 8, 8)])
def test_pages_of_a_tiff_that_lead_back_to_themselves_have_no_end(order, magic, places, counts):
    """Each has a directory, here of no entries, and then the place of the next."""

    def number(value, size):
        return value.to_bytes(size, order)

    head = {"little": b"II", "big": b"MM"}[order] + number(magic, 2)
    if magic == 43:
        head += number(8, 2) + number(0, 2)
    first = len(head) + places
    ends = head + number(first, places) + number(0, counts) + number(0, places)
    stacks._check_chain(ends)
    endless = ends[:-places] + number(first, places)
    with pytest.raises(ValueError, match="its pages have no end"):
        stacks._check_chain(endless)
