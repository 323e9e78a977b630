"""The files in a run's directory from which the next call continues: checkpoints, and records of the recipe and
the images.

A checkpoint is a folder `checkpoints/step-00000500` of safetensors files (weights, average, optimiser; one file,
or one for each rank) and `state.json`: counters, the recipe and its images, a checksum of every file, and one of
itself. It is written under another name, synced and renamed, so it is complete or absent; then the pointer `LAST`
moves to it, by rename too. Nothing is pickled.
"""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from vitkit.system.errors import BadRun
from vitkit.system.processes.ranks import from_rank_0
from vitkit.system.storage.addresses import values_without_credentials
from vitkit.system.storage.files import parse_json, refuse_special, sync, write_whole
from vitkit.training.record.values import check_data, check_recipe, differences, read_object

MODEL = "model"  # folder of the finished model, in the run's directory
FINISHED = "finished.json"  # checksums of that folder's files, the recipe and its images
SEAL = "checksum"  # key of the checksum of all other values of a sealed file
COUNTERS = ("step", "skipped", "bad_in_row", "rollbacks")  # fields of State that are in state.json


def new_folder(run_dir: Path, step: int) -> Path:
    """Create a folder for a new checkpoint's files, under a temporary name, which readers ignore."""
    folder = run_dir / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)

    # Delete unfinished checkpoints of a run that was killed while it saved
    for unfinished in folder.glob(".step-*.new"):
        shutil.rmtree(unfinished, ignore_errors=True)
    new = folder / f".step-{step:08d}.new"
    new.mkdir()
    return new


def complete(new: Path, facts: dict, checksums: dict[str, str]) -> Path:
    """Turn a folder, whose files are all on the disk, into a checkpoint, and move the pointer to it.
    checksums: SHA-256 of each file, by name."""
    # Write the rest to the disk before the folder gets its name
    write_sealed(new / "state.json", facts | {"sha256": checksums})
    sync(new)

    # An existing one is damaged, or the run was killed before it moved the pointer to it
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
    """Remove old checkpoints: all but the one that LAST names, and the last `keep` scheduled ones that are not
    `damaged`, as far as this process knows.

    Checkpoints of interruptions are not counted and are soon removed, so that an interrupted run keeps the
    same checkpoints as an uninterrupted run, and rolls back to the same ones.
    """
    all_checkpoints = checkpoints(run_dir)
    newest = all_checkpoints[0]
    good = [path for path in all_checkpoints if on_schedule(path) and path.name not in damaged]
    for old in set(all_checkpoints) - {newest, *good[:keep]}:
        shutil.rmtree(old, ignore_errors=True)  # if that fails, the next call tries again


