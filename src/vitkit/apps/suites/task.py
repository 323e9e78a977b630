"""Suites: groups of tasks, with the requirements on the images of each; and their definition in TOML
files."""

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

HUB = "hf:"  # prefix of the address of a data set on the Hugging Face hub
MAX_BYTES = 1 << 20  # largest TOML file


class Place(NamedTuple):
    """The position at which images begin: a part, and the share of the part before them."""

    part: str
    share: float = 0.0


@dataclass(frozen=True)
class Original:
    """An original data set, and the part of it that a task uses."""

    data: str
    """Path below the suite's folder, or the address hf:NAME."""
    val: Place
    """Position of the 200 validation images."""
    test: Place
    """Position of the test images, which extend to the end of the part."""
    column: str = ""
    """Column of the measurement that decides the class; by default the class column, found by its usual
    names."""
    rule: Callable[[float], int] | None = None
    """Function from a measurement to a class; None if the column holds classes."""

    @property
    def is_of_the_hub(self) -> bool:
        """Whether the data set is downloaded from the Hugging Face hub."""
        return self.data.startswith(HUB)


@dataclass(frozen=True)
class Task:
    """One data set of a suite."""

    name: str
    """Name of the task, and by default of the folder of its images."""
    group: str = ""
    """Group for averaging; "" for none."""
    title: str = ""
    """Name in tables; by default `name`."""
    data: str = ""
    """Path of the images below the suite's folder, or an address. By default `name`."""
    columns: Columns = field(default_factory=Columns)
    """Columns that hold the images and the labels. By default they are found by
    their names."""
    classes: int = 0
    """Required number of classes; 0 for any number."""
    train: int = 0
    """Required number of training images, including validation images; 0 for any number."""
    test: int = 0
    """Required number of test images; 0 for any number."""
    flip: bool = True
    """Whether images may be mirrored in training; False if that changes their class."""
    crop: bool = True
    """Whether images may be cropped in training; False if that changes their class."""
    source: str = ""
    """Where the images can be obtained."""
    rule: str = ""
    """Description of the images taken from the original data set, and of their classes."""
    originals: tuple[Original, ...] = ()
    """Original data sets from which the task can be made if its images are missing; the first available
    one is used."""
    named: SetName | None = None
    """Data set on which the model is evaluated without training, by its authors' protocol; None for a
    task that is learned."""
    folders: tuple[str, ...] = ()
    """Possible folders of a named data set, below the suite's; the first that exists is used."""
    corruption: Corruption | None = None
    """Corruption of ImageNet-C that the task measures; None for other data sets."""
    asks_real: bool = False
    """Whether ReaL's labels are used."""
    published: tuple[float, ...] = ()
    """Published accuracies of the models in `Suite.published`, in the same order, in percent."""

    @property
    def heading(self) -> str:
        """The name of the task in a table."""
        return self.title or self.name


@dataclass(frozen=True)
class Suite:
    """Tasks that one protocol runs on."""

    name: str
    """Name of the suite, and of the mean over all its tasks."""
    tasks: tuple[Task, ...]
    """The tasks in the order of the table."""
    fine_tuned: bool = False
    """Whether the suite's protocol requires fine-tuned models."""
    hint: str = ""
    """Advice about missing tasks."""
    averaged: bool = True
    """Whether a mean over all tasks is meaningful."""
    same_images: tuple[str, ...] = ()
    """Groups whose tasks have the same images, so their errors are not independent."""
    published: tuple[str, ...] = ()
    """Models with published figures, which table.md shows too."""
    published_deviations: tuple[float, ...] = ()
    """Published standard deviations of the means over all tasks, from three runs each, in percent."""
    remarks: "Callable[[Outcome], list[str]] | None" = None
    """Function that returns further sentences about the results."""

    @property
    def learns(self) -> bool:
        """Whether the suite trains on its tasks; otherwise models are evaluated without training."""
        return not all(task.named for task in self.tasks)

    def members(self, group: str) -> list[Task]:
        """The tasks of a group."""
        return [task for task in self.tasks if task.group == group]

    def only(self, names: Sequence[str]) -> "Suite":
        """The suite with some of its tasks, by their names or those of their groups; with all if no name
        is given. Raises VitkitError for an unknown name."""
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
    except ValueError:  # Python refuses to convert more than 4,300 digits
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
    """The task of a TOML table. Raises VitkitError for an unknown setting."""
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
    """Raises VitkitError for a setting that the dataclass does not have, or of the wrong type."""
    # Settings that a file cannot change
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
