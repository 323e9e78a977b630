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
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from vitkit.system.console.text import printable, printable_name, some
from vitkit.system.errors import BadWeights
from vitkit.weights.files.content import DAMAGE, Lazy, Parts, check_content

MOST_VALUES = 10_000  # of a dictionary that a message describes
DEEPEST = 8  # dictionaries within dictionaries, of which one may hold itself
# What an optimiser keeps: some have a tensor for each parameter, by the parameters' names
OPTIMISERS = re.compile(
    r"(?i)opt|optims?|.*optimi[sz]er.*|.*sched.*|.*scaler.*|grads?|gradients?"
    r"|(max_)?exp_(avg|inf)(_\w+)?|(square|grad|acc)_(avg|delta)|momentum_buffers?|moments?(_\w+)?|adam_\w+"
)
# Where trainers write the name of the architecture, and what they call it there
SETTINGS = ("args", "config", "cfg", "hyper_parameters", "hparams")
ARCHITECTURE = ("arch", "model", "model_name")
LONGEST_NAME = 200  # characters of an architecture's name
HEADER = 30  # bytes before a record's name; the last four are the lengths of what follows
ENCRYPTED = 1  # bit of a record's flags
# How a pickle spells bytearray(n), which torch's restricted unpickler calls: n bytes of memory for
# ten bytes of file. No file of weights has one.
BYTEARRAY = b"\nbytearray\n"
SAVE = "save the model's state dict alone: torch.save(model.state_dict(), FILE)"


# What stands beside the weights in checkpoints of people's own training, and is not read: where a
# pickle names one of these, an `_Unread` is made, so none of their code runs.


class _Unread:
    """In place of an object that says nothing about weights, such as a path or the best accuracy."""

    def __init__(self, *arguments: object):
        pass

    def __setstate__(self, state: object) -> None:
        pass


class _UnreadArray(_Unread):
    """In place of an array of NumPy: weights have to be tensors."""


class _UnreadDtype(_Unread):
    """In place of a dtype of NumPy: that of numbers, times or texts, never of objects."""

    def __init__(self, name: str, *arguments: object):
        if not isinstance(name, str) or not DTYPES.fullmatch(name):
            raise BadWeights(
                f"it holds a NumPy dtype {str(name)[:100]!r}, which is not one of numbers; {SAVE}"
            )


def _plain_dict(factory: object = None) -> dict:
    """In place of a defaultdict, which is filled afterwards."""
    return {}


DTYPES = re.compile(r"[biufcSUVmM]\d{1,6}")
NUMPY = ("numpy._core.multiarray", "numpy.core.multiarray")  # since NumPy 2, and before
ALLOWED: list[Callable | tuple[Callable, str]] = [
    (_UnreadDtype, "numpy.dtype"),
    (_UnreadArray, "numpy.ndarray"),
    *[(_Unread, f"{module}.scalar") for module in NUMPY],
    *[(_UnreadArray, f"{module}._reconstruct") for module in NUMPY],
    *[
        (_Unread, f"{module}.{system}Path")
        for module in ("pathlib", "pathlib._local")
        for system in ("Posix", "Windows", "PurePosix", "PureWindows")
    ],
    *[(_Unread, f"datetime.{name}") for name in ("datetime", "date", "timedelta")],
    *[(_Unread, f"builtins.{name}") for name in ("list", "int", "float", "dict", "str")],
    (_plain_dict, "collections.defaultdict"),
    argparse.Namespace,
]


def read_pickle(file: Path) -> tuple[Parts, str]:
    """Every state dict in a file but those of optimisers, outer ones first; and what the file calls the
    architecture, "" if it does not say. Raises VitkitError if there is no state dict."""
    checkpoint = _unpickle(file)
    parts = {}
    try:
        for keys, state in _state_dicts(checkpoint):
            tensors = {}
            for name, value in state.items():
                if isinstance(value, Tensor):
                    dtype = str(value.dtype).removeprefix("torch.")
                    _check_storage(printable_name(str(name)), value)
                    # detach: a checkpoint may hold a Parameter, or a tensor that wants a gradient
                    tensors[str(name)] = Lazy(tuple(value.shape), dtype, read=value.detach)
            parts[keys] = tensors
            content = sum(lazy.nbytes for lazy in tensors.values())
            check_content(file.stat().st_size, content)
    except DAMAGE as error:
        raise BadWeights(f"{file} cannot be loaded: {error}") from error
    if not parts:
        raise BadWeights(f"{file} cannot be loaded: it holds {_described(checkpoint)}; {SAVE}")
    return parts, _architecture(checkpoint)


def _architecture(checkpoint: object) -> str:
    """The name of the architecture, as trainers write it: timm's {"arch": ..., "args": Namespace(model=...)},
    or among the settings of others."""
    if not isinstance(checkpoint, dict):
        return ""
    places = [checkpoint]
    for key in SETTINGS:
        place = checkpoint.get(key)
        if isinstance(place, argparse.Namespace):
            place = vars(place)
        if isinstance(place, dict):
            places.append(place)
    for place in places:
        for key in ARCHITECTURE:
            name = place.get(key)
            if isinstance(name, str) and name and len(name) <= LONGEST_NAME:
                return name
    return ""


