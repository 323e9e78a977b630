"""Indices of tar shards, kept: in the cache, and beside the shards.

An index is made by reading a shard from its beginning to its end (tar_shard.py), and kept in the cache.
Several ranks make each index once, and hand it round. `vitkit data pack` writes it beside the shard as
well (NAME.tar.index), so that shards elsewhere need not be read for it.

Such an index counts only if it is one of the shard beside it, by its size and a digest of its ends, on
this machine also by its time, and if every image lies in the shard. Else the shard is read.
"""

import hashlib
import json
import tarfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from vitkit.data.formats.tar_shard import NO_LABEL, Index, is_label, read_index
from vitkit.data.loading.workers import in_order
from vitkit.data.sources.stores import MAX_FILE, Names
from vitkit.data.sources.tables import Columns
from vitkit.system.console.progress import bar
from vitkit.system.errors import BadData
from vitkit.system.machine import cpus
from vitkit.system.processes import sharing
from vitkit.system.storage import remote
from vitkit.system.storage.files import cache_dir, parse_json, write_whole

FORMAT = 5  # version of an index file; an index of another version is rebuilt
BESIDE = ".index"  # the ending of an index beside its shard
EDGE = 2 * tarfile.RECORDSIZE  # bytes of each end of a shard by which an index knows it


def indices_of(shards: Sequence[str], columns: Columns) -> list[Index]:
    """The index of each shard, which is made if it is not in the cache. Raises VitkitError for a shard
    that is damaged, OSError if it cannot be read."""
    paths = {shard: _cache_path(shard, columns) for shard in shards}
    indices = {shard: _read_cached(path) for shard, path in paths.items()}
    missing = [shard for shard in shards if indices[shard] is None]
    task = partial(_index_shard, columns)
    items = [(shard, paths[shard]) for shard in missing]
    made = _made_among_ranks(task, items)
    if sharing.ranks_sharing() == 1:
        made = in_order(task, items, _workers(len(items)))
    for _ in bar("indexing shards")(made, len(missing)):
        pass
    found = []
    for shard, index in indices.items():
        index = index or _read_cached(paths[shard])
        if index is None:
            raise OSError(
                f"the index of {shard} was written to {paths[shard]}, and cannot be read there"
            )
        found.append(index)
    return found


Item = tuple[str, Path]
"""A shard, and where its index is kept in the cache."""


