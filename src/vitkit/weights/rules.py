"""A conversion between two formats of the same model is one table, read in both directions.

A Rule says which of a format's tensors become one of vitkit's, and how (its Transform); the same rule
leads back, to the bit. Reading is exhaustive: a tensor that no rule reads, a tensor that is missing, and
one that does not fit are errors, and one message names them all.

Legend: D width, H heads, E = D / H width of a head, N patches.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from vitkit.system.console.text import printable_name
from vitkit.system.errors import BadWeights
from vitkit.weights.files.content import FLOATS, Lazy, Tensors

LISTED = 10  # faults that an error names


class Misfit(BadWeights):
    """Tensors that do not fit the model."""

    def __init__(self, message: str, names: frozenset[str] = frozenset()):
        super().__init__(message)
        self.names = names
        """Of a format: those that no rule reads, that are missing, and of another shape."""


# How a tensor of another library becomes one of vitkit's


class Transform(NamedTuple):
    """How tensors of a format become one of vitkit's, and how to get them back, to the bit."""

    read: Callable[..., Tensor]
    """theirs, one or several -> ours"""
    write: Callable[[Tensor], Sequence[Tensor]]
    """ours -> theirs, always a sequence"""


SAME = Transform(lambda tensor: tensor, lambda ours: (ours,))
# flax.linen.Dense computes x @ kernel, torch.nn.Linear x @ weight.T: (in, out) -> (out, in)
DENSE = Transform(lambda kernel: kernel.mT, lambda ours: (ours.mT,))
# flax.linen.Conv puts channels last: (height, width, in, out) -> (out, in, height, width)
CONVOLUTION = Transform(
    lambda kernel: kernel.permute(3, 2, 0, 1),
    lambda ours: (ours.permute(2, 3, 1, 0),),
)
# Transformers has some vectors and tables without the axis of the batch: (D,) and (T, D)
VECTOR = Transform(lambda vector: vector[None, None], lambda ours: (ours[0, 0],))
TABLE = Transform(lambda table: table[None], lambda ours: (ours[0],))
# vitkit projects to q, k and v with one matrix. Others have three (Transformers), or one for q and
# one for k and v (timm's attention pooling, whose query is a parameter).
THREE = Transform(lambda *qkv: join(qkv), lambda ours: ours.chunk(3))
# The gate of a SwiGLU and what it multiplies, which are two layers in some files
TWO = Transform(lambda *gate_and_rest: join(gate_and_rest), lambda ours: ours.chunk(2))
QUERY_AND_REST = Transform(
    lambda q, kv: join([q, kv]),
    lambda ours: ours.split([len(ours) // 3, 2 * len(ours) // 3]),
)


def interleaved(heads: int) -> Transform:
    """Rotary positions turn elements 2i and 2i + 1 of a head together where they are interleaved (timm's
    EVA code), and i and i + E / 2 in vitkit. So the rows of queries and keys have another order, and
    values the same: (3 D, ...) -> (3 D, ...)"""

    def read(qkv: Tensor) -> Tensor:
        q, k, v = qkv.chunk(3)
        halves = [
            part.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2) for part in (q, k)
        ]
        return join([*halves, v])

    def write(ours: Tensor) -> Sequence[Tensor]:
        q, k, v = ours.chunk(3)
        pairs = [part.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2) for part in (q, k)]
        return (join([*pairs, v]),)

    return Transform(read, write)


# The same of a vector with a number for each element of a head, as the norms of queries and keys have
INTERLEAVED_VECTOR = Transform(
    lambda vector: vector.unflatten(0, (-1, 2)).mT.flatten(),
    lambda ours: (ours.unflatten(0, (2, -1)).mT.flatten(),),
)


def listed_patches(patch: tuple[int, int]) -> Transform:
    """SigLIP 2's NaFlex projects flattened patches, channels last, by a dense layer:
    (D, P P' C) -> (D, C, P, P')"""
    return Transform(
        lambda kernel: kernel.unflatten(1, (*patch, -1)).permute(0, 3, 1, 2),
        lambda ours: (ours.permute(0, 2, 3, 1).flatten(1),),
    )


def flax_qkv(heads: int) -> Transform:
    """flax.linen.MultiHeadDotProductAttention has a kernel (D, H, E) for each of q, k and v.

    three of (D, H, E) -> (3 H E, D)
    """
    return Transform(
        lambda *qkv: join([kernel.flatten(1).mT for kernel in qkv]),
        lambda ours: [part.mT.unflatten(1, (heads, -1)) for part in ours.chunk(3)],
    )


