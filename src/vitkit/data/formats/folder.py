"""Folders of images. The class of an image is its folder; without class folders images are unlabelled."""

import os
from collections import Counter
from pathlib import Path

import numpy as np

from vitkit.data.formats.layout import Folders, layout_of
from vitkit.data.sources.stores import Files
from vitkit.data.sources.tables import Columns, Table, note_left_out
from vitkit.data.sources.targets import RowLabels, as_row_labels
from vitkit.system.console.text import some
from vitkit.system.errors import BadData

# Suffixes of the formats that images/pictures.py reads
IMAGE_SUFFIXES = set(
    ".jpg .jpeg .jpe .jfif .mpo .png .apng .gif .bmp .dib .webp .tif .tiff .ppm .pgm .pbm .pnm "
    ".jp2 .j2k .j2c .jpc .jpx .avif .heic .heif .hif .ico .qoi .sgi .rgb .rgba .bw .pcx".split()
)
# Arrays are images only where there are no other images: beside images they are masks and features
ARRAYS = ".npy"
# Folders that operating systems and network drives create: thumbnails, deleted files, snapshots
SYSTEM_FOLDERS = frozenset(
    name.casefold()
    for name in (
        "__MACOSX",
        "Network Trash Folder",
        "Temporary Items",
        "$RECYCLE.BIN",
        "RECYCLER",
        "System Volume Information",
        "@eaDir",
        "@Recently-Snapshot",
        "@Recycle",
        "@sharebin",
        "@tmp",
        "#recycle",
        "#snapshot",
        "~snapshot",
        "lost+found",
    )
)


def is_hidden(folder: str) -> bool:
    """Whether a folder of this name is no part of a data set: a hidden or a system folder."""
    return folder.startswith(".") or folder.casefold() in SYSTEM_FOLDERS


def find_images(root: Path | str) -> tuple[list[str], Counter]:
    """Find every image below a folder.

    Returns the sorted names relative to the folder, with "/", and how many of each kind were left out.
    Links are followed. Each folder is read once, by its own name if it lies below `root`. Raises
    VitkitError for a folder that may not be read.
    """
    names = []
    arrays = []
    left_out: Counter[str] = Counter()
    visited = set()

    def fail(error: OSError):
        raise BadData(f"{error.filename} cannot be read: {error.strerror}") from error

    starts = [str(root)]  # grows by each link to a folder
    for start in starts:
        for folder, inner, files in os.walk(start, onerror=fail):
            # A link may lead back up, or to a folder that was already visited
            state = Path(folder).stat()
            if (state.st_dev, state.st_ino) in visited:
                if folder == start:
                    link = Path(folder).relative_to(root).as_posix()
                    left_out[f"links to a folder that is read already ({link})"] += 1
                inner.clear()  # so that os.walk does not descend
                continue
            visited.add((state.st_dev, state.st_ino))
            for name in list(inner):
                if is_hidden(name):
                    hidden = "hidden folders" if name.startswith(".") else "system folders"
                    left_out[hidden] += 1
                    inner.remove(name)
                elif Path(folder, name).is_symlink():
                    starts.append(os.path.join(folder, name))  # noqa: PTH118 as os.walk joins
                    inner.remove(name)

            # Images among the folder's files, by their names below the root
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
    """The first folder in `root` with images in or below it; "" if there is none."""
    for folder in sorted(root.glob("[!.]*/")):
        if not folder.is_dir() or is_hidden(folder.name):
            continue
        for _, inner, files in os.walk(folder):
            inner[:] = [name for name in inner if not is_hidden(name)]
            if any(Path(file).suffix.lower() in IMAGE_SUFFIXES for file in files):
                return folder.name
    return ""


def read_folder(where: str, columns: Columns) -> Table | None:
    """The table of a folder of images; None if `where` is not a folder.

    The roles of folders follow from the tree (layout.py), unless `columns.level` gives the level of the
    classes:

        CLASS/IMAGE               classes, no parts
        train/CLASS/IMAGE         parts, with classes in each
        CLASS/train/IMAGE         parts, with classes in each
        train/IMAGE               parts, unlabelled
        IMAGE                     no parts, unlabelled

    Further folders may lie below these; images that lie above the class folders are left out and
    counted in the notes. With the target "none", folders are not read as classes. Raises VitkitError
    for a folder without images, for a folder beside train, val and test that is none of them, and for
    an ambiguous tree.
    """
    root = Path(where)
    if not root.is_dir():
        return None
    names, left_out = find_images(root)
    if not names:
        raise BadData(f"{root} holds no images; expected folders of images, one for each class")
    return folder_table(root, names, left_out, columns)


def folder_table(root: Path, names: list[str], left_out: Counter, columns: Columns) -> Table:
    """The table of these images below a folder, see `read_folder`.

    left_out: how many files of each kind were left out before.
    """
    paths = [tuple(name.split("/")[:-1]) for name in names]
    layout = layout_of(root, paths, columns.target != "none", columns.level)
    labelled = bool(layout.class_folders)
    if not labelled and columns.target not in ("auto", "none"):
        inner = next((path[:1] for path in paths if path), ())
        expected = "/".join([root.name, *inner])
        raise BadData(
            f"{root} holds {len(names)} images but no class folders; "
            f"expected {expected}/CLASS/IMAGE"
        )

    # Images in a part, and in a class if there are classes, belong to the data set
    inside = []
    for i, part in enumerate(layout.parts):
        if part is not None and (layout.labels[i] is not None or not labelled):
            inside.append(i)
    if len(inside) < len(paths):
        outside = "images outside every part"
        if labelled:
            outside = "images outside every class folder"
        left_out[outside] = len(paths) - len(inside)

    # Their labels, and notes for the user
    notes = (*note_left_out(left_out), *layout.notes)
    row_labels: RowLabels = None
    if labelled:
        row_labels = np.array([layout.labels[i] for i in inside], dtype=object)
        if columns.target in ("classes", "number"):
            row_labels = as_row_labels(row_labels, str(root), columns.target, columns.separator)
        empty = _empty_folders(root, layout.class_folders)
        if empty:
            notes += (f"folders without an image: {some(empty)}",)
    else:
        notes += (f"{root} has no class folders that are read, so its images are unlabelled",)
    files = Files.of(root, [names[i] for i in inside])
    parts = np.array([layout.parts[i] for i in inside], dtype=object)
    return Table(files, row_labels, parts, None, notes)


def _empty_folders(root: Path, full: set[Folders]) -> list[str]:
    """The sorted folders beside class folders that hold no image, and so are no class.

    full: the class folders that hold images, from the root.
    """
    empty = []
    for above in {folders[:-1] for folders in full}:
        for path in root.joinpath(*above).iterdir():
            folders = (*above, path.name)
            is_folder = path.is_dir() and not path.is_symlink() and not is_hidden(path.name)
            if is_folder and folders not in full:
                empty.append("/".join(folders))
    return sorted(empty)
