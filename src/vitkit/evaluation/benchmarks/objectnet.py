"""ObjectNet (Barbu et al. 2019; Appendix D.9 of the ViT paper): photographs of 313 kinds of objects, of
which 113 are classes of ImageNet, some of them several.

The images come with a red border of one pixel, which is no part of the photograph: it is cut off.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitkit.data import BadImage, Columns, Source, Store, open_image, open_source, subset
from vitkit.evaluation.benchmarks.labels import align, imagenet_wordnet
from vitkit.weights import imagenet_labels

BORDER = 1  # pixels on each side
FOLDERS = "folder_to_objectnet_label.json"
CLASSES = "objectnet_to_imagenet_1k.json"
MAX_BYTES = 1 << 20  # of each


@dataclass(frozen=True, eq=False)
class WithoutBorder:
    """The images of another store without their border."""

    store: Store

    def read(self, row: int) -> np.ndarray:
        """uint8 (h, w, 3). Raises BadImage."""
        name = self.name(row)
        pixels = open_image(self.store.read(row), name).pixels()
        inner = pixels[BORDER:-BORDER, BORDER:-BORDER]
        if not inner.size:
            raise BadImage(f"{name} has nothing but a border of {BORDER} pixel")
        return inner

    def name(self, row: int) -> str:
        return self.store.name(row)

    def identity(self, row: int) -> str:
        return f"{self.store.identity(row)} without border"

    def prepare(self, rows: np.ndarray) -> None:
        self.store.prepare(rows)

    def chunks(self, rows: np.ndarray) -> tuple[np.ndarray, int] | None:
        return self.store.chunks(rows)


def open_objectnet(where: str) -> tuple[Source, tuple[tuple[str, ...], ...]]:
    """The images of the objects that ImageNet has, without their border; and for each object the
    WordNet names of the classes that it is.

    `where` is the folder that was downloaded, with `images` and `mappings`, or `images` itself.
    Raises ValueError for mappings that are missing or malformed, and for folders that they do not
    have.
    """
    root = Path(where)
    if (root / "images").is_dir():
        root = root / "images"
    mappings = _mappings(root)
    object_of_folder = _read(mappings / FOLDERS)
    names_of_object = _read(mappings / CLASSES)

    # The objects that ImageNet has, and the number of each folder's, or -1
    source = open_source(str(root), Columns())
    objects = sorted(names_of_object)
    number_of = {name: i for i, name in enumerate(objects)}
    numbers = []
    for folder in source.labels:
        if folder not in object_of_folder:
            raise ValueError(
                f"{root} has the folder {folder!r}, which {mappings / FOLDERS} does not have"
            )
        numbers.append(number_of.get(object_of_folder[folder], -1))

    # Their images
    targets = np.array(numbers, dtype=np.int64)[source.targets]
    overlapping = subset(source, np.flatnonzero(targets >= 0))
    if not len(overlapping):
        raise ValueError(f"{root} has no image of an object that ImageNet has")
    wnids = tuple(_wnids(names_of_object[name], mappings / CLASSES) for name in objects)
    return (
        Source(
            WithoutBorder(source.store), overlapping.rows, targets[targets >= 0], tuple(objects)
        ),
        wnids,
    )


def _mappings(images: Path) -> Path:
    """The folder of the mappings, beside that of the images. Raises ValueError if it is not
    there."""
    for folder in (images.parent / "mappings", images / "mappings"):
        if (folder / FOLDERS).is_file() and (folder / CLASSES).is_file():
            return folder
    raise ValueError(
        f"{images.parent / 'mappings'} needs {FOLDERS} and {CLASSES} of ObjectNet's download, which "
        "say what its folders are in ImageNet"
    )


def _read(path: Path) -> dict[str, str]:
    """A file of names by names. Raises ValueError for anything else."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"{path} has more than {MAX_BYTES:,} bytes; it is a list of names")
        values = json.loads(path.read_bytes())
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(values, dict) or not all(type(name) is str for name in values.values()):
        raise ValueError(f"{path} is not ObjectNet's: expected an object with names as values")
    return values


def _wnids(names: str, path: Path) -> tuple[str, ...]:
    """The WordNet names of ImageNet's classes that an entry such as "analog clock; digital clock"
    lists. Raises ValueError for a class that ImageNet does not have."""
    try:
        classes = align(names.split("; "), imagenet_labels()).classes.tolist()
    except ValueError:
        raise ValueError(f"{path} has {names[:100]!r}, which are no classes of ImageNet") from None
    return tuple(imagenet_wordnet()[k] for k in classes)
