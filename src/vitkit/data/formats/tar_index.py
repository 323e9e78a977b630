"""The index of a tar shard: where its images begin, and their labels. It is made once, and kept in the cache directory."""

import hashlib
import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitkit.data.formats.folder import SUFFIXES
from vitkit.data.stores import MAX_FILE, Names
from vitkit.data.tables import Columns, label_column
from vitkit.system import remote
from vitkit.system.files import cache_dir, write_whole

MAX_LABEL = 1 << 20  # bytes of a member that holds a label
TAIL = tarfile.RECORDSIZE + 2 * tarfile.BLOCKSIZE  # bytes of zeros at a tar file's end, at most
FORMAT = 3  # of an index; another number makes old ones be written anew


class Index(NamedTuple):
    """Of one shard, one row an example."""

    offsets: np.ndarray
    sizes: np.ndarray
    names: Names
    labels: list[str]
    """As JSON: null if there is none."""
    left_out: Counter
    """What was left out: kind -> how many."""


@dataclass(frozen=True, eq=False)
class Building:
    """Number of a shard -> None, its index being written to the cache, or a ValueError or OSError. Works in a worker."""

    files: list[str]
    columns: Columns

    def __getitem__(self, i: int) -> Exception | None:
        try:
            _save(self._path(i), _indexed(self.files[i], self.columns))
        except (ValueError, OSError) as error:
            return error
        return None

    def cached(self, i: int) -> Index | None:
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
        return Index(arrays["offsets"], arrays["sizes"], names, labels, left_out)

    def _path(self, i: int) -> Path:
        key = f"{FORMAT} {remote.state_of(self.files[i])} {self.columns}"
        return cache_dir() / "shards" / f"{hashlib.sha256(key.encode()).hexdigest()}.index"


def _save(path: Path, index: Index) -> None:
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


def _indexed(file: str, columns: Columns) -> Index:
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
    return Index(
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
