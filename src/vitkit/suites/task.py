"""What a suite is: tasks in groups, each with its images; and how one is read from a TOML file."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vitkit.data import Columns, fingerprint, open_parts
from vitkit.evaluation import Corruption, SetName
from vitkit.suites.original import REMARK, Original, select_from, where_is
from vitkit.system.storage.remote import is_address

if TYPE_CHECKING:
    from vitkit.suites.run import Outcome

MAX_BYTES = 1 << 20  # of a TOML file


@dataclass(frozen=True)
class Task:
    """One data set of a suite."""

    name: str
    """What it is called, and by default the folder of its images."""
    group: str = ""
    """The group that it is averaged in; empty is none."""
    title: str = ""
    """What a table calls it; by default its name."""
    data: str = ""
    """Where its images are below the suite's folder; or an address, hf:NAME or digits. By default
    its name."""
    columns: Columns = field(default_factory=Columns)
    """Which columns hold the images and the labels; by default found by their names."""
    classes: int = 0
    """Classes that it must have; 0 is any number."""
    train: int = 0
    """Images to learn from that it must have, validation included; 0 is any number."""
    test: int = 0
    """Test images that it must have; 0 is any number."""
    flip: bool = True
    """Whether an image may be mirrored in training: not if that changes its class."""
    crop: bool = True
    """Whether an image may be cropped in training: not if that changes its class."""
    source: str = ""
    """Where to get it."""
    rule: str = ""
    """Which images of the original data set it takes, and what their classes are."""
    originals: tuple[Original, ...] = ()
    """Original data sets that it can be made of, if its images are not there: the first that is."""
    named: SetName | None = None
    """The data set that it is, if nothing is learned from it: the model answers as the authors'
    protocol has it."""
    folders: tuple[str, ...] = ()
    """Where the images of a named data set may be below the suite's folder; the first that is
    there."""
    corruption: Corruption | None = None
    """Which of ImageNet-C's corruptions it is."""
    asks_real: bool = False
    """Whether ReaL's labels count."""

    @property
    def heading(self) -> str:
        """What a table calls it."""
        return self.title or self.name


@dataclass(frozen=True)
class Suite:
    """Tasks that one protocol runs on."""

    name: str
    """What the mean over all tasks is called."""
    tasks: tuple[Task, ...]
    """In the order of the table."""
    fine_tuned: bool = False
    """Whether its figure is by definition that of fine-tuned models."""
    hint: str = ""
    """What to do about tasks that are missing."""
    averaged: bool = True
    """Whether a mean over all tasks says something."""
    same_images: tuple[str, ...] = ()
    """Groups whose tasks have the same images, so that their errors are no independent ones."""
    remarks: "Callable[[Outcome], list[str]] | None" = None
    """What else the results tell, a sentence each."""

    @property
    def learns(self) -> bool:
        """Whether its tasks are learned: otherwise the model answers as it is."""
        return not all(task.named for task in self.tasks)

    def only(self, names: Sequence[str]) -> "Suite":
        """The suite with some of its tasks, by their names or those of their groups; all, if no name
        is given. Raises ValueError for a name that it does not have."""
        known = [task.name for task in self.tasks]
        groups = [task.group for task in self.tasks if task.group]
        for name in names:
            if name not in (*known, *groups):
                raise ValueError(
                    f"the suite {self.name} has no task {name!r}; it has {', '.join(known)}"
                )
        if not names:
            return self
        chosen = [task for task in self.tasks if task.name in names or task.group in names]
        return replace(self, tasks=tuple(chosen))


class Images(NamedTuple):
    """The images of a task, as they are on this machine."""

    where: str
    """What `open_parts` takes."""
    train: int
    """Images to learn from, those of the validation part included."""
    test: int
    """Test images."""
    classes: int
    """Classes."""
    digest: str
    """By which changed images are noticed."""
    remark: str = ""
    """How they were taken from an original data set, if they were."""
    real: str = ""
    """ReaL's file, if its labels count."""

    def deviations(self, task: Task) -> list[str]:
        """In what they are not the task's, a sentence part each."""
        texts = []
        for what, is_there, expected in (
            ("images to learn from", self.train, task.train),
            ("test images", self.test, task.test),
            ("classes", self.classes, task.classes),
        ):
            if expected and is_there != expected:
                texts.append(f"{is_there:,} {what} instead of {expected:,}")
        if self.remark:
            texts.append(self.remark)
        return texts


