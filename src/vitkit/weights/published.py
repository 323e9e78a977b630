"""Published weights that vitkit opens: what one types, what they are, and how good their authors say
they are.

The table is published.csv beside this file; benchmarks/published_weights.py writes it, of facts alone.
What no source states is empty.
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
FEWEST_LETTERS = 3  # of a part of a name that stands for several

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
"""Where the accuracies are stated."""


@dataclass(frozen=True)
class Published:
    """Weights that somebody has published."""

    name: str
    """What one types: a name that `vitkit.load` takes, or of torchvision's the file's."""
    library: Literal["google", "transformers", "torchvision", "timm"]
    """Whose format the file has."""
    family: str
    """What people call such models, such as "DINOv2"."""
    model: str
    """Its architecture, as `vitkit models` writes it."""
    pixels: int
    """The side of its images."""
    pretraining: str = ""
    """The data that it has learned from, and how; empty if its name does not tell."""
    top1: float | None = None
    """Accuracy on ImageNet's validation images, in percent, as the source states it."""
    measured: Literal["", "its head", "a linear probe", "fine-tuned"] = ""
    """What has that accuracy: the file as it is, a linear probe of its features, or the model after
    fine-tuning on ImageNet."""
    source: str = ""
    """Who states it: one of SOURCES."""
    licence: str = ""
    """As the hub calls it; empty if nobody has said."""
    megabytes: int | None = None
    """The size of the file, of 10^6 bytes; None if it is not known."""
    address: str = ""
    """Where the file is to be had, if the name does not say it."""

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
        except ImportError:  # without it nothing there can be opened
            return False
        folder = Path(HF_HUB_CACHE) / f"models--{self.name.replace('/', '--')}" / "snapshots"
        files = [*folder.glob("*/*.safetensors"), *folder.glob("*/*.bin")]
        return any(file.is_file() for file in files)  # not a link to what is gone


@cache
def all_published() -> tuple[Published, ...]:
    """All rows of the table."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return tuple(_row(values) for values in csv.DictReader(file))


def _row(values: dict[str, str]) -> Published:
    """A row from the text of its cells; an empty one has the default."""
    cells: dict[str, Any] = {name: text for name, text in values.items() if text}
    for number, kind in (("pixels", int), ("megabytes", int), ("top1", float)):
        if number in cells:
            cells[number] = kind(cells[number])
    return Published(**cells)


def find_published(words: str) -> list[Published]:
    """The rows whose name, family, architecture or pre-training holds this text, whatever its case; of a
    pattern with * or ?, those whose name, or its end after the owner, fits it whole: vit_*."""
    wanted = words.lower()
    if is_pattern(wanted):
        return [row for row in all_published() if _fits(row.name.lower(), wanted)]
    found = []
    for row in all_published():
        texts = (row.name, row.family, row.model, row.pretraining)
        if any(wanted in text.lower() for text in texts):
            found.append(row)
    return found


def is_pattern(words: str) -> bool:
    """Whether a name stands for all that fit it, as a shell has it."""
    return "*" in words or "?" in words


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition("/")[2], pattern)


def published_called(name: str) -> Published | None:
    """The row of exactly this name, with or without timm/ before it; None if there is none."""
    for row in all_published():
        if name in (row.name, row.name.removeprefix("timm/")):
            return row
    return None


def nearest_published(name: str) -> str:
    """The published name that a misspelt one most likely means; "" if none is near."""
    names = {}
    for row in all_published():
        names[row.name.lower()] = row.name
        names[row.name.rpartition("/")[2].lower()] = row.name
    near = get_close_matches(name.lower(), names, 1, 0.8)
    if not near:
        return ""
    return names[near[0]]


def meant(name: str) -> str:
    """ "; did you mean NAME?" for a name that is nearly one of the table; for a family, a size or a part of
    a name the command that lists them; of a file of torchvision's where it is to be had; else ""."""
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
    return f"; the list of models has {len(rows):,} published ones called so (`published`)"
