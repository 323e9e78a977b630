"""Features: the vectors that the head of a model reads, computed once for every image; their cache, and their
files for other programs.

Few-shot evaluation, neighbours, probes and `vitkit features` use this module.

Legend: B batch, N images, D width, K classes.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor

from vitkit import __version__
from vitkit.data import Batch, Lists, Source, content_digest, default_workers, eval_batches
from vitkit.evaluation.evaluator import Rows, collect
from vitkit.models import POOLS, FeatureSet, ViTConfig
from vitkit.system.console.messages import say
from vitkit.system.console.progress import bar
from vitkit.system.errors import BadData, Unavailable, Unsupported
from vitkit.system.processes.ranks import any_rank, from_every_rank, on_rank_0, world
from vitkit.system.storage.files import as_text, as_utf8, cache_dir, save_npz, whole
from vitkit.weights import Classifier, add_weights, feature_settings

BATCH = 64  # images of a forward pass on each rank
EXCHANGED = 64 << 20  # bytes of features that a rank computes before the ranks exchange them
MAPPED = 256 << 20  # size in bytes from which a file of features is mapped into memory, not read
KEPT = 8 << 30  # largest size of the cache in bytes; the least recently used features are deleted


ROWS = 10_000  # rows of a batch written to a parquet file


class Features(NamedTuple):
    """The features and targets of images, in the order of their source."""

    x: np.ndarray
    """Features, float32 (N, D). Large arrays are mapped from a file and read-only."""
    y: np.ndarray
    """Targets in the form of `Source.targets_of`: int64 (N,) for classes."""


def features_within(
    x: np.ndarray, wider: FeatureSet, wanted: FeatureSet, width: int, blocks: int | None = None
) -> np.ndarray:
    """Select the features of the feature set `wanted` from those of a wider one, which has all its states:
    (N, its width) -> (N, width of `wanted`).

    width: D of the model.
    blocks: number of blocks of `wider` to use, from the first; `wanted` is taken from the last of these.
        None for all.
    """
    pool = POOLS[wider.pool]
    x = x.reshape(len(x), wider.blocks, pool.states, width)
    last = wider.blocks if blocks is None else blocks
    x = x[:, last - wanted.blocks : last, POOLS[wanted.pool].places_in(pool)]
    return np.ascontiguousarray(x.reshape(len(x), -1))


def compute_features(
    classifier: Classifier,
    source: Source,
    batches: Iterable[Batch] | None = None,
    cached: bool = True,
) -> Features:
    """The features of every image of the source: exactly one row per image.

    Other processes decode the images while the model computes. With several ranks, each computes its
    share, in batches that do not depend on the number of ranks; all get all rows.

    The rows are kept in the cache, under a digest of the backbone's weights, the preprocessing, the
    arithmetic and the images (`content_digest`), so that they are computed once.

    batches: these images, prepared by the caller; None prepares them here, with as many processes as the
        CPU quota allows.
    cached: False for a model in training, whose weights change.

    Raises VitkitError if there is no image, and for a model that returns several states per image;
    BadImage, with the image's name, for one that cannot be decoded.
    """
    if not len(source):
        raise BadData("there are no images, so there are no features of them")
    config = getattr(classifier.model, "config", None)
    if isinstance(config, ViTConfig) and config.pooling.compares_patches:
        raise Unsupported(
            "a model of good images computes one number of an image, its anomaly score, and no other features; "
            f"give the weights that it was made of ({classifier.origin.get('init', 'published weights')})"
        )
    if getattr(config, "segments", False):
        raise Unsupported(
            "the model classifies every pixel, by the states of all patches, and features are one state of an "
            "image; give the weights that it was made of (`vitkit.show` names them)"
        )
    targets = source.targets_of(np.arange(len(source)))

    # From the cache, if all ranks find them there
    path = None
    if cached:
        path = _path(classifier, source)
    kept = _open(path, len(source))
    if not any_rank(kept is None):
        assert kept is not None
        return Features(kept, targets)

    # Otherwise compute them, and write them to the cache
    if batches is None:
        batches = _batches(classifier, source)
    x = _compute(classifier, batches, len(source))
    if path is not None and on_rank_0():
        x = _keep(x, path)
    return Features(x, targets)


def _batches(classifier: Classifier, source: Source) -> Iterable[Batch]:
    """This rank's share of the images in batches, with a progress bar on rank 0."""
    rank, world_size = world()
    batches = eval_batches(
        source,
        classifier.preprocessing,
        BATCH * world_size,
        default_workers(source),
        (rank, world_size),
        pin=classifier.device.type == "cuda",
    )
    if not on_rank_0():
        return batches
    return bar("computing features")(batches, len(batches))


