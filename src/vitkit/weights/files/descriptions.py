"""JSON that describes a model: in files of other libraries, and in the weights themselves.

Of other libraries' files the types of the fields that vitkit reads are checked, and everything else is
left alone. Which values make sense is the formats' business: here a list where a number is expected
ends in a sentence that names the field.
"""

import hashlib
import json
import zipfile
from math import isfinite
from pathlib import Path

from vitkit.weights.files.tensors import DAMAGE
from vitkit.weights.outputs import numbered

LARGEST_JSON = 16 * 2**20  # bytes; with 21,843 class names a config.json has about one million
LONGEST_COMMENT = 2**16 - 1  # bytes; the ZIP format counts them in 16 bits
KEY = "vitkit"  # under which a file of another format carries vitkit's own description of the model
WRITTEN_WITH = "written_with"
"""In the description in a config.json: the identity of the description in the weights beside it.
Files are replaced one by one, so after a kill one may be new and the other old."""

Fields = dict[str, "str | Fields"]

NUMBER = "a finite number"
WHOLE = "a whole number"
TEXT = "a text"
CHOICE = "a number or a name"
NUMBERS = "a list of finite numbers"
OBJECT = "an object"
SIDES = "pixels: a whole number, a list of them, or an object"
SWITCH = "true or false"
KINDS = {
    NUMBER: (int, float), WHOLE: int, TEXT: str, CHOICE: (int, str), NUMBERS: list,
    OBJECT: dict, SIDES: (int, list, dict), SWITCH: (bool, int),
}  # fmt: skip

# config.json, of Transformers and of timm
TIMM = {
    "crop_pct": NUMBER, "crop_mode": TEXT, "interpolation": TEXT, "mean": NUMBERS, "std": NUMBERS,
}  # fmt: skip
ARGUMENTS = {"img_size": SIDES, "num_heads": WHOLE, "act_layer": TEXT, "init_values": NUMBER}
CONFIG: Fields = {
    "model_type": TEXT, "hidden_act": TEXT, "pooler_act": TEXT, "problem_type": TEXT,
    "hidden_size": WHOLE, "num_hidden_layers": WHOLE, "intermediate_size": WHOLE,
    "num_attention_heads": WHOLE, "num_channels": WHOLE, "image_size": SIDES, "patch_size": SIDES,
    "layer_norm_eps": NUMBER, "hidden_dropout_prob": NUMBER,
    "attention_probs_dropout_prob": NUMBER, "qkv_bias": SWITCH,
    "architecture": TEXT, "global_pool": TEXT, "model_args": ARGUMENTS, "pretrained_cfg": TIMM,
    **TIMM,
}  # fmt: skip
# preprocessor_config.json, of Transformers
PREPROCESSOR: Fields = {
    "image_processor_type": TEXT, "feature_extractor_type": TEXT, "size": SIDES,
    "crop_size": SIDES, "resample": CHOICE, "rescale_factor": NUMBER, "image_mean": NUMBERS,
    "image_std": NUMBERS, "do_resize": SWITCH, "do_center_crop": SWITCH, "do_rescale": SWITCH,
    "do_normalize": SWITCH, "default_to_square": SWITCH,
}  # fmt: skip


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


def identity(description: dict) -> str:
    """What a description is recognised by, whether it was read or is to be written."""
    text = json.dumps(description, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_fields(values: dict, fields: Fields, within: str = "") -> None:
    """Raises ValueError for a field of another type. A field that is absent or null has none."""
    for name, kind in fields.items():
        value = values.get(name)
        if value is None:
            continue
        if isinstance(kind, dict):
            _check(within + name, value, OBJECT)
            check_fields(value, kind, f"{within}{name}.")
        else:
            _check(within + name, value, kind)


def _check(name: str, value: object, kind: str) -> None:
    """Raises ValueError for a value of another type."""
    right = isinstance(value, KINDS[kind]) and (kind == SWITCH or not isinstance(value, bool))
    if kind == NUMBERS and right:
        right = all(_is_finite(number) for number in value)
    elif kind == NUMBER and right:
        right = _is_finite(value)
    if not right:
        raise ValueError(f"{name} is {repr(value)[:100]}; expected {kind}")


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 and isfinite(value)


# vitkit's description in the comment of a ZIP archive, which .npz and .pth files are. NumPy and PyTorch
# do not read it.


def read_comment(file: Path) -> dict:
    """vitkit's description of the model; {} without one. Raises ValueError for a damaged file."""
    if not zipfile.is_zipfile(file):
        return {}
    try:
        with zipfile.ZipFile(file) as archive:
            comment = archive.comment
        if not comment.startswith(b'{"vitkit"'):
            return {}
        return parse_object(comment)[KEY]
    except DAMAGE as error:
        raise ValueError(
            f"{file} cannot be loaded: its comment is not a JSON object: {error}"
        ) from error


def comment_of(description: dict) -> bytes:
    """The comment that holds vitkit's description of a model.

    "labels" is null there if the classes are only numbered, for the numbers of ImageNet-21k's
    21,843 classes would not fit. Raises ValueError if real names do not.
    """
    labels = description["labels"]
    if tuple(labels) == numbered(len(labels)):
        description = {**description, "labels": None}
    comment = json.dumps({KEY: description}, ensure_ascii=True).encode()
    if len(comment) > LONGEST_COMMENT:
        raise ValueError(
            f"the names of its {len(labels):,} classes take {len(comment):,} bytes, and the comment "
            f"of a .npz, .pth or .pt file has room for {LONGEST_COMMENT:,}; write a .safetensors file or a "
            "directory, or number the classes (labels of a Classifier)"
        )
    return comment


def write_comment(file: Path, comment: bytes) -> None:
    """Give an archive this comment."""
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = comment
