"""Small data sets to test with."""

from pathlib import Path

import pytest
from pictures import encoded, photograph


@pytest.fixture
def folder(tmp_path):
    """folder({"train/cat/1.jpg": 40, ...}): a folder with images of so many pixels a side (0: an empty file)."""

    def make(files: dict[str, int], name: str = "photos") -> Path:
        for number, (file, side) in enumerate(files.items()):
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            kind = {"png": "PNG", "jpg": "JPEG"}.get(path.suffix[1:].lower(), "PNG")
            path.write_bytes(encoded(photograph(side, side + 4, number), kind) if side else b"")
        return tmp_path / name

    return make
