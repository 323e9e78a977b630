"""Sorting image files into one folder per predicted class. Originals are neither moved nor changed."""

import filecmp
import os
import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Literal

from vitkit.prediction.predictions import Prediction
from vitkit.system.console.text import printable
from vitkit.system.errors import BadSettings, Unavailable

By = Literal["link", "copy"]
UNSURE = "unsure"  # folder of images whose predicted class is too improbable
UNKNOWN = "unknown"  # folder of out-of-distribution images
LONGEST = 100  # longest folder name, bytes
FORBIDDEN = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f]')  # on at least one operating system
RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)  # on Windows


class Sorter:
    """Files images in a directory, each in the folder of its most likely class, in `unsure`, or in
    `unknown`."""

    def __init__(self, directory: Path, labels: Sequence[str], sure: float, by: By = "link"):
        """sure: lowest probability of the most likely class that counts as an answer. by: "link" makes
        hard links, or copies where links are impossible; "copy" makes copies, which take disk space.

        Raises VitkitError if the probability is not within 0 to 1.
        """
        if not 0 <= sure <= 1:
            raise BadSettings(f"`sure` is {sure}; it is a probability from 0 to 1")
        self.directory = directory
        self.sure = sure
        self.by = by
        self.folders = folder_names(labels)
        self.counts: Counter[str] = Counter()
        """Number of images in each folder."""
        self.already = 0
        """Number of the filed images that were in their folders before."""
        self.namesakes: dict[Path, _Namesakes] = {}
        """Files that share a name, by path. An index by size keeps this fast for ten thousand files."""

    def file(self, photograph: Path, prediction: Prediction) -> Path:
        """File an image in the folder of its predicted class, and return its new path. The image
        keeps its name, with a number appended if another image there has the name. An image that
        is already there stays.

        Raises OSError with a readable message.
        """
        folder = UNSURE
        if prediction.unknown:
            folder = UNKNOWN
        elif prediction.probabilities[0] >= self.sure:
            folder = self.folders[prediction.labels[0]]
        return self._put(photograph, folder)

    def put(self, photograph: Path, label: str) -> Path:
        """File an image in the folder of a given class, as `file` does, and return its new path."""
        return self._put(photograph, self.folders[label])

    def _put(self, photograph: Path, folder: str) -> Path:
        self.counts[folder] += 1
        try:
            return self._file(photograph.resolve(), self.directory / folder, photograph.name)
        except OSError as error:
            raise Unavailable(
                f"{printable(str(photograph))} could not be filed in {self.directory / folder}: "
                f"{error.strerror or error}; what was filed stays, and the same command goes on"
            ) from error

    def _file(self, photograph: Path, folder: Path, name: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / name).exists() and _put(photograph, folder / name, self.by):
            return folder / name
        if _is_same(photograph, folder / name):
            self.already += 1
            return folder / name

        # Other files have this name, each with a number: those of equal size may be this image
        namesakes = self.namesakes.setdefault(folder / name, _Namesakes())
        size = photograph.stat().st_size
        for target in namesakes.by_size.get(size, ()):
            if _is_same(photograph, target):
                self.already += 1
                return target
        while True:
            target = folder / _numbered(name, namesakes.count + 1)
            is_put = not target.exists() and _put(photograph, target, self.by)
            namesakes.add(target)
            if is_put:
                return target
            if _is_same(photograph, target):
                self.already += 1
                return target

    def renamed(self) -> list[str]:
        """One sentence for each class whose folder has another name than the class."""
        return [
            f"photographs of the class {printable(label)} are in {folder}"
            for label, folder in self.folders.items()
            if label in (UNSURE, UNKNOWN) and self.counts[folder]
        ]

    def summary(self) -> str:
        """A sentence with the number of images in each folder."""
        counts = [f"{count:,} {printable(name)}" for name, count in self.counts.most_common(10)]
        if len(self.counts) > 10:
            counts.append(f"{len(self.counts) - 10:,} folders more")
        total = sum(self.counts.values())
        sentence = f"sorted {total:,} into {self.directory}: {', '.join(counts)}"
        if self.already:
            sentence += f"; {self.already:,} of them were there already"
        return sentence


@dataclass
class _Namesakes:
    """Files in one folder that share a name, numbered from 1."""

    count: int = 0
    by_size: dict[int, list[Path]] = field(default_factory=dict)

    def add(self, path: Path) -> None:
        """Record the file with the next number."""
        self.count += 1
        with suppress(OSError):  # a broken link
            self.by_size.setdefault(path.stat().st_size, []).append(path)


def _numbered(name: str, number: int) -> str:
    """A file's name with a number of 2 or more: "cat.jpg", "cat-2.jpg"."""
    if number == 1:
        return name
    path = Path(name)
    return f"{path.stem}-{number}{path.suffix}"


def _is_same(photograph: Path, target: Path) -> bool:
    """Whether `target` is already a link to or a copy of the image."""
    if target.is_dir():
        return False
    try:
        return target.samefile(photograph) or filecmp.cmp(photograph, target, shallow=False)
    except FileNotFoundError:
        return False


def _put(photograph: Path, target: Path, by: By) -> bool:
    """Make a link or a copy; returns False if a different file has that name. Raises OSError."""
    if by == "link":
        try:
            os.link(photograph, target)
            return True
        except FileExistsError:
            return False
        except OSError:
            pass  # another disk, a file system without links, or another user's file: make a copy
    return _copy(photograph, target)


def _copy(photograph: Path, target: Path) -> bool:
    """Copy the file atomically; returns False if a different file has that name. Raises OSError."""
    new = target.with_name(f".{token_hex(8)}.new")
    try:
        shutil.copyfile(photograph, new)
        with suppress(OSError):  # a file system without modification times
            shutil.copystat(photograph, new)
        try:
            os.link(new, target)  # unlike a rename, this never replaces a file
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            if target.exists():
                return False
            new.rename(target)
        return True
    finally:
        new.unlink(missing_ok=True)


# Names of folders


def folder_names(labels: Sequence[str]) -> dict[str, str]:
    """A valid folder name for every class. No two names are equal, even where the file system ignores
    case, none leaves the directory, and none is UNSURE or UNKNOWN."""
    names = {}
    taken = {UNSURE, UNKNOWN}
    for label in dict.fromkeys(labels):
        name = safe_name(label)
        number = 1
        while _as_compared(_with_number(name, number)) in taken:
            number += 1
        names[label] = _with_number(name, number)
        taken.add(_as_compared(names[label]))
    return names


def _with_number(name: str, number: int) -> str:
    if number == 1:
        return name
    return f"{name}-{number}"


def _as_compared(name: str) -> str:
    """The name without differences in case or in the encoding of accents, which some file systems
    ignore."""
    return unicodedata.normalize("NFC", name).casefold()


def safe_name(label: str) -> str:
    """A class's name as a folder name: without slashes and control characters, not hidden, not empty,
    at most LONGEST bytes, and not a device name of Windows."""
    name = FORBIDDEN.sub("_", label)
    name = "".join(c if unicodedata.category(c)[0] != "C" else "_" for c in name)
    name = name.encode("utf-8")[:LONGEST].decode("utf-8", "ignore")
    name = name.strip(" ").rstrip(".").strip(" ")
    if name.startswith("."):
        name = f"_{name.lstrip('.')}"
    if not name or RESERVED.fullmatch(name):
        name = f"_{name}"
    return name
