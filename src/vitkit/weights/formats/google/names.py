"""How Google's .npz files spell their arrays: several generations of code, prefixes, and all blocks in one array."""

import re
from functools import cache
from typing import NamedTuple

import torch

from vitkit.weights.files import Lazy, Tensors

TABLES = ("pos_embedding", "Transformer/pos_embedding", "Transformer/posembed_input/pos_embedding")
SIDES = (
    "opt/state",
    "opt/hyper",
    "params/txt",
    "params/t",
    "params/b",
)  # beside an image tower: not the model's
GROUP_NORM = re.compile(
    r"(.*/)?(gn(\d|_root|_proj)|norm-pre-head|group_norm)/(scale|bias|gamma|beta)"
)
NUMBERED = {
    "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1",
    "LayerNorm_1": "LayerNorm_2",
    "MlpBlock_0": "MlpBlock_3",
}


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
        said = {"pre-linen": self.pre_linen, "scan": self.scan, "wide": self.wide}
        return " ".join(
            [self.prefix or "-", self.table, *(word for word, there in said.items() if there)]
        )

    @classmethod
    def parse(cls, text: str) -> "Layout":
        prefix, table, *rest = text.split(" ")
        return cls(
            "" if prefix == "-" else prefix,
            table,
            *(word in rest for word in ("pre-linen", "scan", "wide")),
        )


ORIGINAL = Layout()
BIG_VISION = Layout("params/", TABLES[0], False)


def tidy(tensors: Tensors) -> tuple[Tensors, list[str], str]:
    """The image model's tensors in the newest spelling, how they were spelled, and what was left out."""
    prefixes = ("opt/target/", "params/img/", "params/")
    prefix = next((p for p in prefixes if p + "embedding/kernel" in tensors), "")
    found, notes = image_part(tensors, prefix)
    found, wide = flat_norms(found)
    if "probe" in found:  # an early MAP head lay at the top
        head = ("probe", "LayerNorm_0/", "MlpBlock_0/", "MultiHeadDotProductAttention_0/")
        found = {
            f"MAPHead_0/{name}" if name.startswith(head) else name: lazy
            for name, lazy in found.items()
        }
    scan = any(name.startswith("Transformer/encoderblock/") for name in found)
    found = _unstacked(found) if scan else found
    pre_linen = any(name.endswith("/MlpBlock_3/Dense_0/kernel") for name in found)
    if pre_linen:
        found = {_newer(name): lazy for name, lazy in found.items()}
    table = next((name for name in TABLES if name in found), TABLES[0])
    found = {"pos_embedding" if name == table else name: lazy for name, lazy in found.items()}
    return found, notes, str(Layout(prefix, table, pre_linen, scan, wide))


def image_part(tensors: Tensors, prefix: str) -> tuple[Tensors, list[str]]:
    """The arrays under a prefix, without it, and a note about the others. Raises ValueError for those that nobody knows."""
    notes = []
    if aside := [name for name in tensors if not name.startswith(prefix)]:
        if other := [name for name in aside if not name.startswith(SIDES)]:
            raise ValueError(f"no rule reads {', '.join(sorted(other)[:20])}")
        parts = sorted({"/".join(name.split("/")[:2]) for name in aside})
        notes.append(
            f"left out: {len(aside)} arrays beside the image model, under {', '.join(parts[:5])}"
        )
    return {
        name.removeprefix(prefix): lazy for name, lazy in tensors.items() if name.startswith(prefix)
    }, notes


def flat_norms(tensors: Tensors) -> tuple[Tensors, bool]:
    """GroupNorms stored as (1, 1, 1, C) as (C,), and whether there were any."""
    wide = {
        name
        for name, lazy in tensors.items()
        if GROUP_NORM.fullmatch(name) and lazy.shape[:-1] == (1, 1, 1)
    }
    flat = {
        name: Lazy(one.shape[3:], one.dtype, lambda r=one.read: r().flatten())
        for name, one in tensors.items()
    }
    return {name: flat[name] if name in wide else one for name, one in tensors.items()}, bool(wide)


def wide_norms(tensors: dict) -> dict:
    """The way back."""
    return {n: t[None, None, None] if GROUP_NORM.fullmatch(n) else t for n, t in tensors.items()}


def spelled(tensors: dict, how: Layout, depth: int) -> dict:
    """Tensors of a model of so many blocks as a layout has them; `tidy` is the way back."""
    tensors = _stacked(tensors, depth) if how.scan else tensors
    tensors = wide_norms(tensors) if how.wide else tensors
    return {how.prefix + _spelled(name, how): tensor for name, tensor in tensors.items()}


def _newer(name: str) -> str:
    if name.startswith("Transformer/encoderblock"):
        for new, old in NUMBERED.items():
            name = name.replace(f"/{old}/", f"/{new}/")
    return name


def _unstacked(tensors: Tensors) -> Tensors:
    """Arrays with all blocks along the first axis as one for each block."""
    found = {}
    for name, lazy in tensors.items():
        if not (match := re.fullmatch(r"Transformer/encoderblock/(.+)", name)):
            found[name] = lazy
            continue
        whole = cache(lazy.read)
        if not lazy.shape or lazy.shape[0] > 1000:
            raise ValueError(f"{name} {lazy.shape} should have the blocks along its first axis")
        for i in range(lazy.shape[0]):
            found[f"Transformer/encoderblock_{i}/{match[1]}"] = Lazy(
                lazy.shape[1:], lazy.dtype, lambda w=whole, i=i: w()[i]
            )
    return found


def _spelled(name: str, how: Layout) -> str:
    if name == "pos_embedding":
        return how.table
    if how.pre_linen and name.startswith("Transformer/encoderblock"):
        for new, old in NUMBERED.items():
            name = name.replace(new, old)
    return name


def _stacked(tensors: dict, depth: int) -> dict:
    found, of_blocks = {}, "Transformer/encoderblock_0/"
    for name, tensor in tensors.items():
        if name.startswith(of_blocks):
            rest = name.removeprefix(of_blocks)
            every = [tensors[f"Transformer/encoderblock_{i}/{rest}"] for i in range(depth)]
            found[f"Transformer/encoderblock/{rest}"] = torch.stack(every)
        elif not name.startswith("Transformer/encoderblock_"):
            found[name] = tensor
    return found
