"""Parquet files of images, as Hugging Face's `datasets` writes and names them."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.data.pieces import ParquetRows
from vitkit.data.tables import IMAGE, LABEL, Columns, Table, as_labels, as_parts, pick
from vitkit.system import remote


class _File(NamedTuple):
    """What a parquet file says of itself, and its labels."""

    image: str
    label: str
    names: tuple[str, ...] | None
    labels: np.ndarray  # int64, or objects as they were found
    split: list  # "" for every row where there is no such column
    rows: list[int]  # of every row group
    sizes: list[int]  # bytes of the image column in each


def read_parquet(files: dict[str, str], columns: Columns) -> Table:
    """The table of parquet files, given the part that each belongs to ("" for none). Only labels are read now.

    Class names come from the header that `datasets` leaves in the schema. Raises ValueError for what is missing,
    malformed, or differs between files.
    """
    opened = {file: _open(file, columns) for file in files}
    first_file, first = next(iter(opened.items()))
    for file, found in opened.items():
        if found[:3] != first[:3]:
            raise ValueError(
                f"{file} has other columns or class names than {Path(first_file).name}; they are no one data set"
            )
    rows = [rows for found in opened.values() for rows in found.rows]
    if not sum(rows):
        raise ValueError(f"{', '.join(map(str, files))} has no rows")
    groups = [(i, j) for i, found in enumerate(opened.values()) for j in range(len(found.rows))]
    counts = [sum(found.rows) for found in opened.values()]
    store = ParquetRows(
        files=tuple(files),
        column=first.image,
        groups=np.array(groups),
        starts=np.cumsum([0, *rows]),
        firsts=np.cumsum([0, *counts[:-1]]),
        sizes=np.array([size for found in opened.values() for size in found.sizes]),
    )
    labels = np.concatenate(
        [found.labels for found in opened.values()]
    )  # of objects, where one file has objects
    if labels.dtype != np.int64:
        labels = as_labels(labels.tolist(), ", ".join(Path(file).name for file in files))
    parts = [
        as_parts(found.split, Path(file).name)
        if any(found.split)
        else np.full(len(found.labels), files[file], dtype=object)
        for file, found in opened.items()
    ]
    return Table(store, labels, np.concatenate(parts), first.names, ())


def _open(file: str, columns: Columns) -> _File:
    import pyarrow as pa

    try:
        with remote.parquet_file(file) as opened:
            schema, meta = opened.schema_arrow, opened.metadata
            features = _features(schema.metadata or {})
            image, label = _columns(schema, features, columns)
            split = [name for name in schema.names if name.lower() == "split"][:1]
            read = opened.read(columns=[label, *split])
            labels, parts = (
                _labels(read.column(label)),
                [read.column(name).to_pylist() for name in split],
            )
            groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
            sizes = [_size(group, image) for group in groups]
    except (pa.ArrowException, OSError) as error:
        if remote.is_address(file) and isinstance(error, OSError):
            raise  # which says all
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{file} is no readable parquet file: {said}") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    names = features.get(label, {}).get("names")
    names = tuple(map(str, names)) if isinstance(names, list) else None
    rows = [group.num_rows for group in groups]
    return _File(
        image, label, names, labels, parts[0] if parts else [""] * len(labels), rows, sizes
    )


def _size(group, image: str) -> int:
    """Bytes of the image column in a row group, whose parts are columns of their own."""
    columns = (group.column(i) for i in range(group.num_columns))
    return sum(
        one.total_uncompressed_size for one in columns if one.path_in_schema.split(".")[0] == image
    )


def _labels(column) -> np.ndarray:
    """An arrow column as int64 where it is whole numbers, none missing; else as objects."""
    import pyarrow as pa

    if pa.types.is_integer(column.type) and not column.null_count and column.type != pa.uint64():
        return column.to_numpy().astype(np.int64)
    labels = np.empty(len(column), dtype=object)
    labels[:] = column.to_pylist()
    return labels


def _features(metadata: dict[bytes, bytes]) -> dict[str, dict]:
    """The features that `datasets` describes in the schema: column -> description; {} where there are none to read."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _columns(schema, features: dict[str, dict], columns: Columns) -> tuple[str, str]:
    """The image and the label column. Raises ValueError where they cannot be found, or hold something else."""
    import pyarrow.types as types

    def declared(kind: str) -> list[str]:
        return [name for name in schema.names if features.get(name, {}).get("_type") == kind]

    image = pick(columns.image, IMAGE, schema.names, "columns.image", declared("Image"))
    label = pick(columns.label, LABEL, schema.names, "columns.label", declared("ClassLabel"))
    kind = schema.field(image).type
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    if not (types.is_binary(kind) or types.is_large_binary(kind)):
        raise ValueError(
            f"column {image!r} holds {schema.field(image).type}; expected the images' bytes, plain or as {{bytes, path}}"
        )
    return image, label
