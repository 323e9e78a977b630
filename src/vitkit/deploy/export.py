"""Export: a classifier as a file for another program, measured on real images before it gets its name.

Written to a folder beside it, tried there, and only then moved: a file that falls short is removed,
and what was there before stays.
"""

import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np

from vitkit.deploy.agreement import LEAST, Agreement, agree, prepared_images, wrong
from vitkit.deploy.exported import FILES, KEY, Exported, FileRuntime, Weights
from vitkit.deploy.graph import Graph, PictureGraph
from vitkit.deploy.opening import open_file
from vitkit.deploy.pytorch import check_answer, eager
from vitkit.deploy.quantise import quantise_onnx, quantised_openvino
from vitkit.deploy.trial import Trial, sample_trial
from vitkit.deploy.writers import (
    openvino_model,
    traced,
    write_onnx,
    write_openvino,
    write_program,
)
from vitkit.models import parameters
from vitkit.system.files import MARK, check_can_be_made, check_replaceable, write_json
from vitkit.system.machine import PrecisionChoice, pick_device, pick_precision
from vitkit.system.private import public
from vitkit.system.text import counted
from vitkit.weights import Classifier, licenses

To = Literal["onnx", "openvino", "torch"]
ENDINGS = {kind: ending for ending, kind in FILES.items()}
# What each format has, beside float32, and why not the others
PRECISIONS = {
    "onnx": ("float32", "float16", "bfloat16", "int8"),
    "openvino": ("float32", "float16", "bfloat16", "int8"),
    "torch": ("float32",),
}
NEEDED = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("openvino",), "torch": ()}


@dataclass(frozen=True)
class Export:
    """What to write."""

    to: To = "onnx"
    """For whom: ONNX Runtime and all that read ONNX, OpenVINO, or PyTorch's exported programs."""
    precision: Weights = "float32"
    """Numbers of the weights. float16 and bfloat16 halve the file; OpenVINO also computes in bfloat16
    then. int8 computes in int8, calibrated on images."""
    preprocessing: bool = False
    """Whether pictures of any size go in, uint8 (B, height, width, 3), and probabilities come out."""
    least: float | None = None
    """Least share of the images with the model's own answer; by default what such a precision
    reaches."""


def export(
    classifier: Classifier, path: Path | str, export: Export, trial: Trial | None = None
) -> Agreement:
    """Write a classifier as a file, try it on real images, and write their agreement beside it, in
    PATH.json.

    trial: by default the parts of two photographs; `trial_on` makes one of a data set.

    Raises ValueError for what cannot be exported, and, when nothing has got its name yet, for a file
    that disagrees with its model.
    """
    path = Path(path)
    trial = trial or sample_trial()
    check(classifier, path, export)
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    exported = described(classifier, export)
    with written_whole(path) as folder:
        new = folder / path.name
        write(classifier, exported, export, new, trial)
        agreement = _tried(classifier, exported, new, trial)
        least = export.least
        if least is None:
            least = LEAST[export.precision]
        if fault := wrong(agreement, export.precision, classifier.activation, least):
            raise ValueError(f"{path} was not written: {fault}. On {trial.name}: {agreement}")
        write_json(folder / f"{path.name}.json", report(classifier, export, agreement, new, least))
    return agreement


def check(classifier: Classifier, path: Path, export: Export) -> None:
    """Raises ValueError for what cannot be exported, before anything is computed."""
    if not classifier.labels:
        raise ValueError("the model has no classification head, so it has no answer to export")
    check_answer(classifier)
    channels = getattr(classifier.model.config, "channels", 3)
    if channels != 3 or classifier.preprocessing.values != "uint8":
        raise ValueError(
            f"the model takes images of {counted(channels, 'channel')} in "
            f"{classifier.preprocessing.values}; models for red, green and blue of 8 bits can be "
            "exported"
        )
    if path.suffix.lower() != ENDINGS[export.to]:
        raise ValueError(
            f"{path} does not end in {ENDINGS[export.to]}, as a file for {export.to} does"
        )
    if export.precision not in PRECISIONS[export.to]:
        known = ", ".join(PRECISIONS[export.to])
        raise ValueError(
            f"a {ENDINGS[export.to]} file is written in {known}, not in {export.precision}; choose "
            "--to openvino or --to onnx"
        )
    if export.least is not None and not 0 <= export.least <= 1:
        raise ValueError(f"--agreement is {export.least}; it is a share from 0 to 1")
    check_packages(export)
    files = [path, Path(f"{path}.json")]
    if export.to == "openvino":
        files.insert(1, path.with_suffix(".bin"))
    was_ours = is_as_measured(path)
    for file in files:
        if not was_ours:
            check_replaceable(file)
        check_can_be_made(file)