def _made_among_ranks(task, items: Sequence[Item]) -> Iterator[None]:
    """Make the index of every shard, where other ranks may do it at the same time: each takes a shard
    that nobody has begun, and then another."""
    workers = _workers(len(items) // sharing.ranks_sharing())
    own = []
    others = []

    def not_begun() -> Iterator[Item]:
        for item in items:
            if sharing.claim(item[1].name):
                own.append(item)
                yield item
            else:
                others.append(item)

    given = 0
    try:
        # None is taken before a process is free for it: it may be for another rank
        for _ in in_order(task, not_begun(), workers, ahead=1):
            path = own[given][1]
            sharing.give(path.name, path.read_bytes())
            given += 1
            yield
    finally:
        for _, path in own[given:]:  # so that nobody waits for what has failed
            sharing.give(path.name, None)

    # What the others have made, into our cache, unless they share it
    since = time.monotonic()
    for shard, path in others:
        data = sharing.take(path.name, since)
        if data is not None:
            since = time.monotonic()
        if _read_cached(path) is None:
            if data is None:
                task((shard, path))
            else:
                _write_cached(path, data)
        yield


def _workers(shards: int) -> int:
    """Number of processes that index the shards, besides this one."""
    if shards <= 1:
        return 0
    return min(cpus(), shards)


def _index_shard(columns: Columns, item: Item) -> None:
    """Find the index beside a shard, or read the shard from its beginning to its end, and write it to
    the cache."""
    shard, path = item
    index = _read_beside(shard, columns)
    if index is None:
        index = read_index(shard, columns)
    _write_cached(path, _as_bytes(index))


# In the cache


def _cache_path(file: str, columns: Columns) -> Path:
    key = f"{FORMAT} {remote.state_of(file)} {columns}"
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    return cache_dir() / "shards" / f"{digest}.index"


def _write_cached(path: Path, data: bytes) -> None:
    """Write an index to the cache, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)


def _read_cached(path: Path) -> Index | None:
    """An index from the cache; None if it is not there, or of a shard that has changed since."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as index:
            names = index.keys()
            arrays = {name: index.get_tensor(name) for name in names}
            left_out = Counter(parse_json(index.metadata()["left_out"]))
        return _from_arrays(arrays, left_out)
    except (FileNotFoundError, SafetensorError, KeyError, ValueError):
        return None


def _as_bytes(index: Index, more: dict[str, np.ndarray] | None = None) -> bytes:
    """An index as the bytes of a safetensors file; with more arrays."""
    from safetensors.numpy import save

    # Each label is written once, and its number for every example.
    unique_labels = sorted(set(index.labels))
    number_of = {label: i for i, label in enumerate(unique_labels)}
    codes = np.array([number_of[label] for label in index.labels], dtype=np.int32)
    arrays = {"offsets": index.offsets, "sizes": index.sizes, "codes": codes, **(more or {})}
    # Strings are tensors of bytes: millions are too many for the header.
    for name, strings in (("names", index.names), ("labels", Names.of(unique_labels))):
        arrays[name] = np.frombuffer(strings.block, np.uint8)
        arrays[f"{name}.ends"] = strings.ends
    return save(arrays, {"left_out": json.dumps(index.left_out)})


def _from_arrays(arrays: dict[str, np.ndarray], left_out: Counter) -> Index:
    image_names = Names(arrays["names"].tobytes(), arrays["names.ends"])
    unique = Names(arrays["labels"].tobytes(), arrays["labels.ends"])
    texts = [unique[i] for i in range(len(unique))]
    labels = [texts[code] for code in arrays["codes"].tolist()]
    return Index(arrays["offsets"], arrays["sizes"], image_names, labels, left_out)


# Beside the shard


def write_index(shard: Path) -> None:
    """Write the index of a shard of this machine beside it. Raises OSError."""
    index = read_index(str(shard), Columns())
    size = shard.stat().st_size
    known_by = {"bytes": np.array([size], np.int64), "ends": _digest_of_ends(str(shard), size)}
    write_whole(index_beside(shard), _as_bytes(index, known_by))


def index_beside(shard: Path) -> Path:
    """The path of the index that `vitkit data pack` writes for a shard on this machine."""
    return shard.with_name(shard.name + BESIDE)


def _read_beside(shard: str, columns: Columns) -> Index | None:
    """The index beside a shard; None if there is none of this very shard, or if other columns are
    asked for than it has."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    if columns.image is not None or columns.label is not None:
        return None
    path = shard + BESIDE
    if remote.is_address(shard):
        address = remote.without_query(shard)
        path = address + BESIDE + shard.removeprefix(address)
    try:
        if not remote.exists(path) or _is_older(path, shard):
            return None
        # No index is as large as its shard, which has a block for each name and each label
        size = remote.size_of(shard)
        size_of_index = remote.size_of(path)
        if size_of_index > size:
            return None
        arrays = load(remote.read_range(path, 0, size_of_index))
        _check(arrays, size)
        if not np.array_equal(arrays["ends"], _digest_of_ends(shard, size)):
            return None
        index = _from_arrays(arrays, Counter())
    except (SafetensorError, KeyError, ValueError, TypeError, OSError):
        # Some servers answer oddly to what they do not have; the shard is enough
        return None
    if columns.target == "none":
        return index._replace(labels=[NO_LABEL] * len(index.labels))
    return index


def _is_older(path: str, shard: str) -> bool:
    """Whether a file of this machine was written before its shard. Of addresses it is False: who uploads
    several at a time ends with the largest."""
    if remote.is_address(path):
        return False
    return Path(path).stat().st_mtime_ns < Path(shard).stat().st_mtime_ns


def _digest_of_ends(shard: str, size: int) -> np.ndarray:
    """A digest of the first and the last bytes of a shard: uint8 (32,)."""
    ends = remote.read_range(shard, 0, min(EDGE, size))
    ends += remote.read_range(shard, max(0, size - EDGE), size)
    return np.frombuffer(hashlib.sha256(ends).digest(), np.uint8)


def _check(arrays: dict[str, np.ndarray], size: int) -> None:
    """Raises VitkitError, or KeyError, unless these are the arrays of an index of a shard of so many
    bytes, and every image lies in it."""
    types = {
        **dict.fromkeys(("offsets", "sizes", "bytes", "names.ends", "labels.ends"), np.int64),
        **dict.fromkeys(("names", "labels", "ends"), np.uint8),
        "codes": np.int32,
    }
    if any(arrays[name].dtype != kind or arrays[name].ndim != 1 for name, kind in types.items()):
        raise BadData("these are other arrays")
    if arrays["bytes"].tolist() != [size]:
        raise BadData("it is of a shard of another size")

    # Images one after the other, each behind the block of its name
    offsets = arrays["offsets"]
    sizes = arrays["sizes"]
    count = len(offsets)
    if not len(sizes) == len(arrays["codes"]) == len(arrays["names.ends"]) == count:
        raise BadData("it has not equally many of all")
    if count:
        in_bounds = (sizes >= 0) & (sizes <= min(MAX_FILE, size)) & (offsets <= size)
        if not in_bounds.all() or offsets[0] < tarfile.BLOCKSIZE:
            raise BadData("an image lies outside of the shard")
        ends = offsets + sizes
        if ends[-1] > size or (ends[:-1] + tarfile.BLOCKSIZE > offsets[1:]).any():
            raise BadData("an image lies in another one")

    # Names and labels
    for name in ("names", "labels"):
        bounds = np.append(0, arrays[f"{name}.ends"])
        if (bounds[:-1] > bounds[1:]).any() or bounds[-1] != len(arrays[name]):
            raise BadData(f"its {name} are not one after the other")
    codes = arrays["codes"]
    if count and not 0 <= codes.min() <= codes.max() < len(arrays["labels.ends"]):
        raise BadData("it has no such label")
    labels = Names(arrays["labels"].tobytes(), arrays["labels.ends"])
    for i in range(len(labels)):
        if not is_label(parse_json(labels[i])):
            raise BadData(f"{labels[i]} is no label")
