"""ImageNet's validation images, identified by the numbers in their names: files of labels for images that are
not in class folders, and ReaL's labels, a list of classes for each image."""

import csv
import hashlib
import io
import math
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitkit.data import Source
from vitkit.evaluation.benchmarks.labels import align, imagenet_wordnet
from vitkit.evaluation.metrics.answers import Answers
from vitkit.evaluation.metrics.metric import COUNT, Metric, share_right
from vitkit.system.errors import BadData, Unavailable
from vitkit.system.storage.download import download
from vitkit.system.storage.files import cache_dir, parse_json

IMAGES = 50_000  # validation images; ReaL has no label for 3,163 of them
CLASSES = 1000
NAME = re.compile(r"ILSVRC2012_val_(\d{8})")
# Largest accepted file of labels; the published ones have three megabytes at most
MAX_BYTES = 16 << 20
# Number of parent folders to search: from ILSVRC/Data/CLS-LOC/val to Kaggle's LOC_val_solution.csv
HIGHER_FOLDERS = 4
DEVKIT = ("ILSVRC2012_devkit_t12/data", "devkit/data", "data")  # subfolders that are searched too


def number(name: str) -> int | None:
    """The number of a validation image, from 1, from the end of its name; None for another image."""
    found = NAME.findall(name)
    if not found or not 1 <= int(found[-1]) <= IMAGES:
        return None
    return int(found[-1])


def check_names(source: Source) -> None:
    """Raises VitkitError for an image that is not of ImageNet's validation part."""
    for index in range(len(source)):
        _number_of(source, index)


def _number_of(source: Source, index: int) -> int:
    """The number of a validation image. Raises VitkitError for another image."""
    name = source.name(index)
    found = number(name)
    if found is None:
        raise BadData(
            f"{name} does not have the name of an ImageNet validation image "
            "(ILSVRC2012_val_00000001.JPEG), so its labels in ReaL are not known"
        )
    return found


# The class of each image, from a file of labels


def find_labels(where: str) -> tuple[np.ndarray, Path]:
    """The class of each validation image, int64 (IMAGES,), in the order of their numbers, -1 if it has
    none; and the path of the file of labels, in the images' folder or above it. Raises VitkitError if
    there is no such file, and for a malformed one."""
    folder = Path(where).absolute()
    folders = [folder, *folder.parents][: HIGHER_FOLDERS + 1]
    for folder in folders:
        for inner in ("", *DEVKIT):
            for file, read in READERS.items():
                path = folder / inner / file
                if path.is_file():
                    return read(path), path
    raise BadData(
        f"the images in {where} lie in no class folders, and no file says what they are; expected "
        f"one of {', '.join(READERS)} there or in a folder above"
    )


def read_ground_truth(path: Path) -> np.ndarray:
    """Read ILSVRC2012_validation_ground_truth.txt of the development kit: a line for each image, with
    the challenge's own number of its class, from 1. meta.mat holds the names of these numbers."""
    synsets = _challenge_synsets(path.with_name("meta.mat"))
    values = _lines(path)
    _check_count(path, len(values))
    names = []
    for line, value in enumerate(values, 1):
        if value not in synsets:
            raise BadData(
                f"{path} line {line} is {value[:50]!r}; expected a number from 1 to {CLASSES}"
            )
        names.append(synsets[value])
    return _classes(path, names)


def read_synsets(path: Path) -> np.ndarray:
    """Read imagenet_2012_validation_synset_labels.txt of TensorFlow's tools: a line for each image,
    with the WordNet ID of its class."""
    names = _lines(path)
    _check_count(path, len(names))
    return _classes(path, names)


def read_solution(path: Path) -> np.ndarray:
    """Read Kaggle's LOC_val_solution.csv: "ImageId,PredictionString", where a prediction begins with
    the WordNet ID of the class."""
    names = [""] * IMAGES
    for row in csv.DictReader(io.StringIO(_text(path))):
        prediction = (row.get("PredictionString") or "").split()
        position = number(row.get("ImageId") or "")
        if position is None or not prediction:
            raise BadData(f"{path} has the row {str(row)[:100]}, which names no image and class")
        names[position - 1] = prediction[0]
    return _classes(path, names)


