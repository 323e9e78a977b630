"""Any data set as shards: parquet files as `datasets` writes them, or tar files in the webdataset convention.

The plan (which examples go into which shard, in which order) is a function of the source and the settings, and stands in
pack.json. A shard appears under its name when it is whole, so a job that was killed is continued by the same command.
Images keep their bytes unless they are larger than asked for, or are no files. Every image is decoded once; those that
cannot be are left out, counted, and listed in left-out.txt.
"""

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from vitkit.data.images import BadImage, open_image
from vitkit.data.loader import order
from vitkit.data.places import on_this_machine
from vitkit.data.progress import Shown, silent
from vitkit.data.sources import Source, fingerprint
from vitkit.data.tars import CLASSES
from vitkit.data.workers import in_order

GROUP = 64  # rows of a parquet row group: what is read at once
LOSSLESS = ("PNG", "BMP", "TIFF", "GIF", "PPM", "DIB", "QOI", "SGI", "PCX", "ICO", "array")


@dataclass(frozen=True)
class Packing:
    """How shards are written."""

    format: Literal["tar", "parquet"] = "tar"
    """tar: read in any order, on disk or by address. parquet: what the hub shows, and tables can query."""
    shard: int = 5000
    """Examples in a shard."""
    side: int = 0
    """Images with a longer side are made smaller to this many pixels, shape kept; 0 keeps every byte."""
    quality: int = 95
    """Of a JPEG that had to be made smaller; PNG and its like stay lossless."""
    shuffle: bool = True
    """Put examples in random order, so that classes are spread over all shards; else the order stays."""

    def __post_init__(self):
        if self.format not in ("tar", "parquet"):
            raise ValueError(f"format is {self.format!r}; it is tar or parquet")
        if self.shard < 1 or self.side < 0 or not 1 <= self.quality <= 100:
            raise ValueError(
                f"shard is {self.shard}, side {self.side}, quality {self.quality}; a shard has an example, a side is no less "
                f"than 0, and a quality is from 1 to 100"
            )


class Packed(NamedTuple):
    """What became of a shard."""

    written: int
    shrunk: int
    bytes: int
    left_out: list[str]


def pack(parts: dict[str, Source], dest: Path, how: Packing, workers: int, shown: Shown = silent) -> Packed:
    """Write all parts ("" for a data set without any) into a directory, or go on with it; the sum over all shards.

    Raises ValueError for a directory that holds something else,
    OSError when the disk is full.
    """
    on_this_machine(dest).mkdir(parents=True, exist_ok=True)
    labels = next(iter(parts.values())).labels
    if broken := [label for label in labels if "\n" in label]:
        raise ValueError(f"the class {broken[0]!r} has a line break in its name; rename it")
    asked = {"settings": asdict(how), "fingerprint": {name: fingerprint(part) for name, part in parts.items()}}
    path = dest / "pack.json"
    if path.exists():
        if json.loads(path.read_text("utf-8")) != asked:
            raise ValueError(f"{dest} holds shards of other images or settings; choose another directory, or remove it")
    elif any(dest.iterdir()):
        raise ValueError(f"{dest} is not empty; choose another directory")
    else:
        path.write_text(json.dumps(asked, indent=1), "utf-8")
    (dest / CLASSES).write_text("".join(f"{label}\n" for label in labels), "utf-8")
    for part in parts.values():
        part.prepare()
    jobs = _Jobs(parts, dest, how)
    missing = [job for job in jobs.all() if not jobs.report(job).exists()]
    for _ in shown(in_order(jobs, missing, min(workers, len(missing))), len(missing)):
        pass
    reports = [Packed(**json.loads(jobs.report(job).read_text("utf-8"))) for job in jobs.all()]
    total = Packed(*(sum((report[i] for report in reports), [] if i == 3 else 0) for i in range(4)))
    if total.left_out:
        (dest / "left-out.txt").write_text("".join(f"{line}\n" for line in total.left_out), "utf-8")
    return total


