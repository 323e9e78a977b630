"""Any data set as shards: parquet files as `datasets` writes them, or tar files in the webdataset convention.

The plan (which examples go into which shard, in which order) is a function of the source and the settings, and stands in
pack.json. A shard appears under its name when it is whole, so a job that was killed is continued by the same command.
Images keep their bytes unless they are larger than asked for, or are no files. Every image is decoded once; those that
cannot be are left out, counted, and listed in left-out.txt.
"""

import io
import json
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitkit.data.engine.workers import in_order
from vitkit.data.formats.tar import CLASSES
from vitkit.data.images import BadImage, open_image
from vitkit.data.loader import order
from vitkit.data.sources import Source, fingerprint
from vitkit.system.files import on_this_machine, whole, write_whole
from vitkit.system.progress import counted

PLAN, KEPT = (
    "pack.json",
    ".packed",
)  # in the directory: what was asked for, and what became of each shard
PATIENCE = 10.0  # seconds to wait for the workers of a run that was killed
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


def pack(
    parts: dict[str, Source], dest: Path, how: Packing, workers: int, title: str = ""
) -> Packed:
    """Write all parts ("" for a data set without any) into a directory, or go on with it; the sum over all shards.

    title: of a progress bar; without one there is none. Raises ValueError for a directory that holds something else, or that
    another process packs into, OSError when the disk is full.
    """
    if on_this_machine(dest).is_file():
        raise ValueError(f"{dest} is a file; choose a directory")
    if (
        dest.is_dir()
        and not (dest / PLAN).exists()
        and any(there.name != KEPT for there in dest.iterdir())
    ):
        raise ValueError(f"{dest} is not empty; choose another directory")
    labels = next(iter(parts.values())).labels
    if broken := [
        label
        for label in labels
        if label.encode("utf-8", "ignore").decode("utf-8").splitlines() != [label]
    ]:
        raise ValueError(
            f"the class {broken[0]!r} has a line break or no UTF-8 text in its name; rename it"
        )
    (dest / KEPT).mkdir(parents=True, exist_ok=True)
    with _alone(dest):
        asked = {
            "settings": asdict(how),
            "fingerprint": {name: fingerprint(part) for name, part in parts.items()},
        }
        if not (dest / PLAN).exists():
            write_whole(dest / PLAN, json.dumps(asked, indent=1).encode())
        elif json.loads((dest / PLAN).read_text("utf-8")) != asked:
            raise ValueError(
                f"{dest} holds shards of other images or settings; choose another directory, or remove it"
            )
        for left in dest.rglob("*.new"):  # by a run that was killed
            left.unlink()
        write_whole(dest / CLASSES, "".join(f"{label}\n" for label in labels).encode())
        return _packed(_Jobs.of(parts, dest, how), workers, title)


@contextmanager
def _alone(dest: Path) -> Iterator[None]:
    """Hold the directory. Forked workers inherit the hold, so that those of a killed run are waited for.

    Raises ValueError where another process has it.
    """
    with (dest / KEPT / "lock").open("w") as file:
        until = time.monotonic() + PATIENCE
        while _held_elsewhere(file):
            if time.monotonic() > until:
                raise ValueError(
                    f"another process is packing into {dest}; wait for its end, or choose another directory"
                )
            time.sleep(0.1)
        yield


def _held_elsewhere(file) -> bool:
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):  # a system, or a file system, without locks
        return False
    return False


def _packed(jobs: "_Jobs", workers: int, title: str) -> Packed:
    """The sum over all shards, those that are missing being written."""
    for part in jobs.parts.values():
        part.prepare()
    missing = [job for job in jobs.all if not jobs.written(job)]
    count = sum(len(jobs.rows(job)) for job in missing)
    with counted(title, count, lambda: int(jobs.done.sum())) if title else nullcontext():
        for _ in in_order(jobs, missing, min(workers, len(missing))):
            pass
    reports = [jobs.written(job) for job in jobs.all]
    total = Packed(*(sum((report[i] for report in reports), [] if i == 3 else 0) for i in range(4)))
    if total.left_out:
        write_whole(
            jobs.dest / "left-out.txt",
            "".join(f"{line}\n" for line in total.left_out).encode("utf-8", "replace"),
        )
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
    all: list[_Job]
    done: Tensor  # images of each shard that have been looked at, in memory that processes share

    @classmethod
    def of(cls, parts: dict[str, Source], dest: Path, how: Packing) -> "_Jobs":
        counts = {part: -(-len(source) // how.shard) for part, source in parts.items()}
        jobs = [
            _Job(part, number, count) for part, count in counts.items() for number in range(count)
        ]
        return cls(
            parts, dest, how, jobs, torch.zeros(len(jobs), dtype=torch.int64).share_memory_()
        )

    def rows(self, job: _Job) -> range:
        return range(len(self.parts[job.part]))[job.number * self.how.shard :][: self.how.shard]

    def shard(self, job: _Job) -> Path:
        return self.dest / f"{job.name}.{self.how.format}"

    def report(self, job: _Job) -> Path:
        """Where it is written what became of a shard: after the shard itself."""
        return self.dest / KEPT / f"{job.name}.json"

    def written(self, job: _Job) -> Packed | None:
        """What became of a shard, where it still lies as it was written."""
        try:
            report = Packed(**json.loads(self.report(job).read_text("utf-8")))
            return report if self.shard(job).stat().st_size == report.bytes else None
        except FileNotFoundError:
            return None

    def __getitem__(self, job: _Job) -> Exception | None:
        source, rows, at = self.parts[job.part], self.rows(job), self.all.index(job)
        rows = order(len(source), 0, 0, source.chunks())[rows] if self.how.shuffle else rows
        rows = _ticking(rows, self.done[at : at + 1])
        left, shrunk = [], []
        write = {"tar": _write_tar, "parquet": _write_parquet}[self.how.format]
        try:
            with whole(self.shard(job)) as new:
                written = write(new, _examples(source, rows, self.how, left, shrunk), source.labels)
                size = new.stat().st_size
            write_whole(
                self.report(job),
                json.dumps(Packed(written, len(shrunk), size, left)._asdict()).encode(),
            )
        except OSError as error:
            said = error.strerror or str(error)
            return OSError(
                f"{self.shard(job)} could not be written: {said}; afterwards the same command goes on"
            )
        return None


def _ticking(rows, done: Tensor) -> Iterator[int]:
    for row in rows:
        yield row
        done += 1


def _examples(
    source: Source, rows, how: Packing, left: list[str], shrunk: list[int]
) -> Iterator[tuple[int, bytes, str, int]]:
    """(number in the part, file, extension, class) of every image that can be read."""
    for i in map(int, rows):
        try:
            data, target = source[i]
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
        yield (
            i,
            data,
            {"JPEG": "jpg", "TIFF": "tif", "JPEG2000": "jp2"}.get(kind, kind.lower()),
            target,
        )


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

    features = {
        "image": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": list(labels)},
    }
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pa.schema([("image", image), ("label", pa.int64())], metadata)
    written, rows = 0, []

    def flush() -> None:
        values = [
            [{"bytes": data, "path": f"{number:09}.{suffix}"} for number, data, suffix, _ in rows]
        ]
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
