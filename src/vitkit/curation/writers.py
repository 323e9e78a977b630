"""Writes one shard as a file, tar in the webdataset convention or parquet in the layout of `datasets`, and
prepares its images."""

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from vitkit.data import Source, open_image, picture_for_people
from vitkit.system.errors import BadImage

LOSSLESS = ("PNG", "BMP", "TIFF", "GIF", "PPM", "DIB", "QOI", "SGI", "PCX", "ICO", "array")
USUAL_SUFFIXES = {"JPEG": "jpg", "TIFF": "tif", "JPEG2000": "jp2"}
GROUP = 64  # rows of a parquet row group, the unit of reading


class Example(NamedTuple):
    """An image to write."""

    number: int
    """Index of the image in its part."""
    data: bytes
    """Content of its file."""
    suffix: str
    """Suffix of its file name, such as jpg."""
    target: int | float | list[int] | None
    """Its target, as in a Source."""

    @property
    def key(self) -> str:
        """The name of its members in a tar shard, without the suffixes."""
        return f"{self.number:09}"


@dataclass(eq=False)
class Tally:
    """Counts of a shard's images, updated while they are written."""

    images_done: Tensor
    """Number of images that have been processed: int64 (1,)."""
    shrunk: int = 0
    """Number of images that were made smaller."""
    left_out: list[str] = field(default_factory=list)
    """The problem of each image that cannot be read."""


def readable_examples(
    source: Source, indices: np.ndarray, side: int, quality: int, tally: Tally
) -> Iterator[Example]:
    """Prepare all readable images for writing, and update the tally."""
    for i in indices.tolist():
        tally.images_done += 1
        try:
            data, target = source[i]
            picture = open_image(data, source.name(i))
            pixels = picture_for_people(picture)
        except BadImage as error:
            tally.left_out.append(str(error))
            continue
        kind = picture.kind
        if side and max(pixels.shape[:2]) > side:
            tally.shrunk += 1
            data, kind = _encoded(_smaller(pixels, side), kind, quality)
        elif isinstance(data, np.ndarray):
            data, kind = _encoded(pixels, kind, quality)
        suffix = USUAL_SUFFIXES.get(kind, kind.lower())
        yield Example(i, data, suffix, target)


def _smaller(pixels: np.ndarray, side: int) -> np.ndarray:
    """Pixels (h, w, 3) resized so that the longer side is `side`."""
    height, width = pixels.shape[:2]
    scale = side / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))


def _encoded(pixels: np.ndarray, kind: str, quality: int) -> tuple[bytes, str]:
    """Encode pixels as a file. Returns also its format: PNG if the original kind is lossless, else JPEG."""
    file = io.BytesIO()
    if kind in LOSSLESS:
        Image.fromarray(pixels).save(file, "PNG")
        return file.getvalue(), "PNG"
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return file.getvalue(), "JPEG"


# Files


def write_tar(path: Path, examples: Iterable[Example], source: Source) -> int:
    """Write examples of a source, and return their number. A single class is stored in a .cls member,
    lists and numbers in a .json member."""
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
    """Write examples of a source, and return their number. The column "label" is missing without
    targets."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(source)
    count = 0
    rows: list[Example] = []

    def flush() -> None:
        images = [{"bytes": row.data, "path": f"{row.key}.{row.suffix}"} for row in rows]
        columns: list[list] = [images]
        if source.target_kind != "none":
            columns.append([row.target for row in rows])
        writer.write_table(pa.table(columns, schema=schema))
        rows.clear()

    # No compression and no dictionary: images are already compressed, and rarely identical
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
    """The Arrow schema, with a description of the columns for `datasets` and the hub's viewer."""
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
