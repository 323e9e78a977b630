"""Opens exported files with the library that computes them: ONNX Runtime, OpenVINO, or PyTorch."""

import hashlib
import re
import threading
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from vitkit.runtimes.exported import (
    FILES,
    KEY,
    Exported,
    FileRuntime,
    MetadataError,
    OpenedFile,
    PictureRuntime,
    threads,
)
from vitkit.system.errors import BadSettings, BadWeights, Unsupported
from vitkit.system.functions.steps import FILE, MODEL, step
from vitkit.system.machine import has_vnni
from vitkit.system.storage.files import nearest, refuse_special, what_came_instead

if TYPE_CHECKING:
    import openvino

    from vitkit.system.machine import PrecisionChoice

RuntimeName = Literal["auto", "torch", "compiled", "onnx", "openvino"]
LIBRARIES = {"onnx": "ONNX Runtime", "openvino": "OpenVINO", "torch": "PyTorch"}
PACKAGES = {"onnx": "onnxruntime", "openvino": "openvino"}

# The libraries that can compute each kind of file, the best first
READERS: dict[str, tuple[RuntimeName, ...]] = {
    "onnx": ("onnx", "openvino"),
    "openvino": ("openvino",),
    "torch": ("torch",),
}


def open_file(
    path: Path,
    runtime: RuntimeName = "auto",
    precision: "PrecisionChoice" = "auto",
    trusted: bool = False,
) -> FileRuntime:
    """Open an exported file. Raises VitkitError for a file that the library cannot compute, or that vitkit did
    not write.

    trusted: whether to open a .pt2 file too, which can run any code.
    """
    # Choose the library
    kind = FILES.get(path.suffix.lower())
    if kind is None:
        raise BadWeights(f"{path} is not an exported file; one ends in {', '.join(FILES)}")
    if not path.is_file():
        raise BadWeights(f"there is no file {path}{nearest(path)}")
    if kind == "torch" and not trusted:
        raise BadWeights(
            f"{path} is a PyTorch program, which could run any code while it is read; if you "
            "trust it, torch.export.load opens it in your own program. Export the model with `to='onnx'` "
            "or openvino to open it here"
        )
    library = runtime
    if runtime == "auto":
        library = (readers_of(path) or READERS[kind])[0]
    if library not in READERS[kind]:
        raise BadSettings(
            f"{path} cannot be computed by the runtime {runtime!r}; it is for "
            f"{' or '.join(READERS[kind])}"
        )
    check_installed(library)

    # Read its description
    if instead := what_came_instead(path):
        raise BadWeights(f"{path} is {instead}")
    try:
        opened = _open(path, library, precision)
        if opened.metadata is not None:
            exported = Exported.from_json(opened.metadata)
    except MetadataError as error:
        raise BadWeights(f"{path} cannot be opened: {error}") from error
    if opened.metadata is None:
        raise BadWeights(
            f"{path} has no description of its preprocessing and classes, so vitkit did not "
            f"write it; {step('export', MODEL, output=FILE)} writes such files"
        )
    if opened.is_calibrated:
        check_int8(path, exported, library)
    computed_in: str = exported.precision
    if library == "openvino":
        computed_in = _openvino_computes_in(precision, exported.precision)
    return FileRuntime(path, exported, LIBRARIES[library], opened.compute, computed_in)


def readers_of(path: Path) -> "list[RuntimeName]":
    """The installed libraries that can compute an exported file, the best first."""
    return [name for name in READERS[FILES[path.suffix.lower()]] if is_installed(name)]


def open_model_file(
    path: Path, runtime: RuntimeName = "auto", precision: "PrecisionChoice" = "auto"
) -> FileRuntime | PictureRuntime:
    """Open an exported file as `open_file` does; a file that contains its preprocessing becomes a
    PictureRuntime."""
    opened = open_file(path, runtime, precision)
    if opened.exported.takes_pictures:
        return PictureRuntime(opened)
    return opened


