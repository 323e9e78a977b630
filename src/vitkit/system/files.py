"""Files on this machine: written whole or not at all, and the cache of downloads and indices."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex


def cache_dir() -> Path:
    """Where downloads and indices are kept: $VITKIT_CACHE, or vitkit in the user's cache
    directory."""
    if own := os.environ.get("VITKIT_CACHE"):
        return Path(own)
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user_cache) / "vitkit"


def on_this_machine(path: Path) -> Path:
    """The same path. Raises ValueError for an address such as s3://bucket: results are written to
    this machine, and Path would make a folder called "s3:"."""
    if re.match(r"[a-z][a-z0-9+.\-]+:/", str(path), re.IGNORECASE):
        address = str(path).replace(":/", "://", 1)  # Path makes one slash of two
        raise ValueError(
            f"{address} is an address, and results are written to a folder of this machine or of a "
            "file system that it has mounted; give such a folder, and copy it afterwards"
        )
    return path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path to write to. When the block ends and all of it is on the disk, it is renamed
    to `path`; if the block fails, it is deleted.

    Its name is random, so that several processes may write the same file. Raises OSError.
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
    """Write a file, whole or not at all. Raises OSError."""
    with whole(path) as new:
        new.write_bytes(data)


def write_json(path: Path, value: dict) -> None:
    """Write a JSON file, whole or not at all. Raises OSError."""
    write_whole(path, json.dumps(value, indent=1, ensure_ascii=False).encode())


@contextmanager
def whole_files(path: Path) -> Iterator[Path]:
    """A temporary directory to write files to, which go to the directory `path` when the block ends.
    Those of the same names there are replaced, each whole; all else stays, and so does the
    directory itself: it may be a link, a mounted disk, or have permissions of its own.

    If the block fails, what was written is deleted, and `path` stays as it was. Raises OSError.
    """
    is_new = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    for unfinished in path.glob(".????????.new"):  # of a process that was killed
        shutil.rmtree(unfinished, ignore_errors=True)
    new = path / f".{token_hex(4)}.new"  # on the same disk, so that files can be renamed
    new.mkdir()
    try:
        yield new
        for file in new.iterdir():
            sync(file)
        for file in sorted(new.iterdir(), reverse=True):  # config.json after model.safetensors
            file.replace(path / file.name)
        sync(path)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        if is_new:
            with suppress(OSError):  # it has some of the files already
                path.rmdir()
        raise
    new.rmdir()


def sync(path: Path) -> None:
    """Wait until a file or directory is on the disk itself. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def give_usual_permissions(file: Path) -> None:
    """Give a file that a library made for its owner alone the permissions of any new file: what the
    user's umask leaves."""
    mask = os.umask(0o077)
    os.umask(mask)  # there is no other way to read it
    file.chmod(0o666 & ~mask)
