"""Export: a classifier as a file for another program, checked on real images before the file gets
its name.

The file is written to a temporary folder, checked there, and only then moved: a file that fails the check
is removed, and an existing file of that name stays.
"""

import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import numpy as np

from vitkit.exporting.agreement import Agreement, Trial, agree, sample_trial
from vitkit.exporting.bounds import LEAST, conclusion, wrong
from vitkit.exporting.browser import LARGEST_NETWORK, PACKAGE, page
from vitkit.models import VisionTransformer, check_can_merge, parameters
from vitkit.prediction import prepared_images
from vitkit.prediction.batches import pixels_of
from vitkit.runtimes import (
    ENDINGS,
    Export,
    Exported,
    check_answer,
    described,
    eager,
    map_runtime,
    open_file,
    segments,
    write,
)
from vitkit.runtimes.exported import MERGED
from vitkit.runtimes.graphs.graph import check_any_grid
from vitkit.runtimes.graphs.writing import check_packages, needed, needs_calibration
from vitkit.system.console.text import counted
from vitkit.system.errors import BadData, BadSettings, Unsupported
from vitkit.system.storage.files import (
    MARK,
    check_can_be_made,
    check_replaceable,
    parse_json,
    whole_files,
    write_json,
)
from vitkit.system.storage.private import public
from vitkit.weights import Classifier, check_answers

# Supported settings, and checks before any computation

TITLED = 3  # largest number of classes in the title of a page

# Precisions of each format
PRECISIONS = {
    "onnx": ("float32", "float16", "bfloat16", "int8"),
    "openvino": ("float32", "float16", "bfloat16", "int8"),
    "torch": ("float32",),
    "page": ("float16", "float32", "int8"),
}

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}  # per weight


def check(classifier: Classifier, path: Path, wanted: Export) -> None:
    """Raises VitkitError, before anything is computed, if the export is impossible."""
    check_answers(classifier)
    if segments(classifier):
        _check_maps(wanted)
    else:
        check_answer(classifier)
    channels = getattr(classifier.model.config, "channels", 3)
    if channels != 3 or classifier.preprocessing.values != "uint8":
        raise BadSettings(
            f"the model takes images of {counted(channels, 'channel')} in "
            f"{classifier.preprocessing.values}; models for red, green and blue of 8 bits can be "
            "exported"
        )
    if classifier.preprocessing.is_native:
        _check_native(classifier, wanted)
    if path.suffix.lower() != ENDINGS[wanted.to]:
        raise BadSettings(
            f"{path} does not end in {ENDINGS[wanted.to]}, as a file for {wanted.to} does"
        )
    if wanted.precision not in PRECISIONS[wanted.to]:
        known = ", ".join(PRECISIONS[wanted.to])
        raise BadSettings(
            f"a {ENDINGS[wanted.to]} file is written in {known}, not in {wanted.precision}; choose "
            "`to='openvino'` or `to='onnx'`"
        )
    if wanted.to == "page":
        if wanted.preprocessing:
            raise BadSettings(
                "a page always prepares photographs itself; leave out `preprocessing`"
            )
        weights = parameters(classifier.model.config) * BYTES[wanted.precision]
        if weights > LARGEST_NETWORK:
            raise BadSettings(
                f"the model's weights are {weights:,} bytes in {wanted.precision}, and a page holds "
                f"{LARGEST_NETWORK:,}; choose a smaller model, or `precision='float16'` or int8"
            )
    if wanted.calibrated and wanted.precision != "int8":
        raise BadSettings(
            f"images calibrate int8, and the file is to be in {wanted.precision}; leave them out"
        )
    if wanted.merge:
        check_can_merge(classifier.model, wanted.merge)
    if wanted.least is not None and not 0 <= wanted.least <= 1:
        raise BadSettings(f"`agreement` is {wanted.least}; it is a share from 0 to 1")
    check_packages(wanted)
    files = [path, Path(f"{path}.json")]
    if wanted.to == "openvino":
        files.insert(1, path.with_suffix(".bin"))
    was_ours = is_as_measured(path)
    for file in files:
        if not was_ours:
            check_replaceable(file)
        check_can_be_made(file)


def _check_native(classifier: Classifier, wanted: Export) -> None:
    """Raises VitkitError if a model of images at their own proportions cannot be exported like this."""
    if wanted.to == "page":
        raise Unsupported(
            "the model reads images at their own proportions, and a page prepares squares and crops: "
            "export .onnx, or a model that crops (`crop='centre'`)"
        )
    if wanted.preprocessing:
        raise Unsupported(
            "the model reads images at their own proportions, whose grid a file with the preprocessing "
            "inside cannot choose: leave `preprocessing` out, or export a model that crops (`crop='centre'`)"
        )
    if wanted.merge:
        raise Unsupported(
            "`merge` merges as many tokens of every image, and images at their own proportions have "
            "unequally many; leave it out"
        )
    assert isinstance(classifier.model, VisionTransformer)  # Classifier requires it
    check_any_grid(classifier.model)


def _check_maps(wanted: Export) -> None:
    """Raises VitkitError if a model that classifies every pixel cannot be exported like this."""
    for name, is_asked in (
        ("`to='page'`", wanted.to == "page"),
        ("`preprocessing`", wanted.preprocessing),
        ("`merge`", bool(wanted.merge)),
        ("`precision='int8'`", wanted.precision == "int8"),
    ):
        if is_asked:
            raise Unsupported(
                f"{name} is for models that give an image one answer, and this one classifies every pixel; leave "
                "it out"
            )


