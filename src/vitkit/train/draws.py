"""Random numbers that are a function of an example's key: the same on any device, in any micro-batch, on any rank.

Legend: B batch, N numbers an example.
"""

import torch
from torch import Tensor

GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # SplitMix64's


def uniform(keys: Tensor, purpose: int, count: int) -> Tensor:
    """(B,) int64 -> (B, N) float32 from 0 up to, not including, 1; another `purpose` gives numbers that have nothing to do
    with these. They are multiples of 2^-24, so float32 holds each exactly."""
    stream = _mixed(keys + _signed(purpose * FIRST))
    places = torch.arange(1, count + 1, device=keys.device) * _signed(GOLDEN)
    return _right(_mixed(stream[:, None] + places), 40).float() * 2.0**-24


def of_examples(indices: Tensor) -> Tensor:
    """(B,) numbers of held-out examples -> (B,) keys: an evaluation asks the same questions every time."""
    return _mixed(indices)


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64's finaliser, on integers that wrap around."""
    x = (x ^ _right(x, 30)) * _signed(FIRST)
    x = (x ^ _right(x, 27)) * _signed(SECOND)
    return x ^ _right(x, 31)


def _right(x: Tensor, bits: int) -> Tensor:
    """Shifted right, zeros coming in: int64 alone would repeat the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    """The int64 with the same 64 bits."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number
