"""A conversion between two formats of the same model is one table, read in both directions.

A Rule says which of a format's tensors become one of vitkit's, and how; the same rule says the way back. Reading is
exhaustive: a tensor that no rule reads, one that is missing, and one that does not fit are errors that name them all.

Legend: D width, H heads, E = D / H width of a head, N patches.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from vitkit.weights.files import FLOATS, Lazy, Tensors


class Way(NamedTuple):
    """How tensors of a format become one of vitkit's, and how that becomes them again, to the bit."""

    read: Callable[..., Tensor]
    write: Callable[[Tensor], Sequence[Tensor]]


class Rule(NamedTuple):
    """One tensor of vitkit's and those of a format that it is made of."""

    ours: str
    theirs: tuple[str, ...]
    way: Way


# joining: what a format has in several tensors


def join(parts: Sequence[Tensor]) -> Tensor:
    """torch.cat along the first axis, without a copy where the parts lie in a row.

    Not torch.cat itself: for tensors on meta that imports a compiler, which takes a second.
    """
    lengths = [len(part) for part in parts]
    first = parts[0]
    shape = (sum(lengths), *first.shape[1:])
    if _in_a_row(parts):
        return first.as_strided(shape, first.stride())
    whole = first.new_empty(shape)
    for part, target in zip(parts, whole.split(lengths), strict=True):
        if part.shape != target.shape:
            raise ValueError(f"{tuple(part.shape)} cannot be joined to {tuple(first.shape)}")
        target.copy_(part)
    return whole


def _in_a_row(parts: Sequence[Tensor]) -> bool:
    """Whether tensors lie in memory as their join would: one after the other, in the same storage."""
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


# the ways there are


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _third_and_rest(ours: Tensor) -> Sequence[Tensor]:
    """q, and k and v."""
    third = len(ours) // 3
    return ours.split([third, 2 * third])


SAME = Way(_same, lambda ours: (ours,))
# flax: a dense kernel is (in, out), a convolution's (height, width, in, out)
DENSE = Way(lambda kernel: kernel.mT, lambda ours: (ours.mT,))
CONVOLUTION = Way(
    lambda kernel: kernel.permute(3, 2, 0, 1),
    lambda ours: (ours.permute(2, 3, 1, 0),),
)
# q, k and v in tensors of their own, or q in one and k and v in another
THREE = Way(lambda *qkv: join(qkv), lambda ours: ours.chunk(3))
QUERY_AND_REST = Way(lambda q, kv: join([q, kv]), _third_and_rest)


def flax_qkv(heads: int) -> Way:
    """flax keeps q, k and v apart, each (D, H, E)."""
    return Way(
        lambda *qkv: join([kernel.flatten(1).mT for kernel in qkv]),
        lambda ours: [part.mT.unflatten(1, (heads, -1)) for part in ours.chunk(3)],
    )


def flax_qkv_bias(heads: int) -> Way:
    """Their biases are (H, E) each."""
    return Way(
        lambda *qkv: join([bias.flatten() for bias in qkv]),
        lambda ours: [part.unflatten(0, (heads, -1)) for part in ours.chunk(3)],
    )


def flax_out(heads: int) -> Way:
    """The output projection is (H, E, D)."""
    return Way(
        lambda kernel: kernel.flatten(0, 1).mT,
        lambda ours: (ours.mT.unflatten(0, (heads, -1)),),
    )


def rows(prefix: int, bare: int, patches: int) -> Way:
    """A position table (1, prefix + bare + N, D) with rows of zeros for `bare` tokens after the first `prefix`.

    In vitkit's tables tokens without a position have no row: (1, prefix + N, D).
    """

    def read(table: Tensor) -> Tensor:
        if table.shape[1] == prefix + patches:
            return table
        zeros = table[:, prefix : prefix + bare]
        if not table.is_meta and zeros.any():
            raise ValueError("the position table has values for tokens that have no position")
        return torch.cat([table[:, :prefix], table[:, prefix + bare :]], 1)

    def write(ours: Tensor) -> Sequence[Tensor]:
        zeros = ours.new_zeros(1, bare, ours.shape[-1])
        return (torch.cat([ours[:, :prefix], zeros, ours[:, prefix:]], 1),)

    return Way(read, write) if bare else SAME


# making tables


def rule(ours: str, *theirs: str, way: Way = SAME) -> Rule:
    """A rule; without a way the numbers are the same."""
    return Rule(ours, theirs, way)


def pairs(
    ours: str, theirs: str, way: Way = SAME, names: tuple[str, str] = (".weight", ".bias")
) -> list[Rule]:
    """The rules for a layer's weight, which goes that way, and its bias, which stays as it is."""
    weight, bias = names
    return [
        rule(f"{ours}.weight", f"{theirs}{weight}", way=way),
        rule(f"{ours}.bias", f"{theirs}{bias}"),
    ]


