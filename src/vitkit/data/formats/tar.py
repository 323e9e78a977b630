"""Tar shards in the webdataset convention: what belongs to one example is named alike up to the
first dot.

"n0153/0001.jpg" is an image and "n0153/0001.cls" its class (a number, or a name); a "json" member
may hold it instead. A shard is read through once, for an index of where its images begin, which is
kept in the cache directory; from then on every image is read on its own, in any order. Nothing is
ever unpacked, so a member's name is only a name; links, devices and sparse members are no images.
Names of numbered classes are the lines of a file "classes.txt" beside the shards.
"""

import hashlib
import json
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, groupby
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitkit.data.formats.folder import IMAGE_SUFFIXES
from vitkit.data.images.pixels import BadImage
from vitkit.data.loading.workers import in_order
from vitkit.data.sources.stores import MAX_FILE, ChunkCache, Names, titles
from vitkit.data.sources.tables import Columns, Table, label_column, note_left_out
from vitkit.data.sources.targets import as_row_labels
from vitkit.system.console.progress import bar
from vitkit.system.machine import cpus
from vitkit.system.storage import remote
from vitkit.system.storage.files import cache_dir, parse_json, write_whole

CLASSES = "classes.txt"
RANGE = 32 << 20  # bytes of a remote shard that are fetched at once
MAX_LABEL = 1 << 20  # bytes of a member that holds a label
TAIL = tarfile.RECORDSIZE + 2 * tarfile.BLOCKSIZE  # bytes of zeros at a tar file's end, at most
FORMAT = 3  # of an index; with another number, old ones are written anew
NO_LABEL = "null"  # the label of an example without one, as JSON


@dataclass(frozen=True, eq=False)
class TarMembers:
    """Images in tar shards, by where they begin.

    Local ones are read one at a time, remote ones RANGE bytes at once.

    Legend: N images.
    """

    files: tuple[str, ...]
    file: np.ndarray
    """(N,): which shard."""
    offsets: np.ndarray
    """(N,): where the image begins in it; ascending in a shard."""
    sizes: np.ndarray
    """(N,): bytes."""
    names: Names
    titles: Sequence[str]
    """What to call each shard."""
    cache: ChunkCache
    """Of each range of a remote shard: where its first image begins, and the bytes from there."""

    def read(self, row: int) -> bytes:
        """The image's bytes. Raises BadImage if the shard is shorter than it was, OSError if it
        cannot be read."""
        path = self.files[self.file[row]]
        start = int(self.offsets[row])
        size = int(self.sizes[row])
        if remote.is_address(path):
            begin, data = self.cache.get(int(self._ranges_of(row)), self._load)
            data = data[start - begin : start - begin + size]
        else:
            with open(path, "rb", buffering=0) as shard:  # noqa: PTH123 as in Files
                shard.seek(start)
                data = shard.read(size)
        if len(data) != size:
            raise BadImage(
                f"{self.name(row)} is cut off: the shard has changed since it was indexed"
            )
        return data

    def name(self, row: int) -> str:
        return f"{self.titles[self.file[row]]} {self.names[row]}"

    def identity(self, row: int) -> str:
        return f"{self.name(row)} {self.sizes[row]}"

    def chunks(self, rows: np.ndarray) -> tuple[np.ndarray, int] | None:
        """Ranges of remote shards, unless all of them stay in memory; None for local shards."""
        if not self._remote:
            return None
        return self.cache.windows(self._ranges_of(rows))

    def keeping(self, chunks: int) -> "TarMembers":
        return replace(self, cache=self.cache.keeping(chunks))

    def prepare(self, rows: np.ndarray) -> None:
        """Fetch what these rows need of remote shards, if all of it fits in memory."""
        if self._remote:
            self.cache.fill(self._ranges_of(rows), self._load)

    @cached_property
    def _remote(self) -> bool:
        return any(map(remote.is_address, self.files))

    def _ranges_of(self, rows: np.ndarray | int) -> np.ndarray:
        """The number of the range that an image begins in: the shard's number in the upper 32 bits,
        and in the lower ones which of its ranges it is."""
        return (self.file[rows].astype(np.int64) << 32) + self.offsets[rows] // RANGE

    def _load(self, number: int) -> tuple[int, bytes]:
        """All images that begin in a range."""
        file, range_in_file = divmod(number, 1 << 32)
        # The images of the shard, and of these the first and the last that begin in the range.
        shard_first, shard_end = np.searchsorted(self.file, [file, file + 1])
        offsets = self.offsets[shard_first:shard_end]
        first = shard_first + np.searchsorted(offsets, range_in_file * RANGE)
        last = shard_first + np.searchsorted(offsets, (range_in_file + 1) * RANGE) - 1
        begin = int(self.offsets[first])
        end = int(self.offsets[last] + self.sizes[last])
        return begin, remote.read_range(self.files[file], begin, end)


