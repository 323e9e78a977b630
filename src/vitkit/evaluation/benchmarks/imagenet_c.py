"""ImageNet-C (Hendrycks & Dietterich 2019): ImageNet's validation images, corrupted, as files.

Their paths are CORRUPTION/SEVERITY/WNID/*.JPEG, below a folder of the corruption's kind (noise, blur,
weather, digital) or not, depending on how the archives were unpacked. A model's errors are divided by
those of AlexNet, so that hard and easy corruptions have the same weight.

Legend: C corruptions, S severities, N images.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitkit.data import Source
from vitkit.evaluation.benchmarks.corruptions import (
    COMMON,
    SEVERITIES,
    Corruption,
    Robustness,
    robustness,
)
from vitkit.evaluation.benchmarks.named import IMAGENET_C, Named, open_named
from vitkit.evaluation.metrics.answers import Answers
from vitkit.evaluation.metrics.metric import RELATIVE_ERROR, Metric, with_intervals
from vitkit.system.errors import BadData

KINDS = ("", "noise", "blur", "weather", "digital")

# AlexNet's top-1 error under each corruption, the mean over severities: the authors' published
# figures, by which every model's errors are divided
ALEXNET: dict[Corruption, float] = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
ALEXNET_CLEAN = 0.435  # AlexNet's error on clean images (Table 1 of their paper)


class CorruptedSet(NamedTuple):
    """The images of one corruption."""

    corruption: Corruption
    severities: tuple[Named, ...]
    """The corrupted images, one data set for each severity from 1 to 5."""

    @property
    def images(self) -> int:
        """The number of images at each severity."""
        return len(self.severities[0].source)


def open_corruption(where: str, corruption: Corruption) -> CorruptedSet | None:
    """Open the images of a corruption; None if it has no folder. Raises VitkitError for a missing
    severity, for one whose images differ from the first one's, and as `open_named` does."""
    folder = _folder(where, corruption)
    if folder is None:
        return None
    missing = [str(level) for level in SEVERITIES if not (folder / str(level)).is_dir()]
    if missing:
        raise BadData(
            f"{folder} has no folder {missing[0]}; a corruption has five, called 1 to 5, for its "
            "severities"
        )
    severities = [open_named("imagenet", str(folder / str(level))) for level in SEVERITIES]
    for level, named in zip(SEVERITIES, severities, strict=True):
        _check_same(severities[0].source, named.source, f"{folder / '1'}", f"{folder / str(level)}")
    return CorruptedSet(corruption, tuple(severities))


def is_imagenet_c(where: str) -> bool:
    """Whether a folder contains the folder of any corruption, with its first severity."""
    folders = [_folder(where, corruption) for corruption in COMMON]
    return any(folder is not None and (folder / "1").is_dir() for folder in folders)


def open_imagenet_c(where: str) -> tuple[list[CorruptedSet], tuple[str, ...]]:
    """Open the corruptions in a folder; returns them, and sentences about the protocol and about missing
    corruptions. Raises VitkitError if none of the fifteen is there, if two have different images, and
    as `open_corruption` does."""
    found = []
    missing = []
    for corruption in COMMON:
        corrupted = open_corruption(where, corruption)
        if corrupted is None:
            missing.append(corruption)
        else:
            found.append(corrupted)
    if not Path(where).is_dir():
        raise BadData(f"there is no folder {where}")
    if not found:
        raise BadData(
            f"{where} is not ImageNet-C: it has none of the folders {', '.join(COMMON[:3])}, ..., nor "
            f"noise/{COMMON[0]}, ..., with folders 1 to 5 in them (from {IMAGENET_C.source})"
        )
    first = found[0]
    for other in found[1:]:
        sources = first.severities[0].source, other.severities[0].source
        _check_same(*sources, first.corruption, other.corruption)

    notes = [f"{IMAGENET_C.title}: {IMAGENET_C.protocol}"]
    if missing:
        notes.append(
            f"{len(missing)} of its {len(COMMON)} corruptions are not there "
            f"({', '.join(missing)}), so the mean is not called mCE"
        )
    if first.images != IMAGENET_C.images:
        notes.append(
            f"these are {first.images:,} images a folder, and {IMAGENET_C.title} has "
            f"{IMAGENET_C.images:,}: the numbers are not those of the whole data set"
        )
    return found, tuple(notes)


def robustness_on_files(
    found: Sequence[CorruptedSet], ask: Callable[[Named, str], Answers]
) -> Robustness:
    """Measure every corruption at every severity. `ask` runs a model on the images of a folder; its second
    argument is the title of the progress bar."""
    by_name = {corrupted.corruption: corrupted for corrupted in found}
    names = list(by_name)

    def answers_to(corruption: Corruption, severity: int) -> Answers:
        named = by_name[corruption].severities[severity - 1]
        number = names.index(corruption) + 1
        return ask(named, f"{corruption} {severity}/{len(SEVERITIES)} ({number} of {len(names)})")

    measured = robustness(None, names, answers_to)
    return measured._replace(errors=corruption_errors(measured))


def corruption_errors(found: Robustness) -> tuple[Metric, ...]:
    """The mean corruption error, then that of each corruption: the model's error divided by AlexNet's (CE).
    The mean is called mce if all fifteen were measured, else corrupted/ce; the others corrupted/fog/ce."""
    errors = []
    for number, corruption in enumerate(found.cells):
        # (S, N) -> the share of severities at which each image is answered wrong, (N,)
        wrong = 1 - found.right[number].mean(0)
        errors.append(wrong / ALEXNET[corruption])
    name = "corrupted/ce"
    if set(found.cells) == set(COMMON):
        name = "mce"
    metrics = [_mean(name, np.mean(errors, 0))]
    for corruption, error in zip(found.cells, errors, strict=True):
        metrics.append(_mean(f"corrupted/{corruption}/ce", error))
    return tuple(metrics)


def relative_error(corrupted: float, clean: float, corruption: Corruption) -> float:
    """The relative CE: the increase of a model's error from clean to corrupted images, divided by
    AlexNet's. Errors are shares; `corrupted` is a mean over severities."""
    return (corrupted - clean) / (ALEXNET[corruption] - ALEXNET_CLEAN)


def _folder(where: str, corruption: Corruption) -> Path | None:
    """The folder of a corruption, directly in `where` or in the folder of its kind; None if there is none."""
    for kind in KINDS:
        folder = Path(where) / kind / corruption
        if folder.is_dir():
            return folder
    return None


def _check_same(first: Source, other: Source, first_name: str, other_name: str) -> None:
    """Raises VitkitError unless two folders have the same images, by file name and class, in the same
    order: otherwise a mean over them would be meaningless."""
    names = [_file(first, i) for i in range(len(first))]
    others = [_file(other, i) for i in range(len(other))]
    if names == others and np.array_equal(first.target_array, other.target_array):
        return
    extra = set(names) ^ set(others)
    example = ""
    if extra:
        example = f", {min(extra)} for example is in one of them alone"
    raise BadData(
        f"{first_name} and {other_name} have different images ({len(names):,} and {len(others):,}"
        f"{example}), and in ImageNet-C every folder has the same: unpack its archives again"
    )


def _file(source: Source, i: int) -> str:
    return Path(source.name(i)).name


def _mean(name: str, values: np.ndarray) -> Metric:
    """The mean over images of their values, (N,), with its interval; without one if it is not finite."""

    def figures(rows: np.ndarray) -> np.ndarray:
        return values[rows].mean(keepdims=True)

    finite = bool(np.isfinite(values).all())
    [metric] = with_intervals({name: RELATIVE_ERROR}, figures, len(values), finite)
    return metric
