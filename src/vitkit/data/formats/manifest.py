"""Text files that list images: manifests, the lists of VTAB-1k, and selections.

NAME.csv, .tsv, .jsonl   a row for each image: its path, its label, and optionally its part

train800.txt  val200.txt  test.txt
                         lines "PATH NUMBER": PATH is relative to their folder, NUMBER is the class

NAME.selection.json      some images of another data set, with their own classes and parts. A suite
                         writes one to make a task of a data set without copying images:
                         {"images": the other data set, "labels": names of the classes,
                          "parts": {"train": {"rows": [...], "classes": [...]}, "test": ...}}
                         The other data set lies below its folder, unless this user's suite wrote the file.
"""

import csv
import hashlib
import json
import os
import re
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path, PurePath

import numpy as np

from vitkit.data.formats.folder import IMAGE_SUFFIXES
from vitkit.data.formats.naming import existing_names
from vitkit.data.formats.repeated_rows import (
    about_repeated,
    answers_of,
    check_same,
    first_rows_of,
    joined_rows,
)
from vitkit.data.sources.indicators import IS_VALID, Flags, named_columns, parts_of_valid
from vitkit.data.sources.recorded import refuse_recorded
from vitkit.data.sources.stores import Files
from vitkit.data.sources.tables import (
    PART_NAMES,
    PATH,
    Columns,
    Table,
    as_parts,
    group_column,
    image_column,
    label_column,
    note_unlabelled,
)
from vitkit.data.sources.targets import TextTable, as_row_labels, at_row
from vitkit.system.console.text import counted
from vitkit.system.errors import BadData, VitkitError
from vitkit.system.storage.files import cache_dir, parse_json, write_whole
from vitkit.system.storage.remote import is_pattern

MANIFEST_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
SUFFIX = ".selection.json"
# The list of each part. The first row of which all files exist is read, so the union of train and val
# is read only where they are not separate.
LISTS = (
    {"train": "train800.txt", "val": "val200.txt", "test": "test.txt"},
    {"train": "train800val200.txt", "test": "test.txt"},
)
# A relative path that cannot lead out of its folder. Most paths match, and a regular expression is
# faster than pathlib.
_NAME = r"[^./\\:\0][^/\\:\0]*"
PLAIN_PATH = re.compile(rf"{_NAME}(?:/{_NAME})*")


def read_manifest(where: str, columns: Columns) -> Table | None:
    """The table of a manifest.

    Paths are relative to the folder of the manifest, or absolute. All must lead to files below that
    folder, because manifests are passed on and must not be able to name other files of the reader's.

    Returns None if this is not a manifest. Raises VitkitError, with the row, if it is malformed.
    """
    path = Path(where)
    if not path.is_file() or path.suffix.lower() not in MANIFEST_SUFFIXES:
        return None
    try:
        json_lines = path.suffix.lower() in (".jsonl", ".ndjson")
        if json_lines:
            # An object may omit what is unknown or does not apply
            present = list(dict.fromkeys(chain.from_iterable(row for _, row in _json_rows(path))))
            return _table(path, _json_rows(path), columns, present)
        return _table(path, _csv_rows(path), columns)
    except UnicodeDecodeError as error:
        raise BadData(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from None
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}") from error


