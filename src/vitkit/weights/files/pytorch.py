"""PyTorch's own files (.pth, .pt, .bin), read by its restricted unpickler: nothing in them is executed.

torch maps the records of an archive from the disk without checks: it would read compressed data as
values, and compares no checksums. So records are checked here first.
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

MOST_VALUES = 10_000  # of a dictionary that are searched for an error message
DEEPEST = 8  # nested dictionaries, one of which may contain itself
# Names of an optimiser's states, which may have a tensor for each parameter, under the parameter's name
OPTIMISERS = re.compile(
    r"(?i)opt|optims?|.*optimi[sz]er.*|.*sched.*|.*scaler.*|grads?|gradients?"
    r"|(max_)?exp_(avg|inf)(_\w+)?|(square|grad|acc)_(avg|delta)|momentum_buffers?|moments?(_\w+)?|adam_\w+"
)
# Keys under which trainers store the architecture: of the settings, and of the name in them
SETTINGS = ("args", "config", "cfg", "hyper_parameters", "hparams")
ARCHITECTURE = ("arch", "model", "model_name")
LONGEST_NAME = 200  # characters of an architecture's name
HEADER = 30  # bytes before a record's name; the last four are the lengths of the name and the extra field
ENCRYPTED = 1  # bit of a record's flags
# A pickled call of bytearray(n), which torch's restricted unpickler executes: n bytes of memory for ten
# bytes of file. No file of weights contains one.
BYTEARRAY = b"\nbytearray\n"
SAVE = "save the model's state dict alone: torch.save(model.state_dict(), FILE)"


# Objects beside the weights in users' checkpoints, which are not read. A pickle that names one of these
# gets an `_Unread` instead, so none of their code is executed.


class _Unread:
    """Replaces an object that is not a weight, such as a path or the best accuracy."""

    def __init__(self, *arguments: object):
        pass

    def __setstate__(self, state: object) -> None:
        pass


class _UnreadArray(_Unread):
    """Replaces an array of NumPy, because weights must be tensors."""


class _UnreadDtype(_Unread):
    """Replaces a dtype of NumPy: one of numbers, times or text, but never of objects."""

    def __init__(self, name: str, *arguments: object):
        if not isinstance(name, str) or not DTYPES.fullmatch(name):
            raise BadWeights(
                f"it holds a NumPy dtype {str(name)[:100]!r}, which is not one of numbers; {SAVE}"
            )


def _plain_dict(factory: object = None) -> dict:
    """Replaces a defaultdict, which the unpickler fills afterwards."""
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
    """Every state dict in a file except those of optimisers, outer ones first; and the file's name of the
    architecture, "" if there is none. Raises VitkitError if there is no state dict."""
    checkpoint = _unpickle(file)
    parts = {}
    try:
        for keys, state in _state_dicts(checkpoint):
            tensors = {}
            for name, value in state.items():
                if isinstance(value, Tensor):
                    dtype = str(value.dtype).removeprefix("torch.")
                    _check_storage(printable_name(str(name)), value)
                    # detach, because a checkpoint may contain parameters and other tensors that require gradients
                    tensors[str(name)] = Lazy(tuple(value.shape), dtype, read=value.detach)
            parts[keys] = tensors
            content = sum(lazy.nbytes for lazy in tensors.values())
            check_content(file.stat().st_size, content)
    except DAMAGE as error:
        raise BadWeights(f"{file} cannot be loaded: {error}") from error
    if not parts:
        raise BadWeights(
            f"{file} cannot be loaded: it holds {_describe_content(checkpoint)}; {SAVE}"
        )
    return parts, _architecture(checkpoint)


def _architecture(checkpoint: object) -> str:
    """The name of the architecture, as in timm's {"arch": ..., "args": Namespace(model=...)} or in the
    settings of other trainers."""
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
    """Every dictionary that contains a tensor, and the keys that lead to it; outer ones first. Lists are
    not searched."""
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


def _describe_content(checkpoint: object) -> str:
    """The contents of a file without a state dict, for an error message."""
    if not isinstance(checkpoint, dict):
        return f"a {type(checkpoint).__name__}, no dictionary of tensors by name"
    level = [checkpoint]
    for _ in range(DEEPEST):
        values = [value for each in level for value in each.values()][:MOST_VALUES]
        if any(isinstance(value, _UnreadArray) for value in values):
            return "NumPy arrays, not tensors (torch.from_numpy makes one of each)"
        level = [value for value in values if isinstance(value, dict)]
    keys = some([printable_name(str(key)) for key in checkpoint])
    return f"a dictionary without a model's tensors ({keys}){_place_of_tensors(checkpoint)}"


def _place_of_tensors(checkpoint: dict) -> str:
    """Where there are tensors that were not searched for state dicts, as the end of a sentence; "" if there
    are none."""
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
            inner += [(reason or _reason_skipped(key), each) for key, each in children]
        level = inner
    return ""


def _reason_skipped(key: object) -> str:
    """The reason why the value of a key was not searched; "" if it was."""
    called = printable_name(str(key))
    if not isinstance(key, str):
        return f"under {called}, which is not a string"
    if OPTIMISERS.fullmatch(key):
        return f"under {called}, which is the name of an optimiser's state"
    return ""


def _unpickle(file: Path) -> object:
    """Unpickle a file. Raises VitkitError if it is damaged or contains more than tensors and values."""
    try:
        # Warnings of torch are replaced by the error messages below
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
    """torch.load, mapped from the disk, except in the format before PyTorch 1.6, which cannot be mapped."""
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
    """Raise VitkitError for a tensor of another library, such as a quantised one, and for one that is larger than
    its storage in the file: with a stride of 0, an expanded tensor of a few bytes may have any size."""
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        raise BadWeights(
            f"{name} is of type {type(tensor).__name__}, not plain numbers; save the state dict of the model before it "
            "is quantised or otherwise converted"
        )
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise BadWeights(
            f"{name} is a {tensor.layout} tensor on {tensor.device}, not plain numbers"
        )
    stored = tensor.untyped_storage().nbytes()
    if tensor.nbytes > stored:
        raise BadWeights(
            f"{name} has the shape {tuple(tensor.shape)}, but the file holds {stored:,} bytes of "
            "it; save it again after .contiguous()"
        )


def _check_records(file: Path) -> None:
    """Raise VitkitError for an archive with records that are compressed, damaged or duplicate.

    Every byte is read for the checksums. An archive without any checksums is accepted, because torch can
    be configured to write none.
    """
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
        if len({record.filename for record in records}) < len(records):
            raise BadWeights("it holds two records of the same name")
        if any(record.filename.endswith("/constants.pkl") for record in records):
            raise BadWeights(
                "it is a TorchScript program, and vitkit runs none; save its weights: "
                "torch.save(torch.jit.load(FILE).state_dict(), OTHER_FILE)"
            )
        for record in records:
            if record.compress_type != zipfile.ZIP_STORED or record.flag_bits & ENCRYPTED:
                raise BadWeights(
                    f"its record {printable_name(record.filename)} is compressed or encrypted, and PyTorch "
                    "would read that as the values themselves; save it again with torch.save"
                )
        has_checksums = any(record.CRC for record in records)
        damaged = archive.testzip() if has_checksums else None
        if damaged:
            raise BadWeights(
                f"its record {printable_name(damaged)} is damaged: its checksum differs; download it again"
            )
        for record in records:
            if record.filename.endswith(".pkl"):
                _check_pickle(_bytes_of(file, record))


def _bytes_of(file: Path, record: zipfile.ZipInfo) -> bytes:
    """The bytes of an uncompressed record, whatever its checksum."""
    with file.open("rb") as opened:
        opened.seek(record.header_offset)
        header = opened.read(HEADER)
        name_length, extra_length = struct.unpack("<HH", header[-4:])
        opened.seek(name_length + extra_length, os.SEEK_CUR)
        return opened.read(record.file_size)


def _check_pickle(data: bytes) -> None:
    """Raise VitkitError for a pickle that takes more memory than its size."""
    if BYTEARRAY in data:
        raise BadWeights("it holds the Python object bytearray, which is not part of a model")
