"""The images of tasks on this machine: where they are, how many there are, and whether they meet
the task's requirements. A task can also be made from its original data set: the classes by a rule,
the 1,000 training images by their positions.

VTAB's positions refer to the shuffled order of TensorFlow Datasets. Here they refer to the order of the
files, so the images differ from VTAB's, and the result says so.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.apps.suites.task import Original, Place, Task
from vitkit.data import Columns, Table, fingerprint, parts_at, refuse_recorded, write_selection
from vitkit.data.formats import read_table
from vitkit.data.formats.manifest import MANIFEST_SUFFIXES, SUFFIX
from vitkit.evaluation import check_names, open_corruption, open_named
from vitkit.system.errors import BadData, VitkitError
from vitkit.system.storage.files import cache_dir
from vitkit.system.storage.remote import is_address

TRAIN = 800  # training images
SELECT = 200  # validation images
REMARK = (
    "taken in the files' own order (VTAB counts in the order of TensorFlow Datasets), so these are "
    "not VTAB's images"
)
REAL = "https://github.com/google-research/reassessed-imagenet"


class TaskImages(NamedTuple):
    """The images of a task on this machine."""

    where: str
    """Address for `parts_at`."""
    train: int
    """Number of training images, including the validation part."""
    test: int
    """Test images."""
    classes: int
    """Classes."""
    digest: str
    """Digest for detecting changed images."""
    remark: str = ""
    """How the images were taken from an original data set; "" if they were not."""
    real: str = ""
    """Path of ReaL's file, if its labels are used; else ""."""

    def deviations(self, task: Task) -> list[str]:
        """The differences from the task's specified images, each as part of a sentence."""
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


def find_all(
    tasks: Sequence[Task], folder: str, run_dir: Path, from_hub: bool
) -> tuple[dict[Task, TaskImages], dict[str, str]]:
    """The tasks whose images are below a folder; and by name the reasons why the others cannot run.

    run_dir: folder for the lists of tasks that are made from original data sets.
    from_hub: allow downloads of original data sets, and of addresses that a suite in a file
        names.
    """
    found = {}
    absent = {}
    for task in tasks:
        try:
            images = find(task, folder, run_dir, from_hub)
        except VitkitError as error:
            absent[task.name] = str(error)
            continue
        if images is None:
            absent[task.name] = _absence(task, folder, from_hub)
        else:
            found[task] = images
    return found, absent


def find(task: Task, folder: str, run_dir: Path, from_hub: bool = False) -> TaskImages | None:
    """The images of a task below a folder; None if they do not exist and the task says where to get
    them.

    from_hub: allow downloads. Raises VitkitError for data that cannot be read, or that does not meet the
    task's requirements.
    """
    if task.named is not None:
        return _published(task, folder)
    if not from_hub:
        data = task.data or task.name
        refuse_recorded(
            data, f"the task {task.name}", "`from_hub` fetches it if you trust the suite"
        )
    where = _where(task, folder)
    try:
        return _images(where, task.columns)
    except VitkitError:
        if not task.source or not _does_not_exist(Path(where)):
            raise
    for original in task.originals:
        if original.is_of_the_hub and not from_hub:
            continue
        there = where_is(original, folder)
        if there is not None:
            selection = select_from(original, there, task.classes, run_dir / task.name)
            images = _images(selection, Columns())
            return images._replace(remark=f"images of {original.data}, {REMARK}")
    return None


def _absence(task: Task, folder: str, from_hub: bool) -> str:
    """What is missing of a task, and where to get it."""
    if task.named is not None:
        return f"not in {folder} (as {' or '.join(task.folders)}); get it: {task.source}"
    text = f"not in {folder}; its images: {task.source} ({task.rule})"
    on_hub = False
    for original in task.originals:
        if original.is_of_the_hub:
            on_hub = True
        else:
            text += f"; or {original.data} there, with a column {original.column}"
    if on_hub and not from_hub:
        text += "; or `from_hub`, which downloads them"
    if not on_hub and from_hub:
        text += "; the hub has no usable copy"
    return text


# Images of tasks that are learned


def _images(where: str, columns: Columns) -> TaskImages:
    """The images of a data set. Raises VitkitError if it lacks a part or classes."""
    sources = parts_at(where, columns).sources
    if "train" not in sources or "test" not in sources:
        parts = ", ".join(filter(None, sources)) or "none"
        raise BadData(f"{where} needs the parts train and test; it has {parts}")
    train, test = sources["train"], sources["test"]
    if train.target_kind != "class":
        raise BadData(
            f"{where} has targets of the kind {train.target_kind!r}; a task has one class an image"
        )
    digests = [fingerprint(source) for source in sources.values()]
    learned = len(train)
    if "val" in sources:
        learned += len(sources["val"])
    return TaskImages(where, learned, len(test), len(train.labels), " ".join(digests))


def _where(task: Task, folder: str) -> str:
    """The address of a task's images for `parts_at`."""
    data = task.data or task.name
    if data == "digits" or data.startswith("hf:") or is_address(data):
        return data
    if is_address(folder):
        return f"{folder.rstrip('/')}/{data}"
    return str(Path(folder) / data)


def _does_not_exist(path: Path) -> bool:
    """Whether neither the path exists nor a file whose name begins with it."""
    if path.exists() or not path.parent.is_dir():
        return not path.exists()
    return not any(other.name.startswith(f"{path.name}-") for other in path.parent.iterdir())