def _compute(classifier: Classifier, batches: Iterable[Batch], count: int) -> np.ndarray:
    """The features of the images of all ranks' batches, in the order of the source: float32 (count, D)."""

    def read(batch: Batch) -> tuple[Tensor, Tensor]:
        rows = classifier.features(batch.images)
        if rows.ndim != 2:
            raise Unsupported(
                f"the model returns {' x '.join(map(str, rows.shape[1:]))} numbers for an image, a "
                "state of each of its tokens; features need a model that pools them into one"
            )
        return batch.indices, rows

    x = np.empty((count, 0), dtype=np.float32)
    times = np.zeros(count, dtype=np.int64)  # how often each row was computed
    parts = collect(classifier.model, batches, read, classifier.device)
    for indices, rows in _from_all_ranks(parts):
        if not x.shape[1]:
            x = np.empty((count, rows.shape[1]), dtype=np.float32)
        x[indices.numpy()] = rows
        times[indices] += 1
    if not (times == 1).all():
        raise Unsupported(
            f"{(times != 1).sum():,} of {count:,} images are missing from the batches or occur twice"
        )
    return x


def _from_all_ranks(parts: Iterable[Rows]) -> Iterator[Rows]:
    """Yields the (indices, rows) of all ranks, on the CPU, whenever each rank has computed EXCHANGED bytes.

    All ranks have the same number of batches; without padding, the last ones may be empty.
    """
    own: list[Rows] = []
    for indices, rows in parts:
        own.append((indices.cpu(), rows.cpu()))
        if len(own) * BATCH * rows.shape[1] * 4 >= EXCHANGED:
            yield from _exchanged(own)
            own = []
    if own:
        yield from _exchanged(own)


def _exchanged(own: list[Rows]) -> Iterator[Rows]:
    """The (indices, rows) of every rank, each rank's batches concatenated."""
    indices, rows = zip(*own, strict=True)
    yield from from_every_rank((torch.cat(indices), torch.cat(rows)))


# The cache


def _path(classifier: Classifier, source: Source) -> Path | None:
    """The cache file for these features; None for weights that are not all tensors (quantised ones)."""
    digest = hashlib.sha256(f"{__version__} {arithmetic(classifier)}".encode())
    weights = below_head(classifier)
    if not all(isinstance(weight, Tensor) for weight in weights.values()):
        return None
    add_weights(digest, weights)
    digest.update(content_digest(source).encode())
    return cache_dir() / "features" / f"{digest.hexdigest()}.npy"


def below_head(classifier: Classifier) -> dict[str, Tensor]:
    """The weights of the backbone, by name: all but the head's."""
    state = classifier.model.state_dict()
    return {name: weight for name, weight in state.items() if not name.startswith("head.")}


def arithmetic(classifier: Classifier) -> dict:
    """The settings that the features depend on: architecture, preprocessing, device, precision, runtime."""
    device = classifier.device.type
    precision = "float32"
    if torch.is_autocast_enabled(device):
        precision = str(torch.get_autocast_dtype(device))
    return {
        **feature_settings(classifier),
        "device": device,
        "precision": [precision, torch.get_float32_matmul_precision()],
        "computed_by": getattr(classifier.model, "computed_by", "torch"),
    }


def _open(path: Path | None, count: int) -> np.ndarray | None:
    """The rows of a file of the cache; None if there is no such file, or it is damaged."""
    if path is None:
        return None
    try:
        x: np.ndarray = open_memmap(path, mode="r")  # unlike np.load, it never unpickles
        if x.nbytes < MAPPED:
            x = np.array(x)
        os.utime(path)  # marks the file as used: `_make_room` deletes the least recently used ones
    except (OSError, ValueError):
        return None
    if x.ndim != 2 or len(x) != count or x.dtype != np.float32:
        return None
    return x


