"""Manifests: CSV, TSV or JSON lines, a row for each image: its path, its label, and maybe the split
it belongs to."""

import csv
import json
import os
import re
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path, PurePath

import numpy as np

from vitkit.data.sources.parts import as_parts
from vitkit.data.sources.row_labels import as_row_labels
from vitkit.data.sources.stores import Files
from vitkit.data.sources.tables import PATH, Columns, Table, image_column, label_column, unlabelled

MANIFEST_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
# A relative path that cannot lead out of its folder. Most are, and a regular expression is quicker
# than pathlib.
_NAME = r"[^./\\:\0][^/\\:\0]*"
PLAIN_PATH = re.compile(rf"{_NAME}(?:/{_NAME})*")


def read_manifest(where: str, columns: Columns) -> Table | None:
    """The table of a manifest.

    Paths in it start from its own folder, or are absolute; all must lead to files in that folder:
    a manifest is a file that people pass on, and must not be able to name other files of the
    reader's.

    Returns None if this is not a manifest. Raises ValueError, with the row, for what is malformed.
    """
    path = Path(where)
    if not path.is_file() or path.suffix.lower() not in MANIFEST_SUFFIXES:
        return None
    try:
        json_lines = path.suffix.lower() in (".jsonl", ".ndjson")
        rows = _json_rows(path) if json_lines else _csv_rows(path)
        return _table(path, rows, columns)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error


def _table(path: Path, rows: Iterator[dict], columns: Columns) -> Table:
    """The table of a manifest's rows.

    Of every row only path, label and split stay in memory: dictionaries of millions of rows would
    be gigabytes.
    """
    first = next(rows, None)
    if first is None:
        raise ValueError(f"{path} has no rows")

    # Which columns matter.
    present = list(first)
    try:
        image = image_column(columns, present, PATH)
        label = label_column(columns, present)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    split = next((name for name in present if name.lower() == "split"), None)

    # What they hold.
    names = []
    values = []
    splits = []
    for number, row in enumerate(chain([first], rows)):
        if image not in row or (label is not None and label not in row):
            raise ValueError(
                f"{path} row {number} lacks {image!r} or {label!r}: {json.dumps(row)[:200]}"
            )
        names.append(relative_path(row[image], path.parent, f"{path} row {number}"))
        if label is not None:
            values.append(_interned(row[label]))
        if split is not None:
            splits.append(_interned(row.get(split)))
    if not Path(path.parent, names[0]).exists():
        raise ValueError(
            f"{path} row 0 names {names[0]!r}, and there is no such file in {path.parent or '.'}; "
            f"paths start there"
        )

    # The files, their parts and their labels.
    files = Files.of(path.parent, names)
    parts = np.full(len(names), "", dtype=object)
    if split is not None:
        parts = as_parts(splits, str(path))
    if label is not None:
        row_labels = as_row_labels(values, str(path), columns.target)
        return Table(files, row_labels, parts, None, ())
    notes = ()
    if columns.target != "none":
        notes = (unlabelled(str(path), present),)
    return Table(files, None, parts, None, notes)


def _interned(value):
    """The same value; text that comes a million times is in memory once."""
    if isinstance(value, str):
        return sys.intern(value)
    return value


def _csv_rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        head = file.readline()
        file.seek(0)
        delimiter = max(",;\t", key=head.count)
        try:
            lines = csv.reader(file, delimiter=delimiter, strict=True)
            names = [name.strip() for name in next(lines, [])]
            if len(set(names)) != len(names):
                raise ValueError(f"{path} names a column twice: {', '.join(names)}")
            for line in lines:
                if not line:
                    continue
                if len(line) != len(names):
                    raise ValueError(
                        f"{path} line {lines.line_num} has {len(line)} fields, "
                        f"the first line {len(names)}"
                    )
                yield dict(zip(names, map(str.strip, line), strict=True))
        except csv.Error as error:
            raise ValueError(f"{path} line {lines.line_num} is malformed: {error}") from None


def _json_rows(path: Path) -> Iterator[dict]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path} line {number} is not JSON: {error}") from None
            if not isinstance(row, dict) or not row:
                raise ValueError(
                    f"{path} line {number} is not an object; "
                    f'expected {{"image": "a.jpg", "label": "cat"}}'
                )
            yield row


def relative_path(text, base: Path, where: str) -> str:
    """A path from the manifest's folder, however it is written: relative or absolute, with or
    without "..". Raises ValueError for one that lies elsewhere."""
    if isinstance(text, str) and PLAIN_PATH.fullmatch(text):
        return text
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(f"{where} has no usable path: {text!r}")
    folder = PurePath(os.path.normpath(base.absolute()))
    path = PurePath(os.path.normpath(folder / text))
    if not path.is_relative_to(folder):
        raise ValueError(
            f"{where} names {text!r}, which leads out of {folder}; put the manifest into "
            f"a folder above all of its images"
        )
    return path.relative_to(folder).as_posix()
