"""OpenVINO, which computes its own .xml files, and .onnx files."""

from pathlib import Path

import numpy as np

from vitkit.deploy.exported import KEY, Opened, threads

BFLOAT16 = "bf16"
FLOAT32 = "f32"


def open_openvino(path: Path, bfloat16: bool = False) -> Opened:
    """A .xml file with its .bin beside it, or a .onnx file. Raises ValueError for one that cannot be
    opened, and ImportError without OpenVINO.

    bfloat16: compute matrix products in it, on a CPU that has instructions for it.
    """
    import openvino

    settings = {
        "INFERENCE_PRECISION_HINT": BFLOAT16 if bfloat16 else FLOAT32,
        "INFERENCE_NUM_THREADS": threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    core = openvino.Core()
    try:
        model = core.read_model(path)
        metadata = _metadata(model)
        compiled = core.compile_model(model, "CPU", settings)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise ValueError(f"{path} cannot be opened by OpenVINO: {reason}") from error
    request = compiled.create_infer_request()

    def compute(images: np.ndarray) -> np.ndarray:
        outputs = request.infer([images], share_inputs=True)
        return outputs[compiled.output(0)].copy()  # the request writes its next answer there

    return Opened(metadata, compute)


def _metadata(model) -> str | None:
    """What the file says of itself; of a .onnx file, OpenVINO keeps its metadata under "framework"."""
    for keys in ([KEY], ["framework", KEY]):
        if model.has_rt_info(keys):
            return model.get_rt_info(keys).astype(str)
    return None
