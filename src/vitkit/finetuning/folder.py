"""The images of a folder of photographs, and their division into training, held-out and test images."""

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
    one_per_cpu,
    open_image,
    splits_at,
    subset,
    without,
)
from vitkit.evaluation import unbalanced
from vitkit.recipes import Data
from vitkit.system.console.text import as_word, counted
from vitkit.system.errors import BadData, VitkitError
from vitkit.system.processes.ranks import from_rank_0
from vitkit.training import divide

NAMED = 5  # largest number of classes that are named in a message
MEASURED = 32  # largest number of images whose sizes are read
LOOK_ALIKE = 0.995  # smallest cosine similarity of the features of look-alike images
READ_AGAIN = (
    20_000  # largest number of images in shards and the like that are searched for duplicate files
)
COMPARED = 1 << 24  # similarities that are computed in one matrix product


@dataclass(frozen=True)
class Photographs:
    """The readable images of a data set."""

    train: Source
    """Training images."""
    held_out: Source | None
    """Images for choosing the model, from the training part; None if no class has two images."""
    test: Source | None
    """Test images, for measuring the chosen model."""
    test_name: str
    """Name of the part in `test`: "test", or "val" if there is no test part."""
    labels: tuple[str, ...]
    """Class names; empty if the targets are not classes."""
    target_kind: TargetKind
    made_fingerprint: str | None
    """Fingerprint of a test part that was split off; None if the data set has a test part of its own."""
    notes: tuple[str, ...]
    """Sentences about decisions and findings."""
    counts: dict[str, int]
    """Number of images of each part by name, including unreadable ones."""
    fingerprints: dict[str, str]
    """Digest of each part by name, including unreadable images."""
    skipped: dict[str, list[tuple[int, str]]]
    """Unreadable images by part: index and error message. Parts without any are absent."""

    @property
    def learned(self) -> Source:
        """All images but the test images; the held-out ones come last."""
        if self.held_out is None:
            return self.train
        return merge_parts(self.train, self.held_out)


def open_photographs(data: Data) -> Photographs:
    """Open the data set that a user named, decode every image once, and divide it. Raises VitkitError if
    there are no training images."""
    # The given parts
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

    # Training and held-out images
    try:
        parts = divide(splits, data)
    except VitkitError:
        # Nothing can be held out; any other fault is raised here
        parts = {"train": divide(splits, replace(data, parts="given"))["train"]}
    sources = {"train": parts["train"], "held out": parts.get("val"), test_name: test}

    # Without unreadable images
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
    """Raises VitkitError, with the class's name, for a class without a training image."""
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
    """The images that can be decoded; and the index and error message of each other image."""
    broken = from_rank_0(lambda: dict(check_images(source, one_per_cpu())))
    if not broken:
        return source, []
    intact = [i for i in range(len(source)) if i not in broken]
    return subset(source, intact), list(broken.items())


def _same_files(photographs: Photographs, where: str) -> list[str]:
    """Sentences about byte-identical files: with different targets, or in both the training and the test
    images. where: the name of the data set."""
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
    """Groups of byte-identical images, as indices in order. Only files of equal size are read."""
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
    """The size of an image's file in bytes, as text; "" for an image whose file size is unknown."""
    if not isinstance(source.store, Files):
        return ""
    return str(Path(source.name(i)).stat().st_size)


def look(photographs: Photographs) -> list[str]:
    """Sentences that describe the data."""
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
    """The range of image sizes in a sample, as text."""
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
    """Sentences about the classes, their numbers of images, and class imbalance."""
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
            f"one image alone of {alone}: a leave-one-out fit has no image of it, and none can be "
            "held out. Two or more would help"
        )
    if unbalanced(counts):
        sentences.append(
            f"unbalanced: {labels[order[0]]} has {most / max(fewest, 1):.0f} times the images of "
            f"{labels[order[-1]]}. All classes have equal weight: models are compared by balanced accuracy, the mean "
            "of the classes' own"
        )
    return sentences


def _named(label: str, count: int) -> str:
    """A class name with its number of images; a name that is a number is marked as a name."""
    if label[-1:].isdigit():
        return f'"{label}" {count:,}'
    return f"{label} {count:,}"


def look_alikes(
    learned: np.ndarray, others: np.ndarray | None = None, groups: np.ndarray | None = None
) -> np.ndarray:
    """For each image, the index of a training image that looks the same, int64; -1 if there is none.

    learned: features of the training images, (N, D). others: features of the images to look up, (M, D);
    returns (M,). Without `others`, each training image is compared with earlier training images of other
    groups; returns (N,). groups: group numbers of the training images, (N,).
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
