"""What the name of one of timm's architectures says of a model and no tensor tells: the number of heads, the
activation, the positions; or that it is a model that vitkit does not read.

benchmarks/library_architectures.py wrote architectures.csv from timm's own functions, and compares
each model that is read with timm's.
"""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vitkit.system.errors import BadWeights
from vitkit.weights.formats.timm.config import architecture_name

FILE = Path(__file__).with_name("architectures.csv")


@dataclass(frozen=True)
class Architecture:
    """An architecture of timm's. The settings are those of a ViTConfig, "" and 0 where it is refused."""

    name: str
    width: int = 0
    patch: int = 0
    class_token: bool = False
    heads: int = 0
    """Of a model of this width."""
    gelu: str = ""
    eps: float = 0.0
    positions: str = ""
    trained_grid: int = 0
    """The side of the grid that rotary positions were trained on, if they are scaled by it."""
    branch_norm: str = ""
    pool: str = ""
    """Unless config.json says another."""
    refused: str = ""
    """What it is, of a model that vitkit does not read."""


@cache
def _known() -> dict[str, Architecture]:
    known = {}
    with FILE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            known[row["name"]] = Architecture(
                name=row["name"],
                width=int(row["width"] or 0),
                patch=int(row["patch"] or 0),
                class_token=bool(row["class_token"]),
                heads=int(row["heads"] or 0),
                gelu=row["gelu"],
                eps=float(row["eps"] or 0),
                positions=row["positions"],
                trained_grid=int(row["trained_grid"] or 0),
                branch_norm=row["branch_norm"],
                pool=row["pool"],
                refused=row["refused"],
            )
    return known


def architecture_called(name: str) -> Architecture | None:
    """The architecture of this name, with or without the tag of its weights behind a dot; None if timm had
    none when the file was written, or if it resembles no Vision Transformer."""
    return _known().get(name.partition(".")[0])


def check_architecture(json: dict) -> None:
    """Raises VitkitError for a config.json that names an architecture of timm's that vitkit does not read,
    whatever its tensors look like."""
    name = architecture_name(json)
    known = architecture_called(name)
    if known and known.refused:
        raise BadWeights(
            f"its config.json says that it is timm's {name[:100]}, {known.refused}, which vitkit does not "
            "read"
        )
