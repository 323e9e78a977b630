"""Parquet files of images, as Hugging Face's `datasets` writes and names them."""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.data.formats.hub import (
    class_names,
    column_labels,
    find_columns,
    flags_in,
    indicators_of,
    may_hold_flags,
)
from vitkit.data.formats.manifest import relative_path
from vitkit.data.formats.repeated_rows import (
    about_repeated,
    answers_of,
    check_same,
    first_rows_of,
    joined_rows,
    listed_values,
    repeated,
)
from vitkit.data.loading.workers import Crashed, in_child
from vitkit.data.sources.indicators import Flags
from vitkit.data.sources.stores import ChunkCache, RowRanges, read_file, titles
from vitkit.data.sources.tables import (
    Columns,
    Table,
    as_parts,
    group_column,
    label_column,
    note_unlabelled,
)
from vitkit.data.sources.targets import Values, as_row_labels, concatenate_values
from vitkit.system.errors import BadData, BadImage, VitkitError
from vitkit.system.storage import remote
from vitkit.system.storage.addresses import shown_address
from vitkit.system.storage.files import cache_dir, parse_json, write_whole

INFLATION = 100  # largest accepted ratio of a column's size in memory to its size on disk
SMALL = 1 << 24  # bytes or rows that are always accepted


@dataclass(frozen=True, eq=False)
class ParquetRows:
    """The image column of parquet files.

    Row groups that have been read are cached, within a limit.

    Legend: G row groups of all files.
    """

    files: tuple[str, ...]
    column: str
    file_groups: RowRanges
    """Row groups of each file."""
    group_ranges: RowRanges
    """Rows of each row group."""
    file_ranges: RowRanges
    """Rows of each file."""
    sizes: np.ndarray
    """(G,): bytes of the column in each row group."""
    titles: Sequence[str]
    """Name of each file in messages."""
    cache: ChunkCache
    """Arrow arrays by group."""

    def read(self, row: int) -> bytes:
        """The image's bytes, from the row or from the file that it names. Raises BadImage if the row has no
        image, or if the file is damaged there."""
        group, group_row = self.group_ranges.locate(row)
        data = self.cache.get(group, self._load)[group_row].as_py()
        path = data
        if isinstance(data, dict):
            path = data.get("path")
            data = data.get("bytes")
        if isinstance(data, bytes) and data:
            return data
        empty = f"{self.name(row)} has no image: column {self.column!r} is empty there"
        if not path:
            raise BadImage(empty)
        return self._read_named_file(row, path, empty)

    def _read_named_file(self, row: int, path: str, empty: str) -> bytes:
        """The image at a path relative to the folder of the row's file. Raises BadImage for a path that leads
        out of it, and if there is no file."""
        file, _ = self.file_ranges.locate(row)
        if remote.is_address(self.files[file]):
            raise BadImage(f"{empty}, but for a path, and paths are not read at an address")
        folder = Path(self.files[file]).parent
        try:
            image = folder / relative_path(path, folder, self.name(row))
        except ValueError as error:
            raise BadImage(str(error)) from None
        if not image.exists():
            raise BadImage(f"{empty}, but for the path {path!r}, and there is no {image}")
        return read_file(str(image))

    def name(self, row: int) -> str:
        file, file_row = self.file_ranges.locate(row)
        return f"{self.titles[file]} row {file_row}"

    def identity(self, row: int) -> str:
        return f"{self.name(row)} {self.sizes[self.group_ranges.tables(row)]}"

    def chunks(self, rows: np.ndarray) -> tuple[np.ndarray, int] | None:
        """The row group of each row, unless all row groups fit in memory."""
        return self.cache.windows(self.group_ranges.tables(rows))

    def keeping(self, chunks: int) -> "ParquetRows":
        return replace(self, cache=self.cache.keeping(chunks))

    def prepare(self, rows: np.ndarray) -> None:
        """Read the row groups of these rows, if all fit in memory."""
        self.cache.fill(self.group_ranges.tables(rows), self._load)

    def _load(self, group: int):
        """The image column of a row group. Raises BadImage for a damaged file, OSError for an
        address that fails."""
        import pyarrow as pa

        file, index = self.file_groups.locate(group)
        path = self.files[file]
        try:
            with remote.parquet_file(path) as opened:
                rows = opened.read_row_group(index, columns=[self.column], use_threads=False)
                return rows.column(0)
        except (pa.ArrowException, OSError) as error:
            if remote.is_address(path) and isinstance(error, OSError):
                raise  # a failure of the network, not damage
            raise BadImage(
                f"{shown_address(path)} is damaged: {str(error).splitlines()[0]}"
            ) from error


