"""Exported files: the description in a file's metadata, and the runtimes that compute a file.

The description is JSON with the preprocessing, the labels and the activation. It is untrusted input, so every value
is checked.

Legend: B batch, K classes, h w pixels of the model's input.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from typing_extensions import TypeIs

from vitkit.data import Picture, Preprocessing
from vitkit.system.errors import BadWeights, WorkerDied
from vitkit.system.machine import cpus
from vitkit.system.storage.files import parse_json
from vitkit.weights import Activation

KEY = "vitkit"  # key of the description in the metadata
MERGED = "tokens_merged_in_every_block"  # key in the origin of a file that merges tokens
# Kind of file for each suffix
FILES: dict[str, Literal["onnx", "openvino", "torch"]] = {
    ".onnx": "onnx",
    ".xml": "openvino",
    ".pt2": "torch",
}
SMALLEST = float(np.finfo(np.float32).tiny)  # smallest probability that is converted to a logit
LARGEST = 1 << 26  # largest metadata in bytes; 21,841 names take a hundredth of that
Weights = Literal["float32", "float16", "bfloat16", "int8"]
ROUNDING = 1e-3  # by which a probability may be below 0 or above 1
STRANGENESS = "strangeness"  # name of the output with the out-of-distribution score
Compute = Callable[[np.ndarray], Sequence[np.ndarray]]
"""Images, uint8, -> the file's outputs, the first of them float32 (B, K)."""


class MetadataError(BadWeights):
    """The metadata of a file do not describe a model."""


class ExportedLimits(NamedTuple):
    """The thresholds of unknown images in a file's metadata (weights/unknown.py). The rejection thresholds are
    part of the network: an image is unknown if the file's second output is above 0."""

    least: tuple[float, ...]
    """Smallest probability of a class that is left open: one for each class, or one for all."""
    rejected: float
    """Largest share of images of each class that are rejected as unknown."""
    coverage: float
    """Smallest probability that the right class of an image is among those that are left open."""