def _open(path: Path, library: str, precision: str) -> OpenedFile:
    """Open a file with a library."""
    if library == "onnx":
        check_onnx_precision(precision)
        return open_onnx(path)
    if library == "openvino":
        return open_openvino(path, precision)
    return open_program(path)


def check_int8(path: Path, exported: Exported, library: str) -> None:
    """Check that this processor computes a calibrated int8 file without saturation.

    Raises:
        VitkitError: If its products of 8-bit weights saturate here, so that many answers would
            differ from those that were measured.
    """
    saturates = exported.precision == "int8" and exported.weight_bits == 8
    if saturates and has_vnni() is False:
        raise Unsupported(
            f"{path} is an int8 file of an earlier version, which {LIBRARIES[library]} computes wrongly on this "
            "processor (it has no VNNI instructions); export the model again"
        )


def check_onnx_precision(precision: str) -> None:
    """Raises VitkitError for a precision that ONNX Runtime does not compute in."""
    if precision == "bfloat16":
        raise BadSettings(
            "ONNX Runtime computes in float32; leave out bfloat16, or use `runtime='openvino'`"
        )


def is_installed(library: str) -> bool:
    """Whether a library is installed, without importing it."""
    return library not in PACKAGES or find_spec(PACKAGES[library]) is not None


def check_installed(library: str) -> None:
    """Raises VitkitError if a library is not installed."""
    if not is_installed(library):
        raise Unsupported(
            f"{LIBRARIES[library]} is not installed; pip install {PACKAGES[library]}, or "
            "'vitkit[export]' for all that vitkit export needs"
        )


# Each library


