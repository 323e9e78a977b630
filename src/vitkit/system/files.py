"""Files of this machine: written whole or not at all, and where downloads and indices are kept."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex


def cache_dir() -> Path:
    """Where downloads and indices are kept: $VITKIT_CACHE, or vitkit in the user's cache
    directory."""
    if chosen := os.environ.get("VITKIT_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitkit"


def on_this_machine(path: Path) -> Path:
    """The same path. Raises ValueError for an address, which Path has made a folder named "s3:" of:
    results are written here."""
    if re.match(r"[a-z][a-z0-9+.\-]+:/", str(path), re.IGNORECASE):
        raise ValueError(
            f"{str(path).replace(':/', '://', 1)} is an address, and results are written to a folder of this machine or of a "
            f"file system that it has mounted; give such a folder, and copy it afterwards"
        )
    return path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Another path to write to, which becomes this one once all of it is on the disk; of one that
    fails nothing is left.

    Its name is nobody else's, so that several may write the same file. Raises OSError.
    """
    new = path.with_name(f"{path.name}.{token_hex(4)}.new")
    try:
        yield new
        with new.open("r+b") as file:
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """A file that is there whole or not at all. Raises OSError."""
    with whole(path) as new:
        new.write_bytes(data)


def write_json(path: Path, value: dict) -> None:
    """A JSON file that is there whole or not at all. Raises OSError."""
    write_whole(path, json.dumps(value, indent=1, ensure_ascii=False).encode())


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Another directory to write to, which takes the place of this one once it is complete.

    Of one that fails nothing stays, and what was at `path` is there as before. Raises OSError.
    """
    new = path.with_name(path.name + ".new")
    old = path.with_name(path.name + ".old")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
        shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            path.rename(old)
        new.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