class _File(NamedTuple):
    """The metadata of a parquet file, and its labels."""

    schema: tuple[str, str | None, tuple[str, ...] | None]
    """The columns of the images and of the labels, and the names of the classes, if there are any. Equal
    in all files of a data set."""
    labels: Values
    """The label of every row, for `as_row_labels`; empty without a label column."""
    splits: list[str]
    """The part of every row; empty without a column "split"."""
    group_rows: list[int]
    """Rows of each row group."""
    group_sizes: list[int]
    """Bytes of the image column in each row group."""
    columns: list[str]
    """Names of all columns."""
    groups: list
    """The group of every row; empty without a column of groups."""
    names: list[str | None]
    """The path of every image, None for an image that is stored as bytes; empty if the column of images
    holds only bytes."""
    flags: dict[str, list]
    """The values of each column that may hold zeros and ones; empty if there is a column of labels."""


def read_parquet(files: dict[str, str], columns: Columns) -> Table:
    """The table of parquet files, given the part that each belongs to ("" for none).

    Only labels are read here, images later.

    Class names come from the header that `datasets` leaves in the schema. Raises VitkitError for
    what is missing, malformed, or differs between files.
    """
    # Columns and class names, which must be equal in all files
    opened = _open_all(list(files), columns)
    paths = list(map(Path, files))
    image, label, class_labels = opened[0].schema
    for path, file in zip(files, opened, strict=True):
        if file.schema != opened[0].schema:
            raise BadData(
                f"{path} has other columns or class names than {paths[0].name}; "
                f"they do not belong to one data set"
            )

    # The position of each image
    group_rows = []
    group_sizes = []
    for file in opened:
        group_rows += file.group_rows
        group_sizes += file.group_sizes
    if not sum(group_rows):
        raise BadData(f"{', '.join(files)} has no rows")
    file_rows = [sum(file.group_rows) for file in opened]
    size = sum(group_sizes)
    store = ParquetRows(
        files=tuple(files),
        column=image,
        file_groups=RowRanges.of([len(file.group_rows) for file in opened]),
        group_ranges=RowRanges.of(group_rows),
        file_ranges=RowRanges.of(file_rows),
        sizes=np.array(group_sizes),
        titles=titles(list(files)),
        cache=ChunkCache(list(files), size, (size, len(group_sizes))),
    )

    # The part of each row, from a column or from the file's name
    parts_of_files = []
    for file_path, of_file, part, count in zip(
        paths, opened, files.values(), file_rows, strict=True
    ):
        if of_file.splits:
            parts_of_files.append(as_parts(of_file.splits, file_path.name))
        else:
            parts_of_files.append(np.full(count, part, dtype=object))
    parts = np.concatenate(parts_of_files)

    # The group of each row
    groups = None
    if columns.group is not None:
        values = [value for file in opened for value in file.groups]
        groups = np.array([*values, None], dtype=object)[:-1]  # values may be lists

    # Rows of the same image, which name the same file
    title = ", ".join(path.name for path in paths)
    names: list[str | int] = []
    notes: tuple[str, ...]
    first_rows = None
    joined_at = None
    if any(file.names for file in opened):
        names = _names_of(files, opened)
        first_rows = first_rows_of(names)
    if first_rows is not None and columns.target == "classes":
        check_same(title, "split", parts, first_rows)
        joined_at = first_rows
        parts[first_rows != np.arange(len(first_rows))] = None

    if label is not None:
        labels = concatenate_values([file.labels for file in opened])
        notes = ()
        if joined_at is not None:
            labels = repeated(joined_rows(labels, joined_at, title, columns), joined_at)
        elif first_rows is not None:
            notes = about_repeated(names, listed_values(labels), first_rows)
        row_labels = as_row_labels(labels, title, columns.target, columns.separator)
        return Table(store, row_labels, parts, class_labels, notes, groups)
    flags = _flags(columns, opened[0].columns, image, title)
    indicators = indicators_of(flags, [file.flags for file in opened], columns.target, joined_at)
    if indicators is not None:
        row_labels, class_labels, notes = indicators
        if joined_at is None and first_rows is not None:
            notes += about_repeated(names, answers_of(indicators), first_rows)
        return Table(store, row_labels, parts, class_labels, notes, groups)
    label_column(columns, opened[0].columns)
    notes = note_unlabelled(title, opened[0].columns, columns)
    return Table(store, None, parts, None, notes, groups)


