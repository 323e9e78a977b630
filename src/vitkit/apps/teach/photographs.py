"""Resolves the arguments of `vitkit teach`: images to add, and examples to remove."""

from collections.abc import Sequence
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import nn

from vitkit.data import (
    IMAGE_SUFFIXES,
    Files,
    Source,
    find_images,
    merge_parts,
    note_left_out,
    parts_at,
    subset,
)
from vitkit.evaluation import Memory, NewExamples, compute_features, digest_of, last_token, rounded
from vitkit.evaluation.sources import broken_images
from vitkit.system.console.messages import say
from vitkit.system.console.text import counted, printable_name
from vitkit.system.errors import BadSettings, BadWeights
from vitkit.system.machine import autocast
from vitkit.system.storage.private import public
from vitkit.system.storage.remote import is_address
from vitkit.weights import Classifier

MUCH = 1.0  # size of the features from which a message warns, GiB


class AddedPhotographs(NamedTuple):
    """The images that one value of `add` names."""

    source: Source
    """Images with one class each."""
    notes: tuple[str, ...] = ()
    """Messages about decisions, for the user."""


def photographs_of(word: str, memory: Memory) -> AddedPhotographs:
    """The images that one value of `add` names: a folder of one class, a folder of such folders, an
    image, or a data set. CLASS=PATH gives the class.

    Raises VitkitError if nothing of this name exists, or if its class is not known.
    """
    label = None
    path = Path(word)
    if not path.exists() and "=" in word and not is_address(word):
        label, _, rest = word.partition("=")
        path = Path(rest)
        if not label.strip() or not rest:
            raise BadSettings(f"`add={word!r}`: write CLASS=PATH, such as cats=photos/cats")
        if not path.exists():
            raise BadSettings(f"`add={word!r}`: there is no {rest}")

    # A single image, whose class is the name of its folder if the model has that class
    if path.is_file() and path.suffix.lower() in IMAGE_SUFFIXES:
        return AddedPhotographs(
            _files(path.parent, [path.name], label or _class_of_folder(path, memory))
        )

    # All images of a folder, with one class
    if label is not None:
        if not path.is_dir():
            raise BadSettings(
                f"`add={word!r}`: {path} is neither a photograph nor a folder of them; a data set says "
                "itself which classes it has"
            )
        names, left_out = find_images(path)
        if not names:
            raise BadSettings(f"`add={word!r}`: {path} holds no images")
        return AddedPhotographs(_files(path, names, label), note_left_out(left_out))

    # A data set, or a folder of one class
    sources, notes, _ = parts_at(word, typed=True)
    kind = next(iter(sources.values())).target_kind
    if kind == "none" and path.is_dir():
        names, left_out = find_images(path)
        return AddedPhotographs(_files(path, names, path.resolve().name), note_left_out(left_out))
    if kind != "class":
        raise BadSettings(
            f"`add={word!r}`: a taught model answers with one class, and the targets of {word} are of "
            f"the kind {kind!r}"
        )
    return _learned(word, sources, notes)


def rows_of(word: str, memory: Memory) -> list[int]:
    """The numbers of the examples that one value of `remove` names: a class; an image or a folder
    of images, compared by content; or the name of an image.

    Raises VitkitError if there are none, or if the name is ambiguous.
    """
    # A class
    if members := memory.members(word.rstrip("/")) or memory.members(word):
        return members

    # Existing images: identified by content, whatever their name
    path = Path(word)
    digests = []
    if path.is_dir():
        names, _ = find_images(path)
        digests = [digest_of((path / name).read_bytes()) for name in names]
    elif path.is_file():
        digests = [digest_of(path.read_bytes())]
    wanted = set(digests)
    if rows := [i for i in memory.rows.tolist() if memory.examples[i].digest in wanted]:
        return rows

    # Names of images that no longer exist, or were edited
    rows = [i for i in memory.rows.tolist() if _is_called(memory, i, word)]
    if len(rows) == 1:
        return rows
    if rows:
        several = ", ".join(sorted({_in_class(memory, i) for i in rows})[:3])
        raise BadSettings(
            f"`remove={word!r}`: {len(rows)} photographs are called so ({several}, ...); write "
            "CLASS/NAME"
        )
    raise BadSettings(_no_example_message(word, memory, len(digests)))


def _files(root: Path, names: Sequence[str], label: str) -> Source:
    """Files of one class."""
    rows = np.arange(len(names))
    return Source(Files.of(root, names), rows, np.zeros(len(names), np.int64), (label,))


def _class_of_folder(path: Path, memory: Memory) -> str:
    """The class of an image: the name of its folder. Raises VitkitError if the model does not have
    that class."""
    folder = path.resolve().parent.name
    if folder in memory.classes:
        return folder
    raise BadSettings(
        f"`add={str(path)!r}`: of which class is it? Write `add={f'CLASS={path}'!r}`, or add the whole folder"
    )


