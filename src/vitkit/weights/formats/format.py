"""A format of model files: one frozen value, which loading, converting, the proof and the card
read.

A new format is a file in this folder that ends in such a value, and a line in
`formats/__init__.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from PIL import Image
from torch import Tensor, nn

from vitkit.models import ModelConfig
from vitkit.weights.adaptation.statements import Hints
from vitkit.weights.classifier import Classifier
from vitkit.weights.conversion.rules import Rule
from vitkit.weights.files import Opened, Tensors
from vitkit.weights.provenance.description import Description


class Tidied(NamedTuple):
    """A file's tensors under the names that the rules use."""

    tensors: Tensors
    notes: tuple[str, ...] = ()
    """What was left out, one sentence each."""
    layout: str = ""
    """Which of the format's spellings the file has, in the format's own words; "" if it has only
    one. It is kept as origin["layout"] of the Classifier, so that `Format.spell` can write the file
    as it was."""
    pretraining: Tensors = MappingProxyType({})
    """What pre-training added to the model, under the names of vitkit's learner."""


class Elsewhere(NamedTuple):
    """A written model as another library computes it."""

    library: str
    """What computes it, for people: "timm 1.0.31". Google's code is JAX's, so there it is vitkit with
    Google's arithmetic, and this says so."""
    model: nn.Module
    """(B, C, H, W) normalised -> what vitkit's model returns."""


# What a format does that says nothing else


def tidy_nothing(tensors: Tensors) -> Tidied:
    """For formats whose files have the rules' names."""
    return Tidied(tensors)


def spell_as_the_rules(
    tensors: dict[str, Tensor], config: ModelConfig, layout: str
) -> dict[str, Tensor]:
    """The way back."""
    return tensors


def nothing(config: ModelConfig) -> list[str]:
    """For formats that express every model of their kinds, or compute all alike."""
    return []


def no_contradictions(described: Description, opened: Opened) -> list[str]:
    """For formats whose files no other program edits."""
    return []


@dataclass(frozen=True)
class Format:
    """How one library or code base stores some kinds of models."""

    name: str
    """What users call it. A format that spells kinds of models differently has a value for each,
    all of the same name."""
    kinds: tuple[str, ...]
    """The kinds of configurations that it stores: "vit", "resnet", "lenet"."""
    recognises: Callable[[Tensors], bool]
    """Whether these tensors have its names. The first format that says so reads the file."""
    describe: Callable[[Opened, Tidied, Hints], Description]
    """What the file says about its model. Raises ValueError for what vitkit does not read."""
    rules: Callable[[ModelConfig], list[Rule]]
    """The table between its tensors and vitkit's."""
    contradictions: Callable[[Description, Opened], list[str]] = no_contradictions
    """The fields of the library's own config that say something else than vitkit's description
    beside them: the library has changed the model since."""
    tidy: Callable[[Tensors], Tidied] = tidy_nothing
    """A file's tensors under the names that the rules use: without the prefixes that training adds,
    and without what no classifier reads."""
    spell: Callable[[dict[str, Tensor], ModelConfig, str], dict[str, Tensor]] = spell_as_the_rules
    """The way back from `tidy`, in the layout that it reported; "" is the format's usual one."""
    cannot: Callable[[ModelConfig], list[str]] = nothing
    """What of a model it cannot express."""
    differs: Callable[[ModelConfig], list[str]] = nothing
    """What its library would compute a little differently."""

    mask: str = ""
    """The end of the name of its mask embedding, if its models have one."""
    endings: tuple[str, ...] = ()
    """The endings of single files that hold a model; none if a model is always a directory."""
    directory: Callable[[Classifier], dict[str, dict]] | None = None
    """The JSON files of a model directory, config.json among them; None if a model is always a
    file."""
    library: str = ""
    """The package that opens a directory of this format, as the Hugging Face hub names it."""
    example: Callable[[ModelConfig], str] | None = None
    """Python that opens "DIRECTORY" with that library, for the model card."""

    open_elsewhere: Callable[[Classifier, Path], Elsewhere | None] | None = None
    """A written model as its library opens it, for the proof. None if there is nothing to compare.
    Raises ImportError if the library is not installed."""
    pixels_elsewhere: Callable[[Path, Image.Image], Tensor] | None = None
    """What the library makes of an image, (1, 3, h, w), by the preprocessing in a written
    directory."""
