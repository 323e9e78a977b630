"""A run: the objects that its steps share, and its directory: its name, its lock, and its files.

The directory holds recipe.json (the resolved recipe), data.json (the images), machine.json (the machine),
begun.json (the start), schedule.json (if a deadline changed its end), metrics.jsonl, answers.safetensors (of
the last evaluation), checkpoints/ and LAST (checkpoints.py), model/ (the finished Classifier) and LOCK.
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
from vitkit.training.choices import with_recorded_augmentation
from vitkit.training.data import RECORDED, RunData, training_workers
from vitkit.training.record.log import Log
from vitkit.training.record.machine import BEGUN
from vitkit.training.record.values import differences, to_json, with_defaults
from vitkit.training.schedule import SCHEDULE, Schedule, Stop
from vitkit.training.state.checkpoints import (
    FINISHED,
    MODEL,
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

# Files and folders that a run writes to its directory
NAMES = (
    "recipe.json", "data.json", "license.json", "finished.json", "metrics.jsonl", "LAST",
    "machine.json", "begun.json", SCHEDULE, "checkpoints", "best", MODEL, "report.html", "answers.safetensors",
)  # fmt: skip
LOCK = "LOCK"  # file that is locked while a process trains in the directory
RUNS = Path("runs")
"""The folder of runs without a directory of their own."""
FIRST = {"recipe.json", "data.json", "plan.json"}  # a run writes one of them before any other file
LONGEST_NAME = 60  # largest number of characters in the name of a directory
GENERAL = {
    # Folders of every data set, and of every machine
    "data", "dataset", "datasets", "images", "img", "imgs", "raw", "train", "training", "test",
    "val", "valid", "validation", "labels", "manifest", "metadata", "annotations", "index",
    "home", "users", "root", "mnt", "media", "tmp", "work", "workspace", "content",
}  # fmt: skip
"""Names that do not identify a data set: the name of the folder above is used instead."""
_SHARD = re.compile(r"[-_.]?(\d{4,}(-of-\d+)?|\{\d+\.\.\d+\}|[*?]+)$")
_PART = re.compile(r"[-_.](train|training|val|valid|validation|test)[*?]*$")
_EXTENSION = re.compile(r"\.(csv|tsv|jsonl|json|parquet|tar|tgz|gz|zip|npz|txt)$", re.I)


@dataclass(frozen=True)
class Run:
    """The objects that the loop passes to evaluation, recovery and the log. Only `state` changes, and the
    last step of `schedule`."""

    recipe: Recipe
    """The resolved recipe."""
    run_dir: Path
    """The run's directory."""
    data: RunData
    """The images of the run."""
    state: State
    """The state of the training, which checkpoints hold."""
    schedule: Schedule
    """The last step, and the position of each step in the schedule."""
    log: Log
    """The log of metrics and messages."""
    stop: Stop
    """Requests to stop the run."""

    @property
    def workers(self) -> int:
        """Number of processes that decode images: the recipe's, or one that suits the CPUs."""
        return training_workers(self.recipe.data, self.data.train)


# The records of a run


def record_run(run_dir: Path, recipe: Recipe, data: RunData, say: Say) -> None:
    """Write recipe.json and data.json. If the run continues, prints which settings have changed since it
    began. Raises Occupied, with the differences, for a directory where another recipe was trained."""
    settings = to_json(recipe)
    earlier = earlier_call(run_dir)
    if earlier.recipe:
        earlier = earlier._replace(recipe=with_defaults(earlier.recipe, recipe))
    refuse_unknown_recipe(run_dir, earlier)
    if earlier.trained:
        refuse_other_recipe(run_dir, earlier.recipe, settings)
        changed = differences(earlier.recipe, settings, free=True)
        for i, text in enumerate(changed):
            # Shorten to the name, such as of an evaluator with all of its settings
            if len(text) >= 60:
                changed[i] = text.partition(":")[0]
        if changed:
            say(f"changed since this run began, and no weight depends on it: {'; '.join(changed)}")

    def write() -> None:
        # Delete the remains of another recipe, which has not trained here
        if differences(earlier.recipe, settings):
            for folder in ("checkpoints", "best"):
                shutil.rmtree(run_dir / folder, ignore_errors=True)
            for file in (FINISHED, BEGUN, SCHEDULE):
                (run_dir / file).unlink(missing_ok=True)

        # Write recipe.json last, so that a directory with it has the data.json of the same run
        write_json(run_dir / "data.json", data.record)
        write_json(run_dir / "recipe.json", settings)

    from_rank_0(write)


