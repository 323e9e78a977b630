"""Files of weights, not trusted: what they hold by name and shape, before any of it is read.

safetensors, NumPy's .npz (no object is unpickled), and PyTorch's own files through its restricted unpickler.
"""

import argparse
import json
import math
import pickle
import re
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy
from safetensors import SafetensorError, safe_open
from torch import Tensor

LARGEST_JSON = 64 * 2**20  # bytes; with 21,843 class names a config.json has about one million
LARGEST = 64 * 2**30  # bytes of an archive's content; ViT-e, the largest there is, has 16 GiB
INFLATION = 100  # an archive's content may be so many times its size: weights hardly compress
FLOATS = ("float16", "bfloat16", "float32", "float64")
SAFETENSORS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
KEY = "vitkit"  # under which a file of another format carries vitkit's own description of the model
FOLDER_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
WEIGHTS = (".safetensors", ".npz", ".pth", ".pt", ".bin")


class Lazy(NamedTuple):
    """A tensor of a file: what it is, and how to get it."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Tensor]
    """The tensor, mapped from the file where that is possible."""
    into: Callable[[Tensor], None] | None = None
    """Reads it into a tensor of this shape and dtype, where `read` maps: who copies anyway holds no page of the file then."""


Tensors = dict[str, Lazy]


@dataclass(frozen=True)
class Opened:
    """A file of weights, with what lies beside it or inside it and says more about the model."""

    path: Path
    tensors: Tensors
    config: dict = field(default_factory=dict)
    """config.json, where there is one."""
    preprocessor: dict = field(default_factory=dict)
    """preprocessor_config.json, where there is one."""
    described: dict = field(default_factory=dict)
    """vitkit's own description, where vitkit wrote the file."""
    wrapper: str = ""
    """Which part of a training checkpoint this is, such as "model" or "teacher"."""


def open_weights(path: Path) -> Opened:
    """Open a model directory or a file of weights. Raises ValueError for what is none, in one sentence."""
    if path.is_file():
        beside = path.parent if path.name in FOLDER_FILES else None
        return _open(path, beside)
    folder = path / "model" if (path / "model" / "config.json").is_file() else path
    named = [folder / name for name in FOLDER_FILES if (folder / name).is_file()]
    others = sorted(file for file in folder.iterdir() if file.suffix in WEIGHTS)
    if not named and len(others) != 1:
        if (path / "recipe.json").is_file():
            raise ValueError(
                f"{path} is a run that has not finished; continue it with the command that started it"
            )
        found = (
            f"several files of weights ({', '.join(f.name for f in others)}): name one"
            if others
            else "no model"
        )
        raise ValueError(
            f"{path} holds {found}; a model directory has config.json and model.safetensors in it"
        )
    return _open((named or others)[0], folder)


def _open(file: Path, folder: Path | None) -> Opened:
    config, preprocessor = (
        ({}, {})
        if folder is None
        else map(partial(_beside, folder), ("config", "preprocessor_config"))
    )
    wrapper, inside = "", {}
    try:
        if file.name.endswith(".index.json"):
            tensors = _shards(file)
        else:
            tensors, inside, wrapper = _one(file)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file} cannot be loaded: {error}") from error
    described = config.get(KEY) or inside.get(KEY) or {}
    if not isinstance(described, dict):
        raise ValueError(
            f"{file} cannot be loaded: its description of the model is {type(described).__name__}"
        )
    return Opened(file, tensors, config, preprocessor, described, wrapper)


def _one(file: Path) -> tuple[Tensors, dict, str]:
    """-> tensors, notes inside the file, and which part of a checkpoint they are."""
    with file.open("rb") as opened:
        start = opened.read(9)
    if start[:2] == b"PK" and _is_npz(file):
        return (*read_npz(file), "")
    if start[:2] == b"PK" or start[:1] == b"\x80":
        tensors, wrapper = read_pickle(file)
        return tensors, read_comment(file), wrapper
    return (*read_safetensors(file), "")


def _beside(folder: Path, name: str) -> dict:
    file = folder / f"{name}.json"
    return read_json(file) if file.is_file() else {}


def read_json(file: Path) -> dict:
    """The object in a JSON file. Raises ValueError."""
    if file.stat().st_size > LARGEST_JSON:
        raise ValueError(
            f"{file} is larger than {LARGEST_JSON // 2**20} MiB, so it describes no model"
        )
    try:
        return _object(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is no JSON object: {error}") from error


def _object(text: bytes | str) -> dict:
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}")
    return found


# safetensors