def is_as_measured(path: Path) -> bool:
    """Whether the report beside a file is vitkit's, and the file has the size that it says."""
    try:
        written = json.loads(Path(f"{path}.json").read_text())
        return written["made"] == MARK and written["bytes"] == size_of(path)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def size_of(path: Path) -> int:
    """Bytes of an exported file, with the weights beside it."""
    size = path.stat().st_size
    if FILES[path.suffix.lower()] == "openvino":
        size += path.with_suffix(".bin").stat().st_size
    return size


def needed(export: Export) -> list[str]:
    """The packages that write such a file, and try it."""
    packages = list(NEEDED[export.to])
    if export.to == "openvino" and export.precision == "int8":
        packages.append("nncf")
    return packages


def check_packages(export: Export) -> None:
    """Raises ValueError for a package that is missing."""
    from importlib.util import find_spec

    missing = [name for name in needed(export) if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"exporting to {export.to} needs {' and '.join(missing)}: pip install 'vitkit[export]'"
        )


def described(classifier: Classifier, export: Export) -> Exported:
    """What the file says of itself."""
    return Exported(
        classifier.preprocessing,
        classifier.labels,
        classifier.activation,
        export.precision,
        export.preprocessing,
        public(classifier.origin),
        licenses.to_json(classifier.license),
    )


def write(
    classifier: Classifier, exported: Exported, export: Export, path: Path, trial: Trial
) -> None:
    """Write the file, calibrated on the trial's images if it is int8."""
    # The graph
    deployed = classifier.for_inference().to("cpu")
    graph_of = Graph
    if exported.takes_pictures:
        graph_of = PictureGraph
    graph = graph_of(deployed)
    program = traced(graph, exported)

    # Images to calibrate with
    images = np.empty(0)
    if exported.precision == "int8":
        images = _calibration(exported, trial)

    # The file
    if export.to == "torch":
        write_program(program, exported, path)
    elif export.to == "onnx":
        write_onnx(program, exported, path)
        if exported.precision == "int8":
            quantise_onnx(path, images, exported)
    else:
        model = openvino_model(program, exported)
        if exported.precision == "int8":
            model = quantised_openvino(model, images)
        write_openvino(model, exported, path)


def _calibration(exported: Exported, trial: Trial) -> list[np.ndarray]:
    """Images to calibrate with, one at a time as the file takes them: (1, ...) each."""
    if exported.takes_pictures:
        from vitkit.deploy.trial import pixels_of

        pictures = [pixels_of(item) for item in trial.for_calibration]
        images = [picture[None] for picture in pictures if picture is not None]
    else:
        prepared, _ = prepared_images(exported.preprocessing, trial.for_calibration)
        images = [prepared[i : i + 1] for i in range(len(prepared))]
    if not images:
        raise ValueError(f"none of the images of {trial.name} can be read to calibrate with")
    return images


def _tried(classifier: Classifier, exported: Exported, path: Path, trial: Trial) -> Agreement:
    """The file's answers beside those of PyTorch in float32."""
    file = open_file(path, trusted=True)
    return agree(eager(classifier, "cpu"), file, trial.items, trial.name)


def report(
    classifier: Classifier, export: Export, agreement: Agreement, path: Path, least: float
) -> dict:
    """What is written beside the file."""
    packages = ["torch", *needed(export)]
    versions = {package: version(package) for package in packages}
    return {
        "made": MARK,
        "file": path.name,
        "bytes": size_of(path),
        "to": export.to,
        "precision": export.precision,
        "preprocessing_inside": export.preprocessing,
        "preprocessing": str(classifier.preprocessing),
        "parameters": parameters(classifier.model.config),
        "least_agreement": least,
        "agreement": asdict(agreement),
        "versions": versions,
        "platform": f"Python {platform.python_version()}, {sys.platform} {platform.machine()}",
    }


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A folder to write to. When the block ends, its files are moved to beside `path`, those that it
    needs first; if the block fails, nothing is."""
    parent = path.absolute().parent
    with TemporaryDirectory(prefix=".vitkit-export-", dir=parent) as folder:
        yield Path(folder)
        files = sorted(Path(folder).iterdir(), key=lambda file: file.name == path.name)
        for file in files:
            with file.open("r+b") as opened:
                os.fsync(opened.fileno())
        for file in files:
            file.replace(parent / file.name)


def exported_temporarily(
    classifier: Classifier, library: str, precision: PrecisionChoice = "float32"
) -> FileRuntime:
    """A classifier as another library computes it, through a file that is deleted once it is open."""
    weights = "float32"
    if library == "openvino":
        weights = pick_precision(precision, pick_device("cpu")).precision
    export = Export(to=library, precision=weights)
    check_answer(classifier)
    check_packages(export)
    exported = described(classifier, export)
    with TemporaryDirectory(prefix="vitkit-") as folder:
        path = Path(folder) / f"{KEY}{ENDINGS[library]}"
        write(classifier, exported, export, path, Trial("", (), ()))
        return open_file(path)
