"""A format of model files: one frozen value, which loading, converting, the proof and the card read.

A new format is a file in this folder that ends in such a value, and a line in `formats/__init__.py`.
Below the value is what formats say of models: which parts their library does not have, and what it
computes differently.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from PIL import Image
from torch import Tensor, nn

from vitkit.models import Backbone, ModelConfig, ViTConfig
from vitkit.system.console.text import printable_name
from vitkit.system.errors import BadWeights
from vitkit.weights.classifier import Classifier, Description
from vitkit.weights.files.content import Lazy, Tensors
from vitkit.weights.files.directory import Opened
from vitkit.weights.hints import Hints
from vitkit.weights.rules import Rule

AnyConfig = TypeVar("AnyConfig", bound=ModelConfig)

CROPS = ("square", "shorter")
"""The rules of a Preprocessing whose images have one size."""


class Tidied(NamedTuple):
    """A file's tensors under the names that the rules use."""

    tensors: Tensors
    notes: tuple[str, ...] = ()
    """What was left out, one sentence each."""
    layout: str = ""
    """Which of the format's spellings the file has, in the format's own words; "" if it has only
    one. It is kept as origin["layout"] of the Classifier, so that `Format.spell` can write the file
    as it was."""
    pretraining: Mapping[str, Lazy] = MappingProxyType({})
    """What pre-training added to the model, under the names of vitkit's learner."""
    passed_by: tuple[str, ...] = ()
    """Tensors of the encoder that its classifier passes by, as its library computes it; they are left
    out."""


class Elsewhere(NamedTuple):
    """A written model as another library computes it."""

    library: str
    """What computes it, for people: "timm 1.0.31". Google's code is JAX's, so there it is vitkit with
    Google's arithmetic, and this says so."""
    model: nn.Module
    """(B, C, H, W) normalised -> what vitkit's model returns."""


@dataclass(frozen=True)
class Format(Generic[AnyConfig]):
    """How one library or code base stores some kinds of models."""

    name: str
    """What users call it. A format that spells kinds of models differently has a value for each,
    all of the same name."""
    kinds: tuple[str, ...]
    """The kinds of configurations that it stores: "vit", "resnet", "lenet"."""
    recognises: Callable[[Tensors], bool]
    """Whether these tensors have its names. The first format that says so reads the file."""
    describe: Callable[[Opened, Tidied, Hints], Description]
    """What the file says about its model. Raises VitkitError for what vitkit does not read."""
    rules: Callable[[AnyConfig], list[Rule]]
    """The table between its tensors and vitkit's."""
    contradictions: Callable[[Description, Opened], list[str]] = lambda described, opened: []
    """The fields of the library's own config that say something else than vitkit's description
    beside them: the library has changed the model since."""
    tidy: Callable[[Tensors], Tidied] = Tidied
    """A file's tensors under the names that the rules use: without the prefixes that training adds,
    and without what no classifier reads."""
    spell: Callable[[dict[str, Tensor], AnyConfig, str], dict[str, Tensor]] = (
        lambda tensors, config, layout: tensors
    )
    """The way back from `tidy`, in the layout that it reported; "" is the format's usual one."""
    cannot: Callable[[AnyConfig], list[str]] = lambda config: []
    """What of a model it cannot express."""
    differs: Callable[[AnyConfig], list[str]] = lambda config: []
    """What its library would compute a little differently."""

    images: tuple[str, ...] = CROPS
    """The rules of a Preprocessing that its library has."""
    mask: str = ""
    """The end of the name of its mask embedding, if its models have one."""
    first: str = ""
    """The name of the first weight: what comes before it in a file is a prefix of all names. Empty for
    formats whose names have none, or whose `tidy` knows them."""
    head: str = ""
    """The name of the head's layer, for formats in whose names people's own training is saved."""
    endings: tuple[str, ...] = ()
    """The endings of single files that hold a model; none if a model is always a directory."""
    directory: Callable[[Classifier], dict[str, dict]] | None = None
    """The JSON files of a model directory, config.json among them; None if a model is always a
    file."""
    library: str = ""
    """The package that opens a directory of this format, as the Hugging Face hub names it."""
    example: Callable[[AnyConfig], str] | None = None
    """Python that opens "DIRECTORY" with that library, for the model card."""
    example_of_states: Callable[[AnyConfig], str] | None = None
    """Python that computes with that library what a head on several states answers, for the model card:
    of the encoder alone in "ENCODER", and the head in "DIRECTORY"."""

    open_elsewhere: Callable[[Classifier, Path], Elsewhere | None] | None = None
    """A written model as its library opens it, for the proof. None if there is nothing to compare.
    Raises ImportError if the library is not installed."""
    pixels_elsewhere: Callable[[Path, Image.Image], Tensor] | None = None
    """What the library makes of an image, (1, 3, h, w), by the preprocessing in a written
    directory."""


def is_before(version: str, other: tuple[int, ...]) -> bool:
    """Whether a version of a library, such as "1.0.31.dev0", is older than another."""
    numbers = re.findall(r"\d+", version)[: len(other)]
    return tuple(map(int, numbers)) < other


