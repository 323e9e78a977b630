"""Source: a data set with len() and [i], wherever its images are stored; parts of one, random
subsets, and by what one is recognised.

Legend: N examples, B batch, K classes.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitkit.data.images.pictures import Picture, open_image
from vitkit.data.sources.stores import Store
from vitkit.data.sources.targets import Lists, TargetKind, concatenate
from vitkit.system.errors import BadData, BadSettings
from vitkit.system.storage.files import mark_of, write_where_said
from vitkit.system.storage.remote import is_address

TEST_SHARE = 0.2  # of every class, if a data set comes without a test part
SAMPLE = 20_000  # images, at most, whose names and sizes identify a data set
_HEADING = "# fingerprint "  # how a list of images to leave out begins, unless written by hand


@dataclass(frozen=True, eq=False)
class Source:
    """Examples in a fixed order. Travels to worker processes."""

    store: Store
    rows: np.ndarray
    """Which row of the store each example is: int64 (N,)."""
    targets: np.ndarray | Lists
    """The target of each example, known without decoding an image: a class, int64 (N,); several
    classes, Lists of N; a number, float32 (N,); or, if there is none, -1, int64 (N,)."""
    labels: tuple[str, ...]
    """Names of the classes; empty unless targets are classes."""
    target_kind: TargetKind = "class"
    """What a target is."""
    groups: np.ndarray | None = None
    """Examples with the same number belong together, such as shots of one burst: int64 (N,). Numbers
    mean the same in all parts of a data set. None if nothing is known to belong together."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[bytes | np.ndarray, int | float | list[int] | None]:
        """The image, as a file's bytes or as an array, and its target. Raises BadImage if it cannot
        be read."""
        return self.store.read(int(self.rows[i])), self._target(i)

    def picture(self, i: int) -> Picture:
        """The image of example i, opened. Raises BadImage, and OSError if reading may succeed
        later."""
        return open_image(self.store.read(int(self.rows[i])), self.name(i))

    def name(self, i: int) -> str:
        """The name by which a user knows example i: a path, or a file and a row."""
        return self.store.name(int(self.rows[i]))

    def answer(self, i: int) -> str | None:
        """The target as people write it: "cat", "cat, dog" or "3.5"; None if there is none."""
        if isinstance(self.targets, Lists):
            return ", ".join(self.labels[k] for k in self.targets.row(i).tolist())
        if self.target_kind == "class":
            return self.labels[self.targets[i]]
        if self.target_kind == "number":
            return f"{self.targets[i].item():g}"
        return None

    def targets_of(self, indices: np.ndarray) -> np.ndarray:
        """The targets of a batch: int64 (B,) for a class; float32 (B, K), ones, zeros and NaN
        for what is unknown, for several; float32 (B,) for a number; int64 (B,), all -1, if there are none."""
        targets = self.targets[indices]
        if isinstance(targets, Lists):
            return targets.multi_hot(len(self.labels))
        return targets

    @property
    def target_array(self) -> np.ndarray:
        """`targets` of examples that have one each, or none: (N,)."""
        assert not isinstance(self.targets, Lists), "an example has several classes"
        return self.targets

    def chunks(self) -> tuple[np.ndarray, int] | None:
        """The chunk that each example lies in, numbered from 0: int64 (N,), and how many chunks
        stay in memory. None if examples are read one at a time."""
        chunks = self.store.chunks(self.rows)
        if chunks is None:
            return None
        chunk_of, chunks_in_memory = chunks
        numbered_from_0 = np.unique(chunk_of, return_inverse=True)[1]
        return numbered_from_0, chunks_in_memory

    def keeping(self, chunks: int) -> "Source":
        """A copy of the source whose readers keep this many chunks in memory."""
        return replace(self, store=self.store.keeping(chunks))

    def a_few(self) -> "Source":
        """A copy of the source for reading only a few examples: an example is read without its chunk
        if the store can do that."""
        if not is_elsewhere(self) or self.store.chunks(self.rows) is None:
            return self
        return self.keeping(0)

    def prepare(self) -> None:
        """Load into memory what worker processes should share; call this before they are
        started."""
        self.store.prepare(self.rows)

    def _target(self, i: int) -> int | float | list[int] | None:
        if self.target_kind == "none":
            return None
        if isinstance(self.targets, Lists):
            return self.targets.row(i).tolist()
        return self.targets[i].item()


