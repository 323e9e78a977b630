"""A classifier that is taught: it remembers the features of every photograph that it has learned
from, so that photographs and classes can be added, taken away, renamed, and all that undone.

After each change the head is solved again, in closed form, from what is remembered (`probe.linear`).
So it is what a fit from the beginning would give, strength and temperature included, and nothing
drifts.

Legend: M examples that were ever added, N of them still there, D width, K classes.
"""

import hashlib
import json
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from vitkit.data import Source
from vitkit.evaluation.metrics.classification import unbalanced
from vitkit.evaluation.probes.features import Features, below_head
from vitkit.evaluation.probes.probe import Method, Probe, fit_probe, with_probe
from vitkit.evaluation.probes.unknown import fit_unknown, last_token
from vitkit.system.errors import BadSettings, BadWeights
from vitkit.system.machine import Precision
from vitkit.system.storage.files import parse_json, whole
from vitkit.system.storage.private import public
from vitkit.system.storage.records import record_of, value_of
from vitkit.weights import (
    DAMAGE,
    Classifier,
    add_weights,
    adopt,
    feature_settings,
    save,
    write_safetensors,
)

METHOD: Method = "linear"  # of the probes the one that leaves out exactly


FILE = "taught.safetensors"
HALF = 2  # the version of files whose features are float16; VERSION if they are float32
VERSION = 1
LATEST = HALF  # a larger number is a later vitkit's


def rounded(x: np.ndarray) -> np.ndarray:
    """Features rounded to float16, as float32 (N, D). Those of many blocks are rounded before a
    head is solved for on them, so that a model remembers them in half the room, to the bit."""
    most = np.finfo(np.float16).max
    return np.clip(x, -most, most).astype(np.float16).astype(np.float32)


class AddedExample(NamedTuple):
    """A photograph that was added."""

    digest: str
    """Of the image itself, whatever it is called."""
    name: str
    """What it was called."""
    label: int
    """Which of `Memory.labels` its class is."""
    added: int
    """The number of the change that added it: 1 is the first, 0 is before all that can be undone."""
    removed: int = 0
    """The number of the change that removed it; 0 if it is there."""


class Change(NamedTuple):
    """A change that can be undone."""

    text: str
    """What was changed, in words."""
    renamed: tuple[tuple[int, str], ...] = ()
    """The labels that it renamed, by number, and what they were called before."""


class NewExamples(NamedTuple):
    """Photographs to add, with their features and classes."""

    x: np.ndarray
    """Their features, float32 (n, D)."""
    digests: Sequence[str]
    names: Sequence[str]
    labels: Sequence[str]
    """The names of their classes; a new name is a new class."""


@dataclass(frozen=True, eq=False)
class Memory:
    """The memory of a taught classifier. A change makes a new one."""

    x: np.ndarray
    """The features of all examples: float32 (M, D)."""
    examples: tuple[AddedExample, ...] = ()
    """M of them, those that were removed too: they can come back."""
    labels: tuple[str, ...] = ()
    """The names of all classes that there ever were."""
    changes: tuple[Change, ...] = ()
    """What was done, the first change first."""
    precision: Precision = "float32"
    """The arithmetic in which the features were computed."""

    @cached_property
    def rows(self) -> np.ndarray:
        """The examples that have not been removed: int64 (N,)."""
        there = [i for i, example in enumerate(self.examples) if not example.removed]
        return np.array(there, dtype=np.int64)

    @cached_property
    def known(self) -> tuple[int, ...]:
        """The numbers of the K labels that an example has, in the order in which they came."""
        return tuple(sorted({self.examples[i].label for i in self.rows}))

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the K classes."""
        return tuple(self.labels[number] for number in self.known)

    @property
    def targets(self) -> np.ndarray:
        """The class of each example that has not been removed: int64 (N,)."""
        labels = np.array([self.examples[i].label for i in self.rows], dtype=np.int64)
        return np.searchsorted(self.known, labels)

    @property
    def balanced(self) -> bool:
        """Whether classes have equal weight, because some have many times as many examples as
        others."""
        return unbalanced(np.bincount(self.targets))

    def members(self, label: str) -> list[int]:
        """The examples, by number, of a class; none if there is no such class."""
        return [i for i in self.rows.tolist() if self.label_of(i) == label]

    def label_of(self, i: int) -> str:
        """The name of an example's class."""
        return self.labels[self.examples[i].label]

    def with_digests(self, digests: Iterable[str]) -> dict[str, int]:
        """The examples, by digest, that are these images; those that were removed, too."""
        wanted = set(digests)
        by_digest = {}
        for i, example in enumerate(self.examples):
            if example.digest in wanted:
                by_digest[example.digest] = i
        return by_digest


