"""The memory of a classifier that can be updated (`vitkit teach`): the features of every image that its head
was fitted to, so that images and classes can be added, removed and renamed, and each change undone.

After each change the head is fitted again, in closed form, to the remembered features (`probe.linear`). So it
always equals a fit from scratch, including its regularisation and temperature.

Legend: M examples including removed ones, N current examples, D width, K classes.
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

METHOD: Method = "linear"  # the method with exact leave-one-out predictions


FILE = "taught.safetensors"
VERSION = 1  # version of files with float32 features
HALF = 2  # version of files with float16 features
LATEST = HALF  # latest version that this vitkit reads


def rounded(x: np.ndarray) -> np.ndarray:
    """Features rounded to float16, as float32 (N, D). Features of several blocks are rounded before a head
    is fitted to them, so that the memory holds exactly the same values in half the space."""
    most = np.finfo(np.float16).max
    return np.clip(x, -most, most).astype(np.float16).astype(np.float32)


class AddedExample(NamedTuple):
    """An image in the memory of a classifier."""

    digest: str
    """Digest of the image's content, independent of its name."""
    name: str
    """Name of the image when it was added."""
    label: int
    """Index of its class in `Memory.labels`."""
    added: int
    """Number of the change that added it, from 1; 0 if adding it cannot be undone."""
    removed: int = 0
    """Number of the change that removed it; 0 if it was not removed."""


class Change(NamedTuple):
    """A change that can be undone."""

    text: str
    """Description of the change."""
    renamed: tuple[tuple[int, str], ...] = ()
    """Indices of the labels that the change renamed, and their previous names."""


class NewExamples(NamedTuple):
    """Images to add, with their features and classes."""

    x: np.ndarray
    """Features, float32 (n, D)."""
    digests: Sequence[str]
    """Digests of the images, from `digest_of`."""
    names: Sequence[str]
    """Names of the images."""
    labels: Sequence[str]
    """Names of the images' classes; a new name is a new class."""


@dataclass(frozen=True, eq=False)
class Memory:
    """The memory of a classifier that can be updated. It is immutable: a change returns a new one."""

    x: np.ndarray
    """The features of all examples: float32 (M, D)."""
    examples: tuple[AddedExample, ...] = ()
    """The M examples, including removed ones, which an undone change restores."""
    labels: tuple[str, ...] = ()
    """The names of all classes, including those without an example now."""
    changes: tuple[Change, ...] = ()
    """The changes that can be undone, the oldest first."""
    precision: Precision = "float32"
    """The arithmetic in which the features were computed."""

    @cached_property
    def rows(self) -> np.ndarray:
        """Indices of the examples that are not removed: int64 (N,)."""
        there = [i for i, example in enumerate(self.examples) if not example.removed]
        return np.array(there, dtype=np.int64)

    @cached_property
    def known(self) -> tuple[int, ...]:
        """Indices of the K labels with an example, in the order in which they were added."""
        return tuple(sorted({self.examples[i].label for i in self.rows}))

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the K classes."""
        return tuple(self.labels[number] for number in self.known)

    @property
    def targets(self) -> np.ndarray:
        """The class of each example that is not removed, as an index of `classes`: int64 (N,)."""
        labels = np.array([self.examples[i].label for i in self.rows], dtype=np.int64)
        return np.searchsorted(self.known, labels)

    @property
    def balanced(self) -> bool:
        """Whether all classes have equal weight in the fit, because they are of very unequal size."""
        return unbalanced(np.bincount(self.targets))

    def members(self, label: str) -> list[int]:
        """Indices of the examples of a class; none if there is no such class."""
        return [i for i in self.rows.tolist() if self.label_of(i) == label]

    def label_of(self, i: int) -> str:
        """The name of an example's class."""
        return self.labels[self.examples[i].label]

    def with_digests(self, digests: Iterable[str]) -> dict[str, int]:
        """Indices of the examples with these digests, by digest, including removed examples."""
        wanted = set(digests)
        by_digest = {}
        for i, example in enumerate(self.examples):
            if example.digest in wanted:
                by_digest[example.digest] = i
        return by_digest