def is_as_measured(path: Path) -> bool:
    """Whether FILE.json is a report of vitkit, and the file still has the size in it."""
    try:
        written = parse_json(Path(f"{path}.json").read_text())
        return written["made"] == MARK and written["bytes"] == size_of(path)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def size_of(path: Path) -> int:
    """The size of an exported file in bytes, including the weights beside it."""
    size = path.stat().st_size
    if path.suffix.lower() == ENDINGS["openvino"]:
        size += path.with_suffix(".bin").stat().st_size
    return size


# The export


def write_export(
    classifier: Classifier, path: Path | str, wanted: Export, trial: Trial | None = None
) -> Agreement:
    """Write a classifier as a file, check it on real images, and write the agreement to PATH.json.

    trial: crops of two photographs by default; `trial_on` makes a trial of a data set.

    Raises VitkitError if the model cannot be exported, and if the file disagrees with its model; then no
    file is written.
    """
    path = Path(path)
    trial = trial or sample_trial()
    check(classifier, path, wanted)
    if wanted.to == "page" and wanted.web_runtime is None:
        raise BadSettings(
            f"a page holds {PACKAGE}: give the Export what find_web_runtime() returns"
        )
    exported = described(classifier, wanted)
    with whole_files(path.absolute().parent, last=path.name, named=path) as folder:
        new = folder / path.name
        network = new
        if wanted.to == "page":
            network = new.with_suffix(ENDINGS["onnx"])
        write(classifier, exported, wanted, network, calibration_images(exported, wanted, trial))
        file = open_file(network, trusted=True)
        bounds = wanted.precision
        if wanted.merge:  # token merging has the bounds of int8
            bounds = "int8"
        runtime = map_runtime if segments(classifier) else eager
        agreement = agree(runtime(classifier, "cpu"), file, trial, wanted.precision)
        least = wanted.least
        if least is None:
            least = LEAST[bounds]
        if fault := wrong(agreement, bounds, classifier.activation, least):
            sentence = f"{path} was not written: {fault}. On {trial.name}: {agreement}"
            if trial.photographs is not None:  # crops of the two that come with scikit-learn
                sentence += ". `data=DATA` tries it on images like yours"
            raise BadSettings(sentence)
        if wanted.to == "page":
            assert wanted.web_runtime is not None  # checked above
            about = _about(classifier, exported, agreement)
            text = page(
                _subject(classifier.labels),
                exported,
                network.read_bytes(),
                wanted.web_runtime,
                about,
            )
            new.write_text(text, "utf-8")
            network.unlink()
        write_json(folder / f"{path.name}.json", report(classifier, wanted, agreement, new, least))
    return agreement


def _subject(labels: Sequence[str]) -> str:
    """The title of a page, from its classes: "ants, bees or wasps", or the first classes of many."""
    if len(labels) > TITLED:
        return f"{', '.join(labels[:TITLED])} and {len(labels) - TITLED:,} more"
    return " or ".join(filter(None, [", ".join(labels[:-1]), labels[-1]]))


def _about(
    classifier: Classifier, exported: Exported, agreement: Agreement
) -> list[tuple[str, str]]:
    """Details about the model for its page: pairs of a name and a text."""
    about = [
        ("model", counted(parameters(classifier.model.config), "parameter")),
        ("measured", f"beside the model that it was made of, by vitkit export: {agreement}"),
    ]
    if classifier.license is not None:
        names = filter(None, [classifier.license.id, classifier.license.name])
        about.append(("licence of the weights", " ".join(names)))
    if exported.limits is not None:
        about.append(
            (
                "unknown",
                f"{exported.limits.rejected:.0%} of known photographs at most are rejected",
            )
        )
    return about


def calibration_images(exported: Exported, wanted: Export, trial: Trial) -> list[np.ndarray]:
    """Images for calibrating a file, each as the file takes them, (1, ...); empty if it needs no
    calibration. Raises BadData if none of the trial's images is readable."""
    if not needs_calibration(wanted):
        return []
    if exported.takes_pictures:
        pictures = [pixels_of(item) for item in trial.for_calibration]
        images = [picture[None] for picture in pictures if picture is not None]
    else:
        prepared, _ = prepared_images(exported.preprocessing, trial.for_calibration)
        numbers = range(len(prepared))
        images = [exported.preprocessing.image_of(prepared, i)[None] for i in numbers]
    if not images:
        raise BadData(f"none of the images of {trial.name} can be read to calibrate with")
    return images


def report(
    classifier: Classifier, wanted: Export, agreement: Agreement, path: Path, least: float
) -> dict:
    """The report, for FILE.json beside the file."""
    packages = ["torch", *needed(wanted)]
    versions = {package: version(package) for package in packages}
    if wanted.web_runtime is not None:
        versions[PACKAGE] = wanted.web_runtime.version
    return {
        "made": MARK,
        "file": path.name,
        "bytes": size_of(path),
        "to": wanted.to,
        "precision": wanted.precision,
        "calibrated": needs_calibration(wanted),
        "preprocessing_inside": wanted.preprocessing,
        MERGED: wanted.merge,
        "preprocessing": str(classifier.preprocessing),
        "parameters": parameters(classifier.model.config),
        "least_agreement": least,
        "agreement": {
            **public(asdict(agreement)),
            "interval_of_same": agreement.interval_of_same,
            "interval_of_loss": agreement.interval_of_loss,
            "conclusion": conclusion(agreement),
        },
        "versions": versions,
        "platform": f"Python {platform.python_version()}, {sys.platform} {platform.machine()}",
    }