def digest_of(image: bytes | np.ndarray) -> str:
    """Identifies an image, whatever its name, by the bytes of its file or its array of pixels."""
    if isinstance(image, np.ndarray):
        image = f"{image.shape} {image.dtype}".encode() + image.tobytes()
    return hashlib.sha256(image).hexdigest()[:32]


def remembered(
    source: Source, learned: Features, labels: Sequence[str], precision: Precision
) -> Memory:
    """The memory of a classifier whose head was fitted at once, from the features of a source and
    their classes, numbers of `labels`. There is nothing to undo. Raises BadImage, OSError."""
    examples = []
    for i, label in enumerate(learned.y.tolist()):
        digest = digest_of(source.store.read(int(source.rows[i])))
        examples.append(AddedExample(digest, public(source.name(i)), label, 0))
    return Memory(np.array(learned.x), tuple(examples), tuple(labels), precision=precision)


def changed(
    memory: Memory,
    text: str,
    *,
    remove: Container[int] = (),
    rename: Sequence[tuple[str, str]] = (),
    add: Sequence[NewExamples] = (),
) -> Memory:
    """The memory after a change, in this order: examples removed, by number; classes renamed, as
    (old, new); photographs added. Raises VitkitError for a class that does not exist, and for a new
    name that another class has."""
    number = len(memory.changes) + 1

    # Removed
    examples = []
    for i, example in enumerate(memory.examples):
        if i in remove and not example.removed:
            example = example._replace(removed=number)
        examples.append(example)
    memory = replace(memory, examples=tuple(examples))

    # Renamed
    renamed = []
    for old, new in rename:
        position = _position_to_rename(memory, old, new)
        renamed.append((position, old))
        labels = list(memory.labels)
        labels[position] = new
        memory = replace(memory, labels=tuple(labels))

    # Added
    for photographs in add:
        memory = _with(memory, photographs, number)
    change = Change(text, tuple(renamed))
    return replace(memory, changes=(*memory.changes, change))


def undone(memory: Memory) -> Memory:
    """The memory before the last change, to the bit. Raises VitkitError if there is none."""
    if not memory.changes:
        raise BadSettings("there is no change to undo")
    number = len(memory.changes)

    # Its names
    labels = list(memory.labels)
    for position, old in reversed(memory.changes[-1].renamed):
        labels[position] = old

    # Its examples
    stays = []
    examples = []
    for i, example in enumerate(memory.examples):
        if example.removed == number:
            example = example._replace(removed=0)
        if example.added != number:
            stays.append(i)
            examples.append(example)
    used = max((example.label for example in examples), default=-1)
    return replace(
        memory,
        x=memory.x[stays],
        examples=tuple(examples),
        labels=tuple(labels[: used + 1]),
        changes=memory.changes[:-1],
    )


def forgotten(memory: Memory) -> Memory:
    """The memory without what was removed, and without the changes: nothing can be undone."""
    examples = []
    for i in memory.rows:
        example = memory.examples[i]
        examples.append(example._replace(label=memory.known.index(example.label), added=0))
    return replace(
        memory,
        x=memory.x[memory.rows],
        examples=tuple(examples),
        labels=memory.classes,
        changes=(),
    )


