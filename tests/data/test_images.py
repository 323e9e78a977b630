"""Files to pixels: the awkward ones, orientations, boxes, and refusals that name the file."""

import io
import json
import warnings

import numpy as np
import pytest
from pictures import encoded, needs_newer_pillow, photograph
from PIL import Image, ImageOps

from vitkit.data import open_image
from vitkit.data.images import jpeg
from vitkit.system.errors import BadImage

AWKWARD = "data/awkward_images/manifest.json"
# Where the manifest's mean is not what we want: Pillow's convert("RGB") clips 16 bits and drops
# transparency.
SCALED = {
    "sixteen_bit/pillow__12bit.cropped.tif": 4095,
    "sixteen_bit/imagers__basi0g16.png": 65535,
    "sixteen_bit/pillow__16bit.cropped.tif": 65535,
    "sixteen_bit/pillow__16bit.MM.cropped.tif": 65535,
    "sixteen_bit/pillow__hopper_16bit.pgm": 65535,
    "sixteen_bit/pillow__16_bit_noise.tif": 65535,
}
UNBOUNDED = {"sixteen_bit/pillow__10ct_32bit_128.tiff"}  # floating point from -pi to pi


@pytest.fixture(params=["library", "pillow"])
def decoder(request, monkeypatch):
    """With the library for boxes of JPEGs (where it is there), and without."""
    if request.param == "pillow":
        monkeypatch.setattr(jpeg, "region", lambda *args, **settings: None)
    return request.param


