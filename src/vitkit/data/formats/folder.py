"""Folders of images: the class of an image is the folder it lies in; without class folders the
images are unlabelled."""

import os
from collections import Counter
from pathlib import Path

import numpy as np

from vitkit.data.sources.stores import Files
from vitkit.data.sources.tables import PARTS, Columns, Table, note_left_out
from vitkit.data.sources.targets import as_row_labels
from vitkit.system.console.text import some

# Of the formats that images/pictures.py reads.
IMAGE_SUFFIXES = set(
    ".jpg .jpeg .jpe .jfif .mpo .png .apng .gif .bmp .dib .webp .tif .tiff .ppm .pgm .pbm .pnm "
    ".jp2 .j2k .j2c .jpc .jpx .avif .heic .heif .hif .ico .qoi .sgi .rgb .rgba .bw .pcx".split()
)
ARRAYS = ".npy"  # images only where there are no others: beside those they are masks and features
HIDDEN = (".", "__MACOSX")  # how names begin that are no part of a data set


def find_images(root: Path | str) -> tuple[list[str], Counter]:
    """Every image below a folder, as sorted relative names with "/", and what was left out: kind ->
    how many.

    Links are followed, each folder once. Raises ValueError for a folder that may not be read.
    """
    names = []
    arrays = []
    left_out = Counter()
    visited = set()

    def fail(error: OSError):
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from error

    for folder, inner, files in os.walk(root, onerror=fail, followlinks=True):
        # A link may lead back up, or to a folder that was visited: os.walk goes into what is left
        # in `inner`.
        state = Path(folder).stat()
        if (state.st_dev, state.st_ino) in visited:
            inner.clear()
            continue
        visited.add((state.st_dev, state.st_ino))
        shown = sorted(name for name in inner if not name.startswith(HIDDEN))
        left_out["hidden folders"] += len(inner) - len(shown)
        inner[:] = shown

        # Its files, by their names below the root.
        prefix = "" if folder == str(root) else f"{Path(folder).relative_to(root).as_posix()}/"
        for name in files:
            suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122 pathlib takes longer
            if name.startswith("."):
                left_out["hidden files"] += 1
            elif suffix in IMAGE_SUFFIXES:
                names.append(prefix + name)
            elif suffix == ARRAYS:
                arrays.append(prefix + name)
            else:
                left_out[f"{suffix or 'suffixless'} files"] += 1
    if not names:
        return sorted(arrays), +left_out
    left_out[f"{ARRAYS} files"] = len(arrays)
    return sorted(names), +left_out  # without zeros


def folder_of_images(root: Path) -> str:
    """The first folder in this one that images lie in or below; "" if there is none."""
    for folder in sorted(root.glob("[!.]*/")):
        if not folder.is_dir() or folder.name.startswith(HIDDEN):
            continue
        for _, _, files in os.walk(folder):
            if any(Path(file).suffix.lower() in IMAGE_SUFFIXES for file in files):
                return folder.name
    return ""


def read_folder(where: str, columns: Columns) -> Table | None:
    """The table of a folder of images; None if this is not a folder.

    What the folders are is seen from the tree:

        CLASS/IMAGE               classes, no parts
        train/CLASS/IMAGE         parts, with classes in each
        train/IMAGE               parts, unlabelled
        IMAGE                     no parts, unlabelled

    Folders may lie deeper below these; images that lie less deep are counted in the notes. With the
    target "none", folders of classes are not read as such. Raises ValueError for a folder without
    images, and for a folder beside train, val and test that is none of them.
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
        inner = next((path[:1] for path in paths if len(path) > 1), [])
        expected = "/".join([root.name, *inner])
        raise ValueError(
            f"{root} holds {len(names)} images but no class folders; "
            f"expected {expected}/CLASS/IMAGE"
        )
    depth = int(labelled)  # how many folders an image lies in
    divided = any(len(path) > 1 + depth and path[0].lower() in PARTS for path in paths)
    depth += divided

    # Images that lie deep enough belong to the data set.
    inside = [path for path in paths if len(path) > depth]
    if len(inside) < len(paths):
        outside = "images outside every part"
        if labelled:
            outside = "images outside every class folder"
        left_out[outside] = len(paths) - len(inside)
    parts = [""] * len(inside)
    if divided:
        _check_parts(root, paths, inside)
        parts = [PARTS[path[0].lower()] for path in inside]

    # Their labels, and what the user should know.
    notes = note_left_out(left_out)
    row_labels = None
    if labelled:
        row_labels = np.array([path[depth - 1] for path in inside], dtype=object)
        if columns.target in ("classes", "number"):
            row_labels = as_row_labels(row_labels, str(root), columns.target)
        empty = _empty_folders(root, {"/".join(path[:depth]) for path in inside}, depth)
        if empty:
            notes += (f"folders without an image: {some(empty)}",)
    else:
        notes += (f"{root} has no class folders that are read, so its images are unlabelled",)
    files = Files.of(root, ["/".join(path) for path in inside])
    return Table(files, row_labels, np.array(parts, dtype=object), None, notes)


def _has_classes(paths: list[list[str]]) -> bool:
    """Whether any image lies in a class folder."""
    # train/cats/1.jpg
    if any(len(path) > 2 and path[0].lower() in PARTS for path in paths):
        return True
    # cats/1.jpg; in train/1.jpg the folder is a part, not a class
    folders = {path[0].lower() for path in paths if len(path) > 1}
    return bool(folders - PARTS.keys())


def _check_parts(root: Path, paths: list[list[str]], inside: list[list[str]]) -> None:
    """Raises ValueError for folders beside train, val and test that are none of them, and for one
    part under two names. inside: those paths that belong to a part."""
    folders = {path[0] for path in paths if len(path) > 1}
    others = sorted(folder for folder in folders if folder.lower() not in PARTS)
    if others:
        raise ValueError(
            f"{root} is divided into parts, but {', '.join(others[:5])} is none of "
            f"{', '.join(PARTS)}; move the images in it elsewhere, or give a folder that holds "
            f"classes only"
        )
    names = sorted({path[0] for path in inside})
    if len(names) > len({PARTS[name.lower()] for name in names}):
        raise ValueError(
            f"{root} holds the same part under two names ({', '.join(names)}); merge or rename them"
        )


def _empty_folders(root: Path, full: set[str], depth: int) -> list[str]:
    """The class folders that hold no image, in order: they are no class."""
    empty = []
    for path in root.glob("/".join("*" * depth)):
        inner = path.relative_to(root)
        hidden = any(name.startswith(HIDDEN) for name in inner.parts)
        if path.is_dir() and not hidden and inner.as_posix() not in full:
            empty.append(inner.as_posix())
    return sorted(empty)
