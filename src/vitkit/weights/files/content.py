"""The contents of files of weights before tensors are read: tensors by name and shape, JSON within limits,
and the errors of damaged and malicious files.

Of other libraries' JSON only the types of the fields that vitkit reads are checked. Which values are valid
is decided by the formats. A list where a number is expected raises an error that names the field.
"""

import hashlib
import json
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from math import isfinite, prod
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitkit.system.errors import BadWeights
from vitkit.system.storage.files import parse_json
from vitkit.weights.outputs import numbered

LARGEST = 64 * 2**30  # most bytes of a file's content; ViT-e, the largest model, has 16 GiB
INFLATION = 100  # largest accepted ratio of content to file size, as weights hardly compress
FLOATS = ("float16", "bfloat16", "float32", "float64")
# Exceptions of the readers of ZIP, .npy, pickle and JSON for damaged or malicious files
DAMAGE = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError,
    NotImplementedError, MemoryError, OSError, EOFError, SyntaxError, tokenize.TokenError,
    zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip


class Lazy(NamedTuple):
    """A tensor in a file that has not been read yet."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Tensor]
    """The tensor, mapped from the file where that is possible."""
    read_into: Callable[[Tensor], None] | None = None
    """Reads the values into a given contiguous tensor of this shape and dtype (safetensors), see
    `rules._read_tensors`. None for files that do not support it: archives, which `read` unpacks, and
    PyTorch's files, which torch itself maps."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory; one byte for each value if PyTorch does not have the dtype."""
        dtype = getattr(torch, self.dtype, torch.uint8)
        return prod(self.shape) * dtype.itemsize


Tensors = dict[str, Lazy]
Parts = dict[tuple[str, ...], Tensors]
"""Keys that lead to a state dict in a checkpoint -> its tensors; () if the file itself is one."""


def lazy_zeros(*shape: int) -> Lazy:
    """A tensor that a file omits because it is all zeros."""
    return Lazy(shape, "float32", lambda: torch.zeros(shape))


def joined(*parts: Lazy) -> Lazy:
    """Concatenate tensors of a file along their first axis."""
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    return Lazy(shape, parts[0].dtype, lambda: torch.cat([part.read() for part in parts]))


def check_content(size: int, content: int) -> None:
    """Raise VitkitError if reading a file of `size` bytes would take too much memory."""
    if content > min(LARGEST, INFLATION * size + 2**28):
        raise BadWeights(f"it would take {content:,} bytes of memory, out of a file of {size:,}")


def fill(buffer: memoryview, file) -> bool:
    """Read from an open file until the buffer is full. Returns False if the file ends earlier."""
    filled = 0
    while filled < len(buffer) and (count := file.readinto(buffer[filled:])):
        filled += count
    return filled == len(buffer)


# JSON

LARGEST_JSON = 16 * 2**20  # bytes; a config.json with 21,843 class names has about one million
LONGEST_COMMENT = 2**16 - 1  # bytes; the ZIP format stores the length in 16 bits
KEY = "vitkit"  # of vitkit's own description of the model in a file of another format
WRITTEN_WITH = "written_with"
"""Key in the description of a config.json: the identity of the description in the weights beside it.
Files are replaced one by one, so after a killed process one may be new and the other old."""

Fields = dict[str, "tuple | Fields"]
"""Name of a field -> (description of its values, its types), or the fields of an object."""

NUMBER = ("a finite number", (int, float))
WHOLE = ("a whole number", int)
TEXT = ("a text", str)
CHOICE = ("a number or a name", (int, str))
NUMBERS = ("a list of finite numbers", list)
OF_CHANNELS = ("a finite number, or a list of them", (int, float, list))
OBJECT = ("an object", dict)
SIDES = ("pixels: a whole number, a list of them, or an object", (int, list, dict))
SWITCH = ("true or false", (bool, int))

