"""Tar shards in the webdataset convention: what belongs to one example is named alike up to the first dot.

"n0153/0001.jpg" is an image and "n0153/0001.cls" its class (a number, or a name); a "json" member may hold it instead.
A shard is read through once, for an index of where its images begin, which is kept in the cache directory; from then on
every image is read on its own, in any order. Nothing is ever unpacked, so a member's name is only a name; links, devices
and sparse members are no images. Names of numbered classes are the lines of a file "classes.txt" beside the shards.
"""

import hashlib
import json
import tarfile
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitkit.data import chunks
from vitkit.data.engine.workers import in_order
from vitkit.data.formats.folder import SUFFIXES
from vitkit.data.images import BadImage
from vitkit.data.labels import as_labels
from vitkit.data.stores import MAX_FILE, Names
from vitkit.data.tables import Columns, Table, label_column
from vitkit.data.targets import Labels
from vitkit.system import remote
from vitkit.system.files import cache_dir, write_whole
from vitkit.system.machine import cpus
from vitkit.system.progress import bar

MAX_LABEL = 1 << 20  # bytes of a member that holds a label
CLASSES = "classes.txt"
TAIL = tarfile.RECORDSIZE + 2 * tarfile.BLOCKSIZE  # bytes of zeros at a tar file's end, at most
RANGE = 32 << 20  # bytes of a remote shard that are fetched at once
_FORMAT = 3  # of an index; another number makes old ones be written anew


