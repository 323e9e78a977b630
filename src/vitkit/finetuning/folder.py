"""What a folder of photographs holds, and how it is divided: to learn from, to choose by, to test
on."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitkit.data import (
    Files,
    Source,
    TargetKind,
    check_images,
    fingerprint,
    is_elsewhere,
    merge_parts,
    open_image,
    splits_at,
    subset,
    without,
)
from vitkit.evaluation import unbalanced
from vitkit.recipes import Data
from vitkit.system.console.text import as_word, counted
from vitkit.system.errors import BadData, VitkitError
from vitkit.system.machine import cpus
from vitkit.system.processes.ranks import from_rank_0
from vitkit.training import divide

NAMED = 5  # classes whose names are said
MEASURED = 32  # images whose size is looked at
LOOK_ALIKE = 0.995  # cosine of features from which two images are the same to the eye
READ_AGAIN = (
    20_000  # images of shards and the like, up to which files are looked for that are there twice
)
COMPARED = 1 << 24  # similarities at once


@dataclass(frozen=True)
class Photographs:
    """The images of a data set, without the broken ones."""

    train: Source
    """To learn from."""
    held_out: Source | None
    """To choose by, from the same part; None if no class has two images."""
    test: Source | None
    """To measure the chosen model on."""
    test_name: str
    """The part that `test` is: "test", or "val" if there is no other."""
    labels: tuple[str, ...]
    """The names of the classes; none if the targets are not classes."""
    target_kind: TargetKind
    made_fingerprint: str | None
    """By what a test part that was made is recognised."""
    notes: tuple[str, ...]
    """What was decided and found on the way, a sentence each."""
    counts: dict[str, int]
    """How many images each part has, broken ones too, by its name."""
    fingerprints: dict[str, str]
    """A digest of each part, broken ones too."""
    skipped: dict[str, list[tuple[int, str]]]
    """The broken images of parts that have some: which they are, and what is wrong."""

    @property
    def learned(self) -> Source:
        """All images but those to test on; the held-out ones come last."""
        if self.held_out is None:
            return self.train
        return merge_parts(self.train, self.held_out)


def open_photographs(data: Data) -> Photographs:
    """Open a data set, whose name a person typed, decode every image once, and divide it. Raises
    VitkitError if there is nothing to learn from."""
    # The parts that are there
    splits = splits_at(data.source, data.columns, data.split_seed, data.groups, True, typed=True)
    notes = list(splits.notes)
    if data.exclude and splits.train is not None:
        rest = without(splits.train, data.exclude)
        notes.append(
            f"{len(splits.train) - len(rest):,} images that {data.exclude} lists are left out"
        )
        splits = replace(splits, train=rest)
    test_name = "test"
    test = splits.test
    if test is None:
        test_name = "val"
        test = splits.val

    # To learn from, and to choose by
    try:
        parts = divide(splits, data)
    except VitkitError:
        # Nothing can be held out; what else is wrong is said here
        parts = {"train": divide(splits, replace(data, parts="given"))["train"]}
    sources = {"train": parts["train"], "held out": parts.get("val"), test_name: test}

    # Without the broken ones
    counts = {}
    fingerprints = {}
    skipped = {}
    for name, source in sources.items():
        if source is None:
            continue
        counts[name] = len(source)
        fingerprints[name] = fingerprint(source)
        intact, broken = _intact(source)
        sources[name] = intact if len(intact) else None
        if broken:
            skipped[name] = broken
            notes += [f"left out: {sentence}" for _, sentence in broken]
    if sources["train"] is None:
        raise BadData(
            f"none of the images of {data.source} to learn from can be read "
            f"({notes[-1].removeprefix('left out: ')})"
        )
    _check_classes(sources["train"], data)
    photographs = Photographs(
        sources["train"],
        sources["held out"],
        sources[test_name],
        test_name,
        tuple(splits.labels),
        splits.target_kind,
        splits.made_fingerprint,
        tuple(notes),
        counts,
        fingerprints,
        skipped,
    )
    same = _same_files(photographs, data.source)
    return replace(photographs, notes=(*photographs.notes, *same))


def _check_classes(train: Source, data: Data) -> None:
    """Raises VitkitError, with its name, for a class without an image to learn from."""
    if train.target_kind != "class":
        return
    counts = np.bincount(train.target_array, minlength=len(train.labels))
    empty = [train.labels[k] for k in np.flatnonzero(counts == 0)]
    if empty:
        raise BadData(
            f"{data.source} has no image of {', '.join(empty[:NAMED])} to learn from that can be "
            "read; add some, or remove the class"
        )


def _intact(source: Source) -> tuple[Source, list[tuple[int, str]]]:
    """The images that can be decoded; and which the others are, with a sentence about each."""
    broken = from_rank_0(lambda: dict(check_images(source, cpus())))
    if not broken:
        return source, []
    intact = [i for i in range(len(source)) if i not in broken]
    return subset(source, intact), list(broken.items())


def _same_files(photographs: Photographs, where: str) -> list[str]:
    """Sentences about files that are there twice, to the byte: with different targets, and both to learn
    from and to test on. where: the name of the data set."""
    learned = photographs.learned
    test = photographs.test
    examples = [(learned, i) for i in range(len(learned))]
    if test is not None:
        examples += [(test, i) for i in range(len(test))]
    is_packed = not isinstance(learned.store, Files)
    if is_elsewhere(learned) or (is_packed and len(examples) > READ_AGAIN):
        return []
    differ = []
    on_both_sides = []
    for group in from_rank_0(lambda: _identical(examples)):
        members = [examples[k] for k in group]
        if len({source.answer(i) for source, i in members}) > 1:
            differ.append(members)
        if group[0] < len(learned) <= group[-1]:
            on_both_sides.append([members[0], members[-1]])
    sentences = []
    if differ:
        named = " and ".join(
            f"{source.name(i)} ({source.answer(i)})" for source, i in differ[0][:2]
        )
        sentences.append(
            f"{counted(len(differ), 'file')} with different labels, such as {named}: the files are the same "
            f"to the byte, so one label is wrong; vitkit data review {as_word(where)} names all"
        )
    if on_both_sides:
        named = " and ".join(source.name(i) for source, i in on_both_sides[0])
        sentences.append(
            f"{counted(len(on_both_sides), 'file')} both to learn from and to test on, such as {named}: what "
            "is measured on the test images is too good"
        )
    return sentences


def _identical(examples: Sequence[tuple[Source, int]]) -> list[list[int]]:
    """Which of these images have the same bytes: groups of several, in order. Files of another size are
    not read."""
    by_size: dict[str, list[int]] = {}
    for k, (source, i) in enumerate(examples):
        by_size.setdefault(_size(source, i), []).append(k)
    by_digest: dict[bytes, list[int]] = {}
    for candidates in by_size.values():
        if len(candidates) == 1:
            continue
        for k in candidates:
            source, i = examples[k]
            image = source.store.read(int(source.rows[i]))
            content = image if isinstance(image, bytes) else image.tobytes()
            by_digest.setdefault(hashlib.sha256(content).digest(), []).append(k)
    return [group for group in by_digest.values() if len(group) > 1]


def _size(source: Source, i: int) -> str:
    """The bytes of a file, as text; empty for an image of another kind, whose size is not known."""
    if not isinstance(source.store, Files):
        return ""
    return str(Path(source.name(i)).stat().st_size)


def look(photographs: Photographs) -> list[str]:
    """A description of the data, in sentences."""
    parts = [f"{counted(len(photographs.train), 'image')} to learn from"]
    if photographs.held_out is not None:
        parts.append(f"{len(photographs.held_out):,} held out to choose the model")
    if photographs.test is not None:
        parts.append(f"{len(photographs.test):,} to test on ({photographs.test_name})")
    sentences = [", ".join(parts), _sizes(photographs.train)]
    if photographs.target_kind == "class":
        sentences += _classes(photographs)
    return [*sentences, *photographs.notes]


def _sizes(source: Source) -> str:
    """How large some of the images are."""
    count = min(len(source), MEASURED)
    sizes = []
    for i in np.linspace(0, len(source) - 1, count).astype(int).tolist():
        height, width = open_image(source[i][0], source.name(i)).size
        sizes.append((height * width, f"{width:,} x {height:,}"))
    _, smallest = min(sizes)
    _, largest = max(sizes)
    if smallest == largest:
        return f"{smallest} pixels"
    return f"{smallest} to {largest} pixels"


def _classes(photographs: Photographs) -> list[str]:
    """How many classes, and of how many images; and whether that is uneven."""
    labels = photographs.labels
    counts = np.bincount(photographs.learned.target_array, minlength=len(labels))
    order = np.argsort(-counts, kind="stable")
    named = [_named(labels[k], counts[k]) for k in order[:NAMED]]
    if len(labels) > NAMED:
        named.append(f"... {_named(labels[order[-1]], counts[order[-1]])}")
    sentences = [f"{len(labels):,} classes: {', '.join(named)}"]
    fewest = counts[order[-1]]
    most = counts[order[0]]
    if fewest == 1:
        alone = ", ".join(labels[k] for k in order[counts[order] == 1][:NAMED])
        sentences.append(
            f"one image alone of {alone}: a fit without it cannot know it, and nothing of it can be "
            "held out. Two or more would help"
        )
    if unbalanced(counts):
        sentences.append(
            f"unbalanced: {labels[order[0]]} has {most / max(fewest, 1):.0f} times the images of "
            f"{labels[order[-1]]}. Classes count alike: models are judged by balanced accuracy, the mean "
            "of the classes' own"
        )
    return sentences


def _named(label: str, count: int) -> str:
    """A class and its images; a class that is called by a number is marked as its name."""
    if label[-1:].isdigit():
        return f'"{label}" {count:,}'
    return f"{label} {count:,}"


def look_alikes(
    learned: np.ndarray, others: np.ndarray | None = None, groups: np.ndarray | None = None
) -> np.ndarray:
    """The image to learn from that each image looks the same as, by its number, int64; -1 if there is none.

    learned: the features of the images that it learns from, (N, D). others: those of the images that are
    looked at, (M, D); returns (M,). Without others, each of the learned images is compared with those
    before it that are not of its group; returns (N,). groups: the numbers of their groups, (N,).
    """
    rows_of = _unit_rows(learned if others is None else others)
    learned = _unit_rows(learned)
    rows = max(1, COMPARED // max(len(learned), 1))
    alike = np.full(len(rows_of), -1)
    for start in range(0, len(rows_of), rows):
        similarities = rows_of[start : start + rows] @ learned.T  # (rows, N)
        if others is None:
            similarities = np.tril(similarities, start - 1)
            if groups is not None:
                similarities[groups[start : start + rows, None] == groups] = 0
        nearest = similarities.argmax(1)
        is_alike = similarities.max(1) > LOOK_ALIKE
        alike[start : start + rows] = np.where(is_alike, nearest, -1)
    return alike


def _unit_rows(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
