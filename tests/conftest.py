"""What every test may use."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture
def shared():
    """`shared("data/cifar10-test.parquet")`: a file of the developers' folder, or a skip that says which is missing."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"needs {name} of the developers' shared folder")
        return path

    return find


@pytest.fixture
def photographs(tmp_path):
    """Two classes of small photographs: reddish ones and bluish ones, and one file that is broken."""
    random = np.random.default_rng(0)
    for name, colour in (("red", (200, 60, 60)), ("blue", (60, 60, 200))):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(20):
            pixels = np.clip(random.normal(colour, 40, (40, 30 + i, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.jpg")
    return tmp_path / "photos"
