"""Features as a file for other programs: parquet, or numpy's npz.

Legend: N images, D width.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from vitkit.data import Lists, Source
from vitkit.system.storage.files import whole

ROWS = 10_000  # that are written to a parquet file together

Part = tuple[Source, np.ndarray]
"""Images, and their features, float32 (N, D)."""


def write_parquet(file: Path, parts: dict[str, Part], facts: dict[str, str]) -> None:
    """Write a row for each image: `key`, its file, or file and row; `part`, if the data has parts;
    its label; `features`, a list of D float32.

    The label is `label` and `class`, the number and name of its class; `classes`, a list of names;
    `label`, a number; or nothing. `facts`, and the names of all classes as JSON, are the file's
    metadata. Raises OSError.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = _tables(parts)
    first = next(tables)
    source, _ = next(iter(parts.values()))
    names = {"class_names": json.dumps(source.labels, ensure_ascii=False)}
    schema = first.schema.with_metadata(facts | names)
    with whole(file) as new, pq.ParquetWriter(new, schema) as writer:
        writer.write_table(first.cast(schema))
        for table in tables:
            writer.write_table(pa.Table.from_arrays(table.columns, schema=schema))


def write_npz(file: Path, parts: dict[str, Part], facts: dict[str, str]) -> None:
    """Write the arrays of `write_parquet`'s columns, and `class_names`; nothing in them needs
    pickle. Several classes of an image are one string, joined by ", ". Raises OSError."""
    columns = {}
    for table in _tables(parts):
        for name in table.column_names:
            columns.setdefault(name, []).append(_array(table[name]))
    source, _ = next(iter(parts.values()))
    arrays = {
        name: np.array(text.encode()) for name, text in facts.items()
    }  # first: see files.MARK
    arrays |= {name: np.concatenate(values) for name, values in columns.items()}
    arrays["class_names"] = np.array(source.labels, dtype=np.str_)
    with whole(file) as new, new.open("wb") as opened:
        np.savez(opened, **arrays)


WRITERS: dict[str, Callable[[Path, dict[str, Part], dict[str, str]], None]] = {
    ".parquet": write_parquet,
    ".npz": write_npz,
}
"""What writes a file, by its suffix."""


def _tables(parts: dict[str, Part]) -> Iterator:
    """The rows of all parts, as pyarrow tables of at most ROWS."""
    import pyarrow as pa

    for name, (source, x) in parts.items():
        for start in range(0, len(source), ROWS):
            rows = range(start, min(start + ROWS, len(source)))
            columns = {"key": pa.array([source.name(i) for i in rows], pa.string())}
            if name:
                columns["part"] = pa.array([name] * len(rows), pa.string())
            columns |= _labels(source, rows)
            values = pa.array(np.array(x[rows.start : rows.stop]).reshape(-1))
            columns["features"] = pa.FixedSizeListArray.from_arrays(values, x.shape[1])
            yield pa.table(columns)


def _labels(source: Source, rows: range) -> dict:
    """The columns of the labels of these examples."""
    import pyarrow as pa

    targets = source.targets
    if isinstance(targets, Lists):
        names = [[source.labels[number] for number in targets.row(i)] for i in rows]
        return {"classes": pa.array(names, pa.list_(pa.string()))}
    if source.target_kind == "none":
        return {}
    columns = {"label": pa.array(targets[rows.start : rows.stop])}
    if source.target_kind == "class":
        columns["class"] = pa.array([source.answer(i) for i in rows], pa.string())
    return columns


def _array(column) -> np.ndarray:
    """A column as an array: features (N, D), numbers (N,), strings (N,)."""
    import pyarrow as pa

    column = column.combine_chunks()
    if pa.types.is_fixed_size_list(column.type):
        return column.values.to_numpy().reshape(len(column), -1)
    if pa.types.is_list(column.type):
        return np.array([", ".join(names) for names in column.to_pylist()], dtype=np.str_)
    if pa.types.is_string(column.type):
        return np.array(column.to_pylist(), dtype=np.str_)
    return column.to_numpy()
