"""A run: what its acts share, and its directory.

The directory holds recipe.json (what runs), data.json (what it runs on), metrics.jsonl,
checkpoints/ + LAST, and model/.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vitkit.system.files import on_this_machine, write_json
from vitkit.system.ranks import from_rank_0, on_rank_0
from vitkit.train.checkpoints import checkpoints, step_of
from vitkit.train.data import RunData
from vitkit.train.log import Log
from vitkit.train.recipe import Recipe
from vitkit.train.record import differences, to_json
from vitkit.train.state import State
from vitkit.train.stop import Stop


@dataclass(frozen=True)
class Run:
    """What the acts of a run share."""

    recipe: Recipe
    """What runs, resolved."""
    run_dir: Path
    """Where it is written."""
    data: RunData
    """What it runs on."""
    state: State
    """What it remembers."""
    log: Log
    """What it says."""
    stop: Stop
    """Whether it is asked to stop."""


def record_run(run_dir: Path, recipe: Recipe, data: RunData) -> None:
    """Write down what runs, and on what. Raises ValueError for a directory where another recipe was
    trained, with the differences."""
    asked = to_json(recipe)
    from_rank_0(lambda: _record(run_dir, asked, data.record))


def _record(run_dir: Path, asked: dict, data_record: dict) -> None:
    path = run_dir / "recipe.json"
    if path.exists():
        changed = differences(json.loads(path.read_text("utf-8")), asked)
        was_trained = any(step_of(checkpoint) for checkpoint in checkpoints(run_dir))
        if changed and was_trained:
            raise ValueError(
                f"{run_dir} holds a run of another recipe ({'; '.join(changed[:5])}); choose "
                "another --workdir, or remove it"
            )
        if changed:  # settings that were refused, or a run that was stopped at once
            shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)
    write_json(run_dir / "data.json", data_record)
    write_json(path, asked)  # last: where it is, the other holds


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Make the directory, and keep any other process from training into it. Raises ValueError if
    one does.

    The system drops the lock with the process that holds it, however that ends; processes that it
    forked do not hold it, and it works on shared file systems.
    """
    handle = from_rank_0(lambda: _lock(run_dir))
    try:
        yield
    finally:
        if on_rank_0():
            os.close(handle)


def _lock(run_dir: Path) -> int:
    import fcntl

    on_this_machine(run_dir).mkdir(parents=True, exist_ok=True)
    handle = os.open(run_dir / "LOCK", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise ValueError(
            f"another process is training into {run_dir}; wait for it, or choose another --workdir"
        ) from error
    return handle
