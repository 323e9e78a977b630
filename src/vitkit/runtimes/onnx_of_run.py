"""A run's model as ONNX in float32, kept beside it: RUN/model.onnx beside RUN/model/.

Importing PyTorch takes most of the time of one answer, and most of its memory; this file gives the same answer
without. It belongs to the files of the model that it was made of, by a digest of them, to the version of
vitkit, and to its own bytes: if any of these differs, the file is not used.
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
RECORD = "kept"  # in what is written beside the file
FOR_PEOPLE = ("README.md", "LICENSE")  # in a model's folder: they decide no answer


def run_of(model: "str | Path | Classifier") -> Path | None:
    """The directory of the run whose model is meant: by its own name, or as RUN/model. None for another
    model, wherever it is."""
    if not isinstance(model, str | Path):
        return None
    path = Path(model)
    if (path / "recipe.json").is_file():
        return path
    if path.name == FOLDER and (path.parent / "recipe.json").is_file():
        return path.parent
    return None


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
    """Record beside a file to which model it belongs. folder: the digest of that model's files,
    before the model was loaded. made_of: the classifier's own digest. Raises OSError."""
    record = Path(f"{path}.json")
    written = parse_json(record.read_text())
    kept = {"files": folder, "made_of": made_of, "onnx": _digest(path), "vitkit": __version__}
    write_json(record, written | {RECORD: kept})


def is_kept(path: Path) -> bool:
    """Whether a file is unchanged since it was written, and belongs to the model beside it."""
    return _record(path) is not None


def was_kept(path: Path) -> bool:
    """Whether a file was once tied to the model beside it, whatever has changed since."""
    return bool(_said(path))


def is_of_an_earlier_model(path: Path) -> bool:
    """Whether the model beside a file is not the one any more that the file was tied to."""
    said = _said(path)
    try:
        return bool(said) and said.get("files") != digest_of_folder(path.parent)
    except OSError:  # no model is beside it: the file was taken somewhere else
        return False


def _said(path: Path) -> dict:
    """What `tie` has written beside a file; empty if nothing is there or it is damaged."""
    try:
        said = parse_json(Path(f"{path}.json").read_text())[RECORD]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return said if isinstance(said, dict) else {}


def _record(path: Path) -> dict | None:
    """What `tie` has written; None if anything has changed since, or is missing or damaged."""
    kept = _said(path)
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
    """The runtime of a run's model from its file, without PyTorch; None where PyTorch shall.

    That is where another runtime, precision or device is asked for, or would be chosen: a model has one
    answer on a machine, so the file is used where `auto` computes in float32 on the CPU, or where float32 is
    asked for, and not where `vitkit bench` has found what is fastest for this model.
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
    except (VitkitError, ImportError):  # a library that is there and cannot be imported, too
        return None
    exported = opened.exported
    if exported.precision != "float32" or exported.takes_pictures or exported.merged:
        return None
    return replace(opened, made_of=kept["made_of"])
