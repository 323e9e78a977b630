"""safetensors: tensors mapped from the disk, with vitkit's description of the model in the header."""

import json
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitkit.system.errors import BadWeights, Unavailable
from vitkit.system.storage.files import give_usual_permissions, parse_json, what_came_instead
from vitkit.weights.files.content import KEY, Lazy, Tensors, fill, parse_object

DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}


def read_safetensors(file: Path) -> tuple[Tensors, dict]:
    """The tensors, mapped and not copied, and the description of the model in the header ({} without
    one).

    Raises SafetensorError for a damaged file, VitkitError for a malformed description, and for a file
    that is something else, fetched by a failed download or clone.
    """
    if instead := what_came_instead(file):
        raise BadWeights(f"{file} is {instead}")

    # The library checks the header. `handle` stays open while tensors may be read
    handle = safe_open(file, "pt")
    offsets = _offsets(file)
    tensors = {}
    for name in handle.keys():  # noqa: SIM118 it is not a dict
        part = handle.get_slice(name)
        dtype = part.get_dtype()
        tensors[name] = Lazy(
            shape=tuple(part.get_shape()),
            dtype=DTYPES.get(dtype, dtype),
            read=partial(handle.get_tensor, name),
            read_into=partial(_read_into, file, offsets[name]),
        )

    # vitkit's description
    description = (handle.metadata() or {}).get(KEY)
    if not description:
        return tensors, {}
    try:
        return tensors, parse_object(description)
    except ValueError as error:
        raise BadWeights(
            f"{file} cannot be loaded: its header's {KEY} is not a JSON object: {error}"
        ) from error


def _offsets(file: Path) -> dict[str, int]:
    """The offset of each tensor's values in the file, in bytes.

    The library does not expose it, but `_read_into` needs it. A file consists of 8 bytes with the length
    of the header, the header, and the values. The offsets in the header are relative to the values.
    """
    with file.open("rb") as start:
        length = int.from_bytes(start.read(8), "little")
        header = parse_json(start.read(length))
    header.pop("__metadata__", None)
    return {name: 8 + length + entry["data_offsets"][0] for name, entry in header.items()}


def _read_into(file: Path, begin: int, tensor: Tensor) -> None:
    """Fill a contiguous tensor with the bytes of a file from `begin` on."""
    buffer = tensor.view(-1).view(torch.uint8).numpy().data
    with file.open("rb", buffering=0) as opened:
        opened.seek(begin)
        if not fill(buffer, opened):
            raise BadWeights(f"{file.name} was cut short while it was read; load it again")


def write_safetensors(
    file: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file. Raises OSError, also in place of the library's own errors."""
    try:
        save_file(tensors, file, metadata={"format": "pt", **(metadata or {})})
    except SafetensorError as error:
        raise Unavailable(f"could not write {file}: {error}") from error
    _sort_metadata(file)
    give_usual_permissions(file)


def _sort_metadata(file: Path) -> None:
    """Sort the header's metadata, so that equal models are equal files; the library's order varies."""
    with file.open("r+b") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = parse_json(opened.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= length:  # it may be longer, as the library may escape less
            opened.seek(8)
            opened.write(text.ljust(length))
