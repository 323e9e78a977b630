"""A format of model files: a frozen value that is read by loading, conversion, the comparison with other
libraries and the model card.

A new format is a file in this folder that ends in such a value, and a line in `formats/__init__.py`.
The functions below the value help formats to describe which parts their library lacks, and what it
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
"""Rules of a Preprocessing whose images have one size."""


class Tidied(NamedTuple):
    """A file's tensors under the names that the rules use."""

    tensors: Tensors
    notes: tuple[str, ...] = ()
    """What was left out, one sentence each."""
    layout: str = ""
    """The file's spelling among those of the format, in the format's own notation; "" if there is only
    one. It becomes origin["layout"] of the Classifier, so that `Format.spell` can restore it."""
    pretraining: Mapping[str, Lazy] = MappingProxyType({})
    """Tensors that pre-training added to the model, under the names of vitkit's learner."""
    passed_by: tuple[str, ...] = ()
    """Tensors of the encoder that its library's classifier does not read. They are left out."""


class Elsewhere(NamedTuple):
    """A saved model as another library computes it."""

    library: str
    """Name of the library, for people: "timm 1.0.31". Google's code needs JAX, so vitkit computes with
    the constants of Google's code instead, and this states so."""
    model: nn.Module
    """Normalised images (B, C, H, W) -> the output that vitkit's model returns."""


@dataclass(frozen=True)
class Format(Generic[AnyConfig]):
    """The format in which a library or code base stores models of some kinds."""

    name: str
    """Name of the format for users. A format with different names for different kinds of models has
    several values with this name."""
    kinds: tuple[str, ...]
    """Kinds of configurations that it stores: "vit", "resnet", "lenet"."""
    recognises: Callable[[Tensors], bool]
    """Whether tensors have the format's names. The first format that recognises a file reads it."""
    describe: Callable[[Opened, Tidied, Hints], Description]
    """The description of the model in a file. Raises VitkitError for a model that vitkit cannot read."""
    rules: Callable[[AnyConfig], list[Rule]]
    """The table of rules between its tensors and vitkit's."""
    contradictions: Callable[[Description, Opened], list[str]] = lambda described, opened: []
    """The fields of the library's own config that differ from vitkit's description beside them, because
    the library has changed the model since."""
    tidy: Callable[[Tensors], Tidied] = Tidied
    """Converts a file's tensors to the names that the rules use: without prefixes from training, and
    without tensors that no classifier reads."""
    spell: Callable[[dict[str, Tensor], AnyConfig, str], dict[str, Tensor]] = (
        lambda tensors, config, layout: tensors
    )
    """Inverts `tidy` for the layout that it reported; "" is the format's usual layout."""
    cannot: Callable[[AnyConfig], list[str]] = lambda config: []
    """The parts of a model that it cannot express."""
    differs: Callable[[AnyConfig], list[str]] = lambda config: []
    """What its library would compute slightly differently."""

    images: tuple[str, ...] = CROPS
    """Rules of a Preprocessing that its library supports."""
    mask: str = ""
    """The end of the name of its mask embedding, if its models have one."""
    first: str = ""
    """Name of the first weight. In a file, text before it is a prefix of all names. Empty for formats
    without prefixes, or whose `tidy` handles them."""
    head: str = ""
    """Name of the head's layer, for formats in whose names users' own checkpoints are saved."""
    endings: tuple[str, ...] = ()
    """Suffixes of single files that contain a model; empty if a model is always a directory."""
    directory: Callable[[Classifier], dict[str, dict]] | None = None
    """The JSON files of a model directory, including config.json; None if a model is always a file."""
    library: str = ""
    """The package that opens a directory of this format, as the Hugging Face hub names it."""
    example: Callable[[AnyConfig], str] | None = None
    """Python that opens "DIRECTORY" with that library, for the model card."""
    example_of_states: Callable[[AnyConfig], str] | None = None
    """Python that computes the output of a head on several states with that library, for the model card:
    with the encoder in "ENCODER", and the head in "DIRECTORY"."""

    open_elsewhere: Callable[[Classifier, Path], Elsewhere | None] | None = None
    """Opens a saved model with its library, to compare it. Returns None if there is nothing to compare.
    Raises ImportError if the library is not installed."""
    pixels_elsewhere: Callable[[Path, Image.Image], Tensor] | None = None
    """The library's preprocessing of an image, (1, 3, h, w), by the files of a saved directory."""


