"""Tar shards in the webdataset convention: what belongs to one example is named alike up to the first dot.

"n0153/0001.jpg" is an image and "n0153/0001.cls" its class (a number, or a name); a "json" member may hold it instead.
A shard is read through once, for an index of where its images begin, which is kept in the cache directory; from then on
every image is read on its own, in any order. Nothing is ever unpacked, so a member's name is only a name; links, devices
and sparse members are no images. Names of numbered classes are the lines of a file "classes.txt" beside the shards.
"""

import hashlib
import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.data.engine.workers import in_order
from vitkit.data.formats.folder import SUFFIXES
from vitkit.data.pieces import TarMembers
from vitkit.data.stores import MAX_FILE, Names
from vitkit.data.tables import LABEL, Columns, Table, as_labels, pick
from vitkit.system import remote
from vitkit.system.files import cache_dir, write_whole
from vitkit.system.machine import cpus
from vitkit.system.progress import bar

MAX_LABEL = 1 << 20  # bytes of a member that holds a label
CLASSES = "classes.txt"
TAIL = (
    tarfile.RECORDSIZE + 2 * tarfile.BLOCKSIZE
)  # bytes of zeros that a tar file ends with, at most
_FORMAT = 2  # of an index; another number makes old ones be written anew


class _Index(NamedTuple):
    """Of one shard, one row an example."""

    offsets: np.ndarray
    sizes: np.ndarray
    names: Names
    labels: list[str]
    left: Counter  # what was left out: kind -> how many


def read_tars(files: dict[str, str], columns: Columns) -> Table:
    """The table of tar shards, given the part that each belongs to ("" for none).

    `columns` name the extensions of image and label ("png", "cls"), or the label's field in "json". Raises ValueError for
    what is damaged, compressed, or has no label.
    """
    names = list(files)
    building = _Building(names, columns)
    missing = [i for i in range(len(names)) if building.cached(i) is None]
    workers = min(cpus(), len(missing)) if len(missing) > 1 else 0
    for _ in bar("indexing shards")(in_order(building, missing, workers), len(missing)):
        pass  # written to the cache, where the next line finds it
    found = [building.cached(i) for i in range(len(names))]
    counts = [len(one.names) for one in found]
    if not sum(counts):
        raise ValueError(
            f"{', '.join(names[:3])} holds no images; expected KEY.jpg and KEY.cls for each example"
        )
    store = TarMembers(
        files=tuple(names),
        file=np.repeat(np.arange(len(names), dtype=np.int32), counts),
        offsets=np.concatenate([one.offsets for one in found]),
        sizes=np.concatenate([one.sizes for one in found]),
        names=Names.joined([one.names for one in found]),
    )
    labels = as_labels([label for one in found for label in one.labels], names[0])
    parts = np.repeat(np.array(list(files.values()), dtype=object), counts)
    left = sum((one.left for one in found), Counter())
    notes = (
        (f"left out: {', '.join(f'{n:,} {kind}' for kind, n in sorted(left.items()))}",)
        if left
        else ()
    )
    return Table(store, labels, parts, _classes(names[0]), notes)


def _classes(shard: str) -> tuple[str, ...] | None:
    """The lines of classes.txt beside a shard, if it is there."""
    path = (
        f"{remote.plain(shard).rpartition('/')[0]}/{CLASSES}"
        if remote.is_address(shard)
        else str(Path(shard).parent / CLASSES)
    )
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
    """Number of a shard -> None, its index being written to the cache; a ValueError where that cannot be. Works anywhere."""

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
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is no dictionary
                left = Counter(json.loads(file.metadata()["left"]))
        except (FileNotFoundError, SafetensorError, KeyError, ValueError):
            return None
        names, labels = (
            Names(found[name].tobytes(), found[f"{name}.ends"]) for name in ("names", "labels")
        )
        labels = [labels[i] for i in range(len(labels))]
        return _Index(
            found["offsets"],
            found["sizes"],
            names,
            [labels[code] for code in found["codes"].tolist()],
            left,
        )

    def _path(self, i: int) -> Path:
        asked = f"{_FORMAT} {remote.state_of(self.files[i])} {self.columns}"
        return cache_dir() / "shards" / f"{hashlib.sha256(asked.encode()).hexdigest()}.index"


