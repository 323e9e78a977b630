"""What a suite is: tasks in groups, and what each asks of its images; and how one is read from a
TOML file."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vitkit.data import Columns
from vitkit.evaluation.benchmarks.corruptions import Corruption
from vitkit.evaluation.benchmarks.named import SetName
from vitkit.system.errors import BadSettings
from vitkit.system.scripts import names_function
from vitkit.system.values import described, fits

if TYPE_CHECKING:
    from vitkit.apps.suites.running import Outcome

HUB = "hf:"  # what the address of a data set on the Hugging Face hub begins with
MAX_BYTES = 1 << 20  # of a TOML file


class Place(NamedTuple):
    """The position at which images begin: the part, and the share of it before them."""

    part: str
    share: float = 0.0


@dataclass(frozen=True)
class Original:
    """An original data set, and the part of it that a task uses."""

    data: str
    """Where it is below the suite's folder, or its address, hf:NAME."""
    val: Place
    """Where the 200 images to select on begin."""
    test: Place
    """Where the test images begin, which are all from there on."""
    column: str = ""
    """What is measured of each image; by default its class, found by the column's usual names."""
    rule: Callable[[float], int] | None = None
    """The class of a measurement; without one, classes are those of the data set."""

    @property
    def is_of_the_hub(self) -> bool:
        """Whether it is downloaded."""
        return self.data.startswith(HUB)


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
    """Where its images are: below the suite's folder, or an address. By default its name."""
    columns: Columns = field(default_factory=Columns)
    """Which columns hold the images and the labels. By default they are found by
    their names."""
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
    """The data set that the model answers as it is, by its authors' protocol."""
    folders: tuple[str, ...] = ()
    """Where a named data set may be below the suite's folder; the first that exists."""
    corruption: Corruption | None = None
    """Which of ImageNet-C's corruptions it is."""
    asks_real: bool = False
    """Whether ReaL's labels count."""
    published: tuple[float, ...] = ()
    """Published accuracies of the models in `Suite.published`, in their order, in percent."""

    @property
    def heading(self) -> str:
        """The name of the task in a table."""
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
    published: tuple[str, ...] = ()
    """The models whose published figures stand beside one's own in table.md."""
    published_deviations: tuple[float, ...] = ()
    """The published standard deviations of their means over all tasks, of three runs each, in percent."""
    remarks: "Callable[[Outcome], list[str]] | None" = None
    """What else the results tell, a sentence each."""

    @property
    def learns(self) -> bool:
        """Whether its tasks are learned: otherwise the model answers as it is."""
        return not all(task.named for task in self.tasks)

    def members(self, group: str) -> list[Task]:
        """The tasks of a group."""
        return [task for task in self.tasks if task.group == group]

    def only(self, names: Sequence[str]) -> "Suite":
        """The suite with some of its tasks, by their names or those of their groups; all, if no name
        is given. Raises VitkitError for a name that it does not have."""
        known = [task.name for task in self.tasks]
        groups = [task.group for task in self.tasks if task.group]
        for name in names:
            if name not in (*known, *groups):
                raise BadSettings(
                    f"the suite {self.name} has no task {name!r}; it has {', '.join(known)}"
                )
        if not names:
            return self
        chosen = [task for task in self.tasks if task.name in names or task.group in names]
        return replace(self, tasks=tuple(chosen))


def read_suite(path: Path | str) -> Suite:
    """The suite that a TOML file describes: a table [tasks.NAME] for each task, with the settings
    of Task; `name` is by default the file's. Raises VitkitError if the file is malformed."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadSettings(f"{path} has more than {MAX_BYTES:,} bytes; a suite has a few lines")
        text = path.read_text("utf-8")
    except OSError as error:
        raise BadSettings(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadSettings(f"{path} is not TOML: {error}") from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadSettings(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise BadSettings(f"{path} is not TOML of a suite: it is nested too deeply") from None
    except ValueError:  # Python converts no more digits than 4,300
        raise BadSettings(
            f"{path} is not TOML of a suite: it has a number of too many digits"
        ) from None

    unknown = sorted(values.keys() - {"name", "tasks"})
    if unknown:
        raise BadSettings(f"{path} sets {unknown[0]!r}; a suite has a name and tasks")
    tables = values.get("tasks")
    if not isinstance(tables, dict) or not tables:
        raise BadSettings(f"{path} has no tasks; write a table [tasks.NAME] for each")
    name = values.get("name", path.stem)
    if not isinstance(name, str) or not name:
        raise BadSettings(f"{path} has the name {name!r}; it must be text")
    return Suite(name, tuple(_task(path, task, table) for task, table in tables.items()))


def _task(path: Path, name: str, table: object) -> Task:
    """The task of a table. Raises VitkitError for a setting that there is not."""
    if name in ("", ".", "..", "select") or "/" in name or "\\" in name or "\0" in name:
        raise BadSettings(f"{path} has a task {name!r}; its name is that of a folder of results")
    if not isinstance(table, dict):
        raise BadSettings(f"{path} has the task {name} as {table!r}; write a table [tasks.{name}]")
    settings = dict(table)
    columns = settings.pop("columns", {})
    if not isinstance(columns, dict):
        raise BadSettings(f"{path} has {columns!r} as columns of {name}; write {{label = ...}}")
    _check(path, name, settings, Task)
    _check(path, name, columns, Columns)
    data = settings.get("data") or name
    if names_function(data):
        raise BadSettings(
            f"{path} names the Python function {data}, and vitkit runs no code that a suite names; save "
            "its images as a folder or as files (vitkit data pack), and name these"
        )
    return Task(name, columns=Columns(**columns), **settings)


def _check(path: Path, name: str, settings: dict, kind: type) -> None:
    """Raises VitkitError for a setting that a dataclass does not have, or of another type."""
    # What a file cannot set
    fixed = ("name", "originals", "named", "folders", "corruption", "asks_real")
    types = {setting.name: setting.type for setting in fields(kind) if setting.name not in fixed}
    for setting, value in settings.items():
        if setting not in types:
            raise BadSettings(
                f"{path} sets {setting!r} of the task {name}; there are {', '.join(types)}"
            )
        expected = types[setting] if types[setting] in (int, bool) else str
        if not fits(expected, value):
            raise BadSettings(
                f"{path} sets {setting} of the task {name} to {value!r}; it is {described(expected)}"
            )
