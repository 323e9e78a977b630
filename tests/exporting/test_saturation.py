"""int8 weights whose products no processor saturates: the instruction of processors without VNNI, simulated
and those processors imitated. (The weights of a whole file: test_exported_accuracy.py.)"""

import json
import subprocess
import sys

import numpy as np
import older_processor
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from margins import at_least, at_most

from vitkit.cli.entry import main
from vitkit.evaluation import tied_answers
from vitkit.exporting.agreement import TOLERANCE
from vitkit.runtimes.graphs.saturation import LARGEST, is_safe, make_safe, safe_pairs, safe_weights
from vitkit.system.machine import has_vnni

REAL = "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"
IMAGES = 40
NUMBERS = st.integers(-LARGEST, LARGEST).map(float)


def saturating(inputs, weights):
    """The products of a dense layer as VPMADDUBSW adds them: uint8 (I,), int8 (O, I) -> (O,)."""
    products = inputs.astype(np.int32) * weights.astype(np.int32)
    products = np.pad(products, ((0, 0), (0, products.shape[1] % 2)))
    pairs = products.reshape(len(products), -1, 2).sum(-1)
    return pairs.clip(-(1 << 15), (1 << 15) - 1).sum(-1)


@given(arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 9)), elements=NUMBERS))
def test_safe_pairs_never_saturate_and_change_no_other(numbers):
    safe = safe_pairs(numbers)
    assert is_safe(safe) and is_safe(numbers) == (safe == numbers).all()
    assert np.abs(safe).max() <= LARGEST and (np.sign(safe) * np.sign(numbers) >= 0).all()
    for positive in (safe > 0, safe < 0, np.ones_like(safe, bool)):
        inputs = np.where(positive, 255, 0)
        for row, weights in zip(inputs, safe, strict=True):
            assert saturating(row, weights[None]) == (row * weights).sum()


def test_unsafe_pairs_are_those_that_saturate():
    inputs = np.full(2, 255, np.uint8)
    for weights, fits in (
        ([64, 64], 1),
        ([127, 1], 1),
        ([65, 64], 0),
        ([-64, -65], 0),
        ([127, -127], 1),
    ):
        weights = np.array([weights])
        exact = (inputs.astype(int) * weights).sum()
        assert is_safe(weights) == bool(fits) == (saturating(inputs, weights)[0] == exact)


def test_safe_weights_lose_less_than_weights_of_seven_bits():
    weights = np.random.default_rng(0).normal(size=(64, 192)).astype(np.float32)
    numbers, scales = safe_weights(weights)
    assert is_safe(numbers) and np.array_equal(numbers, np.rint(numbers))

    def error(quantised):
        return np.square(quantised - weights).mean()

    finest = np.abs(weights).max(1, keepdims=True) / LARGEST
    eight_bits = np.rint(weights / finest) * finest
    seven_bits = np.rint(weights / (2 * finest)) * 2 * finest
    assert error(eight_bits) < error(numbers * scales) < 0.6 * error(seven_bits)


def test_a_channel_of_zeros_stays_zero():
    numbers, scales = safe_weights(np.zeros((2, 5), np.float32))
    assert not numbers.any() and np.isfinite(scales).all()