def fit(memory: Memory) -> Probe:
    """The head for a memory, and the answer to each example by a fit without it. Raises
    VitkitError for fewer than two classes."""
    if len(memory.known) < 2:
        names = " and ".join(memory.classes) or "no class"
        raise BadSettings(
            f"a classifier needs two classes or more, and this one would know {names}; add another, "
            "a folder of photographs each (`add`)"
        )
    return fit_probe(
        METHOD, memory.x[memory.rows], memory.targets, len(memory.known), memory.balanced
    )


def _position_to_rename(memory: Memory, old: str, new: str) -> int:
    """Which of the labels is to be renamed. Raises VitkitError for what cannot be."""
    if old == new:
        raise BadSettings(f"{old} is called so already")
    if new in memory.classes:
        raise BadSettings(
            f"{old} cannot be called {new}: another class is; two classes are not made one"
        )
    for number in memory.known:
        if memory.labels[number] == old:
            return number
    raise BadSettings(f"there is no class {old}; the classes are {', '.join(memory.classes)}")


def _with(memory: Memory, photographs: NewExamples, number: int) -> Memory:
    """The memory with photographs that change `number` adds."""
    labels = list(memory.labels)
    position = {label: k for k, label in enumerate(labels)}  # a class that comes back has its place
    position |= {labels[k]: k for k in memory.known}
    examples = list(memory.examples)
    rows = zip(photographs.digests, photographs.names, photographs.labels, strict=True)
    for digest, name, label in rows:
        if label not in position:
            position[label] = len(labels)
            labels.append(label)
        examples.append(AddedExample(digest, name, position[label], number))
    x = photographs.x
    if len(memory.x):
        x = np.concatenate([memory.x, x])
    return replace(memory, x=x, examples=tuple(examples), labels=tuple(labels))


# The file beside the model: features, names and classes, and what was changed. No pixel is in it. It is a
# safetensors file of one tensor; all else is JSON in its header, under a checksum of both. A photograph
# takes 4 bytes a feature and about 100 for its name: 0.2 MB for 245 photographs of 192 features.


def has_memory(folder: Path) -> bool:
    """Whether a model directory has a memory beside the model."""
    return (folder / FILE).is_file()


def write_memory(folder: Path, memory: Memory, classifier: Classifier) -> Path:
    """Write a model's memory beside it, atomically; returns the file. Raises OSError."""
    x = np.ascontiguousarray(memory.x, dtype=np.float32)
    version = VERSION
    if len(x) and (rounded(x) == x).all():
        x = x.astype(np.float16)
        version = HALF
    values = {
        "version": version,
        "backbone": backbone_digest(classifier),
        "head": head_digest(classifier),
        "precision": memory.precision,
        "labels": list(memory.labels),
        "examples": [list(example) for example in memory.examples],
        "changes": [
            [change.text, [list(pair) for pair in change.renamed]] for change in memory.changes
        ],
    }
    text = json.dumps(values)  # in ASCII: bytes of a file's name that are no text become escapes
    metadata = {"taught": text, "checksum": _checksum(text, x)}
    file = folder / FILE
    with whole(file) as new:
        write_safetensors(new, {"features": torch.from_numpy(x)}, metadata)
    return file


def remove_memory(folder: Path) -> None:
    """Remove the memory of a model directory, if it has one, for another model is saved there."""
    (folder / FILE).unlink(missing_ok=True)


def save_taught(folder: Path, classifier: Classifier, memory: Memory, fitted: Probe) -> int:
    """Save a model directory with the head that was solved from a memory, and the memory; returns the
    bytes that it takes.

    classifier: the model below the head, whatever its head. The model is written first: if the
    process is killed in between, `read_memory` sees it. Raises what `vitkit.save` raises.
    """
    labels = memory.classes
    adopted, _ = adopt(classifier.to("cpu"), labels=labels, new_head=True)
    x = torch.from_numpy(memory.x[memory.rows])
    unknown = fit_unknown(
        x, torch.from_numpy(memory.targets), fitted.left_out, told_by=last_token(classifier)
    )
    taught = replace(with_probe(adopted, fitted, labels), unknown=unknown)
    save(taught, folder)
    return write_memory(folder, memory, taught).stat().st_size


