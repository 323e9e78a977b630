"""Source: a data set with len() and [i], wherever its images are stored; subsets and splits of it; and
digests that identify it.

Legend: N examples, B batch, K classes.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitkit.data.images.pictures import Picture, open_image
from vitkit.data.masks.targets import Masks, joined
from vitkit.data.sources.stores import Store
from vitkit.data.sources.targets import NO_TARGET, Lists, TargetKind, concatenate
from vitkit.system.errors import BadData, BadSettings
from vitkit.system.storage.files import mark_of, write_where_said
from vitkit.system.storage.remote import is_address

TEST_SHARE = 0.2  # of every class, if a data set comes without a test part
SAMPLE = 20_000  # images, at most, whose names and sizes identify a data set
_HEADING = "# fingerprint "  # beginning of a list of images to leave out that vitkit wrote


@dataclass(frozen=True, eq=False)
class Source:
    """Examples in a fixed order. A Source can be pickled for worker processes."""

    store: Store
    rows: np.ndarray
    """Row of each example in the store: int64 (N,)."""
    targets: np.ndarray | Lists | Masks
    """Target of each example, known without decoding images: a class, int64 (N,); several classes,
    Lists of N; a number, float32 (N,); or -1, int64 (N,), for no target. Masks of N are read with their
    images (`mask`)."""
    labels: tuple[str, ...]
    """Names of the classes; empty unless targets are classes."""
    target_kind: TargetKind = "class"
    """Kind of the targets."""
    groups: np.ndarray | None = None
    """Group of each example, int64 (N,): examples with equal numbers belong together, such as shots of
    one burst. Numbers have the same meaning in all parts of a data set. None if there are no groups."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[bytes | np.ndarray, int | float | list[int] | None]:
        """The image, as the bytes of a file or as an array, and its target. Raises BadImage if it cannot be
        read."""
        return self.store.read(int(self.rows[i])), self._target(i)

    def picture(self, i: int) -> Picture:
        """The image of example i, opened. Raises BadImage, and OSError if reading may succeed later."""
        return open_image(self.store.read(int(self.rows[i])), self.name(i))

    def name(self, i: int) -> str:
        """The name by which a user knows example i: a path, or a file and a row."""
        return self.store.name(int(self.rows[i]))

    def mask(self, i: int, size: tuple[int, int]) -> np.ndarray:
        """The mask of example i, whose image has this (height, width), of a source of masks: the class of every
        pixel, uint8 (h, w), IGNORED where pixels do not count. Raises BadImage and BadData (`Masks.read`)."""
        assert isinstance(self.targets, Masks), "the source has no masks"
        return self.targets.read(i, size)

    def answer(self, i: int) -> str | None:
        """The target as text: "cat", "cat, dog" or "3.5"; None if there is none."""
        if isinstance(self.targets, Lists):
            return ", ".join(self.labels[k] for k in self.targets.row(i).tolist())
        if self.target_kind == "class":
            return self.labels[self.target_array[i]]
        if self.target_kind == "number":
            return f"{self.target_array[i].item():g}"
        return None

    def targets_of(self, indices: np.ndarray) -> np.ndarray:
        """The targets of a batch: int64 (B,) for a class; float32 (B, K) of ones, zeros and NaN (unknown)
        for several classes; float32 (B,) for a number; int64 (B,) of -1 if there are none, or if they are masks,
        which are read and moved with their images."""
        if isinstance(self.targets, Masks):
            return np.full(len(indices), NO_TARGET, np.int64)
        targets = self.targets[indices]
        if isinstance(targets, Lists):
            return targets.multi_hot(len(self.labels))
        return targets

    @property
    def target_array(self) -> np.ndarray:
        """The targets (N,) of examples that have one target each, or none."""
        assert isinstance(self.targets, np.ndarray), "an example has several classes, or a mask"
        return self.targets

    def chunks(self) -> tuple[np.ndarray, int] | None:
        """The chunk of each example, counted from 0, int64 (N,), and the number of chunks that fit in
        memory. None if examples are read individually."""
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
        """A copy of the source for reading only a few examples: without fetching the whole chunk of an
        example, if the store supports that."""
        if not is_elsewhere(self) or self.store.chunks(self.rows) is None:
            return self
        return self.keeping(0)

    def prepare(self) -> None:
        """Load data that worker processes should share into memory; call this before they are started."""
        self.store.prepare(self.rows)
        if isinstance(self.targets, Masks):
            self.targets.prepare()

    def _target(self, i: int) -> int | float | list[int] | None:
        if self.target_kind == "none" or isinstance(self.targets, Masks):
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
    targets: np.ndarray | Lists | Masks
    if isinstance(first.targets, Masks) and isinstance(second.targets, Masks):
        targets = joined([first.targets, second.targets])
    else:
        assert not isinstance(first.targets, Masks) and not isinstance(second.targets, Masks)
        targets = concatenate([first.targets, second.targets])
    groups = None
    if first.groups is not None and second.groups is not None:
        groups = np.concatenate([first.groups, second.groups])
    return replace(first, rows=rows, targets=targets, groups=groups)