def digest_of(image: bytes | np.ndarray) -> str:
    """A digest of an image's content: of the bytes of its file, or of its array of pixels."""
    if isinstance(image, np.ndarray):
        image = f"{image.shape} {image.dtype}".encode() + image.tobytes()
    return hashlib.sha256(image).hexdigest()[:32]


def remembered(
    source: Source, learned: Features, labels: Sequence[str], precision: Precision
) -> Memory:
    """The memory of a classifier whose head was fitted to the features of a source and their classes,
    indices of `labels`. It has no changes to undo. Raises BadImage, OSError."""
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
    """The memory after a change, made in this order: remove examples, rename classes, add images.

    text: description of the change.
    remove: indices of examples.
    rename: pairs of the old and the new name of a class.

    Raises VitkitError for a class that does not exist, and for a new name that another class has.
    """
    number = len(memory.changes) + 1

    # Remove
    examples = []
    for i, example in enumerate(memory.examples):
        if i in remove and not example.removed:
            example = example._replace(removed=number)
        examples.append(example)
    memory = replace(memory, examples=tuple(examples))

    # Rename
    renamed = []
    for old, new in rename:
        position = _position_to_rename(memory, old, new)
        renamed.append((position, old))
        labels = list(memory.labels)
        labels[position] = new
        memory = replace(memory, labels=tuple(labels))

    # Add
    for new_examples in add:
        memory = _with(memory, new_examples, number)
    change = Change(text, tuple(renamed))
    return replace(memory, changes=(*memory.changes, change))


def undone(memory: Memory) -> Memory:
    """The memory before the last change, exactly. Raises VitkitError if there is no change to undo."""
    if not memory.changes:
        raise BadSettings("there is no change to undo")
    number = len(memory.changes)

    # Restore the names of classes
    labels = list(memory.labels)
    for position, old in reversed(memory.changes[-1].renamed):
        labels[position] = old

    # Restore the removed examples, and drop the added ones
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
    """The memory without removed examples and without changes, so that nothing can be undone."""
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
    """Fit a head to the examples of a memory. Raises VitkitError for fewer than two classes."""
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
    """The index of the label to rename. Raises VitkitError if `old` does not exist, or `new` does."""
    if old == new:
        raise BadSettings(f"the class {old} has this name already; give another one")
    if new in memory.classes:
        raise BadSettings(
            f"{old} cannot be renamed to {new}: another class has this name, and classes are not merged"
        )
    for number in memory.known:
        if memory.labels[number] == old:
            return number
    raise BadSettings(f"there is no class {old}; the classes are {', '.join(memory.classes)}")


def _with(memory: Memory, added: NewExamples, number: int) -> Memory:
    """The memory with the images that change `number` adds."""
    labels = list(memory.labels)
    position = {label: k for k, label in enumerate(labels)}  # a restored class keeps its index
    position |= {labels[k]: k for k in memory.known}
    examples = list(memory.examples)
    rows = zip(added.digests, added.names, added.labels, strict=True)
    for digest, name, label in rows:
        if label not in position:
            position[label] = len(labels)
            labels.append(label)
        examples.append(AddedExample(digest, name, position[label], number))
    x = added.x
    if len(memory.x):
        x = np.concatenate([memory.x, x])
    return replace(memory, x=x, examples=tuple(examples), labels=tuple(labels))


# The memory's file beside the model: features, names, classes and changes, but no pixels. It is a safetensors
# file with one tensor; the rest is JSON in its header, with a checksum of both. An image takes 4 bytes per
# feature and about 100 bytes for its name: 0.2 MB for 245 images with 192 features.


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
    text = json.dumps(values)  # in ASCII: bytes of a file name that are not text become escapes
    metadata = {"taught": text, "checksum": _checksum(text, x)}
    file = folder / FILE
    with whole(file) as new:
        write_safetensors(new, {"features": torch.from_numpy(x)}, metadata)
    return file