def read_memory(folder: Path, classifier: Classifier) -> tuple[Memory, bool]:
    """The memory beside a model that was loaded from a directory; and whether the model's head is
    the one that was solved from it. Raises VitkitError for a file that is damaged, and for a model
    whose features are others now."""
    file = folder / FILE
    try:
        memory, values = _read(file)
    except (SafetensorError, *DAMAGE) as error:
        raise BadWeights(
            f"{file} cannot be read ({error}), so the photographs that this model was taught are "
            "forgotten; the model itself is another file. Put a copy of it there, or begin again in "
            "another directory"
        ) from error
    if values["backbone"] != backbone_digest(classifier):
        raise BadWeights(
            f"the model in {folder} is another below its head than when it was taught (trained, or "
            "for another size of images), so what it remembers does not fit; begin again in another "
            "directory (`output`)"
        )
    return memory, values["head"] == head_digest(classifier)


def backbone_digest(classifier: Classifier) -> str:
    """Identifies a model's features: weights below the head, architecture, preprocessing."""
    digest = hashlib.sha256(json.dumps(feature_settings(classifier), sort_keys=True).encode())
    add_weights(digest, below_head(classifier))
    return digest.hexdigest()


def head_digest(classifier: Classifier) -> str:
    """Identifies a head and the names of its classes."""
    digest = hashlib.sha256(json.dumps(classifier.labels).encode())
    add_weights(digest, classifier.model.head.state_dict())
    return digest.hexdigest()


def _checksum(text: str, x: np.ndarray) -> str:
    """Of the JSON and of the features."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape"))
    digest.update(x.data)
    return digest.hexdigest()


def _read(file: Path) -> tuple[Memory, dict]:
    """A memory, and all values of its header. Raises VitkitError and others of DAMAGE."""
    with safe_open(file, "np") as opened:
        metadata = opened.metadata() or {}
        text = metadata["taught"]
        x = opened.get_tensor("features")
    if _checksum(text, np.ascontiguousarray(x)) != metadata["checksum"]:
        raise BadWeights("its checksum does not fit, so it is damaged")
    values = parse_json(text)
    if value_of(int, values["version"], "its version") > LATEST:
        raise BadWeights("a later version of vitkit wrote it")
    labels = value_of(tuple[str, ...], values["labels"], "labels")
    examples = []
    for example in value_of(list[list], values["examples"], "examples"):
        named = dict(zip(AddedExample._fields, example, strict=False))
        if len(example) > len(named):
            raise BadWeights("an example has more values than vitkit writes")
        examples.append(record_of(AddedExample, named))
    changes = []
    for said, renamed in value_of(list[tuple[str, list]], values["changes"], "changes"):
        pairs = value_of(tuple[tuple[int, str], ...], renamed, "renamed classes")
        changes.append(Change(said, pairs))
    for name in ("backbone", "head", "precision"):
        value_of(str, values[name], name)
    _check_memory(x, examples, changes, len(labels))
    memory = Memory(
        x.astype(np.float32), tuple(examples), labels, tuple(changes), values["precision"]
    )
    return memory, values


def _check_memory(
    x: np.ndarray, examples: list[AddedExample], changes: list[Change], labels: int
) -> None:
    """Raises VitkitError for parts of a memory that do not fit together."""
    if x.ndim != 2 or len(x) != len(examples) or x.dtype not in (np.float16, np.float32):
        raise BadWeights(
            f"it has {x.shape} features of {x.dtype} for {len(examples):,} photographs"
        )
    if not np.isfinite(x).all():
        raise BadWeights("a feature of it is NaN or infinite")
    for each in examples:
        if not 0 <= each.label < labels:
            raise BadWeights(
                f"{each.name[:100]!r} has the class {each.label}, and there are {labels}"
            )
        if not (0 <= each.added <= len(changes) and 0 <= each.removed <= len(changes)):
            raise BadWeights(f"{each.name[:100]!r} was changed by a change that is not there")
    for change in changes:
        if any(not 0 <= number < labels for number, _ in change.renamed):
            raise BadWeights("a class was renamed that is not there")
