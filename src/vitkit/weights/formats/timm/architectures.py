"""Properties of timm's architectures by name that do not follow from tensors: the number of heads, the
activation, the positions; or that vitkit cannot read the model.

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
    """An architecture of timm. Settings are those of a ViTConfig; "" and 0 if it is refused."""

    name: str
    width: int = 0
    patch: int = 0
    class_token: bool = False
    heads: int = 0
    """Number of heads at this width."""
    gelu: str = ""
    eps: float = 0.0
    positions: str = ""
    trained_grid: int = 0
    """Side of the grid that rotary positions were trained on, if they are scaled by it."""
    branch_norm: str = ""
    pool: str = ""
    """Pooling, unless config.json contains another."""
    refused: str = ""
    """Description of a model that vitkit cannot read."""


@cache
def _known() -> dict[str, Architecture]:
    """Read the table of architectures, by name."""
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
    """The architecture with this name, with or without the tag of its weights after a dot; None if timm had
    none when the table was written, or if it does not resemble a Vision Transformer."""
    return _known().get(name.partition(".")[0])


def check_architecture(json: dict) -> None:
    """Raise VitkitError for a config.json with an architecture of timm that vitkit cannot read, whatever
    its tensors are."""
    name = architecture_name(json)
    known = architecture_called(name)
    if known and known.refused:
        raise BadWeights(
            f"it is timm's {name[:100]} by its config.json, {known.refused}, which vitkit cannot read"
        )
