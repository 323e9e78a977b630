"""Small pictures to test with."""

import io
from pathlib import Path

import numpy as np
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
    random = np.random.default_rng(0)
    for name, colour in (("red", (200, 60, 60)), ("blue", (60, 60, 200))):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(20):
            pixels = np.clip(random.normal(colour, 40, (40, 30 + i, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / name / f"{i}.jpg")
    return folder / "photos"
