"""A run: what the steps of the loop share, and its directory: what that is called, to whom it
belongs, and what a run writes to it.

The directory holds recipe.json (what runs), data.json (on which images), machine.json (on what),
begun.json, schedule.json (if the clock decided its end), metrics.jsonl, answers.safetensors (of the
last evaluation), checkpoints/ and LAST (checkpoints.py), model/ (the finished Classifier) and LOCK.
"""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from vitkit.recipes import Facts, Recipe, Say, resolve
from vitkit.system.errors import Unavailable
from vitkit.system.processes.ranks import from_rank_0, on_rank_0
from vitkit.system.storage.addresses import shown_address
from vitkit.system.storage.files import check_can_be_made, on_this_machine, write_json
from vitkit.system.storage.locks import try_lock
from vitkit.system.storage.remote import is_address
from vitkit.training.choices import as_decided
from vitkit.training.data import RECORDED, RunData, training_workers
from vitkit.training.record.log import Log
from vitkit.training.record.machine import BEGUN
from vitkit.training.record.values import differences, to_json, with_defaults
from vitkit.training.schedule import SCHEDULE, Schedule, Stop
from vitkit.training.state.checkpoints import (
    FINISHED,
    Busy,
    Earlier,
    Occupied,
    earlier_call,
    read_earlier,
    refuse_differences,
    refuse_other_recipe,
    refuse_unknown_recipe,
)
from vitkit.training.state.state import State

# What a run writes to its directory
NAMES = (
    "recipe.json", "data.json", "license.json", "finished.json", "metrics.jsonl", "LAST",
    "machine.json", "begun.json", SCHEDULE, "checkpoints", "best", "model", "report.html", "answers.safetensors",
)  # fmt: skip
LOCK = "LOCK"  # beside them: locked while a process trains there
RUNS = Path("runs")
"""The folder of all runs that were not given a directory."""
FIRST = {"recipe.json", "data.json", "plan.json"}  # of which a run writes one before anything else
LONGEST_NAME = 60  # characters, so that a path with it stays short
GENERAL = {
    # Folders of every data set, and of every machine
    "data", "dataset", "datasets", "images", "img", "imgs", "raw", "train", "training", "test",
    "val", "valid", "validation", "labels", "manifest", "metadata", "annotations", "index",
    "home", "users", "root", "mnt", "media", "tmp", "work", "workspace", "content",
}  # fmt: skip
"""Names that say nothing of the images: the folder above is named instead."""
_SHARD = re.compile(r"[-_.]?(\d{4,}(-of-\d+)?|\{\d+\.\.\d+\}|[*?]+)$")
_PART = re.compile(r"[-_.](train|training|val|valid|validation|test)[*?]*$")
_EXTENSION = re.compile(r"\.(csv|tsv|jsonl|json|parquet|tar|tgz|gz|zip|npz|txt)$", re.I)


@dataclass(frozen=True)
class Run:
    """The objects that the loop passes to evaluation, recovery and the log. Only `state`
    changes, and the last step of `schedule`."""

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
        """Number of processes that decode images: the recipe's, or one that suits the CPUs."""
        return training_workers(self.recipe.data, self.data.train)


# What is written there


def record_run(run_dir: Path, recipe: Recipe, data: RunData, say: Say) -> None:
    """Write recipe.json and data.json. If the run continues, says which settings have changed since
    it began. Raises Occupied, with the differences, for a directory where another recipe was
    trained."""
    settings = to_json(recipe)
    earlier = earlier_call(run_dir)
    if earlier.recipe:
        earlier = earlier._replace(recipe=with_defaults(earlier.recipe, recipe))
    refuse_unknown_recipe(run_dir, earlier)
    if earlier.trained:
        refuse_other_recipe(run_dir, earlier.recipe, settings)
        changed = differences(earlier.recipe, settings, free=True)
        for i, text in enumerate(changed):
            if len(text) >= 60:  # the name alone, as of a new evaluator with all of its settings
                changed[i] = text.partition(":")[0]
        if changed:
            say(f"changed since this run began, and no weight depends on it: {'; '.join(changed)}")

    def write() -> None:
        # Another recipe has trained nothing here: what it left is worth nothing
        if differences(earlier.recipe, settings):
            for folder in ("checkpoints", "best"):
                shutil.rmtree(run_dir / folder, ignore_errors=True)
            for file in (FINISHED, BEGUN, SCHEDULE):
                (run_dir / file).unlink(missing_ok=True)

        # recipe.json comes last: a directory that has it has a data.json of the same run
        write_json(run_dir / "data.json", data.record)
        write_json(run_dir / "recipe.json", settings)

    from_rank_0(write)


