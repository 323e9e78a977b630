"""What a format of model files is: one frozen value. Loading, converting, the proof and the model card read it.

A new format is a file in this folder that ends in such a value, and its line in `formats/__init__.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from torch import Tensor, nn

from vitkit.models import ModelConfig
from vitkit.weights.classifier import Classifier
from vitkit.weights.description import Description, Hints
from vitkit.weights.files import Opened, Tensors
from vitkit.weights.rules import Rule


class Tidied(NamedTuple):
    """A file's tensors under the names that the rules use."""

    tensors: Tensors
    notes: tuple[str, ...] = ()
    """What was left out, one sentence each."""
    layout: str = ""
    """Which of the format's spellings the file has, for writing it back."""


class Elsewhere(NamedTuple):
    """A written model as another library computes it."""

    library: str
    """Its name and version."""
    model: nn.Module
    """(B, C, H, W) normalised -> what vitkit's model returns."""


def as_they_are(tensors: Tensors) -> Tidied:
    """The file's names are the rules' names."""
    return Tidied(tensors)


def as_the_rules_have_them(
    tensors: dict[str, Tensor], config: ModelConfig, layout: str
) -> dict[str, Tensor]:
    """The rules' names are the file's names."""
    return tensors


def nothing(config: ModelConfig) -> list[str]:
    """No exception."""
    return []


def none_at_all(described: Description, opened: Opened) -> list[str]:
    """Nobody else edits these files."""
    return []


@dataclass(frozen=True)
class Format:
    """How one library or code base stores some kinds of models."""

    name: str
    """What users call it. A format with several kinds of models has a value for each, of the same name."""
    kinds: tuple[str, ...]
    """The kinds of configurations that it stores: "vit", "resnet", "lenet"."""
    recognises: Callable[[Tensors], bool]
    """Whether these are its names; the first format that says so reads the file."""
    describe: Callable[[Opened, Tidied, Hints], Description]
    """What the file says about its model. Raises ValueError for what vitkit does not read."""
    rules: Callable[[ModelConfig], list[Rule]]
    """The table between its tensors and vitkit's."""
    contradictions: Callable[[Description, Opened], list[str]] = none_at_all
    """Which fields beside vitkit's own description say something else: its library changed the model since."""
    tidy: Callable[[Tensors], Tidied] = as_they_are
    """A file's tensors under the rules' names, without prefixes of training and without what no classifier reads."""
    spell: Callable[[dict[str, Tensor], ModelConfig, str], dict[str, Tensor]] = (
        as_the_rules_have_them
    )
    """The way back, in the layout of its origin, or "" for the usual one."""
    cannot: Callable[[ModelConfig], list[str]] = nothing
    """What of a model it has no place for."""
    differs: Callable[[ModelConfig], list[str]] = nothing
    """What its library would compute a little differently."""

    endings: tuple[str, ...] = ()
    """Of the single files that it is written to; none if a model is always a directory."""
    directory: Callable[[Classifier], dict[str, dict]] | None = None
    """The JSON files of a model directory, config.json among them; None if a model is always a file."""
    library: str = ""
    """The package that opens a directory of this format, as the Hugging Face hub names it."""
    example: Callable[[ModelConfig], str] | None = None
    """Python that opens "DIRECTORY" with that library, for the model card."""

    open_elsewhere: Callable[[Classifier, Path], Elsewhere | None] | None = None
    """A written model as its library opens it, for the proof. Raises ImportError if the library is not installed."""
    pixels_elsewhere: Callable[[Path, Image.Image], Tensor] | None = None
    """What the library's preprocessing makes of an image, (1, 3, h, w), as a written directory describes it."""