def _table(
    path: Path,
    rows: Iterator[tuple[int, dict]],
    columns: Columns,
    present: Sequence[str] | None = None,
) -> Table:
    """The table of a manifest's rows, each with its line. present: all columns, if the first row may omit some.

    Of every row only path, label, split and group stay in memory: dictionaries of millions of rows would
    be gigabytes.
    """
    first = next(rows, None)
    if first is None:
        raise BadData(f"{path} has no rows")

    lines = array("q")  # of the rows
    where = TextTable(str(path), lines)

    # The columns of the image, label, part and group
    if present is None:
        present = list(first[1])
    try:
        image = image_column(columns, present, PATH)
        group = group_column(columns, present)
        split = next((name for name in present if name.lower() == "split"), None)
        named = named_columns(columns, present)
        valid = None
        if split is None and columns.label != IS_VALID and IS_VALID not in named:
            valid = next((name for name in present if name == IS_VALID), None)
        label = None
        if not named:
            label = label_column(columns, present, is_needed=False)
        flags = Flags((), False, where)
        if label is None:
            flags = Flags.among(columns, present, (image, group, split, valid), where)
            if not flags.columns:
                label_column(columns, present)  # raises if a label column is needed and missing
    except VitkitError as error:
        raise BadData(f"{path}: {error}") from None

    # The values of these columns
    names = []
    values = []
    splits = []
    valid_flags = []
    groups = []
    for line, row in chain([first], rows):
        lines.append(line)
        if image not in row or (label is not None and label not in row):
            raise BadData(
                f"{path} line {line} lacks {image!r} or {label!r}: {json.dumps(row)[:200]}"
            )
        names.append(relative_path(row[image], path.parent, f"{path} line {line}"))
        flags.add(row)
        if label is not None:
            values.append(_interned(row[label]))
        if split is not None:
            splits.append(_interned(row.get(split)))
        if valid is not None:
            valid_flags.append(_hashable(row.get(valid)))
        if group is not None:
            groups.append(_interned(row.get(group)))
    names = existing_names(path.parent, names)
    if not Path(path.parent, names[0]).exists():
        raise BadData(
            f"{at_row(where, 0)} names {names[0]!r}, and there is no such file in {path.parent or '.'}; "
            f"paths start there"
        )

    # The parts and groups of the rows
    parts = np.full(len(names), "", dtype=object)
    if split is not None:
        parts = as_parts(splits, where)
    about_parts: tuple[str, ...] = ()
    valid_parts = parts_of_valid(valid_flags)
    if valid_parts is not None:
        parts = valid_parts
        about_parts = (
            f"parts are those of the column {IS_VALID}: val where it is true, else train",
        )
    row_groups = None
    if group is not None:
        row_groups = np.array(groups, dtype=object)

    # Rows of the same image, each with one of its classes
    all_names = names
    first_rows = first_rows_of(names)
    joined_at = None
    kept = np.arange(len(names))
    if first_rows is not None and columns.target == "classes":
        check_same(where, "split", parts, first_rows)
        joined_at = first_rows
        kept = np.unique(first_rows)
        names = [names[i] for i in kept.tolist()]
        parts = parts[kept]
        if row_groups is not None:
            row_groups = row_groups[kept]
    files = Files.of(path.parent, names)

    indicators = flags.found(columns.target, joined_at)
    if indicators is not None:
        flagged, class_labels, notes = indicators
        notes = (*about_parts, *notes)
        if joined_at is None and first_rows is not None:
            notes += about_repeated(all_names, answers_of(indicators), first_rows)
        return Table(files, flagged[kept], parts, class_labels, notes, row_groups)
    if label is None:
        label_column(columns, present)
        notes = (*about_parts, *note_unlabelled(str(path), present, columns))
        return Table(files, None, parts, None, notes, row_groups)
    notes = about_parts
    if joined_at is not None:
        values = joined_rows(values, joined_at, where, columns)
    elif first_rows is not None:
        notes += about_repeated(all_names, values, first_rows)
    row_labels = as_row_labels(values, where, columns.target, columns.separator)
    return Table(files, row_labels, parts, None, notes, row_groups)


def _hashable(value):
    """Convert a list or an object of JSON to its text; return any other value unchanged."""
    if isinstance(value, list | dict):
        return str(value)
    return value


def _interned(value):
    """Intern a string, so that one that occurs a million times is in memory once; return other values
    unchanged."""
    if isinstance(value, str):
        return sys.intern(value)
    return value


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows, each with its line as a spreadsheet shows it. Raises VitkitError for a malformed file."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        head = file.readline()
        file.seek(0)
        delimiter = max(",;\t", key=head.count)
        try:
            lines = csv.reader(file, delimiter=delimiter, strict=True)
            names = [name.strip() for name in next(lines, [])]
            if len(set(names)) != len(names):
                raise BadData(f"{path} names a column twice: {', '.join(names)}")
            _check_heading(path, names, delimiter)
            for number, line in enumerate(lines, 2):
                if not line:
                    continue
                if len(line) != len(names):
                    raise BadData(
                        f"{path} line {number} has {counted(len(line), 'field')}, the first line {len(names)}"
                    )
                yield number, dict(zip(names, map(str.strip, line), strict=True))
        except csv.Error as error:
            raise BadData(f"{path} line {lines.line_num} is malformed: {error}") from None


