"""Which layers of an ONNX file are quantised, and how weights of 16 bits are stored, on a graph made by hand."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from vitkit.data import Preprocessing  # noqa: E402
from vitkit.runtimes import Exported  # noqa: E402
from vitkit.runtimes.graphs.int8 import (  # noqa: E402
    Spread,
    dense_in_onnx,
    exact_in_onnx,
    has_weights,
    is_of_one_token,
    projection_of_patches,
    quantise_onnx,
    spread_in_onnx,
)
from vitkit.runtimes.graphs.writers import _name_axes, _store_halves  # noqa: E402

WIDTH = 40  # of tokens: 1,600 weights, more than stay in float32


def tensor(name, values):
    return numpy_helper.from_array(np.asarray(values, np.float32), name)


@pytest.fixture
def model():
    """Five tokens, two dense layers, a product of activations, and a head that reads the first token."""
    random = np.random.default_rng(0)
    weights = [
        tensor("w1", random.normal(size=(WIDTH, WIDTH))),
        tensor("w2", random.normal(size=(WIDTH, WIDTH))),
        tensor("w3", random.normal(size=(WIDTH, 3))),
        numpy_helper.from_array(np.array(0), "first"),
    ]
    nodes = [
        helper.make_node("MatMul", ["images", "w1"], ["a"], "one"),
        helper.make_node("Transpose", ["a"], ["t"], "turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["a", "t"], ["s"], "products"),
        helper.make_node("MatMul", ["s", "a"], ["m"], "mixed"),
        helper.make_node("MatMul", ["m", "w2"], ["b"], "two"),
        helper.make_node("Gather", ["b", "first"], ["token"], "take", axis=1),
        helper.make_node("MatMul", ["token", "w3"], ["logits"], "head"),
    ]
    sizes = {"a": ["b", 5, WIDTH], "t": ["b", WIDTH, 5], "s": ["b", 5, 5], "m": ["b", 5, WIDTH]}
    sizes |= {"b": ["b", 5, WIDTH], "token": ["b", WIDTH], "images": ["b", 5, WIDTH]}
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in sizes.items()]
    images = infos.pop()
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", 3])
    graph = helper.make_graph(nodes, "g", [images], [logits], weights, value_info=[images, *infos])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9, producer_name="test"
    )


@pytest.fixture
def images():
    random = np.random.default_rng(1)
    return [random.normal(size=(1, 5, WIDTH)).astype(np.float32) for _ in range(3)]


def test_layers_with_weights_are_dense(model):
    assert [node.name for node in dense_in_onnx(model)] == ["one", "two", "head"]
    assert not has_weights(model.graph.node[2], model)


def test_what_is_of_one_token_or_the_only_convolution_stays_exact():
    shapes = {(8, 40): True, (8, 1, 40): True, (8, 5, 40): False, (1, 2): True}
    for shape, expected in shapes.items():
        assert is_of_one_token(shape) == expected
    assert projection_of_patches(["patches"]) == ["patches"]
    assert projection_of_patches(["root", "block"]) == [] == projection_of_patches([])


def test_the_spread_is_of_what_goes_into_each_layer(model, images, tmp_path):
    onnx.save(model, tmp_path / "model.onnx")
    spread = spread_in_onnx(tmp_path / "model.onnx", images)
    assert spread.layers == ["one", "two", "head"]
    w1 = numpy_helper.to_array(model.graph.initializer[0])
    mixed = [(a @ a.transpose(0, 2, 1)) @ a for a in (image @ w1 for image in images)]
    for number, inputs in enumerate((images, mixed)):
        every = np.stack(inputs)
        assert spread.peaks[number] == pytest.approx(np.abs(every).max(), rel=1e-5)
        assert spread.squares[number] == pytest.approx(np.square(every).sum(), rel=1e-5)
        assert spread.counts[number] == every.size
    assert exact_in_onnx(tmp_path / "model.onnx", images) == ["head"]
    giant = images[0].copy()
    giant[0, 0, 0] = 1000.0
    assert exact_in_onnx(tmp_path / "model.onnx", [giant, *images * 10])[:2] == ["head", "one"]


def test_giants_are_sixty_four_times_the_usual():
    spread = Spread(["usual", "giant", "nothing"])
    usual = np.ones(100_000, np.float32)
    usual[0] = 60
    giant = np.ones(100_000, np.float32)
    giant[0] = -80
    spread.add([usual, giant, np.zeros(4, np.float32)])
    assert spread.with_giants() == ["giant"]


def test_dense_layers_are_quantised_and_others_are_not(model, images, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    quantise_onnx(path, images, exact=["head"])
    written = onnx.load(path)
    stored = {each.name: each.data_type for each in written.graph.initializer}
    bits = {name.partition("_")[0]: kind for name, kind in stored.items() if "quantized" in name}
    assert bits == {"w1": TensorProto.INT8, "w2": TensorProto.INT8}
    assert stored["w3"] == TensorProto.FLOAT
    values = numpy_helper.to_array(
        next(each for each in written.graph.initializer if each.name.startswith("w1_quantized"))
    )
    assert 60 <= np.abs(values).max() <= 64  # of 7 bits
    products = next(node for node in written.graph.node if node.name == "products")
    assert products.input[0] == "a"


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_large_weights_are_stored_in_16_bits_and_computed_in_32(model, precision):
    _store_halves(model, precision)
    onnx.checker.check_model(model)
    kinds = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
    stored = {each.name: each.data_type for each in model.graph.initializer}
    assert stored == {
        "w1.stored": kinds[precision],
        "w2.stored": kinds[precision],
        "w3": TensorProto.FLOAT,
        "first": TensorProto.INT64,
    }
    casts = [(node.op_type, *node.input, *node.output) for node in model.graph.node[:2]]
    assert casts == [("Cast", "w1.stored", "w1"), ("Cast", "w2.stored", "w2")]
    assert all(node.attribute[0].i == TensorProto.FLOAT for node in model.graph.node[:2])
    assert len(model.graph.node) == 9


@pytest.mark.parametrize(
    ("shape", "settings", "expected"),
    [
        (["s0", 3, 8, 8], {}, ["batch", "", "", ""]),
        (["s0", "s1", "s2", 3], {"takes_pictures": True}, ["batch", "height", "width", ""]),
    ],
)
def test_axes_are_called_what_they_are(shape, settings, expected):
    value = helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)
    answer = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["s0", 2])
    graph = helper.make_graph([], "g", [value], [answer])
    _name_axes(graph, Exported(Preprocessing((8, 8)), ("a", "b"), "softmax", **settings))
    axes = [axis.dim_param for axis in graph.input[0].type.tensor_type.shape.dim]
    assert axes == expected
    assert graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
