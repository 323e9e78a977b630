"""Folders of images: the class of an image is the folder it lies in; without class folders the
images are unlabelled."""

import os
import re
from collections import Counter
from pathlib import Path

import numpy as np

from vitkit.data.sources.stores import Files
from vitkit.data.sources.tables import PARTS, Columns, Table, note_left_out
from vitkit.data.sources.targets import as_row_labels
from vitkit.system.console.text import some
from vitkit.system.errors import BadData

# Of the formats that images/pictures.py reads.
IMAGE_SUFFIXES = set(
    ".jpg .jpeg .jpe .jfif .mpo .png .apng .gif .bmp .dib .webp .tif .tiff .ppm .pgm .pbm .pnm "
    ".jp2 .j2k .j2c .jpc .jpx .avif .heic .heif .hif .ico .qoi .sgi .rgb .rgba .bw .pcx".split()
)
ARRAYS = ".npy"  # images only where there are no others: beside those they are masks and features
# Folders that systems and network drives make for themselves: bins, snapshots, thumbnails
SYSTEM_FOLDERS = {
    "__macosx", "@eadir", "@recycle", "@recently-snapshot", "@sharebin", "@tmp", "#recycle", "#snapshot",
    "$recycle.bin", "recycler", "system volume information", "lost+found", "found.000",
}  # fmt: skip
# How folders are called that gather classes, and are none
GATHERING = re.compile(
    r"(images?|imgs?|photos?|photographs?|pictures?|pics?|jpe?gs?|pngs?|data(set)?s?|raw|all|files|"
    r"(19|20)\d\d([-_]?\d\d){0,2}|"
    r"(fold|year|cam|camera|batch|set|session|day|week|month|part|run|site|round)[-_ ]?\d+)"
)
IS_ONE = 2  # classes below every folder from which on they are classes and no parts of one


def is_left_out(folder: str) -> bool:
    """Whether a folder of this name is no part of a data set: hidden, or made by a system for itself."""
    return folder.startswith(".") or folder.lower() in SYSTEM_FOLDERS


def find_images(root: Path | str) -> tuple[list[str], Counter]:
    """Every image below a folder, as sorted relative names with "/", and what was left out: kind ->
    how many.

    Links are followed, each folder once, under its own name before that of a link. Raises ValueError
    for a folder that may not be read.
    """
    names = []
    arrays = []
    left_out = Counter()
    visited = set()
    links = []  # to folders, which are looked into after all others

    def fail(error: OSError):
        raise BadData(f"{error.filename} cannot be read: {error.strerror}") from error

    def look(top: str) -> None:
        for folder, inner, files in os.walk(top, onerror=fail):
            # A link may lead back up, or to a folder that was visited: os.walk goes into what is left
            # in `inner`.
            state = Path(folder).stat()
            if (state.st_dev, state.st_ino) in visited:
                left_out["linked folders, read already"] += 1
                inner.clear()
                continue
            visited.add((state.st_dev, state.st_ino))
            hidden = [name for name in inner if name.startswith(".")]
            shown = sorted(name for name in inner if not is_left_out(name))
            left_out["hidden folders"] += len(hidden)
            left_out["folders of the system"] += len(inner) - len(hidden) - len(shown)
            inner[:] = [name for name in shown if not Path(folder, name).is_symlink()]
            links.extend(f"{folder}/{name}" for name in shown if name not in inner)

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

    look(str(root))
    while links:
        look(links.pop(0))
    if not names:
        return sorted(arrays), +left_out
    left_out[f"{ARRAYS} files"] = len(arrays)
    return sorted(names), +left_out  # without zeros