def read_safetensors(file: Path) -> tuple[Tensors, dict]:
    """Tensors mapped from the disk, no second copy, and the description of the model in the header, if any."""
    opened = safe_open(
        file, "pt"
    )  # stays open for as long as a tensor may be asked for; it has checked the header
    with file.open("rb") as start:
        length = int.from_bytes(start.read(8), "little")
        header = json.loads(start.read(length))
    found = {}
    for name in opened.keys():  # noqa: SIM118 no dict
        part = opened.get_slice(name)
        shape, kind = tuple(part.get_shape()), part.get_dtype()
        dtype = SAFETENSORS.get(kind, kind)
        into = partial(_into, file, 8 + length + header[name]["data_offsets"][0])
        found[name] = Lazy(shape, dtype, partial(opened.get_tensor, name), into)
    notes = (opened.metadata() or {}).get(KEY)
    try:
        return found, {KEY: _object(notes)} if notes else {}
    except ValueError as error:
        raise ValueError(
            f"{file} cannot be loaded: its header's {KEY} is no JSON object: {error}"
        ) from error


def _into(file: Path, start: int, tensor: Tensor) -> None:
    """Fill a contiguous tensor with the bytes of a file from there on."""
    buffer = memoryview(tensor.view(-1).view(torch.uint8).numpy())
    with file.open("rb", buffering=0) as opened:
        opened.seek(start)
        filled = 0
        while filled < len(buffer) and (count := opened.readinto(buffer[filled:])):
            filled += count
    if filled < len(buffer):
        raise ValueError(f"{file} was cut short while it was read; load it again")


def _shards(index: Path) -> Tensors:
    """The tensors of a model in several files, which lie beside their index and nowhere else."""
    places = read_json(index).get("weight_map")
    if (
        not isinstance(places, dict)
        or not places
        or not all(isinstance(name, str) for name in places.values())
    ):
        raise ValueError(f"{index} has no weight_map from tensors to files")
    found: Tensors = {}
    for name in sorted(set(places.values())):
        if Path(name).name != name or name in ("", ".", ".."):
            raise ValueError(f"{index} names a file outside of its folder: {name!r}")
        if not (index.parent / name).is_file():
            raise ValueError(f"{index} names {name}, which is not there; download it too")
        shard, _, _ = _one(index.parent / name)
        found |= {key: lazy for key, lazy in shard.items() if places.get(key) == name}
    if absent := places.keys() - found.keys():
        raise ValueError(
            f"{index}: {len(absent)} tensors are not in their files, such as {min(absent)}"
        )
    return found


# NumPy archives


def _is_npz(file: Path) -> bool:
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
        return bool(names) and all(name.endswith(".npy") for name in names)
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error) as error:
        raise ValueError(
            f"{file} cannot be loaded: it is a damaged archive ({error}); download it again"
        ) from error


def read_npz(file: Path) -> tuple[Tensors, dict]:
    """Arrays of numbers, none unpickled; bfloat16 may be stored as two raw bytes. And the archive's comment, if vitkit's."""
    found: Tensors = {}
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            content = sum(member.file_size for member in members)
            size = file.stat().st_size
            if content > min(LARGEST, INFLATION * size + 2**28):
                raise ValueError(
                    f"it would take {content:,} bytes of memory, out of a file of {size:,}"
                )
            for member in members:
                with archive.open(member) as opened:
                    shape, dtype, fortran = _header(opened)
                    start = opened.tell()
                if dtype.kind not in "fiubV" or (
                    dtype.kind == "V" and (dtype.itemsize != 2 or dtype.fields)
                ):
                    raise ValueError(f"{member.filename} holds {dtype}, no numbers")
                if math.prod(shape) * dtype.itemsize != member.file_size - start:
                    raise ValueError(
                        f"{member.filename} says that its shape is {shape}, but holds {member.file_size} bytes"
                    )
                name = "bfloat16" if dtype.kind == "V" else dtype.newbyteorder("=").name
                read = partial(_member, file, member.filename, start, shape, dtype, fortran)
                found[member.filename.removesuffix(".npy")] = Lazy(shape, name, read)
    except DAMAGE as error:
        reason = (
            str(error) or type(error).__name__
        )  # which may quote as much of the file as a name can be long
        raise ValueError(f"{file} cannot be loaded: {reason[:500]}") from error
    return found, read_comment(file)


DAMAGE = (
    ValueError, OSError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError, struct.error, zlib.error,
    SyntaxError, tokenize.TokenError, ArithmeticError, TypeError, LookupError, AttributeError, MemoryError,
)  # fmt: skip