def flax_qkv_bias(heads: int) -> Transform:
    """And a bias (H, E) for each: three of (H, E) -> (3 H E,)"""
    return Transform(
        lambda *qkv: join([bias.flatten() for bias in qkv]),
        lambda ours: [part.unflatten(0, (heads, -1)) for part in ours.chunk(3)],
    )


def flax_out(heads: int) -> Transform:
    """Its output projection keeps the heads apart: (H, E, D) -> (D, H E)"""
    return Transform(
        lambda kernel: kernel.flatten(0, 1).mT,
        lambda ours: (ours.mT.unflatten(0, (heads, -1)),),
    )


def position_table(prefix_rows: int, prefix: int, patches: int) -> Transform:
    """A table with rows of zeros for the tokens without a position.

    Of the tokens before the patches (class token, registers), of which there are `prefix`, vitkit's
    table has rows only for the first `prefix_rows`: (1, prefix_rows + N, D). Other libraries add
    the table to all tokens at once, so theirs have a row for each: (1, prefix + N, D).
    """
    if prefix_rows == prefix:
        return SAME

    def read(table: Tensor) -> Tensor:
        # DINOv2's own files have a row for the class token and none for registers, as vitkit has
        if table.shape[1] == prefix_rows + patches:
            return table
        zeros = table[:, prefix_rows:prefix]
        if not table.is_meta and zeros.any():
            raise BadWeights("the position table has values for tokens that have no position")
        return _join_rows([table[:, :prefix_rows], table[:, prefix:]])

    def write(ours: Tensor) -> Sequence[Tensor]:
        zeros = ours.new_zeros(1, prefix - prefix_rows, ours.shape[-1])
        return (_join_rows([ours[:, :prefix_rows], zeros, ours[:, prefix_rows:]]),)

    return Transform(read, write)


def _join_rows(tables: Sequence[Tensor]) -> Tensor:
    """Position tables (1, rows, D), one below the other."""
    return join([table.transpose(0, 1) for table in tables]).transpose(0, 1)


# Joining what a format has in several tensors


def join(parts: Sequence[Tensor]) -> Tensor:
    """torch.cat along the first axis, without a copy if the parts lie in memory one after the
    other (`_read_tensors` reads them so).

    Not torch.cat itself: for tensors on meta it imports a compiler, which takes a second.
    """
    lengths = [len(part) for part in parts]
    first = parts[0]
    shape = (sum(lengths), *first.shape[1:])
    if _adjacent(parts):
        return first.as_strided(shape, first.stride())
    whole = first.new_empty(shape)
    for part, target in zip(parts, whole.split(lengths), strict=True):
        if part.shape != target.shape:
            raise BadWeights(f"{tuple(part.shape)} cannot be joined to {tuple(first.shape)}")
        target.copy_(part)
    return whole


def _adjacent(parts: Sequence[Tensor]) -> bool:
    """Whether tensors lie in one storage, one after the other, as their join would."""
    first = parts[0]
    if any(part.is_meta for part in parts):
        return False
    storage = first.untyped_storage().data_ptr()
    offset = first.storage_offset()
    for part in parts:
        same_storage = part.untyped_storage().data_ptr() == storage
        same_rows = part.is_contiguous() and part.shape[1:] == first.shape[1:]
        if not same_storage or not same_rows or part.storage_offset() != offset:
            return False
        offset += part.numel()
    return True


# A table of rules


class Rule(NamedTuple):
    """One tensor of vitkit's, and those of a format that it is made of."""

    ours: str
    theirs: tuple[str, ...]
    transform: Transform


def rule(ours: str, *theirs: str, transform: Transform = SAME) -> Rule:
    """A rule; without a transform, it copies the tensor unchanged."""
    return Rule(ours, theirs, transform)


def layer(
    ours: str,
    theirs: str,
    transform: Transform = SAME,
    ends: tuple[str, str] = (".weight", ".bias"),
) -> list[Rule]:
    """The two rules of a layer: its weight, with the transform, and its bias, as it is.

    `ends` is what they call weight and bias, such as ("/kernel", "/bias") in flax.
    """
    weight, bias = ends
    return [
        rule(f"{ours}.weight", f"{theirs}{weight}", transform=transform),
        rule(f"{ours}.bias", f"{theirs}{bias}"),
    ]


def for_each_block(depth: int, rules: Sequence[Rule]) -> list[Rule]:
    """The rules of one block, with {i} in their names, for each of `depth` blocks."""
    table = []
    for i in map(str, range(depth)):
        for ours, theirs, transform in rules:
            numbered = tuple(name.replace("{i}", i) for name in theirs)
            table.append(Rule(ours.replace("{i}", i), numbered, transform))
    return table


# Reading a table of rules in both directions