def is_before(version: str, other: tuple[int, ...]) -> bool:
    """Whether a version of a library, such as "1.0.31.dev0", is older than another."""
    numbers = re.findall(r"\d+", version)[: len(other)]
    return tuple(map(int, numbers)) < other


def has_end(tensors: Tensors, *ends: str) -> bool:
    """Whether the name of any tensor ends in one of these."""
    return any(name.endswith(ends) for name in tensors)


def prefixes_of(tensors: Tensors, first: str) -> list[str]:
    """The prefixes before the name `first`, each once."""
    ends = [name for name in tensors if name == first or name.endswith(f".{first}")]
    return list(dict.fromkeys(name.removesuffix(first) for name in ends))


def without_prefix(
    tensors: Tensors, first: str, renamed: Mapping[str, str] = MappingProxyType({})
) -> Tensors:
    """Remove the prefix that training or an enclosing model added to every name: the text before `first`
    in the name that ends in it. Raises VitkitError if two names become equal.

    renamed: patterns of names -> the names that the rules use.
    """
    prefix = next(iter(prefixes_of(tensors, first)), "")
    plain = {}
    for name, lazy in tensors.items():
        name = name.removeprefix(prefix)
        for theirs, ours in renamed.items():
            name = re.sub(theirs, ours, name)
        if name in plain:
            raise BadWeights(
                f"two of its tensors have the name {printable_name(name)} after prefixes are removed"
            )
        plain[name] = lazy
    return plain


# The parts of a model that other libraries cannot express or compute differently, as text


def reasons(conditions: dict[str, object]) -> list[str]:
    """The keys whose condition is true."""
    return [name for name, holds in conditions.items() if holds]


def beyond_vit(
    config: ViTConfig,
    positions: tuple[str, ...] = ("learned",),
    stems: bool = False,
    has: tuple[str, ...] = (),
) -> list[str]:
    """The parts of a model that other libraries' plain Vision Transformer lacks, or, with `stems`, their
    hybrid. `has` names settings beyond the plain model that the library has.

    Formats check pooling themselves, and a norm after the pooling: a format that supports only the class
    token refuses both. No library has patches that overlap.
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
        "rectangles": (f"patches of {height} x {width}, not square", height != width),
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
            "a class for every pixel": config.segments,
            "a memory bank of patches": pool.compares_patches,
        }
    )
    if stems and config.stem:
        return beyond_bit(config.stem, "post") + beyond
    return beyond


def beyond_bit(backbone: Backbone, *orders: str) -> list[str]:
    """The parts of a ResNet that BiT's lacks. `orders` are the library's orders of norm and
    convolution."""
    return reasons(
        {
            f'a ResNet in the order "{backbone.order}"': backbone.order not in orders,
            "a ResNet with BatchNorm": backbone.norm != "group",
            "kernels that are not standardised": backbone.standardise == "none",
            f"{backbone.mixer} attention in a ResNet": backbone.mixer != "conv",
        }
    )


def another_gelu(config: ViTConfig, theirs: str) -> list[str]:
    """A sentence if the GELU has another form ("erf" or "tanh") than in the library."""
    if config.gelu == theirs:
        return []
    if config.gelu in ("relu", "silu"):
        return [f"activation: {config.gelu} here, a GELU of the {theirs} form there"]
    return [f"GELU: the {config.gelu} form here, the {theirs} form there"]


def another_eps(config: ViTConfig, theirs: float = 1e-6) -> list[str]:
    """A sentence if the LayerNorms' eps differs from the library's fixed one."""
    if config.eps == theirs:
        return []
    return [f"eps: {config.eps:g} here, {theirs:g} there"]


def another_dialect(backbone: Backbone | None, theirs: dict) -> list[str]:
    """A sentence for each setting (padding, eps, ...) in which a ResNet differs from the library's."""
    if backbone is None:
        return []
    sentences = []
    for name, setting in theirs.items():
        own = getattr(backbone, name)
        if own != setting:
            sentences.append(f"the ResNet's {name}: {own} here, {setting} there")
    return sentences
