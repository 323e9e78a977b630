"""Writes any data set as shards: parquet files in the layout of `datasets`, or tar files in the webdataset
convention.

The plan (which examples go into which shard, in which order) is a function of the source and the settings,
which are recorded in pack.json. A shard gets its name only when it is complete, so the same command continues
after an interruption. Each tar shard has an index beside it (NAME.tar.index) with the positions of its
images. Images keep their bytes unless they are larger than requested, or are arrays. Every image is decoded
once; those that cannot be decoded are left out, counted, and listed in left-out.txt.
"""

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitkit.curation.writers import WRITERS, Tally, readable_examples
from vitkit.data import Lists, Source, fingerprint, in_order, index_beside, permutation, write_index
from vitkit.data.formats.tar import CLASSES
from vitkit.system.console.progress import bar, counted, silent
from vitkit.system.errors import BadRun, BadSettings, Unavailable
from vitkit.system.storage.files import (
    on_this_machine,
    parse_json,
    remove_unfinished,
    whole,
    write_whole,
)
from vitkit.system.storage.locks import try_lock
from vitkit.system.storage.records import record_of

# Names in the directory
PLAN = "pack.json"  # the settings, and a fingerprint of the images
LEFT_OUT = "left-out.txt"  # images that are not in the shards, and why
REPORTS = ".packed"  # folder with a report on each shard


@dataclass(frozen=True)
class Packing:
    """The settings for writing shards."""

    format: Literal["tar", "parquet"] = "tar"
    """tar: read in any order, on disk or by address. parquet: what the hub shows, and tables can
    query."""
    shard: int = 5000
    """Examples in a shard."""
    side: int = 0
    """Images with a longer side are made smaller to this many pixels, shape kept; 0 keeps every
    byte."""
    quality: int = 95
    """Quality of a JPEG that had to be made smaller; lossless formats such as PNG stay lossless."""
    shuffle: bool = True
    """Put examples in random order, so that classes are spread over all shards; else the order
    stays."""

    def __post_init__(self):
        if self.format not in ("tar", "parquet"):
            raise BadSettings(f"format is {self.format!r}; it is tar or parquet")
        if self.shard < 1 or self.side < 0 or not 1 <= self.quality <= 100:
            raise BadSettings(
                f"shard is {self.shard}, side {self.side}, quality {self.quality}; a shard has an "
                f"example, a side is no less than 0, and a quality is from 1 to 100"
            )


class Packed(NamedTuple):
    """The result of packing one shard, or all of them."""

    written: int
    """Number of images in the shards."""
    shrunk: int
    """Number of images that were made smaller."""
    bytes: int
    """Size of the shards."""
    left_out: list[str]
    """The problem of each image that was left out."""


def pack_shards(
    parts: dict[str, Source], dest: Path, packing: Packing, workers: int, title: str = ""
) -> Packed:
    """Write the missing shards of all parts into a directory, and return the sum over all shards.

    parts: sources by their names; "" is the name in a data set without parts. title: title of a progress
    bar; "" shows none.
    Raises VitkitError for a directory that holds something else, or that another process packs into;
    OSError if the disk is full.
    """
    # Check everything before anything is written
    if on_this_machine(dest).is_file():
        raise BadSettings(f"{dest} is a file; choose a directory")
    if dest.is_symlink() and not dest.exists():
        raise BadSettings(f"{dest} is a link to nothing; make its target, or choose a directory")
    if dest.is_dir() and not (dest / PLAN).exists():
        others = [path for path in dest.iterdir() if path.name != REPORTS]
        if others:
            raise BadSettings(f"{dest} is not empty; choose another directory")
    labels = next(iter(parts.values())).labels
    for label in labels:
        text = label.encode("utf-8", "ignore").decode("utf-8")
        if text.splitlines() != [label]:  # so it cannot be a line of classes.txt
            raise BadSettings(
                f"the class {label!r} has a line break or no UTF-8 text in its name; rename it"
            )

    for source in parts.values():
        if isinstance(source.targets, Lists) and source.targets.unknown is not None:
            raise BadSettings(
                "some labels are unknown, which shards cannot say; keep the images as files and the labels "
                "in a table"
            )

    # Write the missing shards, unless another process does
    (dest / REPORTS).mkdir(parents=True, exist_ok=True)
    with _locked(dest):
        _record_plan(parts, dest, packing)
        for folder in (dest, dest / REPORTS):
            remove_unfinished(folder)  # by a run that was killed
        if labels:
            write_whole(dest / CLASSES, "".join(f"{label}\n" for label in labels).encode())
        jobs = Jobs.of(parts, dest, packing)
        jobs.write_missing(workers, title)
        return jobs.total()


@contextmanager
def _locked(dest: Path) -> Iterator[None]:
    """Context in which the directory is locked. Raises VitkitError if another process packs into it.

    Workers of a killed process may still be writing. This is harmless: they write the same shards, each of
    which gets its name only when it is complete.
    """
    try:
        handle = try_lock(dest / REPORTS / "lock")
    except OSError:
        # A file system without locks, as on some clusters: other processes are not kept out
        yield
        return
    if handle is None:
        raise BadSettings(
            f"another process is packing into {dest}; wait for its end, or choose another directory"
        )
    try:
        yield
    finally:
        os.close(handle)


