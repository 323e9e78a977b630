"""What files of weights hold, before it is read and whoever wrote it: tensors by name and shape, JSON
within limits, and the errors of files that are damaged or made to harm.

Of other libraries' JSON the types of the fields that vitkit reads are checked, and everything else is
left alone. Which values make sense is the formats' business: here a list where a number is expected
ends in a sentence that names the field.
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

    @property
    def nbytes(self) -> int:
        """Bytes in memory; of a dtype that PyTorch does not have, as if each number took one."""
        dtype = getattr(torch, self.dtype, torch.uint8)
        return prod(self.shape) * dtype.itemsize


Tensors = dict[str, Lazy]
Parts = dict[tuple[str, ...], Tensors]
"""The keys that lead to a state dict in a checkpoint -> its tensors; () for a file that is one."""


def lazy_zeros(*shape: int) -> Lazy:
    """A tensor that a file leaves out because all of it is zero."""
    return Lazy(shape, "float32", lambda: torch.zeros(shape))


def joined(*parts: Lazy) -> Lazy:
    """Tensors that a file has one by one, joined along their first axis."""
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    return Lazy(shape, parts[0].dtype, lambda: torch.cat([part.read() for part in parts]))


def check_content(size: int, content: int) -> None:
    """Raises VitkitError for a file of `size` bytes that would take too many when it is read."""
    if content > min(LARGEST, INFLATION * size + 2**28):
        raise BadWeights(f"it would take {content:,} bytes of memory, out of a file of {size:,}")


def fill(buffer: memoryview, file) -> bool:
    """Read from an opened file until the buffer is full. Returns False if the file ends before."""
    filled = 0
    while filled < len(buffer) and (count := file.readinto(buffer[filled:])):
        filled += count
    return filled == len(buffer)


# JSON

LARGEST_JSON = 16 * 2**20  # bytes; with 21,843 class names a config.json has about one million
LONGEST_COMMENT = 2**16 - 1  # bytes; the ZIP format counts them in 16 bits
KEY = "vitkit"  # under which a file of another format carries vitkit's own description of the model
WRITTEN_WITH = "written_with"
"""In the description in a config.json: the identity of the description in the weights beside it.
Files are replaced one by one, so after a kill one may be new and the other old."""

Fields = dict[str, "tuple | Fields"]
"""Names of fields -> what they hold, and its types."""

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
    """The object in a JSON file. Raises VitkitError."""
    if file.stat().st_size > LARGEST_JSON:
        raise BadWeights(
            f"{file} is larger than {LARGEST_JSON // 2**20} MiB, so it describes no model"
        )
    try:
        return parse_object(file.read_bytes())
    except ValueError as error:
        raise BadWeights(f"{file} is not a JSON object: {error}") from error


def parse_object(text: bytes | str) -> dict:
    """The object in JSON. Raises VitkitError."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise BadWeights(f"it holds a {type(value).__name__}")
    return value


def identity(description: dict) -> str:
    """Identifies a description, whether it was read or will be written."""
    text = json.dumps(description, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_fields(values: dict, fields: Fields, within: str = "") -> None:
    """Raises VitkitError for a field of another type. A field that is absent or null has none."""
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
    """Raises VitkitError for a value of another type."""
    words, types = kind
    right = isinstance(value, types) and (kind == SWITCH or not isinstance(value, bool))
    if kind in (NUMBERS, OF_CHANNELS) and isinstance(value, list):
        right = all(_is_finite(number) for number in value)
    elif kind in (NUMBER, OF_CHANNELS) and right:
        right = _is_finite(value)
    if not right:
        raise BadWeights(f"{name} is {repr(value)[:100]}; expected {words}")


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 and isfinite(value)


# vitkit's description in the comment of a ZIP archive, which .npz and .pth files are. NumPy and PyTorch
# do not read it.


def read_comment(file: Path) -> dict:
    """vitkit's description of the model; {} without one. Raises VitkitError for a damaged file."""
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
    """The comment that holds vitkit's description of a model.

    "labels" is null there if the classes are only numbered, for the numbers of ImageNet-21k's
    21,843 classes would not fit. Raises VitkitError if real names do not.
    """
    labels = description["labels"]
    if tuple(labels) == numbered(len(labels)):
        description = {**description, "labels": None}
    comment = json.dumps({KEY: description}, ensure_ascii=True).encode()
    if len(comment) > LONGEST_COMMENT:
        raise BadWeights(
            f"the names of its {len(labels):,} classes take {len(comment):,} bytes, and the comment "
            f"of a .npz, .pth or .pt file has room for {LONGEST_COMMENT:,}; write a .safetensors "
            "file or a directory, or number the classes (labels of a Classifier)"
        )
    return comment


def write_comment(file: Path, comment: bytes) -> None:
    """Write this comment into an archive."""
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = comment
