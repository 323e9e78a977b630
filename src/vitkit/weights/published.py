"""Published weights that vitkit opens: their names, properties and accuracies as stated by their authors.

The table is published.csv beside this file; benchmarks/published_weights.py writes it from facts alone.
A cell is empty if no source states the value.
"""

import csv
import re
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

from vitkit.system.storage.files import cache_dir

FILE = Path(__file__).with_name("published.csv")
FEWEST_LETTERS = 3  # of a part of a name that matches several

SOURCES = {
    "the paper": "Table 5, fine-tuned at 384 pixels",
    "Google": "README of github.com/google-research/vision_transformer",
    "timm": "results/results-imagenet.csv of github.com/huggingface/pytorch-image-models, 2026-08-08",
    "torchvision": "the metadata of torchvision's weights",
    "DeiT": "README_deit.md of github.com/facebookresearch/deit",
    "DINO": "README of github.com/facebookresearch/dino",
    "DINOv2": "README of github.com/facebookresearch/dinov2",
    "MAE": "README of github.com/facebookresearch/mae",
}
"""Sources of the accuracies."""


@dataclass(frozen=True)
class Published:
    """Weights that were published."""

    name: str
    """The name for `vitkit.load`; for torchvision's the name of the file."""
    library: Literal["google", "transformers", "torchvision", "timm"]
    """The library that defines the format of the file."""
    family: str
    """The usual name of such models, such as "DINOv2"."""
    model: str
    """The architecture, as `vitkit models` prints it."""
    pixels: int
    """The side of its images in pixels."""
    pretraining: str = ""
    """Training data and method; empty if its name does not contain them."""
    top1: float | None = None
    """Accuracy on ImageNet's validation images, in percent, as the source states it."""
    measured: Literal["", "its head", "a linear probe", "fine-tuned"] = ""
    """The model with that accuracy: the file itself, a linear probe of its features, or the model after
    fine-tuning on ImageNet."""
    source: str = ""
    """The source of the accuracy, one of SOURCES."""
    licence: str = ""
    """The hub's id of the licence; empty if unknown."""
    megabytes: int | None = None
    """Size of the file in 10^6 bytes; None if unknown."""
    address: str = ""
    """Address of the file, if it does not follow from the name."""

    @property
    def where(self) -> str:
        """The address of the file, or of its repository."""
        if self.address:
            return self.address
        if self.library == "google":
            return f"https://storage.googleapis.com/vit_models/{self.name.replace('+', '%2B')}.npz"
        return f"https://huggingface.co/{self.name}"

    @property
    def is_here(self) -> bool:
        """Whether the file is in this machine's cache: vitkit's own, the hub's or PyTorch's."""
        if self.library == "google":
            return (cache_dir() / "google" / f"{self.name}.npz").is_file()
        if self.library == "torchvision":
            from torch.hub import get_dir

            return (Path(get_dir()) / "checkpoints" / self.name).is_file()
        try:
            from huggingface_hub.constants import HF_HUB_CACHE
        except ImportError:  # without it no model of the hub can be opened
            return False
        folder = Path(HF_HUB_CACHE) / f"models--{self.name.replace('/', '--')}" / "snapshots"
        files = [*folder.glob("*/*.safetensors"), *folder.glob("*/*.bin")]
        return any(file.is_file() for file in files)  # and not a broken link


@cache
def all_published() -> tuple[Published, ...]:
    """All rows of the table."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return tuple(_row(values) for values in csv.DictReader(file))


def _row(values: dict[str, str]) -> Published:
    """Parse the cells of a row; an empty cell has the default."""
    cells: dict[str, Any] = {name: text for name, text in values.items() if text}
    for number, kind in (("pixels", int), ("megabytes", int), ("top1", float)):
        if number in cells:
            cells[number] = kind(cells[number])
    return Published(**cells)


def find_published(words: str) -> list[Published]:
    """The rows that contain this text in their name, family, architecture or pre-training, whatever the
    case; for a pattern with * or ?, the rows whose name, with or without owner, matches it: vit_*."""
    wanted = words.lower()
    if is_pattern(wanted):
        return [row for row in all_published() if _matches(row.name.lower(), wanted)]
    found = []
    for row in all_published():
        texts = (row.name, row.family, row.model, row.pretraining)
        if any(wanted in text.lower() for text in texts):
            found.append(row)
    return found


def is_pattern(words: str) -> bool:
    """Whether a name contains wildcards, as in a shell."""
    return "*" in words or "?" in words


def _matches(name: str, pattern: str) -> bool:
    """Whether a name, with or without its owner, matches a pattern."""
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition("/")[2], pattern)


def published_called(name: str) -> Published | None:
    """The row with exactly this name, with or without timm/ before it; None if there is none."""
    for row in all_published():
        if name in (row.name, row.name.removeprefix("timm/")):
            return row
    return None


def nearest_published(name: str) -> str:
    """The published name that is closest to a misspelt one; "" if none is close."""
    names = {}
    for row in all_published():
        names[row.name.lower()] = row.name
        names[row.name.rpartition("/")[2].lower()] = row.name
    near = get_close_matches(name.lower(), names, 1, 0.8)
    if not near:
        return ""
    return names[near[0]]


def meant(name: str) -> str:
    """ "; did you mean NAME?" for a misspelt name; the command that lists them for a family, a size or a part
    of a name; the address of a file of torchvision's; otherwise ""."""
    row = published_called(name)
    if row is not None and row.library == "torchvision":
        return f"; it is torchvision's: download it from {row.where}"
    near = nearest_published(name)
    if near == name:
        return ""
    if near:
        return f"; did you mean {near}?"
    begins = re.compile(rf"(?:^|[/_.+-]){re.escape(name)}", re.IGNORECASE)
    rows = find_published(name)
    is_part = any(begins.search(text) for row in rows for text in (row.name, row.family, row.model))
    if len(name) < FEWEST_LETTERS or not is_part:
        return ""
    return f"; the list of models has {len(rows):,} published ones with this name (`published`)"