def split_off(source: Source, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of two parts, each in ascending order: the second has a share of every class, chosen by
    seed. Examples of one group are in the same part.

    If targets are not one class each, the second part has a share of all examples.
    """
    classes = np.zeros(len(source), dtype=np.int64)
    if source.target_kind == "class":
        classes = source.target_array
    if source.groups is not None:
        return stratified_groups(classes, source.groups, share, seed)
    return stratified(classes, share, seed)


def _generator(seed: int) -> "np.random.Generator":  # numpy.random is imported only when it draws
    """What draws images by a seed. Raises BadSettings for a negative one."""
    if seed < 0:
        raise BadSettings(f"the seed that draws images is {seed}; it is a whole number from 0 on")
    return np.random.Generator(np.random.PCG64(seed))


def stratified(targets: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of two parts, each in ascending order: the second has a share of every class, rounded.

    If a class has at least two examples, both parts have one of it; a single example is in the first
    part.
    """
    random = _generator(seed)
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
    """Indices of two parts, each in ascending order, with each group in one of them.

    The second part has a share of every class, as nearly as whole groups allow. A group of several
    classes counts as the most frequent of them. If each example is a group of its own, the result is that
    of `stratified`. If a class has at least two groups, both parts have one of it; a single group is in
    the first part.

    groups: number of each example's group, (N,).
    """
    random = _generator(seed)
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
        wanted_size = min(max(1, round(share * len(members))), len(members) - 1)

        # Add groups in turn, each if it brings the part closer to its share
        taken = 0
        for group in own:
            is_last = in_second[own].sum() == len(own) - 1
            if not is_last and taken + sizes[group] / 2 <= wanted_size:
                in_second[group] = True
                taken += sizes[group]
        if not taken and len(own) > 1:  # all groups are too large
            in_second[own[sizes[own].argmin()]] = True
    return np.flatnonzero(~in_second[group_of]), np.flatnonzero(in_second[group_of])


def _commonest(targets: np.ndarray, group_of: np.ndarray) -> np.ndarray:
    """The most frequent class of each group: (groups,)."""
    pairs, counts = np.unique(np.stack([group_of, targets]), axis=1, return_counts=True)
    order = np.lexsort((pairs[1], -counts, pairs[0]))  # the most frequent of each group first
    is_first = np.diff(pairs[0][order], prepend=-1) > 0
    return pairs[1][order][is_first]


def subset_size(images: int, share: float) -> int:
    """The number of images for a share of them, or for a number if it is above 1. Raises VitkitError if it
    is neither, or larger than the number of images."""
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
    """Draw `count` examples by `seed`, in the order of the source. A larger count includes the examples of
    a smaller one.

    by_class: every class gets its share of them, rounded up or down, and at least one example if there
        are as many examples as classes. Only for sources whose targets are one class each.
    """
    random = _generator(seed)
    order = random.permutation(len(source))
    if by_class:
        order = order[_by_turns(source.target_array[order])]
    return subset(source, np.sort(order[:count]))


def _by_turns(classes: np.ndarray) -> np.ndarray:
    """An order of examples with these classes, (N,), in which every prefix has each class's share: the k-th
    of n examples of a class is sorted by k / n, with k from 0."""
    turns = np.empty(len(classes))
    for number in np.unique(classes):
        members = np.flatnonzero(classes == number)
        turns[members] = np.arange(len(members)) / len(members)
    return np.argsort(turns, kind="stable")


# Identity of a data set


def fingerprint(source: Source) -> str:
    """A digest of the targets and of the names and sizes of SAMPLE images.

    Another data set has another digest, also one with as many images. No image is read, and modification
    times are ignored, because they differ between copies of a data set. So two changes go unnoticed: an
    image that is replaced by one of exactly the same size, and a change of an image outside of the sample.
    Images with masks have the digest that they have without: `masks_digest` is that of their masks.
    """
    labels = source.labels
    targets = source.targets
    if isinstance(targets, Masks):
        labels = ()
        targets = np.full(len(source), NO_TARGET, np.int64)
    digest = hashlib.sha256(json.dumps(labels).encode() + targets.tobytes())
    step = len(source) // SAMPLE + 1
    for row in source.rows[::step].tolist():
        digest.update(source.store.identity(row).encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def masks_digest(source: Source) -> str:
    """A digest of the names and sizes of the masks of a source, and of their legend; empty without masks."""
    if not isinstance(source.targets, Masks):
        return ""
    return source.targets.tobytes().hex()


def is_elsewhere(source: Source) -> bool:
    """Whether the images are at a remote address, from which each would be fetched again."""
    return any(map(is_address, getattr(source.store, "files", ())))


def content_digest(source: Source) -> str:
    """A digest of the contents of the images, in their order, independent of names and targets.

    Of more than SAMPLE images only a sample is read, and the names and sizes of all are included. Of
    remote images only names and sizes are included, because reading would fetch them. Raises BadImage
    and OSError.
    """
    digest = hashlib.sha256()
    count = len(source)
    step = count // SAMPLE + 1
    elsewhere = is_elsewhere(source)

    # Names and sizes, unless every image is read
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
    """Write a file for `without`: the names of examples to leave out, each with a reason. Raises OSError,
    and VitkitError for an existing file that vitkit did not write.

    why: index -> reason, for people who read the file.
    """
    lines = [heading_of_list(source)]
    for i in sorted(why):
        lines.append(f"{source.name(i)}\t{why[i]}")
    text = "\n".join(lines) + "\n"
    data = text.encode("utf-8", "surrogateescape")
    write_where_said(path, f"# {mark_of(data)}\n".encode() + data)


def heading_of_list(source: Source) -> str:
    """The line that identifies the data set of a list for `without`."""
    return _HEADING + fingerprint(source)


def without(source: Source, path: Path | str) -> Source:
    """The examples of a training part that a file does not list.

    Each line of the file begins with a name (`Source.name`), up to a tab. A line whose fifth field is
    another part, as the review page writes it, is ignored. Raises VitkitError if the source has no image
    of a name, or if the list was written for other images or another order: such a list would leave out
    nothing, or the wrong images.
    """
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
            f"since, or has another split seed; write the list again (`exclude` of "
            "data stats)"
        )
    if len(listed) == len(source):
        raise BadData(f"{path} lists all {len(source):,} training images, so none is left")
    return subset(source, np.setdiff1d(np.arange(len(source)), listed))
