"""Writes a classifier's graph for a runtime: .onnx, .xml with .bin, or .pt2. All are made with
torch.export and contain no Python code.

Legend: B batch, K classes, h w pixels of what the model gets.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from vitkit.runtimes.exported import KEY, STRANGENESS, Exported
from vitkit.runtimes.libraries import DIGEST_KEY, NO_DIGEST, with_digest
from vitkit.system.environment import variables_set_to
from vitkit.system.errors import Unsupported
from vitkit.system.storage.files import MARK

# Environment variables without which OpenVINO and NNCF report their use to their makers
NO_TELEMETRY = {"CI": "true", "NNCF_CI": "1"}
OPSET = 18  # ONNX Runtime 1.14 and later know it
LARGEST_ONNX = 2**31 - 2**20  # bytes; a .onnx file is one message of protobuf
LARGEST_SIDE = 8192  # pixels of a picture
# Patches along a side of an image at its own proportions; more if the model allows more
LONGEST = 255
LARGEST_BATCH = 4096
ATTENTION = "attention"  # name of the output with the attention among patches
ANOMALY_MAP = "anomaly_map"  # name of the output with the places that differ from good images
FEW = 1024  # largest size of a tensor that stays in float32: biases, and parameters of LayerNorm


def traced(graph: nn.Module, exported: Exported) -> ExportedProgram:
    """The graph of torch.export, for any batch size, and for any image size where the file allows it."""
    batch = Dim("batch", min=1, max=LARGEST_BATCH)
    if exported.takes_pictures:
        height = Dim("height", min=1, max=LARGEST_SIDE)
        width = Dim("width", min=1, max=LARGEST_SIDE)
        example = torch.zeros(2, 97, 131, 3, dtype=torch.uint8)
        shapes = {0: batch, 1: height, 2: width}
    else:
        example = torch.zeros(2, 3, *exported.preprocessing.size, dtype=torch.uint8)
        shapes = {0: batch}
        if exported.preprocessing.is_native:
            patch = exported.preprocessing.patch
            example = torch.zeros(2, 3, 3 * patch[0], 5 * patch[1], dtype=torch.uint8)
            longest = max(LONGEST, exported.preprocessing.patches)
            rows = Dim("rows", min=1, max=longest)
            columns = Dim("columns", min=1, max=longest)
            shapes |= {2: patch[0] * rows, 3: patch[1] * columns}
    with quiet():
        return torch.export.export(graph.eval(), (example,), dynamic_shapes={"images": shapes})


@contextmanager
def quiet() -> Iterator[None]:
    """Context in which exporters do not print or warn: their messages are for their developers, and the
    files that they write are tested. OpenVINO and NNCF also do not report their use to their makers."""
    with variables_set_to(NO_TELEMETRY), warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        yield


def output_names(exported: Exported, map_output: str = "") -> list[str]:
    """The names of the file's outputs. map_output: that of a map of the image, ATTENTION or ANOMALY_MAP,
    if it has one."""
    names = ["logits"]
    if exported.takes_pictures:
        names = ["probabilities"]
    if exported.limits is not None:
        names.append(STRANGENESS)
    if map_output:
        names.append(map_output)
    return names


def write_program(program: ExportedProgram, exported: Exported, path: Path) -> None:
    """Write a .pt2 file, without the example inputs of the tracing, which would be pickled."""
    program._example_inputs = None
    with quiet():
        torch.export.save(program, path, extra_files={KEY: exported.to_json()})


def write_onnx(
    program: ExportedProgram, exported: Exported, path: Path, map_output: str = ""
) -> None:
    """Write a .onnx file. It computes in float32, even if its weights are stored as float16 or bfloat16.

    Raises VitkitError if the model is too large for one.
    """
    import onnx

    with quiet():
        converted = torch.onnx.export(
            program,
            opset_version=OPSET,
            output_names=output_names(exported, map_output),
            verbose=False,
        )
    size = sum(tensor.nbytes for tensor in program.state_dict.values())
    if size > LARGEST_ONNX and exported.precision == "float32":
        raise Unsupported(
            f"the model's weights are {size:,} bytes, and a .onnx file holds {LARGEST_ONNX:,}; "
            "choose `to='openvino'`, or `precision='float16'`"
        )
    assert converted is not None
    model = converted.model_proto
    if exported.precision in ("float16", "bfloat16"):
        _store_halves(model, exported.precision)
    _name_axes(model.graph, exported)
    describe_onnx(model, exported)
    onnx.save(model, path)


def describe_onnx(model, exported: Exported) -> None:
    """Write a description into a ModelProto."""
    model.producer_name = MARK
    del model.metadata_props[:]
    entry = model.metadata_props.add()
    entry.key = KEY
    entry.value = exported.to_json()
    model.graph.name = "vitkit"
    model.graph.doc_string = ""
    for (
        node
    ) in model.graph.node:  # remove references to Python code, three times the size of a node
        node.doc_string = ""
        del node.metadata_props[:]


def describe_onnx_file(path: Path, exported: Exported) -> None:
    """Write a description into a .onnx file."""
    import onnx

    model = onnx.load(path)
    describe_onnx(model, exported)
    onnx.save(model, path)


def _store_halves(model, precision: str) -> None:
    """Store weights in 16 bits, each with a cast to float32, which the runtime computes once."""
    import ml_dtypes
    from onnx import TensorProto, helper, numpy_helper

    dtype = np.float16
    if precision == "bfloat16":
        dtype = ml_dtypes.bfloat16
    casts = []
    for tensor in model.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT:
            continue
        values = numpy_helper.to_array(tensor)
        if values.size <= FEW:
            continue
        name = tensor.name
        # Overflow gives infinity, which the test of the file finds
        with np.errstate(over="ignore"):
            stored = values.astype(dtype)
        tensor.CopyFrom(numpy_helper.from_array(stored, f"{name}.stored"))
        casts.append(helper.make_node("Cast", [tensor.name], [name], to=TensorProto.FLOAT))
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(casts + nodes)


def _name_axes(graph, exported: Exported) -> None:
    """Give the variable axes readable names."""
    axes = graph.input[0].type.tensor_type.shape.dim
    names = {axes[0].dim_param: "batch"}
    if exported.preprocessing.is_native:
        names |= {axes[2].dim_param: "height", axes[3].dim_param: "width"}
    if exported.takes_pictures:
        names |= {axes[1].dim_param: "height", axes[2].dim_param: "width"}
    for value in [*graph.input, *graph.output, *graph.value_info]:
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param in names:
                axis.dim_param = names[axis.dim_param]


def openvino_model(program: ExportedProgram, exported: Exported, map_output: str = ""):
    """The graph as an OpenVINO model."""
    import openvino

    with quiet():
        model = openvino.convert_model(program)
    shape = [-1, 3, *exported.preprocessing.size]
    if exported.preprocessing.is_native:
        shape = [-1, 3, -1, -1]
    if exported.takes_pictures:
        shape = [-1, -1, -1, 3]
    model.reshape(shape)
    model.inputs[0].tensor.set_names({"images"})
    for output, name in zip(model.outputs, output_names(exported, map_output), strict=True):
        output.tensor.set_names({name})
    return model


def write_openvino(model, exported: Exported, path: Path) -> None:
    """Write a .xml file, and a .bin file beside it."""
    import openvino

    model.set_friendly_name(MARK)
    model.set_rt_info(exported.to_json(), [KEY])
    halves = exported.precision in ("float16", "bfloat16")
    model.set_rt_info(NO_DIGEST, [DIGEST_KEY])
    openvino.save_model(model, path, compress_to_fp16=halves)
    path.write_bytes(with_digest(path))