def _save(path: Path, index: _Index) -> None:
    """Whole or not at all."""
    from safetensors.numpy import save

    labels = sorted(set(index.labels))
    number = {label: i for i, label in enumerate(labels)}
    codes = np.array([number[label] for label in index.labels], dtype=np.int32)
    arrays = {"offsets": index.offsets, "sizes": index.sizes, "codes": codes}
    for name, strings in (
        ("names", index.names),
        ("labels", Names.of(labels)),
    ):  # millions: too many for the header
        arrays |= {name: np.frombuffer(strings.block, np.uint8), f"{name}.ends": strings.ends}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, save(arrays, {"left": json.dumps(index.left)}))


def _indexed(file: str, columns: Columns) -> _Index:
    """Read a shard from its beginning to its end. Raises ValueError."""
    offsets, sizes, names, labels, left = [], [], [], [], Counter()
    for key, members in _examples(file, left):
        image = _image(members, columns, f"{file} {key}")
        if image is None:
            left["examples without an image"] += 1
            continue
        offsets.append(members[image][0])
        sizes.append(members[image][1])
        names.append(f"{key}.{image}")
        labels.append(_label(members, columns, f"{file} {key}"))
    return _Index(
        np.array(offsets, np.int64), np.array(sizes, np.int64), Names.of(names), labels, left
    )


Members = dict[
    str, tuple[int, int, bytes]
]  # extension -> where it begins, its size, and its content where that is small


def _examples(file: str, left: Counter) -> Iterator[tuple[str, Members]]:
    """(key, members) of each example, in the order of the shard."""
    key, members = None, {}
    try:
        with (
            remote.open_file(file) as opened,
            tarfile.open(fileobj=opened, mode="r:", errorlevel=1) as shard,
        ):
            for member in shard:
                shard.members = []  # it would remember all of them
                if not member.isreg() or member.issparse() or member.size > MAX_FILE:
                    left["members that are no plain file"] += not member.isdir()
                    continue
                folder, _, name = member.name.rpartition("/")
                stem, _, extension = name.partition(".")
                if name.startswith(".") or not extension:
                    left["hidden or suffixless members"] += 1
                    continue
                if (folder, stem) != key:
                    if members:
                        yield "/".join(filter(None, key)), members
                    key, members = (folder, stem), {}
                if extension.lower() in members:
                    raise ValueError(
                        f"{file} holds {member.name} twice; give every example a name of its own"
                    )
                content = b""
                if member.size <= MAX_LABEL and f".{extension.lower()}" not in SUFFIXES:
                    content = shard.extractfile(member).read()
                members[extension.lower()] = (member.offset_data, member.size, content)
            opened.seek(shard.offset)
            tail = opened.read(TAIL + 1)
            # tarfile takes damage for the end, and so it does the hole of a download, and the end of the first of two files
            if not tarfile.BLOCKSIZE <= len(tail) <= TAIL or any(tail):
                raise tarfile.ReadError(
                    f"after {shard.offset:,} bytes it is damaged, cut off, or two files in one"
                )
    except (tarfile.TarError, EOFError) as error:
        packed = (
            "; unpack it with gunzip: a compressed shard has no places to begin at"
            * remote.plain(file).endswith(("gz", "z"))
        )
        raise ValueError(f"{file} is no readable tar file: {error}{packed}") from None
    if members:
        yield "/".join(filter(None, key)), members


def _image(members: Members, columns: Columns, where: str) -> str | None:
    """The extension of the image."""
    if columns.image is not None:
        return columns.image if columns.image in members else None
    found = [extension for extension in members if f".{extension}" in SUFFIXES]
    if len(found) > 1:
        raise ValueError(
            f"{where} has several images ({', '.join(found)}); say which with --data.columns.image EXTENSION"
        )
    return found[0] if found else None


def _label(members: Members, columns: Columns, where: str) -> str:
    """The label as text. Raises ValueError where there is none."""
    asked = columns.label or ("cls" if "cls" in members else None)
    if asked in members:
        return members[asked][2].decode("utf-8", "replace").strip()
    try:
        fields = json.loads(members["json"][2])
        value = fields[pick(columns.label, LABEL, list(fields), "columns.label")]
    except (KeyError, RecursionError, TypeError, AttributeError):
        raise ValueError(
            f"{where} has no label, only {', '.join(members)}; expected a .cls or .json member, or say which extension or "
            f"field of .json holds it with --data.columns.label"
        ) from None
    except ValueError as error:
        raise ValueError(f"{where}.json: {error}") from None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(
            f"{where}.json has the label {json.dumps(value)[:100]}; a label is a whole number or a name"
        )
    return str(value)