def _record_plan(parts: dict[str, Source], dest: Path, packing: Packing) -> None:
    """Record the settings and a fingerprint of the images. Raises VitkitError if the directory holds
    another plan, or a damaged one."""
    plan = {
        "settings": asdict(packing),
        "fingerprint": {name: fingerprint(part) for name, part in parts.items()},
    }
    file = dest / PLAN
    if not file.exists():
        write_whole(file, json.dumps(plan, indent=1).encode())
        return
    try:
        earlier_plan = parse_json(file.read_bytes())
    except ValueError as error:
        raise BadRun(
            f"{file} is no plan of vitkit data pack, or a damaged one ({error}); choose another "
            "directory"
        ) from error
    if earlier_plan != plan:
        raise BadRun(
            f"{dest} holds shards of other images or settings; choose another directory, "
            f"or remove it"
        )


# Shards


@dataclass(frozen=True)
class ShardJob:
    """A shard: its part, its number, and the number of shards in the part."""

    part: str
    number: int
    count: int

    @property
    def name(self) -> str:
        return f"{self.part or 'images'}-{self.number:05}-of-{self.count:05}"


@dataclass(frozen=True, eq=False)
class Jobs:
    """All shards of a data set, and the methods to write them. It is sent to worker processes."""

    parts: dict[str, Source]
    dest: Path
    packing: Packing
    all: list[ShardJob]
    images_done: Tensor
    """Number of images of each shard that have been processed: int64 (jobs,), in shared memory."""

    @classmethod
    def of(cls, parts: dict[str, Source], dest: Path, packing: Packing) -> "Jobs":
        """The shards of all parts, in order."""
        jobs = []
        for part, source in parts.items():
            count = -(-len(source) // packing.shard)
            jobs += [ShardJob(part, number, count) for number in range(count)]
        images_done = torch.zeros(len(jobs), dtype=torch.int64).share_memory_()
        return cls(parts, dest, packing, jobs, images_done)

    def positions(self, job: ShardJob) -> range:
        """The positions of a shard's examples, in the order in which its part is written."""
        start = job.number * self.packing.shard
        stop = min(start + self.packing.shard, len(self.parts[job.part]))
        return range(start, stop)

    def shard_path(self, job: ShardJob) -> Path:
        return self.dest / f"{job.name}.{self.packing.format}"

    def report_path(self, job: ShardJob) -> Path:
        return self.dest / REPORTS / f"{job.name}.json"

    def read_report(self, job: ShardJob) -> Packed | None:
        """The report of a shard; None if the shard is missing or has changed since it was
        written."""
        try:
            report = record_of(Packed, parse_json(self.report_path(job).read_text("utf-8")))
            size = self.shard_path(job).stat().st_size
        except (FileNotFoundError, ValueError):  # missing or damaged
            return None
        if min(report.written, report.shrunk) < 0:
            return None
        if size != report.bytes:
            return None
        return report

    def write_shard(self, job: ShardJob) -> None:
        """Write a shard, and then its report. Raises OSError if the disk is full."""
        # Select its examples
        source = self.parts[job.part]
        indices = np.array(self.positions(job))
        if self.packing.shuffle:
            indices = permutation(len(source), 0, 0, source.chunks())[indices]

        # Write them
        number = self.all.index(job)
        tally = Tally(self.images_done[number : number + 1])
        examples = readable_examples(
            source, indices, self.packing.side, self.packing.quality, tally
        )
        try:
            with whole(self.shard_path(job)) as new:
                written = WRITERS[self.packing.format](new, examples, source)
                size = new.stat().st_size
            if self.packing.format == "tar":
                write_index(self.shard_path(job))
            report = Packed(written, tally.shrunk, size, tally.left_out)
            write_whole(self.report_path(job), json.dumps(report._asdict()).encode())
        except OSError as error:
            reason = error.strerror or str(error)
            raise Unavailable(
                f"{self.shard_path(job)} could not be written: {reason}; "
                f"correct this, and run the same command to continue"
            ) from error

    def write_missing(self, workers: int, title: str) -> None:
        """Write the missing shards, with a progress bar if it has a title."""
        for part in self.parts.values():
            part.prepare()
        missing = [job for job in self.all if self.read_report(job) is None]
        if self.packing.format == "tar":
            self._index_others(missing, workers, title)
        progress: AbstractContextManager[None] = nullcontext()
        if title:
            count = sum(len(self.positions(job)) for job in missing)
            progress = counted(title, count, lambda: int(self.images_done.sum()))
        with progress:
            for _ in in_order(self.write_shard, missing, min(workers, len(missing))):
                pass

    def _index_others(self, missing: list[ShardJob], workers: int, title: str) -> None:
        """Write the missing indices of shards that exist; an earlier version wrote none."""
        shards = [self.shard_path(job) for job in self.all if job not in missing]
        shards = [shard for shard in shards if not index_beside(shard).exists()]
        shown = bar("indexing shards") if title else silent
        made = in_order(write_index, shards, min(workers, len(shards)))
        for _ in shown(made, len(shards)):
            pass

    def total(self) -> Packed:
        """The sum over all shards. Also writes the list of images that were left out."""
        reports = []
        left_out: list[str] = []
        for job in self.all:
            report = self.read_report(job)
            if report is None:
                raise Unavailable(
                    f"{self.shard_path(job)} was changed or deleted while the others were written; run the "
                    "same command to write it again"
                )
            reports.append(report)
            left_out += report.left_out
        if left_out:
            text = "".join(f"{line}\n" for line in left_out)
            write_whole(self.dest / LEFT_OUT, text.encode("utf-8", "replace"))
        return Packed(
            written=sum(report.written for report in reports),
            shrunk=sum(report.shrunk for report in reports),
            bytes=sum(report.bytes for report in reports),
            left_out=left_out,
        )
