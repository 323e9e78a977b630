"""vitkit's description of a model in the comment of a ZIP archive, which .npz and .pth files are.

NumPy and PyTorch do not read the comment.
"""

import json
import zipfile
from pathlib import Path

from vitkit.weights.files.lazy import DAMAGE, KEY, parse_object

LONGEST = 2**16  # bytes; the ZIP format allows no comment of this length


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
            f"{file} cannot be loaded: its comment is no JSON object: {error}"
        ) from error


def write_comment(file: Path, description: dict) -> None:
    """Put vitkit's description of the model there; without the labels if it is too long with them,
    as with the 21,843 names of ImageNet-21k."""
    comment = json.dumps({KEY: description}, ensure_ascii=True).encode()
    if len(comment) >= LONGEST:
        comment = json.dumps({KEY: {**description, "labels": None}}).encode()
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = comment
