"""Small data sets as files, for tests."""

import io
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pictures import encoded, photograph

PICTURES = [encoded(photograph(8, 9, i), "PNG") for i in range(24)]


def shard(members: dict[str, bytes], path: Path) -> Path:
    """A tar file of these members."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return path


def write_parquet(
    path: Path, images: list[bytes] = PICTURES, classes: int = 5, group: int = 2
) -> str:
    """A parquet file of these images, of as many classes in turns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = [i % classes for i in range(len(images))]
    table = pa.table({"image": [{"bytes": data, "path": None} for data in images], "label": labels})
    pq.write_table(table, path, row_group_size=group)
    return str(path)
