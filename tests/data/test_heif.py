"""HEIF, as telephones write photographs: read by a package beside Pillow, within the same limits, and
named with the remedy where there is none."""

import io
import sys

import numpy as np
import pytest
from pictures import photograph
from PIL import Image

from vitkit.cli.entry import main
from vitkit.data import open_image, open_splits
from vitkit.data.images import pillow
from vitkit.system.errors import BadImage

pillow_heif = pytest.importorskip("pillow_heif")
pytest.importorskip("pi_heif")


def heif(pixels: np.ndarray, orientation: int = 1) -> bytes:
    """The bytes of a HEIF file whose viewer must turn it by this orientation of Exif."""
    exif = Image.Exif()
    exif[pillow.ORIENTATION] = orientation
    file = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(file, quality=95, exif=exif.tobytes())
    return file.getvalue()


def smooth(height: int, width: int) -> np.ndarray:
    """A picture that compression hardly changes, and that looks different from every side."""
    small = Image.fromarray(photograph(4, 6))
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))


@pytest.fixture
def without_readers(monkeypatch):
    """A Pillow that knows no HEIF, where no package is that would teach it."""
    Image.init()  # else it would fill in the formats that are taken away at the end
    monkeypatch.setattr(Image, "OPEN", {k: v for k, v in Image.OPEN.items() if k != pillow.HEIF})
    for name in ("pi_heif", "pillow_heif"):
        monkeypatch.setitem(sys.modules, name, None)


def test_pixels_are_those_that_were_written():
    pixels = smooth(60, 90)
    picture = open_image(heif(pixels), "IMG_1.HEIC")
    assert (picture.kind, picture.size) == ("HEIF", (60, 90))
    error = np.abs(picture.pixels().astype(int) - pixels)
    assert error.mean() < 5
    box = (10, 20, 30, 40)
    assert np.array_equal(picture.pixels(box), picture.pixels()[10:40, 20:60])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_it_is_upright(orientation):
    pixels = smooth(60, 90)
    reference = io.BytesIO()
    exif = Image.Exif()
    exif[pillow.ORIENTATION] = orientation
    Image.fromarray(pixels).save(reference, "PNG", exif=exif)
    expected = open_image(reference.getvalue(), "x.png")
    picture = open_image(heif(pixels, orientation), "IMG_1.HEIC")
    assert picture.size == expected.size
    error = np.abs(picture.pixels().astype(int) - expected.pixels())
    assert error.mean() < 5


def test_what_is_damaged_or_too_large_is_a_sentence(monkeypatch):
    data = heif(photograph(60, 90))
    for damaged in (data[:40], data[: len(data) // 2], data[:100] + bytes(len(data) - 100)):
        with pytest.raises(BadImage, match="^IMG_1"):
            open_image(damaged, "IMG_1.HEIC").pixels()
    monkeypatch.setenv("VITKIT_MAX_PIXELS", "1000")
    with pytest.raises(BadImage, match="raise the limits with `max_pixels=N`"):
        open_image(data, "IMG_1.HEIC")
    png = io.BytesIO()
    Image.fromarray(photograph(60, 90)).save(png, "PNG")
    with pytest.raises(BadImage, match="decompression bomb.*attack; if you trust it"):
        open_image(png.getvalue(), "x.png")


def test_without_a_reader_the_remedy_is_named(without_readers):
    data = heif(photograph(20, 20))
    with pytest.raises(
        BadImage, match=r"x.heic cannot be decoded: it is a HEIF .* 'vitkit\[heic\]'"
    ):
        open_image(data, "x.heic")


def test_avif_is_no_heif():
    file = io.BytesIO()
    Image.fromarray(photograph(20, 20)).save(file, "AVIF")
    assert not pillow.is_heif(file.getvalue())
    assert open_image(file.getvalue(), "x.avif").kind == "AVIF"


def test_a_folder_of_a_telephone(tmp_path, capsys):
    for number in range(4):
        name = ("cat", "dog")[number % 2]
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / f"IMG_{number}.HEIC").write_bytes(heif(photograph(40, 40, number)))
    splits = open_splits(str(tmp_path))
    assert splits.labels == ("cat", "dog")
    assert main(["data", "stats", str(tmp_path)]) == 0
    assert "HEIF" in capsys.readouterr().out