def each(depth: int, rules: Iterable[Rule]) -> list[Rule]:
    """The rules of a block, `{i}` in their names, for every block."""
    rules = list(rules)
    return [_numbered(rule, i) for i in range(depth) for rule in rules]


def _numbered(rule: Rule, i: int) -> Rule:
    theirs = tuple(name.replace("{i}", str(i)) for name in rule.theirs)
    return Rule(rule.ours.replace("{i}", str(i)), theirs, rule.way)


# reading a table in both directions


def read(tensors: Tensors, rules: list[Rule], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A format's tensors as vitkit's, in the dtypes of a model whose state dict (on meta) is `expected`.

    Shapes are compared before anything is read. Raises ValueError that names all that does not fit.
    """
    unfilled = expected.keys() - {rule.ours for rule in rules}
    assert not unfilled, f"no rule fills {unfilled}"
    if faults := _faults(tensors, rules, expected):
        raise ValueError(f"its tensors do not fit the model: {'; '.join(faults)}")
    state = {}
    for rule in rules:
        tensor = rule.way.read(*_parts(tensors, rule))
        state[rule.ours] = tensor.to(expected[rule.ours].dtype).contiguous()
    return state


def write(state: Mapping[str, Tensor], rules: list[Rule]) -> dict[str, Tensor]:
    """vitkit's tensors as a format's."""
    written = {}
    for rule in rules:
        parts = rule.way.write(state[rule.ours])
        for name, part in zip(rule.theirs, parts, strict=True):
            written[name] = part.contiguous()
    return written


def _faults(tensors: Tensors, rules: list[Rule], expected: Mapping[str, Tensor]) -> list[str]:
    """All that does not fit: tensors too many, tensors too few, and tensors of another shape or kind."""
    known = {name for rule in rules for name in rule.theirs}
    surplus = [name for name in tensors if name not in known]
    missing = [name for rule in rules for name in rule.theirs if name not in tensors]
    faults = []
    if surplus:
        faults.append(f"no rule reads {gist(surplus)}")
    if missing:
        faults.append(f"there is no {gist(missing)}")
    for rule in rules:
        if all(name in tensors for name in rule.theirs):
            faults += _misfits(tensors, rule, expected)
    return faults


def _misfits(tensors: Tensors, rule: Rule, expected: Mapping[str, Tensor]) -> list[str]:
    """What is wrong with the tensors that a rule reads."""
    names = ", ".join(rule.theirs)
    parts = [tensors[name] for name in rule.theirs]
    if rule.ours not in expected:
        return [f"{names} has no place in this model"]
    others = [part.dtype for part in parts if part.dtype not in FLOATS]
    # BatchNorm counts its batches in integers
    if others and expected[rule.ours].is_floating_point():
        return [f"{names} holds {others[0]}, not floating-point numbers"]
    shape = expected[rule.ours].shape
    if _shape_read(rule, parts) == shape:
        return []
    pairs = zip(rule.theirs, parts, strict=True)
    shapes = ", ".join(f"{name} {part.shape}" for name, part in pairs)
    return [f"{shapes} does not make {rule.ours} {tuple(shape)}"]


def _shape_read(rule: Rule, parts: list[Lazy]) -> torch.Size | None:
    """The shape of what a rule reads, found without reading it; None if the parts do not go together."""
    try:
        return rule.way.read(*(torch.empty(part.shape, device="meta") for part in parts)).shape
    except (RuntimeError, IndexError, ValueError, TypeError):
        return None


def _parts(tensors: Tensors, rule: Rule) -> list[Tensor]:
    """What a rule reads. Several tensors will be one, so they are read one after the other into the same memory."""
    parts = [tensors[name] for name in rule.theirs]
    dtypes = {part.dtype for part in parts}
    if len(parts) == 1 or len(dtypes) > 1 or any(part.into is None for part in parts):
        return [part.read() for part in parts]
    sizes = [prod(part.shape) for part in parts]
    whole = torch.empty(sum(sizes), dtype=getattr(torch, dtypes.pop()))
    filled = []
    for part, numbers in zip(parts, whole.split(sizes), strict=True):
        tensor = numbers.view(part.shape)
        part.into(tensor)
        filled.append(tensor)
    return filled


def gist(names: Iterable[str]) -> str:
    """Names, those that differ in a number alone as one: blocks.*.ls1.gamma (12 times)."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    described = []
    for pattern, same in alike.items():
        if len(same) == 1:
            described.append(same[0])
        else:
            described.append(f"{pattern} ({len(same)} times)")
    return ", ".join(described)
