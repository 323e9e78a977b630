"""Regions of images that are unlike good ones, as a file: a table, or annotations in COCO's format."""

import csv
import json
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitkit.data import Preprocessing, open_image
from vitkit.prediction.items import Item
from vitkit.prediction.rows import csv_cell, note_written, was_written
from vitkit.system.console.text import counted
from vitkit.system.errors import BadSettings, Unavailable
from vitkit.system.storage.files import as_utf8, check_replaceable, write_whole

if TYPE_CHECKING:
    from vitkit.inspection.figures.anomaly_maps import Region

COLUMNS = ("name", "left", "top", "width", "height", "score", "area")
ENDINGS = (".csv", ".json")


def check_regions(path: Path) -> None:
    """Raises VitkitError, before anything is computed, for a file of another kind, or that vitkit did not
    write."""
    if path.suffix.lower() not in ENDINGS:
        raise BadSettings(
            f"`regions` is {path}; it is a .csv file, or a .json file, which gets COCO's format"
        )
    if not (path.is_file() and was_written(path)):
        check_replaceable(path)


class RegionsFile:
    """Collects the regions of images; `write` writes the file."""

    def __init__(self, path: Path, labels: tuple[str, ...]):
        """labels: of the model: the good images' name, and that of others."""
        self.path = path
        self.label = labels[-1]
        self.images: list[dict[str, Any]] = []
        self.regions: list[tuple[int, Region]] = []
        """The number of an image, and a region of it."""

    def add(self, item: Item, shares: np.ndarray, preprocessing: Preprocessing) -> None:
        """Add the regions of an image, from its anomaly map (h, w). The image is read again, for its
        size."""
        from vitkit.inspection.figures.anomaly_maps import regions_in

        picture = open_image(item.read(), item.name)
        height, width = picture.size
        number = len(self.images)
        self.images.append({"id": number, "file_name": item.name, "width": width, "height": height})
        box = preprocessing.visible(picture)
        self.regions += [(number, region) for region in regions_in(shares, box, (height, width))]

    def write(self) -> str:
        """Write the file, and return a sentence about it. Raises OSError with a readable message."""
        content = self._table()
        if self.path.suffix.lower() == ".json":
            content = self._coco()
        path = self.path.resolve()  # replaces a link's target, not the link
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
        except OSError as error:
            raise Unavailable(
                f"{self.path} could not be written: {error.strerror or error}"
            ) from error
        note_written(path)
        having = len({number for number, _ in self.regions})
        return f"wrote {self.path}: {counted(len(self.regions), 'region')} of {counted(having, 'image')}"

    def _table(self) -> bytes:
        text = StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for number, region in self.regions:
            values = (self.images[number]["file_name"], *region.box, region.score, region.area)
            writer.writerow([csv_cell(value) for value in values])
        return as_utf8(text.getvalue())

    def _coco(self) -> bytes:
        annotations = []
        for identity, (number, region) in enumerate(self.regions, 1):
            annotations.append(
                {
                    "id": identity,
                    "image_id": number,
                    "category_id": 1,
                    "bbox": list(region.box),
                    "area": region.area,
                    "iscrowd": 0,
                    "score": region.score,
                }
            )
        values = {
            "images": self.images,
            "annotations": annotations,
            "categories": [{"id": 1, "name": self.label}],
        }
        return as_utf8(json.dumps(values, ensure_ascii=False))