def read_tars(files: dict[str, str], columns: Columns) -> Table:
    """The table of tar shards, given the part that each belongs to ("" for none).

    `columns` name the extensions of image and label ("png", "cls"), or the label's field in "json".
    Raises ValueError if a shard is damaged or compressed, and if only some examples have a label.
    """
    # Index the shards that were not indexed before; the index is written to the cache.
    shards = list(files)
    missing = [shard for shard in shards if cached_index(shard, columns) is None]
    workers = min(cpus(), len(missing))
    if len(missing) == 1:
        workers = 0
    indexed = in_order(partial(index_shard, columns), missing, workers)
    for _ in bar("indexing shards")(indexed, len(missing)):
        pass
    indices = [cached_index(shard, columns) for shard in shards]

    # Where their images lie.
    counts = [len(index.names) for index in indices]
    if not sum(counts):
        raise ValueError(
            f"{', '.join(shards[:3])} holds no images; "
            f"expected KEY.jpg and KEY.cls for each example"
        )
    store = TarMembers(
        files=tuple(shards),
        file=np.repeat(np.arange(len(shards), dtype=np.int32), counts),
        offsets=np.concatenate([index.offsets for index in indices]),
        sizes=np.concatenate([index.sizes for index in indices]),
        names=Names.concatenate([index.names for index in indices]),
        titles=titles(shards),
        cache=ChunkCache(shards, sum(int(index.sizes.sum()) for index in indices), (RANGE, 1)),
    )

    # Their parts, and what was left out.
    parts = np.repeat(np.array(list(files.values()), dtype=object), counts)
    notes = note_left_out(sum((index.left_out for index in indices), Counter()))

    # Their labels: all examples have one, or none has.
    texts = list(chain.from_iterable(index.labels for index in indices))
    values = {text: parse_json(text) for text in set(texts)}
    if set(values) == {NO_LABEL}:
        note = (
            f"{shards[0]} is unlabelled: no example has a .cls member or a label in .json; if an "
            "extension or a field of .json holds it, say which with --data.columns.label"
        )
        if columns.target not in ("auto", "none"):
            raise ValueError(note)
        if columns.target == "auto":
            notes += (note,)
        return Table(store, None, parts, None, notes)
    if NO_LABEL in values:
        raise ValueError(
            f"{store.name(texts.index(NO_LABEL))} has no label, and others have one; expected a "
            ".cls or .json member, or say which extension or field of .json holds it with "
            "--data.columns.label"
        )
    labels = [values[text] for text in texts]
    row_labels = as_row_labels(labels, shards[0], columns.target)
    return Table(store, row_labels, parts, _class_names(shards[0]), notes)


def _class_names(shard: str) -> tuple[str, ...] | None:
    """The lines of classes.txt beside a shard, if it is there."""
    if remote.is_address(shard):
        path = f"{remote.without_query(shard).rpartition('/')[0]}/{CLASSES}"
    else:
        path = str(Path(shard).parent / CLASSES)
    if not remote.exists(path):
        return None
    with remote.open_file(path) as file:
        try:
            text = file.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8"
            ) from None
    return tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n"))


