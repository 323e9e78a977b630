"""Data sets of the Hugging Face hub, by name or from a directory that `datasets` wrote: memory-mapped,
with random access. Parquet files use some of its functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vitkit.data.formats.manifest import relative_path
from vitkit.data.sources.indicators import Flags, Indicators, named_columns
from vitkit.data.sources.recorded import HUB
from vitkit.data.sources.stores import RowRanges, Store, read_file
from vitkit.data.sources.tables import (
    IMAGE,
    PARTS,
    PATH,
    Columns,
    Table,
    group_column,
    image_column,
    label_column,
    note_unlabelled,
)
from vitkit.data.sources.targets import Lists, as_row_labels, concatenate_values
from vitkit.system.errors import BadData, BadImage, VitkitError
from vitkit.system.storage.files import parse_json

MOST_FLAGS = 5  # distinct values of a column of zeros and ones: 0, 1, -1, NaN and null
SAMPLE = 10_000  # rows that suffice to exclude most other columns, such as captions
SAVED = ("dataset_dict.json", "state.json")  # files that save_to_disk writes into a directory


@dataclass(frozen=True, eq=False)
class HubRows(Store):
    """Rows of memory-mapped tables, with their images as stored."""

    title: str
    tables: tuple[Any, ...]
    """Each a datasets.Dataset."""
    column: str
    ranges: RowRanges
    """The rows of each table."""

    def read(self, row: int) -> bytes:
        """The image's bytes. Raises BadImage for a row that has none."""
        table, table_row = self.ranges.locate(row)
        value = self.tables[table][table_row][self.column]
        data = value
        if isinstance(value, dict):
            data = value.get("bytes")
            if not data and value.get("path"):
                data = self._file(value["path"], row)
        if not data:
            raise BadImage(f"{self.name(row)} has no image: column {self.column!r} is empty there")
        return data

    def name(self, row: int) -> str:
        table, table_row = self.ranges.locate(row)
        return f"{self.title} {self.tables[table].split or ''} row {table_row}"

    def identity(self, row: int) -> str:
        table, table_row = self.ranges.locate(row)
        return f"{self.tables[table].split or ''} row {table_row} {self._sizes[table]}"

    @cached_property
    def _sizes(self) -> list[int]:
        """Bytes of each table."""
        return [table.data.nbytes for table in self.tables]

    def _file(self, path: str, row: int) -> bytes:
        """Read a file that a row names. It must lie in the hub's own cache, because a table may name any
        file of this machine."""
        from datasets import config

        file = Path(path).resolve()
        homes = [Path(home).resolve() for home in (config.HF_CACHE_HOME, config.HF_DATASETS_CACHE)]
        if not any(file.is_relative_to(home) for home in homes):
            raise BadImage(
                f"{self.name(row)} names the file {path}, outside of the hub's cache; "
                f"it is not read"
            )
        return read_file(path)