# Whose it is


@contextmanager
def locked(run_dir: Path, name: str = LOCK) -> Iterator[None]:
    """Make the directory, and keep every other process from training into it. Raises Busy if another
    one is training there, and Occupied if it holds files of a user.

    name: of the file that is locked. A process that holds one lock in a directory needs another file
    for a second."""
    handle = from_rank_0(lambda: _lock(run_dir, name))
    try:
        yield
    finally:
        if on_rank_0():
            os.close(handle)


def _lock(run_dir: Path, name: str) -> int:
    """The open file, locked. Raises Busy if another process holds the lock."""
    _refuse_occupied(on_this_machine(run_dir))
    if not run_dir.exists():
        check_can_be_made(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    try:
        handle = try_lock(run_dir / name)
    except OSError as error:
        raise Unavailable(
            f"{run_dir} cannot be locked ({error.strerror}), so two processes could train into it; "
            "give a `workdir` on a file system with locks"
        ) from error
    if handle is None:
        raise Busy(
            f"another process is training into {run_dir}; wait for it, or choose another `workdir`"
        )
    return handle


def _refuse_occupied(run_dir: Path) -> None:
    """Raises Occupied if a run would overwrite something: if the path is a file, or a directory
    without a run that has files with the names that a run writes."""
    if run_dir.exists() and not run_dir.is_dir():
        raise Occupied(f"{run_dir} is a file, and a run is a directory; choose another `workdir`")
    if run_dir.is_symlink() and not run_dir.exists():
        raise Occupied(
            f"{run_dir} is a link to nothing; make its target, or choose another `workdir`"
        )
    if (run_dir / LOCK).exists():
        return
    existing = [name for name in NAMES if (run_dir / name).exists()]
    is_a_run = {"model", "data", "optim"} <= read_earlier(run_dir).recipe.keys()
    if existing and not is_a_run:
        raise Occupied(
            f"{run_dir} holds {existing[0]}, which no run has written there, and a run would "
            "replace it; choose another `workdir`"
        )


def refuse_occupied(run_dir: Path, recipes: Sequence[Recipe]) -> None:
    """Raises Occupied if `train` would refuse every one of these recipes in a directory, as far as
    that is known without their images: for a file, for files that no run has written, and for a run
    of another recipe, with what differs. Raises VitkitError as `resolve` does."""
    from_rank_0(lambda: _refuse_occupied(on_this_machine(run_dir)))
    earlier = earlier_call(run_dir)
    if not earlier.trained:
        return
    refuse_unknown_recipe(run_dir, earlier)
    changed = [_changed(recipe, earlier, run_dir) for recipe in recipes]
    refuse_differences(run_dir, min(changed, key=len))


def _changed(recipe: Recipe, earlier: Earlier, run_dir: Path) -> list[str]:
    """In what a recipe differs from the one that ran, with what only that one's images decide taken
    from its record."""
    ran = with_defaults(earlier.recipe, recipe)

    # The images alone, if nothing says how many there were, or the preprocessing follows from them
    # (choices.py)
    recipe = as_decided(recipe, run_dir)
    asked = to_json(recipe)
    is_measured = recipe.model.channels != recipe.data.preprocessing.channels
    if is_measured:
        asked["data"]["preprocessing"] = ran["data"]["preprocessing"]
    if is_measured or not earlier.data.keys() >= RECORDED:
        return differences(ran["data"], asked["data"], "data.")

    # The whole recipe, with as many images as there were
    if recipe.precision == "auto":
        recipe = replace(recipe, precision=ran["precision"])
    broken = earlier.data["skipped"].get("train", [])
    facts = Facts(
        earlier.data["counts"]["train"] - len(broken),
        tuple(earlier.data["labels"]),
        earlier.data["target"],
    )
    return differences(ran, to_json(resolve(recipe, facts)))


# What it is called


def run_name(data: str, kind: str) -> str:
    """The name of a run's directory: that of its images, then `kind`, which is what is done with
    them.

    run_name("/home/me/photos/", "finetune") is "photos-finetune". Folders, files, shards,
    addresses, hf:NAME and file.py:function can be named. `kind` alone is the name if it begins with
    the images' ("digits" on digits), or if nothing is known of them.
    """
    images = _safe(_name_of(data))
    kind = _safe(kind)
    if not images or f"{kind}-".startswith(f"{images}-"):
        return kind or "run"
    if not kind:
        return images
    return f"{images}-{kind}"


def default_run_dir(data: str, kind: str) -> Path:
    """The directory of a run that was not given one: runs/NAME, by `run_name`. If that holds a run
    on images of another place, it is runs/NAME-2, and so on, so that two folders of one name do not
    meet."""
    name = run_name(data, kind)
    folder = RUNS / name
    number = 1
    while _holds_another(folder, data):
        number += 1
        folder = RUNS / f"{name}-{number}"
    return folder


def tidied(data: str) -> str:
    """Normalises the path of a data set: without "./" and without a slash at the end, as a shell completes
    folders: `photos/` continues a run on `photos`."""
    if not data or is_address(data) or not Path(data).exists():
        return data
    return os.path.normpath(data)


def _holds_another(folder: Path, data: str) -> bool:
    """Whether a directory holds a trained run on images of another place, or something else than a run,
    such as the labels and the model of a labelling session."""
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()} - {LOCK}
    if names and not names & FIRST:
        return True
    earlier = read_earlier(on_this_machine(folder))
    if not earlier.trained or not earlier.recipe:
        return False
    source = earlier.recipe.get("data", {}).get("source", "")
    data = shown_address(data)  # as records have it: an address is signed differently each time
    return Path(source).resolve() != Path(data).resolve()


