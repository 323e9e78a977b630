"""Folders of images: the class of an image is the folder it lies in."""

import os
from collections import Counter
from pathlib import Path

import numpy as np

from vitkit.data.stores import Files
from vitkit.data.tables import PARTS, Table

# Of the formats that images.py reads.
SUFFIXES = {
    ".jpg",
    ".jpeg",
    ".jpe",
    ".jfif",
    ".mpo",
    ".png",
    ".apng",
    ".gif",
    ".bmp",
    ".dib",
    ".webp",
    ".tif",
    ".tiff",
}
SUFFIXES |= {
    ".ppm",
    ".pgm",
    ".pbm",
    ".pnm",
    ".jp2",
    ".j2k",
    ".j2c",
    ".jpc",
    ".jpx",
    ".avif",
    ".ico",
    ".qoi",
    ".sgi",
}
SUFFIXES |= {".rgb", ".rgba", ".bw", ".pcx"}


def find_images(root: Path | str) -> tuple[list[str], Counter]:
    """Every image below a folder, as sorted relative names with "/", and what was left out: kind -> how many.

    Links are followed, each folder once. Raises ValueError for a folder that may not be read.
    """
    found, left, seen = [], Counter(), set()

    def fail(error: OSError):
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from error

    for folder, inner, files in os.walk(root, onerror=fail, followlinks=True):
        state = Path(folder).stat()
        if (state.st_dev, state.st_ino) in seen:  # a link back up, or to a folder that was seen
            inner.clear()
            continue
        seen.add((state.st_dev, state.st_ino))
        left["hidden folders"] += sum(name.startswith((".", "__MACOSX")) for name in inner)
        inner[:] = sorted(name for name in inner if not name.startswith((".", "__MACOSX")))
        at = Path(folder).relative_to(root).as_posix()
        prefix = "" if at == "." else at + "/"
        for name in files:
            suffix = "." + name.rpartition(".")[2].lower() if "." in name else "suffixless"
            if name.startswith("."):
                left["hidden files"] += 1
            elif suffix in SUFFIXES:
                found.append(prefix + name)
            else:
                left[f"{suffix} files"] += 1
    return sorted(found), +left


def folder_of_images(root: Path) -> str:
    """The first folder in this one that images lie in or below; "" where there is none."""
    for folder in sorted(root.glob("[!.]*/")):
        if folder.is_dir() and not folder.name.startswith("__MACOSX"):
            for _, _, files in os.walk(folder):
                if any(Path(file).suffix.lower() in SUFFIXES for file in files):
                    return folder.name
    return ""


def read_folder(root: Path) -> Table:
    """A tree of class folders, or of train, val and test with class folders in each. Classes are named by their folders.

    Whatever lies elsewhere is counted in the notes. Raises ValueError where there is no class, and where folders that are
    no part of the data set stand beside those that are.
    """
    names, left = find_images(root)
    if not names:
        raise ValueError(f"{root} holds no images; expected folders of images, one for each class")
    split = [name.split("/") for name in names]
    divided = any(len(path) > 2 and path[0].lower() in PARTS for path in split)
    depth = 2 if divided else 1
    strangers = (
        sorted({path[0] for path in split if len(path) > 1 and path[0].lower() not in PARTS})
        if divided
        else []
    )
    if strangers:
        raise ValueError(
            f"{root} is divided into parts, but {', '.join(strangers[:5])} is none of {', '.join(PARTS)}; move the "
            f"images in it elsewhere, or give a folder that holds classes only"
        )
    if stray := sum(len(path) <= depth for path in split):
        left["images outside every class folder"] = stray
    kept = [i for i, path in enumerate(split) if len(path) > depth]
    if not kept or (not divided and all(split[i][0].lower() in PARTS for i in kept)):
        inside = f"{root.name}/{split[kept[0]][0]}" if kept else root.name
        raise ValueError(
            f"{root} holds {len(names)} images but no class folders; expected {inside}/CLASS/IMAGE"
        )
    parts = [PARTS[split[i][0].lower()] if divided else "" for i in kept]
    twice = {name for name in {split[i][0] for i in kept} if divided}
    if len(twice) > len(set(parts)):
        raise ValueError(
            f"{root} holds the same part under two names ({', '.join(sorted(twice))}); merge or rename them"
        )
    notes = (
        [f"left out: {', '.join(f'{n:,} {kind}' for kind, n in sorted(left.items()))}"]
        if left
        else []
    )
    notes += _empty(root, {"/".join(split[i][:depth]) for i in kept}, depth)
    return Table(
        Files.of(root, [names[i] for i in kept]),
        np.array([split[i][depth - 1] for i in kept], dtype=object),
        np.array(parts, dtype=object),
        None,
        tuple(notes),
    )


def _empty(root: Path, full: set[str], depth: int) -> list[str]:
    """A note on class folders that hold no image: they are no class."""
    folders = {
        p.relative_to(root).as_posix() for p in root.glob("/".join("*" * depth)) if p.is_dir()
    }
    empty = sorted(
        f
        for f in folders - full
        if not any(part.startswith((".", "__MACOSX")) for part in f.split("/"))
    )
    return (
        [f"folders without an image: {', '.join(empty[:5])}{', ...' if len(empty) > 5 else ''}"]
        if empty
        else []
    )