def read(tensors: Tensors, rules: list[Rule], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A format's tensors as vitkit's, for a model whose state dict (on meta) is `expected`.

    They get the dtypes of `expected`. Shapes are compared before anything is read. Raises
    Misfit, which names what does not fit: every tensor without a rule, and the first of those
    with another shape.
    """
    unfilled = expected.keys() - {rule.ours for rule in rules}
    assert not unfilled, f"no rule fills {unfilled}"
    if faults := _faults(tensors, rules, expected):
        listed = list(faults)[:LISTED]
        if len(faults) > LISTED:
            listed.append(f"and {len(faults) - LISTED} more")
        names = frozenset().union(*faults.values())
        raise Misfit(f"its tensors do not fit the model: {'; '.join(listed)}", names)
    state = {}
    for rule in rules:
        theirs = _read_tensors([tensors[name] for name in rule.theirs])
        tensor = rule.transform.read(*theirs)
        state[rule.ours] = tensor.to(expected[rule.ours].dtype).contiguous()
    return state


def write(state: Mapping[str, Tensor], rules: list[Rule]) -> dict[str, Tensor]:
    """vitkit's tensors as those of a format."""
    written = {}
    for rule in rules:
        parts = rule.transform.write(state[rule.ours])
        for name, part in zip(rule.theirs, parts, strict=True):
            written[name] = part.contiguous()
    return written


def _faults(
    tensors: Tensors, rules: list[Rule], expected: Mapping[str, Tensor]
) -> dict[str, Sequence[str]]:
    """All that does not fit, in words, and the names of each: surplus tensors, missing ones, those of
    another shape or dtype."""
    known = {name for rule in rules for name in rule.theirs}
    surplus = [name for name in tensors if name not in known]
    missing = [name for rule in rules for name in rule.theirs if name not in tensors]
    faults: dict[str, Sequence[str]] = {}
    if surplus:
        faults[f"unknown tensors: {gist(surplus)}"] = surplus
    if missing:
        faults[f"missing: {gist(missing)}"] = missing
    for rule in rules:
        if all(name in tensors for name in rule.theirs):
            fault = _misfit(rule, [tensors[name] for name in rule.theirs], expected)
            if fault:
                faults[fault] = rule.theirs
    return faults


def _misfit(rule: Rule, parts: list[Lazy], expected: Mapping[str, Tensor]) -> str:
    """What is wrong with the tensors that a rule reads, which are not read for it; "" if nothing is."""
    names = ", ".join(rule.theirs)
    if rule.ours not in expected:
        return f"{names} has no place in this model"

    # Floating-point numbers, except where the model has integers: BatchNorm's count of batches
    others = [part.dtype for part in parts if part.dtype not in FLOATS]
    if others and expected[rule.ours].is_floating_point():
        return f"{names} holds {others[0]}, not floating-point numbers"

    shape = expected[rule.ours].shape
    try:
        read = rule.transform.read(*(torch.empty(part.shape, device="meta") for part in parts))
        if read.shape == shape:
            return ""
    except (RuntimeError, IndexError, ValueError, TypeError):
        pass  # they do not go together
    shapes = [f"{name} {part.shape}" for name, part in zip(rule.theirs, parts, strict=True)]
    return f"{', '.join(shapes)} does not make {rule.ours} {tuple(shape)}"


def _read_tensors(parts: list[Lazy]) -> list[Tensor]:
    """The tensors that a rule reads.

    One is mapped from the file. Several (q, k and v) will be joined, and mapping and then copying
    them would keep both copies in memory. Instead, where the file allows it:

    1. one buffer is made for all of them;
    2. each is read into its place there (`Lazy.read_into`);
    3. `join` sees that they lie one after the other, and copies nothing.
    """
    same_dtype = len({part.dtype for part in parts}) == 1
    readers = [part.read_into for part in parts if part.read_into is not None]
    if len(parts) == 1 or not same_dtype or len(readers) < len(parts):
        return [part.read() for part in parts]

    sizes = [prod(part.shape) for part in parts]
    buffer = torch.empty(sum(sizes), dtype=getattr(torch, parts[0].dtype))
    tensors = []
    for part, read_into, numbers in zip(parts, readers, buffer.split(sizes), strict=True):
        tensor = numbers.view(part.shape)
        read_into(tensor)
        tensors.append(tensor)
    return tensors


def gist(names: Iterable[str]) -> str:
    """Names for a message, as one if only a number differs: blocks.*.ls1.gamma (12 times)."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    described = []
    for pattern, same in alike.items():
        if len(same) == 1:
            described.append(printable_name(same[0]))
        else:
            described.append(f"{printable_name(pattern)} ({len(same)} times)")
    return ", ".join(described)
