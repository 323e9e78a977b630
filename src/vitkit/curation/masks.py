"""Statistics of masks: how much of the pixels each class has, in how many images it is, its connected regions, and
everything for which training would refuse the data set, all of it rather than the first.

Legend: K classes, h w pixels of a mask.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.data import IGNORED, Legend, Masked, Source, in_order, open_masks, ranges, regions
from vitkit.data.loading.workers import worth_starting
from vitkit.data.masks.pairs import MaskStore, NoMasks, find_legend
from vitkit.system.console.progress import bar
from vitkit.system.console.text import counted, some
from vitkit.system.errors import BadData, BadImage

PATCHES = 784
"""Patches of an image that a model of masks reads if it was made of a model of 224 pixels with patches of 16."""
CHUNK = 16  # images in a task of a worker


@dataclass
class MaskSurvey:
    """Measurements of the masks of one part of a data set."""

    labels: tuple[str, ...]
    """The names of the K classes; empty if no legend follows from the masks."""
    images: int = 0
    """Number of images, with and without a mask."""
    masks: int = 0
    """Number of masks that count below: those that training would take."""
    pixels: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Number of pixels of each class: int64 (K,)."""
    images_with: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Number of images that have each class: int64 (K,)."""
    regions: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Number of connected regions of each class: int64 (K,)."""
    small: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Those of them that have fewer pixels than a patch: int64 (K,)."""
    ignored: int = 0
    """Number of pixels that do not count."""
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """Height and width of each mask."""
    ignored_masks: list[str] = field(default_factory=list)
    """The names of masks that ignore every pixel."""
    one_class: Counter = field(default_factory=Counter)
    """How many masks have one class alone, for each class by its name; a background alone is an empty mask."""
    problems: list[str] = field(default_factory=list)
    """A sentence for each image or mask that training would refuse or leave out."""

    def to_json(self) -> dict:
        """The measurements as plain values."""
        total = int(self.pixels.sum())
        heights = [height for height, _ in self.sizes]
        widths = [width for _, width in self.sizes]
        classes = {}
        for k, label in enumerate(self.labels):
            classes[label] = {
                "share": float(self.pixels[k] / total) if total else 0.0,
                "images": int(self.images_with[k]),
                "regions": int(self.regions[k]),
                "regions smaller than a patch": int(self.small[k]),
            }
        every = total + self.ignored
        return {
            "images": self.images,
            "masks": self.masks,
            "height": _three(heights),
            "width": _three(widths),
            "ignored": self.ignored / every if every else 0.0,
            "masks that ignore every pixel": self.ignored_masks,
            "masks of one class": dict(self.one_class),
            "classes": classes,
            "problems": self.problems,
        }


def _three(values: Sequence[int]) -> list[int]:
    """Minimum, median and maximum; zeros without values."""
    if not values:
        return [0, 0, 0]
    return [min(values), int(np.median(values)), max(values)]


class MaskReport(NamedTuple):
    """The measurements of all parts of a data set."""

    parts: dict[str, MaskSurvey]
    notes: tuple[str, ...]
    """Sentences about how the masks were read."""
    problems: tuple[str, ...]
    """What training would refuse of the data set as a whole."""

    def to_json(self) -> dict:
        """The measurements as plain values."""
        return {
            "parts": {name: part.to_json() for name, part in self.parts.items()},
            "notes": list(self.notes),
            "problems": list(self.problems),
        }


def survey_masks(
    sources: dict[str, Source],
    where: str,
    masks: str,
    legend: Path | None,
    ignore: int | None,
    patches: int,
    workers: int,
) -> MaskReport:
    """Measure the masks of a data set, in `workers` processes.

    Args:
        sources: The images of each part.
        where: The name of the data set.
        masks: A folder of masks, a COCO file, or the column that holds them.
        legend: A file that says what their values stand for; None: it is found.
        ignore: A value whose pixels do not count.
        patches: Patches of an image that a model reads.
        workers: Number of processes.

    Raises BadData if there are no masks, or the file of the legend is malformed.
    """
    store = open_masks(where, masks)
    every = list(sources.values())
    surveys: dict[str, MaskSurvey] = {}
    pairs: dict[str, tuple[Source, np.ndarray]] = {}
    problems: list[str] = []
    notes: tuple[str, ...] = ()
    for name, source in sources.items():
        survey = MaskSurvey((), images=len(source))
        surveys[name] = survey
        try:
            images, rows, sentences = store.paired(source, every, survey.problems)
        except NoMasks as error:
            survey.problems.append(str(error))
            continue
        pairs[name] = (images, rows)
        notes += sentences
    if not pairs:
        raise BadData(surveys[next(iter(surveys))].problems[-1])
    rows = np.concatenate([rows for _, rows in pairs.values()])
    if store.names is not None and len(rows) < len(store.names):
        known = set(rows.tolist())
        others = [store.names[row] for row in range(len(store.names)) if row not in known]
        problems.append(
            f"{counted(len(others), 'mask')} in {store.title} without an image: {some(others, 3)}"
        )

    # What their values stand for
    found: Legend | None = None
    try:
        found, sentences = find_legend(store, rows, where, legend, ignore, skip_unreadable=True)
        notes += sentences
    except (BadData, BadImage) as error:
        if legend is not None:
            raise
        problems.append(str(error))

    for name, (images, rows_of_part) in pairs.items():
        _measure(surveys[name], images, rows_of_part, store, found, patches, workers, name)
    return MaskReport(surveys, notes, tuple(problems))


class _Seen(NamedTuple):
    """The measurements of one mask, made by a worker."""

    name: str
    size: tuple[int, int] = (0, 0)
    pixels: np.ndarray = np.zeros(0, np.int64)
    regions: np.ndarray = np.zeros(0, np.int64)
    small: np.ndarray = np.zeros(0, np.int64)
    problem: str = ""


def _measure(
    survey: MaskSurvey,
    images: Source,
    rows: np.ndarray,
    store: MaskStore,
    legend: Legend | None,
    patches: int,
    workers: int,
    part: str,
) -> None:
    """Add the masks of a part to its measurements."""
    if legend is None:
        return
    count = len(legend.labels)
    survey.labels = legend.labels
    for name in ("pixels", "images_with", "regions", "small"):
        setattr(survey, name, np.zeros(count, np.int64))
    masked = Masked(images, store.store, rows, legend)
    chunks = ranges(len(masked), CHUNK)
    task = partial(_look_at, masked, patches)
    reports = in_order(task, chunks, worth_starting(workers, len(chunks)))
    for report in bar(f"reading masks of {part or 'all images'}")(reports, len(chunks)):
        for seen in report:
            if seen.problem:
                survey.problems.append(seen.problem)
                continue
            survey.masks += 1
            survey.sizes.append(seen.size)
            survey.pixels += seen.pixels
            survey.images_with += seen.pixels > 0
            survey.regions += seen.regions
            survey.small += seen.small
            counting = int(seen.pixels.sum())
            survey.ignored += seen.size[0] * seen.size[1] - counting
            present = np.flatnonzero(seen.pixels)
            if not len(present):
                survey.ignored_masks.append(seen.name)
            elif len(present) == 1:
                survey.one_class[legend.labels[present[0]]] += 1


def _look_at(masked: Masked, patches: int, indices: range) -> list[_Seen]:
    """The measurements of these masks."""
    count = len(masked.labels)
    found = []
    for i in indices:
        name = masked.mask_name(i)
        try:
            _, mask = masked.pair(i)
        except (BadData, BadImage) as error:
            found.append(_Seen(name, problem=str(error)))
            continue
        pixels = np.bincount(mask.reshape(-1), minlength=IGNORED + 1)[:count].astype(np.int64)
        own = np.zeros((2, count), np.int64)
        patch = mask.size / patches  # pixels
        for region in regions(mask, count):
            own[0, region.number] += 1
            own[1, region.number] += region.area < patch
        found.append(_Seen(name, mask.shape, pixels, own[0], own[1]))
    return found