def read_hub(where: str, columns: Columns) -> Table | None:
    """Read "hf:NAME", "hf:NAME@REVISION" or "hf:NAME:CONFIG", downloaded once and cached, or a directory
    that `save_to_disk` wrote.

    Returns None for anything else. Raises VitkitError if the data set does not exist, the network fails,
    or columns cannot be found.
    """
    if not where.startswith(HUB) and not any((Path(where) / name).is_file() for name in SAVED):
        return None
    try:
        import datasets
    except ImportError:
        raise BadData(f"to read {where}: pip install 'vitkit[hf]'") from None

    # The splits that are parts; all splits if none has the name of a part
    splits = {name: split for name, split in _load(datasets, where).items() if len(split)}
    if not splits:
        raise BadData(f"{where} has no rows")
    notes: tuple[str, ...] = ()
    parts = {name: PARTS.get(name.lower(), "") for name in splits}
    others = [name for name, part in parts.items() if not part]
    if others and len(others) < len(splits):
        notes = (f"left out: the splits {', '.join(others)}, which are none of {', '.join(PARTS)}",)
        splits = {name: split for name, split in splits.items() if name not in others}

    # The columns of images, labels and groups
    first = next(iter(splits.values()))
    features = first.features.to_dict()
    names = list(features)
    try:
        image, label = find_columns(names, features, columns)
        group = group_column(columns, names)
    except VitkitError as error:
        raise BadData(f"{where}: {error}") from None

    # Images stay encoded
    if _holds(features[image], "Image"):
        encoded = datasets.Image(decode=False)
        splits = {name: split.cast_column(image, encoded) for name, split in splits.items()}
    counts = list(map(len, splits.values()))
    tables = tuple(split.select_columns([image]) for split in splits.values())
    store = HubRows(where, tables, image, RowRanges.of(counts))
    part_of_row = np.repeat(np.array([parts[name] for name in splits], dtype=object), counts)

    groups = None
    if group is not None:
        values = [value for split in splits.values() for value in split[group][:]]
        groups = np.array([*values, None], dtype=object)[:-1]  # values may be lists

    if label is None:
        flags = Flags.among(columns, names, (image, group), where)
        found = []
        for split in splits.values():
            arrow = split.with_format("arrow")
            values_of = {}
            for name in flags.columns:
                column = arrow[name][:]
                if flags.are_named:
                    values_of[name] = column.to_pylist()
                elif flags_in(column[:SAMPLE]) is not None:
                    values_of[name] = flags_in(column)
            found.append({name: each for name, each in values_of.items() if each is not None})
        indicators = indicators_of(flags, found, columns.target)
        if indicators is not None:
            notes += indicators.notes
            flagged, class_labels, _ = indicators
            return Table(store, flagged, part_of_row, class_labels, notes, groups)
        label_column(columns, names)
        notes += note_unlabelled(where, names, columns)
        return Table(store, None, part_of_row, None, notes, groups)
    labels = [column_labels(split.with_format("arrow")[label][:]) for split in splits.values()]
    row_labels = as_row_labels(concatenate_values(labels), where, columns.target, columns.separator)
    return Table(store, row_labels, part_of_row, class_names(features[label]), notes, groups)


def _load(datasets, where: str) -> dict[str, Any]:
    """Load a data set: split -> datasets.Dataset."""
    try:
        if not where.startswith(HUB):
            _check_saved(Path(where))
            loaded = datasets.load_from_disk(where)
        else:
            name, _, config = where.removeprefix(HUB).partition(":")
            name, _, revision = name.partition("@")
            loaded = datasets.load_dataset(name, config or None, revision=revision or None)
    except Exception as error:  # any error of the hub, the network, the disk or pyarrow
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise BadData(f"{where} cannot be opened: {reason}") from error
    if isinstance(loaded, dict):
        return dict(loaded)
    return {"": loaded}


def _check_saved(folder: Path) -> None:
    """Check the JSON of a saved directory, because `datasets` opens every file that it names.

    Raises VitkitError if it names a file or a folder outside of the directory, OSError if it cannot be
    read.
    """
    of_all = folder / "dataset_dict.json"
    folders = [folder]  # `datasets` may read it although there is a dataset_dict.json
    if of_all.is_file():
        folders += [folder / name for name in _names_in(of_all, "splits")]
    for each in folders:
        if (each / "state.json").is_file():
            _names_in(each / "state.json", "_data_files")


def _names_in(file: Path, key: str) -> list[str]:
    """The names of files or folders in the JSON of a saved directory. Raises VitkitError for a name that
    leads out of the directory, OSError if the JSON cannot be read."""
    names = []
    for entry in dict(parse_json(file.read_bytes()))[key]:
        name = entry["filename"] if isinstance(entry, dict) else entry
        names.append(relative_path(name, file.parent, file.name))
    return names


# Columns of arrow tables and their descriptions by `datasets`, for the hub and for parquet files


