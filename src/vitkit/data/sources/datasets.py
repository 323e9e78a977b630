"""Data sets of a user's own code as Sources: a map-style PyTorch Dataset, or a list of pairs.

An item is (image, target), or an image alone. An image is a Pillow image, a uint8 array or tensor
(h, w), (h, w, 3) or (3, h, w), the bytes of a file, or the path of one. The data set must not augment
or normalise: an item must be the same image each time it is read.
"""

import hashlib
import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from vitkit.data.sources.source import Source
from vitkit.data.sources.stores import RowRanges, Store, read_file
from vitkit.data.sources.tables import Table, Target, numbered
from vitkit.data.sources.targets import PartlyKnown, as_row_labels, concatenate_values
from vitkit.system.console.progress import bar
from vitkit.system.errors import BadData, BadImage, BadSettings
from vitkit.system.functions.values import read_value

SAMPLE = 64  # images, spread evenly, that identify a data set
TARGETS_CHECKED = 32  # items, spread evenly, whose targets must be those of the attribute `targets`
UNREADABLE = (OSError, EOFError, Image.DecompressionBombError)
"""Exceptions of a data set for a broken file. UnidentifiedImageError is an OSError."""


@dataclass(frozen=True, eq=False)
class DatasetItems(Store):
    """The images of one or several data sets that have len() and [i]."""

    titles: tuple[str, ...]
    datasets: tuple[Any, ...]
    ranges: RowRanges
    """The rows of each data set."""

    def read(self, row: int) -> bytes | np.ndarray:
        """The image of a row. Raises BadImage for a file that the data set cannot read, and for an item that
        is not an image. Any other exception of the data set is a bug in it."""
        dataset, item = self.ranges.locate(row)
        name = self.name(row)
        try:
            image, _ = image_and_target(self.datasets[dataset][item])
            return as_image(image, name)
        except BadImage:
            raise
        except UNREADABLE as error:
            raise BadImage(f"{name} cannot be read: {type(error).__name__}: {error}") from error
        except Exception as error:
            error.add_note(f"while {name} was read")
            raise

    def name(self, row: int) -> str:
        dataset, item = self.ranges.locate(row)
        return f"{self.titles[dataset]} item {item}"

    def identity(self, row: int) -> str:
        return f"{self.name(row)} {self._digest}"

    @cached_property
    def _digest(self) -> str:
        """A digest of SAMPLE images, the only way to distinguish data sets of equal length."""
        digest = hashlib.sha256()
        count = len(self.ranges)
        step = -(-count // SAMPLE)
        for row in range(0, count, step):
            image = self.read(row)
            digest.update(image if isinstance(image, bytes) else image.tobytes())
        return digest.hexdigest()


def from_dataset(
    dataset: Any, labels: Sequence[str] | None = (), target: Target = "auto", title: str = ""
) -> Source:
    """A map-style PyTorch Dataset, or a list of (image, target), as a Source; see the docstring of this
    module.

    labels: names of the classes; by default those of `dataset.classes`, or else their numbers.
    target: meaning of a target: "class", "classes" (a list of numbers or names, or a vector of zeros
        and ones as floats or booleans, with NaN where a class is unknown), "number" or "none". "auto"
        reads lists and vectors as several classes, and fractions as numbers.
    title: name of the data set in error messages.

    Targets are needed before images. They are taken from `dataset.targets` if these agree with the
    items; otherwise every item is read once. Raises VitkitError for an item that is not an image and its
    target, or whose image changes when it is read again.
    """
    read_value("target", Target, target)
    labels = () if labels is None else labels
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise BadSettings(f"labels is {labels!r}; give a list of names, one for each class")
    table = dataset_table({"": dataset}, tuple(labels), target, title)
    found = numbered(table)
    rows = np.arange(len(found.targets))
    return Source(table.store, rows, found.targets, found.labels, found.target_kind)


def dataset_table(
    parts: dict[str, Any], labels: Sequence[str] = (), target: str = "auto", title: str = ""
) -> Table:
    """The table of one data set, or of several that are parts ("train", "val", "test"). Raises
    VitkitError."""
    # The images of all parts, one part after the other
    datasets = tuple(parts.values())
    counts = []
    titles = []
    for part, dataset in parts.items():
        titles.append(f"{title or type(dataset).__name__} {part}".strip())
        counts.append(_length(dataset, titles[-1]))
    store = DatasetItems(tuple(titles), datasets, RowRanges.of(counts))
    for row in store.ranges.starts[:-1].tolist():
        first = np.frombuffer(store.read(row), np.uint8)
        again = np.frombuffer(store.read(row), np.uint8)
        if not np.array_equal(first, again):
            raise BadData(
                f"{store.name(row)} is another image each time it is read: leave random transforms to "
                "`data.augmentation`, which draws the same numbers again when a run is continued"
            )

    # Their targets: either all parts have some, or none has
    values = []
    for dataset, dataset_title in zip(datasets, titles, strict=True):
        values.append(_targets(dataset, dataset_title, target))
    known = [part_values for part_values in values if part_values is not None]
    row_labels = None
    if len(known) == len(values):
        row_labels = as_row_labels(concatenate_values(known), title or titles[0], target)
    elif known:
        missing = [part_values is None for part_values in values]
        raise BadData(f"{titles[missing.index(True)]} has no targets, but other parts have them")

    # The names of their classes
    classes = labels or getattr(datasets[0], "classes", None) or ()
    names = tuple(map(str, classes)) or None
    part_of_row = np.repeat(np.array(list(parts), dtype=object), counts)
    return Table(store, row_labels, part_of_row, names, ())


def _length(dataset: Any, title: str) -> int:
    """The number of items. Raises VitkitError if this is not a map-style data set, or has no items."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise BadData(
            f"{title} is not a map-style data set: it has no len() or no [i]; "
            f"a list of (image, target) is one"
        )
    if not len(dataset):
        raise BadData(f"{title} has no items")
    return len(dataset)


def _targets(dataset: Any, title: str, target: str) -> list | None:
    """The targets of all items; None if items are images alone."""
    count = len(dataset)
    if target == "none" or _target(dataset, 0) is None:
        return None

    # The attribute, which can be read without images, if it agrees with some of the items
    attribute = getattr(dataset, "targets", None)
    if attribute is not None and len(attribute) == count:
        values = list(map(_as_python, attribute))
        checked = range(0, count, -(-count // TARGETS_CHECKED))
        if all(_target(dataset, i) == values[i] for i in checked):
            return values

    # Otherwise every item is read
    rows = bar(f"reading the targets of {title}")(range(count), count)
    return [_target(dataset, i) for i in rows]


def _target(dataset: Any, i: int) -> Any:
    """The target of an item as a Python value; None for an image alone."""
    _, target = image_and_target(dataset[i])
    return _as_python(target)


def _as_python(value: Any) -> Any:
    """A target as a Python value. A vector of zeros and ones, as floats or booleans, becomes PartlyKnown;
    NaN marks unknown classes."""
    if is_tensor(value):
        value = value.detach().cpu().numpy()
    if not isinstance(value, np.ndarray | np.generic):
        return value
    if value.ndim == 1 and value.dtype.kind in "bf":
        unknown = value != value  # NaN
        if (unknown | np.isin(value, (0, 1))).all():
            classes = np.flatnonzero(value == 1).tolist()
            return PartlyKnown(classes, np.flatnonzero(unknown).tolist())
    return value.tolist()


def is_tensor(value: Any) -> bool:
    """Whether a value is a PyTorch tensor, without importing PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def image_and_target(item: Any) -> tuple[Any, Any]:
    """Split an item into image and target; the target of an image alone is None. Raises VitkitError for
    anything else."""
    if isinstance(item, tuple | list):
        if len(item) != 2:
            raise BadData(f"an item has {len(item)} values; expected an image and its target")
        return item[0], item[1]
    if isinstance(item, dict):
        raise BadData(
            f"an item is a dictionary of {', '.join(map(str, item))}; "
            f"expected an image and its target"
        )
    return item, None


def as_image(value: Any, name: str) -> bytes | np.ndarray:
    """An image as the bytes of a file, or uint8 (h, w) or (h, w, 1 or 3). Raises BadImage for
    anything else."""
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, str | PurePath):
        return read_file(str(value))
    if isinstance(value, Image.Image):
        return _from_pillow(value)
    # Ambiguous tensors are read as (3, h, w), ambiguous arrays as (h, w, 3)
    if is_tensor(value):
        value = value.detach().cpu().numpy()
        channels_first = value.ndim == 3 and value.shape[0] in (1, 3)
    else:
        channels_first = getattr(value, "ndim", 0) == 3 and value.shape[2] not in (1, 3)
        channels_first = channels_first and value.shape[0] in (1, 3)
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        kind = getattr(value, "dtype", type(value).__name__)
        raise BadImage(
            f"{name} is {kind}; expected a Pillow image, a uint8 array or tensor, the bytes of a "
            f"file, or its path (leave out ToTensor and Normalize: vitkit normalises)"
        )
    if channels_first:
        value = value.transpose(1, 2, 0)
    return np.ascontiguousarray(value)


def _from_pillow(image: Image.Image) -> bytes | np.ndarray:
    """Upright pixels; for modes other than RGB and 8-bit grey the bytes of a file, which is then decoded
    like any other file."""
    image = ImageOps.exif_transpose(image)
    if image.mode in ("RGB", "L") and not image.has_transparency_data:
        return np.array(image)
    file = io.BytesIO()
    image.save(file, "PNG" if image.mode in ("1", "P", "LA", "RGBA") else "TIFF")
    return file.getvalue()