# The lock of a directory


@contextmanager
def locked(run_dir: Path, name: str = LOCK) -> Iterator[None]:
    """Create the directory, and prevent other processes from training in it. Raises Busy if another process
    is training there, and Occupied if it holds files of the user.

    name: name of the file that is locked. A second lock in a directory needs a file of its own."""
    handle = from_rank_0(lambda: _lock(run_dir, name))
    try:
        yield
    finally:
        if on_rank_0():
            os.close(handle)


def _lock(run_dir: Path, name: str) -> int:
    """Create the directory, and lock the file; returns its handle. Raises Busy if another process holds the
    lock."""
    _refuse_occupied(on_this_machine(run_dir))
    if not run_dir.exists():
        check_can_be_made(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    try:
        handle = try_lock(run_dir / name)
    except OSError as error:
        raise Unavailable(
            f"{run_dir} cannot be locked ({error.strerror}), so two processes could train in it; "
            "give a `workdir` on a file system with locks"
        ) from error
    if handle is None:
        raise Busy(
            f"another process is training in {run_dir}; wait for it, or choose another `workdir`"
        )
    return handle


def _refuse_occupied(run_dir: Path) -> None:
    """Raises Occupied if a run would overwrite files of the user: if the path is a file, or a directory
    that no run has written and that has files with a run's names."""
    if run_dir.exists() and not run_dir.is_dir():
        raise Occupied(f"{run_dir} is a file, and a run is a directory; choose another `workdir`")
    if run_dir.is_symlink() and not run_dir.exists():
        raise Occupied(
            f"{run_dir} is a broken link; create its target, or choose another `workdir`"
        )
    if (run_dir / LOCK).exists():
        return
    existing = [name for name in NAMES if (run_dir / name).exists()]
    is_a_run = {"model", "data", "optim"} <= read_earlier(run_dir).recipe.keys()
    if existing and not is_a_run:
        raise Occupied(
            f"{run_dir} holds {existing[0]}, which is not from a run, and a run would replace it; "
            "choose another `workdir`"
        )


def remove_run(run_dir: Path) -> None:
    """Remove what a run has written to a directory. Other files stay, and the directory too if there are any.
    Raises Occupied, and removes nothing, if files with a run's names are from no run."""
    if not run_dir.exists():
        return
    _refuse_occupied(run_dir)
    for path in [run_dir / name for name in (*NAMES, f"{MODEL}.new", LOCK)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if not any(run_dir.iterdir()) and not run_dir.is_symlink():
        run_dir.rmdir()


def refuse_occupied(run_dir: Path, recipes: Sequence[Recipe]) -> None:
    """Raises Occupied if `train` would refuse all of these recipes in a directory, as far as can be checked
    without their images: if it is a file, holds files of the user, or a run of another recipe; the message
    has the differences. Raises VitkitError as `resolve` does."""
    from_rank_0(lambda: _refuse_occupied(on_this_machine(run_dir)))
    earlier = earlier_call(run_dir)
    if not earlier.trained:
        return
    refuse_unknown_recipe(run_dir, earlier)
    changed = [_changed(recipe, earlier, run_dir) for recipe in recipes]
    refuse_differences(run_dir, min(changed, key=len))


def _changed(recipe: Recipe, earlier: Earlier, run_dir: Path) -> list[str]:
    """The differences of a recipe from the one that ran. Facts about the images are taken from the run's
    record, without opening them."""
    ran = with_defaults(earlier.recipe, recipe)

    # Compare the data settings alone, if the record lacks facts about the images, or if the preprocessing is
    # computed from the images (choices.py)
    recipe = with_recorded_augmentation(recipe, run_dir)
    requested = to_json(recipe)
    is_measured = recipe.model.channels != recipe.data.preprocessing.channels
    if is_measured:
        requested["data"]["preprocessing"] = ran["data"]["preprocessing"]
    if is_measured or not earlier.data.keys() >= RECORDED:
        return differences(ran["data"], requested["data"], "data.")

    # Compare the whole recipe, resolved with the recorded facts
    if recipe.precision == "auto":
        recipe = replace(recipe, precision=ran["precision"])
    broken = earlier.data["skipped"].get("train", [])
    facts = Facts(
        earlier.data["counts"]["train"] - len(broken),
        tuple(earlier.data["labels"]),
        earlier.data["target"],
    )
    return differences(ran, to_json(resolve(recipe, facts)))


# The name of a directory


def run_name(data: str, kind: str) -> str:
    """The name of a run's directory: the name of its images, then `kind`, such as the command's name.

    run_name("/home/me/photos/", "finetune") is "photos-finetune". `data` may be a folder, a file, shards, an
    address, hf:NAME or file.py:function. The name is `kind` alone if that begins with the images' name
    ("digits" on digits), or if the images have none.
    """
    images = _safe(_name_of(data))
    kind = _safe(kind)
    if not images or f"{kind}-".startswith(f"{images}-"):
        return kind or "run"
    if not kind:
        return images
    return f"{images}-{kind}"


def default_run_dir(data: str, kind: str) -> Path:
    """The default directory of a run: runs/NAME, from `run_name`. If that holds a run on another data set
    with the same name, it is runs/NAME-2, and so on."""
    name = run_name(data, kind)
    folder = RUNS / name
    number = 1
    while _holds_another(folder, data):
        number += 1
        folder = RUNS / f"{name}-{number}"
    return folder


def check_apart(workdir: Path | None, data: str) -> None:
    """Raises Occupied if a run was given the folder of its images as its directory."""
    if workdir is None or not data or is_address(data) or not Path(data).is_dir():
        return
    names = {path.name for path in workdir.iterdir()} if workdir.is_dir() else set()
    is_run = bool(
        names & FIRST
    )  # which may be called like a data set that is no folder, such as digits
    if names and not is_run and workdir.samefile(data):
        raise Occupied(
            f"`workdir` is {workdir}, the folder of the images; choose another one for the model"
        )


def tidied(data: str) -> str:
    """Normalise the path of a data set, removing "./" and a trailing slash, so that `photos/`, as a shell
    completes it, continues a run on `photos`."""
    if not data or is_address(data) or not Path(data).exists():
        return data
    return os.path.normpath(data)


def _holds_another(folder: Path, data: str) -> bool:
    """Whether a directory holds a trained run on another data set, or something other than a run, such as the
    labels and the model of a labelling session."""
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()} - {LOCK}
    if names and not names & FIRST:
        return True
    earlier = read_earlier(on_this_machine(folder))
    if not earlier.trained or not earlier.recipe:
        return False
    source = earlier.recipe.get("data", {}).get("source", "")
    data = shown_address(data)  # as in records, without an address's signature, which changes
    return Path(source).resolve() != Path(data).resolve()


def _name_of(data: str) -> str:
    """The name of a data set: that of its folder or file, without the number of a shard and the name of a
    part."""
    # Data sets that are not paths: hf:OWNER/NAME@REVISION, file.py:function, an address
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

    # The last part of the path that identifies the data set; the home folder does not
    if text == str(Path.home()):
        return "home"
    names = [part for part in text.removeprefix(str(Path.home())).split("/") if part]
    if (
        len(names) > 1 and _without_part(names[-1]) == "labels"
    ):  # photos-labels/labels.csv is a table of photos
        names[-2] = names[-2].removesuffix("-labels")
    for name in reversed(names):
        name = _without_part(name)
        if name and name.lower() not in GENERAL:
            return name
    if not names:
        return ""
    return _without_part(names[-1]) or names[-1]


def _without_part(name: str) -> str:
    """The name of a file or folder without extensions, shard number and part."""
    stem = name
    while _EXTENSION.search(stem):
        stem = _EXTENSION.sub("", stem)
    stem = _SHARD.sub("", stem)
    return _PART.sub("", stem)


def _safe(name: str) -> str:
    """The name with other characters than letters, digits, "_", "." and "-" replaced, for all shells and
    file systems."""
    safe = re.sub(r"[^\w.]+", "-", name).strip("-_.")
    return safe[:LONGEST_NAME].rstrip("-_.")
