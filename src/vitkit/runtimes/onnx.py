"""ONNX Runtime, which computes .onnx files."""

from pathlib import Path

import numpy as np

from vitkit.runtimes.exported import KEY, Opened, threads


def open_onnx(path: Path) -> Opened:
    """A .onnx file. Raises ValueError for one that cannot be opened, and ImportError without ONNX
    Runtime."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)  # errors; it warns of the optimisations it makes
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} cannot be opened by ONNX Runtime: {reason}") from error
    metadata = session.get_modelmeta().custom_metadata_map.get(KEY)
    input_name = session.get_inputs()[0].name
    output_name = session.get_outputs()[0].name

    def compute(images: np.ndarray) -> np.ndarray:
        (outputs,) = session.run([output_name], {input_name: images})
        return outputs

    return Opened(metadata, compute)
