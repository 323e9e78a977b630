"""Annotations as COCO has them, drawn as masks: polygons and run lengths, with a category each; all else is the
background. Where several lie on a pixel the smallest one counts. The file is untrusted.

Legend: h w pixels of an image.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitkit.data.masks.legend import MAX_CLASSES, Legend, legend_of_names
from vitkit.data.sources.stores import Names, Store
from vitkit.system.environment import max_pixels
from vitkit.system.errors import BadData
from vitkit.system.storage.files import parse_json

FARTHEST = 1 << 24  # pixels that a point of a polygon may be away
BACKGROUND = "background"  # the class of pixels that no annotation covers


@dataclass(frozen=True, eq=False)
class CocoMasks(Store):
    """The masks of a COCO file, drawn when they are read: 0 is the background, and the categories follow."""

    path: str
    names: Names
    """The file names of the images."""
    sizes: np.ndarray
    """Height and width of each image: int64 (N, 2)."""
    annotations: tuple[tuple[tuple[int, Any], ...], ...]
    """For each image the number of the class and the segmentation of each annotation, the largest first."""

    def read(self, row: int) -> np.ndarray:
        """The mask of an image, uint8 (h, w). Raises BadData for an annotation that is none."""
        height, width = self.sizes[row].tolist()
        mask = np.zeros((height, width), np.uint8)
        for number, segmentation in self.annotations[row]:
            try:
                mask[region_of(segmentation, (height, width))] = number
            except (BadData, TypeError, ValueError, KeyError, OverflowError) as error:
                raise BadData(
                    f"{self.name(row)} has an annotation that is neither polygons nor run lengths: {error}"
                ) from None
        return mask

    def name(self, row: int) -> str:
        return f"{self.names[row]} in {self.path}"

    def identity(self, row: int) -> str:
        return f"{self.names[row]} {len(self.annotations[row])}"


def read_coco(path: Path | str) -> tuple[CocoMasks, Legend]:
    """The masks in a COCO file, and what their values stand for. Raises BadData for a file that is malformed, or
    has boxes alone."""
    try:
        values = parse_json(Path(path).read_bytes())
        categories = {each["id"]: str(each["name"]) for each in values["categories"]}
        images = {each["id"]: each for each in values["images"]}
        of_image: dict[Any, list[tuple[float, int, Any]]] = {each: [] for each in images}
        numbers = {key: number for number, key in enumerate(categories, 1)}
        for each in values["annotations"]:
            if not each.get("segmentation"):
                raise BadData(
                    f"{path} has an annotation without a segmentation (id {each.get('id')!r}): boxes alone say "
                    "nothing of pixels"
                )
            area = float(each.get("area") or 0)
            entry = (area, numbers[each["category_id"]], each["segmentation"])
            of_image[each["image_id"]].append(entry)
        names = [str(each["file_name"]) for each in images.values()]
        sizes = np.array([[each["height"], each["width"]] for each in images.values()], np.int64)
    except BadData:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BadData(
            f"{path} is no COCO file of images, categories and annotations: {type(error).__name__} {error}"
        ) from None
    _check(path, names, sizes, list(categories.values()))
    annotations = []
    for entries in of_image.values():
        ordered = sorted(entries, key=lambda entry: -entry[0])
        annotations.append(tuple((number, segmentation) for _, number, segmentation in ordered))
    store = CocoMasks(str(path), Names.of(names), sizes, tuple(annotations))
    return store, legend_of_names([BACKGROUND, *categories.values()], str(path))


def _check(path: Path | str, names: list[str], sizes: np.ndarray, categories: list[str]) -> None:
    """Raises BadData for images that cannot be, or more categories than classes."""
    if not names or not categories:
        raise BadData(f"{path} has no images or no categories")
    if len(categories) >= MAX_CLASSES:
        raise BadData(
            f"{path} has {len(categories):,} categories; masks have up to {MAX_CLASSES - 1}"
        )
    [(category, times)] = Counter([BACKGROUND, *categories]).most_common(1)
    if times > 1:
        raise BadData(f"{path} has the category {category!r} twice")
    sides_are_right = sizes.ndim == 2 and (sizes > 0).all() and (sizes < 1 << 20).all()
    if not sides_are_right or sizes.prod(1).max() > max_pixels():
        raise BadData(f"{path} has an image without a height and a width, or with too many pixels")


def region_of(segmentation: Any, size: tuple[int, int]) -> np.ndarray:
    """The pixels of a segmentation, bool (h, w). Raises BadData, ValueError, TypeError or KeyError for what is
    none."""
    if isinstance(segmentation, list):
        region = np.zeros(size, bool)
        for polygon in segmentation:
            region |= polygon_region(np.asarray(polygon, np.float64), size)
        return region
    if tuple(segmentation["size"]) != size:
        raise BadData(
            f"its run lengths are for {segmentation['size']}, and the image is {list(size)}"
        )
    counts = segmentation["counts"]
    if isinstance(counts, str):
        counts = unpacked(counts)
    lengths = np.asarray(counts, np.int64)
    if lengths.ndim != 1 or (lengths < 0).any() or lengths.sum() != size[0] * size[1]:
        raise BadData("its run lengths are not as many pixels as the image has")
    inside = np.arange(len(lengths)) % 2 == 1
    return np.repeat(inside, lengths).reshape(size[::-1]).T


def polygon_region(points: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The pixels whose centres a polygon encloses, bool (h, w); x and y in turn, (2 n,), in pixels from the top
    left corner of the image."""
    is_polygon = points.ndim == 1 and len(points) >= 6 and len(points) % 2 == 0
    if not is_polygon or not (np.abs(points) < FARTHEST).all():  # NaN is not
        raise BadData("a polygon has three points at least, x and y in turn, in pixels")
    x, y = points[::2], points[1::2]
    next_x, next_y = np.roll(x, -1), np.roll(y, -1)
    region = np.zeros(size, bool)
    first = max(int(np.floor(y.min())), 0)
    end = min(int(np.ceil(y.max())), size[0])
    for row in range(first, end):
        centre = row + 0.5
        crossed = (y <= centre) != (next_y <= centre)
        slope = (next_x - x)[crossed] / (next_y - y)[crossed]
        crossings = np.sort(x[crossed] + (centre - y[crossed]) * slope)
        for left, right in zip(crossings[::2], crossings[1::2], strict=True):
            columns = np.clip(np.ceil(np.array([left, right]) - 0.5), 0, size[1]).astype(int)
            region[row, columns[0] : columns[1]] = True
    return region


def unpacked(text: str) -> Sequence[int]:
    """The run lengths in COCO's compressed text: numbers of 5 bits a character, the last of each below 32, and from
    the third on differences from the one before the last."""
    counts: list[int] = []
    value = 0
    shift = 0
    for character in text.encode("ascii"):
        bits = character - 48
        if not 0 <= bits < 64 or shift > 60:
            raise BadData("its run lengths are not as COCO compresses them")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:  # negative
            value -= 1 << shift
        if len(counts) > 2:
            value += counts[-2]
        counts.append(value)
        value = 0
        shift = 0
    return counts
