"""Any data set as shards: parquet files as `datasets` writes them, or tar files in the webdataset convention.

The plan (which examples go into which shard, in which order) is a function of the source and the settings, and stands in
pack.json. A shard appears under its name when it is whole, so a job that was killed is continued by the same command.
Images keep their bytes unless they are larger than asked for, or are no files. Every image is decoded once; those that
cannot be are left out, counted, and listed in left-out.txt.
"""

import io
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitkit.curate.writers import WRITERS, Example
from vitkit.data.engine.workers import in_order
from vitkit.data.formats.tar import CLASSES
from vitkit.data.images import BadImage, open_image
from vitkit.data.order import permutation
from vitkit.data.sources import Source, fingerprint
from vitkit.system.files import on_this_machine, whole, write_whole
from vitkit.system.progress import counted

PLAN = "pack.json"  # in the directory: what was asked for
REPORTS = ".packed"  # in the directory: what became of each shard
PATIENCE = 10.0  # seconds to wait for the workers of a run that was killed
LOSSLESS = ("PNG", "BMP", "TIFF", "GIF", "PPM", "DIB", "QOI", "SGI", "PCX", "ICO", "array")
USUAL_SUFFIXES = {"JPEG": "jpg", "TIFF": "tif", "JPEG2000": "jp2"}


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
    """What became of a shard, or of all of them."""

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
    _refuse_others(dest)
    labels = next(iter(parts.values())).labels
    _check_names(labels)
    (dest / REPORTS).mkdir(parents=True, exist_ok=True)
    with _alone(dest):
        _record_plan(parts, dest, how)
        for unfinished in dest.rglob("*.new"):  # by a run that was killed
            unfinished.unlink()
        if labels:
            write_whole(dest / CLASSES, "".join(f"{label}\n" for label in labels).encode())
        return _packed(_Jobs.of(parts, dest, how), workers, title)


def _refuse_others(dest: Path) -> None:
    """Raises ValueError for a directory that holds something else than shards of this kind."""
    if on_this_machine(dest).is_file():
        raise ValueError(f"{dest} is a file; choose a directory")
    if dest.is_dir() and not (dest / PLAN).exists():
        others = [path for path in dest.iterdir() if path.name != REPORTS]
        if others:
            raise ValueError(f"{dest} is not empty; choose another directory")


def _check_names(labels: tuple[str, ...]) -> None:
    """Raises ValueError for a class whose name is no line of classes.txt."""
    for label in labels:
        text = label.encode("utf-8", "ignore").decode("utf-8")
        if text.splitlines() != [label]:
            raise ValueError(
                f"the class {label!r} has a line break or no UTF-8 text in its name; rename it"
            )


def _record_plan(parts: dict[str, Source], dest: Path, how: Packing) -> None:
    """Write down what is packed, and how. Raises ValueError if the directory holds another plan."""
    plan = {
        "settings": asdict(how),
        "fingerprint": {name: fingerprint(part) for name, part in parts.items()},
    }
    if not (dest / PLAN).exists():
        write_whole(dest / PLAN, json.dumps(plan, indent=1).encode())
    elif json.loads((dest / PLAN).read_text("utf-8")) != plan:
        raise ValueError(
            f"{dest} holds shards of other images or settings; choose another directory, or remove it"
        )


@contextmanager
def _alone(dest: Path) -> Iterator[None]:
    """Hold the directory. Forked workers inherit the hold, so that those of a killed run are waited for.

    Raises ValueError if another process has it.
    """
    with (dest / REPORTS / "lock").open("w") as file:
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
    """Write the shards that are missing; the sum over all."""
    for part in jobs.parts.values():
        part.prepare()
    missing = [job for job in jobs.all if not jobs.written(job)]
    count = sum(len(jobs.rows(job)) for job in missing)
    progress = nullcontext()
    if title:
        progress = counted(title, count, lambda: int(jobs.done.sum()))
    with progress:
        for _ in in_order(jobs, missing, min(workers, len(missing))):
            pass
    reports = [jobs.written(job) for job in jobs.all]
    left_out = [line for report in reports for line in report.left_out]
    if left_out:
        text = "".join(f"{line}\n" for line in left_out)
        write_whole(jobs.dest / "left-out.txt", text.encode("utf-8", "replace"))
    return Packed(
        written=sum(report.written for report in reports),
        shrunk=sum(report.shrunk for report in reports),
        bytes=sum(report.bytes for report in reports),
        left_out=left_out,
    )


