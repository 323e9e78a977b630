"""Manifests: CSV, TSV or JSON lines, a row for each image: its path, its label, and maybe the split it belongs to."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path, PurePath

import numpy as np

from vitkit.data.stores import Files
from vitkit.data.tables import LABEL, PATH, Columns, Table, as_labels, as_parts, pick

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")


def read_manifest(path: Path, columns: Columns) -> Table:
    """The table of a manifest. Paths in it start from its own folder, and may not leave it: a manifest is a file that
    people pass on, and must not be able to name other files of the reader's.

    Raises ValueError, with the row, for what is malformed.
    """
    try:
        rows = list(_json_rows(path) if path.suffix.lower() in (".jsonl", ".ndjson") else _csv_rows(path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if not rows:
        raise ValueError(f"{path} has no rows")
    present = list(rows[0])
    try:
        image = pick(columns.image, PATH, present, "columns.image")
        label = pick(columns.label, LABEL, present, "columns.label")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    base, names = path.parent, []
    for number, row in enumerate(rows):
        if image not in row or label not in row:
            raise ValueError(f"{path} row {number} lacks {image!r} or {label!r}: {json.dumps(row)[:200]}")
        names.append(_inside(row[image], base, f"{path} row {number}"))
    if not Path(base, names[0]).exists():
        raise ValueError(
            f"{path} row 0 names {names[0]!r}, and there is no such file in {base or '.'}; paths start there"
        )
    split = [name for name in present if name.lower() == "split"]
    parts = as_parts([row.get(split[0]) for row in rows], str(path)) if split else np.full(len(rows), "", dtype=object)
    return Table(Files.of(base, names), as_labels([row[label] for row in rows], str(path)), parts, None, ())


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
                        f"{path} line {lines.line_num} has {len(line)} fields, the first line {len(names)}"
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
                raise ValueError(f'{path} line {number} is no object; expected {{"image": "a.jpg", "label": "cat"}}')
            yield row


def _inside(text, base: Path, where: str) -> str:
    """A path relative to the manifest's folder. Raises ValueError for one that leads out of it."""
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(f"{where} has no usable path: {text!r}")
    path = PurePath(text)
    if path.is_absolute() and path.is_relative_to(base.absolute()):
        path = path.relative_to(base.absolute())
    if path.is_absolute() or path.drive or ".." in path.parts:
        raise ValueError(
            f"{where} names {text!r}, which leads out of {base.absolute()}; put the manifest into a folder above all of its "
            f"images and write the paths from there"
        )
    return path.as_posix()
