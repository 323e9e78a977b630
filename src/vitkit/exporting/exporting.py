"""Export: a classifier as a file for another program, measured on real images before it gets its name.

Written to a folder beside it, tried there, and only then moved: a file that falls short is removed,
and what was there before stays.
"""

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from vitkit.exporting.agreement import LEAST, Agreement, agree, prepared_images, wrong
from vitkit.exporting.exact_layers import exact_in_onnx, exact_in_openvino
from vitkit.exporting.graph import Graph, PictureGraph
from vitkit.exporting.int8 import (
    ONNX_BITS,
    calibrated_openvino,
    int8_openvino,
    quantise_onnx,
)
from vitkit.exporting.request import (
    Export,
    check,
    needed,
    needs_calibration,
    size_of,
    whose_bounds,
)
from vitkit.exporting.trial import Trial, sample_trial
from vitkit.exporting.writers import (
    describe_onnx_file,
    openvino_model,
    traced,
    write_onnx,
    write_openvino,
    write_program,
)
from vitkit.models import parameters
from vitkit.runtimes import (
    MERGED,
    Exported,
    eager,
    open_file,
)
from vitkit.system.storage.files import MARK, write_json
from vitkit.system.storage.private import public
from vitkit.weights import Classifier, license_to_json


def export(
    classifier: Classifier, path: Path | str, wanted: Export, trial: Trial | None = None
) -> Agreement:
    """Write a classifier as a file, try it on real images, and write their agreement beside it, in
    PATH.json.

    trial: by default the parts of two photographs; `trial_on` makes one of a data set.

    Raises ValueError for what cannot be exported, and, when nothing has got its name yet, for a file
    that disagrees with its model.
    """
    path = Path(path)
    trial = trial or sample_trial()
    check(classifier, path, wanted)
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    exported = described(classifier, wanted)
    with written_whole(path) as folder:
        new = folder / path.name
        write(classifier, exported, wanted, new, trial)
        agreement = _tried(classifier, exported, new, trial)
        bounds = whose_bounds(wanted)
        least = wanted.least
        if least is None:
            least = LEAST[bounds]
        if fault := wrong(agreement, bounds, classifier.activation, least):
            raise ValueError(f"{path} was not written: {fault}. On {trial.name}: {agreement}")
        write_json(folder / f"{path.name}.json", report(classifier, wanted, agreement, new, least))
    return agreement


def described(classifier: Classifier, wanted: Export) -> Exported:
    """What the file says of itself."""
    origin = public(classifier.origin)
    if wanted.merge:
        origin = origin | {MERGED: wanted.merge}
    weight_bits = 8
    if wanted.to == "onnx":
        weight_bits = ONNX_BITS
    return Exported(
        classifier.preprocessing,
        classifier.labels,
        classifier.activation,
        wanted.precision,
        wanted.preprocessing,
        origin,
        license_to_json(classifier.license),
        weight_bits,
    )


def write(
    classifier: Classifier, exported: Exported, wanted: Export, path: Path, trial: Trial
) -> None:
    """Write the file, calibrated on the trial's images if it needs them."""
    # The graph
    deployed = classifier.for_inference().to("cpu")
    graph_of = Graph
    if exported.takes_pictures:
        graph_of = PictureGraph
    graph = graph_of(deployed, wanted.merge, apart=wanted.to != "torch")
    program = traced(graph, exported)

    # Images to calibrate with
    images = np.empty(0)
    if needs_calibration(wanted):
        images = _calibration(exported, trial)

    # The file
    if wanted.to == "torch":
        write_program(program, exported, path)
    elif wanted.to == "onnx":
        write_onnx(program, exported, path)
        if exported.precision == "int8":
            quantise_onnx(path, images, exact_in_onnx(path, images))
            describe_onnx_file(path, exported)
    else:
        model = openvino_model(program, exported)
        if needs_calibration(wanted):
            model = calibrated_openvino(model, images, exact_in_openvino(model, images))
        elif exported.precision == "int8":
            model = int8_openvino(model)
        write_openvino(model, exported, path)


def _calibration(exported: Exported, trial: Trial) -> list[np.ndarray]:
    """Images to calibrate with, one at a time as the file takes them: (1, ...) each."""
    if exported.takes_pictures:
        from vitkit.exporting.trial import pixels_of

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
    classifier: Classifier, wanted: Export, agreement: Agreement, path: Path, least: float
) -> dict:
    """What is written beside the file."""
    packages = ["torch", *needed(wanted)]
    versions = {package: version(package) for package in packages}
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
        "agreement": public(asdict(agreement)),
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
