"""What an export can be asked for, and what is refused before anything is computed."""

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from vitkit.models import check_can_merge
from vitkit.runtimes import FILES, Weights, check_answer
from vitkit.system.console.text import counted
from vitkit.system.storage.files import MARK, check_can_be_made, check_replaceable
from vitkit.weights import Classifier

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
    """What kind of file to write."""

    to: To = "onnx"
    """For whom: ONNX Runtime and all that read ONNX, OpenVINO, or PyTorch's exported programs."""
    precision: Weights = "float32"
    """Numbers of the weights. float16 and bfloat16 halve the file; OpenVINO also computes in bfloat16
    then. int8 computes in int8."""
    preprocessing: bool = False
    """Whether pictures of any size go in, uint8 (B, height, width, 3), and probabilities come out."""
    calibrated: bool = False
    """With int8: whether the range of each layer's inputs is fixed, by images, as for ONNX Runtime it
    always is. Else OpenVINO takes the range of the numbers that it computes with."""
    merge: int = 0
    """Tokens that are merged in every block, so that the file does less than the model and answers a
    little otherwise."""
    least: float | None = None
    """Least share of the images with the model's own answer; by default what such a precision
    reaches."""


def check(classifier: Classifier, path: Path, wanted: Export) -> None:
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
    if path.suffix.lower() != ENDINGS[wanted.to]:
        raise ValueError(
            f"{path} does not end in {ENDINGS[wanted.to]}, as a file for {wanted.to} does"
        )
    if wanted.precision not in PRECISIONS[wanted.to]:
        known = ", ".join(PRECISIONS[wanted.to])
        raise ValueError(
            f"a {ENDINGS[wanted.to]} file is written in {known}, not in {wanted.precision}; choose "
            "--to openvino or --to onnx"
        )
    if wanted.calibrated and wanted.precision != "int8":
        raise ValueError(
            f"images calibrate int8, and the file is to be in {wanted.precision}; leave them out"
        )
    if wanted.merge:
        check_can_merge(classifier.model, wanted.merge)
    if wanted.least is not None and not 0 <= wanted.least <= 1:
        raise ValueError(f"--agreement is {wanted.least}; it is a share from 0 to 1")
    check_packages(wanted)
    files = [path, Path(f"{path}.json")]
    if wanted.to == "openvino":
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


def needs_calibration(wanted: Export) -> bool:
    """Whether images are needed to make the file."""
    return wanted.precision == "int8" and (wanted.calibrated or wanted.to == "onnx")


def whose_bounds(wanted: Export) -> Weights:
    """The precision whose bounds the file is held to: merging is allowed what int8 is."""
    if wanted.merge:
        return "int8"
    return wanted.precision


def needed(wanted: Export) -> list[str]:
    """The packages that write such a file, and try it."""
    packages = list(NEEDED[wanted.to])
    if wanted.to == "openvino" and wanted.precision == "int8":
        packages.append("nncf")
    return packages


def missing_packages(wanted: Export) -> list[str]:
    """The packages of `needed` that are not installed."""
    return [name for name in needed(wanted) if find_spec(name) is None]


def check_packages(wanted: Export) -> None:
    """Raises ValueError for a package that is missing."""
    missing = missing_packages(wanted)
    if missing:
        raise ValueError(
            f"exporting to {wanted.to} needs {' and '.join(missing)}: pip install 'vitkit[export]'"
        )
