"""What an exported file says of itself: all that an image needs on its way to a probability.

It is JSON in the file's metadata. It is untrusted input, so every value is checked.

Legend: B batch, K classes, h w pixels of what the model gets.
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

KEY = "vitkit"  # of the metadata
MERGED = "tokens_merged_in_every_block"  # in the origin of a file that merges tokens
# What kind of file has this ending
FILES: dict[str, Literal["onnx", "openvino", "torch"]] = {
    ".onnx": "onnx",
    ".xml": "openvino",
    ".pt2": "torch",
}
SMALLEST = float(np.finfo(np.float32).tiny)  # a probability that a logit can be made of
LARGEST = 1 << 26  # bytes of metadata; 21,841 names take a hundredth
Weights = Literal["float32", "float16", "bfloat16", "int8"]
STRANGENESS = "strangeness"  # the output of a file that says which images are unknown
Compute = Callable[[np.ndarray], Sequence[np.ndarray]]
"""Images, uint8, -> the file's outputs, the first of them float32 (B, K)."""


class MetadataError(BadWeights):
    """The description in a file is not that of a model."""


class ExportedLimits(NamedTuple):
    """The limits for unknown images in a file (weights/unknown.py). Those that make an image
    unknown are in the network: an image is if the file's second output is above 0."""

    least: tuple[float, ...]
    """A class is left open from this probability on: one of each class, or one for all."""
    rejected: float
    """The share of images of each class that are called unknown, at most."""
    coverage: float
    """How often, at least, the right class of an image is among those that are left open."""


@dataclass(frozen=True)
class Exported:
    """What a file says of itself."""

    preprocessing: Preprocessing
    labels: tuple[str, ...]
    activation: Activation
    precision: Weights = "float32"
    """Numbers of the weights; with int8 and bfloat16, of the matrix products too."""
    takes_pictures: bool = False
    """Whether the preprocessing is inside: uint8 pictures of any size (B, height, width, 3) ->
    probabilities (B, K); else prepared images, uint8 (B, 3, h, w) -> logits (B, K)."""
    origin: dict = field(default_factory=dict)
    """Where the model came from, for people."""
    license: dict | None = None
    """Under which terms it may be used, as a model's description has it."""
    weight_bits: int = 8
    """Of int8 weights: 7 if no processor saturates their products, as of a calibrated file; 8 of a file
    without calibration, which need not, and of calibrated ones that earlier versions wrote for OpenVINO."""
    limits: ExportedLimits | None = None
    """Those for unknown images; None of a model without them, and of a file of an earlier version."""
    segments: bool = False
    """Whether every pixel has logits: (B, K, h, w)."""

    @property
    def merged(self) -> int:
        """The number of tokens that it merges in every block."""
        value = self.origin.get(MERGED, 0)
        if isinstance(value, int):
            return value
        return 0

    def to_json(self) -> str:
        """The metadata; from_json is the way back."""
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
        if self.limits is not None:
            unknown = {"output": STRANGENESS, "above": 0}  # for other programs
            values["unknown"] = unknown | self.limits._asdict()
        return json.dumps(values, ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> "Exported":
        """Raises MetadataError if to_json has not written it."""
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
            weight_bits = values.get("weight_bits", 8)  # the first files did not say it
            limits = _limits(values.get("unknown"))  # nor this
            segments = values.get("segments", False)
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
        )


def _limits(values: dict | None) -> ExportedLimits | None:
    """The limits in a file's metadata. Raises VitkitError, TypeError or KeyError for anything else."""
    if values is None:
        return None
    least = tuple(float(value) for value in values["least"])
    limits = ExportedLimits(least, float(values["rejected"]), float(values["coverage"]))
    numbers = (*least, limits.rejected, limits.coverage)
    if not all(0 <= number <= 1 for number in numbers):
        raise BadWeights(f"limits for unknown images that are no probabilities: {limits}"[:100])
    return limits


def _check(name: str, value: Any, is_right: bool) -> None:
    """Raises MetadataError if a value is out of range."""
    if not is_right:
        raise MetadataError(f"its metadata has the {name} {repr(value)[:100]}")


class OpenedFile(NamedTuple):
    """A file as a library has opened it."""

    metadata: str | None
    """The metadata of the file; None for a file that vitkit did not export."""
    compute: Compute
    is_calibrated: bool = False
    """Whether it multiplies int8 numbers whose ranges are fixed in the file."""