def remove_memory(folder: Path) -> None:
    """Delete the memory of a model directory, if it has one, before another model is saved there."""
    (folder / FILE).unlink(missing_ok=True)


def save_taught(folder: Path, classifier: Classifier, memory: Memory, fitted: Probe) -> int:
    """Save a model with the head that was fitted to a memory, and the memory, in a directory; returns the
    size of the memory's file in bytes.

    The model is written first: `read_memory` notices if the process is killed in between. Raises the errors
    of `vitkit.save`.

    classifier: the backbone; its head is replaced.
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
    """Read the memory beside a model that was loaded from a directory; returns it, and whether the model's
    head was fitted to it. Raises VitkitError for a damaged file, and for a model whose backbone has
    changed."""
    file = folder / FILE
    try:
        memory, values = _read(file)
    except (SafetensorError, *DAMAGE) as error:
        raise BadWeights(
            f"{file} cannot be read ({error}), so the photographs that this model was taught are "
            "lost; the model itself is in another file. Restore a copy of the file, or begin again in "
            "another directory"
        ) from error
    if values["backbone"] != backbone_digest(classifier):
        raise BadWeights(
            f"the backbone of the model in {folder} has changed since it was taught (by training, or "
            "another image size), so the features in its memory do not fit; begin again in another "
            "directory (`output`)"
        )
    return memory, values["head"] == head_digest(classifier)


def backbone_digest(classifier: Classifier) -> str:
    """A digest of all that a model's features depend on: backbone weights, architecture, preprocessing."""
    digest = hashlib.sha256(json.dumps(feature_settings(classifier), sort_keys=True).encode())
    add_weights(digest, below_head(classifier))
    return digest.hexdigest()


def head_digest(classifier: Classifier) -> str:
    """A digest of a head's weights and the names of its classes."""
    digest = hashlib.sha256(json.dumps(classifier.labels).encode())
    add_weights(digest, classifier.model.head.state_dict())
    return digest.hexdigest()


def _checksum(text: str, x: np.ndarray) -> str:
    """The checksum of a memory's JSON and features."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape"))
    digest.update(x.data)
    return digest.hexdigest()


def _read(file: Path) -> tuple[Memory, dict]:
    """Read a memory and the values of its header. Raises VitkitError and other errors of DAMAGE."""
    with safe_open(file, "np") as opened:
        metadata = opened.metadata() or {}
        text = metadata["taught"]
        x = opened.get_tensor("features")
    if _checksum(text, np.ascontiguousarray(x)) != metadata["checksum"]:
        raise BadWeights("its checksum does not match, so it is damaged")
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
    for description, renamed in value_of(list[tuple[str, list]], values["changes"], "changes"):
        pairs = value_of(tuple[tuple[int, str], ...], renamed, "renamed classes")
        changes.append(Change(description, pairs))
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
    """Raises VitkitError for parts of a memory that are inconsistent."""
    if x.ndim != 2 or len(x) != len(examples) or x.dtype not in (np.float16, np.float32):
        raise BadWeights(
            f"it has {x.shape} features of {x.dtype} for {len(examples):,} photographs"
        )
    if not np.isfinite(x).all():
        raise BadWeights("it has a feature that is NaN or infinite")
    for each in examples:
        if not 0 <= each.label < labels:
            raise BadWeights(
                f"{each.name[:100]!r} has the class {each.label}, and there are {labels}"
            )
        if not (0 <= each.added <= len(changes) and 0 <= each.removed <= len(changes)):
            raise BadWeights(f"{each.name[:100]!r} refers to a change that does not exist")
    for change in changes:
        if any(not 0 <= number < labels for number, _ in change.renamed):
            raise BadWeights("a change renamed a class that does not exist")
