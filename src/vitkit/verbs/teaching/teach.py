"""A classifier that learns, and unlearns, photograph by photograph."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from rich.markup import escape
from rich.table import Table
from tyro.conf import Positional, arg

from vitkit.evaluation import (
    Memory,
    Metric,
    Probe,
    backbone_digest,
    changed,
    fit,
    forgotten,
    has_memory,
    left_out_quality,
    open_classes,
    read_memory,
    save_taught,
    undone,
)
from vitkit.system.console.messages import say
from vitkit.system.console.text import as_word, counted, printable, printable_name
from vitkit.system.errors import BadSettings
from vitkit.system.machine import pick_device
from vitkit.verbs.arguments import (
    Device,
    Model,
    ModelHints,
    Precision,
    name_of,
    pick_precision,
)
from vitkit.verbs.computing import classifier_of
from vitkit.verbs.definition import result, verb
from vitkit.verbs.made_model import MadeModel
from vitkit.verbs.teaching.photographs import new_photographs, rows_of
from vitkit.weights import Classifier, Hints, adopt, check_savable, load, load_as


@dataclass(frozen=True)
class Teach:
    """Teach a model classes with a few photographs of each. You can also remove photographs or
    classes, rename classes, and undo any change. Nothing is trained: the head is computed anew, in
    closed form, from the stored features of all photographs.

    vitkit teach MODEL animals --add ants/ bees/ makes a model in the directory animals; vitkit
    teach animals --add cats/ adds a class to it; vitkit teach animals prints what it knows."""

    model: Model
    directory: Annotated[Positional[Path | None], arg(metavar="DIR")] = None
    """Directory of the taught model. Default: MODEL, if it was taught before."""
    add: Annotated[tuple[str, ...], arg(metavar="PHOTOS...")] = ()
    """Photographs to learn: a folder that is a class, a folder of such folders, a data set, or
    CLASS=PATH of a folder or a photograph."""
    remove: Annotated[tuple[str, ...], arg(metavar="PHOTO|CLASS...")] = ()
    """Photographs, or whole classes, to unlearn."""
    rename: Annotated[tuple[str, ...], arg(metavar="OLD=NEW...")] = ()
    """Classes to rename."""
    undo: bool = False
    """Undo the last change. Repeat the command to undo the one before it."""
    forget: bool = False
    """Delete removed photographs for good. Until then vitkit keeps their features, for --undo."""
    list: bool = False
    """List every photograph, and every change that can be undone."""
    precision: Precision = "auto"
    """Precision of the features of the first photographs. All later ones use the same."""
    device: Device = "auto"
    json: bool = False
    """Print what the model knows as one line of JSON."""
    hints: ModelHints = field(default_factory=Hints)


class Taught(NamedTuple):
    """A taught model, opened."""

    folder: Path
    """Where it is, or will be."""
    classifier: Classifier
    """The model that gives the features."""
    memory: Memory
    """What it remembers; nothing yet, if it is new."""
    is_new: bool
    """Whether it is not in its folder yet."""


@result
@dataclass(frozen=True, eq=False)
class Lesson(MadeModel):
    """The state of a taught model after a lesson."""

    settings: Teach
    classifier: Classifier
    """The model, with the head that was solved."""
    path: Path
    """Its directory."""
    memory: Memory
    """The photographs that it remembers."""
    probe: Probe
    """The head, with the answers of the others to each photograph."""
    metrics: tuple[Metric, ...]
    """How good those are."""
    change: str
    """What was changed, in words; empty if nothing was."""
    seconds: float
    """What it took to solve the head."""
    size: int
    """Bytes that were written; 0 if nothing was."""

    @property
    def made(self) -> str:
        """The taught model's directory."""
        return str(self.path)

    def rows(self) -> list[dict]:
        """A row for each photograph: its class and its name."""
        memory = self.memory
        return [
            {"class": memory.label_of(i), "photograph": memory.examples[i].name}
            for i in memory.rows.tolist()
        ]

    def to_json(self) -> dict:
        """{"classes": {name: photographs}, "metrics": {...}, "changes": [...]}"""
        return as_json(self.memory, self.metrics)

    def shown(self) -> Iterator[str | Table]:
        """The output: what was changed, and what the model knows; or JSON."""
        settings = self.settings
        if settings.json:
            yield json.dumps(self.to_json(), ensure_ascii=False, allow_nan=False)
            return
        if self.change:
            yield printable(self.change)
        # The classes, and how good the answers are
        right = (self.probe.left_out.argmax(1).numpy() == self.memory.targets).astype(float)
        table = Table("class", "photographs", "right, by the others alone")
        for column in table.columns[1:]:
            column.justify = "right"
        for k, label in enumerate(self.memory.classes):
            members = self.memory.targets == k
            share = f"{right[members].mean():.1%}"
            table.add_row(escape(printable_name(label)), f"{members.sum():,}", share)
        yield table
        for metric in self.metrics:
            yield f"{metric.name} {metric.text()}"
        few = open_classes(self.memory.classes, np.bincount(self.memory.targets).tolist())
        if few is not None:
            yield few
        if settings.list:
            # Every photograph, and every change
            memory = self.memory
            table = Table("class", "photograph")
            table.columns[1].overflow = "fold"
            for i in memory.rows.tolist():
                names = (memory.label_of(i), memory.examples[i].name)
                table.add_row(*(escape(printable_name(name)) for name in names))
            yield table
            table = Table("change", "")
            for number, change in enumerate(memory.changes, 1):
                table.add_row(str(number), escape(printable(change.text)))
            yield table
        yield from self.written()

    def written(self) -> Iterator[str]:
        """A sentence on the files that were written, and the next command."""
        word = as_word(self.path)
        if not self.size:
            yield f"next: vitkit teach {word} --add FOLDER, or vitkit predict {word} IMAGE..."
            return
        photographs = counted(len(self.memory.rows), "photograph")
        yield (
            f"solved in {self.seconds * 1000:.0f} ms; wrote {self.path}, which remembers {photographs} "
            f"({self.size / 1e6:.1f} MB)"
        )
        yield f"next: vitkit predict {word} IMAGE..., or vitkit teach {word} --undo"