# config.json, of Transformers and of timm
TIMM: Fields = {
    "crop_pct": NUMBER, "crop_mode": TEXT, "interpolation": TEXT, "mean": NUMBERS, "std": NUMBERS,
}  # fmt: skip
ARGUMENTS: Fields = {
    "img_size": SIDES,
    "num_heads": WHOLE,
    "act_layer": TEXT,
    "init_values": NUMBER,
}
ENCODER: Fields = {
    "model_type": TEXT, "hidden_act": TEXT,
    "hidden_size": WHOLE, "num_hidden_layers": WHOLE, "intermediate_size": WHOLE,
    "num_attention_heads": WHOLE, "num_channels": WHOLE, "image_size": SIDES, "patch_size": SIDES,
    "num_patches": WHOLE, "layer_norm_eps": NUMBER,
}  # fmt: skip
CONFIG: Fields = {
    **ENCODER, "vision_config": ENCODER, "pooler_act": TEXT, "problem_type": TEXT,
    "hidden_dropout_prob": NUMBER, "attention_probs_dropout_prob": NUMBER, "qkv_bias": SWITCH,
    "architecture": TEXT, "global_pool": TEXT, "model_args": ARGUMENTS, "pretrained_cfg": TIMM,
    **TIMM,
}  # fmt: skip
# preprocessor_config.json, of Transformers
PREPROCESSOR: Fields = {
    "image_processor_type": TEXT, "feature_extractor_type": TEXT, "size": SIDES,
    "crop_size": SIDES, "resample": CHOICE, "rescale_factor": NUMBER, "image_mean": OF_CHANNELS,
    "image_std": OF_CHANNELS, "do_resize": SWITCH, "do_center_crop": SWITCH, "do_rescale": SWITCH,
    "do_normalize": SWITCH, "default_to_square": SWITCH,
    "crop_pct": NUMBER, "do_pad": SWITCH, "pad_size": SIDES,
    "patch_size": SIDES, "max_num_patches": WHOLE,
}  # fmt: skip


def read_json(file: Path) -> dict:
    """Read the object in a JSON file. Raises VitkitError."""
    if file.stat().st_size > LARGEST_JSON:
        raise BadWeights(
            f"{file} is larger than {LARGEST_JSON // 2**20} MiB, so it does not describe a model"
        )
    try:
        return parse_object(file.read_bytes())
    except ValueError as error:
        raise BadWeights(f"{file} is not a JSON object: {error}") from error


def parse_object(text: bytes | str) -> dict:
    """Parse an object in JSON. Raises VitkitError."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise BadWeights(f"it holds a {type(value).__name__}")
    return value


def identity(description: dict) -> str:
    """A digest of a description, equal before it is written and after it is read."""
    text = json.dumps(description, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_fields(values: dict, fields: Fields, within: str = "") -> None:
    """Raise VitkitError for a field of a wrong type. Absent and null fields are accepted."""
    for name, kind in fields.items():
        value = values.get(name)
        if value is None:
            continue
        if isinstance(kind, dict):
            _check(within + name, value, OBJECT)
            check_fields(value, kind, f"{within}{name}.")
        else:
            _check(within + name, value, kind)


def _check(name: str, value: object, kind: tuple) -> None:
    """Raise VitkitError for a value of a wrong type."""
    words, types = kind
    right = isinstance(value, types) and (kind == SWITCH or not isinstance(value, bool))
    if kind in (NUMBERS, OF_CHANNELS) and isinstance(value, list):
        right = all(_is_finite(number) for number in value)
    elif kind in (NUMBER, OF_CHANNELS) and right:
        right = _is_finite(value)
    if not right:
        raise BadWeights(f"{name} is {repr(value)[:100]}; expected {words}")


def _is_finite(value: object) -> bool:
    """Whether a value is a finite number, and not a boolean."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 and isfinite(value)


# vitkit's description in the comment of a ZIP archive (.npz and .pth files), which NumPy and PyTorch
# ignore


def read_comment(file: Path) -> dict:
    """vitkit's description of the model in an archive; {} without one. Raises VitkitError for a damaged
    file."""
    if not zipfile.is_zipfile(file):
        return {}
    try:
        with zipfile.ZipFile(file) as archive:
            comment = archive.comment
        if not comment.startswith(b'{"vitkit"'):
            return {}
        return parse_object(comment)[KEY]
    except DAMAGE as error:
        raise BadWeights(
            f"{file} cannot be loaded: its comment is not a JSON object: {error}"
        ) from error


def comment_of(description: dict) -> bytes:
    """The comment with vitkit's description of a model.

    "labels" is null if the names of the classes are their numbers, because the 21,843 numbers of
    ImageNet-21k would not fit. Raises VitkitError if other names do not fit.
    """
    labels = description["labels"]
    if tuple(labels) == numbered(len(labels)):
        description = {**description, "labels": None}
    comment = json.dumps({KEY: description}, ensure_ascii=True).encode()
    if len(comment) > LONGEST_COMMENT:
        raise BadWeights(
            f"the names of its {len(labels):,} classes take {len(comment):,} bytes, but the comment "
            f"of a .npz, .pth or .pt file has room for {LONGEST_COMMENT:,}; write a .safetensors "
            "file or a directory, or number the classes (labels of a Classifier)"
        )
    return comment


def write_comment(file: Path, comment: bytes) -> None:
    """Write the comment of an archive."""
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = comment