def _keep(x: np.ndarray, path: Path) -> np.ndarray:
    """Write rows to the cache, and return them, mapped from its file if they are large.

    If they cannot be written, prints a message and returns the rows themselves.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(path.parent, x.nbytes)
        with whole(path) as new, new.open("wb") as file:
            np.save(file, x)
    except OSError as error:
        say(f"the features are not cached: {error}")
        return x
    kept = _open(path, len(x))
    if kept is None:  # another process has just deleted the file
        return x
    return kept


def _make_room(folder: Path, size: int) -> None:
    """Delete the least recently used files until `size` more bytes fit into the cache. Raises OSError if
    they are more than the cache holds."""
    if size > KEPT:
        raise Unavailable(f"they take {size:,} bytes, and the cache holds {KEPT:,}")
    states = []
    for file in folder.glob("*.npy"):
        with suppress(OSError):  # another process has just deleted it
            state = file.stat()
            states.append((state.st_mtime_ns, state.st_size, file))
    total = size + sum(bytes for _, bytes, _ in states)
    for _, bytes, file in sorted(states):
        if total <= KEPT:
            return
        file.unlink(missing_ok=True)
        total -= bytes


# Features as a file for other programs


SourceFeatures = tuple[Source, np.ndarray]
"""Images, and their features, float32 (N, D)."""


def write_parquet(file: Path, parts: dict[str, SourceFeatures], facts: dict[str, str]) -> None:
    """Write a parquet file with a row for each image.

    Its columns are `key`, the image's file, or file and row, with escapes for bytes that are not text;
    `part`, if the data has parts; the label; and `features`, a list of D float32. The label is, by the kind
    of targets, `label` and `class`, the index and name of the class; `classes`, a list of names; `label`, a
    number; or nothing. The metadata are `facts`, and the names of all classes as JSON. Raises OSError.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = _tables(parts)
    first = next(tables)
    source, _ = next(iter(parts.values()))
    names = {"class_names": json.dumps(source.labels, ensure_ascii=False)}
    metadata = {name: as_utf8(text) for name, text in (facts | names).items()}
    schema = first.schema.with_metadata(metadata)
    with whole(file) as new, pq.ParquetWriter(new, schema) as writer:
        writer.write_table(first.cast(schema))
        for table in tables:
            writer.write_table(pa.Table.from_arrays(table.columns, schema=schema))


def write_npz(file: Path, parts: dict[str, SourceFeatures], facts: dict[str, str]) -> None:
    """Write the columns of `write_parquet` as arrays, and `class_names`; none of them needs pickle.
    Several classes of an image are one string, joined by ", ". Raises OSError."""
    columns: dict[str, list[np.ndarray]] = {}
    for table in _tables(parts):
        for name in table.column_names:
            columns.setdefault(name, []).append(_array(table[name]))
    source, _ = next(iter(parts.values()))
    # The facts come first: vitkit recognises its own files by them (files.MARK)
    arrays = {name: np.array(as_utf8(text)) for name, text in facts.items()}
    arrays |= {name: np.concatenate(values) for name, values in columns.items()}
    arrays["class_names"] = np.array(list(map(as_text, source.labels)), dtype=np.str_)
    with whole(file) as new:
        save_npz(new, arrays)


WRITERS: dict[str, Callable[[Path, dict[str, SourceFeatures], dict[str, str]], None]] = {
    ".parquet": write_parquet,
    ".npz": write_npz,
}
"""The function that writes a file of features, by its suffix."""


def _tables(parts: dict[str, SourceFeatures]) -> Iterator:
    """The rows of all parts, as pyarrow tables of at most ROWS."""
    import pyarrow as pa

    for name, (source, x) in parts.items():
        for start in range(0, len(source), ROWS):
            rows = range(start, min(start + ROWS, len(source)))
            columns = {"key": pa.array([as_text(source.name(i)) for i in rows], pa.string())}
            if name:
                columns["part"] = pa.array([name] * len(rows), pa.string())
            columns |= _labels(source, rows)
            values = pa.array(np.array(x[rows.start : rows.stop]).reshape(-1))
            columns["features"] = pa.FixedSizeListArray.from_arrays(values, x.shape[1])
            yield pa.table(columns)


def _labels(source: Source, rows: range) -> dict:
    """The columns of the labels of these examples."""
    import pyarrow as pa

    targets = source.targets
    if isinstance(targets, Lists):
        names = [[as_text(source.labels[number]) for number in targets.row(i)] for i in rows]
        columns = {"classes": pa.array(names, pa.list_(pa.string()))}
        if targets.unknown is not None:
            unknown = [[as_text(source.labels[k]) for k in targets.unknown.row(i)] for i in rows]
            columns["unknown"] = pa.array(unknown, pa.list_(pa.string()))
        return columns
    if source.target_kind == "none":
        return {}
    columns = {"label": pa.array(source.target_array[rows.start : rows.stop])}
    if source.target_kind == "class":
        columns["class"] = pa.array([as_text(source.answer(i) or "") for i in rows], pa.string())
    return columns


def _array(column) -> np.ndarray:
    """A column as an array: features (N, D), numbers (N,), strings (N,)."""
    import pyarrow as pa

    column = column.combine_chunks()
    if pa.types.is_fixed_size_list(column.type):
        return column.values.to_numpy().reshape(len(column), -1)
    if pa.types.is_list(column.type):
        return np.array([", ".join(names) for names in column.to_pylist()], dtype=np.str_)
    if pa.types.is_string(column.type):
        return np.array(column.to_pylist(), dtype=np.str_)
    return column.to_numpy()
