"""vitkit's description of a model in the comment of a ZIP archive, which .npz and .pth files are.

NumPy and PyTorch do not read the comment.
"""

import json
import zipfile
from pathlib import Path

from vitkit.weights.files.lazy import DAMAGE, KEY, parse_object
from vitkit.weights.labels import numbered

LONGEST = 2**16 - 1  # bytes; the ZIP format counts them in 16 bits


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
    if len(comment) > LONGEST:
        raise ValueError(
            f"the names of its {len(labels):,} classes take {len(comment):,} bytes, and the comment "
            f"of a .npz, .pth or .pt file has room for {LONGEST:,}; write a .safetensors file or a "
            "directory, or number the classes (labels of a Classifier)"
        )
    return comment


def write_comment(file: Path, comment: bytes) -> None:
    """Give an archive this comment."""
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = comment