def _header(opened) -> tuple[tuple[int, ...], np.dtype, bool]:
    version = npy.read_magic(opened)
    reader = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if reader is None:
        raise ValueError(f"version {version} of the .npy format is unknown")
    shape, fortran, dtype = reader(opened)
    if dtype.hasobject or not all(isinstance(side, int) and side >= 0 for side in shape):
        raise ValueError(f"an array of {dtype} and shape {shape} is no weights")
    return shape, dtype, fortran


def _member(
    file: Path, name: str, start: int, shape: tuple[int, ...], dtype: np.dtype, fortran: bool
) -> Tensor:
    buffer = bytearray(math.prod(shape) * dtype.itemsize)
    try:
        with zipfile.ZipFile(file) as archive, archive.open(name) as opened:
            opened.read(start)
            view, filled = memoryview(buffer), 0
            while filled < len(buffer) and (count := opened.readinto(view[filled:])):
                filled += count
            if filled < len(buffer) or opened.read(1):
                raise ValueError(f"{name} is cut short")
    except DAMAGE as error:
        raise ValueError(f"{file} cannot be loaded: {error}; download it again") from error
    kind = np.dtype(np.uint16) if dtype.kind == "V" else dtype
    array = np.frombuffer(buffer, kind) if buffer else np.empty(0, kind)
    array = array.reshape(shape, order="F" if fortran else "C").astype(
        kind.newbyteorder("="), copy=False
    )
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype.kind == "V" else tensor


# the comment of an archive (.npz and .pth are ZIP), which nobody else reads


def read_comment(file: Path) -> dict:
    """vitkit's description of the model, if it is there."""
    if not zipfile.is_zipfile(file):
        return {}
    try:
        with zipfile.ZipFile(file) as archive:
            comment = archive.comment
        return _object(comment) if comment.startswith(b'{"vitkit"') else {}
    except DAMAGE as error:
        raise ValueError(
            f"{file} cannot be loaded: its comment is no JSON object: {error}"
        ) from error


def write_comment(file: Path, described: dict) -> None:
    """Put vitkit's description of the model there."""
    comment = json.dumps({KEY: described}, ensure_ascii=True).encode()
    if len(comment) >= 2**16:  # the longest that a zip archive takes: 21,843 names do not fit
        comment = json.dumps({KEY: {**described, "labels": None}}).encode()
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = comment


# PyTorch's own files


PARTS = (
    "state_dict_ema",
    "model_ema",
    "state_dict",
    "model",
    "teacher",
    "module",
    "net",
)  # the first that is there


def read_pickle(file: Path) -> tuple[Tensors, str]:
    """The tensors of a .pth file, by PyTorch's restricted unpickler: nothing in it runs. And which part they were."""
    try:
        # settings that training checkpoints carry are harmless; what torch warns of is no matter where a sentence follows
        with (
            torch.serialization.safe_globals([argparse.Namespace]),
            warnings.catch_warnings(action="ignore"),
        ):
            try:
                found = torch.load(file, "cpu", weights_only=True, mmap=True)
            except RuntimeError as error:
                if "mmap" not in str(error):
                    raise
                found = torch.load(file, "cpu", weights_only=True)  # the format before PyTorch 1.6
    except pickle.UnpicklingError as error:
        what = re.search(r"GLOBAL (\S+)", str(error))
        raise ValueError(
            f"{file} cannot be loaded: it holds {f'the Python object {what[1]}' if what else 'more than tensors'}, and "
            "vitkit runs no code from files; save its state dict as safetensors"
        ) from error
    except (*DAMAGE, AssertionError) as error:
        raise ValueError(
            f"{file} cannot be loaded: {str(error).splitlines()[0] if str(error) else error!r}"
        ) from error
    wrapper = ""
    while isinstance(found, dict) and not any(
        isinstance(value, Tensor) for value in found.values()
    ):
        wrapper = next((part for part in PARTS if isinstance(found.get(part), dict)), "")
        if not wrapper:
            break
        found = found[wrapper]
    if not isinstance(found, dict) or not any(
        isinstance(value, Tensor) for value in found.values()
    ):
        raise ValueError(f"{file} cannot be loaded: it holds no state dict of tensors")
    tensors = {str(name): value for name, value in found.items() if isinstance(value, Tensor)}
    return {
        name: Lazy(
            tuple(t.shape), str(t.dtype).removeprefix("torch."), partial(torch.Tensor.detach, t)
        )
        for name, t in tensors.items()
    }, wrapper
