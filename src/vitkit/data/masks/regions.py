"""Connected regions of a mask, as COCO describes objects: boxes, areas, and run lengths.

Legend: K classes, h w pixels of a mask.
"""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np


class Region(NamedTuple):
    """Pixels of one class that touch each other by a side or a corner."""

    number: int
    """The number of the class."""
    box: tuple[int, int, int, int]
    """Left, top, width and height in pixels."""
    area: int
    """Number of pixels."""
    inside: np.ndarray
    """Which pixels of the box are of the region: bool (height, width)."""

    def run_lengths(self, size: tuple[int, int]) -> dict[str, Any]:
        """COCO's uncompressed run lengths of the region in a mask of (height, width): down the columns, beginning
        with the pixels outside."""
        left, top, width, height = self.box
        whole = np.zeros(size, bool)
        whole[top : top + height, left : left + width] = self.inside
        flat = whole.T.reshape(-1)
        changes = np.flatnonzero(np.diff(flat)) + 1
        counts = np.diff([0, *changes.tolist(), flat.size]).tolist()
        if flat[0]:
            counts = [0, *counts]
        return {"counts": counts, "size": list(size)}


def regions(
    mask: np.ndarray, classes: int, smallest: int = 1, without: Collection[int] = ()
) -> Iterator[Region]:
    """Yields the regions of each class of a mask, uint8 (h, w), that have `smallest` pixels at least; of each
    class from the top. without: classes whose regions are not looked for."""
    from scipy.ndimage import find_objects, label

    # The boxes of the classes, in one pass: 255 becomes the 0 that counts as nothing
    boxes = find_objects((mask + 1).astype(np.uint8), classes)
    for number, of_class in enumerate(boxes):
        if of_class is None or number in without:
            continue
        top, left = (axis.start for axis in of_class)
        parts, count = label(mask[of_class] == number, structure=np.ones((3, 3)))

        # Number the regions that are large enough
        areas = np.bincount(parts.reshape(-1), minlength=count + 1)
        is_listed = areas >= smallest
        is_listed[0] = False
        if not is_listed[1:].all():
            parts = (np.cumsum(is_listed) * is_listed)[parts]
        areas = areas[is_listed]
        for part, where in enumerate(find_objects(parts), 1):
            rows, columns = where
            box = (
                left + columns.start,
                top + rows.start,
                columns.stop - columns.start,
                rows.stop - rows.start,
            )
            yield Region(number, box, int(areas[part - 1]), parts[where] == part)


def as_coco(
    images: list[dict[str, Any]], annotations: list[dict[str, Any]], labels: tuple[str, ...]
) -> dict[str, Any]:
    """The contents of a COCO file; the id of a category is the number of its class plus one, as COCO counts."""
    categories = [{"id": number + 1, "name": name} for number, name in enumerate(labels)]
    return {"images": images, "categories": categories, "annotations": annotations}
