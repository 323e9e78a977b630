"""`vitkit teach`: a classifier that learns, and unlearns, image by image."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from json import dumps as to_json
from pathlib import Path
from typing import Annotated, NamedTuple, Unpack

import numpy as np
from rich.markup import escape
from rich.table import Table

from vitkit.apps.teach.photographs import new_photographs, rows_of
from vitkit.evaluation import (
    Memory,
    Metric,
    Probe,
    backbone_digest,
    changed,
    fit,
    forgotten,
    left_out_quality,
    open_classes,
    read_memory,
    save_taught,
    undone,
)
from vitkit.evaluation.probes.teaching import has_memory
from vitkit.inspection import has_anomaly_map
from vitkit.runtimes import check_answer
from vitkit.system.console.messages import say
from vitkit.system.console.text import counted, printable, printable_name
from vitkit.system.errors import BadSettings, Unsupported
from vitkit.system.functions.arguments import name_of, pick_precision
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import DATA, IMAGES, step
from vitkit.system.functions.types import DeviceLike, PathLike, Several
from vitkit.system.machine import PrecisionChoice, pick_device
from vitkit.weights import (
    Classifier,
    Hints,
    MadeModel,
    ModelLike,
    Overrides,
    adopt,
    check_savable,
    classifier_of,
    hints_of,
    load,
    load_as,
)
from vitkit.weights.files.directory import model_directory


class Taught(NamedTuple):
    """A taught model, loaded from its directory or new."""

    folder: Path
    """Its directory, which does not exist yet for a new model."""
    classifier: Classifier
    """The model that computes the features."""
    memory: Memory
    """The stored examples; empty for a new model."""
    is_new: bool
    """Whether the model is not saved yet."""


@dataclass(frozen=True, eq=False, repr=False)
class Lesson(Rows, MadeModel):
    """The state of a taught model after a change."""

    classifier: Classifier
    """The model with the fitted head."""
    path: Path
    """Its directory."""
    memory: Memory
    """The stored examples."""
    probe: Probe
    """The head's fit, with leave-one-out predictions."""
    metrics: tuple[Metric, ...]
    """Metrics of the leave-one-out predictions."""
    change: str
    """Description of the change; "" if nothing was changed."""
    seconds: float
    """Time for fitting the head."""
    size: int
    """Number of written bytes; 0 if nothing was written."""
    lists: bool = False
    """Whether all images and all changes are printed."""
    json: bool = False
    """Whether the result is printed as JSON."""

    @property
    def made(self) -> str:
        """The taught model's directory."""
        return str(self.path)

    def rows(self) -> list[dict]:
        """One row per image: its class and its name."""
        memory = self.memory
        return [
            {"class": memory.label_of(i), "photograph": memory.examples[i].name}
            for i in memory.rows.tolist()
        ]

    def to_json(self) -> dict:
        """{"classes": {name: photographs}, "metrics": {...}, "changes": [...]}"""
        return as_json(self.memory, self.metrics)

    def shown(self) -> Iterator[str | Table]:
        """The output: the change, and the classes; or JSON."""
        if self.json:
            yield to_json(self.to_json(), ensure_ascii=False, allow_nan=False)
            return
        if self.change:
            yield printable(self.change)
        # The classes, with their leave-one-out accuracy
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
        if self.lists:
            # All images, and all changes
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
        """Sentences about the written files and the next command."""
        predicting = step("predict", self.path, IMAGES)
        if not self.size:
            yield f"next: {step('teach', self.path, add='FOLDER')}, or {predicting}"
            return
        photographs = counted(len(self.memory.rows), "photograph")
        yield (
            f"solved in {self.seconds * 1000:.0f} ms; wrote {self.path}, which remembers {photographs} "
            f"({self.size / 1e6:.1f} MB)"
        )
        yield f"next: {predicting}, or {step('teach', self.path, undo=True)}"