def _check_heading(path: Path, names: Sequence[str], delimiter: str) -> None:
    """Raises VitkitError if one of the names of columns is an image and none is a usual one, so that the first
    line is no heading."""
    if any(name.lower() in PATH for name in names):
        return
    for name in names:
        image = path.parent / name
        # pathlib raises exceptions for names that are too long
        if image.suffix.lower() in IMAGE_SUFFIXES and os.path.isfile(image):  # noqa: PTH113
            raise BadData(
                f"{path}: the first line looks like a row of data, since {name} is an image; put a heading above "
                f"it, such as path{delimiter}label"
            )


def _json_rows(path: Path) -> Iterator[tuple[int, dict]]:
    """The rows, each with its line. Raises VitkitError for a malformed file."""
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = parse_json(line)
            except ValueError as error:
                raise BadData(f"{path} line {number} is not JSON: {error}") from None
            if not isinstance(row, dict) or not row:
                raise BadData(
                    f"{path} line {number} is not an object; "
                    f'expected {{"image": "a.jpg", "label": "cat"}}'
                )
            yield number, row


def relative_path(text, base: Path, where: str) -> str:
    """A path relative to the manifest's folder, whether it was relative or absolute, with or without
    "..". Raises VitkitError for one that leads out of the folder."""
    if isinstance(text, str) and text.isascii() and PLAIN_PATH.fullmatch(text):
        return text
    if isinstance(text, str):
        try:
            os.fsencode(text)
        except UnicodeEncodeError:  # half of a surrogate pair, which JSON may contain
            raise BadData(f"{where} has a path that no file can have: {text!r}") from None
    if not isinstance(text, str) or not text or "\0" in text:
        raise BadData(f"{where} has no usable path: {text!r}")
    if "\\" in text and not (base / text).exists():
        text = text.replace("\\", "/")  # written on Windows
    folder = PurePath(os.path.normpath(base.absolute()))
    path = PurePath(os.path.normpath(folder / text))
    if not path.is_relative_to(folder):
        raise BadData(
            f"{where} names {text!r}, which leads out of {folder}; put the manifest into "
            f"a folder above all of its images"
        )
    return path.relative_to(folder).as_posix()


# Lists


def read_lists(where: str, columns: Columns) -> Table | None:
    """The table of a folder with lists. Returns None for a folder without them. Raises VitkitError,
    with the line, if a list is malformed or a path leads out of the folder."""
    folder = Path(where)
    for layout in LISTS:
        if all((folder / file).is_file() for file in layout.values()):
            break
    else:
        return None
    names: list[str] = []
    values: list[str] = []
    parts = []
    for part, file in layout.items():
        before = len(names)
        _read_list(folder / file, names, values)
        parts += [part] * (len(names) - before)
        if len(names) == before:
            raise BadData(f"{folder / file} names no image")
    files = Files.of(folder, names)
    row_labels = as_row_labels(values, str(folder), columns.target, columns.separator)
    return Table(files, row_labels, np.array(parts, dtype=object), None, ())


