"""Data sets of the Hugging Face hub, by name or from a directory that `datasets` wrote: memory-mapped, random access."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vitkit.data.images import BadImage
from vitkit.data.stores import MAX_FILE
from vitkit.data.tables import IMAGE, LABEL, PARTS, Columns, Table, as_labels, pick

PREFIX = "hf:"
SAVED = ("dataset_dict.json", "state.json")  # what save_to_disk leaves in a directory


@dataclass(frozen=True, eq=False)
class HubRows:
    """Rows of memory-mapped tables, their images as they were stored."""

    title: str
    tables: tuple[Any, ...]  # datasets.Dataset
    column: str
    firsts: np.ndarray  # the first row of each

    def read(self, row: int) -> bytes:
        """The image's bytes. Raises BadImage for a row that has none."""
        table, at = self._place(row)
        value = self.tables[table][at][self.column]
        data = value.get("bytes") if isinstance(value, dict) else value
        if not data and isinstance(value, dict) and value.get("path"):
            data = self._file(value["path"], row)
        if not data:
            raise BadImage(f"{self.name(row)} has no image: column {self.column!r} is empty there")
        return data

    def name(self, row: int) -> str:
        table, at = self._place(row)
        return f"{self.title} {self.tables[table].split or ''} row {at}"

    def mark(self, row: int) -> str:
        table, at = self._place(row)
        return f"{self.tables[table].split or ''} row {at} {self._sizes[table]}"

    @cached_property
    def _sizes(self) -> list[int]:
        """Bytes of each table."""
        return [table.data.nbytes for table in self.tables]

    def prepare(self, rows: np.ndarray) -> None:
        """Nothing to do: processes share the mapped memory."""

    def pieces(self, rows: np.ndarray) -> None:
        """One is read as quickly as another."""

    def _place(self, row: int) -> tuple[int, int]:
        table = int(np.searchsorted(self.firsts, row, side="right")) - 1
        return table, row - int(self.firsts[table])

    def _file(self, path: str, row: int) -> bytes:
        """A file that a row names; only where the hub's own downloads lie, as a table may name any file of this machine."""
        from datasets import config

        file = Path(path).resolve()
        if not any(
            file.is_relative_to(Path(home).resolve())
            for home in (config.HF_CACHE_HOME, config.HF_DATASETS_CACHE)
        ):
            raise BadImage(
                f"{self.name(row)} names the file {path}, outside of the hub's cache; it is not read"
            )
        try:
            if file.stat().st_size > MAX_FILE:
                raise BadImage(f"{path} is larger than {MAX_FILE:,} bytes, which no image file is")
            return file.read_bytes()
        except OSError as error:
            raise BadImage(f"{path} cannot be read: {error.strerror or error}") from error


def read_hub(where: str, columns: Columns) -> Table:
    """ "hf:NAME", "hf:NAME@REVISION" or "hf:NAME:CONFIG", downloaded once or taken from the cache; or a saved directory.

    Raises ValueError where there is no such data set, the network is missing, or columns cannot be found.
    """
    try:
        import datasets
    except ImportError:
        raise ValueError(f"to read {where}: pip install 'vitkit[hf]'") from None
    found = _load(datasets, where)
    splits = {name: part for name, part in found.items() if len(part)}
    parts = [PARTS.get(name.lower(), "") for name in splits]
    notes = ()
    if any(parts) and "" in parts:
        others = [name for name, part in zip(splits, parts, strict=True) if not part]
        notes = (f"left out: the splits {', '.join(others)}, which are none of {', '.join(PARTS)}",)
        splits = {name: part for name, part in splits.items() if name not in others}
        parts = list(filter(None, parts))
    if not splits:
        raise ValueError(f"{where} has no rows")
    first = next(iter(splits.values()))
    features = first.features
    try:
        image = pick(
            columns.image, IMAGE, list(features), "columns.image", _of(features, datasets.Image)
        )
        label = pick(
            columns.label,
            LABEL,
            list(features),
            "columns.label",
            _of(features, datasets.ClassLabel),
        )
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if isinstance(features[image], datasets.Image):
        splits = {
            name: part.cast_column(image, datasets.Image(decode=False))
            for name, part in splits.items()
        }
    labels = [
        value for part in splits.values() for value in part.with_format("arrow")[label].to_pylist()
    ]
    names = (
        tuple(features[label].names) if isinstance(features[label], datasets.ClassLabel) else None
    )
    counts = [len(part) for part in splits.values()]
    tables = tuple(part.select_columns([image]) for part in splits.values())
    store = HubRows(where, tables, image, np.cumsum([0, *counts[:-1]]))
    return Table(
        store,
        as_labels(labels, where),
        np.repeat(np.array(parts, dtype=object), counts),
        names,
        notes,
    )


def _of(features, kind: type) -> list[str]:
    return [name for name, feature in features.items() if isinstance(feature, kind)]


def _load(datasets, where: str) -> dict[str, Any]:
    """Split -> Dataset."""
    try:
        if not where.startswith(PREFIX):
            found = datasets.load_from_disk(where)
        else:
            name, _, config = where.removeprefix(PREFIX).partition(":")
            name, _, revision = name.partition("@")
            found = datasets.load_dataset(name, config or None, revision=revision or None)
    except Exception as error:  # of the hub, the network, the disk, pyarrow
        said = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise ValueError(f"{where} cannot be opened: {said}") from error
    return dict(found) if isinstance(found, dict) else {"": found}