@dataclass(frozen=True, eq=False)
class FileRuntime:
    """A Runtime: an exported file, and what computes it."""

    path: Path
    exported: Exported
    library: str
    """Which library computes it, for people."""
    compute: Compute
    computed_in: str
    """The numbers that it is computed in, for people: "bfloat16"."""
    made_of: str = ""
    """The digest of the classifier that it was exported from in passing; "" for a file that stays."""

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
        """Prepared images, uint8 (B, 3, h, w), -> float32 (B, K). Raises VitkitError for a file that
        computes something else than it says."""
        return self._outputs(images)[0]

    @property
    def least(self) -> np.ndarray | None:
        """From which probability on classes are left open, (K,) or (1,); None if the file has no limits
        for unknown images."""
        if self.exported.limits is None:
            return None
        return np.array(self.exported.limits.least)

    def logits_and_strangeness(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits (B, K), and the strangeness (B,), above 0 for unknown images; for a file with
        limits for them."""
        outputs = self._outputs(images)
        if len(outputs) < 2 or outputs[1].shape != (len(images),):
            raise BadWeights(
                f"{self.path} does not compute which images are unknown, as it says; export the model "
                "again"
            )
        return outputs[0], outputs[1]

    def _outputs(self, images: np.ndarray) -> list[np.ndarray]:
        """All that the file computes, the first of it (B, K), or (B, K, h, w) of every pixel. Raises
        VitkitError, whatever the library raises: a file may be a network that opens and cannot be computed."""
        try:
            computed = self.compute(np.ascontiguousarray(images))
            outputs = [np.asarray(output, dtype=np.float32) for output in computed]
            shape = outputs[0].shape
        except WorkerDied:  # of a process that computes the file, whose sentence says so
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
                f"{self.path} gives {shape} for {len(images)} images, and names "
                f"{len(self.labels)} classes; export the model again"
            )
        return outputs


class WholePicture:
    """The preparation of an image for a file that has its preprocessing inside: none."""

    dtype = np.uint8

    def array(self, picture: Picture) -> np.ndarray:
        """The upright picture, uint8 (3, height, width). Raises BadImage."""
        return Preprocessing().decode(picture).transpose(2, 0, 1)  # red, green and blue, of 8 bits

    def image_of(self, images: np.ndarray, number: int) -> np.ndarray:
        """One picture of a batch, (3, height, width)."""
        return images[number]

    def together(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """One picture, (3, height, width), as a batch."""
        return np.array(images, dtype=self.dtype)

    def computed(
        self, compute: Callable[[np.ndarray], Sequence[np.ndarray]], images: np.ndarray
    ) -> list[np.ndarray]:
        """The result of `compute` for the batch."""
        return list(compute(images))


@dataclass(frozen=True, eq=False)
class PictureRuntime:
    """A Runtime: an exported file that prepares images itself. It takes one image at a time, because
    pictures differ in size."""

    file: FileRuntime
    # It has what a runtime's preprocessing is asked for
    preprocessing: Preprocessing = field(default_factory=WholePicture)  # type: ignore[assignment]

    @property
    def exported(self) -> Exported:
        """What the file says of itself."""
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
        """Whole pictures of one size, uint8 (B, 3, height, width), -> float32 (B, K), from which the
        activation makes the file's probabilities again."""
        outputs = self.file.logits(images.transpose(0, 2, 3, 1))
        return inverted(outputs, self.activation)

    @property
    def least(self) -> np.ndarray | None:
        """The probability from which on a class is left open, in the file; None without limits."""
        return self.file.least

    def logits_and_strangeness(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits (B, K), and the strangeness (B,) of images, which is above 0 for unknown ones."""
        outputs, strangeness = self.file.logits_and_strangeness(images.transpose(0, 2, 3, 1))
        return inverted(outputs, self.activation), strangeness


def inverted(probabilities: np.ndarray, activation: Activation) -> np.ndarray:
    """Logits that an activation turns into these probabilities: any shape -> the same shape. A
    probability of 0 counts as the smallest number above it."""
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
    """Threads to compute on, as PyTorch takes them: what OMP_NUM_THREADS says, else this machine's
    quota."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdecimal() and int(named) > 0:
        return int(named)
    return cpus()


def is_exported(name: str | Path) -> bool:
    """Whether a model's name is that of an exported file, by its ending."""
    return Path(name).suffix.lower() in FILES
