"""The ONNX copy of a run's model in float32, RUN/model.onnx beside RUN/model/, for predictions without PyTorch.

Importing PyTorch takes most of the time and memory of a single prediction. The file is used only if a record beside
it matches: digests of the model's files and of the file itself, and the version of vitkit.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit import __version__
from vitkit.runtimes.exported import FileRuntime
from vitkit.runtimes.fastest import was_measured
from vitkit.runtimes.libraries import is_installed, open_file
from vitkit.system.console.messages import say_detail
from vitkit.system.errors import VitkitError
from vitkit.system.functions.steps import step
from vitkit.system.machine import auto_is_float32, is_cpu
from vitkit.system.storage.files import parse_json, write_json

if TYPE_CHECKING:
    from vitkit.runtimes.libraries import RuntimeName
    from vitkit.system.machine import PrecisionChoice
    from vitkit.weights import Classifier

FILE = "model.onnx"
FOLDER = "model"
RECORDS = ("recipe.json", "good_images.json")
RECORD = "kept"  # key of the record in the JSON file beside the copy
FOR_PEOPLE = ("README.md", "LICENSE")  # files of a model's folder that do not affect its answers


def run_of(model: "str | Path | Classifier") -> Path | None:
    """The directory of the run that a model belongs to, from the path RUN or RUN/model; None for other
    models."""
    if not isinstance(model, str | Path):
        return None
    path = Path(model)
    if _is_run(path):
        return path
    if path.name == FOLDER and _is_run(path.parent):
        return path.parent
    return None


def _is_run(path: Path) -> bool:
    """Whether a directory has the record of a run, or of a model of good images."""
    return any((path / name).is_file() for name in RECORDS)


def kept_file(run_dir: Path) -> Path:
    """The path of a run's ONNX file, whether it exists or not."""
    return run_dir / FILE


def digest_of_folder(run_dir: Path) -> str:
    """A digest of the files of a run's model. Raises OSError."""
    digest = hashlib.sha256()
    for file in sorted((run_dir / FOLDER).iterdir()):
        if file.is_file() and file.name not in FOR_PEOPLE:
            digest.update(f"{file.name} {_digest(file)}\n".encode())
    return digest.hexdigest()


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def tie(path: Path, folder: str, made_of: str) -> None:
    """Record beside a file which model it is a copy of. Raises OSError.

    folder: the digest of the model's files, computed before the model was loaded.
    made_of: the digest of the classifier.
    """
    record = Path(f"{path}.json")
    written = parse_json(record.read_text())
    kept = {"files": folder, "made_of": made_of, "onnx": _digest(path), "vitkit": __version__}
    write_json(record, written | {RECORD: kept})


def is_kept(path: Path) -> bool:
    """Whether a file is an unchanged copy of the model beside it."""
    return _record(path) is not None


def was_kept(path: Path) -> bool:
    """Whether a file was written as a copy of a run's model, even if one of the two has changed since."""
    return bool(_recorded(path))


def is_of_an_earlier_model(path: Path) -> bool:
    """Whether a file is a copy of a model that has been replaced since."""
    recorded = _recorded(path)
    try:
        return bool(recorded) and recorded.get("files") != digest_of_folder(path.parent)
    except OSError:  # no model is beside it: the file was moved
        return False


def _recorded(path: Path) -> dict:
    """The record of `tie` beside a file; empty if it is missing or damaged."""
    try:
        recorded = parse_json(Path(f"{path}.json").read_text())[RECORD]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return recorded if isinstance(recorded, dict) else {}


def _record(path: Path) -> dict | None:
    """The record of `tie`; None if it is missing or damaged, or if anything has changed since."""
    kept = _recorded(path)
    try:
        known = {
            "files": digest_of_folder(path.parent),
            "made_of": str(kept["made_of"]),
            "onnx": _digest(path),
            "vitkit": __version__,
        }
    except (OSError, KeyError):
        return None
    if kept != known:
        return None
    return kept


def kept_runtime(
    name: Path, runtime: "RuntimeName", precision: "PrecisionChoice", device: str
) -> FileRuntime | None:
    """The runtime of the ONNX copy of a run's model; None if PyTorch must be used.

    The copy is used only if `auto` means float32 on the CPU, or float32 is requested, so that a model's answers on
    a machine do not depend on the copy. It is not used if another runtime, precision or device is requested, or if
    `vitkit bench` has measured the fastest runtime of this model.
    """
    if runtime != "auto" or not is_cpu(device):
        return None
    if precision != "float32" and not (precision == "auto" and auto_is_float32()):
        return None
    run_dir = run_of(name)
    if run_dir is None or not is_installed("onnx"):
        return None
    path = kept_file(run_dir)
    kept = _record(path)
    if kept is None:
        if was_kept(path):
            say_detail(
                f"{path} is damaged, or belongs to another model or another version of vitkit, so PyTorch "
                f"computes; {step('export', name, output=path)} writes it again"
            )
        return None
    if was_measured(kept["made_of"], "float32"):
        return None
    try:
        opened = open_file(path, "onnx")
    except (VitkitError, ImportError):  # ImportError: an installed library that cannot be imported
        return None
    exported = opened.exported
    if exported.precision != "float32" or exported.takes_pictures or exported.merged:
        return None
    return replace(opened, made_of=kept["made_of"])
