"""Limits of what an image may take: pixels, memory, and passes over it; and what raises them."""

import os

import numpy as np
import pytest
from pictures import encoded, photograph
from PIL import Image

from vitkit.cli.entry import main
from vitkit.data import open_image
from vitkit.data.images import jpeg, pillow
from vitkit.system.environment import max_pixels
from vitkit.system.errors import BadImage

SIDE = 64
SCAN = b"\xff\xda"


@pytest.fixture
def limit(monkeypatch):
    """Images of twice SIDE x SIDE pixels are accepted."""
    monkeypatch.setenv("VITKIT_MAX_PIXELS", str(2 * SIDE * SIDE))


def progressive(scans=0, comment=b""):
    """A JPEG whose last scan comes again, so many times, each after a comment."""
    data = encoded(photograph(SIDE, SIDE), "JPEG", progressive=True)
    last = data[data.rindex(SCAN) : -2]
    if comment:
        comment = b"\xff\xfe" + (len(comment) + 2).to_bytes(2) + comment
    return data[:-2] + (comment + last) * scans + data[-2:]


@pytest.mark.parametrize("library", [True, False])
def test_a_jpeg_of_very_many_scans_is_refused(limit, monkeypatch, library):
    if not library:
        monkeypatch.setattr(jpeg, "available", lambda: False)
        monkeypatch.setattr(jpeg, "region", lambda *args, **settings: None)
    whole = open_image(progressive(), "p.jpg").pixels()
    assert whole.shape == (SIDE, SIDE, 3)
    for data in (progressive(200), progressive(200, b"\xff\xd9")):
        with pytest.raises(BadImage, match=r"^p.jpg is a JPEG of more than 20 scans of 64 x 64"):
            open_image(data, "p.jpg").pixels()


def test_scans_are_counted_as_libjpeg_finds_them():
    data = progressive()
    count = data.count(SCAN)
    assert not jpeg.has_more_scans(data, count)
    assert jpeg.has_more_scans(data, count - 1)
    # what only looks like a scan: a thumbnail in front, another image behind
    thumbnail = b"\xff\xe1" + (2 + 40).to_bytes(2) + SCAN * 20
    assert not jpeg.has_more_scans(data[:2] + thumbnail + data[2:] + SCAN * 50, count)
    # an end that is none, in a comment before the scan
    assert jpeg.has_more_scans(progressive(5, b"\xff\xd9"), count + 4)


@pytest.mark.parametrize(("kind", "settings"), [("WEBP", {}), ("JPEG", {"progressive": True})])
def test_formats_that_take_more_memory_have_fewer_pixels(monkeypatch, kind, settings):
    monkeypatch.setenv("VITKIT_MAX_PIXELS", "3000")
    monkeypatch.setattr(jpeg, "available", lambda: False)  # it decodes no more than half the limit
    pixels = photograph(50, 50)
    assert open_image(encoded(pixels, "PNG"), "a.png").pixels().shape == (50, 50, 3)
    with pytest.raises(BadImage, match=r"takes about .* bytes of memory to decode, and 21,000 are"):
        open_image(encoded(pixels, kind, **settings), "a").pixels()


def test_images_are_converted_in_strips_to_the_same_pixels(monkeypatch, tmp_path):
    colour = Image.fromarray(photograph(30, 20))
    grey = np.asarray(colour.convert("L"))
    alpha = colour.convert("RGBA")
    alpha.putalpha(Image.fromarray(np.roll(grey, 3)))
    pictures = {
        "rgb.png": colour, "alpha.png": alpha, "cmyk.jpg": colour.convert("CMYK"),
        "palette.gif": colour.convert("P"), "deep.png": Image.fromarray(grey.astype(np.uint16) * 250),
        "float.tif": Image.fromarray(grey.astype(np.float32) * 3 - 100),
        "integer.tif": Image.fromarray(grey.astype(np.int32) * 1000 - 5),
    }  # fmt: skip
    for name, picture in pictures.items():
        picture.save(tmp_path / name)
    boxes = (None, (0, 0, 30, 20), (3, 2, 20, 15))
    monkeypatch.setattr(jpeg, "region", lambda *args, **settings: None)

    def decoded():
        found = {}
        for name in pictures:
            picture = open_image((tmp_path / name).read_bytes(), name)
            found[name] = [picture.pixels(box) for box in boxes]
        return found

    at_once = decoded()
    monkeypatch.setattr(pillow, "STRIP", 47)  # two rows of 20
    in_strips = decoded()
    for name in pictures:
        for expected, pixels in zip(at_once[name], in_strips[name], strict=True):
            assert np.array_equal(expected, pixels), name


def test_one_flag_raises_the_limits_of_every_command(monkeypatch, capsys):
    monkeypatch.setenv("VITKIT_MAX_PIXELS", "1")
    assert main(["--max-pixels", "200_000_000", "--version"]) == 0
    assert os.environ["VITKIT_MAX_PIXELS"] == "200_000_000" and max_pixels() == 200_000_000
    assert main(["models", "--max-pixels=300000000", "Ti/16"]) == 0
    assert max_pixels() == 300_000_000
    assert Image.MAX_IMAGE_PIXELS == 89_478_485  # Pillow's own limit is as it was
    capsys.readouterr()
    for words in (["--max-pixels", "many"], ["models", "--max-pixels"], ["--max-pixels=0"]):
        assert main(words) == 2
        assert "give a whole number, such as 500_000_000" in capsys.readouterr().err
