"""`vitkit teach`: a classifier that learns, and unlearns, photograph by photograph."""

import json
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
from tyro.conf import Positional, arg

from vitkit.system.console.text import as_word, counted, printable, printable_name
from vitkit.verbs import Device, Model, ModelHints, Precision, pick_precision
from vitkit.weights import Classifier, Hints

if TYPE_CHECKING:
    from vitkit.evaluation import Memory, Metric, Probe


@dataclass
class Teach:
    """Teach a model classes by showing it photographs, a few are enough; take photographs or
    classes away again, rename classes, undo that. Nothing is trained: the head is solved anew, in
    closed form, from the features of all photographs that are remembered.

    vitkit teach MODEL animals --add ants/ bees/ begins a model in the directory animals;
    vitkit teach animals --add cats/ goes on with it; vitkit teach animals says what it knows."""

    model: Model
    directory: Annotated[Positional[Path | None], arg(metavar="DIR")] = None
    """Directory of the taught model. Default: MODEL, which was taught before."""
    add: Annotated[tuple[str, ...], arg(metavar="PHOTOS...")] = ()
    """Photographs to learn: a folder that is a class, a folder of such folders, a data set, or
    CLASS=PATH of a folder or a photograph."""
    remove: Annotated[tuple[str, ...], arg(metavar="PHOTO|CLASS...")] = ()
    """Photographs, or whole classes, to unlearn."""
    rename: Annotated[tuple[str, ...], arg(metavar="OLD=NEW...")] = ()
    """Classes to call otherwise."""
    undo: bool = False
    """Undo the last change; again, the one before it."""
    forget: bool = False
    """Delete for good what was removed. Until then its features are kept, for --undo."""
    list: bool = False
    """List every photograph, and every change that can be undone."""
    precision: Precision = "auto"
    """Arithmetic of the first photographs' features. All later ones have the same."""
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
    memory: "Memory"
    """What it remembers; nothing yet, if it is new."""
    is_new: bool
    """Whether it is not in its folder yet."""


def teach(command: Teach) -> int:
    """Change what a model remembers, solve its head, and save both."""
    from vitkit.commands.teach_output import as_json, print_classes, print_photographs
    from vitkit.evaluation import fit, save_taught

    # What it remembers, before and after
    _check(command)
    taught = _open(command)
    memory, text = _changed(command, taught)
    terminal = sys.stderr if command.json else sys.stdout
    if text:
        print(printable(text), file=terminal)

    # The head
    began = time.perf_counter()
    fitted = fit(memory)
    seconds = time.perf_counter() - began
    metrics = _metrics(fitted, memory)
    if command.json:
        print(json.dumps(as_json(memory, metrics), ensure_ascii=False, allow_nan=False))
    else:
        print_classes(memory, fitted, metrics)
    if command.list and not command.json:
        print_photographs(memory)

    # Saved
    word = as_word(taught.folder)
    if not text and not taught.is_new:
        print(
            f"next: vitkit teach {word} --add FOLDER, or vitkit predict {word} IMAGE...",
            file=terminal,
        )
        return 0
    origin = _origin(command, taught, fitted, metrics)
    size = save_taught(taught.folder, replace(taught.classifier, origin=origin), memory, fitted)
    photographs = counted(len(memory.rows), "photograph")
    print(
        f"solved in {seconds * 1000:.0f} ms; wrote {taught.folder}, which remembers {photographs} "
        f"({size / 1e6:.1f} MB)",
        file=terminal,
    )
    print(f"next: vitkit predict {word} IMAGE..., or vitkit teach {word} --undo", file=terminal)
    return 0


def _check(command: Teach) -> None:
    """Raises ValueError for settings that do not go together."""
    if command.undo and (command.add or command.remove or command.rename):
        raise ValueError("--undo takes an earlier change back; make another one afterwards")
    for word in command.rename:
        old, _, new = word.partition("=")
        if not old or not new.strip():
            raise ValueError(f"--rename {word}: write OLD=NEW, such as --rename bees=honeybees")


def _open(command: Teach) -> Taught:
    """The model to change, in its directory; or the one to begin with, and nothing remembered."""
    from vitkit.evaluation import has_memory
    from vitkit.weights import check_savable, load_as

    model = Path(command.model)
    folder = command.directory or model
    loaded = load_as(command.model, command.hints)

    # Taught before
    if has_memory(folder):
        if folder == model:
            return Taught(folder, loaded, _memory(command, folder, loaded), False)
        _check_is_of(command, folder, loaded)
        there = load_as(folder, Hints())
        return Taught(folder, there, _memory(command, folder, there), False)

    # New
    if folder.resolve() == model.resolve():  # which would be replaced
        raise ValueError(
            f"{model} remembers no photographs; begin a model that does in another directory: vitkit "
            f"teach {as_word(model)} DIR --add cats/ dogs/"
        )
    fresh = _with_new_head(loaded)
    check_savable(fresh, folder)
    if has_memory(model):
        return Taught(folder, loaded, _memory(command, model, loaded), True)
    if not command.add:
        raise ValueError(
            f"{folder} knows no photograph yet; show it a folder of each class: vitkit teach "
            f"{as_word(model)} {as_word(folder)} --add cats/ dogs/"
        )
    return Taught(folder, fresh, _empty(command), True)


