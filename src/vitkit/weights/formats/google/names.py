"""How Google's .npz files spell their arrays: several generations of code, prefixes, and all blocks in one array."""

import re
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from vitkit.weights.files import Lazy, Tensors

TABLES = ("pos_embedding", "Transformer/pos_embedding", "Transformer/posembed_input/pos_embedding")
PREFIXES = ("opt/target/", "params/img/", "params/")
# Beside an image tower: what the optimiser keeps, and the other tower.
SIDES = ("opt/state", "opt/hyper", "params/txt", "params/t", "params/b")
GROUP_NORM = re.compile(
    r"(.*/)?(gn(\d|_root|_proj)|norm-pre-head|group_norm)/(scale|bias|gamma|beta)"
)
NUMBERED = {
    "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1",
    "LayerNorm_1": "LayerNorm_2",
    "MlpBlock_0": "MlpBlock_3",
}
MAP_HEAD = ("probe", "LayerNorm_0/", "MlpBlock_0/", "MultiHeadDotProductAttention_0/")
MOST_BLOCKS = 1000  # of a file that nobody should trust


class Layout(NamedTuple):
    """How a file spells what the rules call by its newest name."""

    prefix: str = ""
    table: str = TABLES[2]
    pre_linen: bool = True
    """Layers of a block are numbered in a row, over all kinds: MlpBlock_3."""
    scan: bool = False
    """All blocks in one array, along its first axis."""
    wide: bool = True
    """GroupNorms of a hybrid are stored (1, 1, 1, C)."""

    def __str__(self) -> str:
        words = {"pre-linen": self.pre_linen, "scan": self.scan, "wide": self.wide}
        written = [word for word, holds in words.items() if holds]
        return " ".join([self.prefix or "-", self.table, *written])

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """The layout that `str` wrote."""
        prefix, table, *words = text.split(" ")
        if prefix == "-":
            prefix = ""
        return cls(
            prefix,
            table,
            pre_linen="pre-linen" in words,
            scan="scan" in words,
            wide="wide" in words,
        )


ORIGINAL = Layout()
BIG_VISION = Layout("params/", TABLES[0], pre_linen=False)


def tidy_names(tensors: Tensors) -> tuple[Tensors, list[str], Layout]:
    """The image model's tensors in the newest spelling, notes about what was left out, and how they were spelled."""
    # the image model alone
    prefix = next((p for p in PREFIXES if p + "embedding/kernel" in tensors), "")
    tensors, notes = image_part(tensors, prefix)

    # shapes as today
    tensors, wide = flat_norms(tensors)
    scan = any(name.startswith("Transformer/encoderblock/") for name in tensors)
    if scan:
        tensors = _unstacked(tensors)

    # names as today
    if "probe" in tensors:  # an early MAP head lay at the top
        tensors = {_below_map_head(name): lazy for name, lazy in tensors.items()}
    pre_linen = any(name.endswith("/MlpBlock_3/Dense_0/kernel") for name in tensors)
    if pre_linen:
        tensors = {_newer(name): lazy for name, lazy in tensors.items()}
    table = next((name for name in TABLES if name in tensors), TABLES[0])
    if table in tensors:
        tensors[TABLES[0]] = tensors.pop(table)
    return tensors, notes, Layout(prefix, table, pre_linen, scan, wide)


def spelled(tensors: dict[str, Tensor], layout: Layout, depth: int) -> dict[str, Tensor]:
    """Tensors of a model of so many blocks as a layout has them; `tidy_names` is the way back."""
    if layout.scan:
        tensors = _stacked(tensors, depth)
    if layout.wide:
        tensors = wide_norms(tensors)
    return {layout.prefix + _spelled(name, layout): tensor for name, tensor in tensors.items()}


def image_part(tensors: Tensors, prefix: str) -> tuple[Tensors, list[str]]:
    """The arrays under a prefix, without it, and a note about the others. Raises ValueError for those that nobody knows."""
    aside = [name for name in tensors if not name.startswith(prefix)]
    unknown = [name for name in aside if not name.startswith(SIDES)]
    if unknown:
        raise ValueError(f"no rule reads {', '.join(sorted(unknown)[:20])}")
    notes = []
    if aside:
        folders = sorted({"/".join(name.split("/")[:2]) for name in aside})
        notes.append(
            f"left out: {len(aside)} arrays beside the image model, under {', '.join(folders[:5])}"
        )
    image = {
        name.removeprefix(prefix): lazy for name, lazy in tensors.items() if name.startswith(prefix)
    }
    return image, notes


def flat_norms(tensors: Tensors) -> tuple[Tensors, bool]:
    """GroupNorms stored as (1, 1, 1, C) as (C,), and whether there were any."""
    flat = {
        name: Lazy(lazy.shape[3:], lazy.dtype, lambda read=lazy.read: read().flatten())
        for name, lazy in tensors.items()
        if GROUP_NORM.fullmatch(name) and lazy.shape[:-1] == (1, 1, 1)
    }
    return {**tensors, **flat}, bool(flat)


def wide_norms(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The way back."""
    wide = {
        name: tensor[None, None, None]
        for name, tensor in tensors.items()
        if GROUP_NORM.fullmatch(name)
    }
    return {**tensors, **wide}


def _below_map_head(name: str) -> str:
    return f"MAPHead_0/{name}" if name.startswith(MAP_HEAD) else name


def _newer(name: str) -> str:
    """A name of a block's layer as linen numbers it."""
    if name.startswith("Transformer/encoderblock"):
        for new, old in NUMBERED.items():
            name = name.replace(f"/{old}/", f"/{new}/")
    return name


def _spelled(name: str, layout: Layout) -> str:
    """A name as a layout has it."""
    if name == TABLES[0]:
        return layout.table
    if layout.pre_linen and name.startswith("Transformer/encoderblock"):
        for new, old in NUMBERED.items():
            name = name.replace(new, old)
    return name


def _unstacked(tensors: Tensors) -> Tensors:
    """Arrays with all blocks along the first axis as one for each block."""
    unstacked = {}
    for name, lazy in tensors.items():
        match = re.fullmatch(r"Transformer/encoderblock/(.+)", name)
        if not match:
            unstacked[name] = lazy
            continue
        if not lazy.shape or lazy.shape[0] > MOST_BLOCKS:
            raise ValueError(f"{name} {lazy.shape} should have the blocks along its first axis")
        whole = cache(lazy.read)
        for i in range(lazy.shape[0]):
            block = Lazy(lazy.shape[1:], lazy.dtype, lambda whole=whole, i=i: whole()[i])
            unstacked[f"Transformer/encoderblock_{i}/{match[1]}"] = block
    return unstacked


def _stacked(tensors: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
    """The way back."""
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