@public
def teach(
    model: ModelLike,
    directory: Annotated[PathLike | None, "DIR"] = None,
    *,
    add: Annotated[Several[str], "PHOTOS..."] = (),
    remove: Annotated[Several[str], "PHOTO|CLASS..."] = (),
    rename: Annotated[Several[str], "OLD=NEW..."] = (),
    undo: bool = False,
    forget: bool = False,
    list: bool = False,
    precision: PrecisionChoice = "auto",
    device: DeviceLike = "auto",
    json: bool = False,
    **overrides: Unpack[Overrides],
) -> Lesson:
    """Teach a model classes with a few photographs of each. You can also remove photographs or
    classes, rename classes, and undo any change. Nothing is trained: the head is computed again, in
    closed form, from the stored features of all photographs.

    A model, a directory and `add` make a taught model in that directory. A taught model and `add`
    teach it more photographs or classes. A taught model alone prints what it knows.

    Args:
        model: A run, a model directory, a file of weights (vitkit's, Hugging Face's, timm's,
            torchvision's or Google's), or the name of a published model.
        directory: Directory of the taught model. Default: MODEL, if it was taught before.
        add: Photographs to learn: a folder that is a class, a folder of such folders, a data set, or
            CLASS=PATH of a folder or a photograph.
        remove: Photographs, or whole classes, to unlearn.
        rename: Classes to rename.
        undo: Undo the last change. Repeat the command to undo the one before it.
        forget: Delete removed photographs for good. Until then vitkit keeps their features, for `undo`.
        list: List every photograph, and every change that can be undone.
        precision: Precision of the features of the first photographs. All later ones use the same.
        device: cpu, cuda, cuda:1 or mps; auto chooses the best one.
        json: Print what the model knows as one line of JSON.
        **overrides: Settings that the file of the model does not give, or that you want to change:
            `Overrides`.

    Raises:
        BadSettings: If something cannot be learned, removed or renamed, or if the model remembers no
            photographs.
        BadWeights: If the model cannot be read.
    """
    # The stored examples, before and after
    hints = hints_of(overrides)
    edits = Edits(add, remove, rename, undo, forget)
    edits.check()
    taught = _open(model, directory, hints, precision, device, starts=bool(add))
    memory, change = _changed(edits, taught, device)
    if change and json:  # standard output carries JSON only
        say(change)

    # The head
    began = time.perf_counter()
    fitted = fit(memory)
    seconds = time.perf_counter() - began
    metrics = [*left_out_quality(fitted, memory.targets, balanced=memory.balanced)]

    # Saved, if anything has changed
    classifier = taught.classifier
    size = 0
    if change or taught.is_new:
        origin = _origin(name_of(model), taught, fitted, metrics)
        size = save_taught(taught.folder, replace(classifier, origin=origin), memory, fitted)
        classifier = load(taught.folder, quiet=True)
    lesson = Lesson(
        classifier=classifier,
        path=taught.folder,
        memory=memory,
        probe=fitted,
        metrics=tuple(metrics),
        change=change,
        seconds=seconds,
        size=size,
        lists=list,
        json=json,
    )
    if json:
        for sentence in lesson.written():
            say(sentence)
    return lesson


@dataclass(frozen=True)
class Edits:
    """The requested changes."""

    add: tuple[str, ...]
    remove: tuple[str, ...]
    rename: tuple[str, ...]
    undo: bool
    forget: bool

    def check(self) -> None:
        """Raises BadSettings if changes contradict each other, or if a new name is missing."""
        if self.undo and (self.add or self.remove or self.rename):
            raise BadSettings("`undo` cannot be combined with other changes; make them afterwards")
        for word in self.rename:
            old, _, new = word.partition("=")
            if not old or not new.strip():
                raise BadSettings(
                    f"`rename={word!r}`: write OLD=NEW, such as `rename='bees=honeybees'`"
                )


def _open(
    model: str | Classifier,
    directory: Path | None,
    hints: Hints,
    precision: PrecisionChoice,
    device: str,
    starts: bool,
) -> Taught:
    """The taught model in its directory; or a new one without examples.
    starts: whether images are to be added, so that a new model may begin."""
    if isinstance(model, Classifier) and directory is None:
        raise BadSettings(
            "say in which directory the taught model belongs: vitkit.teach(model, 'taught')"
        )
    loaded = classifier_of(model, hints)
    check_answer(loaded)
    path = _path_of(model)
    folder = path
    if directory is not None:
        folder = directory
        if has_memory(model_directory(directory)):
            folder = model_directory(directory)
    assert folder is not None  # checked above

    # A model that was taught before
    if has_memory(folder):
        if folder == path:
            return Taught(folder, loaded, _memory(folder, loaded, precision), False)
        _check_is_of(folder, model, loaded)
        there = load_as(folder, Hints())
        return Taught(folder, there, _memory(folder, there, precision), False)

    # A new model
    if directory is None and has_anomaly_map(loaded):
        raise Unsupported(
            f"{path} remembers the patches of good images, not classes; to add good images, put them beside the "
            f"others and repeat the command that made it: {step('finetune', DATA)}"
        )
    if path is not None and folder.resolve() == path.resolve():  # it would replace the given model
        raise BadSettings(
            f"{path} remembers no photographs; begin a model that does in another directory, "
            "with `add=('cats/', 'dogs/')`"
        )
    fresh = _with_new_head(loaded)
    check_savable(fresh, folder)
    if path is not None and has_memory(path):
        return Taught(folder, loaded, _memory(path, loaded, precision), True)
    if not starts:
        raise BadSettings(
            f"{folder} has no photographs yet; add a folder of each class: `add=('cats/', 'dogs/')`"
        )
    # No examples yet; the precision applies to all later images too
    x = np.empty((0, 0), dtype=np.float32)
    memory = Memory(x, precision=pick_precision(precision, pick_device(device)))
    return Taught(folder, fresh, memory, True)


