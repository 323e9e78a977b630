"""Export: a classifier as a file for another program, measured on real images before it gets its name.

It is written to a folder beside that name, tried there, and only then moved: a file that falls short
is removed, and what was there before stays.
"""

import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np

from vitkit.exporting.agreement import (
    Agreement,
    Trial,
    agree,
    pixels_of,
    prepared_images,
    sample_trial,
)
from vitkit.exporting.bounds import LEAST, conclusion, wrong
from vitkit.exporting.browser import LARGEST_NETWORK, PACKAGE, WebRuntime, page
from vitkit.exporting.graph import Graph, PictureGraph, check_any_grid
from vitkit.exporting.int8 import (
    SAFE_BITS,
    calibrated_openvino,
    exact_in_onnx,
    exact_in_openvino,
    int8_openvino,
    quantise_onnx,
)
from vitkit.exporting.writers import (
    describe_onnx_file,
    openvino_model,
    traced,
    write_onnx,
    write_openvino,
    write_program,
)
from vitkit.inspection import check_has_attention
from vitkit.models import check_can_merge, parameters
from vitkit.runtimes import (
    FILES as FILES,
)
from vitkit.runtimes import (
    MERGED,
    Exported,
    Limits,
    Weights,
    check_answer,
    eager,
    open_file,
)
from vitkit.system.console.text import counted
from vitkit.system.errors import BadData, BadSettings, Unsupported, VitkitError
from vitkit.system.storage.files import (
    MARK,
    check_can_be_made,
    check_replaceable,
    parse_json,
    whole_files,
    write_json,
)
from vitkit.system.storage.private import public
from vitkit.weights import Classifier, check_answers, license_to_json

# What can be asked for, and what is refused before anything is computed

To = Literal["onnx", "openvino", "torch", "page"]
ENDINGS = {kind: ending for ending, kind in FILES.items()} | {"page": ".html"}

# What each format has, beside float32, and why not the others
TITLED = 3  # classes in the title of a page
PRECISIONS = {
    "onnx": ("float32", "float16", "bfloat16", "int8"),
    "openvino": ("float32", "float16", "bfloat16", "int8"),
    "torch": ("float32",),
    "page": ("float16", "float32", "int8"),
}

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}  # of a weight

NEEDED = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("openvino",),
    "torch": (),
    "page": ("onnx", "onnxscript", "onnxruntime"),
}


@dataclass(frozen=True)
class Export:
    """The kind of file to write."""

    to: To = "onnx"
    """For whom: ONNX Runtime and all that read ONNX, OpenVINO, PyTorch's exported programs, or people
    with a browser."""
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
    web_runtime: WebRuntime | None = None
    """Of a page, which holds it: onnxruntime-web, as `find_web_runtime` finds it."""


def check(classifier: Classifier, path: Path, wanted: Export) -> None:
    """Raises VitkitError if something cannot be exported, before anything is computed."""
    check_answers(classifier)
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
    """Raises VitkitError for images at their own proportions, where that cannot be exported."""
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
    check_any_grid(classifier.model)


def is_as_measured(path: Path) -> bool:
    """Whether the report beside a file is vitkit's, and the file has the size that it says."""
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


def needs_calibration(wanted: Export) -> bool:
    """Whether images are needed to make the file."""
    return wanted.precision == "int8" and (wanted.calibrated or wanted.to != "openvino")


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
    """Raises VitkitError if a package is missing."""
    missing = missing_packages(wanted)
    if missing:
        raise Unsupported(
            f"exporting to {wanted.to} needs {' and '.join(missing)}: pip install 'vitkit[export]'"
        )


# The export


def export(
    classifier: Classifier, path: Path | str, wanted: Export, trial: Trial | None = None
) -> Agreement:
    """Write a classifier as a file, try it on real images, and write their agreement beside it, in
    PATH.json.

    trial: by default the parts of two photographs; `trial_on` makes one of a data set.

    Raises VitkitError if the model cannot be exported, and, when nothing has got its name yet, for a file
    that disagrees with its model.
    """
    path = Path(path)
    trial = trial or sample_trial()
    check(classifier, path, wanted)
    if wanted.to == "page" and wanted.web_runtime is None:
        raise BadSettings(
            f"a page holds {PACKAGE}: give the Export what find_web_runtime() returns"
        )
    exported = described(classifier, wanted)
    with whole_files(path.absolute().parent, last=path.name) as folder:
        new = folder / path.name
        network = new
        if wanted.to == "page":
            network = new.with_suffix(ENDINGS["onnx"])
        write(classifier, exported, wanted, network, trial)
        file = open_file(network, trusted=True)
        bounds = wanted.precision
        if wanted.merge:  # is allowed what int8 is
            bounds = "int8"
        agreement = agree(eager(classifier, "cpu"), file, trial, wanted.precision)
        least = wanted.least
        if least is None:
            least = LEAST[bounds]
        if fault := wrong(agreement, bounds, classifier.activation, least):
            sentence = f"{path} was not written: {fault}. On {trial.name}: {agreement}"
            if trial.photographs is not None:  # parts of the two that come with scikit-learn
                sentence += ". `data=DATA` tries it on images like yours"
            raise BadSettings(sentence)
        if wanted.to == "page":
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


def described(classifier: Classifier, wanted: Export) -> Exported:
    """The description in the file."""
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
        limits = Limits(least, unknown.rejected, unknown.coverage)
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
    )


def write(
    classifier: Classifier, exported: Exported, wanted: Export, path: Path, trial: Trial
) -> None:
    """Write the file, calibrated on the trial's images if it needs them."""
    # The graph
    deployed = classifier.for_inference().to("cpu")
    apart = wanted.to != "torch"
    looks = shows_attention(classifier, wanted)
    if exported.takes_pictures:
        graph = PictureGraph(deployed, wanted.merge, apart)
    else:
        graph = Graph(deployed, wanted.merge, apart, looks)
    program = traced(graph, exported)

    # Images to calibrate with
    images = np.empty(0)
    if needs_calibration(wanted):
        images = _calibration(exported, trial)

    # The file
    if wanted.to == "torch":
        write_program(program, exported, path)
    elif wanted.to in ("onnx", "page"):
        write_onnx(program, exported, path, looks)
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


def shows_attention(classifier: Classifier, wanted: Export) -> bool:
    """Whether what is written says what it looks at, as the last of its outputs: a page does, of a model
    with attention among patches, all of them."""
    if wanted.to != "page" or wanted.merge:
        return False
    try:
        check_has_attention(classifier)
    except VitkitError:
        return False
    return True


def _subject(labels: Sequence[str]) -> str:
    """What a page tells apart, as its title: "ants, bees or wasps", or the first classes of many."""
    if len(labels) > TITLED:
        return f"{', '.join(labels[:TITLED])} and {len(labels) - TITLED:,} more"
    return " or ".join(filter(None, [", ".join(labels[:-1]), labels[-1]]))


def _about(
    classifier: Classifier, exported: Exported, agreement: Agreement
) -> list[tuple[str, str]]:
    """What a page says of its model, for those who ask: names and texts."""
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
                f"{exported.limits.rejected:.0%} of known photographs at most are called so",
            )
        )
    return about


def _calibration(exported: Exported, trial: Trial) -> list[np.ndarray]:
    """Images to calibrate with, one at a time as the file takes them: (1, ...) each."""
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
    """The report that is written beside the file."""
    packages = ["torch", *needed(wanted)]
    versions = {package: version(package) for package in packages}
    if wanted.to == "page":
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
