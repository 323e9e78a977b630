"""int8 weights and activations: by NNCF for OpenVINO, and by ONNX Runtime's own quantiser."""

import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from vitkit.exporting.exact_layers import always_exact_in_openvino, has_weights
from vitkit.exporting.writers import quiet

ONNX_BITS = 7  # of int8 weights in a .onnx file
if TYPE_CHECKING:
    import openvino

GROUP = 32  # divides the width of every published model


@contextmanager
def only_errors(logger: str | None) -> Iterator[None]:
    """A block in which a logger, or the root (None), says nothing below an error; afterwards as
    before."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def int8_openvino(model: "openvino.Model") -> "openvino.Model":
    """An OpenVINO model with its weights in int8, each output channel with a scale and a zero of its
    own. Its CPU plugin makes int8 of the inputs of each dense layer too when it computes them, every GROUP
    numbers of a token by their own largest, so that no image is needed to calibrate.

    What would be no faster in int8 stays exact: the projection of patches, which the plugin computes in
    float32 whatever its weights are stored in, and the products of one token alone.
    """
    with _nncf_at_work() as nncf:
        exact = nncf.IgnoredScope(names=always_exact_in_openvino(model))
        model = nncf.compress_weights(
            model, mode=nncf.CompressWeightsMode.INT8_ASYM, ignored_scope=exact
        )
    model.set_rt_info(str(GROUP), ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
    return model


def calibrated_openvino(
    model: "openvino.Model", images: Sequence[np.ndarray], exact: Sequence[str] = ()
) -> "openvino.Model":
    """An OpenVINO model in int8, the range of each layer's inputs fixed by images, which come one at a
    time, as the model takes them. Attention's softmax and its products stay exact, and these layers."""
    with _nncf_at_work() as nncf:
        attention = ["ScaledDotProductAttention"]
        scope = nncf.IgnoredScope(types=attention, names=list(exact), validate=False)
        return nncf.quantize(
            model,
            nncf.Dataset(list(images)),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(images),
            ignored_scope=scope,
        )


def load_nncf() -> ModuleType:
    """The package, which imports a part of PyTorch that warns of a missing GPU."""
    with quiet(), only_errors("torch.utils.cpp_extension"):
        import nncf
    return nncf


@contextmanager
def _nncf_at_work() -> Iterator[ModuleType]:
    """A block in which NNCF, and what it imports when it needs it, says nothing below an error.

    NNCF opens OpenVINO for itself. What it leaves is forgotten here, by the thread that opened it, and
    not whenever another one looks for garbage (openvino_file.py says why).
    """
    nncf = load_nncf()
    with quiet(), only_errors("nncf"), only_errors("torch.utils.cpp_extension"):
        try:
            yield nncf
        finally:
            gc.collect()


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


def quantise_onnx(path: Path, images: Sequence[np.ndarray], exact: Sequence[str] = ()) -> None:
    """Make int8 of a .onnx file of float32, without its metadata. images: one at a time, as the file
    takes them, which calls them "images".

    Dense layers and convolutions are quantised, each output channel with a scale of its own.
    Products of activations, as attention has them, stay in float32, and so do the layers of these names.
    What comes out of a dense layer is not rounded again: that loses most of the accuracy. A convolution's
    is, because the runtime computes none in int8 that gives other numbers.

    Weights have ONNX_BITS. On x86 processors without VNNI the runtime adds two products of uint8 and
    int8 in 16 bits, where two of eight bits saturate: the file would be wrong there, and nowhere else.
    """
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    model = onnx.load(path)
    dense = ["MatMul", "Gemm"]
    between = []
    for node in model.graph.node:
        if node.op_type == "MatMul" and not has_weights(node, model):
            between.append(node.name)
    with quiet(), only_errors(None):  # it warns through the root logger
        quantize_static(
            model,
            path,
            _Calibration(images),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=[*dense, "Conv"],
            nodes_to_exclude=[*between, *exact],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            reduce_range=True,
            extra_options={"OpTypesToExcludeOutputQuantization": dense},
        )
