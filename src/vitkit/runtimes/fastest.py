"""Which runtime is the fastest for a model on this machine, as `vitkit bench` has measured it: kept in
the cache with the exported file, so that --runtime auto opens it at once."""

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
    """The measurements of the fastest runtime of a precision."""

    library: str
    """For people: "OpenVINO"."""
    precision: str
    times: float
    """Images per second beside PyTorch's in the same precision, the mean of all sizes of batch."""
    same: float
    """The share of images with the model's own answer in float32."""
    images: int
    """How many images were compared."""
    date: str
    file: str
    """The exported file, beside this; "" if it is PyTorch, which needs none."""

    def __str__(self) -> str:
        """All of it in a sentence."""
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
    (`digest_of_classifier`). Answered without PyTorch."""
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
    """The result that `remember` stored, and the exported file; None if there is none, or if
    PyTorch is the fastest."""
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
