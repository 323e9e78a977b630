"""Predictions as a file with one row per image: CSV, JSON lines or parquet.

Rows are written to FILE.partial as the predictions are made; the complete file is renamed to FILE.
"""

import csv
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import IO, Any, Protocol

from vitkit.prediction.predictions import Prediction
from vitkit.system.console.messages import as_spelled, say
from vitkit.system.console.text import counted, printable
from vitkit.system.errors import BadSettings, Unavailable
from vitkit.system.storage.files import MARK, as_utf8, cache_dir, check_replaceable, write_whole

PARTIAL = ".partial"  # suffix of a file that is being written
FORMULA = re.compile(r"[=+\-@]")  # the first character of a spreadsheet formula
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
ROW_GROUP = 1000  # rows per parquet row group


class RowFormat(Protocol):
    """A format that writes rows to an open file."""

    has_footer: bool
    """Whether a file without its end is unreadable."""

    def write(self, predictions: Sequence[Prediction], extra: Sequence[dict[str, str]]) -> None:
        """Write one row per prediction, with the values of its extra columns by name."""

    def close(self) -> None:
        """Write the remaining rows. The file stays open."""


class CsvRows:
    """name, label, probability, label_2, probability_2, ..., truth, error, and the extra columns.

    Text that a spreadsheet would read as a formula gets an apostrophe before it. Undecodable bytes of a
    file's name and control characters are escaped, since a terminal that prints the file would interpret
    them.
    """

    has_footer = False

    def __init__(self, file: IO[bytes], top: int, extra: Sequence[str]):
        self.file = file
        self.columns = columns(top, extra)
        self._write_lines([self.columns])

    def write(self, predictions: Sequence[Prediction], extra: Sequence[dict[str, str]]) -> None:
        lines = []
        for values in map(flat, predictions, extra):
            lines.append([csv_cell(values.get(column, "")) for column in self.columns])
        self._write_lines(lines)

    def _write_lines(self, lines: Iterable[Sequence[Any]]) -> None:
        text = StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(lines)
        self.file.write(as_utf8(text.getvalue()))

    def close(self) -> None:
        pass


def csv_cell(value: Any) -> Any:
    """A value as CSV: text without control characters, and with an apostrophe before it if a spreadsheet
    would read it as a formula."""
    if isinstance(value, str):
        value = printable(value, len(value))
        if FORMULA.match(value) and not NUMBER.fullmatch(value):
            return f"'{value}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value


