"""What parquet files and the hub's data sets share: columns of arrow tables, and the features that `datasets` describes."""

import numpy as np

from vitkit.data.targets import Lists


def column_labels(column) -> np.ndarray | Lists | list:
    """Labels of an arrow column, for `as_labels`: an array of numbers, Lists of numbers, or Python values."""
    import pyarrow as pa

    kind = column.type
    if column.null_count:
        return column.to_pylist()
    if _small_integer(kind):
        return np.asarray(column).astype(np.int64)
    if pa.types.is_floating(kind):
        return np.asarray(column).astype(np.float64)
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not listed or not _small_integer(kind.value_type):
        return column.to_pylist()
    return _integer_lists(column)


def _small_integer(kind) -> bool:
    """Whether all values of an arrow type fit into int64."""
    import pyarrow as pa

    return pa.types.is_integer(kind) and kind != pa.uint64()


def _integer_lists(column) -> Lists | list:
    import pyarrow as pa

    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    values = [chunk.flatten() for chunk in chunks]
    if any(part.null_count for part in values):
        return column.to_pylist()
    counts = [np.asarray(chunk.value_lengths()) for chunk in chunks]
    flat = [np.asarray(part).astype(np.int64) for part in values]
    nothing = np.zeros(0, np.int64)
    ends = np.cumsum(np.concatenate([nothing, *counts]), dtype=np.int64)
    return Lists(np.concatenate([nothing, *flat]), ends)


def class_names(feature) -> tuple[str, ...] | None:
    """Names of the classes, from how `datasets` describes a column of one class or of a list of them; None without any."""
    if isinstance(feature, list):  # as older versions wrote a list
        feature = {"feature": feature[0] if feature else None}
    if not isinstance(feature, dict):
        return None
    inner = feature.get("feature")
    if inner is not None:
        return class_names(inner)
    names = feature.get("names")
    return tuple(map(str, names)) if isinstance(names, list) else None


def holds(feature, kind: str) -> bool:
    """Whether a described column is of a kind ("Image", "ClassLabel"), or a list of it."""
    if isinstance(feature, list):
        return bool(feature) and holds(feature[0], kind)
    if not isinstance(feature, dict):
        return False
    return feature.get("_type") == kind or holds(feature.get("feature"), kind)
