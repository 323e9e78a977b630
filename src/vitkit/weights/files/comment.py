"""The comment of an archive, which nobody else reads: .npz and .pth are ZIP files, and vitkit's
description lies there."""

import json
import zipfile
from pathlib import Path

from vitkit.weights.files.lazy import DAMAGE, KEY, parse_object

LONGEST = 2**16  # bytes that a comment stays below


def read_comment(file: Path) -> dict:
    """vitkit's description of the model; {} without one. Raises ValueError."""
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
    """Put vitkit's description of the model there; without the labels if they are too long, as
    21,843 names are."""
    comment = json.dumps({KEY: description}, ensure_ascii=True).encode()
    if len(comment) >= LONGEST:
        comment = json.dumps({KEY: {**description, "labels": None}}).encode()
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = comment