@dataclass(frozen=True, eq=False)
class TarMembers:
    """Images in tar shards, by where they begin. Local ones are read one at a time, remote ones RANGE bytes at once.

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
    cache: OrderedDict = field(default_factory=OrderedDict)
    """Range of a remote shard -> where its first image begins, and the bytes from there."""

    def read(self, row: int) -> bytes:
        """The image's bytes. Raises BadImage if the shard is shorter than it was, OSError if it cannot be read."""
        path = self.files[self.file[row]]
        start = int(self.offsets[row])
        size = int(self.sizes[row])
        if remote.is_address(path):
            begin, data = self._range(int(self._ranges_of(row)))
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
        return f"{self._titles[self.file[row]]} {self.names[row]}"

    def identity(self, row: int) -> str:
        return f"{self.name(row)} {self.sizes[row]}"

    def chunks(self, rows: np.ndarray) -> tuple[np.ndarray, int] | None:
        """Ranges of remote shards, unless all of them stay in memory; None for local shards."""
        if not self._remote or self._window is None:
            return None
        return self._ranges_of(rows), self._window

    def prepare(self, rows: np.ndarray) -> None:
        """Fetch what these rows need of remote shards, if all of it fits in memory."""
        if self._remote and self._window is None:
            for part in chunks.fetching(np.unique(self._ranges_of(rows)), self.files):
                self._range(int(part))

    @property
    def _window(self) -> int | None:
        """How many ranges stay in memory; None if all do."""
        if self._bytes <= chunks.KEEP:
            return None
        return max(chunks.LEAST, chunks.WINDOW // RANGE)

    @cached_property
    def _bytes(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def _remote(self) -> bool:
        return any(map(remote.is_address, self.files))

    @cached_property
    def _titles(self) -> list[str]:
        return chunks.titles(self.files)

    def _ranges_of(self, rows: np.ndarray | int) -> np.ndarray:
        """The number of a range: 2^32 times its shard, and which of the shard's ranges it is."""
        return (self.file[rows].astype(np.int64) << 32) + self.offsets[rows] // RANGE

    def _range(self, number: int) -> tuple[int, bytes]:
        return chunks.cached(self.cache, number, self._load, self._window)

    def _load(self, number: int) -> tuple[int, bytes]:
        """All images that begin in a range."""
        file, which = divmod(number, 1 << 32)
        first, after = np.searchsorted(self.file, [file, file + 1])
        offsets = self.offsets[first:after]
        bounds = np.searchsorted(offsets, [which * RANGE, (which + 1) * RANGE])
        first, last = first + bounds - [0, 1]
        begin = int(self.offsets[first])
        end = int(self.offsets[last] + self.sizes[last])
        return begin, remote.read_range(self.files[file], begin, end)

    def __getstate__(self) -> dict:
        return {**self.__dict__, "cache": OrderedDict()}


class _Index(NamedTuple):
    """Of one shard, one row an example."""

    offsets: np.ndarray
    sizes: np.ndarray
    names: Names
    labels: list[str]
    """As JSON: null if there is none."""
    left_out: Counter
    """What was left out: kind -> how many."""


def read_tars(files: dict[str, str], columns: Columns) -> Table:
    """The table of tar shards, given the part that each belongs to ("" for none).

    `columns` name the extensions of image and label ("png", "cls"), or the label's field in "json". Raises ValueError for
    what is damaged or compressed, and if only some examples have a label.
    """
    # Index the shards that were not indexed before; the index is written to the cache.
    shards = list(files)
    building = _Building(shards, columns)
    missing = [i for i in range(len(shards)) if building.cached(i) is None]
    workers = min(cpus(), len(missing)) if len(missing) > 1 else 0
    for _ in bar("indexing shards")(in_order(building, missing, workers), len(missing)):
        pass

    # All of it as one store.
    indices = [building.cached(i) for i in range(len(shards))]
    counts = [len(index.names) for index in indices]
    if not sum(counts):
        raise ValueError(
            f"{', '.join(shards[:3])} holds no images; expected KEY.jpg and KEY.cls for each example"
        )
    store = TarMembers(
        files=tuple(shards),
        file=np.repeat(np.arange(len(shards), dtype=np.int32), counts),
        offsets=np.concatenate([index.offsets for index in indices]),
        sizes=np.concatenate([index.sizes for index in indices]),
        names=Names.joined([index.names for index in indices]),
    )

    # What is known of the images.
    labels, notes = _labels([label for index in indices for label in index.labels], store, columns)
    parts = np.repeat(np.array(list(files.values()), dtype=object), counts)
    left_out = sum((index.left_out for index in indices), Counter())
    if left_out:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(left_out.items()))
        notes = (f"left out: {kinds}", *notes)
    names = None if labels is None else _class_names(shards[0])
    return Table(store, labels, parts, names, notes)


def _labels(
    texts: list[str], store: TarMembers, columns: Columns
) -> tuple[Labels, tuple[str, ...]]:
    """Labels, from JSON, and a note if there are none. Raises ValueError if only some examples have one."""
    values = {text: json.loads(text) for text in set(texts)}
    if set(texts) == {"null"}:
        if columns.target == "none":
            return None, ()
        note = (
            f"{store.files[0]} is unlabelled: no example has a .cls member or a label in .json; if an extension or a field of "
            f".json holds it, say which with --data.columns.label"
        )
        if columns.target != "auto":
            raise ValueError(note)
        return None, (note,)
    if "null" in values:
        raise ValueError(
            f"{store.name(texts.index('null'))} has no label, and others have one; expected a .cls or .json member, or say "
            f"which extension or field of .json holds it with --data.columns.label"
        )
    return as_labels([values[text] for text in texts], store.files[0], columns.target), ()


def _class_names(shard: str) -> tuple[str, ...] | None:
    """The lines of classes.txt beside a shard, if it is there."""
    if remote.is_address(shard):
        path = f"{remote.plain(shard).rpartition('/')[0]}/{CLASSES}"
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


@dataclass(frozen=True, eq=False)
class _Building:
    """Number of a shard -> None, its index being written to the cache, or a ValueError or OSError. Works in a worker."""

    files: list[str]
    columns: Columns

    def __getitem__(self, i: int) -> Exception | None:
        try:
            _save(self._path(i), _indexed(self.files[i], self.columns))
        except (ValueError, OSError) as error:
            return error
        return None

    def cached(self, i: int) -> _Index | None:
        """The index as it was kept, unless the shard has changed since."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self._path(i), "numpy") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is no dictionary
                left_out = Counter(json.loads(file.metadata()["left_out"]))
        except (FileNotFoundError, SafetensorError, KeyError, ValueError):
            return None
        names = Names(arrays["names"].tobytes(), arrays["names.ends"])
        unique = Names(arrays["labels"].tobytes(), arrays["labels.ends"])
        texts = [unique[i] for i in range(len(unique))]
        labels = [texts[code] for code in arrays["codes"].tolist()]
        return _Index(arrays["offsets"], arrays["sizes"], names, labels, left_out)

    def _path(self, i: int) -> Path:
        key = f"{_FORMAT} {remote.state_of(self.files[i])} {self.columns}"
        return cache_dir() / "shards" / f"{hashlib.sha256(key.encode()).hexdigest()}.index"


def _save(path: Path, index: _Index) -> None:
    """Write an index, whole or not at all."""
    from safetensors.numpy import save

    labels = sorted(set(index.labels))
    number = {label: i for i, label in enumerate(labels)}
    codes = np.array([number[label] for label in index.labels], dtype=np.int32)
    arrays = {"offsets": index.offsets, "sizes": index.sizes, "codes": codes}
    for name, strings in (("names", index.names), ("labels", Names.of(labels))):
        # as tensors: millions are too many for the header
        arrays[name] = np.frombuffer(strings.block, np.uint8)
        arrays[f"{name}.ends"] = strings.ends
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, save(arrays, {"left_out": json.dumps(index.left_out)}))


def _indexed(file: str, columns: Columns) -> _Index:
    """Read a shard from its beginning to its end. Raises ValueError."""
    offsets, sizes, names, labels = [], [], [], []
    left_out = Counter()
    for key, members in _examples(file, left_out):
        image = _image(members, columns, f"{file} {key}")
        if image is None:
            left_out["examples without an image"] += 1
            continue
        offsets.append(members[image].offset)
        sizes.append(members[image].size)
        names.append(f"{key}.{image}")
        labels.append(json.dumps(_label(members, columns, f"{file} {key}")))
    return _Index(
        np.array(offsets, np.int64), np.array(sizes, np.int64), Names.of(names), labels, left_out
    )


class _Member(NamedTuple):
    """A file in a shard."""

    name: str
    offset: int
    """Where its content begins."""
    size: int
    content: bytes
    """Of a small one that is no image."""


def _examples(file: str, left_out: Counter) -> Iterator[tuple[str, dict[str, _Member]]]:
    """(key, {extension: member}) of each example, in the order of the shard."""
    key, members = None, {}
    for folder, stem, extension, member in _members(file, left_out):
        if (folder, stem) != key:
            if members:
                yield "/".join(filter(None, key)), members
            key, members = (folder, stem), {}
        if extension in members:
            raise ValueError(
                f"{file} holds {member.name} twice; give every example a name of its own"
            )
        members[extension] = member
    if members:
        yield "/".join(filter(None, key)), members


def _members(file: str, left_out: Counter) -> Iterator[tuple[str, str, str, _Member]]:
    """(folder, stem, lower-case extension, member) of each plain file. Raises ValueError for a damaged shard."""
    try:
        with (
            remote.open_file(file) as opened,
            tarfile.open(fileobj=opened, mode="r:", errorlevel=1) as shard,
        ):
            for info in shard:
                shard.members = []  # it would remember all of them
                if not info.isreg() or info.issparse() or info.size > MAX_FILE:
                    left_out["members that are no plain file"] += not info.isdir()
                    continue
                folder, _, name = info.name.rpartition("/")
                stem, _, extension = name.partition(".")
                extension = extension.lower()
                if name.startswith(".") or not extension:
                    left_out["hidden or suffixless members"] += 1
                    continue
                content = b""
                if info.size <= MAX_LABEL and f".{extension}" not in SUFFIXES:
                    content = shard.extractfile(info).read()
                yield (
                    folder,
                    stem,
                    extension,
                    _Member(info.name, info.offset_data, info.size, content),
                )
            _check_end(opened, shard.offset)
    except (tarfile.TarError, EOFError) as error:
        advice = ""
        if remote.plain(file).endswith(("gz", "z")):
            advice = "; unpack it with gunzip: a compressed shard has no places to begin at"
        raise ValueError(f"{file} is no readable tar file: {error}{advice}") from None


def _check_end(opened, offset: int) -> None:
    """Raises tarfile.ReadError unless zeros follow, as many as end a tar file.

    tarfile takes damage for the end, and so it does the hole of a download, and the end of the first of two files.
    """
    opened.seek(offset)
    tail = opened.read(TAIL + 1)
    if not tarfile.BLOCKSIZE <= len(tail) <= TAIL or any(tail):
        raise tarfile.ReadError(
            f"after {offset:,} bytes it is damaged, cut off, or two files in one"
        )


def _image(members: dict[str, _Member], columns: Columns, where: str) -> str | None:
    """The extension of the image; None if there is none."""
    if columns.image is not None:
        return columns.image if columns.image in members else None
    images = [extension for extension in members if f".{extension}" in SUFFIXES]
    if len(images) > 1:
        raise ValueError(
            f"{where} has several images ({', '.join(images)}); say which with --data.columns.image EXTENSION"
        )
    return images[0] if images else None


def _label(members: dict[str, _Member], columns: Columns, where: str) -> Any:
    """The label: text, or what json holds; None if there is none. Raises ValueError for anything else."""
    if columns.target == "none":
        return None
    extension = columns.label or "cls"
    if extension in members:
        return members[extension].content.decode("utf-8", "replace").strip()
    value = _field(members, columns, where)
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if not number and not isinstance(value, str | list | None):
        raise ValueError(
            f"{where}.json has the label {json.dumps(value)[:100]}; a label is a number, a name, or a list of them"
        )
    return value


def _field(members: dict[str, _Member], columns: Columns, where: str) -> Any:
    """What the json member holds as the label; None if there is no such member or field."""
    if "json" not in members:
        if columns.label is not None:
            raise ValueError(
                f"{where} has no label, only {', '.join(members)}; expected a .{columns.label} member, or a field "
                f"{columns.label!r} of .json; correct --data.columns.label"
            )
        return None
    try:
        fields = json.loads(members["json"].content)
        name = label_column(columns, list(fields))
        return None if name is None else fields[name]
    except (RecursionError, TypeError, AttributeError):
        raise ValueError(f"{where}.json is no object; expected one with the label in it") from None
    except ValueError as error:
        raise ValueError(f"{where}.json: {error}") from None