def _learned(word: str, sources: dict[str, Source], notes: tuple[str, ...]) -> AddedPhotographs:
    """All parts of a data set except the test part."""
    if "" in sources:
        return AddedPhotographs(sources[""], notes)
    held_out = "test" if "test" in sources else "val"
    learned = [source for name, source in sources.items() if name != held_out]
    if not learned:
        raise BadSettings(
            f"`add={word!r}`: it has a {held_out} part only, which is not learned from"
        )
    if held_out in sources:
        note = (
            f"its {held_out} part, {counted(len(sources[held_out]), 'image')}, is not learned from"
        )
        notes = (*notes, note)
    return AddedPhotographs(reduce(merge_parts, learned), notes)


def _is_called(memory: Memory, i: int, word: str) -> bool:
    """Whether a value is an example's name, the end of that name, or CLASS/NAME."""
    name = memory.examples[i].name
    return name == word or name.endswith(f"/{word}") or _in_class(memory, i) == word


def _in_class(memory: Memory, i: int) -> str:
    """An example's name as CLASS/NAME."""
    return f"{memory.label_of(i)}/{Path(memory.examples[i].name).name}"


def _no_example_message(word: str, memory: Memory, looked_at: int) -> str:
    """The message for a value that names no example."""
    if looked_at:
        return f"`remove={word!r}`: {counted(looked_at, 'image')} there, none of which was learned from"
    classes = ", ".join(map(printable_name, memory.classes))
    sentence = (
        f"`remove={word!r}`: no class and no photograph is called so; the classes are {classes}"
    )
    names = [*memory.classes, *(Path(memory.examples[i].name).name for i in memory.rows)]
    if near := get_close_matches(word.rstrip("/"), names, 1):
        sentence += f"; did you mean {near[0]}?"
    return sentence


def new_photographs(
    words: Sequence[str], memory: Memory, classifier: Classifier
) -> list[NewExamples]:
    """The new images that the values of `add` name, with their features; logs what is left
    out.

    classifier: the model on its device, for inference. Raises VitkitError for an image with two
    classes.
    """
    label_of = {}  # label of every stored image, by digest
    for i in memory.rows.tolist():
        label_of[memory.examples[i].digest] = memory.label_of(i)

    found = []
    count = len(memory.rows)
    for word in words:
        batch = photographs_of(word, memory)
        for note in batch.notes:
            say(f"{word}: {note}")
        source, digests = _unknown(word, batch.source, label_of)
        if not len(source):
            continue
        _log_memory(count, count + len(source), classifier)
        count += len(source)
        names = [public(source.name(i)) for i in range(len(source))]
        labels = [source.labels[target] for target in source.target_array]
        x = _features(source, digests, memory, classifier)
        found.append(NewExamples(x, digests, names, labels))
    return found


def _log_memory(before: int, after: int, classifier: Classifier) -> None:
    """Log the memory that this many images need, before their features are computed, if it is large."""
    head = classifier.model.head
    assert isinstance(head, nn.Linear)  # models that can be taught have one
    numbers = head.weight.shape[1]
    gib = 4 * numbers / 2**30
    if before * gib <= MUCH < after * gib:
        say(
            f"{counted(after, 'photograph')}, of each of which the head reads {numbers:,} numbers, take "
            f"{after * gib:.1f} GiB of memory, and minutes whenever a head is solved for on them; "
            "finetune with `portable` makes a model whose head reads fewer"
        )


def _unknown(word: str, source: Source, label_of: dict[str, str]) -> tuple[Source, list[str]]:
    """The readable images that are not yet stored, and their digests; adds these to
    `label_of`."""
    chosen = []
    digests = []
    known = 0
    broken = broken_images(source)
    for i in range(len(source)):
        if i in broken:
            continue
        digest = digest_of(source.store.read(int(source.rows[i])))
        label = source.labels[source.target_array[i]]
        if digest not in label_of:
            label_of[digest] = label
            chosen.append(i)
            digests.append(digest)
        elif label_of[digest] == label:
            known += 1
        else:
            name = source.name(i)
            move = f"`remove={name!r}` `add={f'{label}={name}'!r}`"
            raise BadSettings(
                f"{name} is to be {label}, and the very same picture is known as "
                f"{label_of[digest]}; to move it: {move}"
            )
    if known:
        say(f"{word}: {counted(known, 'photograph')} known already")
    return subset(source, chosen), digests


def _features(
    source: Source, digests: Sequence[str], memory: Memory, classifier: Classifier
) -> np.ndarray:
    """The features of images, float32 (n, D). Features of images that were removed are still
    stored, and are reused."""
    before = memory.with_digests(digests)
    rows = {}
    for i, digest in enumerate(digests):
        if digest in before:
            rows[i] = memory.x[before[digest]]
    others = [i for i in range(len(source)) if i not in rows]
    if others:
        with autocast(classifier.device, memory.precision):
            x, _ = compute_features(classifier, subset(source, others))
        if last_token(classifier) is not None:
            x = rounded(x)
        rows |= dict(zip(others, x, strict=True))
    x = np.stack([rows[i] for i in range(len(source))])

    # The head would become NaN
    broken = np.flatnonzero(~np.isfinite(x).all(1))
    if len(broken):
        raise BadWeights(
            f"the model gives NaN or infinity for {source.name(broken[0])}; its weights may be damaged"
        )
    return x
