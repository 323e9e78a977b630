"""A folder with lists of its images, "PATH NUMBER" a line: VTAB-1k is passed on so.

train800.txt  val200.txt  test.txt      PATH starts from the folder; NUMBER is the class
"""

from pathlib import Path

import numpy as np

from vitkit.data.formats.manifest import relative_path
from vitkit.data.sources.row_labels import as_row_labels
from vitkit.data.sources.stores import Files
from vitkit.data.sources.tables import Columns, Table

# The list of each part. The first row whose files are all there is read: the union of train and val
# is taken only if it comes alone.
LAYOUTS = (
    {"train": "train800.txt", "val": "val200.txt", "test": "test.txt"},
    {"train": "train800val200.txt", "test": "test.txt"},
)


def read_lists(where: str, columns: Columns) -> Table | None:
    """The table of a folder with lists.

    Returns None for a folder without them. Raises ValueError, with the line, for what is malformed,
    and for a path that leads out of the folder.
    """
    folder = Path(where)
    if not folder.is_dir():
        return None
    for layout in LAYOUTS:
        if all((folder / file).is_file() for file in layout.values()):
            return _table(folder, layout, columns)
    return None


def _table(folder: Path, layout: dict[str, str], columns: Columns) -> Table:
    """The table of the images in the lists of these parts."""
    names = []
    values = []
    parts = []
    for part, file in layout.items():
        before = len(names)
        _read_list(folder / file, names, values)
        parts += [part] * (len(names) - before)
        if len(names) == before:
            raise ValueError(f"{folder / file} names no image")
    files = Files.of(folder, names)
    row_labels = as_row_labels(values, str(folder), columns.target)
    return Table(files, row_labels, np.array(parts, dtype=object), None, ())


def _read_list(path: Path, names: list[str], values: list[str]) -> None:
    """Appends the path and the class of each line. Raises ValueError for what is malformed."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name, _, value = line.strip().rpartition(" ")
        if not name or not value.isascii() or not value.isdigit():
            raise ValueError(
                f"{path} line {number} is {line[:100]!r}; expected a path and the number of a "
                'class, such as "images/train/000000.jpg 12"'
            )
        names.append(relative_path(name, path.parent, f"{path} line {number}"))
        values.append(value)
