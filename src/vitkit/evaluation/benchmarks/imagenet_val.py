"""ImageNet's validation images as they are passed on without class folders: 50,000 files whose names
have a number, and a file beside them with the class of each."""

import csv
import io
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from vitkit.evaluation.benchmarks.labels import imagenet_wordnet

IMAGES = 50_000
CLASSES = 1000
NAME = re.compile(r"ILSVRC2012_val_(\d{8})")
MAX_BYTES = 16 << 20  # of a file of labels, which has three megabytes at most
HIGHER_FOLDERS = 4  # as from ILSVRC/Data/CLS-LOC/val to Kaggle's LOC_val_solution.csv
DEVKIT = ("ILSVRC2012_devkit_t12/data", "devkit/data", "data")  # below one of these folders


def number(name: str) -> int | None:
    """The number of a validation image, from 1, by the end of its name; None for another image."""
    found = NAME.findall(name)
    if not found or not 1 <= int(found[-1]) <= IMAGES:
        return None
    return int(found[-1])


def find_labels(where: str) -> tuple[np.ndarray, Path]:
    """The class of each validation image, int64 (IMAGES,), in the order of their numbers; -1 for one
    that has none; and the file that says so, in the folder of the images or above it.

    Raises ValueError if there is none, and for one that is malformed.
    """
    folder = Path(where).absolute()
    folders = [folder, *folder.parents][: HIGHER_FOLDERS + 1]
    for folder in folders:
        for inner in ("", *DEVKIT):
            for file, read in READERS.items():
                path = folder / inner / file
                if path.is_file():
                    return read(path), path
    raise ValueError(
        f"the images in {where} lie in no class folders, and no file says what they are; expected "
        f"one of {', '.join(READERS)} there or in a folder above"
    )


def read_ground_truth(path: Path) -> np.ndarray:
    """ILSVRC2012_validation_ground_truth.txt of the development kit: a line for each image, with
    the challenge's own number of its class, from 1. What these numbers mean is in meta.mat."""
    synsets = _challenge_synsets(path.with_name("meta.mat"))
    values = _lines(path)
    _check_count(path, len(values))
    names = []
    for line, value in enumerate(values, 1):
        if value not in synsets:
            raise ValueError(
                f"{path} line {line} is {value[:50]!r}; expected a number from 1 to {CLASSES}"
            )
        names.append(synsets[value])
    return _classes(path, names)


def read_synsets(path: Path) -> np.ndarray:
    """imagenet_2012_validation_synset_labels.txt, as TensorFlow's tools have it: a line for each
    image, with WordNet's name of its class."""
    names = _lines(path)
    _check_count(path, len(names))
    return _classes(path, names)


def read_solution(path: Path) -> np.ndarray:
    """Kaggle's LOC_val_solution.csv: "ImageId,PredictionString", where a prediction begins with
    WordNet's name of the class."""
    names = [""] * IMAGES
    for row in csv.DictReader(io.StringIO(_text(path))):
        prediction = (row.get("PredictionString") or "").split()
        position = number(row.get("ImageId") or "")
        if position is None or not prediction:
            raise ValueError(f"{path} has the row {str(row)[:100]}, which names no image and class")
        names[position - 1] = prediction[0]
    return _classes(path, names)


def read_list(path: Path) -> np.ndarray:
    """val.txt, as Caffe has it: "ILSVRC2012_val_00000001.JPEG 65", with the class's position among
    the 1,000 WordNet names in ascending order; which is also the order of published models."""
    classes = np.full(IMAGES, -1)
    for line, text in enumerate(_lines(path), 1):
        name, _, value = text.rpartition(" ")
        position = number(name)
        if position is None or not value.isdecimal():
            raise ValueError(
                f'{path} line {line} is {text[:100]!r}; expected "ILSVRC2012_val_00000001.JPEG 65"'
            )
        classes[position - 1] = int(value)
    if classes.max() >= CLASSES:
        raise ValueError(
            f"{path} has the class {classes.max()}, and positions go from 0 to {CLASSES - 1}; "
            "numbers from 1 are the challenge's, which have another order"
        )
    return classes


READERS: dict[str, Callable[[Path], np.ndarray]] = {
    "val.txt": read_list,
    "ILSVRC2012_validation_ground_truth.txt": read_ground_truth,
    "LOC_val_solution.csv": read_solution,
    "imagenet_2012_validation_synset_labels.txt": read_synsets,
}


def _challenge_synsets(path: Path) -> dict[str, str]:
    """WordNet's name of each class by the challenge's number, as text, from meta.mat."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    if not path.is_file():
        raise ValueError(
            f"there is no {path}, and only it says which classes the challenge's numbers are; put "
            "meta.mat of the same development kit there"
        )
    _check_size(path)
    try:
        synsets = loadmat(path, squeeze_me=True, variable_names=["synsets"])["synsets"]
        numbers = synsets["ILSVRC2012_ID"].tolist()
        names = synsets["WNID"].tolist()
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        NotImplementedError,
        MatReadError,
        zlib.error,
    ) as error:
        raise ValueError(
            f"{path} is not the development kit's: {str(error) or type(error).__name__}"
        ) from None
    return {str(int(k)): str(name) for k, name in zip(numbers, names, strict=True) if k <= CLASSES}


def _classes(path: Path, names: Sequence[str]) -> np.ndarray:
    """The classes of images by WordNet's names; -1 for an empty one."""
    numbers = {name: k for k, name in enumerate(imagenet_wordnet())}
    numbers[""] = -1
    unknown = [name for name in names if name not in numbers]
    if unknown:
        raise ValueError(f"{path} has the class {unknown[0][:50]!r}, which is none of ImageNet's")
    return np.array([numbers[name] for name in names], dtype=np.int64)


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in _text(path).splitlines() if line.strip()]


def _text(path: Path) -> str:
    _check_size(path)
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def _check_size(path: Path) -> None:
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES:,} bytes; a file of labels has fewer")


def _check_count(path: Path, count: int) -> None:
    if count != IMAGES:
        raise ValueError(f"{path} has {count:,} lines; ImageNet has {IMAGES:,} validation images")
