"""Any data set as shards: parquet files as `datasets` writes them, or tar files in the webdataset
convention.

The plan (which examples go into which shard, in which order) is a function of the source and the
settings, and stands in pack.json. A shard appears under its name when it is whole, so a job that
was killed is continued by the same command. Images keep their bytes unless they are larger than
asked for, or are no files. Every image is decoded once; those that cannot be are left out, counted,
and listed in left-out.txt.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

from vitkit.curation.shard_jobs import REPORTS, Jobs, Packed, Packing
from vitkit.data import CLASSES, Source, fingerprint, in_order
from vitkit.system.console.progress import counted
from vitkit.system.storage.files import on_this_machine, remove_unfinished, write_whole

PLAN = "pack.json"  # in the directory: what was asked for
LEFT_OUT = "left-out.txt"  # in the directory: images that are not in the shards, and why
PATIENCE = 10.0  # seconds to wait for the workers of a run that was killed


def pack(
    parts: dict[str, Source], dest: Path, packing: Packing, workers: int, title: str = ""
) -> Packed:
    """Write all parts ("" for a data set without any) into a directory; one that was begun is
    continued.

    title: of a progress bar; without one there is none.
    Returns the sum over all shards.
    Raises ValueError for a directory that holds something else, or that another process packs into,
    OSError when the disk is full.
    """
    # Refuse what cannot be done before anything is written.
    _refuse_foreign_directory(dest)
    labels = next(iter(parts.values())).labels
    _check_names(labels)

    # Write what is missing, unless another process does.
    (dest / REPORTS).mkdir(parents=True, exist_ok=True)
    with _locked(dest):
        _record_plan(parts, dest, packing)
        for folder in (dest, dest / REPORTS):
            remove_unfinished(folder)  # by a run that was killed
        if labels:
            write_whole(dest / CLASSES, "".join(f"{label}\n" for label in labels).encode())
        jobs = Jobs.of(parts, dest, packing)
        _write_missing(jobs, workers, title)
        return _total(jobs)


def _refuse_foreign_directory(dest: Path) -> None:
    """Raises ValueError for a directory that holds something other than packed shards."""
    if on_this_machine(dest).is_file():
        raise ValueError(f"{dest} is a file; choose a directory")
    if dest.is_symlink() and not dest.exists():
        raise ValueError(f"{dest} is a link to nothing; make its target, or choose a directory")
    if dest.is_dir() and not (dest / PLAN).exists():
        others = [path for path in dest.iterdir() if path.name != REPORTS]
        if others:
            raise ValueError(f"{dest} is not empty; choose another directory")


def _check_names(labels: tuple[str, ...]) -> None:
    """Raises ValueError for a class whose name cannot be a line of classes.txt."""
    for label in labels:
        text = label.encode("utf-8", "ignore").decode("utf-8")
        if text.splitlines() != [label]:
            raise ValueError(
                f"the class {label!r} has a line break or no UTF-8 text in its name; rename it"
            )


@contextmanager
def _locked(dest: Path) -> Iterator[None]:
    """Lock the directory while this block runs.

    Forked workers inherit the lock, so that those of a killed run are waited for. Raises ValueError
    if another process has locked it.
    """
    with (dest / REPORTS / "lock").open("w") as file:
        until = time.monotonic() + PATIENCE
        while not _try_lock(file):
            if time.monotonic() > until:
                raise ValueError(
                    f"another process is packing into {dest}; wait for its end, or choose another "
                    f"directory"
                )
            time.sleep(0.1)
        yield


def _try_lock(file) -> bool:
    """Lock a file for as long as it is open. Returns False if another process has locked it."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        pass  # a system, or a file system, without locks: nobody can be kept out
    return True


def _record_plan(parts: dict[str, Source], dest: Path, packing: Packing) -> None:
    """Write down what is packed, and how. Raises ValueError if the directory holds another plan."""
    plan = {
        "settings": asdict(packing),
        "fingerprint": {name: fingerprint(part) for name, part in parts.items()},
    }
    if not (dest / PLAN).exists():
        write_whole(dest / PLAN, json.dumps(plan, indent=1).encode())
    elif _read_plan(dest / PLAN) != plan:
        raise ValueError(
            f"{dest} holds shards of other images or settings; choose another directory, "
            f"or remove it"
        )


def _read_plan(file: Path) -> dict:
    """The plan in a file. Raises ValueError if it is damaged, or somebody's."""
    try:
        return json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(
            f"{file} is no plan of vitkit data pack, or a damaged one ({error}); choose another "
            "directory"
        ) from error


def _write_missing(jobs: Jobs, workers: int, title: str) -> None:
    """Write the shards that are not there yet."""
    for part in jobs.parts.values():
        part.prepare()
    missing = [job for job in jobs.all if jobs.read_report(job) is None]
    progress = nullcontext()
    if title:
        count = sum(len(jobs.positions(job)) for job in missing)
        progress = counted(title, count, lambda: int(jobs.images_done.sum()))
    with progress:
        for _ in in_order(jobs.write_shard, missing, min(workers, len(missing))):
            pass


def _total(jobs: Jobs) -> Packed:
    """The sum over all shards; what was left out is written down."""
    reports = [jobs.read_report(job) for job in jobs.all]
    left_out = []
    for report in reports:
        left_out += report.left_out
    if left_out:
        text = "".join(f"{line}\n" for line in left_out)
        write_whole(jobs.dest / LEFT_OUT, text.encode("utf-8", "replace"))
    return Packed(
        written=sum(report.written for report in reports),
        shrunk=sum(report.shrunk for report in reports),
        bytes=sum(report.bytes for report in reports),
        left_out=left_out,
    )