def _names_of(files: dict[str, str], opened: list[_File]) -> list[str | int]:
    """An identity of the image in each row: the file that the row names, or the row's own number."""
    names: list[str | int] = []
    for file, content in zip(files, opened, strict=True):
        folder = os.path.dirname(file)  # noqa: PTH120 it may be an address
        if not content.names:
            names += range(len(names), len(names) + sum(content.group_rows))
        for path in content.names:
            if path:
                names.append(os.path.normpath(f"{folder}/{path}"))
            else:
                names.append(len(names))
    return names


def _flags(columns: Columns, present: list[str], image: str, where: str) -> Flags:
    """The columns that may hold zeros and ones, one for each class."""
    others = [name for name in present if name.lower() == "split"]
    return Flags.among(columns, present, (image, columns.group, *others), where)


def _open_all(files: list[str], columns: Columns) -> list[_File]:
    """Read everything but the images of these files.

    Damaged metadata may crash the process in pyarrow; a single bit is enough. So remote files, and
    local ones that were not opened before, are opened in a child process.
    """
    remembered = _remembered(files, columns)
    if remembered is not None and remembered.exists():
        return [_open(file, columns) for file in files]
    try:
        opened = list(in_child(partial(_open, columns=columns), files))
    except Crashed as crash:
        raise BadData(
            f"{crash.args[0]} is not a readable parquet file: its metadata is damaged, so that "
            "pyarrow crashes on it; download it again"
        ) from None
    if remembered is not None:
        with suppress(OSError):  # without a cache, the files are checked again next time
            remembered.parent.mkdir(parents=True, exist_ok=True)
            write_whole(remembered, b"")
    return opened


def _remembered(files: list[str], columns: Columns) -> Path | None:
    """The file in the cache that exists if these files, unchanged since, were opened before; None if one
    of them is remote."""
    import pyarrow as pa

    if any(map(remote.is_address, files)):
        return None
    try:
        states = [remote.state_of(file) for file in files]
    except OSError:  # a missing file, which is reported when it is opened
        return None
    digest = hashlib.sha256(
        "\n".join([pa.__version__, str(columns), *states]).encode("utf-8", "surrogateescape")
    )
    return cache_dir() / "parquet" / digest.hexdigest()