# Tasks made from original data sets


def where_is(original: Original, folder: str) -> str | None:
    """The address of an original data set for `read_table`: the hub's, or a path below a folder: NAME,
    NAME-train.parquet and its siblings, NAME.csv, NAME.jsonl. None if none exists."""
    if original.is_of_the_hub:
        return original.data
    if is_address(folder):
        return None
    base = Path(folder) / original.data
    for suffix in MANIFEST_SUFFIXES:
        manifest = base.with_name(base.name + suffix)
        if manifest.is_file():
            return str(manifest)
    siblings = base.parent.glob(f"{base.name}-*")
    if base.exists() or any(siblings):
        return str(base)
    return None


def select_from(original: Original, where: str, classes: int, file: Path) -> str:
    """Write the list of a task's images; returns its address for `parts_at`.

    classes: number of classes of the task.
    file: path without suffix.
    Raises VitkitError for data that lack a part or a column, and for a measurement outside of the rule's
    range, with its row.
    """
    columns = Columns()
    if original.rule is not None:
        columns = Columns(label=original.column, target="number")
    table = read_table(where, columns)
    rows = _rows(original, where, table)

    # The classes of the selected images
    numbers = {}
    labels = tuple(map(str, range(classes)))
    for part, chosen in rows.items():
        if original.rule is not None:
            numbers[part] = _by_rule(original, where, table, chosen)
        else:
            # The class numbers of these rows
            values = table.row_labels
            if not isinstance(values, np.ndarray) or values.dtype != np.int64:
                raise BadData(f"{where} has no column of class numbers, from 0 to {classes - 1}")
            numbers[part] = values[chosen]
    if original.rule is None and table.labels is not None:
        labels = table.labels
    path = file.with_name(file.name + SUFFIX)
    write_selection(path, where, labels, rows, numbers)
    return str(path)


def _rows(original: Original, where: str, table: Table) -> dict[str, np.ndarray]:
    """The rows of each part of the task, int64 (N,); the parts are disjoint."""
    by_part = {}
    for part in ("train", "val", "test"):
        by_part[part] = np.flatnonzero(table.parts == part)
    without_parts = np.flatnonzero(table.parts == "")
    if len(without_parts):  # rows without a part belong to the training part
        by_part["train"] = without_parts
    for part in ("train", original.val.part, original.test.part):
        if not len(by_part[part]):
            present = ", ".join(name for name, rows in by_part.items() if len(rows))
            raise BadData(
                f"{where} needs the part {part!r}, of which the task takes images; it has {present}"
            )

    test = _after(by_part, original.test)
    val = np.setdiff1d(_after(by_part, original.val), test)[:SELECT]
    taken = np.concatenate([val, test])
    train = np.setdiff1d(by_part["train"][:TRAIN], taken)
    rows = {"train": train, "val": val, "test": test}
    for part, chosen in rows.items():
        if not len(chosen):
            raise BadData(f"{where} has too few images: none is left for the {part} part")
    return rows


def _after(by_part: dict[str, np.ndarray], place: Place) -> np.ndarray:
    """The rows of a part after the given share."""
    rows = by_part[place.part]
    return rows[round(place.share * len(rows)) :]


def _by_rule(original: Original, where: str, table: Table, rows: np.ndarray) -> np.ndarray:
    """The classes of these rows by the task's rule, int64 (N,)."""
    assert original.rule is not None and isinstance(table.row_labels, np.ndarray)
    numbers = []
    for row in rows.tolist():
        try:
            numbers.append(original.rule(float(table.row_labels[row])))
        except ValueError as error:
            raise BadData(f"{table.store.name(row)}, column {original.column!r}: {error}") from None
    return np.array(numbers, np.int64)


# Data sets for evaluation without training, each under one of its usual names


def _published(task: Task, folder: str) -> TaskImages | None:
    """The images of such a data set; None if they are missing. Raises VitkitError for images that do
    not belong to it, and if ReaL's file is missing."""
    for name in task.folders:
        where = str(Path(folder) / name)
        if Path(where).exists():
            break
    else:
        return None
    if task.corruption:
        corrupted = open_corruption(where, task.corruption)
        if corrupted is None:
            return None
        digests = [fingerprint(named.source) for named in corrupted.severities]
        return TaskImages(where, 0, corrupted.images, 0, _digest(digests))
    assert task.named is not None  # true for all tasks that are not learned
    source = open_named(task.named, where).source
    digests = [fingerprint(source)]
    real = ""
    if task.asks_real:
        real = _real_file(folder, where)
        check_names(source)
        digests.append(hashlib.sha256(Path(real).read_bytes()).hexdigest())
    return TaskImages(where, 0, len(source), 0, _digest(digests), real=real)


def _real_file(folder: str, where: str) -> str:
    """The path of ReaL's file: beside the images, above them, or in the cache. Raises VitkitError."""
    places = [Path(folder), Path(where), Path(where).parent, cache_dir() / "imagenet"]
    for place in places:
        if (place / "real.json").is_file():
            return str(place / "real.json")
    raise BadData(
        f"the images are there, and {Path(folder) / 'real.json'} is not; get it from {REAL}, or let "
        f"evaluate with `real='download'` keep it"
    )


def _digest(digests: Sequence[str]) -> str:
    """One digest for several."""
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()
