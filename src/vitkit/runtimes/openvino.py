"""OpenVINO, which computes its own .xml files, and .onnx files."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitkit.runtimes.exported import KEY, Exported, Opened, threads

if TYPE_CHECKING:
    import openvino

BFLOAT16 = "bf16"
FLOAT32 = "f32"


def open_openvino(path: Path, precision: str = "auto") -> Opened:
    """A .xml file with its .bin beside it, or a .onnx file. Raises ValueError for one that cannot be
    opened, and ImportError without OpenVINO.

    precision: of the matrix products, float32 or bfloat16; "auto" is what the file was written for.
    """
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
        raise ValueError(f"{path} cannot be opened by OpenVINO: {reason}") from error
    request = compiled.create_infer_request()

    def compute(images: np.ndarray) -> np.ndarray:
        outputs = request.infer([images], share_inputs=True)
        return outputs[compiled.output(0)].copy()  # the request writes its next answer there

    return Opened(metadata, compute)


@cache
def core() -> "openvino.Core":
    """OpenVINO, which lives as long as the process.

    Its CPU plugin gives the thread that loads it a stack for signals, and frees it when it goes,
    wherever that happens: if in another thread, the next Ctrl-C would be a segmentation fault.
    """
    import openvino

    return openvino.Core()


def _hint(precision: str, metadata: str | None) -> str:
    """What OpenVINO calls the precision to compute in."""
    if precision == "auto" and metadata is not None:
        precision = Exported.from_json(metadata).precision
    if precision == "bfloat16":
        return BFLOAT16
    return FLOAT32


def _metadata(model) -> str | None:
    """What the file says of itself; of a .onnx file, OpenVINO keeps its metadata under "framework"."""
    for keys in ([KEY], ["framework", KEY]):
        if model.has_rt_info(keys):
            return model.get_rt_info(keys).astype(str)
    return None