@pytest.mark.parametrize("case", ["plain", "transposed", "first", "converted", "shared"])
def test_all_weights_of_a_graph_are_safe(case):
    """Whichever way a product reads them: large neighbours of one sign, which NNCF would leave as they are."""
    openvino = pytest.importorskip("openvino")
    from openvino import opset13 as ops

    x = ops.parameter([4, 8], np.float32)
    values = np.random.default_rng(0).normal(1.0, 0.1, (8, 8)).astype(np.float32)
    stored = ops.constant(values)
    if case == "converted":
        stored = ops.convert(ops.constant(values.astype(np.float16)), "f32")
    limit = ops.constant(np.full((1, 1), np.abs(values).max(), np.float32))
    rounded = ops.fake_quantize(
        stored, ops.negative(limit), limit, ops.negative(limit), limit, levels=255
    )
    low = ops.constant(np.full((1, 1), -np.abs(values).max(), np.float32))
    for number in (1, 3):
        rounded.input(number).replace_source_output(low.output(0))
    products = [ops.matmul(x, rounded, False, case != "plain")]
    if case == "first":
        products = [ops.matmul(rounded, ops.transpose(x, [1, 0]), False, False)]
    if case == "shared":
        products.append(ops.matmul(x, rounded, False, False))
    model = openvino.Model(products, [x])
    make_safe(model)

    numbers = numbers_of(rounded)
    if case in ("plain", "transposed"):
        along_inputs = numbers.T if case == "plain" else numbers
        assert is_safe(along_inputs) and np.abs(numbers).max() > 64
    else:
        assert np.abs(numbers).max() <= 64


def numbers_of(quantiser):
    """The whole numbers that a FakeQuantize operation makes of the weights before it."""
    stored = quantiser.input_value(0).get_node()
    while stored.get_type_name() != "Constant":
        stored = stored.input_value(0).get_node()
    limits = quantiser.input_value(2).get_node().get_data()
    return np.rint(stored.get_data().astype(np.float64) / limits * LARGEST)


# Whole files


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """exported(shared, ending, calibrated): the real ViT-Ti/16 in int8, made once; calibrated on a few
    photographs."""
    made = {}

    def export(shared, ending, calibrated):
        if (ending, calibrated) not in made:
            folder = tmp_path_factory.mktemp("exported")
            file = folder / f"model.{ending}"
            words = ["export", shared(REAL), "-o", file, "--precision", "int8", "--limit", 8]
            words += ["--data", shared("data/imagenet_val500.parquet")]
            if calibrated:
                table = pq.read_table(shared("data/ants_bees-test.parquet"))
                pq.write_table(table.take(list(range(0, len(table), 8))), folder / "few.parquet")
                words += ["--calibrate", folder / "few.parquet"]
            assert main([str(word) for word in words]) == 0
            made[ending, calibrated] = file
        return made[ending, calibrated]

    return export


def vitkit(words, **options):
    """Run a command in a process of its own; what it printed."""
    command = [sys.executable, "-m", "vitkit", *map(str, words)]
    run = subprocess.run(command, capture_output=True, text=True, **options)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "calibrated"), [("onnx", True), ("xml", True), ("xml", False)])
def test_an_older_processor_answers_alike(ending, calibrated, shared, exported, tmp_path):
    """A file that is made here, on a processor with AVX2 alone. Activations are rounded to 8 bits in every
    layer, so probabilities differ, but no more than two files of the same model do."""
    pytest.importorskip("nncf" if ending == "xml" else "onnxruntime")
    if reason := older_processor.why_not():
        pytest.skip(reason)
    if not has_vnni():
        pytest.skip("this processor is such an older one")
    older = older_processor.environment(tmp_path)
    file = exported(shared, ending, calibrated)

    photographs = shared("data/imagenet_val500.parquet")
    answers = []
    for variables in (None, older):
        command = ["predict", file, photographs, "--limit", IMAGES, "--json", "--top", 1000]
        lines = vitkit(command, env=variables).splitlines()
        answers.append([probabilities(json.loads(line)) for line in lines])
    here, there = map(np.array, answers)
    assert here.shape == there.shape == (IMAGES, 1000)
    classes = there.argmax(1)
    same = here.argmax(1) == classes
    at_least((same | tied_answers(here, classes, TOLERANCE["int8"])).mean(), 0.93)
    at_least(same.mean(), 0.88)
    rows = np.arange(IMAGES)
    at_most((here.max(1) - here[rows, classes]).mean(), 0.003)


def probabilities(answer):
    """Those of all classes, in the order of their names."""
    pairs = sorted(zip(answer["labels"], answer["probabilities"], strict=True))
    return [probability for _, probability in pairs]
