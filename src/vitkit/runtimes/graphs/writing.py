"""Write a classifier as a file for another library: its graph, its description, and int8 weights on request."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
from torch import nn

from vitkit.inspection import check_has_attention
from vitkit.models import VisionTransformer
from vitkit.runtimes.exported import FILES, MERGED, Exported, ExportedLimits, Weights
from vitkit.runtimes.graphs.graph import Graph, PictureGraph, compares_patches
from vitkit.runtimes.graphs.int8 import (
    SAFE_BITS,
    calibrated_openvino,
    exact_in_onnx,
    exact_in_openvino,
    int8_openvino,
    quantise_onnx,
)
from vitkit.runtimes.graphs.writers import (
    ANOMALY_MAP,
    ATTENTION,
    describe_onnx_file,
    openvino_model,
    traced,
    write_onnx,
    write_openvino,
    write_program,
)
from vitkit.system.errors import Unsupported, VitkitError
from vitkit.system.storage.private import public
from vitkit.weights import Classifier, license_to_json

To = Literal["onnx", "openvino", "torch", "page"]


ENDINGS: dict[To, str] = {**{kind: ending for ending, kind in FILES.items()}, "page": ".html"}


NEEDED = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("openvino",),
    "torch": (),
    "page": ("onnx", "onnxscript", "onnxruntime"),
}


@dataclass(frozen=True)
class WebRuntime:
    """onnxruntime-web, as npm has installed it."""

    folder: Path
    version: str

    def read(self, name: str) -> bytes:
        """The bytes of one of its files."""
        return (self.folder / "dist" / name).read_bytes()


@dataclass(frozen=True)
class Export:
    """The kind of file to write."""

    to: To = "onnx"
    """The format: ONNX, OpenVINO's, PyTorch's exported program, or a page for a browser."""
    precision: Weights = "float32"
    """Data type of the weights. float16 and bfloat16 halve the file, and OpenVINO then also computes in
    bfloat16. int8 computes in int8."""
    preprocessing: bool = False
    """Whether the input is pictures of any size, uint8 (B, height, width, 3), and the output
    probabilities."""
    calibrated: bool = False
    """With int8: whether the range of each layer's inputs is measured on images. If not, OpenVINO
    computes it during inference; ONNX Runtime always needs it measured."""
    merge: int = 0
    """Tokens that are merged in every block; the file is faster than the model, and its answers differ
    slightly."""
    least: float | None = None
    """Least share of images for which the file must give the model's answer; None: the default of the
    precision."""
    web_runtime: WebRuntime | None = None
    """For a page, which contains it: onnxruntime-web, found by `find_web_runtime`."""


def needs_calibration(wanted: Export) -> bool:
    """Whether calibration images are needed to make the file."""
    return wanted.precision == "int8" and (wanted.calibrated or wanted.to != "openvino")


def needed(wanted: Export) -> list[str]:
    """The packages that are needed to write and test such a file."""
    packages = list(NEEDED[wanted.to])
    if wanted.to == "openvino" and wanted.precision == "int8":
        packages.append("nncf")
    return packages


def missing_packages(wanted: Export) -> list[str]:
    """The needed packages that are not installed."""
    return [name for name in needed(wanted) if find_spec(name) is None]


def check_packages(wanted: Export) -> None:
    """Raises VitkitError if a package is missing."""
    missing = missing_packages(wanted)
    if missing:
        raise Unsupported(
            f"exporting to {wanted.to} needs {' and '.join(missing)}: pip install 'vitkit[export]'"
        )


def described(classifier: Classifier, wanted: Export) -> Exported:
    """The description to write into the file."""
    origin = public(classifier.origin)
    if wanted.merge:
        origin = origin | {MERGED: wanted.merge}
    weight_bits = 8
    if needs_calibration(wanted):
        weight_bits = SAFE_BITS
    limits = None
    if classifier.unknown is not None:
        unknown = classifier.unknown
        least = tuple(np.atleast_1d(unknown.least.numpy()).tolist())
        limits = ExportedLimits(least, unknown.rejected, unknown.coverage)
    return Exported(
        classifier.preprocessing,
        classifier.labels,
        classifier.activation,
        wanted.precision,
        wanted.preprocessing,
        origin,
        license_to_json(classifier.license),
        weight_bits,
        limits,
        getattr(classifier.model.config, "segments", False),
        says_where(classifier.model),
    )


def write(
    classifier: Classifier,
    exported: Exported,
    wanted: Export,
    path: Path,
    images: Sequence[np.ndarray] = (),
) -> None:
    """Write the file.

    Args:
        classifier: The model.
        exported: The description in the file.
        wanted: The kind of file.
        path: The file; OpenVINO's has another beside it.
        images: Calibration images, if needed: as the file takes them, with a batch size of 1.
    """
    # The graph
    deployed = classifier.for_inference().to("cpu")
    apart = wanted.to != "torch"
    map_output = map_output_of(classifier, wanted)
    graph: PictureGraph | Graph
    if exported.takes_pictures:
        graph = PictureGraph(deployed, wanted.merge, apart)
    else:
        graph = Graph(deployed, wanted.merge, apart, map_output == ATTENTION)
    program = traced(graph, exported)

    # The file
    if wanted.to == "torch":
        write_program(program, exported, path)
    elif wanted.to in ("onnx", "page"):
        write_onnx(program, exported, path, map_output)
        if exported.precision == "int8":
            quantise_onnx(path, images, exact_in_onnx(path, images))
            describe_onnx_file(path, exported)
    else:
        model = openvino_model(program, exported, map_output)
        if needs_calibration(wanted):
            model = calibrated_openvino(model, images, exact_in_openvino(model, images))
        elif exported.precision == "int8":
            model = int8_openvino(model)
        write_openvino(model, exported, path)


def says_where(model: nn.Module) -> bool:
    """Whether the anomaly map of a model's file says by itself where an image is unlike good ones: its patches are
    side by side, so that their places follow from their numbers."""
    if not compares_patches(model):
        return False
    assert isinstance(model, VisionTransformer)
    return not model.config.tiling.overlaps


def map_output_of(classifier: Classifier, wanted: Export) -> str:
    """The name of the file's last output if it is a map of the image, else "": the anomaly map of a model of good
    images; in a page, the attention of a model with attention among all patches."""
    if compares_patches(classifier.model):
        return ANOMALY_MAP
    if wanted.to != "page" or wanted.merge:
        return ""
    try:
        check_has_attention(classifier)
    except VitkitError:
        return ""
    return ATTENTION