def _read_list(path: Path, names: list[str], values: list[str]) -> None:
    """Append the path and the class of each line. Raises VitkitError for a malformed line."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name, _, value = line.strip().rpartition(" ")
        if not name or not value.isascii() or not value.isdigit():
            raise BadData(
                f"{path} line {number} is {line[:100]!r}; expected a path and the number of a "
                'class, such as "images/train/000000.jpg 12"'
            )
        names.append(relative_path(name, path.parent, f"{path} line {number}"))
        values.append(value)


# Selections


def read_selection(where: str, columns: Columns) -> dict | None:
    """The values of a selection; its "images" is the data set that it selects from. None if the file is no
    selection. Raises VitkitError for a malformed one."""
    if not where.endswith(SUFFIX) or not Path(where).is_file():
        return None
    if columns != Columns():
        raise BadData(f"{where} defines its own classes; leave out `data.columns`")
    try:
        values = parse_json(Path(where).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadData(f"{where} cannot be read: {error}") from None
    if not isinstance(values, dict) or {"images", "labels", "parts"} - values.keys():
        raise BadData(f"{where} is not a selection; it needs images, labels and parts")
    if not isinstance(values["parts"], dict):
        raise BadData(f"{where} has parts that are not an object")
    images = values["images"]
    if not isinstance(images, str) or images.endswith(SUFFIX):
        raise BadData(f"{where} selects from {images!r}; expected a path or an address")
    return values


def images_of_selection(where: str, selection: dict) -> str:
    """The name of the data set that a selection selects from.

    If `write_selection` wrote the file for this user, the name may be any. Any other file may come from a
    stranger, like a manifest: its name must be a path that is relative to its folder and stays below it.
    Raises VitkitError for any other name.
    """
    images = selection["images"]
    if _marker(Path(where).read_bytes()).exists():
        return images
    folder = Path(where).parent
    remedy = (
        f"a selection that was not written here names images below its own folder, {folder}; vitkit "
        "suite writes its own selections again"
    )
    refuse_recorded(images, where, remedy)
    if is_pattern(images) and not (folder / images).exists():
        raise BadData(f"{where} names the pattern {images!r}; {remedy}")
    return str(folder / relative_path(images, folder, where))


def _marker(content: bytes) -> Path:
    """The empty file in the cache that exists if this user wrote a selection with this content."""
    return cache_dir() / "selections" / hashlib.sha256(content).hexdigest()


def select(where: str, selection: dict, table: Table) -> Table:
    """The table of the images that a selection names. table: the table of all images. Raises VitkitError
    for a file that is malformed or names rows that do not exist."""
    count = len(table.parts)
    labels = selection["labels"]
    if not isinstance(labels, list) or not all(isinstance(name, str) for name in labels):
        raise BadData(f"{where} has labels that are not a list of names")
    parts = np.full(count, None, dtype=object)
    classes = np.zeros(count, np.int64)
    for part, chosen in selection["parts"].items():
        if part not in PART_NAMES:
            raise BadData(f"{where} has a part {part!r}; the parts are {', '.join(PART_NAMES)}")
        rows = _whole_numbers(where, part, "rows", chosen, count)
        numbers = _whole_numbers(where, part, "classes", chosen, len(labels))
        if len(rows) != len(numbers):
            raise BadData(f"{where} has {len(rows)} rows and {len(numbers)} classes in {part}")
        is_taken = any(earlier is not None for earlier in parts[rows])
        if is_taken or len(np.unique(rows)) != len(rows):
            raise BadData(f"{where} has a row of {part} twice")
        parts[rows] = part
        classes[rows] = numbers
    return table._replace(row_labels=classes, parts=parts, labels=tuple(labels))


def _whole_numbers(where: str, part: str, key: str, chosen: dict, limit: int) -> np.ndarray:
    """A list of the selection as int64 (N,). Raises VitkitError unless it holds whole numbers from 0 to
    limit - 1."""
    values = None
    if isinstance(chosen, dict):
        values = chosen.get(key)
    if not isinstance(values, list) or any(type(value) is not int for value in values):
        raise BadData(f"{where} has {key} of {part} that are not a list of whole numbers")
    for value in values:
        if not 0 <= value < limit:
            raise BadData(
                f"{where} has {value} among the {key} of {part}; there are {limit:,}, from 0: "
                "the images have changed, or the file is damaged"
            )
    return np.array(values, np.int64)


def write_selection(
    path: Path,
    images: str,
    labels: tuple[str, ...],
    rows: dict[str, np.ndarray],
    classes: dict[str, np.ndarray],
) -> None:
    """Write a selection, and record in the cache that this user wrote it. Raises OSError.

    rows: numbers of rows of the data set, by part, int64 (N,).
    classes: their classes, by part, int64 (N,).
    """
    parts = {}
    for part in rows:
        parts[part] = {"rows": rows[part].tolist(), "classes": classes[part].tolist()}
    values = {"images": images, "labels": labels, "parts": parts}
    content = json.dumps(values).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)
    marker = _marker(content)
    marker.parent.mkdir(parents=True, exist_ok=True)
    write_whole(marker, b"")
