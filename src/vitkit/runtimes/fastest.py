"""The fastest runtime of a model on this machine, as measured by `vitkit bench`: kept in the cache with the
exported file, so that --runtime auto can open it without exporting."""

import hashlib
import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.runtimes.exported import threads
from vitkit.runtimes.identity import digest_of_classifier
from vitkit.system.machine import processor
from vitkit.system.storage.files import cache_dir, parse_json
from vitkit.system.storage.records import record_of

if TYPE_CHECKING:
    from vitkit.weights import Classifier

VERSIONED = ("vitkit", "torch", "onnxruntime", "openvino")
NAME = "fastest"


@dataclass(frozen=True)
class FastestRuntime:
    """The measurements of the fastest runtime in a precision."""

    library: str
    """Displayed name of the library, such as "OpenVINO"."""
    precision: str
    """Number format of the computation."""
    times: float
    """Speed relative to PyTorch's in the same precision, the mean over batch sizes."""
    same: float
    """Share of images with the same answer as the model in float32."""
    images: int
    """Number of images that were compared."""
    date: str
    """Date of the measurement."""
    file: str
    """Name of the exported file in the same folder; "" for PyTorch, which needs none."""

    def __str__(self) -> str:
        """The measurements as part of a sentence."""
        return (
            f"{self.library} in {self.precision}, {self.times:.2f} times as fast as PyTorch here, the "
            f"same answer for {self.same:.1%} of {self.images:,} images (vitkit bench, {self.date})"
        )


def folder_of(classifier: "Classifier") -> Path:
    """The folder of a model's measurements on this machine. It depends on the model, the processor,
    the number of threads and the versions of the libraries."""
    return _folder(digest_of_classifier(classifier))


def was_measured(digest: str, precision: str) -> bool:
    """Whether `vitkit bench` has found the fastest runtime for the model with this digest
    (`digest_of_classifier`). Does not import PyTorch."""
    return _file(_folder(digest), precision).exists()


def _folder(digest: str) -> Path:
    facts = [processor(), threads(), digest]
    for package in VERSIONED:
        try:
            facts.append(version(package))
        except PackageNotFoundError:
            facts.append(None)
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return cache_dir() / "runtimes" / digest


def _file(folder: Path, precision: str) -> Path:
    return folder / f"{NAME}-{precision}.json"


def remembered(classifier: "Classifier", precision: str) -> tuple[FastestRuntime, Path] | None:
    """The stored measurements of the fastest runtime, and the exported file; None if nothing is stored, or
    if PyTorch is the fastest."""
    folder = folder_of(classifier)
    try:
        values = parse_json(_file(folder, precision).read_text())
        fastest = record_of(FastestRuntime, values)
    except (OSError, ValueError):
        return None
    path = folder / Path(fastest.file).name
    if not fastest.file or not path.is_file():
        return None
    return fastest, path
