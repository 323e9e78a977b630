"""Moving files and folders, possibly to another file system: a mounted folder, a volume of a container, or a
lower layer of its image, from which folders cannot be renamed."""

import errno
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from vitkit.system.errors import Unavailable
from vitkit.system.storage.files import sync

FREE = 1 << 20  # bytes besides the files, for folders and tables of the file system


def move_file(before: Path, after: Path) -> None:
    """Move a file, or a link; to another file system by a copy, which is on the disk before the original is
    deleted. No file is ever lost or incomplete.

    Raises OSError, and FileExistsError instead of replacing a file.
    """
    if os.path.lexists(after):
        raise Unavailable(f"{after} is there already, so {before} stays where it is")
    try:
        before.rename(after)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy_and_delete(before, after)


def _copy_and_delete(before: Path, after: Path) -> None:
    """Move a file to another file system. Raises OSError and then leaves the original in its place."""
    new = after.with_name(f".{token_hex(8)}.new")
    try:
        shutil.copyfile(before, new, follow_symlinks=False)
        with suppress(OSError):  # a file system without times or permissions
            shutil.copystat(before, new, follow_symlinks=False)
        if not new.is_symlink():
            sync(new)
        new.rename(after)
    finally:
        new.unlink(missing_ok=True)
    with suppress(OSError):  # some file systems cannot sync a folder
        sync(after.parent)
    try:
        before.unlink()
    except OSError:
        after.unlink()  # otherwise the file would be in two places
        raise


def move_folder(before: Path, after: Path) -> None:
    """Move a folder to an unused path; if it cannot be renamed, by a copy, which is complete before the original
    is deleted. Raises OSError."""
    try:
        before.rename(after)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        new = after.with_name(f".{token_hex(8)}.new")
        try:
            shutil.copytree(before, new, symlinks=True)
            for path in new.rglob("*"):
                if path.is_file() and not path.is_symlink():
                    sync(path)
            new.rename(after)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        shutil.rmtree(before)


def check_moves(moves: Iterable[tuple[Path, Path]]) -> None:
    """Raise OSError if one of these moves of files, each to a new path, would certainly fail: its folders are
    not writable, or copies to another file system need more space than it has."""
    needed: dict[int, int] = {}
    folders: dict[int, Path] = {}
    for before, after in moves:
        to = _nearest(after.parent)
        for folder in (before.parent, to):
            if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
                raise Unavailable(
                    f"{before} cannot be moved to {after}: {folder} is no folder that you may write to"
                )
        device = to.stat().st_dev
        stat = before.lstat()
        if stat.st_dev != device:
            needed[device] = needed.get(device, 0) + stat.st_size
            folders[device] = to
    for device, size in needed.items():
        free = shutil.disk_usage(folders[device]).free
        if size + FREE > free:
            raise Unavailable(
                f"the files need {size:,} bytes on the file system of {folders[device]}, which has "
                f"{free:,} left; make room"
            )


def _nearest(folder: Path) -> Path:
    """The folder, or its first existing parent."""
    folder = folder.absolute()
    while not os.path.lexists(folder):
        folder = folder.parent
    return folder
