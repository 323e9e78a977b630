"""Indices of tar shards, stored in the cache and beside the shards.

To index a shard it is read from its beginning to its end (tar_shard.py). The index is stored in the
cache. If several ranks open the same shards, each index is made once and shared. `vitkit data pack`
also writes the index beside the shard (NAME.tar.index), so remote shards can be opened without
reading them.

An index beside a shard is used only if it matches the shard by size, by a digest of its ends and, on
this machine, by its modification time, and if every image lies within the shard. Otherwise the shard
is read.
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
from vitkit.data.loading.workers import in_order, one_per_cpu
from vitkit.data.sources.stores import MAX_FILE, Names
from vitkit.data.sources.tables import Columns
from vitkit.system.console.progress import bar
from vitkit.system.errors import BadData
from vitkit.system.processes import sharing
from vitkit.system.storage import remote
from vitkit.system.storage.files import cache_dir, parse_json, write_whole

FORMAT = 5  # version of index files; an index of another version is rebuilt
BESIDE = ".index"  # suffix that the name of an index adds to that of its shard
EDGE = 2 * tarfile.RECORDSIZE  # bytes at each end of a shard that identify it in its index


def indices_of(shards: Sequence[str], columns: Columns) -> list[Index]:
    """The index of each shard; indices that are not in the cache are made. Raises VitkitError for a
    damaged shard, OSError for one that cannot be read."""
    paths = {shard: _cache_path(shard, columns) for shard in shards}
    indices = {shard: _read_cached(path) for shard, path in paths.items()}
    missing = [shard for shard in shards if indices[shard] is None]
    task = partial(_index_shard, columns)
    items = [(shard, paths[shard]) for shard in missing]
    made = _make_among_ranks(task, items)
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
"""A shard, and the path of its index in the cache."""


def _make_among_ranks(task, items: Sequence[Item]) -> Iterator[None]:
    """Make the index of every shard together with other ranks: each rank repeatedly takes a shard that
    no rank has begun."""
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

    shared = 0
    try:
        # ahead=1: a shard is claimed only when a process is free, as another rank may be free earlier
        for _ in in_order(task, not_begun(), workers, ahead=1):
            path = own[shared][1]
            sharing.give(path.name, path.read_bytes())
            shared += 1
            yield
    finally:
        for _, path in own[shared:]:  # so that no rank waits for an index that failed
            sharing.give(path.name, None)

    # Indices of the other ranks, written to this rank's cache unless the ranks share one
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
    """Number of processes that index shards, in addition to this one."""
    if shards <= 1:
        return 0
    return min(one_per_cpu(), shards)


def _index_shard(columns: Columns, item: Item) -> None:
    """Write the index of a shard to the cache: the one beside the shard, or one made by reading it."""
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
    """Write an index to the cache, completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)


def _read_cached(path: Path) -> Index | None:
    """An index from the cache; None if it is not there or cannot be read."""
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
    """An index as the bytes of a safetensors file, with further arrays."""
    from safetensors.numpy import save

    # Each label is stored once, and for every example the number of its label
    unique_labels = sorted(set(index.labels))
    number_of = {label: i for i, label in enumerate(unique_labels)}
    codes = np.array([number_of[label] for label in index.labels], dtype=np.int32)
    arrays = {"offsets": index.offsets, "sizes": index.sizes, "codes": codes, **(more or {})}
    # Strings are stored as tensors of bytes, because millions of them do not fit in the header
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
    """Write the index of a local shard beside it. Raises OSError."""
    index = read_index(str(shard), Columns())
    size = shard.stat().st_size
    known_by = {"bytes": np.array([size], np.int64), "ends": _digest_of_ends(str(shard), size)}
    write_whole(index_beside(shard), _as_bytes(index, known_by))


def index_beside(shard: Path) -> Path:
    """The path of the index that `vitkit data pack` writes for a shard on this machine."""
    return shard.with_name(shard.name + BESIDE)


def _read_beside(shard: str, columns: Columns) -> Index | None:
    """The index beside a shard; None if there is none, if it does not match the shard, or if `columns`
    ask for columns that it was not made for."""
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
        # An index is never larger than its shard, which has a block for each name and each label
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
        # Some servers answer requests for missing files with other content; the shard suffices
        return None
    if columns.target == "none":
        return index._replace(labels=[NO_LABEL] * len(index.labels))
    return index


def _is_older(path: str, shard: str) -> bool:
    """Whether a local file was written before its shard. False for addresses: an upload of several files
    at the same time finishes the largest last."""
    if remote.is_address(path):
        return False
    return Path(path).stat().st_mtime_ns < Path(shard).stat().st_mtime_ns


def _digest_of_ends(shard: str, size: int) -> np.ndarray:
    """A digest of the first and the last bytes of a shard: uint8 (32,)."""
    ends = remote.read_range(shard, 0, min(EDGE, size))
    ends += remote.read_range(shard, max(0, size - EDGE), size)
    return np.frombuffer(hashlib.sha256(ends).digest(), np.uint8)


def _check(arrays: dict[str, np.ndarray], size: int) -> None:
    """Raise VitkitError or KeyError unless these are the arrays of an index of a shard of `size` bytes,
    with every image in it."""
    types = {
        **dict.fromkeys(("offsets", "sizes", "bytes", "names.ends", "labels.ends"), np.int64),
        **dict.fromkeys(("names", "labels", "ends"), np.uint8),
        "codes": np.int32,
    }
    if any(arrays[name].dtype != kind or arrays[name].ndim != 1 for name, kind in types.items()):
        raise BadData("its arrays have other types or shapes")
    if arrays["bytes"].tolist() != [size]:
        raise BadData("it belongs to a shard of another size")

    # Images follow one another, each preceded by the block of its name
    offsets = arrays["offsets"]
    sizes = arrays["sizes"]
    count = len(offsets)
    if not len(sizes) == len(arrays["codes"]) == len(arrays["names.ends"]) == count:
        raise BadData("its arrays have different lengths")
    if count:
        in_bounds = (sizes >= 0) & (sizes <= min(MAX_FILE, size)) & (offsets <= size)
        if not in_bounds.all() or offsets[0] < tarfile.BLOCKSIZE:
            raise BadData("an image lies outside of the shard")
        ends = offsets + sizes
        if ends[-1] > size or (ends[:-1] + tarfile.BLOCKSIZE > offsets[1:]).any():
            raise BadData("two images overlap")

    # Names and labels
    for name in ("names", "labels"):
        bounds = np.append(0, arrays[f"{name}.ends"])
        if (bounds[:-1] > bounds[1:]).any() or bounds[-1] != len(arrays[name]):
            raise BadData(f"its {name} are not in order")
    codes = arrays["codes"]
    if count and not 0 <= codes.min() <= codes.max() < len(arrays["labels.ends"]):
        raise BadData("it has a label number without a label")
    labels = Names(arrays["labels"].tobytes(), arrays["labels.ends"])
    for i in range(len(labels)):
        if not is_label(parse_json(labels[i])):
            raise BadData(f"{labels[i]} is not a label")
