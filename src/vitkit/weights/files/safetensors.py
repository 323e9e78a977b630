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

READ = "give a safetensors file, a state dict of PyTorch, or an .npz of Google's"
OTHERS = {
    b"\x89HDF": "an HDF5 file, such as Keras writes",
    b"GGUF": "a GGUF file, as of llama.cpp",
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG": "a PNG image",
    b"%PDF": "a PDF document",
    b"\x1f\x8b": "a compressed file (gzip)",
}
"""Kinds of other files, by their first bytes."""
LONGEST_START = (
    9  # bytes that are read to recognise a file: the length of a safetensors header, and its brace
)
DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}


def read_safetensors(file: Path) -> tuple[Tensors, dict]:
    """The tensors, mapped and not copied, and the description of the model in the header ({} without
    one).

    Raises VitkitError for a damaged file, a malformed description, and for a file that is something else, such as
    one fetched by a failed download or clone.
    """
    if instead := what_came_instead(file):
        raise BadWeights(f"{file} is {instead}")

    # The library checks the header. `handle` stays open while tensors may be read
    try:
        handle = safe_open(file, "pt")
    except SafetensorError as error:
        raise BadWeights(f"{file} cannot be loaded: {_what_it_is(file, str(error))}") from error
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


def _what_it_is(file: Path, reason: str) -> str:
    """What a file is that the library cannot read, by its first bytes, and the remedy. reason: the library's."""
    with file.open("rb") as opened:
        start = opened.read(LONGEST_START)
    if not start:
        return "it is empty; save or download it again"
    for beginning, kind in OTHERS.items():
        if start.startswith(beginning):
            return f"it is {kind}, not a file of weights that vitkit reads; {READ}"
    if start[8:] == b"{" or file.suffix == ".safetensors":
        return f"it is a damaged safetensors file ({reason}); save or download it again"
    return f"it is not a file of weights that vitkit reads, or it is damaged; {READ}"


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
