"""Folders of images: the class of an image is the folder it lies in; without class folders the images are unlabelled."""

import os
from collections import Counter
from pathlib import Path

import numpy as np

from vitkit.data.labels import as_labels
from vitkit.data.parts import PARTS
from vitkit.data.stores import Files
from vitkit.data.tables import Columns, Table

# Of the formats that images.py reads.
SUFFIXES = set(
    ".jpg .jpeg .jpe .jfif .mpo .png .apng .gif .bmp .dib .webp .tif .tiff .ppm .pgm .pbm .pnm "
    ".jp2 .j2k .j2c .jpc .jpx .avif .ico .qoi .sgi .rgb .rgba .bw .pcx".split()
)
HIDDEN = (".", "__MACOSX")  # how names begin that are no part of a data set


def find_images(root: Path | str) -> tuple[list[str], Counter]:
    """Every image below a folder, as sorted relative names with "/", and what was left out: kind -> how many.

    Links are followed, each folder once. Raises ValueError for a folder that may not be read.
    """
    names, left_out, seen = [], Counter(), set()

    def fail(error: OSError):
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from error

    for folder, inner, files in os.walk(root, onerror=fail, followlinks=True):
        state = Path(folder).stat()
        if (state.st_dev, state.st_ino) in seen:  # a link back up, or to a folder that was seen
            inner.clear()
            continue
        seen.add((state.st_dev, state.st_ino))
        left_out["hidden folders"] += sum(name.startswith(HIDDEN) for name in inner)
        inner[:] = sorted(name for name in inner if not name.startswith(HIDDEN))
        at = Path(folder).relative_to(root).as_posix()
        prefix = "" if at == "." else at + "/"
        for name in files:
            suffix = "." + name.rpartition(".")[2].lower() if "." in name else "suffixless"
            if name.startswith("."):
                left_out["hidden files"] += 1
            elif suffix in SUFFIXES:
                names.append(prefix + name)
            else:
                left_out[f"{suffix} files"] += 1
    return sorted(names), +left_out


def folder_of_images(root: Path) -> str:
    """The first folder in this one that images lie in or below; "" if there is none."""
    for folder in sorted(root.glob("[!.]*/")):
        if folder.is_dir() and not folder.name.startswith(HIDDEN):
            for _, _, files in os.walk(folder):
                if any(Path(file).suffix.lower() in SUFFIXES for file in files):
                    return folder.name
    return ""


def read_folder(where: str, columns: Columns) -> Table | None:
    """A tree of class folders, or of train, val and test with class folders in each. Classes are named by their folders.

    A tree of images without class folders, or one whose classes are not asked for, is unlabelled. Images that lie
    elsewhere are counted in the notes. Returns None if this is no folder. Raises ValueError for a folder without images,
    and for folders that are no part of the data set and stand beside those that are.
    """
    root = Path(where)
    if not root.is_dir():
        return None
    names, left_out = find_images(root)
    if not names:
        raise ValueError(f"{root} holds no images; expected folders of images, one for each class")
    paths = [name.split("/") for name in names]

    # Which folders are parts, and how deep the images of a class lie.
    labelled = columns.target != "none" and _has_classes(paths)
    if not labelled and columns.target not in ("auto", "none"):
        raise ValueError(
            f"{root} holds {len(names)} images but no class folders; expected {_example(root, paths)}/CLASS/IMAGE"
        )
    divided = any(len(path) > 1 + labelled and path[0].lower() in PARTS for path in paths)
    depth = divided + labelled
    _refuse_strangers(root, paths, divided)

    # Images that lie deep enough belong to the data set.
    rows = [i for i, path in enumerate(paths) if len(path) > depth]
    if len(rows) < len(paths):
        outside = "images outside every class folder" if labelled else "images outside every part"
        left_out[outside] = len(paths) - len(rows)
    parts = ["" for _ in rows]
    if divided:
        parts = [PARTS[paths[i][0].lower()] for i in rows]
        _refuse_synonyms(root, {paths[i][0] for i in rows}, len(set(parts)))

    # Their labels, and what the user should know.
    notes = _note_left_out(left_out)
    labels = None
    if labelled:
        labels = np.array([paths[i][depth - 1] for i in rows], dtype=object)
        if columns.target in ("classes", "number"):
            labels = as_labels(labels, str(root), columns.target)
        notes += _note_empty(root, {"/".join(paths[i][:depth]) for i in rows}, depth)
    else:
        notes += [f"{root} has no class folders that are read, so its images are unlabelled"]
    files = Files.of(root, [names[i] for i in rows])
    return Table(files, labels, np.array(parts, dtype=object), None, tuple(notes))


def _has_classes(paths: list[list[str]]) -> bool:
    """Whether any image lies in a class folder; a folder that is named like a part is none."""
    if any(len(path) > 2 and path[0].lower() in PARTS for path in paths):
        return True
    folders = {path[0].lower() for path in paths if len(path) > 1}
    return bool(folders - PARTS.keys())


def _example(root: Path, paths: list[list[str]]) -> str:
    """The folder that class folders were expected in."""
    inner = [path[0] for path in paths if len(path) > 1]
    return f"{root.name}/{inner[0]}" if inner else root.name


def _refuse_strangers(root: Path, paths: list[list[str]], divided: bool) -> None:
    """Raises ValueError for folders that stand beside train, val and test and are none of them."""
    strangers = {path[0] for path in paths if len(path) > 1 and path[0].lower() not in PARTS}
    if divided and strangers:
        raise ValueError(
            f"{root} is divided into parts, but {', '.join(sorted(strangers)[:5])} is none of {', '.join(PARTS)}; move the "
            f"images in it elsewhere, or give a folder that holds classes only"
        )


def _refuse_synonyms(root: Path, folders: set[str], parts: int) -> None:
    """Raises ValueError where two folders are the same part under two names."""
    if len(folders) > parts:
        raise ValueError(
            f"{root} holds the same part under two names ({', '.join(sorted(folders))}); merge or rename them"
        )


def _note_left_out(left_out: Counter) -> list[str]:
    if not left_out:
        return []
    return [f"left out: {', '.join(f'{n:,} {kind}' for kind, n in sorted(left_out.items()))}"]


def _note_empty(root: Path, full: set[str], depth: int) -> list[str]:
    """A note on class folders that hold no image: they are no class."""
    paths = [path for path in root.glob("/".join("*" * depth)) if path.is_dir()]
    folders = {path.relative_to(root).as_posix() for path in paths}
    hidden = {name for name in folders if any(part.startswith(HIDDEN) for part in name.split("/"))}
    empty = sorted(folders - full - hidden)
    if not empty:
        return []
    more = ", ..." if len(empty) > 5 else ""
    return [f"folders without an image: {', '.join(empty[:5])}{more}"]
