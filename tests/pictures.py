"""Small pictures to test with."""

import io

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
