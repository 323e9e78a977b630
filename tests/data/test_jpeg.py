"""A partial decode gives Pillow's pixels or nothing at all, whatever the box and however damaged
the file."""

import ctypes
import io
import random
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_image

from vitkit.data.images import jpeg

needs_library = pytest.mark.skipif(
    not jpeg.available(), reason="no TurboJPEG 3 library here; `pip install turbojpeg` brings one"
)

SIZES = [(203, 331), (64, 64), (16, 48), (97, 17), (33, 130), (7, 5), (1, 1)]
PILLOW = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "grey": {"mode": "L"},
    "rgb": {"subsampling": 0, "keep_rgb": True},
    "progressive": {"subsampling": 2, "progressive": True},
    "progressive 4:2:2": {"subsampling": 1, "progressive": True},
    "restarts by block": {"subsampling": 2, "restart_marker_blocks": 3},
    "restarts by row": {"subsampling": 1, "restart_marker_rows": 1},
    "optimised": {"subsampling": 2, "optimize": True, "quality": 35},
    "best": {"subsampling": 0, "quality": 100},
}
TURBO = {"4:4:0": 4, "4:1:1": 5}  # enum TJSAMP; Pillow cannot write these
KINDS = [*PILLOW, *TURBO]


@cache
def photograph(height: int, width: int) -> Image.Image:
    """A part of a real photograph with noise and a gradient over it: nothing that smoothing would
    hide."""
    pixels = load_sample_image("china.jpg")[90 : 90 + height, 150 : 150 + width].astype(float)
    noise = np.random.default_rng(height * width).normal(0, 25, pixels.shape)
    gradient = np.linspace(-60, 60, width)[:, None]
    return Image.fromarray((pixels + noise + gradient).clip(0, 255).astype(np.uint8))


@cache
def encoded(kind: str, size: tuple[int, int]) -> bytes:
    image = photograph(*size)
    if kind in TURBO:
        return turbo_encoded(np.asarray(image), TURBO[kind])
    options = {"quality": 90, **PILLOW[kind]}
    file = io.BytesIO()
    image.convert(options.pop("mode", "RGB")).save(file, "JPEG", **options)
    return file.getvalue()


def turbo_encoded(pixels: np.ndarray, subsampling: int) -> bytes:
    library = jpeg.library()
    pointer = ctypes.c_void_p
    library.tj3Compress8.argtypes = [pointer, pointer, *[ctypes.c_int] * 4, pointer, pointer]
    library.tj3Free.argtypes = [pointer]
    pixels = np.ascontiguousarray(pixels)
    out = ctypes.c_void_p()
    size = ctypes.c_size_t()
    height, width, _ = pixels.shape
    handle = library.tj3Init(0)
    library.tj3Set(handle, 3, 90)  # TJPARAM_QUALITY
    library.tj3Set(handle, 4, subsampling)  # TJPARAM_SUBSAMP
    failed = library.tj3Compress8(
        handle, pixels.ctypes.data, width, 0, height, 0, ctypes.byref(out), ctypes.byref(size)
    )
    assert not failed
    data = ctypes.string_at(out, size.value)
    library.tj3Free(out)
    library.tj3Destroy(handle)
    return data


