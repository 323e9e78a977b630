"""Tensors of a file before they are read, and what a damaged file may raise."""

import json
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

LARGEST_JSON = 64 * 2**20  # bytes; with 21,843 class names a config.json has about one million
FLOATS = ("float16", "bfloat16", "float32", "float64")
KEY = "vitkit"  # under which a file of another format carries vitkit's own description of the model
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


def read_json(file: Path) -> dict:
    """The object in a JSON file. Raises ValueError."""
    if file.stat().st_size > LARGEST_JSON:
        raise ValueError(
            f"{file} is larger than {LARGEST_JSON // 2**20} MiB, so it describes no model"
        )
    try:
        return parse_object(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is not a JSON object: {error}") from error


def parse_object(text: bytes | str) -> dict:
    """The object in JSON. Raises ValueError."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}")
    return value


def fill(buffer: memoryview, file) -> bool:
    """Read a whole buffer from an opened file, however little of it comes at once. False if the
    file ends before."""
    filled = 0
    while filled < len(buffer) and (count := file.readinto(buffer[filled:])):
        filled += count
    return filled == len(buffer)