def _state_dicts(checkpoint: object) -> Iterator[tuple[tuple[str, ...], dict]]:
    """Every dictionary with a tensor in it, and the keys that lead to it; outer ones first. Lists are
    not looked into."""
    level: list[tuple[tuple[str, ...], object]] = [((), checkpoint)]
    seen = set()
    for _ in range(DEEPEST):
        inner: list[tuple[tuple[str, ...], object]] = []
        for keys, value in level:
            if not isinstance(value, dict) or id(value) in seen:
                continue
            seen.add(id(value))
            if any(isinstance(each, Tensor) for each in value.values()):
                yield keys, value
            for key, each in value.items():
                if isinstance(key, str) and not OPTIMISERS.fullmatch(key):
                    inner.append(((*keys, key), each))
        level = inner


def _described(checkpoint: object) -> str:
    """What a file holds that has no state dict in it, for a message."""
    if not isinstance(checkpoint, dict):
        return f"a {type(checkpoint).__name__}, no dictionary of tensors by name"
    level = [checkpoint]
    for _ in range(DEEPEST):
        values = [value for each in level for value in each.values()][:MOST_VALUES]
        if any(isinstance(value, _UnreadArray) for value in values):
            return "NumPy arrays, not tensors (torch.from_numpy makes one of each)"
        level = [value for value in values if isinstance(value, dict)]
    keys = some([printable_name(str(key)) for key in checkpoint])
    return f"a dictionary without a model's tensors ({keys}){_not_looked_into(checkpoint)}"


def _not_looked_into(checkpoint: dict) -> str:
    """Where tensors are that no state dict was looked for in, as the rest of a sentence; "" if there are
    none."""
    level: list[tuple[str, object]] = [("", checkpoint)]
    seen = set()
    for depth in range(2 * DEEPEST):
        inner = []
        for reason, value in level[:MOST_VALUES]:
            if isinstance(value, Tensor) and reason:
                return f"; there are tensors {reason}"
            if not isinstance(value, dict | list | tuple) or id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, dict):
                children = list(value.items())
            else:
                children = [("", each) for each in value]
                reason = reason or "in a list"
            if depth >= DEEPEST:
                reason = reason or f"more than {DEEPEST} dictionaries deep"
            inner += [(reason or _why_not(key), each) for key, each in children]
        level = inner
    return ""


def _why_not(key: object) -> str:
    """Why what is under this key was not looked into; "" if it was."""
    called = printable_name(str(key))
    if not isinstance(key, str):
        return f"under {called}, which is no text"
    if OPTIMISERS.fullmatch(key):
        return f"under {called}, which is the name of an optimiser's state"
    return ""


def _unpickle(file: Path) -> object:
    """What a file holds. Raises VitkitError if it is damaged or holds more than tensors and values."""
    try:
        # Whatever torch warns of becomes our own sentence below
        with (
            torch.serialization.safe_globals(ALLOWED),
            warnings.catch_warnings(action="ignore"),
        ):
            return _load(file)
    except pickle.UnpicklingError as error:
        match = re.search(r"GLOBAL (\S+)", str(error))
        content = "more than tensors"
        if match:
            content = f"the Python object {printable_name(match[1])}"
        raise BadWeights(
            f"{file} cannot be loaded: it holds {content}, and vitkit runs no code from files; {SAVE}"
        ) from error
    except (*DAMAGE, AssertionError) as error:
        reason = repr(error)
        if str(error):
            reason = str(error).splitlines()[0]
        raise BadWeights(f"{file} cannot be loaded: {printable(reason)}") from error


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


def _check_storage(name: str, tensor: Tensor) -> None:
    """Raises VitkitError for a tensor whose numbers are not all in the file: expanded, with a stride
    of 0, a few bytes may claim to be any number of them."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise BadWeights(
            f"{name} is a {tensor.layout} tensor on {tensor.device}, not plain numbers"
        )
    stored = tensor.untyped_storage().nbytes()
    if tensor.nbytes > stored:
        raise BadWeights(
            f"{name} has the shape {tuple(tensor.shape)}, and the file holds {stored:,} bytes of "
            "it; save it again after .contiguous()"
        )


def _check_records(file: Path) -> None:
    """Raises VitkitError for an archive whose records are compressed, damaged or there twice.

    Every byte is read for it. Archives without any checksum are believed, for torch can be told to
    write none.
    """
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
        if len({record.filename for record in records}) < len(records):
            raise BadWeights("it holds two records of the same name")
        if any(record.filename.endswith("/constants.pkl") for record in records):
            raise BadWeights(
                "it is a program of TorchScript, and vitkit runs none; save its weights: "
                "torch.save(torch.jit.load(FILE).state_dict(), OTHER_FILE)"
            )
        for record in records:
            if record.compress_type != zipfile.ZIP_STORED or record.flag_bits & ENCRYPTED:
                raise BadWeights(
                    f"its record {printable_name(record.filename)} is compressed or encrypted, and PyTorch "
                    "would take that for the numbers themselves; save it again with torch.save"
                )
        has_checksums = any(record.CRC for record in records)
        damaged = archive.testzip() if has_checksums else None
        if damaged:
            raise BadWeights(
                f"its record {printable_name(damaged)} is damaged: its checksum is another; download it again"
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
    """Raises VitkitError for a pickle that takes more memory than it has bytes."""
    if BYTEARRAY in data:
        raise BadWeights("it holds the Python object bytearray, which is no part of a model")
