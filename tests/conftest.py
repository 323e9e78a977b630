"""What every test may use."""

from pathlib import Path

import pytest

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
