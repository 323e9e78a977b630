"""Checkpoints on the disk: complete or absent, never half.

A checkpoint is a folder `checkpoints/step-00000500` of safetensors files (weights, average,
optimiser; one file, or one of each rank) and `state.json` (counters, and a checksum of every file).
It is written under another name, synced and renamed; then the pointer `LAST` moves, by rename. No
pickle.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path

COUNTERS = ("step", "skipped", "bad_in_row", "rollbacks")


def new_folder(run_dir: Path, step: int) -> Path:
    """A new folder for a checkpoint's files, under a name that no reader takes for one."""
    folder = run_dir / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    for unfinished in folder.glob(".step-*.new"):  # by a save that was killed
        shutil.rmtree(unfinished, ignore_errors=True)
    new = folder / f".step-{step:08d}.new"
    new.mkdir()
    return new


def complete(new: Path, facts: dict, checksums: dict[str, str]) -> Path:
    """Make a folder whose files are written a checkpoint, and move the pointer to it; `checksums`
    has one for each file."""
    (new / "state.json").write_text(json.dumps(facts | {"sha256": checksums}, indent=1), "utf-8")
    for path in (*(new / name for name in checksums), new / "state.json", new):
        sync(path)

    final = new.with_name(f"step-{facts['step']:08d}")
    if final.exists():  # damaged, or of an earlier start that was killed before it moved LAST
        shutil.rmtree(final)
    new.rename(final)
    sync(final.parent)
    point_to(final.parent.parent, final.name)
    return final


def step_of(checkpoint: Path) -> int:
    """After how many steps it was written."""
    return int(checkpoint.name.removeprefix("step-"))


def prune(run_dir: Path, keep: int, damaged: set[str]) -> None:
    """Leave the last `keep` checkpoints of the recipe's schedule, not counting `damaged` ones, and
    the very last one.

    What an interruption wrote neither counts nor outlives the next one: an undisturbed run goes
    back to the same places. What cannot be removed now is tried again the next time.
    """
    every = checkpoints(run_dir)
    good = [path for path in every if on_schedule(path) and path.name not in damaged]
    for old in set(every) - {every[0], *good[:keep]}:
        shutil.rmtree(old, ignore_errors=True)


def verify(checkpoint: Path, share: tuple[int, int] = (0, 1)) -> dict:
    """The facts of a checkpoint, if its files are intact; with share (rank, world_size) only
    that rank's part of them is read.

    Raises ValueError, saying what, if any byte is damaged.
    """
    rank, world_size = share
    try:
        facts = json.loads((checkpoint / "state.json").read_text("utf-8"))
        if any(not isinstance(facts[name], int) for name in COUNTERS):
            raise ValueError("its counters are not whole numbers")
        if not facts["sha256"]:
            raise ValueError("it names no files")
        for name in sorted(facts["sha256"])[rank::world_size]:
            if checksum(checkpoint / Path(name).name) != facts["sha256"][name]:
                raise ValueError("its checksum does not fit")
        return facts
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"checkpoint {checkpoint} is damaged: {error}") from error


def checkpoints(run_dir: Path) -> list[Path]:
    """The finished checkpoints of a run, newest first; the one that LAST names comes before all
    others."""
    folder = run_dir / "checkpoints"
    newest_first = sorted(folder.glob("step-*"), key=lambda path: path.name, reverse=True)
    try:
        last = (run_dir / "LAST").read_text("utf-8").strip()
    except OSError:
        return newest_first
    return sorted(newest_first, key=lambda path: path.name != last)


def on_schedule(checkpoint: Path) -> bool:
    """Whether the recipe asked for this checkpoint, as opposed to an interruption: an undisturbed
    run has it too."""
    try:
        return bool(json.loads((checkpoint / "state.json").read_text("utf-8"))["scheduled"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def point_to(run_dir: Path, name: str) -> None:
    """Move the pointer to the last checkpoint; readers see the old name or the new one."""
    new = run_dir / "LAST.new"
    new.write_text(name, "utf-8")
    sync(new)
    new.replace(run_dir / "LAST")
    sync(run_dir)


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk itself."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