class _Job(NamedTuple):
    """A shard: its part, number, and how many the part has."""

    part: str
    number: int
    count: int

    @property
    def name(self) -> str:
        return f"{self.part or 'images'}-{self.number:05}-of-{self.count:05}"


@dataclass(frozen=True, eq=False)
class _Jobs:
    """Job -> None, the shard being written; an OSError where it cannot be."""

    parts: dict[str, Source]
    dest: Path
    how: Packing

    def all(self) -> Iterator[_Job]:
        for part, source in self.parts.items():
            count = -(-len(source) // self.how.shard)
            yield from (_Job(part, number, count) for number in range(count))

    def report(self, job: _Job) -> Path:
        """Where it is written what became of a shard: after the shard itself."""
        return self.dest / ".packed" / f"{job.name}.json"

    def __getitem__(self, job: _Job) -> Exception | None:
        source = self.parts[job.part]
        rows = range(job.number * self.how.shard, min((job.number + 1) * self.how.shard, len(source)))
        rows = order(len(source), 0, 0, source.pieces())[rows] if self.how.shuffle else rows
        path = self.dest / f"{job.name}.{self.how.format}"
        new = path.with_name(path.name + ".new")
        left, shrunk = [], []
        write = {"tar": _write_tar, "parquet": _write_parquet}[self.how.format]
        try:
            written = write(new, _examples(source, rows, self.how, left, shrunk), source.labels)
            size = new.stat().st_size
            new.replace(path)
            self.report(job).parent.mkdir(exist_ok=True)
            part = self.report(job).with_suffix(".new")
            part.write_text(json.dumps(Packed(written, len(shrunk), size, left)._asdict()), "utf-8")
            part.replace(self.report(job))
        except OSError as error:
            return error
        return None


def _examples(
    source: Source, rows, how: Packing, left: list[str], shrunk: list[int]
) -> Iterator[tuple[int, bytes, str, int]]:
    """(number in the part, file, extension, class) of every image that can be read."""
    for i in map(int, rows):
        data, target = source[i]
        try:
            picture = open_image(data, source.name(i))
            pixels = picture.pixels()
        except BadImage as error:
            left.append(str(error))
            continue
        kind = picture.kind
        if how.side and max(pixels.shape[:2]) > how.side:
            shrunk.append(i)
            data, kind = _encoded(_smaller(pixels, how.side), kind, how.quality)
        elif isinstance(data, np.ndarray):
            data, kind = _encoded(pixels, kind, how.quality)
        yield i, data, {"JPEG": "jpg", "TIFF": "tif", "JPEG2000": "jp2"}.get(kind, kind.lower()), target


def _smaller(pixels: np.ndarray, side: int) -> np.ndarray:
    height, width = pixels.shape[:2]
    scale = side / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))


def _encoded(pixels: np.ndarray, kind: str, quality: int) -> tuple[bytes, str]:
    file, kind = io.BytesIO(), "PNG" if kind in LOSSLESS else "JPEG"
    Image.fromarray(pixels).save(file, kind, **({"quality": quality} if kind == "JPEG" else {}))
    return file.getvalue(), kind


def _write_tar(path: Path, examples: Iterator, labels: tuple[str, ...]) -> int:
    written = 0
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as shard:
        for number, data, extension, target in examples:
            for suffix, content in ((extension, data), ("cls", str(target).encode())):
                member = tarfile.TarInfo(f"{number:09}.{suffix}")
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))
            written += 1
    return written


def _write_parquet(path: Path, examples: Iterator, labels: tuple[str, ...]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": list(labels)}}
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pa.schema([("image", image), ("label", pa.int64())], metadata)
    written, rows = 0, []

    def flush() -> None:
        values = [[{"bytes": data, "path": f"{number:09}.{suffix}"} for number, data, suffix, _ in rows]]
        values.append([target for *_, target in rows])
        writer.write_table(pa.table(values, schema=schema))
        rows.clear()

    # images are compressed already, and a dictionary of them would be all of them
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for example in examples:
            rows.append(example)
            written += 1
            if len(rows) == GROUP:
                flush()
        if rows or not written:
            flush()
    return written
