"""Packing, shard by shard: which examples go into which, how each is written, and what became of
it. Works in workers."""

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitkit.curate.writers import WRITERS, Example
from vitkit.data.images import BadImage, open_image
from vitkit.data.order import permutation
from vitkit.data.sources import Source
from vitkit.system.files import whole, write_whole

REPORTS = ".packed"  # in the directory: what became of each shard
LOSSLESS = ("PNG", "BMP", "TIFF", "GIF", "PPM", "DIB", "QOI", "SGI", "PCX", "ICO", "array")
USUAL_SUFFIXES = {"JPEG": "jpg", "TIFF": "tif", "JPEG2000": "jp2"}


@dataclass(frozen=True)
class Packing:
    """How shards are written."""

    format: Literal["tar", "parquet"] = "tar"
    """tar: read in any order, on disk or by address. parquet: what the hub shows, and tables can
    query."""
    shard: int = 5000
    """Examples in a shard."""
    side: int = 0
    """Images with a longer side are made smaller to this many pixels, shape kept; 0 keeps every
    byte."""
    quality: int = 95
    """Of a JPEG that had to be made smaller; PNG and its like stay lossless."""
    shuffle: bool = True
    """Put examples in random order, so that classes are spread over all shards; else the order
    stays."""

    def __post_init__(self):
        if self.format not in ("tar", "parquet"):
            raise ValueError(f"format is {self.format!r}; it is tar or parquet")
        if self.shard < 1 or self.side < 0 or not 1 <= self.quality <= 100:
            raise ValueError(
                f"shard is {self.shard}, side {self.side}, quality {self.quality}; a shard has an "
                f"example, a side is no less than 0, and a quality is from 1 to 100"
            )


class Packed(NamedTuple):
    """What became of a shard, or of all of them."""

    written: int
    """Images."""
    shrunk: int
    """Images that were made smaller."""
    bytes: int
    left_out: list[str]
    """What is wrong with each image that was left out."""


class Job(NamedTuple):
    """A shard: its part, its number, and how many the part has."""

    part: str
    number: int
    count: int

    @property
    def name(self) -> str:
        return f"{self.part or 'images'}-{self.number:05}-of-{self.count:05}"


@dataclass(frozen=True, eq=False)
class Jobs:
    """Job -> None, the shard being written; an OSError if it cannot be."""

    parts: dict[str, Source]
    dest: Path
    packing: Packing
    all: list[Job]
    images_done: Tensor
    """int64 (jobs,): images of each shard that have been looked at, in memory that processes share.
    """

    @classmethod
    def of(cls, parts: dict[str, Source], dest: Path, packing: Packing) -> "Jobs":
        """As many as the parts have shards."""
        jobs = []
        for part, source in parts.items():
            count = -(-len(source) // packing.shard)
            jobs += [Job(part, number, count) for number in range(count)]
        images_done = torch.zeros(len(jobs), dtype=torch.int64).share_memory_()
        return cls(parts, dest, packing, jobs, images_done)

    def positions(self, job: Job) -> range:
        """Which examples of its part a shard holds, counted in the order of writing."""
        start = job.number * self.packing.shard
        stop = min(start + self.packing.shard, len(self.parts[job.part]))
        return range(start, stop)

    def shard(self, job: Job) -> Path:
        return self.dest / f"{job.name}.{self.packing.format}"

    def report_file(self, job: Job) -> Path:
        """Where it is written what became of a shard: after the shard itself."""
        return self.dest / REPORTS / f"{job.name}.json"

    def report(self, job: Job) -> Packed | None:
        """What became of a shard; None if it is not there as it was written."""
        try:
            report = Packed(**json.loads(self.report_file(job).read_text("utf-8")))
            size = self.shard(job).stat().st_size
        except FileNotFoundError:
            return None
        if size != report.bytes:
            return None
        return report

    def __getitem__(self, job: Job) -> Exception | None:
        # Which examples it holds, each counted once it was looked at.
        source = self.parts[job.part]
        rows = self.positions(job)
        if self.packing.shuffle:
            rows = permutation(len(source), 0, 0, source.chunks())[rows]
        number = self.all.index(job)
        rows = _counted(rows, self.images_done[number : number + 1])

        # Write the shard, and then what became of it.
        left_out: list[str] = []
        shrunk: list[int] = []
        examples = _examples(source, rows, self.packing, left_out, shrunk)
        try:
            with whole(self.shard(job)) as new:
                written = WRITERS[self.packing.format](new, examples, source)
                size = new.stat().st_size
            report = Packed(written, len(shrunk), size, left_out)
            write_whole(self.report_file(job), json.dumps(report._asdict()).encode())
        except OSError as error:
            reason = error.strerror or str(error)
            return OSError(
                f"{self.shard(job)} could not be written: {reason}; "
                f"afterwards the same command goes on"
            )
        return None


def _counted(rows: Iterable[int], count: Tensor) -> Iterator[int]:
    """The same rows; each is counted when the next one is asked for."""
    for row in rows:
        yield row
        count += 1


def _examples(
    source: Source, rows: Iterable[int], packing: Packing, left_out: list[str], shrunk: list[int]
) -> Iterator[Example]:
    """Every image that can be read, as it is written; the others are added to `left_out`, smaller
    ones to `shrunk`."""
    for i in map(int, rows):
        try:
            data, target = source[i]
            picture = open_image(data, source.name(i))
            pixels = picture.pixels()
        except BadImage as error:
            left_out.append(str(error))
            continue
        kind = picture.kind
        if packing.side and max(pixels.shape[:2]) > packing.side:
            shrunk.append(i)
            data, kind = _encoded(_smaller(pixels, packing.side), kind, packing.quality)
        elif isinstance(data, np.ndarray):
            data, kind = _encoded(pixels, kind, packing.quality)
        suffix = USUAL_SUFFIXES.get(kind, kind.lower())
        yield Example(i, data, suffix, target)


def _smaller(pixels: np.ndarray, side: int) -> np.ndarray:
    """Pixels (h, w, 3) resized so that the longer side is `side`."""
    height, width = pixels.shape[:2]
    scale = side / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))


def _encoded(pixels: np.ndarray, kind: str, quality: int) -> tuple[bytes, str]:
    """Pixels as a file, and its format: PNG for what was lossless, else JPEG."""
    file = io.BytesIO()
    if kind in LOSSLESS:
        Image.fromarray(pixels).save(file, "PNG")
        return file.getvalue(), "PNG"
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return file.getvalue(), "JPEG"
