"""Small pictures to test with."""

import io
from functools import cache
from pathlib import Path

import numpy as np
import PIL
from packaging.version import Version
from PIL import Image


def photograph(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth colour noise, uint8 (height, width, 3): it compresses and resizes as photographs do."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (max(height // 8, 2), max(width // 8, 2), 3), dtype=np.uint8)
    return np.array(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def encoded(pixels: np.ndarray, kind: str = "JPEG", **settings) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **settings)
    return file.getvalue()


def make_photographs(folder: Path) -> Path:
    """Two classes of small photographs, reddish ones and bluish ones, in folder/photos."""
    for name, content in two_classes().items():
        file = folder / "photos" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return folder / "photos"


@cache
def two_classes() -> dict[str, bytes]:
    """The files of these classes."""
    files = {}
    random = np.random.default_rng(0)
    for name, colour in (("red", (200, 60, 60)), ("blue", (60, 60, 200))):
        for i in range(20):
            pixels = np.clip(random.normal(colour, 40, (40, 30 + i, 3)), 0, 255).astype(np.uint8)
            files[f"{name}/{i}.jpg"] = encoded(pixels)
    return files


def needs_newer_pillow(name):
    """Whether the Pillow that is here does not decode an awkward image, as 13 does."""
    older = Version(PIL.__version__) < Version("13")
    return older and name == "formats/imagers__ycbcr_lzw_bt709.tif"
