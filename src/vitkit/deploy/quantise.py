"""int8 weights and activations, calibrated on images: by NNCF for OpenVINO, and by ONNX Runtime's
own quantiser."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitkit.deploy.exported import Exported
from vitkit.deploy.writers import describe_onnx, quiet


def quantised_openvino(model, images: Sequence[np.ndarray]):
    """An OpenVINO model in int8. images: one at a time, as the model takes them."""
    # It imports a part of PyTorch that warns of a missing GPU
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    with quiet():
        import nncf

    logging.getLogger("nncf").setLevel(logging.ERROR)
    with quiet():
        return nncf.quantize(
            model,
            nncf.Dataset(list(images)),
            model_type=nncf.ModelType.TRANSFORMER,  # attention's softmax and its products stay exact
            subset_size=len(images),
        )


class _Calibration:
    """The images, as ONNX Runtime's quantiser asks for them."""

    def __init__(self, images: Sequence[np.ndarray]):
        self.images = images
        self.rewind()

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Another image; None behind the last."""
        return next(self.waiting, None)

    def rewind(self) -> None:
        """Begin again."""
        self.waiting = iter([{"images": image} for image in self.images])


def quantise_onnx(path: Path, images: Sequence[np.ndarray], exported: Exported) -> None:
    """Make int8 of a .onnx file of float32. images: one at a time, as the file takes them.

    Dense layers and convolutions are quantised, each output channel with a scale of its own.
    Products of activations, as attention has them, stay in float32.
    """
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    exact = onnx.load(path)
    stored = {tensor.name for tensor in exact.graph.initializer}
    between = []
    for node in exact.graph.node:
        if node.op_type == "MatMul" and not stored & set(node.input):
            between.append(node.name)
    logging.getLogger().setLevel(logging.ERROR)
    with quiet():
        quantize_static(
            exact,
            path,
            _Calibration(images),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["MatMul", "Gemm", "Conv"],
            nodes_to_exclude=between,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    quantised = onnx.load(path)
    describe_onnx(quantised, exported)
    onnx.save(quantised, path)