@dataclass(frozen=True)
class Exported:
    """The description of an exported file."""

    preprocessing: Preprocessing
    labels: tuple[str, ...]
    activation: Activation
    precision: Weights = "float32"
    """Number format of the weights; int8 and bfloat16 also apply to the matrix products."""
    takes_pictures: bool = False
    """Whether the file contains the preprocessing: uint8 pictures of any size (B, height, width, 3) ->
    probabilities (B, K); otherwise prepared images, uint8 (B, 3, h, w) -> logits (B, K)."""
    origin: dict = field(default_factory=dict)
    """The provenance of the model, for users."""
    license: dict | None = None
    """The licence of the model, in the form of a model's description."""
    weight_bits: int = 8
    """Bits of int8 weights: 7 in calibrated files, so that no processor saturates their products; 8 in files
    without calibration, which do not saturate, and in calibrated files of earlier versions for OpenVINO."""
    limits: ExportedLimits | None = None
    """The thresholds of unknown images; None for a model without them, and in files of earlier versions."""
    segments: bool = False
    """Whether every pixel has logits: (B, K, h, w)."""
    has_anomaly_map: bool = False
    """Whether the last output is the anomaly map of a model of good images: for each patch the probability that it
    is unlike theirs, (B, h, w). The patches are side by side."""

    @property
    def merged(self) -> int:
        """The number of tokens that the file merges in every block."""
        value = self.origin.get(MERGED, 0)
        if isinstance(value, int):
            return value
        return 0

    def to_json(self) -> str:
        """The description as JSON, which `from_json` reads."""
        values = {
            "preprocessing": self.preprocessing.to_json(),
            "labels": list(self.labels),
            "activation": self.activation,
            "precision": self.precision,
            "takes_pictures": self.takes_pictures,
            "origin": self.origin,
            "license": self.license,
            "weight_bits": self.weight_bits,
        }
        if self.segments:
            values["segments"] = True
        if self.has_anomaly_map:
            values["has_anomaly_map"] = True
        if self.limits is not None:
            unknown = {"output": STRANGENESS, "above": 0}  # explains the output to other programs
            values["unknown"] = unknown | self.limits._asdict()
        return json.dumps(values, ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> "Exported":
        """The description from the JSON of `to_json`. Raises MetadataError for anything else."""
        if len(text) > LARGEST:
            raise MetadataError(f"its metadata has {len(text):,} bytes")
        try:
            values = parse_json(text)
            preprocessing = Preprocessing.from_json(values["preprocessing"])
            labels = values["labels"]
            activation = values["activation"]
            precision = values["precision"]
            takes_pictures = values["takes_pictures"]
            origin = values["origin"]
            license = values["license"]
            weight_bits = values.get("weight_bits", 8)  # missing in the first version
            limits = _limits(values.get("unknown"))  # missing in the first version
            segments = values.get("segments", False)
            has_anomaly_map = values.get("has_anomaly_map", False)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise MetadataError(f"its metadata describes no model: {error}") from error
        _check("labels", labels, isinstance(labels, list) and len(labels) > 0)
        _check("labels", labels, all(isinstance(label, str) for label in labels))
        _check("activation", activation, activation in get_args(Activation))
        _check("precision", precision, precision in get_args(Weights))
        _check("takes_pictures", takes_pictures, takes_pictures in (True, False))
        _check("origin", origin, isinstance(origin, dict))
        _check("license", license, license is None or isinstance(license, dict))
        _check("weight_bits", weight_bits, weight_bits in (7, 8))
        _check("segments", segments, segments in (True, False))
        _check("anomaly map", has_anomaly_map, has_anomaly_map in (True, False))
        if limits is not None:
            _check("limits", limits, len(limits.least) in (1, len(labels)))
        return cls(
            preprocessing,
            tuple(labels),
            activation,
            precision,
            takes_pictures,
            origin,
            license,
            weight_bits,
            limits,
            segments,
            has_anomaly_map,
        )


def _limits(values: dict | None) -> ExportedLimits | None:
    """The thresholds of unknown images from a file's metadata. Raises VitkitError, TypeError or KeyError for
    invalid values."""
    if values is None:
        return None
    least = tuple(float(value) for value in values["least"])
    limits = ExportedLimits(least, float(values["rejected"]), float(values["coverage"]))
    numbers = (*least, limits.rejected, limits.coverage)
    if not all(0 <= number <= 1 for number in numbers):
        raise BadWeights(f"thresholds of unknown images that are not probabilities: {limits}"[:100])
    return limits


def _check(name: str, value: Any, is_right: bool) -> None:
    """Raises MetadataError, with the name and the value, unless the value is right."""
    if not is_right:
        raise MetadataError(f"its metadata has the {name} {repr(value)[:100]}")


class OpenedFile(NamedTuple):
    """A file that a library has opened."""

    metadata: str | None
    """The metadata of the file; None for a file that vitkit did not export."""
    compute: Compute
    is_calibrated: bool = False
    """Whether the file is calibrated int8: it multiplies int8 numbers whose ranges are fixed in it."""


@dataclass(frozen=True, eq=False)
class FileRuntime:
    """A Runtime of an exported file that takes prepared images."""

    path: Path
    exported: Exported
    library: str
    """Displayed name of the library that computes the file."""
    compute: Compute
    computed_in: str
    """Displayed number format of the computation, such as "bfloat16"."""
    made_of: str = ""
    """Digest of the classifier that a temporary file was exported from; "" for other files."""

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing that the file describes."""
        return self.exported.preprocessing

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes in the file."""
        return self.exported.labels

    @property
    def activation(self) -> Activation:
        """The activation that the file describes."""
        return self.exported.activation

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Prepared images, uint8 (B, 3, h, w), -> float32 (B, K). Raises VitkitError for a file whose outputs
        do not match its description."""
        return self.outputs(images)[0]

    @property
    def least(self) -> np.ndarray | None:
        """Smallest probability of a class that is left open, (K,) or (1,); None if the file has no
        thresholds."""
        if self.exported.limits is None:
            return None
        return np.array(self.exported.limits.least)

    def logits_and_strangeness(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits (B, K), and out-of-distribution scores (B,), above 0 for unknown images; for a file with
        thresholds."""
        outputs = self.outputs(images)
        if len(outputs) < 2 or outputs[1].shape != (len(images),):
            raise BadWeights(
                f"{self.path} lacks the output for unknown images that its metadata describe; export the "
                "model again"
            )
        return outputs[0], outputs[1]

    def logits_and_anomaly_map(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits (B, K), and anomaly maps (B, h, w) from 0 to 1; for a file of a model of good images. Raises
        VitkitError for a file without the map that its metadata describes, or whose map is no probability."""
        outputs = self.outputs(images)
        maps = outputs[-1]
        if len(outputs) < 2 or maps.ndim != 3 or len(maps) != len(images) or not maps.size:
            raise BadWeights(
                f"{self.path} lacks the anomaly map that its metadata describes; export the model again"
            )
        lowest, highest = maps.min(), maps.max()
        if not (lowest >= -ROUNDING and highest <= 1 + ROUNDING):  # NaN neither
            raise BadWeights(
                f"the anomaly map of {self.path} has values from {lowest:g} to {highest:g}, and probabilities are "
                "from 0 to 1; the file may be damaged"
            )
        return outputs[0], maps.clip(0, 1)

    def outputs(self, images: np.ndarray) -> list[np.ndarray]:
        """All outputs of the file, the first of them (B, K), or (B, K, h, w) if every pixel has logits. Raises
        VitkitError for any error of the library: a file may open and still fail when it is computed."""
        try:
            computed = self.compute(np.ascontiguousarray(images))
            outputs = [np.asarray(output, dtype=np.float32) for output in computed]
            shape = outputs[0].shape
        except WorkerDied:  # from a process that computes the file; it has a message of its own
            raise
        except Exception as error:  # the libraries' errors have no common class
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise BadWeights(
                f"{self.path} cannot be computed by {self.library}: {reason}"
            ) from error
        expected: tuple[int, ...] = (len(images), len(self.labels))
        if self.exported.segments:
            expected += images.shape[-2:]
        if shape != expected:
            raise BadWeights(
                f"{self.path} returns an array {shape} for {len(images)} images, and names "
                f"{len(self.labels)} classes; export the model again"
            )
        return outputs


class WholePicture:
    """The preprocessing for a file that contains its preprocessing: only decodes pictures."""

    dtype = np.uint8

    def array(self, picture: Picture) -> np.ndarray:
        """The upright picture, uint8 (3, height, width). Raises BadImage."""
        return Preprocessing().decode(picture).transpose(2, 0, 1)  # RGB with 8 bits

    def image_of(self, images: np.ndarray, number: int) -> np.ndarray:
        """One picture of a batch, (3, height, width)."""
        return images[number]

    def together(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """The batch of these pictures: a single one, (3, height, width)."""
        return np.array(images, dtype=self.dtype)

    def computed(
        self, compute: Callable[[np.ndarray], Sequence[np.ndarray]], images: np.ndarray
    ) -> list[np.ndarray]:
        """The result of `compute` for the batch."""
        return list(compute(images))


@dataclass(frozen=True, eq=False)
class PictureRuntime:
    """A Runtime of an exported file that contains its preprocessing. It takes one image at a time, because
    pictures differ in size."""

    file: FileRuntime
    # Has the methods of a runtime's preprocessing
    preprocessing: Preprocessing = field(default_factory=WholePicture)  # type: ignore[assignment]

    @property
    def exported(self) -> Exported:
        """The description of the file."""
        return self.file.exported

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes in the file."""
        return self.file.labels

    @property
    def activation(self) -> Activation:
        """The activation that the file describes."""
        return self.file.activation

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Whole pictures of one size, uint8 (B, 3, height, width), -> float32 logits (B, K), computed from the
        file's probabilities."""
        outputs = self.file.logits(images.transpose(0, 2, 3, 1))
        return inverted(outputs, self.activation)

    @property
    def least(self) -> np.ndarray | None:
        """Smallest probability of a class that is left open, (K,) or (1,); None if the file has no
        thresholds."""
        return self.file.least

    def logits_and_strangeness(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits (B, K), and out-of-distribution scores (B,), above 0 for unknown images."""
        outputs, strangeness = self.file.logits_and_strangeness(images.transpose(0, 2, 3, 1))
        return inverted(outputs, self.activation), strangeness

    def logits_and_anomaly_map(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits (B, K), and anomaly maps (B, h, w) from 0 to 1; for a file of a model of good images."""
        outputs, maps = self.file.logits_and_anomaly_map(images.transpose(0, 2, 3, 1))
        return inverted(outputs, self.activation), maps


def inverted(probabilities: np.ndarray, activation: Activation) -> np.ndarray:
    """Logits whose activation gives these probabilities, of any shape. A probability of 0 counts as the smallest
    positive number."""
    if activation == "none":
        return probabilities
    exact = probabilities.astype(np.float64)
    logits = np.log(np.maximum(exact, SMALLEST))
    if activation == "sigmoid":
        logits -= np.log(np.maximum(1 - exact, SMALLEST))
    return logits.astype(np.float32)


def takes_pictures(runtime: object) -> TypeIs[PictureRuntime]:
    """Whether a runtime takes whole pictures, one at a time."""
    return isinstance(runtime, PictureRuntime)


def threads() -> int:
    """The number of threads for computing, as in PyTorch: OMP_NUM_THREADS, else this machine's CPU quota."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdecimal() and int(named) > 0:
        return int(named)
    return cpus()


def is_exported(name: str | Path) -> bool:
    """Whether a model's name has the suffix of an exported file."""
    return Path(name).suffix.lower() in FILES
