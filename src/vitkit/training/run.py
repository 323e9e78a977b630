"""A run: what the steps of the loop share, and the directory that it is written to.

The directory holds recipe.json (what runs), data.json (on which images), machine.json (on what),
begun.json, schedule.json (if the clock decided its end), metrics.jsonl, answers.safetensors (of the
last evaluation), checkpoints/ and LAST (checkpoints.py), model/ (the finished Classifier) and LOCK.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import torch

from vitkit.data import default_workers
from vitkit.system.machine import Precision, pick_precision
from vitkit.system.processes.ranks import from_rank_0, on_rank_0
from vitkit.system.storage.files import check_can_be_made, on_this_machine, write_json
from vitkit.training.data import RunData, Say
from vitkit.training.recipe import Recipe
from vitkit.training.record.beginning import FILE as BEGUN
from vitkit.training.record.log import Log
from vitkit.training.record.values import differences, to_json, with_defaults
from vitkit.training.schedule import FILE as SCHEDULE
from vitkit.training.schedule import Schedule
from vitkit.training.state.earlier import (
    FINISHED,
    Earlier,
    Occupied,
    earlier_call,
    read_earlier,
    refuse_other_recipe,
    refuse_unknown_recipe,
)
from vitkit.training.state.state import State
from vitkit.training.stop import Stop

# What a run writes to its directory
NAMES = (
    "recipe.json", "data.json", "license.json", "finished.json", "metrics.jsonl", "LAST",
    "machine.json", "begun.json", SCHEDULE, "checkpoints", "best", "model", "report.html", "answers.safetensors",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What the loop hands to evaluation, recovery and the log. Only `state` changes, and the last
    step of `schedule`."""

    recipe: Recipe
    """What runs, resolved."""
    run_dir: Path
    """Where it is written."""
    data: RunData
    """What it runs on."""
    state: State
    """What it remembers."""
    schedule: Schedule
    """Where it ends."""
    log: Log
    """What it says."""
    stop: Stop
    """Whether it is asked to stop."""

    @property
    def workers(self) -> int:
        """Processes that decode images: as many as the recipe says, or as suit the CPUs."""
        workers = self.recipe.data.workers
        if workers < 0:
            workers = default_workers(self.data.train)
        return workers


def with_precision(recipe: Recipe, run_dir: Path, device: torch.device, say: Say) -> Recipe:
    """The recipe with a precision for "auto": the one that the run began in, else the one that suits
    the device. Says which, and why; the same on all ranks."""
    if recipe.precision != "auto":
        return recipe
    picked = from_rank_0(lambda: pick_precision("auto", device))
    earlier = earlier_call(run_dir)
    began_in = earlier.recipe.get("precision")
    if not earlier.trained or began_in not in get_args(Precision):
        say(picked.why)
        return replace(recipe, precision=picked.precision)
    if began_in != picked.precision:
        say(
            f"this run began in {began_in} and goes on in it, though a new one would be in "
            f"{picked.precision} on this machine"
        )
    return replace(recipe, precision=began_in)


def record_run(run_dir: Path, recipe: Recipe, data: RunData, say: Say) -> None:
    """Write recipe.json and data.json. Says which settings have changed, if the run continues, that
    may. Raises Occupied, with the differences, for a directory where another recipe was trained."""
    settings = to_json(recipe)
    earlier = earlier_call(run_dir)
    if earlier.recipe:
        earlier = earlier._replace(recipe=with_defaults(earlier.recipe, recipe))
    refuse_unknown_recipe(run_dir, earlier)
    if earlier.trained:
        refuse_other_recipe(run_dir, earlier.recipe, settings)
        changed = differences(earlier.recipe, settings, free=True)
        # The name alone of what is long, such as a new evaluator with its settings
        short = [text if len(text) < 60 else text.partition(":")[0] for text in changed]
        if short:
            say(f"changed since this run began, and no weight depends on it: {'; '.join(short)}")

    from_rank_0(lambda: _record(run_dir, settings, data.record, earlier))


def _record(run_dir: Path, settings: dict, data_record: dict, earlier: Earlier) -> None:
    # Another recipe has trained nothing here: what it left is worth nothing
    if differences(earlier.recipe, settings):
        shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)
        shutil.rmtree(run_dir / "best", ignore_errors=True)
        (run_dir / FINISHED).unlink(missing_ok=True)
        (run_dir / BEGUN).unlink(missing_ok=True)
        (run_dir / SCHEDULE).unlink(missing_ok=True)

    # recipe.json comes last: a directory that has it has a data.json of the same run
    write_json(run_dir / "data.json", data_record)
    write_json(run_dir / "recipe.json", settings)


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Make the directory, and keep every other process from training into it. Raises Occupied if
    another one is training there."""
    # By fcntl.lockf: the system drops the lock when the process ends, however it ends; data workers,
    # which are forked, do not hold it; and it works on shared file systems
    handle = from_rank_0(lambda: _lock(run_dir))
    try:
        yield
    finally:
        if on_rank_0():
            os.close(handle)


def refuse_somebodys(run_dir: Path) -> None:
    """Raises Occupied for a path that cannot be a run's directory without a loss: a file, and a
    directory with files of the names that a run writes, in which no run has begun."""
    if run_dir.exists() and not run_dir.is_dir():
        raise Occupied(f"{run_dir} is a file, and a run is a directory; choose another --workdir")
    if run_dir.is_symlink() and not run_dir.exists():
        raise Occupied(
            f"{run_dir} is a link to nothing; make its target, or choose another --workdir"
        )
    if (run_dir / "LOCK").exists():
        return
    existing = [name for name in NAMES if (run_dir / name).exists()]
    is_a_run = {"model", "data", "optim"} <= read_earlier(run_dir).recipe.keys()
    if existing and not is_a_run:
        raise Occupied(
            f"{run_dir} holds {existing[0]}, which no run has written there, and a run would replace "
            "it; choose another --workdir"
        )


def _lock(run_dir: Path) -> int:
    """The open file, locked. Raises Occupied if another process holds the lock."""
    import fcntl  # which Windows does not have

    refuse_somebodys(on_this_machine(run_dir))
    if not run_dir.exists():
        check_can_be_made(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    handle = os.open(run_dir / "LOCK", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise Occupied(
            f"another process is training into {run_dir}; wait for it, or choose another --workdir"
        ) from error
    return handle
