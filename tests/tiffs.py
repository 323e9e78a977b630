"""TIFF files of several channels, a few hundred bytes each, and such that are damaged."""

import io
from pathlib import Path

import numpy as np

# Tags of a TIFF's directory
WIDTH = 256
BITS = 258
COMPRESSION = 259
SAMPLES = 277


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


def make_damaged(folder: Path) -> list[Path]:
    """Them as files in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, data in damaged_tiffs().items():
        path = folder / f"{name}.tif"
        path.write_bytes(data)
        paths.append(path)
    return paths
