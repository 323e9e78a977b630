"""One shard as a file: tar in the webdataset convention, or parquet as `datasets` writes it."""

import io
import json
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from vitkit.data import Source

GROUP = 64  # rows of a parquet row group: what is read at once


class Example(NamedTuple):
    """An image as it is written."""

    number: int
    """Which one of its part it is."""
    data: bytes
    """The bytes of its file."""
    suffix: str
    """jpg, png and so on."""
    target: int | float | list[int] | None
    """As a Source has it."""

    @property
    def key(self) -> str:
        """What its members in a tar shard are called, before their suffixes."""
        return f"{self.number:09}"


def write_tar(path: Path, examples: Iterable[Example], source: Source) -> int:
    """Write examples of a source; returns how many.

    One class is a .cls member, lists and numbers are in a .json member.
    """
    count = 0
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as shard:
        for example in examples:
            _add(shard, f"{example.key}.{example.suffix}", example.data)
            if source.target_kind == "class":
                _add(shard, f"{example.key}.cls", str(example.target).encode())
            elif source.target_kind != "none":
                label = json.dumps({"label": example.target})
                _add(shard, f"{example.key}.json", label.encode())
            count += 1
    return count


def _add(shard: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    shard.addfile(member, io.BytesIO(data))


def write_parquet(path: Path, examples: Iterable[Example], source: Source) -> int:
    """Write examples of a source; returns how many.

    The column "label" is missing if there are no targets.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(source)
    count = 0
    rows: list[Example] = []

    def flush() -> None:
        images = [{"bytes": row.data, "path": f"{row.key}.{row.suffix}"} for row in rows]
        columns = [images]
        if source.target_kind != "none":
            columns.append([row.target for row in rows])
        writer.write_table(pa.table(columns, schema=schema))
        rows.clear()

    # No compression and no dictionary: images are compressed already, and no two are the same.
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for example in examples:
            rows.append(example)
            count += 1
            if len(rows) == GROUP:
                flush()
        if rows:
            flush()
    return count


def _schema(source: Source) -> Any:
    """The arrow schema, with the description of its columns that `datasets` and the hub's viewer
    read."""
    import pyarrow as pa

    image_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    types = {"image": image_type}
    features: dict[str, dict] = {"image": {"_type": "Image"}}
    class_label = {"_type": "ClassLabel", "names": list(source.labels)}
    if source.target_kind == "class":
        types["label"] = pa.int64()
        features["label"] = class_label
    elif source.target_kind == "classes":
        types["label"] = pa.list_(pa.int64())
        features["label"] = {"_type": "Sequence", "feature": class_label}
    elif source.target_kind == "number":
        types["label"] = pa.float32()
        features["label"] = {"_type": "Value", "dtype": "float32"}
    description = json.dumps({"info": {"features": features}})
    return pa.schema(types, {"huggingface": description})


WRITERS: dict[str, Callable[[Path, Iterable[Example], Source], int]] = {
    "tar": write_tar,
    "parquet": write_parquet,
}
