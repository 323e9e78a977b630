"""The names of arrays of a Vision Transformer in Google's .npz files.

There are several generations of code. `tidy_names` converts all names to the newest spelling, that of
big_vision, and returns the file's own as a `Spelling`; `spelled` converts them back.
"""

import re
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from vitkit.system.errors import BadWeights
from vitkit.weights.files.content import Lazy, Tensors
from vitkit.weights.rules import gist

# The name of the position table: in big_vision, in its code before 2022, and in vit_jax, the paper's
# code (fix_old_checkpoints in big_vision's models/vision_transformer.py)
TABLES = ("pos_embedding", "Transformer/pos_embedding", "Transformer/posembed_input/pos_embedding")
# Prefixes of the image model: in a whole training state, beside a text tower (LiT, SigLIP), and alone
PREFIXES = ("opt/target/", "params/img/", "params/")
# Folders and arrays that may be stored beside the image model: the optimiser's state; the clock of
# big_vision's training; the text tower, and the temperature t and bias b of the contrastive loss
# (big_vision's models/proj/image_text/two_towers.py).
BESIDE = ("opt", "chrono", "params/txt", "params/t", "params/b")
GROUP_NORM = re.compile(
    r"(.*/)?(gn(\d|_root|_proj)|norm-pre-head|group_norm)/(scale|bias|gamma|beta)"
)
# flax numbers a block's unnamed layers: linen per kind of layer, its predecessor across all kinds. The
# paper's files have the older numbers; vit_jax/checkpoint.py converts them too (convert_pre_linen).
# Old -> new
PRE_LINEN = {
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
}
MAP_HEAD = ("probe", "LayerNorm_0/", "MlpBlock_0/", "MultiHeadDotProductAttention_0/")
MOST_BLOCKS = 1000  # a larger number of blocks is refused; no published ViT has 100


class Spelling(NamedTuple):
    """The spelling of a file's arrays. The defaults are those of the paper's own code, vit_jax."""

    prefix: str = ""
    """Prefix of every name."""
    table: str = TABLES[2]
    """Name of the position table."""
    pre_linen: bool = True
    """Whether a block's layers are numbered across all kinds: MlpBlock_3 instead of MlpBlock_0."""
    scan: bool = False
    """Whether one array contains all blocks, along its first axis (big_vision's scan=True)."""
    norms_4d: bool = True
    """Whether GroupNorms of a hybrid are (1, 1, 1, C), as in flax before 0.3.6, instead of (C,). Both code
    bases read either (_fix_groupnorm in vit_jax/checkpoint.py), so the older form is written."""

    def __str__(self) -> str:
        flags = {"pre-linen": self.pre_linen, "scan": self.scan, "wide": self.norms_4d}
        words = [word for word, is_set in flags.items() if is_set]
        return " ".join([self.prefix or "-", self.table, *words])

    @classmethod
    def parse(cls, text: str) -> "Spelling":
        """Parse the text that `str` returns."""
        prefix, table, *words = text.split(" ")
        if prefix == "-":
            prefix = ""
        return cls(
            prefix,
            table,
            pre_linen="pre-linen" in words,
            scan="scan" in words,
            norms_4d="wide" in words,
        )


ORIGINAL = Spelling()
BIG_VISION = Spelling("params/", TABLES[0], pre_linen=False)


def tidy_names(tensors: Tensors) -> tuple[Tensors, list[str], Spelling]:
    """The image model's tensors in the newest spelling, notes on what was left out, and the layout."""
    # Only the image model
    prefixes = (prefix for prefix in PREFIXES if prefix + "embedding/kernel" in tensors)
    prefix = next(prefixes, "")
    tensors, notes = image_part(tensors, prefix)

    # The newest shapes
    tensors, norms_4d = flat_norms(tensors)
    scan = any(name.startswith("Transformer/encoderblock/") for name in tensors)
    if scan:
        tensors = _unstacked(tensors)

    # The newest names
    # Early checkpoints of ViT-G have the MAP head outside of a folder (big_vision's fix_old_checkpoints)
    if "probe" in tensors:
        for name in [name for name in tensors if name.startswith(MAP_HEAD)]:
            tensors[f"MAPHead_0/{name}"] = tensors.pop(name)
    pre_linen = any(name.endswith("/MlpBlock_3/Dense_0/kernel") for name in tensors)
    if pre_linen:
        tensors = {_newer(name): lazy for name, lazy in tensors.items()}
    table = next((name for name in TABLES if name in tensors), TABLES[0])
    if table in tensors:
        tensors[TABLES[0]] = tensors.pop(table)
    return tensors, notes, Spelling(prefix, table, pre_linen, scan, norms_4d)