def _memory(command: Teach, folder: Path, classifier: Classifier) -> "Memory":
    """What a taught model remembers. A sentence says so if its head is another's."""
    from vitkit.evaluation import read_memory

    memory, is_heads = read_memory(folder, classifier)
    if command.precision not in ("auto", memory.precision):
        raise ValueError(
            f"the photographs in {folder} were computed in {memory.precision}, and the others must "
            f"be; leave out --precision {command.precision}"
        )
    if not is_heads:
        print(
            f"the head in {folder} is not the one of the photographs that it remembers (a change was "
            "interrupted, or another command made it): the next change solves it anew",
            file=sys.stderr,
        )
    return memory


def _check_is_of(command: Teach, folder: Path, loaded: Classifier) -> None:
    """Raises ValueError if the model in a folder was not taught on this one."""
    from vitkit.evaluation import backbone_digest, has_memory
    from vitkit.weights import load

    go_on = f"to go on with it: vitkit teach {as_word(folder)} --add ..."
    if has_memory(Path(command.model)):
        raise ValueError(f"{folder} is taught already, and so is {command.model}; {go_on}")
    there = load(folder, quiet=True)
    if backbone_digest(_with_new_head(loaded)) != backbone_digest(there):
        raise ValueError(f"{folder} was taught on another model than {command.model}; {go_on}")


def _with_new_head(classifier: Classifier) -> Classifier:
    """The model with a head of zeros, for classes that are not known yet."""
    from vitkit.weights import adopt

    adopted, _ = adopt(classifier, labels=("0", "1"), new_head=True)
    return adopted


def _empty(command: Teach) -> "Memory":
    """Nothing remembered yet, and the arithmetic of all photographs that will be."""
    from vitkit.evaluation import Memory
    from vitkit.system.machine import pick_device

    x = np.empty((0, 0), dtype=np.float32)
    return Memory(x, precision=pick_precision(command.precision, pick_device(command.device)))


def _changed(command: Teach, taught: Taught) -> "tuple[Memory, str]":
    """What is remembered after the command, and what was changed, in words."""
    from vitkit.evaluation import forgotten, undone

    memory = taught.memory
    texts = []
    if command.undo:
        if not memory.changes:
            raise ValueError(f"{taught.folder} has no change to undo")
        texts.append(f"undone: {memory.changes[-1].text}")
        memory = undone(memory)
    elif command.add or command.remove or command.rename:
        memory = _edited(command, taught)
        texts.append(memory.changes[-1].text)
    if command.forget:
        before = len(memory.examples)
        memory = forgotten(memory)
        removed = counted(before - len(memory.examples), "removed photograph")
        texts.append(f"forgot {removed}, and every change")
    return memory, "; ".join(texts)


def _edited(command: Teach, taught: Taught) -> "Memory":
    """What is remembered after --remove, --rename and --add, in this order."""
    from vitkit.commands.teach_adding import new_photographs
    from vitkit.commands.teach_words import rows_of
    from vitkit.evaluation import changed
    from vitkit.system.machine import pick_device

    memory = taught.memory
    texts = []
    removed = set()
    for word in command.remove:
        rows = set(rows_of(word, memory)) - removed
        removed |= rows
        if rows:  # else another word has named them already
            texts.append(f"removed {counted(len(rows), 'photograph')} ({printable_name(word)})")
    renamed = []
    for word in command.rename:
        old, _, new = word.partition("=")
        renamed.append((old, new))
        texts.append(f"renamed {printable_name(old)} to {printable_name(new)}")
    without = changed(memory, "", remove=removed, rename=renamed)

    # New ones, of which some may have been removed right now
    added = []
    if command.add:
        deployed = taught.classifier.to(pick_device(command.device)).for_inference()
        added = new_photographs(command.add, without, deployed)
    counts = {}
    for photographs in added:
        for label in photographs.labels:
            counts[label] = counts.get(label, 0) + 1
    for label, count in counts.items():
        texts.append(f"added {counted(count, 'photograph')} of {printable_name(label)}")
    if not texts:
        raise ValueError("there is nothing new in what --add names, so nothing was changed")
    return changed(memory, ", ".join(texts), remove=removed, rename=renamed, add=added)


def _metrics(fitted: "Probe", memory: "Memory") -> "list[Metric]":
    """How good the answers of the others are to each photograph."""
    from vitkit.evaluation import quality

    return quality("left_out", fitted.left_out, memory.targets)


def _origin(command: Teach, taught: Taught, fitted: "Probe", metrics: "list[Metric]") -> dict:
    """Where the model comes from."""
    origin = {"init": command.model}
    if not taught.is_new:
        origin = dict(taught.classifier.origin)
    origin["head"] = f"linear probe of taught photographs, temperature {fitted.temperature:.3g}"
    origin["metrics"] = {metric.name: metric.text() for metric in metrics}
    return origin