def expected_mean(path, entry) -> np.ndarray | None:
    """The mean colour, computed in another way than by images.py; None where there is no truth."""
    if entry["file"] in UNBOUNDED:
        return None
    if entry["file"].endswith((".jpg", ".jpeg")):  # of 8 bits, and opaque
        return np.array(entry["mean_rgb_convert"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = Image.open(io.BytesIO(path.read_bytes()))
        image.load()
        if entry["file"] in SCALED:
            return np.full(3, np.asarray(image).astype(float).mean() * 255 / SCALED[entry["file"]])
        if image.mode == "I;16":  # a transparent level
            values = np.asarray(image).astype(float)
            on_white = np.where(values == image.info["transparency"], 65535, values)
            return np.full(3, on_white.mean() * 255 / 65535)
        if image.has_transparency_data:
            rgba = np.asarray(ImageOps.exif_transpose(image).convert("RGBA")).astype(float)
            alpha = rgba[..., 3:] / 255
            return (rgba[..., :3] * alpha + 255 * (1 - alpha)).mean((0, 1))
    return np.array(entry["mean_rgb_convert"])


def test_awkward_files_decode_or_are_refused_by_name(shared, decoder):
    manifest = shared(AWKWARD)
    entries = json.loads(manifest.read_text())
    assert len(entries) == 142
    for entry in entries:
        name = entry["file"]
        path = manifest.parent / name
        if needs_newer_pillow(name):
            continue
        if decoder == "library" and path.read_bytes()[:2] != b"\xff\xd8":
            continue  # it is asked for JPEGs only, and Pillow has decoded the others
        if entry["expect"] != "ok":
            with pytest.raises(BadImage, match=name):
                open_image(path.read_bytes(), name).pixels()
            continue
        picture = open_image(path.read_bytes(), name)
        pixels = picture.pixels()
        assert picture.size == tuple(entry["upright_size"][::-1]) == pixels.shape[:2], name
        assert pixels.dtype == np.uint8 and pixels.shape[2] == 3, name
        mean = expected_mean(path, entry)
        if mean is not None:
            # Rounding to 8 bits, once a channel, costs up to half a level if all pixels are alike.
            tolerance = 0.02 if entry["mode"] == "RGB" else 0.5
            assert np.abs(pixels.mean(0).mean(0) - mean).max() < tolerance, name
        if min(picture.size) >= 4:
            height, width = picture.size
            box = (height // 3, width // 4, height // 2, width // 2)
            part = picture.pixels(box)
            assert np.array_equal(part, pixels[height // 3 :, width // 4 :][: box[2], : box[3]]), (
                name
            )


def test_sixteen_bits_are_scaled_and_not_clipped():
    ramp = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    pixels = open_image(encoded(ramp, "PNG"), "ramp.png").pixels()[..., 0]
    assert np.array_equal(pixels.ravel(), np.round(np.arange(65536) / 257))


@pytest.mark.parametrize(("values", "grey"), [
    ([0.0, 0.5, 1.0], [0, 128, 255]),
    ([0.0, 100.0, 255.0], [0, 100, 255]),
    ([0.0, 65535.0], [0, 255]),
    ([-2.0, 0.0, 2.0], [0, 128, 255]),
    ([7.0, 7.0], [7, 7]),
    ([-7.0, -7.0], [0, 0]),
])  # fmt: skip
def test_floating_point_has_the_white_that_holds_it(values, grey):
    data = encoded(np.array([values], dtype=np.float32), "TIFF")
    assert open_image(data, "f.tif").pixels()[0, :, 0].tolist() == grey


def test_floating_point_that_is_no_number_is_refused():
    data = encoded(np.array([[0, np.nan]], dtype=np.float32), "TIFF")
    with pytest.raises(BadImage, match=r"f\.tif cannot be decoded: .* values that are not finite"):
        open_image(data, "f.tif").pixels()


def test_transparency_lies_on_white():
    rgba = np.zeros((2, 2, 4), np.uint8)
    rgba[0, 0] = (200, 0, 0, 255)
    rgba[0, 1] = (200, 0, 0, 128)
    pixels = open_image(encoded(rgba, "PNG"), "a.png").pixels()
    assert pixels[0, 0].tolist() == [200, 0, 0] and pixels[1, 1].tolist() == [255, 255, 255]
    assert np.abs(pixels[0, 1].astype(int) - [227, 127, 127]).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_any_box_of_a_turned_image_is_cut_from_the_upright_one(kind, orientation, decoder):
    exif = Image.Exif()
    exif[0x0112] = orientation
    settings = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(photograph(40, 56), kind, exif=exif, **settings)
    with Image.open(io.BytesIO(data)) as image:
        upright = np.array(ImageOps.exif_transpose(image).convert("RGB"))
    picture = open_image(data, "x")
    assert picture.size == upright.shape[:2] == ((56, 40) if orientation > 4 else (40, 56))
    assert np.array_equal(picture.pixels(), upright)
    whole = (0, 0, *picture.size)
    for top, left, height, width in [(0, 0, 1, 1), (3, 5, 20, 11), (33, 29, 7, 11), whole]:
        part = open_image(data, "x").pixels((top, left, height, width))
        assert np.array_equal(part, upright[top : top + height, left : left + width])


@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
@pytest.mark.parametrize("reduce", jpeg.REDUCTIONS)
def test_a_jpeg_can_be_decoded_smaller(reduce, orientation, decoder):
    exif = Image.Exif()
    exif[0x0112] = orientation
    rows, columns = np.meshgrid(np.linspace(0, 255, 203), np.linspace(0, 255, 301), indexing="ij")
    # Its colour tells the position, a level or so a pixel.
    slope = np.stack([rows, columns, rows[::-1]], -1).astype(np.uint8)
    data = encoded(slope, quality=95, exif=exif)
    picture = open_image(data, "x.jpg")
    height, width = picture.size
    assert picture.pixels(reduce=reduce).shape[:2] == (-(-height // reduce), -(-width // reduce))
    box = (30, 20, 120, 100)
    part = picture.pixels(box, reduce)
    assert abs(part.shape[0] - box[2] / reduce) <= 2 and abs(part.shape[1] - box[3] / reduce) <= 2
    want = Image.fromarray(picture.pixels(box)).resize(part.shape[1::-1], Image.Resampling.BOX)
    assert np.abs(part.astype(float) - np.asarray(want)).mean() < reduce
    again = open_image(data, "x.jpg")
    assert np.array_equal(picture.pixels(), again.pixels())  # and nothing of it remains


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF"])
def test_truncated_files_are_refused(kind, share, decoder):
    data = encoded(photograph(64, 64), kind)
    with pytest.raises(BadImage, match="half"):
        open_image(data[: int(len(data) * share)], "half").pixels()


def test_what_is_no_image_is_refused_in_one_line():
    for data in (b"", b"\0" * 100, b"hello", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\xff\xd8\xff\xe0"):
        with pytest.raises(BadImage, match=r"^notes\.txt ") as caught:
            open_image(data, "notes.txt").pixels()
        assert "\n" not in str(caught.value)


def test_too_many_pixels_are_refused_before_they_are_allocated(monkeypatch):
    monkeypatch.setenv("VITKIT_MAX_PIXELS", "999")
    with pytest.raises(
        BadImage, match=r"big\.png claims to be 40 x 25 pixels; from 1 to 999 pixels"
    ):
        open_image(encoded(photograph(25, 40), "PNG"), "big.png")


def test_arrays_are_pictures_too():
    grey, colour = np.arange(12, dtype=np.uint8).reshape(3, 4), photograph(3, 4)
    for array in (grey, grey[..., None]):
        assert np.array_equal(open_image(array, "x").pixels(), np.stack([grey] * 3, -1))
        assert np.array_equal(open_image(array, "x").pixels((1, 2, 2, 1))[..., 0], grey[1:3, 2:3])
    assert np.array_equal(open_image(colour, "x").pixels((0, 1, 2, 3)), colour[0:2, 1:4])
    assert open_image(colour, "x").size == (3, 4)
    for bad in (colour.astype(float), colour[None], colour[:0]):
        with pytest.raises(BadImage, match="x is an array of"):
            open_image(bad, "x")
    with pytest.raises(BadImage, match="x cannot be decoded"):  # a matrix cannot have a third axis
        open_image(grey.view(np.matrix), "x").pixels()