def has_end(tensors: Tensors, *ends: str) -> bool:
    """Whether the name of any tensor ends in one of these."""
    return any(name.endswith(ends) for name in tensors)


def prefixes_of(tensors: Tensors, first: str) -> list[str]:
    """What comes before the name `first`, as often as it is there, each once."""
    ends = [name for name in tensors if name == first or name.endswith(f".{first}")]
    return list(dict.fromkeys(name.removesuffix(first) for name in ends))


def without_prefix(
    tensors: Tensors, first: str, renamed: Mapping[str, str] = MappingProxyType({})
) -> Tensors:
    """Tensors without what training, or a model around this one, put before every name: what comes
    before the end `first` of one of them. `renamed`: patterns of names -> those that the rules use.
    Raises VitkitError if two names become one."""
    prefix = next(iter(prefixes_of(tensors, first)), "")
    plain = {}
    for name, lazy in tensors.items():
        name = name.removeprefix(prefix)
        for theirs, ours in renamed.items():
            name = re.sub(theirs, ours, name)
        if name in plain:
            raise BadWeights(
                f"two of its tensors have the name {printable_name(name)}, as vitkit reads names"
            )
        plain[name] = lazy
    return plain


# What other libraries cannot express of a model, and what they would compute differently, in words


def reasons(conditions: dict[str, object]) -> list[str]:
    """The names whose condition is true."""
    return [name for name, holds in conditions.items() if holds]


def beyond_vit(
    config: ViTConfig,
    positions: tuple[str, ...] = ("learned",),
    stems: bool = False,
    has: tuple[str, ...] = (),
) -> list[str]:
    """The parts of a model that other libraries' plain Vision Transformer lacks, or, with `stems`,
    their hybrid. `has` names the settings beyond the plain model that the library has.

    Pooling is each format's own matter, and with it a norm after the pooling: a format that knows
    the class token alone refuses both. None has patches that overlap.
    """
    height, width = config.patches.size
    later = {
        "layer_scale": ("LayerScale", config.layer_scale is not None),
        "swiglu": ("a SwiGLU MLP", config.swiglu),
        "branch_norm": ("norms after attention and MLP", config.branch_norm == "after"),
        "embedding_norm": ("a norm before the first block", config.embedding_norm),
        "read_blocks": (f"a head on {config.read_blocks} blocks", config.read_blocks > 1),
        "rms_norm": ("RMSNorms in place of LayerNorms", config.rms_norm),
        "qk_norm": ("norms of queries and keys", config.qk_norm),
        "qkv_bias": ("queries, keys and values without biases", not config.qkv_bias),
        "rectangles": (f"patches of {height} x {width}, no squares", height != width),
    }
    pool = config.pooling
    joins_states = pool.extends_class_token and pool.states > 1 and pool.name not in has
    beyond = reasons(
        {
            f'pooling by "{config.pool}"': joins_states,
            **{reason: holds for name, (reason, holds) in later.items() if name not in has},
            "a ResNet stem": config.stem is not None and not stems,
            f"patches that overlap (stride {config.stride})": config.patches.overlaps,
            "axial attention": config.mixer != "full",
            f"{config.positions} positions": config.positions not in positions,
            "positions at every block": config.inject not in (None, "stem"),
            "pooling by the first patch": config.pool == "corner",
            "a memory bank of patches": pool.compares_patches,
        }
    )
    if stems and config.stem:
        return beyond_bit(config.stem, "post") + beyond
    return beyond


def beyond_bit(backbone: Backbone, *orders: str) -> list[str]:
    """The parts of a ResNet that BiT's lacks. `orders` are those of norm and convolution in the
    library."""
    return reasons(
        {
            f'a ResNet in the order "{backbone.order}"': backbone.order not in orders,
            "a ResNet with BatchNorm": backbone.norm != "group",
            "kernels that are not standardised": backbone.standardise == "none",
            f"{backbone.mixer} attention in a ResNet": backbone.mixer != "conv",
        }
    )


def another_gelu(config: ViTConfig, theirs: str) -> list[str]:
    """A sentence if the GELU has another form ("erf" or "tanh") than theirs."""
    if config.gelu == theirs:
        return []
    if config.gelu in ("relu", "silu"):
        return [f"activation: {config.gelu} here, a GELU of the {theirs} form there"]
    return [f"GELU: the {config.gelu} form here, the {theirs} form there"]


def another_eps(config: ViTConfig, theirs: float = 1e-6) -> list[str]:
    """A sentence if the LayerNorms' eps is not theirs, which the library fixes."""
    if config.eps == theirs:
        return []
    return [f"eps: {config.eps:g} here, {theirs:g} there"]


def another_dialect(backbone: Backbone | None, theirs: dict) -> list[str]:
    """A sentence for each setting (padding, eps, ...) in which a ResNet differs from their dialect."""
    if backbone is None:
        return []
    sentences = []
    for name, setting in theirs.items():
        own = getattr(backbone, name)
        if own != setting:
            sentences.append(f"the ResNet's {name}: {own} here, {setting} there")
    return sentences
