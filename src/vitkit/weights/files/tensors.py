"""Tensors of a file before they are read, and what a damaged file may raise."""

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

LARGEST = 64 * 2**30  # bytes of a file's content; ViT-e, the largest there is, has 16 GiB
INFLATION = 100  # times a file's size, its content; more is no weights, which hardly compress
FLOATS = ("float16", "bfloat16", "float32", "float64")
# What the readers of ZIP, .npy, pickle and JSON raise for files that are damaged, or made to harm.
DAMAGE = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError,
    NotImplementedError, MemoryError, OSError, EOFError, SyntaxError, tokenize.TokenError,
    zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip


class Lazy(NamedTuple):
    """A tensor of a file, not read yet: its shape and dtype, and how to read it."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Tensor]
    """The tensor, mapped from the file where that is possible."""
    read_into: Callable[[Tensor], None] | None = None
    """Reads the numbers into a given contiguous tensor of this shape and dtype (safetensors). None
    for files that have no such way: archives, which `read` unpacks, and PyTorch's, which torch
    itself has mapped. `rules._read_tensors` says what it is for."""


Tensors = dict[str, Lazy]


def lazy_zeros(*shape: int) -> Lazy:
    """A tensor that a file leaves out because all of it is zero."""
    return Lazy(shape, "float32", lambda: torch.zeros(shape))


def joined(*parts: Lazy) -> Lazy:
    """Tensors that a file has one by one, joined along their first axis."""
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    return Lazy(shape, parts[0].dtype, lambda: torch.cat([part.read() for part in parts]))


def check_content(size: int, content: int) -> None:
    """Raises ValueError for a file of `size` bytes that would take too many when it is read."""
    if content > min(LARGEST, INFLATION * size + 2**28):
        raise ValueError(f"it would take {content:,} bytes of memory, out of a file of {size:,}")


def fill(buffer: memoryview, file) -> bool:
    """Read a whole buffer from an opened file, however little of it comes at once. False if the
    file ends before."""
    filled = 0
    while filled < len(buffer) and (count := file.readinto(buffer[filled:])):
        filled += count
    return filled == len(buffer)
