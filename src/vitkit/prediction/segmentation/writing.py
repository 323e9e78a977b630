"""A folder of predicted masks: a PNG and an overlay for each image, the shares of classes as CSV, and regions as
COCO JSON."""

import csv
import json
import os
from io import StringIO
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from vitkit.data import IMAGE_SUFFIXES, regions
from vitkit.data.masks.legend import legend_text
from vitkit.data.masks.regions import as_coco
from vitkit.prediction.rows import csv_cell
from vitkit.prediction.segmentation.palette import backgrounds, mask_png, overlay_jpeg
from vitkit.system.errors import BadSettings
from vitkit.system.storage.files import MARK, as_utf8, check_replaceable, write_whole

SHARES = "shares.csv"
REGIONS = "regions.json"
LEGEND = "legend.csv"
LONGEST = 200  # bytes of a name; file systems have 255, with the ending


def _stem(name: str) -> str:
    """The name of an image's files without an ending: "a" of "photos/a.jpg", and "x.parquet row 3" of a row; as
    much of it as the name of a file may have."""
    path = Path(name.replace("\0", "_"))
    stem = path.name or "image"
    if path.suffix.lower() in IMAGE_SUFFIXES:
        stem = path.stem
    shortened = os.fsencode(stem)[:LONGEST]
    return shortened.decode("utf-8", "ignore")


def check_mask_folder(folder: Path) -> None:
    """Raises VitkitError for a folder that holds something else than masks that this wrote earlier."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / REGIONS).is_file():
        raise BadSettings(
            f"{folder} holds other files, which masks of the same names would replace; give a new folder"
        )
    check_replaceable(folder / REGIONS)


class MaskFolder:
    """Writes masks into a folder; a context manager, whose tables are complete when the block ends."""

    def __init__(self, folder: Path, labels: tuple[str, ...], overlays: bool, smallest: int):
        """smallest: pixels of the smallest region that is listed. Raises VitkitError as `check_mask_folder`."""
        self.folder = folder
        self.labels = labels
        self.overlays = overlays
        self.smallest = smallest
        self.taken: set[str] = set()
        self.images: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.rows: list[list[Any]] = []
        check_mask_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._write_tables()  # so that the folder is known as this one's if the process is killed

    def __enter__(self) -> "MaskFolder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._write_tables()

    def add(self, name: str, mask: np.ndarray, pixels: np.ndarray | None) -> Path:
        """Write the mask of an image, uint8 (h, w), and its overlay; returns the mask's file.

        pixels: the image, uint8 (h, w, 3); None without overlays.
        """
        stem = self._free_name(_stem(name))
        file = self.folder / f"{stem}.png"
        file.write_bytes(mask_png(mask, self.labels))
        if pixels is not None:
            overlaid = overlay_jpeg(pixels, mask, self.labels)
            (self.folder / f"{stem}.overlay.jpg").write_bytes(overlaid)

        # Its row, and its regions
        height, width = mask.shape
        counts = np.bincount(mask.reshape(-1), minlength=len(self.labels))[: len(self.labels)]
        shares = [round(float(count) / mask.size, 6) for count in counts]
        self.rows.append([name, file.name, width, height, *shares])
        number = len(self.images) + 1
        self.images.append({"id": number, "file_name": name, "width": width, "height": height})
        no_things = backgrounds(self.labels)
        for region in regions(mask, len(self.labels), self.smallest, no_things):
            self.annotations.append(
                {
                    "id": len(self.annotations) + 1,
                    "image_id": number,
                    "category_id": region.number + 1,
                    "bbox": list(region.box),
                    "area": region.area,
                    "iscrowd": 0,
                    "segmentation": region.run_lengths(mask.shape),
                }
            )
        return file

    def _free_name(self, stem: str) -> str:
        """The stem, with a number behind it if another image has it."""
        free = stem
        number = 2
        while free.casefold() in self.taken:
            free = f"{stem}-{number}"
            number += 1
        self.taken.add(free.casefold())
        return free

    def _write_tables(self) -> None:
        columns = ["image", "mask", "width", "height", *self.labels]
        text = StringIO(newline="")
        table = csv.writer(text)
        for row in [columns, *self.rows]:
            table.writerow([csv_cell(value) for value in row])
        write_whole(self.folder / SHARES, as_utf8(text.getvalue()))
        write_whole(self.folder / LEGEND, as_utf8(legend_text(self.labels)))
        contents = {"made": MARK, **as_coco(self.images, self.annotations, self.labels)}
        write_whole(self.folder / REGIONS, as_utf8(json.dumps(contents)))
