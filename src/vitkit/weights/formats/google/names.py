"""How Google's .npz files spell the arrays of a Vision Transformer.

There are several generations of code. Reading brings all names to the newest spelling, that of
big_vision (`tidy_names`), and notes the file's own as a `Spelling`; writing goes back (`spelled`).
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

# The position table: in big_vision, in its code before 2022, and in vit_jax, the paper's
# (fix_old_checkpoints in big_vision's models/vision_transformer.py)
TABLES = ("pos_embedding", "Transformer/pos_embedding", "Transformer/posembed_input/pos_embedding")
# Of the image model: in a whole training state, beside a text tower (LiT, SigLIP), and by itself.
PREFIXES = ("opt/target/", "params/img/", "params/")
# Folders and arrays that may lie beside it: the optimiser's state; the clock of big_vision's
# training; the text tower, and the temperature t and bias b of the contrastive loss (big_vision's
# models/proj/image_text/two_towers.py).
BESIDE = ("opt", "chrono", "params/txt", "params/t", "params/b")
GROUP_NORM = re.compile(
    r"(.*/)?(gn(\d|_root|_proj)|norm-pre-head|group_norm)/(scale|bias|gamma|beta)"
)
# flax numbers a block's unnamed layers: linen for each kind, its predecessor over all kinds. The
# paper's files have the older numbers; vit_jax/checkpoint.py changes them too (convert_pre_linen).
# Old -> new.
PRE_LINEN = {
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
}
MAP_HEAD = ("probe", "LayerNorm_0/", "MlpBlock_0/", "MultiHeadDotProductAttention_0/")
MOST_BLOCKS = 1000  # a file that claims more along an axis is refused; no published ViT has 100


class Spelling(NamedTuple):
    """How a file spells its arrays. The defaults are the paper's own code, vit_jax."""

    prefix: str = ""
    """What every name begins with."""
    table: str = TABLES[2]
    """The name of the position table."""
    pre_linen: bool = True
    """A block's layers are numbered over all kinds: MlpBlock_3, not MlpBlock_0."""
    scan: bool = False
    """All blocks are in one array, along its first axis (big_vision's scan=True)."""
    norms_4d: bool = True
    """GroupNorms of a hybrid are stored as (1, 1, 1, C), as flax did before 0.3.6, not as (C,). Both
    codes read either (_fix_groupnorm in vit_jax/checkpoint.py), so the older is what is written."""

    def __str__(self) -> str:
        flags = {"pre-linen": self.pre_linen, "scan": self.scan, "wide": self.norms_4d}
        words = [word for word, is_set in flags.items() if is_set]
        return " ".join([self.prefix or "-", self.table, *words])

    @classmethod
    def parse(cls, text: str) -> "Spelling":
        """The layout that `str` wrote."""
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
    """The image model's tensors in the newest spelling, notes on what is left out, and the layout."""
    # The image model alone
    prefixes = (prefix for prefix in PREFIXES if prefix + "embedding/kernel" in tensors)
    prefix = next(prefixes, "")
    tensors, notes = image_part(tensors, prefix)

    # The newest shapes
    tensors, norms_4d = flat_norms(tensors)
    scan = any(name.startswith("Transformer/encoderblock/") for name in tensors)
    if scan:
        tensors = _unstacked(tensors)

    # The newest names
    # While ViT-G was made, the MAP head had no folder of its own (big_vision's fix_old_checkpoints)
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
    """The way back from `tidy_names`: tensors of a model of `depth` blocks, in a layout."""
    if layout.scan:
        tensors = _stacked(tensors, depth)
    if layout.norms_4d:
        tensors = norms_to_4d(tensors)
    return {layout.prefix + _spelled(name, layout): tensor for name, tensor in tensors.items()}


def image_part(tensors: Tensors, prefix: str) -> tuple[Tensors, list[str]]:
    """The arrays under a prefix, and a note on the others. Raises VitkitError for unknown ones."""
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
    """Tensors in which all GroupNorms are (C,), and whether any was (1, 1, 1, C)."""
    flat = {}
    for name, lazy in tensors.items():
        if GROUP_NORM.fullmatch(name) and lazy.shape[:-1] == (1, 1, 1):
            flat[name] = Lazy(lazy.shape[3:], lazy.dtype, partial(_flattened, lazy))
    return tensors | flat, bool(flat)


def _flattened(lazy: Lazy) -> Tensor:
    return lazy.read().flatten()


def norms_to_4d(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The way back: tensors in which all GroupNorms are (1, 1, 1, C)."""
    changed = {}
    for name, tensor in tensors.items():
        if GROUP_NORM.fullmatch(name):
            changed[name] = tensor[None, None, None]
    return tensors | changed


def _newer(name: str) -> str:
    """The name of a block's layer as linen numbers it."""
    if name.startswith("Transformer/encoderblock"):
        for old, new in PRE_LINEN.items():
            name = name.replace(f"/{old}/", f"/{new}/")
    return name


def _spelled(name: str, layout: Spelling) -> str:
    """A name of the newest spelling in a layout, without its prefix."""
    if name == TABLES[0]:
        return layout.table
    if layout.pre_linen and name.startswith("Transformer/encoderblock"):
        for old, new in PRE_LINEN.items():
            name = name.replace(f"/{new}/", f"/{old}/")
    return name


def _unstacked(tensors: Tensors) -> Tensors:
    """Arrays that hold all blocks along their first axis, as one array for each block."""
    unstacked = {}
    for name, lazy in tensors.items():
        match = re.fullmatch(r"Transformer/encoderblock/(.+)", name)
        if not match:
            unstacked[name] = lazy
            continue
        if not lazy.shape or lazy.shape[0] > MOST_BLOCKS:
            raise BadWeights(f"{name} {lazy.shape} should have the blocks along its first axis")
        whole = cache(lazy.read)  # read once, for all blocks
        for i in range(lazy.shape[0]):
            block = Lazy(lazy.shape[1:], lazy.dtype, partial(_block_of, whole, i))
            unstacked[f"Transformer/encoderblock_{i}/{match[1]}"] = block
    return unstacked


def _block_of(whole: Callable[[], Tensor], i: int) -> Tensor:
    return whole()[i]


def _stacked(tensors: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
    """The way back: one array for all blocks of each layer."""
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
