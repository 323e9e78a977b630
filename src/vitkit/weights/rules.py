"""A conversion between two formats of the same model is one table, read in both directions.

A Rule says which of a format's tensors become one of vitkit's, and how; the same rule says the way back. Reading is
exhaustive: a tensor that no rule reads, one that is missing, and one that does not fit are errors that name them all.

Legend: D width, H heads, E = D / H width of a head, B rows without a position.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from vitkit.weights.files import FLOATS, Tensors


class Way(NamedTuple):
    """How tensors of a format become one of vitkit's, and how that becomes them again, to the bit."""

    read: Callable[..., Tensor]
    write: Callable[[Tensor], Sequence[Tensor]]


class Rule(NamedTuple):
    """One tensor of vitkit's and those of a format that it is made of."""

    ours: str
    theirs: tuple[str, ...]
    way: Way


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """torch.cat along the first axis; for tensors on meta torch.cat imports a compiler, which takes a second."""
    lengths = [len(part) for part in parts]
    shape = (sum(lengths), *parts[0].shape[1:])
    if _in_a_row(parts):
        return parts[0].as_strided(shape, parts[0].stride())
    whole = parts[0].new_empty(shape)
    for part, place in zip(parts, whole.split(lengths), strict=True):
        if part.shape != place.shape:
            raise ValueError(f"{tuple(part.shape)} cannot be joined to {tuple(parts[0].shape)}")
        place.copy_(part)
    return whole


def _in_a_row(parts: Sequence[Tensor]) -> bool:
    """Whether tensors lie in memory as their joint would: one after the other, in the same storage."""
    first, place = parts[0], parts[0].storage_offset()
    for part in parts:
        there = (
            part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
            and not part.is_meta
        )
        if (
            not there
            or part.storage_offset() != place
            or not part.is_contiguous()
            or part.shape[1:] != first.shape[1:]
        ):
            return False
        place += part.numel()
    return True