# The index of a shard: where its images begin, and their labels. It is made once, and kept in the
# cache directory.


class Index(NamedTuple):
    """The N examples of one shard."""

    offsets: np.ndarray
    """int64 (N,): where its image begins in the shard."""
    sizes: np.ndarray
    """int64 (N,): bytes of its image."""
    names: Names
    """The name of its image."""
    labels: list[str]
    """Its label as JSON; NO_LABEL if it has none."""
    left_out: Counter
    """What was left out: kind -> how many."""


def index_shard(columns: Columns, file: str) -> None:
    """Read a shard from its beginning to its end, and write its index to the cache. Raises
    ValueError for a shard that is damaged, OSError if it cannot be read."""
    save_index(file, columns, read_index(file, columns))


def cached_index(file: str, columns: Columns) -> Index | None:
    """The index of a shard from the cache; None if it is not there, or the shard has changed."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(_index_path(file, columns), "numpy") as index:
            names = index.keys()
            arrays = {name: index.get_tensor(name) for name in names}
            left_out = Counter(parse_json(index.metadata()["left_out"]))
    except (FileNotFoundError, SafetensorError, KeyError, ValueError):
        return None
    image_names = Names(arrays["names"].tobytes(), arrays["names.ends"])
    unique = Names(arrays["labels"].tobytes(), arrays["labels.ends"])
    texts = [unique[i] for i in range(len(unique))]
    labels = [texts[code] for code in arrays["codes"].tolist()]
    return Index(arrays["offsets"], arrays["sizes"], image_names, labels, left_out)


def save_index(file: str, columns: Columns, index: Index) -> None:
    """Write an index to the cache, whole or not at all."""
    from safetensors.numpy import save

    # Each label is written once, and its number for every example.
    unique_labels = sorted(set(index.labels))
    number_of = {label: i for i, label in enumerate(unique_labels)}
    codes = np.array([number_of[label] for label in index.labels], dtype=np.int32)
    arrays = {"offsets": index.offsets, "sizes": index.sizes, "codes": codes}
    # Strings are tensors of bytes: millions are too many for the header.
    for name, strings in (("names", index.names), ("labels", Names.of(unique_labels))):
        arrays[name] = np.frombuffer(strings.block, np.uint8)
        arrays[f"{name}.ends"] = strings.ends
    path = _index_path(file, columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, save(arrays, {"left_out": json.dumps(index.left_out)}))


def _index_path(file: str, columns: Columns) -> Path:
    key = f"{FORMAT} {remote.state_of(file)} {columns}"
    return cache_dir() / "shards" / f"{hashlib.sha256(key.encode()).hexdigest()}.index"


def read_index(file: str, columns: Columns) -> Index:
    """Read a shard from its beginning to its end. Raises ValueError."""
    offsets = []
    sizes = []
    names = []
    labels = []
    left_out = Counter()
    by_key = groupby(_members(file, left_out), key=lambda member: member.key)
    for key, group in by_key:
        members = {}
        for member in group:
            if member.extension in members:
                raise ValueError(
                    f"{file} holds {member.name} twice; give every example a name of its own"
                )
            members[member.extension] = member
        extension = _image_extension(members, columns, f"{file} {key}")
        if extension is None:
            left_out["examples without an image"] += 1
            continue
        offsets.append(members[extension].offset)
        sizes.append(members[extension].size)
        names.append(f"{key}.{extension}")
        labels.append(json.dumps(_label(members, columns, f"{file} {key}")))
    return Index(
        offsets=np.array(offsets, np.int64),
        sizes=np.array(sizes, np.int64),
        names=Names.of(names),
        labels=labels,
        left_out=left_out,
    )


class _Member(NamedTuple):
    """A file in a shard."""

    key: str
    """Its path up to the first dot of its name: what members of one example have in common."""
    extension: str
    """What follows that dot, in small letters."""
    name: str
    """Its whole path."""
    offset: int
    """Where its content begins."""
    size: int
    content: bytes
    """What a small member holds that is not an image; empty for all others."""


def _members(file: str, left_out: Counter) -> Iterator[_Member]:
    """Each plain file, in the order of the shard. Raises ValueError for a damaged shard."""
    try:
        with (
            remote.open_file(file) as opened,
            tarfile.open(fileobj=opened, mode="r:", errorlevel=1) as shard,
        ):
            for info in shard:
                shard.members = []  # else tarfile remembers all of them
                if not info.isreg() or info.issparse() or info.size > MAX_FILE:
                    left_out["members other than plain files"] += not info.isdir()
                    continue
                folder, _, name = info.name.rpartition("/")
                stem, _, extension = name.partition(".")
                extension = extension.lower()
                if name.startswith(".") or not extension:
                    left_out["hidden or suffixless members"] += 1
                    continue
                content = b""
                if info.size <= MAX_LABEL and f".{extension}" not in IMAGE_SUFFIXES:
                    content = shard.extractfile(info).read()
                key = f"{folder}/{stem}" if folder else stem
                yield _Member(key, extension, info.name, info.offset_data, info.size, content)
            _check_end(opened, shard.offset)
    except (tarfile.TarError, EOFError, MemoryError, OverflowError) as error:
        reason = str(error) or "it is damaged"  # as of a header of exabytes
        message = f"{file} is not a readable tar file: {reason}"
        if remote.without_query(file).endswith(("gz", "z")):
            message += "; unpack it with gunzip: a compressed shard has no places to begin at"
        raise ValueError(message) from None


def _check_end(opened, offset: int) -> None:
    """Raises tarfile.ReadError unless zeros follow, as many as end a tar file.

    tarfile takes damage for the end, and so it does a hole that a download left, and the end of the
    first of two files.
    """
    opened.seek(offset)
    tail = opened.read(TAIL + 1)
    if not tarfile.BLOCKSIZE <= len(tail) <= TAIL or any(tail):
        raise tarfile.ReadError(
            f"after {offset:,} bytes it is damaged, cut off, or two files in one"
        )


def _image_extension(members: dict[str, _Member], columns: Columns, where: str) -> str | None:
    """The extension of an example's image; None if there is none. Raises ValueError if there are
    several."""
    if columns.image is not None:
        extensions = [extension for extension in members if extension == columns.image]
    else:
        extensions = [extension for extension in members if f".{extension}" in IMAGE_SUFFIXES]
    if len(extensions) > 1:
        raise ValueError(
            f"{where} has several images ({', '.join(extensions)}); "
            f"say which with --data.columns.image EXTENSION"
        )
    return extensions[0] if extensions else None


def _label(members: dict[str, _Member], columns: Columns, where: str) -> Any:
    """The label: text, or what json holds; None if there is none. Raises ValueError for anything
    else."""
    if columns.target == "none":
        return None
    extension = columns.label or "cls"
    if extension in members:
        return members[extension].content.decode("utf-8", "replace").strip()
    value = _json_field(members, columns, where)
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if not number and not isinstance(value, str | list | None):
        raise ValueError(
            f"{where}.json has the label {json.dumps(value)[:100]}; "
            f"a label is a number, a name, or a list of them"
        )
    return value


def _json_field(members: dict[str, _Member], columns: Columns, where: str) -> Any:
    """What the json member holds as the label; None if there is no such member or field."""
    if "json" not in members:
        if columns.label is None:
            return None
        raise ValueError(
            f"{where} has no label, only {', '.join(members)}; expected a .{columns.label} member, "
            f"or a field {columns.label!r} of .json; correct --data.columns.label"
        )
    try:
        fields = parse_json(members["json"].content)
        name = label_column(columns, list(fields))
        return None if name is None else fields[name]
    except (TypeError, AttributeError):
        raise ValueError(
            f"{where}.json is not an object; expected one with the label in it"
        ) from None
    except ValueError as error:
        raise ValueError(f"{where}.json: {error}") from None
