"""Which library computes the float32 products of dense layers on this CPU, found by measuring.

PyTorch leaves these products to MKL. On some processors, such as AMD's with full 512-bit units, MKL
reaches half of the speed of oneDNN, which PyTorch brings along too. So both are measured, once for
each processor, version of PyTorch and number of threads, and the faster one is kept in the cache.
`VITKIT_MATMUL=torch` and `VITKIT_MATMUL=onednn` choose without measuring.

The two libraries add in another order, so their results differ in the last bits.
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
FASTER = 1.05  # what oneDNN must gain before it is taken: less is noise
ROUNDS = 8
# Rows, inputs and outputs: the MLP of Ti/16 for eight photographs, of B/16 for one
SHAPES = ((1576, 192, 768), (197, 768, 3072))


class OneDnn(NamedTuple):
    """The products of a dense layer that oneDNN computes; PyTorch computes the others in its own
    way."""

    forward: bool
    """x Wᵀ + b."""
    input_gradient: bool
    """The gradient of x, g W, where g is the gradient of the outputs."""
    weight_gradient: bool
    """The gradient of W, gᵀ x."""

    def __str__(self) -> str:
        """ "torch", "onednn", or the products that oneDNN computes: "onednn for the forward pass"."""
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
    """The products that this process uses: those of the last call of `use`, else those of the
    environment or of a measurement. The measurement takes half a second, once on a machine."""
    global _in_use
    if _in_use is None:
        _in_use = choose()
    return _in_use


def is_known() -> bool:
    """Whether this process knows it already, without a measurement."""
    return _in_use is not None


def use(choice: OneDnn | None) -> None:
    """Use this from now on, as a run that is continued does; None to choose again.

    Products that this machine cannot compute by oneDNN stay PyTorch's.
    """
    global _in_use
    if choice is not None and not available():
        choice = NONE
    _in_use = choice


@contextmanager
def as_before() -> Iterator[None]:
    """After this block the process uses what it used before, whatever a run in it needed."""
    before = _in_use
    try:
        yield
    finally:
        use(before)


def chosen_by_user() -> bool:
    """Whether the environment says which library is used."""
    return bool(os.environ.get(VARIABLE))


def choose(again: bool = False) -> OneDnn:
    """The environment's choice, or else the cache's, or else a measurement's. Raises VitkitError for
    another name in the environment.

    again: measure, whatever the cache says; what is in it may come from a busy moment.
    """
    named = os.environ.get(VARIABLE)
    if named and named not in ("torch", "onednn"):
        raise BadSettings(f'{VARIABLE} is {named!r}; it is "torch" or "onednn"')
    if named == "torch" or not available():
        return NONE
    if named == "onednn":
        return ALL

    # Measured before, on this processor?
    file = cache_dir() / "matmul.json"
    key = f"{processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    measured = _read(file)
    if again or key not in measured:
        choice = measure()
        measured = _read(file) | {key: choice}  # another process may have written meanwhile
        with suppress(OSError):  # a cache that cannot be written to: the next process measures
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, {name: choice._asdict() for name, choice in measured.items()})
    return measured[key]


def _read(file: Path) -> dict[str, OneDnn]:
    """What was measured before; empty if there is no such file, or not one of ours."""
    try:
        values = parse_json(file.read_text())
        return {name: record_of(OneDnn, choice) for name, choice in values.items()}
    except (OSError, ValueError, AttributeError):
        return {}


@cache
def available() -> bool:
    """Whether this PyTorch has oneDNN's product, and whether it works here."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    try:
        ones = torch.ones(2, 2, dtype=torch.float32, device="cpu")  # whatever the defaults are
        onednn(ones, ones)
    except (AttributeError, RuntimeError):
        return False
    return True


def onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b by oneDNN: float32 (..., in), (out, in), (out) or None -> (..., out)."""
    # An operator of the compiler's, for dense layers with what may follow them: here nothing. Rows
    # go in, since it returns a view for more axes, which autograd lets nobody change in place
    rows = x.reshape(-1, x.shape[-1])
    product = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return torch.ops.aten._unsafe_view(product, [*x.shape[:-1], weight.shape[0]])


def measure() -> OneDnn:
    """Measure each kind of product by both libraries, in turns; oneDNN is chosen if it is faster."""
    ratios: list[list[float]] = [[], [], []]  # of each kind, one for each shape
    generator = torch.Generator("cpu").manual_seed(0)  # PyTorch's global one stays as it is
    draw = partial(torch.randn, generator=generator, dtype=torch.float32, device="cpu")
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for rows, inputs, outputs in SHAPES:
            x = draw(rows, inputs)
            weight = draw(outputs, inputs)
            bias = draw(outputs)
            gradient = draw(rows, outputs)
            for kind, ratio in zip(ratios, _ratios(x, weight, bias, gradient), strict=True):
                kind.append(ratio)
    choice = OneDnn(*(_is_faster(kind) for kind in ratios))
    if not choice.forward:  # PyTorch's forward pass has PyTorch's backward pass
        return NONE
    return choice


def _ratios(x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor) -> tuple[float, ...]:
    """How many times oneDNN is as fast, by the kind of product: x (rows, in), weight (out, in), bias
    (out), gradient (rows, out)."""
    forward = _ratio(lambda: torch.addmm(bias, x, weight.T), lambda: onednn(x, weight, bias))
    input_gradient = _ratio(lambda: gradient @ weight, lambda: onednn(gradient, weight.T))
    weight_gradient = _ratio(lambda: gradient.T @ x, lambda: onednn(gradient.T, x.T))
    return forward, input_gradient, weight_gradient


def _ratio(by_torch: Callable[[], Tensor], by_onednn: Callable[[], Tensor]) -> float:
    """How many times the second is as fast as the first: each by its fastest round, which other work
    on the machine disturbs least."""
    fastest = [math.inf, math.inf]
    for _ in range(ROUNDS):
        for i, function in enumerate((by_torch, by_onednn)):
            start = perf_counter()
            function()
            fastest[i] = min(fastest[i], perf_counter() - start)
    return fastest[0] / fastest[1]


def _is_faster(ratios: list[float]) -> bool:
    """Whether oneDNN gains enough in the geometric mean of the shapes, and loses in none."""
    mean = math.prod(ratios) ** (1 / len(ratios))
    return mean >= FASTER and min(ratios) >= 1
