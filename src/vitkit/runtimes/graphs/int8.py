"""int8 weights and activations: by NNCF for OpenVINO, and by ONNX Runtime's own quantiser."""

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

SAFE_BITS = 7  # of int8 weights: no processor saturates their products (saturation.py)
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
    """An OpenVINO model with its weights in int8; each output channel has its own scale and zero
    point.

    No image is needed to calibrate it: OpenVINO's CPU plugin also quantises the inputs of each dense
    layer while it computes, and scales every GROUP numbers of a token by the largest of them.

    Layers that int8 would not speed up stay exact: the projection of patches, which the plugin
    computes in float32 whatever its weights are stored in, and the products of one token alone.
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
    """An OpenVINO model in int8; the images decide the range of each layer's inputs.

    images: one at a time, as the model takes them. exact: names of layers that stay exact.
    Attention's products and its softmax always do. No processor saturates its products.
    """
    from openvino._offline_transformations import compress_quantize_weights_transformation

    with _nncf_at_work() as nncf:
        attention = ["ScaledDotProductAttention"]
        scope = nncf.IgnoredScope(types=attention, names=list(exact), validate=False)
        quantised = nncf.quantize(
            model,
            nncf.Dataset(list(images)),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(images),
            ignored_scope=scope,
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                overflow_fix=nncf.OverflowFix.DISABLE,  # seven bits for all weights: saturation.py loses less
                backend_params={"compress_weights": False},  # float32, until they are safe
            ),
        )
    make_safe(quantised)
    compress_quantize_weights_transformation(quantised)
    return quantised


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
        self.waiting = iter([{"images": image} for image in images])

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Another image; None behind the last."""
        return next(self.waiting, None)


