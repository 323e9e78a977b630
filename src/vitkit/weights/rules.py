"""Conversion between two formats of a model, by a table that is read in both directions.

A Rule defines which tensors of a format become one of vitkit's, and how (its Transform). The same rule
converts back, to the bit. Reading is exhaustive: tensors that no rule reads, missing tensors, and tensors
of a wrong shape are errors, which one message lists.

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
from vitkit.weights.files.transformed import why_missing

LISTED = 10  # mismatches that an error message lists


class Misfit(BadWeights):
    """Tensors that do not fit the model."""

    def __init__(self, message: str, names: frozenset[str] = frozenset()):
        super().__init__(message)
        self.names = names
        """Names in the format of tensors that no rule reads, that are missing, or that have another shape."""


# Transforms of tensors of another library to one of vitkit's


class Transform(NamedTuple):
    """A transform of a format's tensors to one of vitkit's, and its inverse, exact to the bit."""

    read: Callable[..., Tensor]
    """One or several tensors of the format -> vitkit's."""
    write: Callable[[Tensor], Sequence[Tensor]]
    """vitkit's tensor -> those of the format, always a sequence."""


SAME = Transform(lambda tensor: tensor, lambda ours: (ours,))
# flax.linen.Dense computes x @ kernel, torch.nn.Linear x @ weight.T: (in, out) -> (out, in)
DENSE = Transform(lambda kernel: kernel.mT, lambda ours: (ours.mT,))
# flax.linen.Conv has channels last: (height, width, in, out) -> (out, in, height, width)
CONVOLUTION = Transform(
    lambda kernel: kernel.permute(3, 2, 0, 1),
    lambda ours: (ours.permute(2, 3, 1, 0),),
)
# Transformers stores some vectors and tables without the batch axis: (D,) and (T, D)
VECTOR = Transform(lambda vector: vector[None, None], lambda ours: (ours[0, 0],))
TABLE = Transform(lambda table: table[None], lambda ours: (ours[0],))
# vitkit projects to q, k and v with one matrix. Others have three (Transformers), or one for q and one for
# k and v (timm's attention pooling, whose query is a parameter).
THREE = Transform(lambda *qkv: join(qkv), lambda ours: ours.chunk(3))
# The gate of a SwiGLU and the layer that it multiplies, which are separate in some files
TWO = Transform(lambda *gate_and_rest: join(gate_and_rest), lambda ours: ours.chunk(2))
QUERY_AND_REST = Transform(
    lambda q, kv: join([q, kv]),
    lambda ours: ours.split([len(ours) // 3, 2 * len(ours) // 3]),
)


def interleaved(heads: int) -> Transform:
    """Reorder the rows of queries and keys for rotary positions: (3 D, ...) -> (3 D, ...).

    Interleaved rotary positions (timm's EVA code) rotate elements 2i and 2i + 1 of a head together, vitkit
    elements i and i + E / 2. The order of values does not change.
    """

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


# `interleaved` for a vector with a number for each element of a head, such as the norms of queries and keys
INTERLEAVED_VECTOR = Transform(
    lambda vector: vector.unflatten(0, (-1, 2)).mT.flatten(),
    lambda ours: (ours.unflatten(0, (2, -1)).mT.flatten(),),
)


def listed_patches(patch: tuple[int, int]) -> Transform:
    """SigLIP 2's NaFlex projects flattened patches, channels last, with a dense layer:
    (D, P P' C) -> (D, C, P, P')."""
    return Transform(
        lambda kernel: kernel.unflatten(1, (*patch, -1)).permute(0, 3, 1, 2),
        lambda ours: (ours.permute(0, 2, 3, 1).flatten(1),),
    )


def flax_qkv(heads: int) -> Transform:
    """flax.linen.MultiHeadDotProductAttention has a kernel (D, H, E) for each of q, k and v:
    three of (D, H, E) -> (3 H E, D).
    """
    return Transform(
        lambda *qkv: join([kernel.flatten(1).mT for kernel in qkv]),
        lambda ours: [part.mT.unflatten(1, (heads, -1)) for part in ours.chunk(3)],
    )


def flax_qkv_bias(heads: int) -> Transform:
    """Biases of flax.linen.MultiHeadDotProductAttention: three of (H, E) -> (3 H E,)."""
    return Transform(
        lambda *qkv: join([bias.flatten() for bias in qkv]),
        lambda ours: [part.unflatten(0, (heads, -1)) for part in ours.chunk(3)],
    )


def flax_out(heads: int) -> Transform:
    """Convert the output projection of flax.linen.MultiHeadDotProductAttention, which has separate heads:
    (H, E, D) -> (D, H E)."""
    return Transform(
        lambda kernel: kernel.flatten(0, 1).mT,
        lambda ours: (ours.mT.unflatten(0, (heads, -1)),),
    )


def position_table(prefix_rows: int, prefix: int, patches: int) -> Transform:
    """Convert a position table with a row for every token, with zeros for tokens without a position.

    `prefix` is the number of tokens before the patches (class token, registers). vitkit's table has rows
    only for the first `prefix_rows` of them: (1, prefix_rows + N, D). Other libraries add the table to all
    tokens, so theirs has a row for each: (1, prefix + N, D).
    """
    if prefix_rows == prefix:
        return SAME

    def read(table: Tensor) -> Tensor:
        # DINOv2's own files have a row for the class token and none for registers, like vitkit's
        if table.shape[1] == prefix_rows + patches:
            return table
        zeros = table[:, prefix_rows:prefix]
        if not table.is_meta and zeros.any():
            raise BadWeights("the position table has values for tokens that have no position")
        return _join_rows([table[:, :prefix_rows], table[:, prefix:]])

    def write(ours: Tensor) -> Sequence[Tensor]:
        # Rows of zeros for tokens without a position
        zeros = ours.new_zeros(1, prefix - prefix_rows, ours.shape[-1])
        return (_join_rows([ours[:, :prefix_rows], zeros, ours[:, prefix_rows:]]),)

    return Transform(read, write)


def _join_rows(tables: Sequence[Tensor]) -> Tensor:
    """Concatenate position tables (1, rows, D) along their rows."""
    return join([table.transpose(0, 1) for table in tables]).transpose(0, 1)


# Joining tensors


def join(parts: Sequence[Tensor]) -> Tensor:
    """torch.cat along the first axis, without a copy if the parts are adjacent in memory (`_read_tensors`
    reads them so).

    torch.cat itself is not used, because for tensors on meta it imports a compiler, which takes a second.
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
    """Whether tensors are adjacent in one storage, so that a view joins them."""
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
    """A tensor of vitkit's, and the tensors of a format that it is made of."""

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
    """The two rules of a layer: for its weight, with the transform, and for its bias, unchanged.

    ends: the format's ends of the names of weight and bias, such as ("/kernel", "/bias") in flax.
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
    """Convert a format's tensors to vitkit's, for a model whose state dict (on meta) is `expected`.

    They get the dtypes of `expected`. Shapes are compared before anything is read. Raises Misfit, whose
    message lists the mismatches: all tensors without a rule, and the first of those with another shape.
    """
    unfilled = expected.keys() - {rule.ours for rule in rules}
    assert not unfilled, f"no rule fills {unfilled}"
    if faults := _mismatches(tensors, rules, expected):
        listed = list(faults)[:LISTED]
        if len(faults) > LISTED:
            listed.append(f"and {len(faults) - LISTED} more")
        missing = [name for rule in rules for name in rule.theirs if name not in tensors]
        listed += list(filter(None, (why_missing(tensors, name) for name in missing)))[:1]
        names = frozenset().union(*faults.values())
        raise Misfit(f"its tensors do not fit the model: {'; '.join(listed)}", names)
    state = {}
    for rule in rules:
        theirs = _read_tensors([tensors[name] for name in rule.theirs])
        tensor = rule.transform.read(*theirs)
        state[rule.ours] = tensor.to(expected[rule.ours].dtype).contiguous()
    return state


def write(state: Mapping[str, Tensor], rules: list[Rule]) -> dict[str, Tensor]:
    """Convert vitkit's tensors to those of a format."""
    written = {}
    for rule in rules:
        parts = rule.transform.write(state[rule.ours])
        for name, part in zip(rule.theirs, parts, strict=True):
            written[name] = part.contiguous()
    return written


def _mismatches(
    tensors: Tensors, rules: list[Rule], expected: Mapping[str, Tensor]
) -> dict[str, Sequence[str]]:
    """All mismatches as text, with the names of their tensors: surplus and missing tensors, and those of
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
            fault = _mismatch(rule, [tensors[name] for name in rule.theirs], expected)
            if fault:
                faults[fault] = rule.theirs
    return faults


def _mismatch(rule: Rule, parts: list[Lazy], expected: Mapping[str, Tensor]) -> str:
    """A mismatch of the tensors of a rule, by their shapes and dtypes; "" if they match."""
    names = ", ".join(rule.theirs)
    if rule.ours not in expected:
        return f"{names} has no place in this model"

    # Floating-point numbers, except where the model has integers: BatchNorm's number of batches
    others = [part.dtype for part in parts if part.dtype not in FLOATS]
    if others and expected[rule.ours].is_floating_point():
        return f"{names} holds {others[0]}, not floating-point numbers"

    shape = expected[rule.ours].shape
    try:
        read = rule.transform.read(*(torch.empty(part.shape, device="meta") for part in parts))
        if read.shape == shape:
            return ""
    except (RuntimeError, IndexError, ValueError, TypeError):
        pass  # the tensors cannot be combined
    shapes = [f"{name} {part.shape}" for name, part in zip(rule.theirs, parts, strict=True)]
    return f"{', '.join(shapes)} does not make {rule.ours} {tuple(shape)}"


def _read_tensors(parts: list[Lazy]) -> list[Tensor]:
    """Read the tensors of a rule.

    A single one is mapped from the file. Several (q, k and v) will be joined, and mapping and then copying
    them would keep both copies in memory. Instead, if the file supports it:

    1. one buffer is allocated for all of them;
    2. each is read into its part of the buffer (`Lazy.read_into`);
    3. `join` detects that they are adjacent, and copies nothing.
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
    """Names for a message. Those that differ only in a number are combined: blocks.*.ls1.gamma (12 times)."""
    by_pattern: dict[str, list[str]] = {}
    for name in names:
        by_pattern.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    described = []
    for pattern, same in by_pattern.items():
        if len(same) == 1:
            described.append(printable_name(same[0]))
        else:
            described.append(f"{printable_name(pattern)} ({len(same)} times)")
    return ", ".join(described)