class _Job(NamedTuple):
    """A shard: its part, its number, and how many the part has."""

    part: str
    number: int
    count: int

    @property
    def name(self) -> str:
        return f"{self.part or 'images'}-{self.number:05}-of-{self.count:05}"


@dataclass(frozen=True, eq=False)
class _Jobs:
    """Job -> None, the shard being written; an OSError if it cannot be. Works in a worker."""

    parts: dict[str, Source]
    dest: Path
    how: Packing
    all: list[_Job]
    done: Tensor
    """int64 (jobs,): images of each shard that have been looked at, in memory that processes share."""

    @classmethod
    def of(cls, parts: dict[str, Source], dest: Path, how: Packing) -> "_Jobs":
        counts = {part: -(-len(source) // how.shard) for part, source in parts.items()}
        jobs = [_Job(part, number, n) for part, n in counts.items() for number in range(n)]
        done = torch.zeros(len(jobs), dtype=torch.int64).share_memory_()
        return cls(parts, dest, how, jobs, done)

    def rows(self, job: _Job) -> range:
        return range(len(self.parts[job.part]))[job.number * self.how.shard :][: self.how.shard]

    def shard(self, job: _Job) -> Path:
        return self.dest / f"{job.name}.{self.how.format}"

    def report(self, job: _Job) -> Path:
        """Where it is written what became of a shard: after the shard itself."""
        return self.dest / REPORTS / f"{job.name}.json"

    def written(self, job: _Job) -> Packed | None:
        """What became of a shard, if it still lies as it was written."""
        try:
            report = Packed(**json.loads(self.report(job).read_text("utf-8")))
            return report if self.shard(job).stat().st_size == report.bytes else None
        except FileNotFoundError:
            return None

    def __getitem__(self, job: _Job) -> Exception | None:
        source = self.parts[job.part]
        rows = self.rows(job)
        if self.how.shuffle:
            rows = permutation(len(source), 0, 0, source.chunks())[rows]
        number = self.all.index(job)
        rows = _ticking(rows, self.done[number : number + 1])
        left_out, shrunk = [], []
        try:
            with whole(self.shard(job)) as new:
                examples = _examples(source, rows, self.how, left_out, shrunk)
                written = WRITERS[self.how.format](new, examples, source)
                size = new.stat().st_size
            report = Packed(written, len(shrunk), size, left_out)
            write_whole(self.report(job), json.dumps(report._asdict()).encode())
        except OSError as error:
            reason = error.strerror or str(error)
            return OSError(
                f"{self.shard(job)} could not be written: {reason}; afterwards the same command goes on"
            )
        return None


def _ticking(rows: Iterable[int], done: Tensor) -> Iterator[int]:
    for row in rows:
        yield row
        done += 1


def _examples(
    source: Source, rows: Iterable[int], how: Packing, left_out: list[str], shrunk: list[int]
) -> Iterator[Example]:
    """Every image that can be read, as it is written; the others are added to `left_out`, smaller ones to `shrunk`."""
    for i in map(int, rows):
        try:
            data, target = source[i]
            picture = open_image(data, source.name(i))
            pixels = picture.pixels()
        except BadImage as error:
            left_out.append(str(error))
            continue
        kind = picture.kind
        if how.side and max(pixels.shape[:2]) > how.side:
            shrunk.append(i)
            data, kind = _encoded(_smaller(pixels, how.side), kind, how.quality)
        elif isinstance(data, np.ndarray):
            data, kind = _encoded(pixels, kind, how.quality)
        yield Example(i, data, USUAL_SUFFIXES.get(kind, kind.lower()), target)


def _smaller(pixels: np.ndarray, side: int) -> np.ndarray:
    height, width = pixels.shape[:2]
    scale = side / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))


def _encoded(pixels: np.ndarray, kind: str, quality: int) -> tuple[bytes, str]:
    """Pixels as a file, and its format: PNG for what was lossless, else JPEG."""
    file = io.BytesIO()
    if kind in LOSSLESS:
        Image.fromarray(pixels).save(file, "PNG")
        return file.getvalue(), "PNG"
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return file.getvalue(), "JPEG"
