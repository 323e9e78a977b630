"""Packing, shard by shard: which examples go into which, how each is written, and what became of
it. Shards are written by worker processes, each of them with a report beside it."""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitkit.curation.shard_writers import WRITERS, Example
from vitkit.data import BadImage, Source, open_image, permutation, picture_for_people
from vitkit.system.storage.files import whole, write_whole

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
    """All shards of a packing, and how one of them is written. Travels to worker processes."""

    parts: dict[str, Source]
    dest: Path
    packing: Packing
    all: list[Job]
    images_done: Tensor
    """int64 (jobs,): images of each shard that have been looked at, in memory that processes share.
    """

    @classmethod
    def of(cls, parts: dict[str, Source], dest: Path, packing: Packing) -> "Jobs":
        """The shards of all parts, in order."""
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

    def shard_path(self, job: Job) -> Path:
        return self.dest / f"{job.name}.{self.packing.format}"

    def report_path(self, job: Job) -> Path:
        return self.dest / REPORTS / f"{job.name}.json"

    def read_report(self, job: Job) -> Packed | None:
        """What became of a shard; None if it is not there as it was written."""
        try:
            report = Packed(**json.loads(self.report_path(job).read_text("utf-8")))
            size = self.shard_path(job).stat().st_size
        except FileNotFoundError:
            return None
        if size != report.bytes:
            return None
        return report

    def write_shard(self, job: Job) -> None:
        """Write a shard, then the report on it: a shard without one is written again.

        Raises OSError if the disk is full.
        """
        # Which examples it holds.
        source = self.parts[job.part]
        indices = np.array(self.positions(job))
        if self.packing.shuffle:
            indices = permutation(len(source), 0, 0, source.chunks())[indices]

        # Write them, one by one as they are prepared.
        number = self.all.index(job)
        tally = _Tally(self.images_done[number : number + 1])
        examples = _examples(source, indices, self.packing, tally)
        try:
            with whole(self.shard_path(job)) as new:
                written = WRITERS[self.packing.format](new, examples, source)
                size = new.stat().st_size
            report = Packed(written, tally.shrunk, size, tally.left_out)
            write_whole(self.report_path(job), json.dumps(report._asdict()).encode())
        except OSError as error:
            reason = error.strerror or str(error)
            raise OSError(
                f"{self.shard_path(job)} could not be written: {reason}; "
                f"afterwards the same command goes on"
            ) from error


@dataclass(eq=False)
class _Tally:
    """What became of a shard's images so far. It is final when the last example has been written."""

    images_done: Tensor
    """int64 (1,): images that have been looked at."""
    shrunk: int = 0
    """Images that were made smaller."""
    left_out: list[str] = field(default_factory=list)
    """What is wrong with each image that cannot be read."""


def _examples(
    source: Source, indices: np.ndarray, packing: Packing, tally: _Tally
) -> Iterator[Example]:
    """Every image that can be read, as it is written; the tally is kept on the way."""
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
        if packing.side and max(pixels.shape[:2]) > packing.side:
            tally.shrunk += 1
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