def spelled(tensors: dict[str, Tensor], layout: Spelling, depth: int) -> dict[str, Tensor]:
    """Invert `tidy_names`: the tensors of a model with `depth` blocks in a layout."""
    if layout.scan:
        tensors = _stacked(tensors, depth)
    if layout.norms_4d:
        tensors = norms_to_4d(tensors)
    return {layout.prefix + _spelled(name, layout): tensor for name, tensor in tensors.items()}


def image_part(tensors: Tensors, prefix: str) -> tuple[Tensors, list[str]]:
    """The arrays with a prefix, and a note on the others. Raises VitkitError for unknown ones."""
    image = {}
    others = []
    for name, lazy in tensors.items():
        if name.startswith(prefix):
            image[name.removeprefix(prefix)] = lazy
        else:
            others.append(name)
    folders = tuple(f"{beside}/" for beside in BESIDE)
    unknown = [name for name in others if name not in BESIDE and not name.startswith(folders)]
    if unknown:
        raise BadWeights(f"unknown tensors: {gist(sorted(unknown))}")
    if not others:
        return image, []
    under = sorted({"/".join(name.split("/")[:2]) for name in others})
    listed = ", ".join(under[:5])
    return image, [f"left out: {len(others)} arrays beside the image model, under {listed}"]


def flat_norms(tensors: Tensors) -> tuple[Tensors, bool]:
    """Tensors in which all GroupNorms are (C,), and whether any of them was (1, 1, 1, C)."""
    flat = {}
    for name, lazy in tensors.items():
        if GROUP_NORM.fullmatch(name) and lazy.shape[:-1] == (1, 1, 1):
            flat[name] = Lazy(lazy.shape[3:], lazy.dtype, partial(_flattened, lazy))
    return tensors | flat, bool(flat)


def _flattened(lazy: Lazy) -> Tensor:
    """Read a tensor as a vector."""
    return lazy.read().flatten()


def norms_to_4d(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Invert `flat_norms`: tensors in which all GroupNorms are (1, 1, 1, C)."""
    changed = {}
    for name, tensor in tensors.items():
        if GROUP_NORM.fullmatch(name):
            changed[name] = tensor[None, None, None]
    return tensors | changed


def _newer(name: str) -> str:
    """The name of a block's layer with linen's numbers."""
    if name.startswith("Transformer/encoderblock"):
        for old, new in PRE_LINEN.items():
            name = name.replace(f"/{old}/", f"/{new}/")
    return name


def _spelled(name: str, layout: Spelling) -> str:
    """A name of the newest spelling in a layout, without the prefix."""
    if name == TABLES[0]:
        return layout.table
    if layout.pre_linen and name.startswith("Transformer/encoderblock"):
        for old, new in PRE_LINEN.items():
            name = name.replace(f"/{new}/", f"/{old}/")
    return name


def _unstacked(tensors: Tensors) -> Tensors:
    """Split arrays that contain all blocks along their first axis into one array for each block."""
    unstacked = {}
    for name, lazy in tensors.items():
        match = re.fullmatch(r"Transformer/encoderblock/(.+)", name)
        if not match:
            unstacked[name] = lazy
            continue
        if not lazy.shape or lazy.shape[0] > MOST_BLOCKS:
            raise BadWeights(f"{name} {lazy.shape} should have the blocks along its first axis")
        whole = cache(lazy.read)  # reads the array once for all blocks
        for i in range(lazy.shape[0]):
            block = Lazy(lazy.shape[1:], lazy.dtype, partial(_block_of, whole, i))
            unstacked[f"Transformer/encoderblock_{i}/{match[1]}"] = block
    return unstacked


def _block_of(whole: Callable[[], Tensor], i: int) -> Tensor:
    """Read the part of block i in an array of all blocks."""
    return whole()[i]


def _stacked(tensors: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
    """Invert `_unstacked`: one array of all blocks for each layer."""
    stacked = {}
    first = "Transformer/encoderblock_0/"
    for name, tensor in tensors.items():
        if name.startswith(first):
            layer = name.removeprefix(first)
            blocks = [tensors[f"Transformer/encoderblock_{i}/{layer}"] for i in range(depth)]
            stacked[f"Transformer/encoderblock/{layer}"] = torch.stack(blocks)
        elif not name.startswith("Transformer/encoderblock_"):
            stacked[name] = tensor
    return stacked
