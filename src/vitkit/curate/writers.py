"""One shard as a file: tar in the webdataset convention, or parquet as `datasets` writes it."""

import io
import json
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from vitkit.data.sources import Source

GROUP = 64  # rows of a parquet row group: what is read at once


class Example(NamedTuple):
    """An image as it is written."""

    number: int
    """Which one of its part it is; its name."""
    data: bytes
    """Of the file."""
    suffix: str
    """jpg, png and so on."""
    target: int | float | list[int] | None
    """As a Source has it."""

    @property
    def name(self) -> str:
        return f"{self.number:09}.{self.suffix}"


def write_tar(path: Path, examples: Iterable[Example], source: Source) -> int:
    """Write examples of a source; returns how many. One class is a .cls member, lists and numbers are in a .json member."""
    count = 0
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as shard:
        for example in examples:
            _add(shard, example.name, example.data)
            if source.target == "class":
                _add(shard, f"{example.number:09}.cls", str(example.target).encode())
            elif source.target != "none":
                label = json.dumps({"label": example.target}).encode()
                _add(shard, f"{example.number:09}.json", label)
            count += 1
    return count


def _add(shard: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    shard.addfile(member, io.BytesIO(data))


def write_parquet(path: Path, examples: Iterable[Example], source: Source) -> int:
    """Write examples of a source; returns how many. The column "label" is missing if there are no targets."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(source)
    count = 0
    rows: list[Example] = []

    def flush() -> None:
        columns = [[{"bytes": row.data, "path": row.name} for row in rows]]
        if source.target != "none":
            columns.append([row.target for row in rows])
        writer.write_table(pa.table(columns, schema=schema))
        rows.clear()

    # images are compressed already, and a dictionary of them would be all of them
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for example in examples:
            rows.append(example)
            count += 1
            if len(rows) == GROUP:
                flush()
        if rows or not count:
            flush()
    return count


def _schema(source: Source) -> Any:
    """The arrow schema, with the description of its columns that `datasets` and the hub's viewer read."""
    import pyarrow as pa

    one_class = {"_type": "ClassLabel", "names": list(source.labels)}
    labels: dict[str, tuple[Any, dict]] = {
        "class": (pa.int64(), one_class),
        "classes": (pa.list_(pa.int64()), {"_type": "Sequence", "feature": one_class}),
        "number": (pa.float32(), {"_type": "Value", "dtype": "float32"}),
    }
    columns = [("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())]))]
    features = {"image": {"_type": "Image"}}
    if source.target != "none":
        kind, features["label"] = labels[source.target]
        columns.append(("label", kind))
    described = json.dumps({"info": {"features": features}})
    return pa.schema(columns, {"huggingface": described})


WRITERS: dict[str, Callable[[Path, Iterable[Example], Source], int]] = {
    "tar": write_tar,
    "parquet": write_parquet,
}
