"""ReaL (Beyer et al. 2020, Section 4.1 of the ViT paper): new labels for ImageNet's validation images,
a list of classes for each, in real.json."""

import hashlib
import json
import math
import re
from pathlib import Path

from vitkit.data import Source
from vitkit.evaluation.benchmarks.labels import align, imagenet_wordnet
from vitkit.evaluation.metrics.answers import Answers
from vitkit.evaluation.metrics.metric import COUNT, Metric, share_right
from vitkit.system.storage.download import download
from vitkit.system.storage.files import cache_dir

IMAGES = 50_000  # of ImageNet's validation part; 3,163 have no label
CLASSES = 1000
MAX_BYTES = 16 << 20  # of the file, which has half a megabyte
VALIDATION_IMAGE = re.compile(r"ILSVRC2012_val_(\d{8})")

DOWNLOAD = "download"  # instead of a path
URL = "https://raw.githubusercontent.com/google-research/reassessed-imagenet/25ae4854f875bbae6782fd9ea4a18654f6c89c6c/real.json"
SHA256 = "d83e9bff374c631aae8439eb064c7019acc56e1b3bc3f56b8380c2a710b0220b"

Lists = list[list[int]]


def find_real(path: Path | str) -> Path:
    """The file at a path; or, for DOWNLOAD, the authors' own, downloaded once to the cache.

    Raises ValueError for a download that fails or is another file than the published one.
    """
    if str(path) != DOWNLOAD:
        return Path(path)
    target = cache_dir() / "imagenet" / "real.json"
    try:
        download(URL, target)
        digest = hashlib.sha256(target.read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(
            f"{error}; without a network, give the file of "
            "https://github.com/google-research/reassessed-imagenet as --real real.json"
        ) from None
    if digest != SHA256:
        target.unlink()
        raise ValueError(
            f"{URL} is not the published file (its sha256 is {digest}), so it was deleted; try again"
        )
    return target


def read_real(path: Path | str) -> Lists:
    """The classes of each validation image, in the images' order; [] for one without a label.

    Raises ValueError for a file that is not the published one, or one like it.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"{path} has more than {MAX_BYTES:,} bytes; real.json has fewer")
        lists = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(lists, list) or len(lists) != IMAGES:
        raise ValueError(
            f"{path} is not ReaL's real.json, which is a list of {IMAGES:,} lists of classes"
        )
    for number, classes in enumerate(lists, 1):
        if not isinstance(classes, list) or not all(map(_is_class, classes)):
            raise ValueError(
                f"{path} has {str(classes)[:100]} for image {number:,}; expected a list of classes "
                f"from 0 to {CLASSES - 1}"
            )
    return lists


def check_names(source: Source) -> None:
    """Raises ValueError, before a model answers, for an image that is not of ImageNet's validation
    part."""
    for index in range(len(source)):
        _number(source.name(index))


def real_accuracy(given: Answers, source: Source, lists: Lists) -> list[Metric]:
    """real/top1: how often the likeliest class is in an image's list; and real/seen, the images that
    have a label: the others are left out.

    The images are known by the numbers in their names, in whatever folders they lie. Raises
    ValueError for an image that is not of ImageNet's validation part, for a model that lacks one of
    ImageNet's classes, and if no image has a label.
    """
    model_class = align(imagenet_wordnet(), given.labels).classes.tolist()
    right = 0
    seen = 0
    for position, index in enumerate(given.indices.tolist()):
        expected = lists[_number(source.name(index)) - 1]
        if not expected:
            continue
        seen += 1
        if given.predicted[position] in [model_class[k] for k in expected]:
            right += 1
    if not seen:
        raise ValueError(f"none of the {len(given):,} images has a label in ReaL")
    if not given.finite.all():
        right = math.nan
    return [share_right("real/top1", right, seen), Metric("real/seen", seen, COUNT)]


def _number(name: str) -> int:
    """The number of a validation image, from 1, by its name."""
    match = VALIDATION_IMAGE.search(name)
    if match is None or not 1 <= int(match[1]) <= IMAGES:
        raise ValueError(
            f"{name} is not called as an image of ImageNet's validation part is "
            "(ILSVRC2012_val_00000001.JPEG), so its labels in ReaL are not known"
        )
    return int(match[1])


def _is_class(value: object) -> bool:
    return type(value) is int and 0 <= value < CLASSES