def _name_of(data: str) -> str:
    """What people would call these images: the name of a folder or file, without what says only
    which part or shard it is."""
    # Not a path: hf:OWNER/NAME@REVISION, file.py:function, an address
    text = data.strip()
    if text.startswith("hf:"):
        text = text.removeprefix("hf:").partition("@")[0]
    file, _, function = text.rpartition(":")
    if file.endswith(".py"):
        return function
    if is_address(text):
        text = text.partition("://")[2].partition("?")[0]
    elif text:
        text = os.path.normpath(Path(text).absolute())

    # The last part of the path that says something, which a user's own folder does not
    if text == str(Path.home()):
        return "home"
    names = [part for part in text.removeprefix(str(Path.home())).split("/") if part]
    if len(names) > 1 and _without_part(names[-1]) == "labels":  # photos-labels/labels.csv
        names[-2] = names[-2].removesuffix("-labels")
    for name in reversed(names):
        name = _without_part(name)
        if name and name.lower() not in GENERAL:
            return name
    if not names:
        return ""
    return _without_part(names[-1]) or names[-1]


def _without_part(name: str) -> str:
    """A file's or folder's name without its extensions, the number of its shard and its part."""
    stem = name
    while _EXTENSION.search(stem):
        stem = _EXTENSION.sub("", stem)
    stem = _SHARD.sub("", stem)
    return _PART.sub("", stem)


def _safe(name: str) -> str:
    """The name with nothing but letters, digits, "_", "." and "-", beginning with a letter or
    digit: a word for every shell and file system."""
    safe = re.sub(r"[^\w.]+", "-", name).strip("-_.")
    return safe[:LONGEST_NAME].rstrip("-_.")