def find_columns(names: list[str], features: dict, columns: Columns) -> tuple[str, str | None]:
    """Find the columns of images and of labels. The latter is None if there is none, or if each class
    has a column of its own. Raises VitkitError if the column of images cannot be found.

    features: descriptions of some columns by `datasets`.
    """
    images = [name for name in names if _holds(features.get(name), "Image")]
    classes = [name for name in names if _holds(features.get(name), "ClassLabel")]
    known: tuple[str, ...] = IMAGE
    if not images and not any(name.lower() in IMAGE for name in names):
        known = PATH
    image = image_column(columns, names, known, images)
    if named_columns(columns, names):
        return image, None
    return image, label_column(columns, names, classes, is_needed=False)


def may_hold_flags(kind) -> bool:
    """Whether a column of an arrow type may hold zeros and ones although the user did not name it."""
    import pyarrow.types as types

    is_number = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    return is_number or types.is_string(kind) or types.is_large_string(kind)


def flags_in(column) -> list | None:
    """The values of an arrow column that may hold zeros and ones; None for another column."""
    import pyarrow.compute as pc

    if not may_hold_flags(column.type) or len(pc.unique(column)) > MOST_FLAGS:
        return None
    return column.to_pylist()


def indicators_of(
    flags: Flags,
    parts: Sequence[dict[str, list]],
    target: str,
    first_rows: np.ndarray | None = None,
) -> Indicators | None:
    """The targets in columns of zeros and ones; None if there are no such columns.

    parts: parts of the table, each {column: values}.
    target, first_rows: see `Flags.found`.
    """
    names = [name for name in flags.columns if all(name in part for part in parts)]
    flags.columns = {name: flags.columns[name] for name in names}
    for part in parts:
        for row in zip(*(part[name] for name in names), strict=True):
            flags.add(dict(zip(names, row, strict=True)))
    return flags.found(target, first_rows)


def column_labels(column) -> np.ndarray | Lists | list:
    """The labels in an arrow column, for `as_row_labels`: an array of numbers, Lists, or Python values."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if column.null_count:
        return column.to_pylist()
    if _fits_int64(kind):
        return _array(column, np.int64)
    if pa.types.is_floating(kind):
        return _array(column, np.float64)
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if listed and _fits_int64(kind.value_type):
        flat = column.flatten()
        if not flat.null_count:
            ends = np.cumsum(_array(column.value_lengths(), np.int64))
            return Lists(_array(flat, np.int64), ends)
    return column.to_pylist()


def _fits_int64(kind) -> bool:
    """Whether all values of an arrow type fit into int64."""
    import pyarrow as pa

    return pa.types.is_integer(kind) and kind != pa.uint64()


def _array(column, dtype: type) -> np.ndarray:
    """Convert a column of numbers without missing values to an array.

    Uses DLPack, because pyarrow's own conversion imports pandas if it is installed, which takes a third
    of a second and ignores Ctrl-C meanwhile.
    """
    return np.from_dlpack(column).astype(dtype)


def class_names(feature) -> tuple[str, ...] | None:
    """Names of the classes, from the description by `datasets` of a column that holds a class or a list
    of classes; None if it has no names.

    A list is described as {"feature": DESCRIPTION}, and by older versions as [DESCRIPTION].
    """
    if isinstance(feature, list):
        return class_names(feature[0]) if feature else None
    if not isinstance(feature, dict):
        return None
    if feature.get("feature") is not None:
        return class_names(feature["feature"])
    names = feature.get("names")
    if not isinstance(names, list):
        return None
    return tuple(map(str, names))


def _holds(feature, kind: str) -> bool:
    """Whether a description is of a kind ("Image", "ClassLabel"), or of a list of that kind."""
    if isinstance(feature, list):
        return bool(feature) and _holds(feature[0], kind)
    if not isinstance(feature, dict):
        return False
    return feature.get("_type") == kind or _holds(feature.get("feature"), kind)
