"""The run directory: recipe.json (what runs), data.json (what it runs on), metrics.jsonl, checkpoints/ + LAST, model/."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitkit.system.files import on_this_machine, write_json
from vitkit.system.ranks import from_rank_0, on_rank_0
from vitkit.train.checkpoints import checkpoints, steps
from vitkit.train.data import RunData
from vitkit.train.recipe import Recipe
from vitkit.train.record import differences, to_json


def claim(workdir: Path, recipe: Recipe, data: RunData) -> None:
    """Write down what runs, and on what. A directory where another recipe was trained is refused, with the differences."""
    path, asked = workdir / "recipe.json", to_json(recipe)
    from_rank_0(lambda: _claim(path, asked, data.record))


def _claim(path: Path, asked: dict, record: dict) -> None:
    workdir = path.parent
    if path.exists():
        other = differences(json.loads(path.read_text("utf-8")), asked)
        if other and any(steps(one) for one in checkpoints(workdir)):
            raise ValueError(
                f"{workdir} holds a run of another recipe ({'; '.join(other[:5])}); choose another --workdir, or remove it"
            )
        if (
            other
        ):  # nothing was trained: settings that were refused, or a run that was stopped at once
            shutil.rmtree(workdir / "checkpoints", ignore_errors=True)
    write_json(workdir / "data.json", record)
    write_json(path, asked)  # last: where it is, the other holds


@contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Make the directory, and keep any other process from training into it. Raises ValueError where one does.

    The system drops the lock with the process that holds it, however that ends; processes that it forked do not hold it,
    and it works on shared file systems.
    """
    handle = from_rank_0(lambda: _lock(workdir))
    try:
        yield
    finally:
        if on_rank_0():
            os.close(handle)


def _lock(workdir: Path) -> int:
    import fcntl

    on_this_machine(workdir).mkdir(parents=True, exist_ok=True)
    handle = os.open(workdir / "LOCK", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise ValueError(
            f"another process is training into {workdir}; wait for it, or choose another --workdir"
        ) from error
    return handle