def folder_of_images(root: Path) -> str:
    """The first folder in this one that images lie in or below; "" if there is none."""
    for folder in sorted(root.glob("[!.]*/")):
        if not folder.is_dir() or is_left_out(folder.name):
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

    A folder above all of that, such as images/ or the data set's own, is passed over, and so are folders
    such as 2022/ and 2023/ whose folders are called the same; a note says so. `columns.level` decides
    instead: the class is the name of the first folder (1, and there are no parts), of the second, ...

    Folders may lie deeper below these; images that lie less deep are counted in the notes. With the
    target "none", folders of classes are not read as such. Raises ValueError for a folder without
    images, and for a folder beside train, val and test that is none of them.
    """
    root = Path(where)
    if not root.is_dir():
        return None
    names, left_out = find_images(root)
    if not names:
        raise BadData(f"{root} holds no images; expected folders of images, one for each class")
    paths = [name.split("/") for name in names]

    # Which folders are parts, and how deep the images of a class lie.
    above, level_notes = 0, ()
    if not columns.level:
        above, level_notes = _folders_above(root, paths)
    relative = [path[above:] for path in paths]
    labelled = columns.target != "none" and (columns.level > 0 or _has_classes(relative))
    if not labelled and columns.target not in ("auto", "none"):
        inner = next((path[:1] for path in paths if len(path) > 1), [])
        expected = "/".join([root.name, *inner])
        raise BadData(
            f"{root} holds {len(names)} images but no class folders; "
            f"expected {expected}/CLASS/IMAGE"
        )
    level = int(labelled)  # how many folders an image lies in, those of parts left out
    divided = any(len(path) > 1 + level and path[0].lower() in PARTS for path in relative)
    if columns.level:
        divided = divided and columns.level > 1
        level = columns.level - divided
    elif labelled:
        in_parts = [path[divided:] for path in relative if len(path) > 1 + divided]
        level, notes = _level(in_parts, above + divided + 1)
        level_notes += notes
    depth = above + divided + level

    # Images that lie deep enough belong to the data set.
    inside = [path for path in paths if len(path) > depth]
    if len(inside) < len(paths):
        outside = "images outside every part"
        if labelled:
            outside = "images outside every class folder"
        left_out[outside] = len(paths) - len(inside)
    parts = [""] * len(inside)
    if divided:
        _check_parts(root, relative, [path[above:] for path in inside])
        parts = [PARTS[path[above].lower()] for path in inside]
    if not inside:
        raise BadData(
            f"{root} has no images in folders {depth} deep, and `data.columns.level` is {columns.level}"
        )

    # Their labels, and what the user should know.
    notes = (*level_notes, *note_left_out(left_out))
    row_labels = None
    if labelled:
        row_labels = np.array([path[depth - 1] for path in inside], dtype=object)
        if columns.target in ("classes", "number"):
            row_labels = as_row_labels(row_labels, str(root), columns.target, columns.separator)
        empty = _empty_folders(root, {"/".join(path[:depth]) for path in inside}, depth)
        if empty:
            notes += (f"folders without an image: {some(empty)}",)
    else:
        notes += (f"{root} has no class folders that are read, so its images are unlabelled",)
    read = {path[0] for path in paths}
    for link in sorted(root.iterdir()):
        if (
            link.is_symlink()
            and link.is_dir()
            and link.name not in read
            and not is_left_out(link.name)
        ):
            notes += (f"{link.name} is a link to a folder that is read already, so it is left out",)
    files = Files.of(root, ["/".join(path) for path in inside])
    return Table(files, row_labels, np.array(parts, dtype=object), None, notes)


def _folders_above(root: Path, paths: list[list[str]]) -> tuple[int, tuple[str, ...]]:
    """How many folders lie above the parts or the classes, each with all images in it, and a note on
    them: images/cats, or the folder of a data set within the folder that it was unpacked into."""
    above = 0
    while len({path[above] if len(path) > above + 1 else "" for path in paths}) == 1:
        top = paths[0][above]
        inner = {path[above + 1] for path in paths if len(path) > above + 2}
        if not inner or top.lower() in PARTS or any(len(path) < above + 3 for path in paths):
            break
        of_parts = all(name.lower() in PARTS for name in inner)
        gathers = GATHERING.fullmatch(top.lower()) or top.lower() == root.name.lower()
        if not of_parts and not (gathers and len(inner) >= IS_ONE):
            break
        above += 1
    if not above:
        return 0, ()
    folder = "/".join(paths[0][:above])
    return above, (
        f"all images lie in {folder}, which is passed over: classes and parts are the folders in it "
        f"(if {paths[0][0]} is a class: `data.columns.level=1`)",
    )


def _level(paths: list[list[str]], first: int) -> tuple[int, tuple[str, ...]]:
    """Which folder of each path is the class, 1 the first, and a note if it may be another one. The
    paths are those below the parts; first: what `columns.level` calls their first folder."""
    inner: dict[str, set[str]] = {}
    for path in paths:
        inner.setdefault(path[0], set()).add(path[1] if len(path) > 2 else "")
    tops = sorted(inner)
    counts = Counter(name for names in inner.values() for name in names)
    every = sorted(counts)
    recurring = sorted(name for name, count in counts.items() if count > 1)
    everywhere = sorted(name for name, count in counts.items() if count == len(tops))
    if "" in counts:  # images lie in the first folders themselves
        return 1, ()
    another = f"say `data.columns.level={first + 1}`"
    if all(GATHERING.fullmatch(name.lower()) for name in tops) and (
        recurring or (len(tops) == 1 and len(every) >= IS_ONE)
    ):
        return 2, (
            f"the classes are {some(every)}, the folders in {some(tops)} (if {some(tops)} are the classes, "
            f"say `data.columns.level={first}`)",
        )
    if len(everywhere) < IS_ONE:
        return 1, ()
    if len(tops) == 1:
        return 1, (
            f"all images are of one class, {tops[0]}; if the classes are {some(every)}, the folders in it, "
            f"{another}",
        )
    return 1, (
        f"in each of the classes {some(tops)} lie folders of the same names, {some(everywhere)}; if those "
        f"are the classes, {another}",
    )


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
        raise BadData(
            f"{root} is divided into parts, but {', '.join(others[:5])} is none of "
            f"{', '.join(PARTS)}; move the images in it elsewhere, give a folder that holds classes only, "
            f"or, if {', '.join(sorted(folders - set(others))[:5])} is a class too, say "
            f"`data.columns.level=1`"
        )
    names = sorted({path[0] for path in inside})
    if len(names) > len({PARTS[name.lower()] for name in names}):
        raise BadData(
            f"{root} holds the same part under two names ({', '.join(names)}); merge or rename them"
        )


def _is_linked(root: Path, inner: Path) -> bool:
    """Whether a folder below the root, or one above it, is a link."""
    return any((root / folder).is_symlink() for folder in (inner, *inner.parents[:-1]))


def _empty_folders(root: Path, full: set[str], depth: int) -> list[str]:
    """The class folders that hold no image, in order: they are no class."""
    empty = []
    for path in root.glob("/".join("*" * depth)):
        inner = path.relative_to(root)
        left_out = any(is_left_out(name) for name in inner.parts)
        if (
            path.is_dir()
            and not _is_linked(root, inner)
            and not left_out
            and inner.as_posix() not in full
        ):
            empty.append(inner.as_posix())
    return sorted(empty)
