"""A conversion between two formats of the same model is one table, read in both directions.

A Rule says which of a format's tensors become one of vitkit's, and how; the same rule leads back.
Reading is exhaustive: a tensor that no rule reads, a tensor that is missing, and one that does not
fit are errors, and one message names them all.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from vitkit.weights.conversion.transforms import SAME, Transform
from vitkit.weights.files import FLOATS, Lazy, Tensors

LISTED = 10  # faults that an error names


class Rule(NamedTuple):
    """One tensor of vitkit's, and those of a format that it is made of."""

    ours: str
    theirs: tuple[str, ...]
    transform: Transform


# Making a table of rules


def rule(ours: str, *theirs: str, transform: Transform = SAME) -> Rule:
    """A rule; without a transform the tensors are the same."""
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
    return [_numbered(rule, i) for i in range(depth) for rule in rules]


def _numbered(rule: Rule, i: int) -> Rule:
    """The rule of block i."""
    theirs = tuple(name.replace("{i}", str(i)) for name in rule.theirs)
    return Rule(rule.ours.replace("{i}", str(i)), theirs, rule.transform)


# Reading a table of rules in both directions


def read(tensors: Tensors, rules: list[Rule], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A format's tensors as vitkit's, for a model whose state dict (on meta) is `expected`.

    They get the dtypes of `expected`. Shapes are compared before anything is read. Raises
    ValueError, which names what does not fit: every tensor without a rule, and the first of those
    with another shape.
    """
    unfilled = expected.keys() - {rule.ours for rule in rules}
    assert not unfilled, f"no rule fills {unfilled}"
    if faults := _faults(tensors, rules, expected):
        listed = faults[:LISTED]
        if len(faults) > LISTED:
            listed.append(f"and {len(faults) - LISTED} more")
        raise ValueError(f"its tensors do not fit the model: {'; '.join(listed)}")
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


def _faults(tensors: Tensors, rules: list[Rule], expected: Mapping[str, Tensor]) -> list[str]:
    """Everything that does not fit: surplus tensors, missing ones, those of another shape or
    dtype."""
    known = {name for rule in rules for name in rule.theirs}
    surplus = [name for name in tensors if name not in known]
    missing = [name for rule in rules for name in rule.theirs if name not in tensors]
    faults = []
    if surplus:
        faults.append(f"unknown tensors: {gist(surplus)}")
    if missing:
        faults.append(f"missing: {gist(missing)}")
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

    # Floating-point numbers, except where the model has integers: BatchNorm's count of batches
    others = [part.dtype for part in parts if part.dtype not in FLOATS]
    if others and expected[rule.ours].is_floating_point():
        return [f"{names} holds {others[0]}, not floating-point numbers"]

    shape = expected[rule.ours].shape
    if _shape_after(rule, parts) == shape:
        return []
    shapes = ", ".join(f"{name} {tensors[name].shape}" for name in rule.theirs)
    return [f"{shapes} does not make {rule.ours} {tuple(shape)}"]


def _shape_after(rule: Rule, parts: list[Lazy]) -> torch.Size | None:
    """The shape that a rule makes of these tensors, computed without reading them; None if they do
    not go together."""
    on_meta = [torch.empty(part.shape, device="meta") for part in parts]
    try:
        return rule.transform.read(*on_meta).shape
    except (RuntimeError, IndexError, ValueError, TypeError):
        return None


def _read_tensors(parts: list[Lazy]) -> list[Tensor]:
    """The tensors that a rule reads.

    One is mapped from the file. Several (q, k and v) will be joined, and mapping and then copying
    them would keep both copies in memory. Instead, where the file allows it:

    1. one buffer is made for all of them;
    2. each is read into its place there (`Lazy.read_into`);
    3. `transforms.join` sees that they lie one after the other, and copies nothing.
    """
    same_dtype = len({part.dtype for part in parts}) == 1
    can_read_into = all(part.read_into is not None for part in parts)
    if len(parts) > 1 and same_dtype and can_read_into:
        return _read_into_one_buffer(parts)
    return [part.read() for part in parts]


def _read_into_one_buffer(parts: list[Lazy]) -> list[Tensor]:
    """Tensors of one dtype, one after the other in the same memory."""
    sizes = [prod(part.shape) for part in parts]
    buffer = torch.empty(sum(sizes), dtype=getattr(torch, parts[0].dtype))
    tensors = []
    for part, numbers in zip(parts, buffer.split(sizes), strict=True):
        tensor = numbers.view(part.shape)
        part.read_into(tensor)
        tensors.append(tensor)
    return tensors


def gist(names: Iterable[str]) -> str:
    """Names for a message; those that differ only in a number as one: blocks.*.ls1.gamma (12
    times)."""
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
