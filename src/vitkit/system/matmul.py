"""The library that computes the float32 products of dense layers on this CPU, chosen by measurement.

PyTorch uses MKL for these products. On some processors, such as AMD's with full 512-bit units, MKL reaches
half of the speed of oneDNN, which PyTorch includes too. So both are measured, once per processor, version
of PyTorch and number of threads, and the faster one is stored in the cache. `VITKIT_MATMUL=torch` and
`VITKIT_MATMUL=onednn` choose without a measurement.

The two libraries add in different orders, so their results differ in the last bits.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from vitkit.system.errors import BadSettings
from vitkit.system.machine import processor
from vitkit.system.storage.files import cache_dir, parse_json, write_json
from vitkit.system.storage.records import record_of

VARIABLE = "VITKIT_MATMUL"
FASTER = 1.05  # minimum speed-up by oneDNN: less is noise
ROUNDS = 8
# Rows, inputs and outputs: the MLP of Ti/16 for eight photographs, of B/16 for one
SHAPES = ((1576, 192, 768), (197, 768, 3072))


class OneDnn(NamedTuple):
    """The products of a dense layer that oneDNN computes; PyTorch computes the others."""

    forward: bool
    """x Wᵀ + b."""
    input_gradient: bool
    """The gradient of x, g W, where g is the gradient of the outputs."""
    weight_gradient: bool
    """The gradient of W, gᵀ x."""

    def __str__(self) -> str:
        """Return "torch", "onednn", or the products that oneDNN computes: "onednn for the forward pass"."""
        if not any(self):
            return "torch"
        if all(self):
            return "onednn"
        names = ("the forward pass", "the gradient of the inputs", "the gradient of the weights")
        chosen = [name for name, is_chosen in zip(names, self, strict=True) if is_chosen]
        return f"onednn for {' and '.join(chosen)}"


NONE = OneDnn(False, False, False)
ALL = OneDnn(True, True, True)
_in_use: OneDnn | None = None


def in_use() -> OneDnn:
    """The choice of this process: that of the last call of `use`, or else of the environment or of a
    measurement. The measurement takes half a second, once per machine."""
    global _in_use
    if _in_use is None:
        _in_use = choose()
    return _in_use


def is_known() -> bool:
    """Whether the choice is known without a measurement."""
    return _in_use is not None


def use(choice: OneDnn | None) -> None:
    """Use this choice from now on, as a continued run does; None to choose again.

    Products that oneDNN cannot compute on this machine remain PyTorch's.
    """
    global _in_use
    if choice is not None and not available():
        choice = NONE
    _in_use = choice


@contextmanager
def as_before() -> Iterator[None]:
    """A context that restores the choice of this process at its end."""
    before = _in_use
    try:
        yield
    finally:
        use(before)


def chosen_by_user() -> bool:
    """Whether the environment sets the library."""
    return bool(os.environ.get(VARIABLE))


def choose(again: bool = False) -> OneDnn:
    """The choice by the environment, or else by the cache, or else by a measurement. Raises VitkitError for
    another name in the environment.

    again: measure without the cache, whose value may be from a busy moment.
    """
    named = os.environ.get(VARIABLE)
    if named and named not in ("torch", "onednn"):
        raise BadSettings(f'{VARIABLE} is {named!r}; it is "torch" or "onednn"')
    if named == "torch" or not available():
        return NONE
    if named == "onednn":
        return ALL

    # An earlier measurement on this processor, if there is one
    file = cache_dir() / "matmul.json"
    key = f"{processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    measured = _read(file)
    if again or key not in measured:
        choice = measure()
        measured = _read(file) | {key: choice}  # another process may have written in the meantime
        with suppress(OSError):  # if the cache is not writable, the next process measures too
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, {name: choice._asdict() for name, choice in measured.items()})
    return measured[key]


def _read(file: Path) -> dict[str, OneDnn]:
    """The stored choices; empty if the file does not exist or is not one of vitkit's."""
    try:
        values = parse_json(file.read_text())
        return {name: record_of(OneDnn, choice) for name, choice in values.items()}
    except (OSError, ValueError, AttributeError):
        return {}


@cache
def available() -> bool:
    """Whether this PyTorch has oneDNN's product, and it works on this machine."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    try:
        ones = torch.ones(2, 2, dtype=torch.float32, device="cpu")  # independent of defaults
        onednn(ones, ones)
    except (AttributeError, RuntimeError):
        return False
    return True


def onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b by oneDNN: float32 (..., in), (out, in), (out) or None -> (..., out)."""
    # The compiler's operator for dense layers with a following operation, here none. Its input has two
    # axes: for more it returns a view, which autograd does not allow to change in place
    rows = x.reshape(-1, x.shape[-1])
    product = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return torch.ops.aten._unsafe_view(product, [*x.shape[:-1], weight.shape[0]])


def measure() -> OneDnn:
    """Measure each kind of product with both libraries alternately; oneDNN is chosen if it is faster."""
    ratios: list[list[float]] = [[], [], []]  # one list per kind, one ratio per shape
    generator = torch.Generator("cpu").manual_seed(0)  # does not change PyTorch's global generator
    draw = partial(torch.randn, generator=generator, dtype=torch.float32, device="cpu")
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for rows, inputs, outputs in SHAPES:
            x = draw(rows, inputs)
            weight = draw(outputs, inputs)
            bias = draw(outputs)
            gradient = draw(rows, outputs)
            for kind, ratio in zip(ratios, _speed_ups(x, weight, bias, gradient), strict=True):
                kind.append(ratio)
    choice = OneDnn(*(_is_faster(kind) for kind in ratios))
    if not choice.forward:  # PyTorch's forward pass has PyTorch's backward pass
        return NONE
    return choice


def _speed_ups(x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor) -> tuple[float, ...]:
    """The speed-up by oneDNN for each kind of product: x (rows, in), weight (out, in), bias (out), gradient
    (rows, out)."""
    forward = _speed_up(lambda: torch.addmm(bias, x, weight.T), lambda: onednn(x, weight, bias))
    input_gradient = _speed_up(lambda: gradient @ weight, lambda: onednn(gradient, weight.T))
    weight_gradient = _speed_up(lambda: gradient.T @ x, lambda: onednn(gradient.T, x.T))
    return forward, input_gradient, weight_gradient


def _speed_up(by_torch: Callable[[], Tensor], by_onednn: Callable[[], Tensor]) -> float:
    """The speed-up of the second function over the first, from the fastest round of each, which is least
    affected by other processes."""
    fastest = [math.inf, math.inf]
    for _ in range(ROUNDS):
        for i, function in enumerate((by_torch, by_onednn)):
            start = perf_counter()
            function()
            fastest[i] = min(fastest[i], perf_counter() - start)
    return fastest[0] / fastest[1]


def _is_faster(ratios: list[float]) -> bool:
    """Whether oneDNN is sufficiently faster in the geometric mean of the shapes, and slower for none."""
    mean = math.prod(ratios) ** (1 / len(ratios))
    return mean >= FASTER and min(ratios) >= 1