class JsonRows:
    """JSON lines, as `--json` prints them."""

    has_footer = False

    def __init__(self, file: IO[bytes], top: int, extra: Sequence[str]):
        self.file = file

    def write(self, predictions: Sequence[Prediction], extra: Sequence[dict[str, str]]) -> None:
        lines = map(as_json, predictions, extra)
        self.file.write("".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None:
        pass


class ParquetWriter:
    """Parquet with the columns of CSV, unescaped text and float32 numbers."""

    has_footer = True

    def __init__(self, file: IO[bytes], top: int, extra: Sequence[str]):
        import pyarrow as pa
        import pyarrow.parquet as pq

        fields = []
        for column in columns(top, extra):
            kind = pa.string()
            if column.startswith("probability"):
                kind = pa.float32()
            fields.append((column, kind))
        self.schema = pa.schema(fields, metadata={"made": MARK})
        self.writer = pq.ParquetWriter(file, self.schema)
        self.waiting: list[dict[str, Any]] = []

    def write(self, predictions: Sequence[Prediction], extra: Sequence[dict[str, str]]) -> None:
        """Write one row per prediction, with its extra columns."""
        for values in map(flat, predictions, extra):
            for column, value in values.items():
                if isinstance(value, str):  # undecodable bytes become escapes
                    values[column] = value.encode("utf-8", "backslashreplace").decode()
            self.waiting.append(values)
        if len(self.waiting) >= ROW_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow as pa

        self.writer.write_table(pa.Table.from_pylist(self.waiting, self.schema))
        self.waiting = []

    def close(self) -> None:
        """Write the remaining rows and the footer of the file."""
        try:
            if self.waiting:
                self._write_group()
            self.writer.close()
        finally:
            self.writer.is_open = False  # or else pyarrow writes again when it is collected


FORMATS: dict[str, type[CsvRows] | type[JsonRows] | type[ParquetWriter]] = {
    ".csv": CsvRows,
    ".jsonl": JsonRows,
    ".parquet": ParquetWriter,
}
"""Row format by file suffix."""


def columns(top: int, extra: Sequence[str]) -> list[str]:
    """The columns of a file for the `top` most likely classes."""
    names = ["name", "label", "probability"]
    for place in range(2, top + 1):
        names += [f"label_{place}", f"probability_{place}"]
    return [*names, "truth", "error", *extra]


def flat(prediction: Prediction, extra: dict[str, str]) -> dict[str, Any]:
    """The values of a prediction by column, without missing values."""
    values: dict[str, Any] = {"name": prediction.name}
    pairs = zip(prediction.labels, prediction.probabilities, strict=True)
    for place, (label, probability) in enumerate(pairs, 1):
        number = "" if place == 1 else f"_{place}"
        values[f"label{number}"] = label
        values[f"probability{number}"] = probability
    if prediction.truth is not None:
        values["truth"] = prediction.truth
    if prediction.error is not None:
        values["error"] = as_spelled(prediction.error)
    if prediction.unknown is not None:
        values["unknown"] = "yes" if prediction.unknown else "no"
        values["possible"] = " | ".join(prediction.possible or ())
    return values | extra


def as_json(prediction: Prediction, extra: dict[str, str]) -> str:
    """A line of JSON: the fields of `as_values` and the extra columns."""
    return json.dumps(as_values(prediction) | extra)


def as_values(prediction: Prediction) -> dict[str, Any]:
    """A prediction's fields for JSON; only its name and error if it has an error."""
    if prediction.error is not None:
        return {"name": prediction.name, "error": as_spelled(prediction.error)}
    values = asdict(prediction)
    for name in ("label", "probability"):  # the first entries of `labels` and `probabilities`
        values.pop(name)
    if prediction.unknown is None:  # the model has no rejection thresholds
        values.pop("unknown")
        values.pop("possible")
    return values


# The file


class RowsFile:
    """A file of rows, as a context manager: the file is complete when the block ends. After an error
    or Ctrl-C the rows so far stay in FILE.partial, and FILE is not replaced."""

    def __init__(self, path: Path, top: int, extra: Sequence[str] = ()):
        """extra: names of additional columns. Raises VitkitError for a file that must not be replaced or
        cannot be written, and OSError."""
        check_rows_file(path)
        self.path = path
        self.partial = _partial(path)
        self.count = 0  # rows that were written, of which a buffer may still hold some
        self.kept = 0  # rows of these that are on the disk, and can be read there
        self.kept_bytes = 0
        self.is_broken = False  # whether writing has failed
        try:
            self.partial.parent.mkdir(parents=True, exist_ok=True)
            self.file = self.partial.open("wb")
        except OSError as error:
            raise BadSettings(f"{path} could not be written: {error.strerror or error}") from error
        self.rows: RowFormat = FORMATS[path.suffix.lower()](self.file, top, extra)

    def write(self, predictions: Sequence[Prediction], extra: Sequence[dict[str, str]]) -> None:
        """Write one row per prediction. Raises OSError with a readable message."""
        try:
            self.rows.write(predictions, extra)
            self.count += len(predictions)  # before the flush, which an interrupt may follow
            self.file.flush()
        except OSError as error:
            self.is_broken = True
            raise Unavailable(
                f"{self.path} could not be written: {error.strerror or error}"
            ) from error
        if not self.rows.has_footer:
            self.kept = self.count
            self.kept_bytes = self.file.tell()

    def __enter__(self) -> "RowsFile":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None:
            self._finish()
            return
        with suppress(OSError):  # the first error is the one to report
            self._close()
        with suppress(OSError):
            note_written(self.partial)
        if not self.kept:
            return
        rows = f"what was answered, {counted(self.kept, 'row')}"
        if self.is_broken:
            rows = counted(self.kept, "row")
        say(
            f"{printable(str(self.partial))} keeps {rows}; the same command answers all images again, "
            "batch goes on where it ended"
        )

    def _finish(self) -> None:
        """Rename the complete file to its final name."""
        try:
            self._close()
            self.partial.replace(self.path.resolve())  # replaces a link's target, not the link
        except OSError as error:
            with suppress(OSError):
                note_written(self.partial)
            sentence = f"{self.path} could not be written: {error.strerror or error}"
            if self.kept == self.count:
                sentence += f"; the rows are in {self.partial}"
            elif self.kept:
                sentence += f"; {self.partial} keeps {counted(self.kept, 'row')}"
            raise Unavailable(sentence) from error
        note_written(self.path)

    def _close(self) -> None:
        """Write the remaining rows, and close the file. Raises OSError. If writing fails, or has failed, only
        complete rows that reached the disk stay in the file."""
        try:
            if not self.is_broken:
                self.rows.close()  # a parquet file without its footer is unreadable
                self.file.flush()
                os.fsync(self.file.fileno())
                self.kept = self.count
        except OSError:
            self.is_broken = True
            raise
        finally:
            if self.is_broken:
                self._keep_complete_rows()
            else:
                self.file.close()

    def _keep_complete_rows(self) -> None:
        """Close the file after an error, and cut off what is not a complete row."""
        with suppress(OSError, ValueError):  # pyarrow's errors are ValueErrors too
            self.rows.close()
        with suppress(OSError):  # it tries again to write what a full disk did not take
            self.file.close()
        with suppress(OSError):
            os.truncate(self.partial, self.kept_bytes)


def check_rows_file(path: Path) -> None:
    """Raises VitkitError for an unknown suffix, for a file that vitkit did not write or that was edited
    since, for a file that cannot be written, and for a FILE.partial of a killed command."""
    if path.suffix.lower() not in FORMATS:
        raise BadSettings(
            f"`to` is {path}; its ending says what it is: {', '.join(FORMATS)}, such as answers.csv"
        )
    partial = _partial(path)
    if partial.is_file() and partial.stat().st_size and not was_written(partial):
        raise BadSettings(
            f"{partial} exists: it holds the rows of a killed command, or is a file of another "
            "program; rename or remove it, and the same command classifies all images again (vitkit "
            "batch continues where it stopped)"
        )
    for file in (path, partial):
        if not (file.is_file() and was_written(file)):
            check_replaceable(file)


def _partial(path: Path) -> Path:
    """The path of FILE.partial, beside the target of a link."""
    target = path.resolve()
    return target.with_name(target.name + PARTIAL)


# CSV and JSON lines cannot hold a mark that other programs would not read as a row, so the cache
# keeps the digests of the files that vitkit wrote.


def _note_of(path: Path) -> Path:
    """The file in the cache that exists if vitkit wrote a file with these bytes."""
    with path.open("rb") as file:
        return cache_dir() / "written" / hashlib.file_digest(file, "sha256").hexdigest()


def note_written(path: Path) -> None:
    """Note that vitkit wrote this file."""
    note = _note_of(path)
    with suppress(OSError):  # without a cache the file counts as the user's and is never replaced
        note.parent.mkdir(parents=True, exist_ok=True)
        write_whole(note, b"")


def was_written(path: Path) -> bool:
    """Whether vitkit wrote this file and it is unchanged since."""
    return _note_of(path).exists()


def check_rows(to: Path | None, json: bool) -> None:
    """Raises VitkitError if the file cannot be written, or if both `to` and `json` are given."""
    if to is None:
        return
    from vitkit.prediction.rows import check_rows_file

    check_rows_file(to)
    if json:
        raise BadSettings(f"`json` prints what `to={str(to)!r}` writes; give one of them")