def open_onnx(path: Path) -> OpenedFile:
    """Open a .onnx file. Raises VitkitError for one that cannot be opened, and ImportError
    without ONNX Runtime."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)  # errors only: it warns about its optimisations
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library's errors have no common class
        reason = str(error).splitlines()[0]
        raise BadWeights(f"{path} cannot be opened by ONNX Runtime: {reason}") from error
    metadata = session.get_modelmeta().custom_metadata_map.get(KEY)
    input_name = session.get_inputs()[0].name

    def compute(images: np.ndarray) -> list[np.ndarray]:
        return session.run(None, {input_name: images})

    return OpenedFile(metadata, compute, is_calibrated=True)  # int8 files for ONNX always are


DIGEST_KEY = "vitkit_digest"  # key in a .xml file of the digest of it and the .bin file beside it
DIGEST = re.compile(rb'<%s value="(\w{64})"' % DIGEST_KEY.encode())  # "<" is escaped within text
NO_DIGEST = "0" * 64  # placeholder while the digest is computed
BFLOAT16 = "bf16"
FLOAT32 = "f32"


def open_openvino(path: Path, precision: str = "auto") -> OpenedFile:
    """Open a .xml file with its .bin beside it, or a .onnx file. Raises VitkitError for one that cannot be
    opened, and ImportError without OpenVINO.

    precision: of the matrix products, float32 or bfloat16; "auto" is the precision in the file's description.
    """
    weights = refuse_special(path).with_suffix(".bin")
    if path.suffix.lower() == ".xml" and not refuse_special(weights).is_file():
        raise BadWeights(
            f"{path} has its weights in {weights.name}, which is not beside it; copy both files"
        )
    if path.suffix.lower() == ".xml":
        _check_digest(path)
    try:
        model = core().read_model(path)
        metadata = _metadata(model)
        settings = {
            "INFERENCE_PRECISION_HINT": _hint(precision, metadata),
            "INFERENCE_NUM_THREADS": threads(),
            "PERFORMANCE_HINT": "LATENCY",
        }
        compiled = core().compile_model(model, "CPU", settings)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise BadWeights(f"{path} cannot be opened by OpenVINO: {reason}") from error
    request = compiled.create_infer_request()
    one_at_a_time = threading.Lock()  # a server computes predictions and maps in different threads

    def compute(images: np.ndarray) -> list[np.ndarray]:
        with one_at_a_time:
            outputs = request.infer([images], share_inputs=True)
            # Copies, because the request reuses its output arrays
            return [outputs[output].copy() for output in compiled.outputs]

    kinds = {node.get_type_name() for node in model.get_ordered_ops()}
    return OpenedFile(metadata, compute, is_calibrated="FakeQuantize" in kinds)


def with_digest(path: Path) -> bytes:
    """The content of a .xml file with NO_DIGEST replaced by the digest of it and the .bin file."""
    content = path.read_bytes()
    match = DIGEST.search(content)
    assert match is not None  # the file was written with NO_DIGEST
    begin, end = match.span(1)
    return content[:begin] + _digest(content, path).encode() + content[end:]


def _digest(content: bytes, path: Path) -> str:
    """The digest of the content of a .xml file, with NO_DIGEST, and of the .bin file beside it."""
    digest = hashlib.sha256(content)
    with path.with_suffix(".bin").open("rb") as weights:
        return hashlib.file_digest(weights, lambda: digest).hexdigest()


def _check_digest(path: Path) -> None:
    """Raises VitkitError for a .xml and a .bin file that have changed: OpenVINO may crash the process on damaged
    ones.

    This does not protect against an attacker, who can change the digest as well. Files of earlier versions have
    no digest.
    """
    content = path.read_bytes()
    match = DIGEST.search(content)
    if match is None:
        return
    begin, end = match.span(1)
    rest = content[:begin] + NO_DIGEST.encode() + content[end:]
    if match[1].decode() != _digest(rest, path):
        weights = path.with_suffix(".bin").name
        raise BadWeights(
            f"{path} or {weights} beside it is damaged, or they belong to two models: their checksum does not "
            "match; export the model again, or copy both files"
        )


@cache
def core() -> "openvino.Core":
    """OpenVINO's core, which is kept until the process ends.

    Its CPU plugin gives the thread that loads it a signal stack, and frees that when the core is deleted. If that
    happened in another thread, the next Ctrl-C would be a segmentation fault.
    """
    import openvino

    return openvino.Core()


def _hint(precision: str, metadata: str | None) -> str:
    """OpenVINO's name of the precision to compute in."""
    if precision == "auto" and metadata is not None:
        precision = Exported.from_json(metadata).precision
    if precision == "bfloat16":
        return BFLOAT16
    return FLOAT32


def _openvino_computes_in(precision: str, weights: str) -> str:
    """The number format in which OpenVINO computes a file, as text. Products of int8 weights stay in int8; the
    rest is in float32, or in bfloat16 if that is requested."""
    if precision == "auto" or (precision, weights) == ("float32", "int8"):
        return weights
    if weights == "int8":
        return f"int8 and {precision}"
    return precision


def _metadata(model) -> str | None:
    """The description in a file's metadata, which OpenVINO has under "framework" for a .onnx file; None if there
    is none."""
    for keys in ([KEY], ["framework", KEY]):
        if model.has_rt_info(keys):
            return model.get_rt_info(keys).astype(str)
    return None


def open_program(path: Path) -> OpenedFile:
    """Open an exported PyTorch program, a .pt2 file.

    Reading one may run code of its author: it contains expressions that are evaluated, and may contain
    pickles. So vitkit reads only files that it has just written. Raises VitkitError if it cannot be opened.
    """
    import torch

    extra = {KEY: ""}
    try:
        program = torch.export.load(path, extra_files=extra)
    except (RuntimeError, OSError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise BadWeights(f"{path} cannot be opened by PyTorch: {reason}") from error
    module = program.module()

    def compute(images: np.ndarray) -> list[np.ndarray]:
        with torch.inference_mode():
            outputs = module(torch.from_numpy(images))
        if isinstance(outputs, torch.Tensor):  # a file of an earlier version
            outputs = (outputs,)
        return [output.numpy() for output in outputs]

    return OpenedFile(extra[KEY] or None, compute)