def subset(source: Source, indices: Sequence[int] | np.ndarray) -> Source:
    """The examples at these indices, in this order."""
    indices = np.asarray(indices, dtype=np.int64)
    groups = source.groups
    if groups is not None:
        groups = groups[indices]
    rows = source.rows[indices]
    return replace(source, rows=rows, targets=source.targets[indices], groups=groups)


def merge_parts(first: Source, second: Source) -> Source:
    """The examples of two parts of one data set, as one part. Raises VitkitError if they are in
    different stores."""
    if first.store is not second.store:
        raise BadData("parts of different data sets cannot be trained on together")
    rows = np.concatenate([first.rows, second.rows])
    targets = concatenate([first.targets, second.targets])
    groups = None
    if first.groups is not None and second.groups is not None:
        groups = np.concatenate([first.groups, second.groups])
    return replace(first, rows=rows, targets=targets, groups=groups)


def split_off(source: Source, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of two parts, both in ascending order: the second holds a share of every class,
    chosen by seed. Examples of one group are on the same side.

    If the target of an example is not one class, it is a share of all examples, whatever their
    targets.
    """
    classes = np.zeros(len(source), dtype=np.int64)
    if source.target_kind == "class":
        classes = source.target_array
    if source.groups is not None:
        return stratified_groups(classes, source.groups, share, seed)
    return stratified(classes, share, seed)


def stratified(targets: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of two parts, both in ascending order: the second holds a share of every class,
    rounded.

    Both hold at least one example of a class that has two; a single example stays in the first.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    by_class = np.argsort(targets, kind="stable")
    class_starts = np.flatnonzero(np.diff(targets[by_class])) + 1
    in_second = np.zeros(len(targets), dtype=bool)
    for members in np.split(by_class, class_starts):
        shuffled = random.permutation(members)
        count = min(max(1, round(share * len(members))), len(members) - 1)
        in_second[shuffled[:count]] = True
    return np.flatnonzero(~in_second), np.flatnonzero(in_second)


def stratified_groups(
    targets: np.ndarray, groups: np.ndarray, share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Indices of two parts, both in ascending order, with no group (numbers, (N,)) on both sides. The
    second holds as nearly a share of every class as whole groups allow; a group of several classes
    counts to the one that most of it has. Where each example is a group of its own, these are the
    parts of `stratified`.

    Both hold at least one group of a class that has two; a single one stays in the first.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    _, group_of = np.unique(groups, return_inverse=True)
    sizes = np.bincount(group_of)
    class_of = _commonest(targets, group_of)
    in_second = np.zeros(len(sizes), dtype=bool)
    by_class = np.argsort(class_of[group_of], kind="stable")
    class_starts = np.flatnonzero(np.diff(class_of[group_of][by_class])) + 1
    for members in np.split(by_class, class_starts):
        shuffled = group_of[random.permutation(members)]
        _, first_places = np.unique(shuffled, return_index=True)
        own = shuffled[np.sort(first_places)]
        asked = min(max(1, round(share * len(members))), len(members) - 1)

        # Groups in turn, each if the share is nearer with it
        taken = 0
        for group in own:
            is_last = in_second[own].sum() == len(own) - 1
            if not is_last and taken + sizes[group] / 2 <= asked:
                in_second[group] = True
                taken += sizes[group]
        if not taken and len(own) > 1:  # all are too large
            in_second[own[sizes[own].argmin()]] = True
    return np.flatnonzero(~in_second[group_of]), np.flatnonzero(in_second[group_of])


def _commonest(targets: np.ndarray, group_of: np.ndarray) -> np.ndarray:
    """The class that most of each group has: (groups,)."""
    pairs, counts = np.unique(np.stack([group_of, targets]), axis=1, return_counts=True)
    order = np.lexsort((pairs[1], -counts, pairs[0]))  # the commonest of each group first
    is_first = np.diff(pairs[0][order], prepend=-1) > 0
    return pairs[1][order][is_first]


def subset_size(images: int, share: float) -> int:
    """The number of images for a share of them, or for a number if it is above 1. Raises VitkitError
    if it is neither, or more than there are."""
    if not 0 < share <= max(images, 1):
        raise BadSettings(
            f"subset is {share:g}; it is a share of the {images:,} training images, above 0 and up to "
            "1, or a number of them"
        )
    count = share
    if share <= 1:
        count = share * images
    return max(round(count), 1)


def random_subset(source: Source, count: int, seed: int, by_class: bool = False) -> Source:
    """`count` examples, drawn by `seed`, in the order of the source. A larger count includes the
    examples of a smaller one.

    by_class: every class has its share of them, rounded up or down, and at least one example if
    there are as many examples as classes. It is for sources whose targets are one class each.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    order = random.permutation(len(source))
    if by_class:
        order = order[_by_turns(source.target_array[order])]
    return subset(source, np.sort(order[:count]))


def _by_turns(classes: np.ndarray) -> np.ndarray:
    """An order of examples with these classes, (N,): the k-th of n examples of a class stands at k
    / n of it, k from 0, so that every beginning has each class's share."""
    turns = np.empty(len(classes))
    for number in np.unique(classes):
        members = np.flatnonzero(classes == number)
        turns[members] = np.arange(len(members)) / len(members)
    return np.argsort(turns, kind="stable")


# Which images these are


def fingerprint(source: Source) -> str:
    """A digest of the targets and of the names and sizes of SAMPLE images.

    It differs for another data set, even one of as many images. No image is read for it, and times
    are left out, which differ between copies of a data set. So two changes go unnoticed: an image
    that was replaced by one of exactly the same size, and a change of an image that is not in the
    sample.
    """
    digest = hashlib.sha256(json.dumps(source.labels).encode() + source.targets.tobytes())
    step = len(source) // SAMPLE + 1
    for row in source.rows[::step].tolist():
        digest.update(source.store.identity(row).encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def is_elsewhere(source: Source) -> bool:
    """Whether the images are at an address, from which each would have to be fetched again."""
    return any(map(is_address, getattr(source.store, "files", ())))


def content_digest(source: Source) -> str:
    """A digest of the content of the images, in their order, independent of their names and
    targets. Of more than SAMPLE images only a sample is read, and the names and sizes of all count;
    of images at an address, which would have to be fetched, names and sizes alone. Raises BadImage,
    OSError.
    """
    digest = hashlib.sha256()
    count = len(source)
    step = count // SAMPLE + 1
    elsewhere = is_elsewhere(source)

    # Names and sizes, if not every image is read
    if step > 1 or elsewhere:
        for row in source.rows.tolist():
            digest.update(source.store.identity(row).encode("utf-8", "surrogateescape") + b"\0")
    if elsewhere:
        return digest.hexdigest()

    # The images: the bytes of a file, or an array of pixels
    for i in range(0, count, step):
        image = source.store.read(int(source.rows[i]))
        if isinstance(image, np.ndarray):
            digest.update(str(image.shape).encode())
            image = image.tobytes()
        digest.update(hashlib.sha256(image).digest())
    return digest.hexdigest()


def write_list(path: Path, source: Source, why: dict[int, str]) -> None:
    """Write a file for `without`: the examples to leave out, by index, each with a reason for the
    reader. Raises OSError, and VitkitError for a file that vitkit did not write."""
    lines = [heading_of_list(source)]
    for i in sorted(why):
        lines.append(f"{source.name(i)}\t{why[i]}")
    text = "\n".join(lines) + "\n"
    data = text.encode("utf-8", "surrogateescape")
    write_where_said(path, f"# {mark_of(data)}\n".encode() + data)


def heading_of_list(source: Source) -> str:
    """The line by which `without` recognises the data set of a list."""
    return _HEADING + fingerprint(source)


def without(source: Source, path: Path | str) -> Source:
    """The examples of a training part that a file does not list: a name at the beginning of each line, up
    to a tab, as `Source.name` gives it. A line whose fifth field is another part, as the page of a
    review writes it, is of no example here. Raises VitkitError if the source has no image of a name, or if the list
    was written for other images or for another order of them: it would silently leave out nothing,
    or the wrong ones."""
    try:
        lines = Path(path).read_text("utf-8", "surrogateescape").split("\n")
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error}") from None
    entries = [line for line in lines if line.strip() and not line.startswith("#")]
    names = set()
    for line in entries:
        name, *fields = line.split("\t")
        part = next(iter(fields[3:]), "train")
        if part not in ("val", "test"):
            names.add(name)
    listed = [i for i in range(len(source)) if source.name(i) in names]
    unknown = sorted(names - {source.name(i) for i in listed})
    if unknown:
        raise BadData(
            f"{path} lists {len(unknown):,} images that are not in the training part, "
            f"the first is {unknown[0]!r}; it must be written for this very source and split seed; "
            "`exclude` of data stats writes it"
        )
    written_for = [line for line in lines[:2] if line.startswith(_HEADING)]
    if written_for and written_for[0] != heading_of_list(source):
        raise BadData(
            f"{path} was written for other images of the same names: the data set has changed "
            f"since, or has another split seed; write the list anew (`exclude` of "
            "data stats)"
        )
    return subset(source, np.setdiff1d(np.arange(len(source)), listed))