def quantise_onnx(path: Path, images: Sequence[np.ndarray], exact: Sequence[str] = ()) -> None:
    """Quantise a float32 .onnx file to int8, without its metadata. images: one at a time, as the
    file takes them, which calls them "images".

    Dense layers and convolutions are quantised, each output channel with a scale of its own.
    Products of activations, as attention has them, stay in float32, and so do the layers of these
    names. The outputs of a dense layer are not rounded again, which would lose most of the
    accuracy. A convolution's is, because the runtime computes none in int8 that gives other
    numbers.

    Weights have SAFE_BITS.
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
            reduce_range=True,  # SAFE_BITS
            extra_options={"OpTypesToExcludeOutputQuantization": dense},
        )


# Layers that stay exact: those of one token, the projection of patches, and those whose inputs have giants


COARSE = 64  # times the root mean square: with such a peak, most numbers share four of 256 levels


class Spread:
    """The largest number, and the mean square, of what goes into each of some layers."""

    def __init__(self, layers: Sequence[str]):
        """layers: their names, in the order in which the model computes them."""
        self.layers = list(layers)
        self.peaks = np.zeros(len(layers))
        self.squares = np.zeros(len(layers))
        self.counts = np.zeros(len(layers))

    def add(self, inputs: Sequence[np.ndarray]) -> None:
        """Add the inputs of each layer for another image."""
        for number, x in enumerate(inputs):
            self.peaks[number] = max(self.peaks[number], np.abs(x).max())
            self.squares[number] += np.square(x, dtype=np.float64).sum()
            self.counts[number] += x.size

    def with_giants(self) -> list[str]:
        """The layers that get a few numbers so large that the others would be rounded away, as trained
        models have them in a block or two (Sun et al. 2024, "Massive Activations in Large Language
        Models")."""
        coarse = self.peaks > COARSE * np.sqrt(self.squares / np.maximum(self.counts, 1))
        return [name for name, is_coarse in zip(self.layers, coarse, strict=True) if is_coarse]


def is_of_one_token(shape: Sequence) -> bool:
    """Whether a layer gets one vector an image, by the shape of its input: (B, D), or (B, 1, D). Such are
    the last block's behind the queries of the class token, and the head. They are a thousandth of the
    work, and their errors are the answers' own."""
    return len(shape) == 2 or shape[-2] == 1


def exact_in_openvino(model, images: Sequence[np.ndarray]) -> list[str]:
    """The layers of an OpenVINO model that are not quantised. images: one at a time, as the model
    takes them."""
    return always_exact_in_openvino(model) + spread_in_openvino(model, images).with_giants()


def exact_in_onnx(path: Path, images: Sequence[np.ndarray]) -> list[str]:
    """The layers of a .onnx file that stay exact. images: one at a time, as the file takes them."""
    import onnx

    model = onnx.load(path)
    convolutions = [node.name for node in model.graph.node if node.op_type == "Conv"]
    always = of_one_token_in_onnx(model) + projection_of_patches(convolutions)
    return always + spread_in_onnx(path, images).with_giants()


def always_exact_in_openvino(model) -> list[str]:
    """The layers of an OpenVINO model that stay exact, whatever goes into them."""
    convolutions = []
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Convolution":
            convolutions.append(node.get_friendly_name())
    return of_one_token_in_openvino(model) + projection_of_patches(convolutions)


def projection_of_patches(convolutions: list[str]) -> list[str]:
    """Which of a model's convolutions stays exact: a single one, that of patches. It is a fortieth of
    the work, and its inputs are levels from 0 that are not centred. In a ResNet, convolutions are
    most of the work, and all are quantised."""
    if len(convolutions) == 1:
        return convolutions
    return []


def of_one_token_in_openvino(model) -> list[str]:
    """The names of an OpenVINO model's products of one token."""
    names = []
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul":
            continue
        if is_of_one_token(node.input_value(0).get_partial_shape()):
            names.append(node.get_friendly_name())
    return names


def of_one_token_in_onnx(model: "ModelProto") -> list[str]:
    """The names of a .onnx model's dense layers of one token."""
    shapes = {value.name: value.type.tensor_type.shape.dim for value in model.graph.value_info}
    names = []
    for node in dense_in_onnx(model):
        shape = [size.dim_value for size in shapes[node.input[0]]]  # 0 of any size
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
    """The spread of what goes into the dense layers of an OpenVINO model.

    images: one at a time, as the model takes them.
    """
    from vitkit.runtimes.libraries import core

    watched = model.clone()
    dense = [node for node in watched.get_ordered_ops() if node.get_type_name() == "MatMul"]
    own = len(watched.outputs)
    numbers, values = _different([node.input_value(0) for node in dense])
    watched.add_outputs(values)
    compiled = core().compile_model(watched, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    spread = Spread([node.get_friendly_name() for node in dense])
    for image in images:
        request.infer([image])
        spread.add([request.get_output_tensor(own + number).data for number in numbers])
    return spread


def _different(outputs: list) -> tuple[list[int], list]:
    """The number of each of OpenVINO's outputs among the different ones, and these: a block's queries,
    keys and values are made of one."""
    names = [(output.get_node().get_friendly_name(), output.get_index()) for output in outputs]
    different = dict(zip(names, outputs, strict=True))
    order = list(different)
    return [order.index(name) for name in names], list(different.values())


def spread_in_onnx(path: Path, images: Sequence[np.ndarray]) -> Spread:
    """The spread of what goes into the dense layers of a .onnx file.

    images: one at a time, as the file takes them; its input is called "images".
    """
    import onnx
    from onnxruntime import InferenceSession

    # A copy of the file whose outputs include what goes into the layers
    watched = onnx.load(path)
    dense = dense_in_onnx(watched)
    values = [node.input[0] for node in dense]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(values))
    with TemporaryDirectory(dir=path.parent) as folder:
        file = Path(folder) / "watched.onnx"
        onnx.save(watched, file, save_as_external_data=True, location="weights")  # of any size
        session = InferenceSession(file, providers=["CPUExecutionProvider"])

    spread = Spread([node.name for node in dense])
    for image in images:
        spread.add(session.run(values, {"images": image}))
    return spread


def has_weights(node: "NodeProto", model: "ModelProto") -> bool:
    """Whether one of a node's inputs is stored in the model: else it is a product of activations."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return bool(stored & set(node.input))