SAME = Way(_same, lambda ours: (ours,))
DENSE = Way(lambda kernel: kernel.mT, lambda ours: (ours.mT,))  # flax: (in, out)
CONVOLUTION = Way(
    lambda kernel: kernel.permute(3, 2, 0, 1), lambda ours: (ours.permute(2, 3, 1, 0),)
)  # flax: HWIO
THREE = Way(lambda *qkv: _joined(qkv), lambda ours: ours.chunk(3))  # q, k and v apart
QUERY_AND_REST = Way(
    lambda q, kv: _joined([q, kv]), lambda ours: ours.split([len(ours) // 3, len(ours) // 3 * 2])
)


def flax_qkv(heads: int) -> Way:
    """flax keeps q, k and v apart, each (D, H, E)."""
    return Way(
        lambda *qkv: _joined([kernel.flatten(1).mT for kernel in qkv]),
        lambda ours: [part.mT.unflatten(1, (heads, -1)) for part in ours.chunk(3)],
    )


def flax_qkv_bias(heads: int) -> Way:
    """Their biases are (H, E) each."""
    return Way(
        lambda *qkv: _joined([bias.flatten() for bias in qkv]),
        lambda ours: [part.unflatten(0, (heads, -1)) for part in ours.chunk(3)],
    )


def flax_out(heads: int) -> Way:
    """The output projection is (H, E, D)."""
    return Way(
        lambda kernel: kernel.flatten(0, 1).mT, lambda ours: (ours.mT.unflatten(0, (heads, -1)),)
    )


def rows(kept: int, bare: int, patches: int) -> Way:
    """A position table in which `bare` tokens after the first `kept` have no position: elsewhere rows of zeros."""

    def read(table: Tensor) -> Tensor:
        if table.shape[1] == kept + patches:
            return table
        if not table.is_meta and table[:, kept : kept + bare].any():
            raise ValueError("the position table has values for tokens that have no position")
        return torch.cat([table[:, :kept], table[:, kept + bare :]], 1)

    def write(ours: Tensor) -> Sequence[Tensor]:
        return (
            torch.cat([ours[:, :kept], ours.new_zeros(1, bare, ours.shape[-1]), ours[:, kept:]], 1),
        )

    return Way(read, write) if bare else SAME


def rule(ours: str, *theirs: str, way: Way = SAME) -> Rule:
    """A rule; without a way the numbers are the same."""
    return Rule(ours, theirs, way)


def pairs(
    ours: str, theirs: str, way: Way = SAME, names: tuple[str, str] = (".weight", ".bias")
) -> list[Rule]:
    """The rules for a layer's weight, which goes that way, and its bias, which stays as it is."""
    return [
        rule(f"{ours}.weight", f"{theirs}{names[0]}", way=way),
        rule(f"{ours}.bias", f"{theirs}{names[1]}"),
    ]


def each(depth: int, rules: Iterable[Rule]) -> list[Rule]:
    """The rules of a block, `{i}` in their names, for every block."""
    rules = list(rules)
    return [
        Rule(
            r.ours.replace("{i}", str(i)),
            tuple(name.replace("{i}", str(i)) for name in r.theirs),
            r.way,
        )
        for i in range(depth)
        for r in rules
    ]


def read(tensors: Tensors, rules: list[Rule], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A format's tensors as vitkit's, in the dtypes of a model whose state dict (on meta) is `expected`.

    Shapes are compared before anything is read. Raises ValueError that names all that does not fit.
    """
    known = {name for r in rules for name in r.theirs}
    missing = [name for r in rules for name in r.theirs if name not in tensors]
    unfilled = expected.keys() - {r.ours for r in rules}
    assert not unfilled, f"no rule fills {unfilled}"
    faults = (
        [f"no rule reads {gist(n for n in tensors if n not in known)}"]
        if tensors.keys() - known
        else []
    )
    faults += [f"there is no {gist(missing)}"] if missing else []
    faults += [
        fault
        for r in rules
        if not set(missing) & set(r.theirs) and (fault := _misfit(tensors, r, expected))
    ]
    if faults:
        raise ValueError(f"its tensors do not fit the model: {'; '.join(faults)}")
    return {
        r.ours: r.way.read(*_parts(tensors, r)).to(expected[r.ours].dtype).contiguous()
        for r in rules
    }


def _parts(tensors: Tensors, r: Rule) -> list[Tensor]:
    """What a rule reads. Several tensors will be one, so they are read one after the other into the same memory."""
    found = [tensors[name] for name in r.theirs]
    if len(found) == 1 or any(one.into is None or one.dtype != found[0].dtype for one in found):
        return [one.read() for one in found]
    counts = [prod(one.shape) for one in found]
    whole = torch.empty(sum(counts), dtype=getattr(torch, found[0].dtype))
    parts = [part.view(one.shape) for part, one in zip(whole.split(counts), found, strict=True)]
    for part, one in zip(parts, found, strict=True):
        one.into(part)
    return parts


def write(state: Mapping[str, Tensor], rules: list[Rule]) -> dict[str, Tensor]:
    """vitkit's tensors as a format's."""
    made = {}
    for r in rules:
        made |= zip(
            r.theirs, (tensor.contiguous() for tensor in r.way.write(state[r.ours])), strict=True
        )
    return made


def _misfit(tensors: Tensors, r: Rule, expected: Mapping[str, Tensor]) -> str | None:
    """What is wrong with the tensors that a rule reads, or None."""
    found = [tensors[name] for name in r.theirs]
    if r.ours not in expected:
        return f"{', '.join(r.theirs)} has no place in this model"
    odd = [tensor.dtype for tensor in found if tensor.dtype not in FLOATS]
    if odd and expected[r.ours].is_floating_point():  # BatchNorm counts its batches in integers
        return f"{', '.join(r.theirs)} holds {odd[0]}, not floating-point numbers"
    try:
        shape = r.way.read(*(torch.empty(tensor.shape, device="meta") for tensor in found)).shape
    except (RuntimeError, IndexError, ValueError, TypeError):
        shape = None
    if shape == expected[r.ours].shape:
        return None
    shapes = ", ".join(
        f"{name} {tensor.shape}" for name, tensor in zip(r.theirs, found, strict=True)
    )
    return f"{shapes} does not make {r.ours} {tuple(expected[r.ours].shape)}"


def gist(names: Iterable[str]) -> str:
    """Names, those that differ in a number alone as one: blocks.*.ls1.gamma (12 times)."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    return ", ".join(
        same[0] if len(same) == 1 else f"{name} ({len(same)} times)" for name, same in alike.items()
    )
