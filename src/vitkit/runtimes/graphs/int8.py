"""Quantisation of exported models to int8: by NNCF for OpenVINO, and by ONNX Runtime's own quantiser.

Some layers are excluded and stay in floating point: those that compute one token per image, the projection
of patches, and those with extremely large values among their inputs.
"""

import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from vitkit.runtimes.graphs.saturation import make_safe
from vitkit.runtimes.graphs.writers import quiet

if TYPE_CHECKING:
    import openvino
    from onnx import ModelProto, NodeProto

SAFE_BITS = 7  # bits used of int8 weights: their products saturate on no processor (saturation.py)
GROUP = 32  # inputs that share a scale; it divides the width of every published model


@contextmanager
def log_errors_only(logger: str | None) -> Iterator[None]:
    """Context in which a logger, or the root logger (None), logs only errors."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def int8_openvino(model: "openvino.Model") -> "openvino.Model":
    """An OpenVINO model with int8 weights; each output channel has its own scale and zero point.

    It needs no calibration images: OpenVINO's CPU plugin quantises the inputs of each dense layer
    during inference, and scales every GROUP values of a token by their maximum.

    Layers that int8 would not speed up stay exact: the projection of patches, which the plugin
    always computes in float32, and the layers that compute one token per image.
    """
    with _quiet_nncf() as nncf:
        exact = nncf.IgnoredScope(names=always_exact_in_openvino(model))
        model = nncf.compress_weights(
            model, mode=nncf.CompressWeightsMode.INT8_ASYM, ignored_scope=exact
        )
    model.set_rt_info(str(GROUP), ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
    return model


def calibrated_openvino(
    model: "openvino.Model", images: Sequence[np.ndarray], exact: Sequence[str] = ()
) -> "openvino.Model":
    """An OpenVINO model in int8, with the range of each layer's inputs measured on images.

    images: one at a time, as the model takes them. exact: names of layers that stay exact; the
    matrix products and the softmax of attention always do. Products saturate on no processor.
    """
    from openvino._offline_transformations import compress_quantize_weights_transformation

    with _quiet_nncf() as nncf:
        attention = ["ScaledDotProductAttention"]
        scope = nncf.IgnoredScope(types=attention, names=list(exact), validate=False)
        quantised = nncf.quantize(
            model,
            nncf.Dataset(list(images)),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(images),
            ignored_scope=scope,
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                overflow_fix=nncf.OverflowFix.DISABLE,  # it uses 7 bits; make_safe is more accurate
                backend_params={"compress_weights": False},  # make_safe needs float32
            ),
        )
    make_safe(quantised)
    compress_quantize_weights_transformation(quantised)
    return quantised


def load_nncf() -> ModuleType:
    """Import NNCF, without the warning of a missing GPU that this causes in PyTorch."""
    with quiet(), log_errors_only("torch.utils.cpp_extension"):
        import nncf
    return nncf


@contextmanager
def _quiet_nncf() -> Iterator[ModuleType]:
    """Context in which NNCF and its lazy imports log only errors.

    NNCF opens OpenVINO itself. Its objects are collected here, in the thread that created them, because
    collecting them in another thread could crash (`core` in libraries.py).
    """
    nncf = load_nncf()
    with quiet(), log_errors_only("nncf"), log_errors_only("torch.utils.cpp_extension"):
        try:
            yield nncf
        finally:
            gc.collect()


class _Calibration:
    """Calibration images, with the interface that ONNX Runtime's quantiser expects."""

    def __init__(self, images: Sequence[np.ndarray]):
        self.waiting = iter([{"images": image} for image in images])

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next image; None after the last."""
        return next(self.waiting, None)


def quantise_onnx(path: Path, images: Sequence[np.ndarray], exact: Sequence[str] = ()) -> None:
    """Quantise a float32 .onnx file to int8, in place; its metadata is lost. images: one at a time, as
    the file takes them in its input "images". exact: names of layers that stay in float32.

    Dense layers and convolutions are quantised, each output channel with its own scale. Products of two
    activations, such as those of attention, stay in float32. The output of a dense layer is not
    quantised, because that would lose most of the accuracy; the output of a convolution is, because the
    runtime has no int8 convolution with a float32 output.

    Weights use SAFE_BITS.
    """
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    model = onnx.load(path)
    dense = ["MatMul", "Gemm"]
    between = []
    for node in model.graph.node:
        if node.op_type == "MatMul" and not has_weights(node, model):
            between.append(node.name)
    with quiet(), log_errors_only(None):  # it warns through the root logger
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
            reduce_range=True,  # SAFE_BITS
            extra_options={"OpTypesToExcludeOutputQuantization": dense},
        )


# Layers that stay exact


# Inputs with a larger ratio of peak to root mean square are not quantised: most values would share 4 of 256 levels
COARSE = 64


class Spread:
    """The largest magnitude and the mean square of the inputs of some layers."""

    def __init__(self, layers: Sequence[str]):
        """layers: their names, in the order in which the model computes them."""
        self.layers = list(layers)
        self.peaks = np.zeros(len(layers))
        self.squares = np.zeros(len(layers))
        self.counts = np.zeros(len(layers))

    def add(self, inputs: Sequence[np.ndarray]) -> None:
        """Add the inputs of each layer for one more image."""
        for number, x in enumerate(inputs):
            self.peaks[number] = max(self.peaks[number], np.abs(x).max())
            self.squares[number] += np.square(x, dtype=np.float64).sum()
            self.counts[number] += x.size

    def with_giants(self) -> list[str]:
        """The layers with a few inputs so large that the others would be rounded to 0. Trained models
        have them in one or two blocks (Sun et al. 2024, "Massive Activations in Large Language
        Models")."""
        coarse = self.peaks > COARSE * np.sqrt(self.squares / np.maximum(self.counts, 1))
        return [name for name, is_coarse in zip(self.layers, coarse, strict=True) if is_coarse]


def is_of_one_token(shape: Sequence) -> bool:
    """Whether a layer gets one vector per image, by the shape of its input: (B, D) or (B, 1, D). These are
    the head, and the layers of the last block that compute only the class token. They are a thousandth of
    the work, and their errors directly affect the answers."""
    return len(shape) == 2 or shape[-2] == 1


def exact_in_openvino(model, images: Sequence[np.ndarray]) -> list[str]:
    """The names of the layers of an OpenVINO model that stay exact. images: one at a time, as the model
    takes them."""
    return always_exact_in_openvino(model) + spread_in_openvino(model, images).with_giants()


def exact_in_onnx(path: Path, images: Sequence[np.ndarray]) -> list[str]:
    """The names of the layers of a .onnx file that stay exact. images: one at a time, as the file takes
    them."""
    import onnx

    model = onnx.load(path)
    convolutions = [node.name for node in model.graph.node if node.op_type == "Conv"]
    always = of_one_token_in_onnx(model) + projection_of_patches(convolutions)
    return always + spread_in_onnx(path, images).with_giants()


def always_exact_in_openvino(model) -> list[str]:
    """The names of the layers of an OpenVINO model that stay exact for all inputs."""
    convolutions = []
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Convolution":
            convolutions.append(node.get_friendly_name())
    return of_one_token_in_openvino(model) + projection_of_patches(convolutions)


def projection_of_patches(convolutions: list[str]) -> list[str]:
    """The convolutions that stay exact: the projection of patches, which is a ViT's only one. It is a
    fortieth of the work, and its inputs are pixel levels that are not centred. In a ResNet, convolutions
    are most of the work, and all of them are quantised."""
    if len(convolutions) == 1:
        return convolutions
    return []


def of_one_token_in_openvino(model) -> list[str]:
    """The names of an OpenVINO model's layers of one token per image."""
    names = []
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul":
            continue
        if is_of_one_token(node.input_value(0).get_partial_shape()):
            names.append(node.get_friendly_name())
    return names


def of_one_token_in_onnx(model: "ModelProto") -> list[str]:
    """The names of a .onnx model's dense layers of one token per image."""
    shapes = {value.name: value.type.tensor_type.shape.dim for value in model.graph.value_info}
    names = []
    for node in dense_in_onnx(model):
        shape = [size.dim_value for size in shapes[node.input[0]]]  # 0 for a variable size
        if is_of_one_token(shape):
            names.append(node.name)
    return names


def dense_in_onnx(model: "ModelProto") -> "list[NodeProto]":
    """The dense layers of a .onnx model."""
    dense = []
    for node in model.graph.node:
        if node.op_type in ("MatMul", "Gemm") and has_weights(node, model):
            dense.append(node)
    return dense


def spread_in_openvino(model, images: Sequence[np.ndarray]) -> Spread:
    """The spread of the inputs of an OpenVINO model's dense layers.

    images: one at a time, as the model takes them.
    """
    from vitkit.runtimes.libraries import core

    watched = model.clone()
    dense = [node for node in watched.get_ordered_ops() if node.get_type_name() == "MatMul"]
    own = len(watched.outputs)
    numbers, values = _distinct([node.input_value(0) for node in dense])
    watched.add_outputs(values)
    compiled = core().compile_model(watched, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    spread = Spread([node.get_friendly_name() for node in dense])
    for image in images:
        request.infer([image])
        spread.add([request.get_output_tensor(own + number).data for number in numbers])
    return spread


def _distinct(outputs: list) -> tuple[list[int], list]:
    """Remove repetitions from OpenVINO outputs (queries, keys and values share their input). Returns the
    position of each among the distinct ones, and these."""
    names = [(output.get_node().get_friendly_name(), output.get_index()) for output in outputs]
    different = dict(zip(names, outputs, strict=True))
    order = list(different)
    return [order.index(name) for name in names], list(different.values())


def spread_in_onnx(path: Path, images: Sequence[np.ndarray]) -> Spread:
    """The spread of the inputs of a .onnx file's dense layers.

    images: one at a time, as the file takes them; its input is called "images".
    """
    import onnx
    from onnxruntime import InferenceSession

    # A copy of the file that also outputs the inputs of the layers
    watched = onnx.load(path)
    dense = dense_in_onnx(watched)
    values = [node.input[0] for node in dense]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(values))
    with TemporaryDirectory(dir=path.parent) as folder:
        file = Path(folder) / "watched.onnx"
        # External weights, because a single file has a size limit
        onnx.save(watched, file, save_as_external_data=True, location="weights")
        session = InferenceSession(file, providers=["CPUExecutionProvider"])

    spread = Spread([node.name for node in dense])
    for image in images:
        spread.add(session.run(values, {"images": image}))
    return spread


def has_weights(node: "NodeProto", model: "ModelProto") -> bool:
    """Whether one of a node's inputs is stored in the model, so that it is no product of two activations."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return bool(stored & set(node.input))
