"""What parquet files and the hub's data sets share: columns of arrow tables, and the features that
`datasets` describes."""

import numpy as np

from vitkit.data.sources.targets import Lists


def column_labels(column) -> np.ndarray | Lists | list:
    """The labels in an arrow column, for `as_row_labels`: an array of numbers, Lists of numbers, or
    Python values."""
    import pyarrow as pa

    kind = column.type
    if column.null_count:
        return column.to_pylist()
    if _fits_int64(kind):
        return _array(column, np.int64)
    if pa.types.is_floating(kind):
        return _array(column, np.float64)
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if listed and _fits_int64(kind.value_type):
        return _integer_lists(column)
    return column.to_pylist()


def _fits_int64(kind) -> bool:
    """Whether all values of an arrow type fit into int64."""
    import pyarrow as pa

    return pa.types.is_integer(kind) and kind != pa.uint64()


def _array(column, dtype: type) -> np.ndarray:
    """A column of numbers, none missing, as an array.

    Through DLPack: pyarrow's own conversion would import pandas, if it is there, which takes a third
    of a second and loses a Ctrl-C that comes then.
    """
    parts = [np.zeros(0, dtype)]  # as a column may have no chunks
    for chunk in _chunks(column):
        parts.append(np.from_dlpack(chunk).astype(dtype))
    return np.concatenate(parts)


def _chunks(column) -> list:
    """The arrow arrays of a column."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        return column.chunks
    return [column]


def _integer_lists(column) -> Lists | list:
    """A column of lists of integers as Lists; as Python's lists if a value is missing in one."""
    # They begin with an empty array, as a column may have no chunks.
    values = [np.zeros(0, np.int64)]
    counts = [np.zeros(0, np.int64)]
    for chunk in _chunks(column):
        flat = chunk.flatten()
        if flat.null_count:
            return column.to_pylist()
        values.append(_array(flat, np.int64))
        counts.append(_array(chunk.value_lengths(), np.int64))
    ends = np.cumsum(np.concatenate(counts))
    return Lists(np.concatenate(values), ends)


def class_names(feature) -> tuple[str, ...] | None:
    """Names of the classes, from how `datasets` describes a column of one class or of a list of
    them; None without any.

    A list is described as {"feature": what it holds}, and was by older versions as [what it holds].
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
    return tuple(str(name) for name in names)


def holds(feature, kind: str) -> bool:
    """Whether a described column is of a kind ("Image", "ClassLabel"), or a list of it."""
    if isinstance(feature, list):
        return bool(feature) and holds(feature[0], kind)
    if not isinstance(feature, dict):
        return False
    return feature.get("_type") == kind or holds(feature.get("feature"), kind)