def read_facts(checkpoint: Path) -> dict:
    """The values of a checkpoint's state.json. Raises VitkitError if it is damaged."""
    try:
        facts = read_sealed(checkpoint / "state.json")
        if facts["step"] != step_of(checkpoint):
            raise BadRun(f"its state.json is of step {facts['step']}")
        return facts | {"sha256": dict(facts["sha256"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadRun(f"checkpoint {checkpoint} is damaged: {error}") from error


def check_file(file: Path, expected: str) -> None:
    """Raises VitkitError if a file of a checkpoint is missing, or its checksum differs."""
    try:
        if checksum(file) != expected:
            raise BadRun("its checksum does not match")
    except (OSError, ValueError) as error:
        raise BadRun(f"checkpoint {file.parent} is damaged: {error}") from error


def checkpoints(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, newest first. The one that LAST names comes before all others."""
    folder = run_dir / "checkpoints"
    complete = [path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
    newest_first = sorted(complete, key=lambda path: path.name, reverse=True)
    try:
        last = (run_dir / "LAST").read_text("utf-8").strip()
    except (OSError, ValueError):  # missing or damaged: the newest is the last
        return newest_first
    return sorted(newest_first, key=lambda path: path.name != last)


def on_schedule(checkpoint: Path) -> bool:
    """Whether a checkpoint was written at a step of the recipe's `save_every`, so that an uninterrupted run has
    it too, and not by an interruption."""
    try:
        return read_sealed(checkpoint / "state.json")["scheduled"]
    except (OSError, ValueError, KeyError):
        return False


def point_to(run_dir: Path, name: str) -> None:
    """Move the pointer to the last checkpoint atomically: readers see the old name or the new one."""
    write_whole(run_dir / "LAST", name.encode())
    sync(run_dir)


# Files with a checksum


def write_sealed(path: Path, values: dict) -> None:
    """Write a JSON file with its own checksum atomically. Credentials are removed from addresses."""
    values = values_without_credentials(values)
    text = json.dumps(values | {SEAL: _checksum_of(values)}, indent=1)
    write_whole(path, text.encode())


def read_sealed(path: Path) -> dict:
    """The values of a file of `write_sealed`. Raises OSError, and VitkitError if the checksum differs."""
    values = parse_json(path.read_bytes())
    if not isinstance(values, dict) or values.pop(SEAL, None) != _checksum_of(values):
        raise BadRun(f"the checksum of {path.name} does not match")
    return values


def _checksum_of(values: dict) -> str:
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Records of an earlier call


class Occupied(BadRun):
    """The directory belongs to another run, or holds files of the user, which must not be overwritten."""


class Busy(Occupied):
    """Another process is working in the directory."""


class Earlier(NamedTuple):
    """The records of an earlier call in a directory; empty if there was none."""

    recipe: dict
    """The content of recipe.json; empty if it is unknown."""
    data: dict
    """The content of data.json; empty if it is unknown."""
    trained: bool
    """Whether there are trained weights, which another recipe must not overwrite. False if the earlier call
    was refused or stopped before its first step."""


def earlier_call(run_dir: Path) -> Earlier:
    """The records of an earlier call in the directory; every rank gets what rank 0 reads."""
    return from_rank_0(lambda: read_earlier(run_dir))


def read_earlier(run_dir: Path) -> Earlier:
    """The records of an earlier call in the directory, read by this process."""
    for pattern in ("*", "model/*", "checkpoints/*/*"):
        for path in run_dir.glob(pattern):
            refuse_special(path)
    existing = checkpoints(run_dir)
    trained = any(step_of(each) > 0 for each in existing) or (run_dir / MODEL).exists()

    # Prefer the copies in checkpoints and finished.json, which have a checksum
    for path in [*(each / "state.json" for each in existing), run_dir / FINISHED]:
        try:
            values = read_sealed(path)
            return Earlier(check_recipe(values["recipe"]), check_data(values["data"]), trained)
        except (OSError, ValueError, KeyError):
            continue

    recipe = read_object(run_dir / "recipe.json")
    data = read_object(run_dir / "data.json")
    try:
        return Earlier(check_recipe(recipe), check_data(data), trained)
    except ValueError:
        return Earlier({}, {}, trained)


def refuse_other_recipe(run_dir: Path, recorded: dict, requested: dict, prefix: str = "") -> None:
    """Raises Occupied, with the differences, if the recipe that ran in a directory is not the requested one.
    prefix: "data." if both are that part of a recipe."""
    refuse_differences(run_dir, differences(recorded, requested, prefix))


def refuse_differences(run_dir: Path, changed: list[str]) -> None:
    """Raises Occupied if there are differences between the recipe that ran in a directory and the requested
    one, with the first of them."""
    if changed:
        raise Occupied(
            f"{run_dir} holds a run of another recipe ({'; '.join(changed[:5])}); choose another "
            "`workdir`, or remove it"
        )


def refuse_unknown_recipe(run_dir: Path, earlier: Earlier) -> None:
    """Raises Occupied if there are trained weights and their recipe is unknown."""
    if earlier.trained and not earlier.recipe:
        raise Occupied(
            f"{run_dir} holds a trained model whose recipe is unknown; choose another `workdir`, or "
            "remove it"
        )
