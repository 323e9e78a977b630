"""TIFF files of several channels, a few hundred bytes each, and such that are damaged."""

import io
from pathlib import Path

import numpy as np

# Tags of a TIFF's directory
WIDTH = 256
HEIGHT = 257
BITS = 258
COMPRESSION = 259
STRIP_PLACES = 273
SAMPLES = 277
STRIP_ROWS = 278
STRIP_SIZES = 279
TILE_PLACES = 324


def tiff(shape: tuple[int, ...] = (6, 8, 5), numbers: str = "u2", **settings) -> bytes:
    """A TIFF of ones, its channels last."""
    import tifffile

    settings = {"photometric": "minisblack", "planarconfig": "contig", **settings}
    file = io.BytesIO()
    tifffile.imwrite(file, np.ones(shape, numbers), metadata=None, **settings)
    return file.getvalue()


def with_tag(data: bytes, tag: int, value: int) -> bytes:
    """The same file, each number of a tag replaced."""
    import tifffile

    with tifffile.TiffFile(io.BytesIO(data)) as file:
        found = file.pages[0].tags[tag]
        start = found.valueoffset
        size = found.valuebytecount // found.count
        numbers = value.to_bytes(size, "little") * found.count
    return data[:start] + numbers + data[start + len(numbers) :]


def with_last_zero(data: bytes, tag: int) -> bytes:
    """The same file, the last number of a tag replaced by 0."""
    import tifffile

    with tifffile.TiffFile(io.BytesIO(data)) as file:
        found = file.pages[0].tags[tag]
        end = found.valueoffset + found.valuebytecount
        size = found.valuebytecount // found.count
    return data[: end - size] + bytes(size) + data[end:]


def with_byte(data: bytes, at: int, value: int) -> bytes:
    """The same file, one byte replaced."""
    return data[:at] + bytes([value]) + data[at + 1 :]


def damaged_tiffs() -> dict[str, bytes]:
    """By what is wrong with them. Each of these has ended a command with a traceback, has given a
    picture without pixels, or has never ended."""
    first = tiff(numbers="f8")
    entry = 8 + 2  # the first of its directory
    chain = entry + 12 * int.from_bytes(first[8:10], "little")  # where the next page is
    return {
        "no width": with_tag(tiff(), WIDTH, 0),
        "no channels": with_tag(tiff(), SAMPLES, 0),
        "an unknown compression": with_tag(tiff(), COMPRESSION, 13),
        "floats of 13 bits": with_tag(tiff((6, 8), "f4", planarconfig=None), BITS, 13),
        "no type of numbers": with_byte(first, 8, 0),
        "two widths": with_byte(first, entry + 4, 2),
        "two heights": with_byte(first, entry + 12 + 4, 2),
        "strips that are text": with_byte(tiff(), entry + 6 * 12 + 2, 2),
        "pages in a circle": with_byte(first, chain, 16),
    }


def truncated_tiffs() -> dict[str, bytes]:
    """By what they lack. Each has been read, as black where its pixels are missing."""
    photograph = tiff((6, 8, 3), "u1", photometric="rgb")
    strips = tiff((20, 20, 5), rowsperstrip=4)
    lzw = tiff((20, 20, 5), compression="lzw")
    tiles = tiff((20, 20, 5), tile=(16, 16), compression="lzw")
    planes = tiff((5, 6, 8), planarconfig="separate")
    return {
        "rows of a photograph": with_tag(photograph, HEIGHT, 40),
        "rows of strips": with_tag(strips, HEIGHT, 40),
        "rows of one strip": with_tag(lzw, HEIGHT, 40),
        "rows of planes": with_tag(planes, HEIGHT, 40),
        "columns of tiles": with_tag(tiles, WIDTH, 40),
        "the place of a photograph": with_tag(photograph, STRIP_PLACES, 0),
        "the places of strips": with_tag(strips, STRIP_PLACES, 0),
        "the sizes of strips": with_tag(strips, STRIP_SIZES, 0),
        "the places of tiles": with_tag(tiles, TILE_PLACES, 0),
    }


def make_damaged(folder: Path) -> list[Path]:
    """Them as files in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, data in damaged_tiffs().items():
        path = folder / f"{name}.tif"
        path.write_bytes(data)
        paths.append(path)
    return paths
