"""NumPy's archives, as Google publishes its weights: arrays of numbers, none unpickled."""

import math
import struct
import zipfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from vitkit.weights.files.comment import read_comment
from vitkit.weights.files.lazy import DAMAGE, Lazy, Tensors, fill

LARGEST = 64 * 2**30  # bytes of an archive's content; ViT-e, the largest there is, has 16 GiB
INFLATION = 100  # an archive's content may be so many times its size: weights hardly compress


class Member(NamedTuple):
    """An array of an archive, not read yet."""

    name: str
    start: int
    """Bytes of the .npy header before the numbers."""
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool
    """Whether the first axis is the fastest."""


def is_npz(file: Path) -> bool:
    """Whether a ZIP archive holds arrays and nothing else. Raises ValueError for a damaged one."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error) as error:
        raise ValueError(
            f"{file} cannot be loaded: it is a damaged archive ({error}); download it again"
        ) from error
    return bool(names) and all(name.endswith(".npy") for name in names)


def read_npz(file: Path) -> tuple[Tensors, dict]:
    """The arrays, and the description of the model in the archive's comment ({} without one).

    bfloat16 may be stored as two raw bytes. Raises ValueError before memory is taken for what is no
    weights.
    """
    tensors: Tensors = {}
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            _check_size(file.stat().st_size, sum(entry.file_size for entry in entries))
            for entry in entries:
                member = _member(archive, entry)
                name = entry.filename.removesuffix(".npy")
                read = partial(_read, file, member)
                tensors[name] = Lazy(member.shape, _dtype_name(member.dtype), read)
    except DAMAGE as error:
        reason = str(error) or type(error).__name__
        # which may quote as much of the file as a name can be long
        raise ValueError(f"{file} cannot be loaded: {reason[:500]}") from error
    return tensors, read_comment(file)


def _check_size(size: int, content: int) -> None:
    if content > min(LARGEST, INFLATION * size + 2**28):
        raise ValueError(f"it would take {content:,} bytes of memory, out of a file of {size:,}")


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Member:
    """What the header of an array says, checked against its size."""
    with archive.open(entry) as opened:
        shape, dtype, fortran = _header(opened)
        start = opened.tell()
    raw = dtype.kind == "V" and dtype.itemsize == 2 and not dtype.fields
    if dtype.kind not in "fiub" and not raw:
        raise ValueError(f"{entry.filename} holds {dtype}, no numbers")
    if math.prod(shape) * dtype.itemsize != entry.file_size - start:
        raise ValueError(
            f"{entry.filename} says that its shape is {shape}, but holds {entry.file_size} bytes"
        )
    return Member(entry.filename, start, shape, dtype, fortran)


def _header(opened) -> tuple[tuple[int, ...], np.dtype, bool]:
    """Shape, dtype and whether it is in Fortran order."""
    version = npy.read_magic(opened)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the .npy format is unknown")
    shape, fortran, dtype = readers[version](opened)
    if dtype.hasobject or not all(isinstance(side, int) and side >= 0 for side in shape):
        raise ValueError(f"an array of {dtype} and shape {shape} is no weights")
    return shape, dtype, fortran


def _dtype_name(dtype: np.dtype) -> str:
    return "bfloat16" if dtype.kind == "V" else dtype.newbyteorder("=").name


def _read(file: Path, member: Member) -> Tensor:
    """The numbers of an array."""
    buffer = bytearray(math.prod(member.shape) * member.dtype.itemsize)
    try:
        with zipfile.ZipFile(file) as archive, archive.open(member.name) as opened:
            opened.read(member.start)
            if not fill(memoryview(buffer), opened) or opened.read(1):
                raise ValueError(f"{member.name} is cut short")
    except DAMAGE as error:
        raise ValueError(f"{file} cannot be loaded: {error}; download it again") from error
    bfloat16 = member.dtype.kind == "V"
    dtype = np.dtype(np.uint16) if bfloat16 else member.dtype
    array = np.frombuffer(buffer, dtype) if buffer else np.empty(0, dtype)
    order = "F" if member.fortran else "C"
    array = array.reshape(member.shape, order=order)
    tensor = torch.from_numpy(array.astype(dtype.newbyteorder("="), copy=False))
    return tensor.view(torch.bfloat16) if bfloat16 else tensor