@verb
def teach(settings: Teach) -> Lesson:
    """Show a model photographs of new or known classes, take some away again, rename classes, or undo
    that: its head is solved anew in closed form, from all photographs that it remembers. Without a
    change, say what it knows.

    Raises ValueError if something cannot be learned, or if the model remembers nothing.
    """
    # What it remembers, before and after
    if settings.undo and (settings.add or settings.remove or settings.rename):
        raise BadSettings("`undo` takes an earlier change back; make another one afterwards")
    for word in settings.rename:
        old, _, new = word.partition("=")
        if not old or not new.strip():
            raise BadSettings(
                f"`rename={word!r}`: write OLD=NEW, such as `rename='bees=honeybees'`"
            )
    taught = _open(settings)
    memory, change = _changed(settings, taught)
    if change and settings.json:  # standard output is for the JSON alone
        say(change)

    # The head
    began = time.perf_counter()
    fitted = fit(memory)
    seconds = time.perf_counter() - began
    metrics = left_out_quality(fitted, memory.targets, memory.balanced)

    # Saved, if anything is new
    classifier = taught.classifier
    size = 0
    if change or taught.is_new:
        origin = _origin(settings, taught, fitted, metrics)
        size = save_taught(taught.folder, replace(classifier, origin=origin), memory, fitted)
        classifier = load(taught.folder, quiet=True)
    lesson = Lesson(
        settings, classifier, taught.folder, memory, fitted, tuple(metrics), change, seconds, size
    )
    if settings.json:
        for sentence in lesson.written():
            say(sentence)
    return lesson


def _open(settings: Teach) -> Taught:
    """The model to change, in its directory; or the one to begin with, and nothing remembered."""
    if isinstance(settings.model, Classifier) and settings.directory is None:
        raise BadSettings(
            "say in which directory the taught model belongs: vitkit.teach(model, 'taught')"
        )
    loaded = classifier_of(settings.model, settings.hints)
    model = _path_of(settings.model)
    folder = settings.directory or model

    # Taught before
    if has_memory(folder):
        if folder == model:
            return Taught(folder, loaded, _memory(settings, folder, loaded), False)
        _check_is_of(settings, folder, loaded)
        there = load_as(folder, Hints())
        return Taught(folder, there, _memory(settings, folder, there), False)

    # New
    if model is not None and folder.resolve() == model.resolve():  # which would be replaced
        raise BadSettings(
            f"{model} remembers no photographs; begin a model that does in another directory, "
            "with `add=('cats/', 'dogs/')`"
        )
    fresh = _with_new_head(loaded)
    check_savable(fresh, folder)
    if model is not None and has_memory(model):
        return Taught(folder, loaded, _memory(settings, model, loaded), True)
    if not settings.add:
        raise BadSettings(
            f"{folder} knows no photograph yet; show it a folder of each class: "
            "`add=('cats/', 'dogs/')`"
        )
    # Nothing remembered yet, and the arithmetic of all photographs that will be
    x = np.empty((0, 0), dtype=np.float32)
    memory = Memory(x, precision=pick_precision(settings.precision, pick_device(settings.device)))
    return Taught(folder, fresh, memory, True)