def _open(file: str, columns: Columns) -> _File:
    """Read everything but the images of a file. Raises VitkitError for a file that is damaged or lacks
    columns, OSError for an address that fails."""
    import pyarrow as pa

    try:
        with remote.parquet_file(file) as opened:
            schema = opened.schema_arrow
            features = _features(schema.metadata or {})
            image, label = _columns(schema, features, columns)
            groups = [opened.metadata.row_group(i) for i in range(opened.metadata.num_row_groups)]
            sizes = [_column_size(group, image) for group in groups]
            split = next((name for name in schema.names if name.lower() == "split"), None)
            group = group_column(columns, schema.names)
            wanted = [name for name in (label, split, group) if name is not None]
            read = opened.read(columns=list(dict.fromkeys(wanted)))
            labels: Values = []
            if label is not None:
                labels = column_labels(read.column(label))
            splits = []
            if split is not None:
                splits = read.column(split).to_pylist()
            row_groups = []
            if group is not None:
                row_groups = read.column(group).to_pylist()
            names = []
            if _holds_paths(schema.field(image).type):
                names = _paths_in(opened.read(columns=[image]).column(0))
            flags = {}
            if label is None:
                flag_columns = _flags(columns, schema.names, image, file)
                for name in flag_columns.columns:
                    if flag_columns.are_named:
                        flags[name] = opened.read(columns=[name]).column(0).to_pylist()
                    elif may_hold_flags(schema.field(name).type):
                        flags[name] = _flags_in(opened, name)
    except (pa.ArrowException, OSError) as error:
        if remote.is_address(file) and isinstance(error, OSError):
            raise  # its message is complete
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BadData(f"{file} is not a readable parquet file: {reason}") from None
    except VitkitError as error:
        raise BadData(f"{file}: {error}") from None
    return _File(
        schema=(image, label, class_names(features.get(label))),
        labels=labels,
        splits=splits,
        group_rows=[group.num_rows for group in groups],
        group_sizes=sizes,
        columns=schema.names,
        groups=row_groups,
        names=names,
        flags={name: values for name, values in flags.items() if values is not None},
    )


def _flags_in(opened, name: str) -> list | None:
    """The values of a column that may hold zeros and ones; None for another column. The first row group
    suffices to exclude most other columns, such as captions."""
    groups = range(opened.metadata.num_row_groups)
    if groups and flags_in(opened.read_row_group(0, columns=[name]).column(0)) is None:
        return None
    return flags_in(opened.read(columns=[name]).column(0))


def _column_size(group, column: str) -> int:
    """Bytes of a column of images in a row group. Its fields ("image.bytes") are stored as columns of
    their own. Raises VitkitError for a row group that would take far more memory than it takes on disk."""
    size = 0
    stored = 0
    for number in range(group.num_columns):
        field = group.column(number)
        if field.path_in_schema.split(".")[0] == column:
            size += field.total_uncompressed_size
            stored += field.total_compressed_size
    if not 0 <= size <= INFLATION * stored + SMALL:
        raise BadData(
            f"a row group would take {size:,} bytes of memory, but {stored:,} on disk, and images hardly "
            "compress; the file is damaged or malicious"
        )
    if not 0 <= group.num_rows <= size + SMALL:
        raise BadData(
            f"a row group has {group.num_rows:,} rows, but {size:,} bytes of images for all of them; the "
            "file is damaged or malicious"
        )
    return size


def _features(metadata: dict[bytes, bytes]) -> dict:
    """The descriptions of columns by `datasets` in the schema: column -> description; {} if there are
    none, or if they are malformed."""
    try:
        return dict(parse_json(metadata[b"huggingface"])["info"]["features"])
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _columns(schema, features: dict, columns: Columns) -> tuple[str, str | None]:
    """The columns of images and of labels. Raises VitkitError if the column of images cannot be found or
    has another type."""
    import pyarrow.types as types

    image, label = find_columns(schema.names, features, columns)
    kind = schema.field(image).type
    is_path = _holds_paths(kind)
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    is_bytes = types.is_binary(kind) or types.is_large_binary(kind)
    if not is_bytes and not is_path:
        raise BadData(
            f"column {image!r} holds {schema.field(image).type}; "
            f"expected the images' bytes, plain or as {{bytes, path}}, or their paths"
        )
    return image, label


def _holds_paths(kind) -> bool:
    """Whether a column of an arrow type holds only paths: text, or {bytes, path} where bytes is null."""
    import pyarrow.types as types

    if types.is_struct(kind) and kind.get_field_index("path") >= 0:
        has_bytes = kind.get_field_index("bytes") >= 0
        if has_bytes and not types.is_null(kind.field("bytes").type):
            return False
        kind = kind.field("path").type
    return types.is_string(kind) or types.is_large_string(kind)


def _paths_in(column) -> list[str | None]:
    """The path in each row of a column that holds only paths."""
    values = column.to_pylist()
    return [value.get("path") if isinstance(value, dict) else value for value in values]