def find(
    task: Task, folder: str, run_dir: Path | None = None, from_hub: bool = False
) -> Images | None:
    """The images of a task below a folder; None if they are not there and the task says where to
    get them.

    run_dir: where a task that is made of an original data set is written down; None makes none.
    from_hub: an original data set may be downloaded.
    Raises ValueError for data that cannot be read, or has not what a task needs.
    """
    where = _where(task, folder)
    try:
        return _images(where, task.columns)
    except ValueError:
        if not task.source or not _is_nothing(Path(where)):
            raise
    if run_dir is None:
        return None
    for original in task.originals:
        if original.is_of_the_hub and not from_hub:
            continue
        there = where_is(original, folder)
        if there is not None:
            selection = select_from(original, there, task.classes, run_dir / task.name)
            images = _images(selection, Columns())
            return images._replace(remark=f"images of {original.data}, {REMARK}")
    return None


def _images(where: str, columns: Columns) -> Images:
    """The images of a data set. Raises ValueError if it has not what a task needs."""
    sources = open_parts(where, columns).sources
    if "train" not in sources or "test" not in sources:
        parts = ", ".join(filter(None, sources)) or "none"
        raise ValueError(f"{where} needs the parts train and test; it has {parts}")
    train, test = sources["train"], sources["test"]
    if train.target_kind != "class":
        raise ValueError(
            f"{where} has targets of the kind {train.target_kind!r}; a task has one class an image"
        )
    digests = [fingerprint(source) for source in sources.values()]
    learned = len(train)
    if "val" in sources:
        learned += len(sources["val"])
    return Images(where, learned, len(test), len(train.labels), " ".join(digests))


def _where(task: Task, folder: str) -> str:
    """What `open_parts` takes for a task's images."""
    data = task.data or task.name
    if data == "digits" or data.startswith("hf:") or is_address(data):
        return data
    if is_address(folder):
        return f"{folder.rstrip('/')}/{data}"
    return str(Path(folder) / data)


def _is_nothing(path: Path) -> bool:
    """Whether there is neither such a path, nor a file whose name begins so."""
    if path.exists() or not path.parent.is_dir():
        return not path.exists()
    return not any(other.name.startswith(f"{path.name}-") for other in path.parent.iterdir())


def read_suite(path: Path | str) -> Suite:
    """The suite that a TOML file describes: a table [tasks.NAME] for each task, with the settings
    of Task; `name` is by default the file's.

    Raises ValueError for what is malformed.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"{path} has more than {MAX_BYTES:,} bytes; a suite has a few lines")
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None

    unknown = sorted(values.keys() - {"name", "tasks"})
    if unknown:
        raise ValueError(f"{path} sets {unknown[0]!r}; a suite has a name and tasks")
    tables = values.get("tasks")
    if not isinstance(tables, dict) or not tables:
        raise ValueError(f"{path} has no tasks; write a table [tasks.NAME] for each")
    name = values.get("name", path.stem)
    if not isinstance(name, str) or not name:
        raise ValueError(f"{path} has the name {name!r}; it must be text")
    return Suite(name, tuple(_task(path, task, table) for task, table in tables.items()))


def _task(path: Path, name: str, table: object) -> Task:
    """The task of a table. Raises ValueError for a setting that there is not."""
    if name in ("", ".", "..", "select") or "/" in name or "\\" in name or "\0" in name:
        raise ValueError(f"{path} has a task {name!r}; its name is that of a folder of results")
    if not isinstance(table, dict):
        raise ValueError(f"{path} has the task {name} as {table!r}; write a table [tasks.{name}]")
    settings = dict(table)
    columns = settings.pop("columns", {})
    if not isinstance(columns, dict):
        raise ValueError(f"{path} has {columns!r} as columns of {name}; write {{label = ...}}")
    _check(path, name, settings, Task)
    _check(path, name, columns, Columns)
    return Task(name, columns=Columns(**columns), **settings)


def _check(path: Path, name: str, settings: dict, kind: type) -> None:
    """Raises ValueError for a setting that a dataclass does not have, or of another type."""
    # What a file cannot set
    fixed = ("name", "originals", "named", "folders", "corruption", "asks_real")
    types = {setting.name: setting.type for setting in fields(kind) if setting.name not in fixed}
    for setting, value in settings.items():
        if setting not in types:
            raise ValueError(
                f"{path} sets {setting!r} of the task {name}; there are {', '.join(types)}"
            )
        expected = types[setting] if types[setting] in (int, bool) else str
        if type(value) is not expected:
            raise ValueError(
                f"{path} sets {setting} of the task {name} to {value!r}; "
                f"expected {expected.__name__}"
            )
