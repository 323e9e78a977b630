"""PyTorch's own files (.pth, .pt, .bin), read by its restricted unpickler: nothing in them runs.

torch maps the records of an archive from the disk and believes them: it takes compressed numbers for
numbers, and compares no checksum. So they are checked here before.
"""

import argparse
import os
import pickle
import re
import struct
import warnings
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from vitkit.weights.files.content import DAMAGE, Lazy, Tensors, check_content

# Where training checkpoints keep the model. The first that is there counts: averages come first.
PARTS = ("state_dict_ema", "model_ema", "state_dict", "model", "teacher", "module", "net")
DEEPEST = 8  # parts within parts: a dictionary may hold itself
HEADER = 30  # bytes before a record's name; the last four are the lengths of what follows
ENCRYPTED = 1  # bit of a record's flags
# How a pickle spells bytearray(n), which torch's restricted unpickler calls: n bytes of memory for
# ten bytes of file. No file of weights has one.
BYTEARRAY = b"\nbytearray\n"


def read_pickle(file: Path) -> tuple[Tensors, str]:
    """A file's tensors, and which part of a training checkpoint they were. Raises ValueError."""
    checkpoint = _unpickle(file)

    # A checkpoint may be wrapped several times: {"model": {"module": {name: tensor}}}
    wrapper = ""
    for _ in range(DEEPEST):
        if not isinstance(checkpoint, dict) or _holds_tensors(checkpoint):
            break
        parts = (part for part in PARTS if isinstance(checkpoint.get(part), dict))
        wrapper = next(parts, "")
        if not wrapper:
            break
        checkpoint = checkpoint[wrapper]

    if not _holds_tensors(checkpoint):
        raise ValueError(f"{file} cannot be loaded: it does not hold a state dict of tensors")
    tensors = {}
    try:
        for name, value in checkpoint.items():
            if isinstance(value, Tensor):
                _check_storage(str(name), value)
                dtype = str(value.dtype).removeprefix("torch.")
                # detach: a checkpoint may hold a Parameter, or a tensor that wants a gradient
                tensors[str(name)] = Lazy(tuple(value.shape), dtype, read=value.detach)
        check_content(file.stat().st_size, sum(value.nbytes for value in _tensors_in(checkpoint)))
    except DAMAGE as error:
        raise ValueError(f"{file} cannot be loaded: {error}") from error
    return tensors, wrapper


def _unpickle(file: Path) -> object:
    """What a file holds. Raises ValueError if it is damaged or holds more than tensors and values."""
    try:
        # Training checkpoints carry their arguments, which do no harm. Whatever torch warns of
        # becomes our own sentence below.
        with (
            torch.serialization.safe_globals([argparse.Namespace]),
            warnings.catch_warnings(action="ignore"),
        ):
            return _load(file)
    except pickle.UnpicklingError as error:
        match = re.search(r"GLOBAL (\S+)", str(error))
        content = "more than tensors"
        if match:
            content = f"the Python object {match[1]}"
        raise ValueError(
            f"{file} cannot be loaded: it holds {content}, and vitkit runs no code from files; "
            "save its state dict as safetensors"
        ) from error
    except (*DAMAGE, AssertionError) as error:
        reason = repr(error)
        if str(error):
            reason = str(error).splitlines()[0]
        raise ValueError(f"{file} cannot be loaded: {reason}") from error


def _load(file: Path) -> object:
    """torch.load, mapped from the disk; except the format before PyTorch 1.6, which cannot be."""
    if zipfile.is_zipfile(file):
        _check_records(file)
    else:
        _check_pickle(file.read_bytes())
    try:
        return torch.load(file, "cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        if "mmap" not in str(error):
            raise
        return torch.load(file, "cpu", weights_only=True)


def _holds_tensors(value: object) -> bool:
    """Whether this is a state dict: a dictionary with a tensor in it."""
    return isinstance(value, dict) and bool(_tensors_in(value))


def _tensors_in(checkpoint: dict) -> list[Tensor]:
    return [value for value in checkpoint.values() if isinstance(value, Tensor)]


def _check_storage(name: str, tensor: Tensor) -> None:
    """Raises ValueError for a tensor whose numbers are not all in the file: expanded, with a stride
    of 0, a few bytes may claim to be any number of them."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise ValueError(
            f"{name} is a {tensor.layout} tensor on {tensor.device}, not plain numbers"
        )
    stored = tensor.untyped_storage().nbytes()
    if tensor.nbytes > stored:
        raise ValueError(
            f"{name} has the shape {tuple(tensor.shape)}, and the file holds {stored:,} bytes of "
            "it; save it again after .contiguous()"
        )


def _check_records(file: Path) -> None:
    """Raises ValueError for an archive whose records are compressed, damaged or there twice.

    Every byte is read for it. Archives without any checksum are believed, for torch can be told to
    write none.
    """
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
        if len({record.filename for record in records}) < len(records):
            raise ValueError("it holds two records of the same name")
        for record in records:
            if record.compress_type != zipfile.ZIP_STORED or record.flag_bits & ENCRYPTED:
                raise ValueError(
                    f"its record {record.filename} is compressed or encrypted, and PyTorch would "
                    "take that for the numbers themselves; save it again with torch.save"
                )
        has_checksums = any(record.CRC for record in records)
        damaged = archive.testzip() if has_checksums else None
        if damaged:
            raise ValueError(
                f"its record {damaged} is damaged: its checksum is another; download it again"
            )
        for record in records:
            if record.filename.endswith(".pkl"):
                _check_pickle(_bytes_of(file, record))


def _bytes_of(file: Path, record: zipfile.ZipInfo) -> bytes:
    """The bytes of a record that is not compressed, whatever its checksum."""
    with file.open("rb") as opened:
        opened.seek(record.header_offset)
        header = opened.read(HEADER)
        name_length, extra_length = struct.unpack("<HH", header[-4:])
        opened.seek(name_length + extra_length, os.SEEK_CUR)
        return opened.read(record.file_size)


def _check_pickle(data: bytes) -> None:
    """Raises ValueError for a pickle that takes more memory than it has bytes."""
    if BYTEARRAY in data:
        raise ValueError("it holds the Python object bytearray, which is no part of a model")