def _path_of(model: str | Path | Classifier) -> Path | None:
    """Where a model is on disk, if it is there; None for one that a program holds."""
    if isinstance(model, Classifier):
        return None
    return Path(model)


def _memory(settings: Teach, folder: Path, classifier: Classifier) -> Memory:
    """What a taught model remembers. A sentence says so if its head is another's."""
    memory, is_heads = read_memory(folder, classifier)
    if settings.precision not in ("auto", memory.precision):
        raise BadSettings(
            f"the photographs in {folder} were computed in {memory.precision}, and the others must "
            f"be; leave out `precision={settings.precision!r}`"
        )
    if not is_heads:
        say(
            f"the head in {folder} is not the one of the photographs that it remembers (a change was "
            "interrupted, or another command made it): the next change solves it anew"
        )
    return memory


def _check_is_of(settings: Teach, folder: Path, loaded: Classifier) -> None:
    """Raises ValueError if the model in a folder was not taught on this one."""
    go_on = f"to go on with it: vitkit teach {as_word(folder)} --add ..."
    model = _path_of(settings.model)
    if model is not None and has_memory(model):
        raise BadSettings(f"{folder} is taught already, and so is {settings.model}; {go_on}")
    there = load(folder, quiet=True)
    if backbone_digest(_with_new_head(loaded)) != backbone_digest(there):
        raise BadSettings(
            f"{folder} was taught on a model other than {name_of(settings.model)}; {go_on}"
        )


def _with_new_head(classifier: Classifier) -> Classifier:
    """The model with a head of zeros, for classes that are not known yet."""
    adopted, _ = adopt(classifier, labels=("0", "1"), new_head=True)
    return adopted


def _changed(settings: Teach, taught: Taught) -> "tuple[Memory, str]":
    """What is remembered after the settings, and what was changed, in words."""
    memory = taught.memory
    texts = []
    if settings.undo:
        if not memory.changes:
            raise BadSettings(f"{taught.folder} has no change to undo")
        texts.append(f"undone: {memory.changes[-1].text}")
        memory = undone(memory)
    elif settings.add or settings.remove or settings.rename:
        memory = _edited(settings, taught)
        texts.append(memory.changes[-1].text)
    if settings.forget:
        before = len(memory.examples)
        memory = forgotten(memory)
        removed = counted(before - len(memory.examples), "removed photograph")
        texts.append(f"forgot {removed}, and every change")
    return memory, "; ".join(texts)


def _edited(settings: Teach, taught: Taught) -> Memory:
    """What is remembered after --remove, --rename and --add, in this order."""
    memory = taught.memory
    texts = []
    removed = set()
    for word in settings.remove:
        rows = set(rows_of(word, memory)) - removed
        removed |= rows
        if rows:  # else another word has named them already
            texts.append(f"removed {counted(len(rows), 'photograph')} ({printable_name(word)})")
    renamed = []
    for word in settings.rename:
        old, _, new = word.partition("=")
        renamed.append((old, new))
        texts.append(f"renamed {printable_name(old)} to {printable_name(new)}")
    without = changed(memory, "", remove=removed, rename=renamed)

    # New ones, of which some may have been removed right now
    added = []
    if settings.add:
        deployed = taught.classifier.to(pick_device(settings.device)).for_inference()
        added = new_photographs(settings.add, without, deployed)
    counts = {}
    for photographs in added:
        for label in photographs.labels:
            counts[label] = counts.get(label, 0) + 1
    for label, count in counts.items():
        texts.append(f"added {counted(count, 'photograph')} of {printable_name(label)}")
    if not texts:
        raise BadSettings("there is nothing new in what `add` names, so nothing was changed")
    return changed(memory, ", ".join(texts), remove=removed, rename=renamed, add=added)


def _origin(settings: Teach, taught: Taught, fitted: Probe, metrics: "list[Metric]") -> dict:
    """Where the model comes from."""
    origin = {"init": name_of(settings.model)}
    if not taught.is_new:
        origin = dict(taught.classifier.origin)
    origin["head"] = f"linear probe of taught photographs, temperature {fitted.temperature:.3g}"
    origin["metrics"] = {metric.name: metric.text() for metric in metrics}
    return origin


def as_json(memory: Memory, metrics: Sequence[Metric]) -> dict:
    """The knowledge of the model, as plain values."""
    counts = np.bincount(memory.targets, minlength=len(memory.classes)).tolist()
    return {
        "classes": dict(zip(memory.classes, counts, strict=True)),
        "metrics": {metric.name: metric.to_json() for metric in metrics},
        "changes": [change.text for change in memory.changes],
    }