def _path_of(model: str | Path | Classifier) -> Path | None:
    """The model directory of a model on disk, or its file; None for a model in memory."""
    if isinstance(model, Classifier):
        return None
    return model_directory(Path(model))


def _memory(folder: Path, classifier: Classifier, precision: PrecisionChoice) -> Memory:
    """The stored examples of a taught model. Logs a warning if its head was not fitted to them. Raises
    BadSettings if their features have another precision than `precision`."""
    memory, is_heads = read_memory(folder, classifier)
    if precision not in ("auto", memory.precision):
        raise BadSettings(
            f"the photographs in {folder} were computed in {memory.precision}, and the others must "
            f"be; leave out `precision={precision!r}`"
        )
    if not is_heads:
        say(
            f"the head in {folder} is not the one of the photographs that it remembers (a change was "
            "interrupted, or another command made it): the next change fits it again"
        )
    return memory


def _check_is_of(folder: Path, model: str | Classifier, loaded: Classifier) -> None:
    """Raises BadSettings if the taught model in a folder was not made from this model."""
    go_on = f"to go on with it: {step('teach', folder, add='...')}"
    path = _path_of(model)
    if path is not None and has_memory(path):
        raise BadSettings(f"{folder} is taught already, and so is {model}; {go_on}")
    there = load(folder, quiet=True)
    if backbone_digest(_with_new_head(loaded)) != backbone_digest(there):
        raise BadSettings(f"{folder} was taught on a model other than {name_of(model)}; {go_on}")


def _with_new_head(classifier: Classifier) -> Classifier:
    """The model with an all-zero head, for classes that are not known yet."""
    adopted, _ = adopt(classifier, labels=("0", "1"), new_head=True)
    return adopted


def _changed(edits: Edits, taught: Taught, device: str) -> tuple[Memory, str]:
    """The examples after the changes, and a description of the changes."""
    memory = taught.memory
    texts = []
    if edits.undo:
        if not memory.changes:
            raise BadSettings(f"{taught.folder} has no change to undo")
        texts.append(f"undone: {memory.changes[-1].text}")
        memory = undone(memory)
    elif edits.add or edits.remove or edits.rename:
        memory = _edited(edits, taught, device)
        texts.append(memory.changes[-1].text)
    if edits.forget:
        before = len(memory.examples)
        memory = forgotten(memory)
        removed = counted(before - len(memory.examples), "removed photograph")
        texts.append(f"forgot {removed}, and every change")
    return memory, "; ".join(texts)


def _edited(edits: Edits, taught: Taught, device: str) -> Memory:
    """The examples after `remove`, `rename` and `add`, in this order."""
    memory = taught.memory
    texts = []
    removed: set[int] = set()
    for word in edits.remove:
        rows = set(rows_of(word, memory)) - removed
        removed |= rows
        if rows:  # otherwise an earlier value has already named them
            texts.append(f"removed {counted(len(rows), 'photograph')} ({printable_name(word)})")
    renamed = []
    for word in edits.rename:
        old, _, new = word.partition("=")
        renamed.append((old, new))
        texts.append(f"renamed {printable_name(old)} to {printable_name(new)}")
    without = changed(memory, "", remove=removed, rename=renamed)

    # New images; some of them may have been removed just now
    added = []
    if edits.add:
        deployed = taught.classifier.to(pick_device(device)).for_inference()
        added = new_photographs(edits.add, without, deployed)
    counts: dict[str, int] = {}
    for photographs in added:
        for label in photographs.labels:
            counts[label] = counts.get(label, 0) + 1
    for label, count in counts.items():
        texts.append(f"added {counted(count, 'photograph')} of {printable_name(label)}")
    if not texts:
        raise BadSettings("there is nothing new in what `add` names, so nothing was changed")
    return changed(memory, ", ".join(texts), remove=removed, rename=renamed, add=added)


OF_IMAGES = ("data", "split_seed", "groups", "held_out", "learned")
"""Fields of the provenance that describe images, by which `evaluate` recognises them."""


def _origin(model: str, taught: Taught, fitted: Probe, metrics: Sequence[Metric]) -> dict:
    """The provenance of the model."""
    before = taught.classifier.origin
    origin = dict(before)
    if taught.is_new:  # what the model has learned from, and was measured on, it still has
        origin = {"init": model} | {name: before[name] for name in OF_IMAGES if name in before}
    origin["head"] = f"linear probe of taught photographs, temperature {fitted.temperature:.3g}"
    origin["metrics"] = {metric.name: metric.text() for metric in metrics}
    return origin


def as_json(memory: Memory, metrics: Sequence[Metric]) -> dict:
    """The classes, metrics and changes of the model, as plain values."""
    counts = np.bincount(memory.targets, minlength=len(memory.classes)).tolist()
    return {
        "classes": dict(zip(memory.classes, counts, strict=True)),
        "metrics": {metric.name: metric.to_json() for metric in metrics},
        "changes": [change.text for change in memory.changes],
    }