def full(data: bytes, scale: int = 1) -> np.ndarray:
    """Pillow's decode, reduced by libjpeg for scale > 1."""
    with Image.open(io.BytesIO(data)) as image:
        image.draft(None, (image.width // scale, image.height // scale))
        return np.asarray(image.convert("RGB"))


def boxes(height: int, width: int, count: int, seed: int):
    """Boxes of every size: small ones, crops, single pixels, borders, the whole."""
    draw = random.Random(seed)
    yield 0, 0, height, width
    for number in range(count):
        most = (height, width) if number % 3 else (min(height, 4), min(width, 4))
        h, w = draw.randint(1, most[0]), draw.randint(1, most[1])
        yield draw.randint(0, height - h), draw.randint(0, width - w), h, w


@needs_library
@pytest.mark.parametrize("kind", KINDS)
def test_every_box_has_pillows_pixels(kind):
    for size in SIZES:
        data = encoded(kind, size)
        expected = full(data)
        for top, left, height, width in boxes(*size, count=30, seed=len(data)):
            part = jpeg.region(data, top, left, height, width)
            assert part is not None and part.dtype == np.uint8
            assert part.flags.c_contiguous and part.flags.writeable
            box = expected[top : top + height, left : left + width]
            assert np.array_equal(part, box), (size, top, left)


@needs_library
@pytest.mark.parametrize("kind", KINDS)
def test_every_edge_is_exact(kind):
    for size in ((33, 130), (97, 17)):
        data = encoded(kind, size)
        expected = full(data)
        along = int(size[1] > size[0])  # the axis whose every edge is tried
        for start in range(size[along]):
            for length in {1, 2, 3, 16, 17, size[along] - start}:
                box = (15, start, 3, length) if along else (start, 3, length, 9)
                if start + length <= size[along]:
                    top, left, height, width = box
                    part = jpeg.region(data, *box)
                    inside = expected[top : top + height, left : left + width]
                    assert np.array_equal(part, inside), box


@needs_library
@pytest.mark.parametrize("scale", [2, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_a_reduced_box_has_the_pixels_of_pillows_draft(kind, scale):
    for size in (size for size in SIZES if min(size) >= scale):  # Pillow reduces no side to nothing
        data = encoded(kind, size)
        reduced = tuple(-(-side // scale) for side in size)
        expected = full(data, scale)
        assert expected.shape[:2] == reduced
        for top, left, height, width in boxes(*reduced, count=15, seed=len(data)):
            part = jpeg.region(data, top, left, height, width, scale)
            box = expected[top : top + height, left : left + width]
            assert np.array_equal(part, box), (size, top, left)


@needs_library
def test_a_grey_file_with_idle_sampling_factors():
    """Some cameras write factors of 2 for the only component, where they mean nothing."""
    data = bytearray(encoded("grey", (33, 130)))
    data[data.index(b"\xff\xc0") + 11] = 0x22
    part = jpeg.region(bytes(data), 9, 50, 20, 30)
    assert np.array_equal(part, full(bytes(data))[9:29, 50:80])


@needs_library
def test_the_header_is_pillows():
    for kind in KINDS:
        data = encoded(kind, (203, 331))
        header = jpeg.header(data)
        assert (header.height, header.width) == (203, 331)
        assert header.progressive == ("progressive" in kind) and not header.app1
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    photograph(16, 48).save(file, "JPEG", exif=exif)
    assert jpeg.header(file.getvalue()).app1


def unusual() -> dict[str, bytes]:
    """Files that are no ordinary JPEG, each of which Pillow can name."""
    plain = encoded("4:2:0", (33, 130))
    frame = plain.index(b"\xff\xc0")
    huge = plain[: frame + 5] + b"\xff\xff\xff\xff" + plain[frame + 9 :]
    cmyk, png = io.BytesIO(), io.BytesIO()
    photograph(33, 130).convert("CMYK").save(cmyk, "JPEG")
    photograph(33, 130).save(png, "PNG")
    codings = {
        f"coding {code:x}": plain.replace(b"\xff\xc0", bytes([0xFF, code]))
        for code in (0xC3, 0xC9, 0xCA, 0xC5)
    }
    return {
        **codings,
        "cmyk": cmyk.getvalue(),
        "png": png.getvalue(),
        "empty": b"",
        "start only": plain[:2],
        "no frame": plain[:frame] + plain[frame + 19 :],
        "two frames": plain[:frame] + plain[frame : frame + 19] + plain[frame:],
        "12 bit": plain[: frame + 4] + b"\x0c" + plain[frame + 5 :],
        "a bomb": huge,
        "no height": plain[: frame + 5] + b"\0\0" + plain[frame + 7 :],
        "no table": plain.replace(b"\xff\xdb", b"\xff\xe5"),
        "endless segments": plain[:2] + b"\xff\xe0\x00\x02" * 100_000 + plain[2:],
        "endless fill": plain[:2] + b"\xff" * 100_000 + plain[2:],
        "odd sampling": plain[: frame + 11] + b"\x33" + plain[frame + 12 :],
    }


@pytest.mark.parametrize("name", unusual() if jpeg.available() else [])
def test_an_unusual_file_is_left_to_the_caller(name):
    assert jpeg.region(unusual()[name], 0, 0, 8, 8) is None


@needs_library
def test_tables_of_the_image_before_are_forgotten():
    """libjpeg would keep them, and decode a file that lacks its own into plausible nonsense."""
    plain = encoded("4:2:0", (33, 130))
    assert jpeg.region(plain, 0, 0, 8, 8) is not None
    assert jpeg.region(plain.replace(b"\xff\xdb", b"\xff\xe5"), 0, 0, 8, 8) is None


@needs_library
@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_file_is_refused_for_every_box(kind):
    data = encoded(kind, (64, 64))
    for end in range(2, len(data) - 1, 37):
        assert jpeg.region(data[:end], 0, 0, 1, 1) is None
        assert jpeg.region(data[:end] + b"\xff\xd9", 0, 0, 64, 64) is None


@needs_library
def test_a_progressive_file_that_lacks_scans_is_refused():
    data = encoded("progressive", (64, 64))
    scans = [at for at in range(len(data)) if data.startswith(b"\xff\xda", at)]
    for end in scans[1:]:
        assert jpeg.region(data[:end] + b"\xff\xd9", 0, 0, 8, 8) is None
        assert jpeg.region(data[:end] + b"\xff\xd9" + data[end:], 0, 0, 8, 8) is None


@needs_library
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_damaged_file_gives_nothing_or_pillows_pixels(data):
    """Where Pillow raises there is nothing to compare with; where it decodes, the pixels agree."""
    damaged = bytearray(encoded(data.draw(st.sampled_from(KINDS)), (33, 130)))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        match data.draw(st.sampled_from(["set", "cut", "repeat"])):
            case "set":
                damaged[at] = data.draw(st.integers(0, 255))
            case "cut":
                del damaged[at : at + data.draw(st.integers(1, 40))]
            case "repeat":
                damaged[at:at] = damaged[at : at + 40]
        if len(damaged) < 4:
            break
    check_damaged(bytes(damaged))


def check_damaged(data: bytes) -> None:
    header = jpeg.header(data)
    if header is None:
        assert jpeg.region(data, 0, 0, 1, 1) is None
        return
    height = min(header.height, 20)
    width = min(header.width, 70)
    top = (header.height - height) // 2
    left = (header.width - width) // 2
    pixels = jpeg.region(data, top, left, height, width)
    if pixels is None:
        return
    assert pixels.shape == (height, width, 3)
    try:
        expected = full(data)
    except (OSError, SyntaxError, ValueError):
        return
    assert np.array_equal(pixels, expected[top : top + height, left : left + width])


@needs_library
@pytest.mark.parametrize(
    "box", [(0, 0, 0, 1), (0, 0, 1, 0), (-1, 0, 4, 4), (0, -1, 4, 4), (30, 0, 4, 4), (0, 127, 4, 4)]
)
def test_a_box_outside_the_image_is_an_error(box):
    with pytest.raises(ValueError, match="within an image of 33x130 pixels"):
        jpeg.region(encoded("4:2:0", (33, 130)), *box)


def test_another_reduction_is_an_error():
    with pytest.raises(ValueError, match="reduce is 3"):
        jpeg.region(b"", 0, 0, 1, 1, reduce=3)


def test_without_a_library_there_is_nothing(monkeypatch):
    file = io.BytesIO()
    photograph(16, 48).save(file, "JPEG")
    monkeypatch.setattr(jpeg, "library", lambda: None)
    assert not jpeg.available()
    assert jpeg.region(file.getvalue(), 0, 0, 8, 8) is None


def test_a_missing_or_old_library_is_passed_over(monkeypatch, tmp_path):
    (tmp_path / "libturbojpeg.so.0").write_bytes(b"no library")
    paths = [str(tmp_path / "libturbojpeg.so.0"), str(tmp_path / "none")]
    paths += ["libc.so.6"]  # which has no tj3Init
    monkeypatch.setattr(jpeg, "system_paths", lambda: paths)
    monkeypatch.setattr(jpeg, "wheel_paths", list)
    assert jpeg.library.__wrapped__() is None


@needs_library
def test_threads_do_not_disturb_each_other():
    files = [encoded(kind, (203, 331)) for kind in KINDS]
    expected = [full(data) for data in files]

    def check(number: int) -> bool:
        which = number % len(files)
        if number % 7 == 0:
            assert jpeg.region(files[which][:-300], 0, 0, 203, 331) is None
        draw = random.Random(number)
        top, left = draw.randint(0, 100), draw.randint(0, 200)
        part = jpeg.region(files[which], top, left, 90, 120)
        return np.array_equal(part, expected[which][top : top + 90, left : left + 120])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, range(400)))
