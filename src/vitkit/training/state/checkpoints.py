"""Checkpoints on the disk: a checkpoint is complete or absent, never half there.

It is a folder `checkpoints/step-00000500` of safetensors files (weights, average, optimiser; one
file, or one of each rank) and `state.json`: counters, the recipe and its images, a checksum of every
file, and one of itself. It is written under another name, synced and renamed; then the pointer
`LAST` moves to it, by rename too. Nothing is pickled.
"""

import hashlib
import re
import shutil
from pathlib import Path

from vitkit.system.storage.files import sync
from vitkit.training.state.sealed import read_sealed, sealed

COUNTERS = ("step", "skipped", "bad_in_row", "rollbacks")  # of State, in state.json


def new_folder(run_dir: Path, step: int) -> Path:
    """A folder for a new checkpoint's files, under a name that readers do not look for."""
    folder = run_dir / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)

    # What a run that was killed while it saved has left
    for unfinished in folder.glob(".step-*.new"):
        shutil.rmtree(unfinished, ignore_errors=True)
    new = folder / f".step-{step:08d}.new"
    new.mkdir()
    return new


def complete(new: Path, facts: dict, checksums: dict[str, str]) -> Path:
    """Turn a folder, whose files are all written, into a checkpoint, and move the pointer to it.
    `checksums` has one for each file."""
    # All of it on the disk before it gets its name
    (new / "state.json").write_text(sealed(facts | {"sha256": checksums}), "utf-8")
    for name in (*checksums, "state.json"):
        sync(new / name)
    sync(new)

    # One of that name is damaged, or the run was killed before it moved the pointer to it
    final = new.with_name(f"step-{facts['step']:08d}")
    if final.exists():
        shutil.rmtree(final)
    new.rename(final)
    sync(final.parent)
    point_to(final.parent.parent, final.name)
    return final


def step_of(checkpoint: Path) -> int:
    """The step at which a checkpoint was written."""
    return int(checkpoint.name.removeprefix("step-"))


def prune(run_dir: Path, keep: int, damaged: set[str]) -> None:
    """Remove old checkpoints: all but the one that LAST names, and the last `keep` of the recipe's
    schedule that are not `damaged`. Damage that another process met is not known here.

    A checkpoint of an interruption is not counted and is soon removed, so that a run that was
    interrupted keeps the same ones as an undisturbed run, and goes back to the same ones.
    """
    all_checkpoints = checkpoints(run_dir)
    newest = all_checkpoints[0]
    good = [path for path in all_checkpoints if on_schedule(path) and path.name not in damaged]
    for old in set(all_checkpoints) - {newest, *good[:keep]}:
        shutil.rmtree(old, ignore_errors=True)  # if that fails, the next call tries again


def verify(checkpoint: Path, share: tuple[int, int] = (0, 1)) -> dict:
    """The facts of a checkpoint (state.json), after a look at its files' checksums; with share
    (rank, world_size) at those of this rank's part of the files.

    Raises ValueError if anything is damaged.
    """
    rank, world_size = share
    try:
        facts = read_sealed(checkpoint / "state.json")
        if facts["step"] != step_of(checkpoint):
            raise ValueError(f"its state.json is of step {facts['step']}")
        for name in sorted(facts["sha256"])[rank::world_size]:
            file = checkpoint / Path(name).name  # never outside of the folder
            if checksum(file) != facts["sha256"][name]:
                raise ValueError("its checksum does not fit")
        return facts
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"checkpoint {checkpoint} is damaged: {error}") from error


def checkpoints(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, newest first. The one that LAST names comes before all others."""
    folder = run_dir / "checkpoints"
    complete = [path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
    newest_first = sorted(complete, key=lambda path: path.name, reverse=True)
    try:
        last = (run_dir / "LAST").read_text("utf-8").strip()
    except (OSError, ValueError):  # not there, or damaged: the newest is the last
        return newest_first
    return sorted(newest_first, key=lambda path: path.name != last)


def on_schedule(checkpoint: Path) -> bool:
    """Whether the recipe asked for this checkpoint, so that an undisturbed run has it too; else an
    interruption did."""
    try:
        return read_sealed(checkpoint / "state.json")["scheduled"]
    except (OSError, ValueError, KeyError):
        return False


def point_to(run_dir: Path, name: str) -> None:
    """Move the pointer to the last checkpoint; readers see the old name or the new one."""
    new = run_dir / "LAST.new"
    new.write_text(name, "utf-8")
    sync(new)
    new.replace(run_dir / "LAST")
    sync(run_dir)


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