def read_list(path: Path) -> np.ndarray:
    """Read Caffe's val.txt: "ILSVRC2012_val_00000001.JPEG 65", with the class's index among the 1,000
    WordNet IDs in ascending order, which is also the order of published models."""
    classes = np.full(IMAGES, -1)
    for line, text in enumerate(_lines(path), 1):
        name, _, value = text.rpartition(" ")
        position = number(name)
        if position is None or not value.isdecimal():
            raise BadData(
                f'{path} line {line} is {text[:100]!r}; expected "ILSVRC2012_val_00000001.JPEG 65"'
            )
        classes[position - 1] = int(value)
    if classes.max() >= CLASSES:
        raise BadData(
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
    """The WordNet ID of each class by the challenge's number, as text, from meta.mat."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    if not path.is_file():
        raise BadData(
            f"{path} does not exist, and it alone holds the classes of the challenge's numbers; put "
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
        raise BadData(
            f"{path} is not the development kit's: {str(error) or type(error).__name__}"
        ) from None
    return {str(int(k)): str(name) for k, name in zip(numbers, names, strict=True) if k <= CLASSES}


def _classes(path: Path, names: Sequence[str]) -> np.ndarray:
    """The classes of images from their WordNet IDs; -1 for an empty one."""
    numbers = {name: k for k, name in enumerate(imagenet_wordnet())}
    numbers[""] = -1
    unknown = [name for name in names if name not in numbers]
    if unknown:
        raise BadData(f"{path} has the class {unknown[0][:50]!r}, which is none of ImageNet's")
    return np.array([numbers[name] for name in names], dtype=np.int64)


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in _text(path).splitlines() if line.strip()]


def _text(path: Path) -> str:
    _check_size(path)
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"{path} cannot be read: {error}") from None


def _check_size(path: Path) -> None:
    """Raises VitkitError for a file that is too large for a file of labels, or cannot be read."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}") from None
    if size > MAX_BYTES:
        raise BadData(f"{path} has more than {MAX_BYTES:,} bytes; a file of labels has fewer")


def _check_count(path: Path, count: int) -> None:
    if count != IMAGES:
        raise BadData(f"{path} has {count:,} lines; ImageNet has {IMAGES:,} validation images")


# ReaL (Beyer et al. 2020, Section 4.1 of the ViT paper): new labels, a list of classes for each image

DOWNLOAD = "download"  # value of `real` that downloads the file
URL = "https://raw.githubusercontent.com/google-research/reassessed-imagenet/25ae4854f875bbae6782fd9ea4a18654f6c89c6c/real.json"
SHA256 = "d83e9bff374c631aae8439eb064c7019acc56e1b3bc3f56b8380c2a710b0220b"

Lists = list[list[int]]


def find_real(path: Path | str) -> Path:
    """The path itself; or, for DOWNLOAD, the authors' file, downloaded once to the cache. Raises
    VitkitError for a download that fails or is not the published file."""
    if str(path) != DOWNLOAD:
        return Path(path)
    target = cache_dir() / "imagenet" / "real.json"
    try:
        download(URL, target)
        digest = hashlib.sha256(target.read_bytes()).hexdigest()
    except OSError as error:
        raise Unavailable(
            f"{error}; without a network, give the file of "
            "https://github.com/google-research/reassessed-imagenet as `real='real.json'`"
        ) from None
    if digest != SHA256:
        target.unlink()
        raise BadData(
            f"{URL} is not the published file (its sha256 is {digest}), so it was deleted; try again"
        )
    return target


def read_real(path: Path | str) -> Lists:
    """Read the classes of each validation image, in the images' order; [] for one without a label.
    Raises VitkitError for a file that does not have the format of the published one."""
    lists = read_json(Path(path))
    if not isinstance(lists, list) or len(lists) != IMAGES:
        raise BadData(
            f"{path} is not ReaL's real.json, which is a list of {IMAGES:,} lists of classes"
        )
    for number, classes in enumerate(lists, 1):
        is_list = isinstance(classes, list)
        if not is_list or not all(type(k) is int and 0 <= k < CLASSES for k in classes):
            raise BadData(
                f"{path} has {str(classes)[:100]} for image {number:,}; expected a list of classes "
                f"from 0 to {CLASSES - 1}"
            )
    return lists


def read_json(path: Path) -> Any:
    """Read an untrusted JSON file. Raises VitkitError for a file that cannot be read."""
    _check_size(path)
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadData(f"{path} is not JSON: {error}") from None


def real_accuracy(given: Answers, source: Source, lists: Lists) -> list[Metric]:
    """real/top1, the share of labelled images whose most likely class is in their list; and real/seen, the
    number of labelled images. Images without a label are left out.

    Images are identified by the numbers in their names, whatever their folder. Raises VitkitError for an
    image that is not of ImageNet's validation part, for a model that lacks one of ImageNet's classes, and
    if no image has a label.
    """
    model_class = align(imagenet_wordnet(), given.labels).classes.tolist()
    right: list[float] = []
    labelled = []
    for position, index in enumerate(given.indices.tolist()):
        expected = lists[_number_of(source, index) - 1]
        if not expected:
            continue
        labelled.append(position)
        right.append(given.predicted[position] in [model_class[k] for k in expected])
    if not labelled:
        raise BadData(f"none of the {len(given):,} images has a label in ReaL")
    if not given.finite.all():
        right = [math.nan] * len(labelled)
    groups = None
    if given.groups is not None:
        groups = given.groups[labelled]
    top1 = share_right("real/top1", np.array(right), groups)
    return [top1, Metric("real/seen", len(labelled), COUNT)]
