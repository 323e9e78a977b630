"""Opens a runtime: for an exported file, or for a classifier."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vitkit.runtimes.exported import (
    FILES,
    Exported,
    FileRuntime,
    MetadataError,
    Opened,
    PictureRuntime,
)
from vitkit.system.machine import has_vnni
from vitkit.system.storage.files import nearest

if TYPE_CHECKING:
    from vitkit.system.machine import PrecisionChoice

RuntimeName = Literal["auto", "torch", "compiled", "onnx", "openvino"]
LIBRARIES = {"onnx": "ONNX Runtime", "openvino": "OpenVINO", "torch": "PyTorch"}
PACKAGES = {"onnx": "onnxruntime", "openvino": "openvino"}
# What can compute a file, the best first
READERS = {"onnx": ("onnx", "openvino"), "openvino": ("openvino",), "torch": ("torch",)}


def open_file(
    path: Path,
    runtime: RuntimeName = "auto",
    precision: "PrecisionChoice" = "auto",
    trusted: bool = False,
) -> FileRuntime:
    """What computes an exported file. Raises ValueError for a file
    that no such library can compute, or that is not vitkit's.

    trusted: a .pt2 file is opened too, which can run anything.
    """
    # Which library computes it
    kind = FILES.get(path.suffix.lower())
    if kind is None:
        raise ValueError(f"{path} is no exported file; one ends in {', '.join(FILES)}")
    if not path.is_file():
        raise ValueError(f"there is no file {path}{nearest(path)}")
    if kind == "torch" and not trusted:
        raise ValueError(
            f"{path} is a program of PyTorch's, which could run anything while it is read; if you "
            "trust it, torch.export.load opens it in your own program. Exported --to onnx or "
            "openvino, the model opens here"
        )
    library = runtime
    if runtime == "auto":
        installed = [name for name in READERS[kind] if is_installed(name)]
        library = (installed or READERS[kind])[0]
    if library not in READERS[kind]:
        raise ValueError(
            f"{path} cannot be computed by the runtime {runtime!r}; it is for "
            f"{' or '.join(READERS[kind])}"
        )
    check_installed(library)

    # What it says of itself
    try:
        opened = _open(path, library, precision)
        if opened.metadata is not None:
            exported = Exported.from_json(opened.metadata)
    except MetadataError as error:
        raise ValueError(f"{path} cannot be opened: {error}") from error
    if opened.metadata is None:
        raise ValueError(
            f"{path} does not say its preprocessing and the names of its classes, so vitkit did not "
            "write it; vitkit export MODEL -o FILE writes such files"
        )
    if library == "onnx":
        check_int8(path, exported)
    return FileRuntime(path, exported, LIBRARIES[library], opened.compute)


def open_model_file(
    path: Path, runtime: RuntimeName = "auto", precision: "PrecisionChoice" = "auto"
) -> FileRuntime | PictureRuntime:
    """`open_file`, as a Runtime: a file that prepares images takes whole pictures."""
    opened = open_file(path, runtime, precision)
    if opened.exported.takes_pictures:
        return PictureRuntime(opened)
    return opened


def _open(path: Path, library: str, precision: str) -> Opened:
    """The file, opened by a library."""
    if library == "onnx":
        from vitkit.runtimes.onnx import open_onnx

        check_onnx_precision(precision)
        return open_onnx(path)
    if library == "openvino":
        from vitkit.runtimes.openvino import open_openvino

        return open_openvino(path, precision)
    from vitkit.runtimes.torch_program import open_program

    return open_program(path)


def check_int8(path: Path, exported: Exported) -> None:
    """Raises ValueError for a file whose int8 products saturate in ONNX Runtime on this processor, so
    that many answers would be others than those that were measured."""
    saturates = exported.precision == "int8" and exported.weight_bits == 8
    if saturates and has_vnni() is False:
        raise ValueError(
            f"{path} has weights of 8 bits, which ONNX Runtime multiplies wrongly on this processor "
            "(it has no VNNI instructions); export the model again, with weights of 7 bits as "
            "vitkit writes them now"
        )


def check_onnx_precision(precision: str) -> None:
    """Raises ValueError for a precision that ONNX Runtime does not compute in."""
    if precision == "bfloat16":
        raise ValueError(
            "ONNX Runtime computes in float32; leave out bfloat16, or take --runtime openvino"
        )


def is_installed(library: str) -> bool:
    """Whether a library is there, without importing it."""
    return library not in PACKAGES or find_spec(PACKAGES[library]) is not None


def check_installed(library: str) -> None:
    """Raises ValueError if a library is not installed."""
    if not is_installed(library):
        raise ValueError(
            f"{LIBRARIES[library]} is not installed; pip install {PACKAGES[library]}, or "
            "'vitkit[export]' for all that vitkit export needs"
        )
