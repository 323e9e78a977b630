"""int8 weights whose products fit into 16 bits, so that a file gives the same answers on every processor.

x86 processors without VNNI multiply int8 in pairs: the products of two neighbouring inputs of a dense layer
with their weights are added in 16 bits (the instruction VPMADDUBSW), and a sum that does not fit saturates.
Inputs are from 0 to 255. So a pair of weights is safe if its positive weights add up to PAIR at most, and so
do the magnitudes of its negative ones: 255 x 128 is below 2^15.

7-bit weights are always safe, but have half the precision. Few pairs of 8-bit weights are unsafe. So each
output channel gets the scale with the smallest error after the unsafe pairs were made smaller.

Legend: O output channels, I inputs of a layer.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import openvino

LARGEST = 127  # largest value of symmetric int8
PAIR = 128  # the largest safe sum of two weights of one sign
# Scales to try, as multiples of the finest; at 2 every pair is safe
COARSER = np.linspace(1.0, 2.0, 21)


def safe_weights(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantise the weights of a dense layer to safe pairs.

    Args:
        weights: float32 (O, I).

    Returns:
        Integers from -127 to 127, float32 (O, I), and the scale of each output channel, float32 (O, 1).
        Their product is close to the weights.
    """
    finest = np.abs(weights).max(1, keepdims=True) / LARGEST  # (O, 1)
    finest = np.maximum(finest, np.finfo(np.float32).tiny)  # not 0, for a channel of zeros
    least = np.full(finest.shape, np.inf)
    best = np.zeros_like(weights)
    scales = finest.copy()
    for coarser in COARSER:
        numbers = safe_pairs(np.rint(weights / (coarser * finest)))
        error = np.square(numbers * coarser * finest - weights).sum(1, keepdims=True)
        is_better = error < least
        least = np.where(is_better, error, least)
        scales = np.where(is_better, coarser * finest, scales)
        best = np.where(is_better, numbers, best)
    return best.astype(np.float32), scales.astype(np.float32)


def safe_pairs(numbers: np.ndarray) -> np.ndarray:
    """The nearest integers whose neighbouring pairs are safe: (O, I) -> (O, I)."""
    outputs, inputs = numbers.shape
    padded = np.pad(numbers, ((0, 0), (0, inputs % 2)))
    pairs = padded.reshape(outputs, -1, 2)
    too_large = np.maximum(np.abs(pairs.sum(-1)) - PAIR, 0)  # only pairs of one sign
    too_large[pairs.prod(-1) <= 0] = 0
    take = np.stack([np.ceil(too_large / 2), np.floor(too_large / 2)], -1)
    safe = pairs - np.sign(pairs) * take
    return safe.reshape(outputs, -1)[:, :inputs]


def is_safe(numbers: np.ndarray) -> bool:
    """Whether no pair of the int8 weights of a dense layer, (O, I), can saturate."""
    return bool((safe_pairs(numbers.astype(np.float64)) == numbers).all())


def make_safe(model: "openvino.Model") -> None:
    """Quantise the weights of an OpenVINO model to safe pairs, in place.

    Args:
        model: A result of NNCF, with float32 weights that FakeQuantize operations round.
    """
    for quantiser in model.get_ordered_ops():
        if quantiser.get_type_name() != "FakeQuantize" or not _is_stored(quantiser):
            continue
        weights = quantiser.input_value(0).get_node()
        readers = list(quantiser.output(0).get_target_inputs())
        kinds = [(reader.get_node().get_type_name(), reader.get_index()) for reader in readers]
        is_plain = weights.get_type_name() == "Constant" and len(weights.get_output_shape(0)) == 2
        if is_plain and kinds == [("MatMul", 1)]:
            is_transposed = readers[0].get_node().get_attributes()["transpose_b"]
            _make_dense_safe(quantiser, weights.get_data(), is_transposed)
        else:  # a runtime may multiply any two of these weights as a pair
            _use_seven_bits(quantiser)


def _is_stored(quantiser: "openvino.Node") -> bool:
    """Whether a FakeQuantize operation rounds weights of the file, and not activations."""
    source = quantiser.input_value(0).get_node()
    while source.get_type_name() in ("Convert", "Reshape", "Transpose"):
        source = source.input_value(0).get_node()
    return source.get_type_name() == "Constant"


def _make_dense_safe(quantiser: "openvino.Node", weights: np.ndarray, is_transposed: bool) -> None:
    """Replace the weights of a dense layer by safe ones, with a new range for each output channel."""
    rows = weights if is_transposed else weights.T  # (O, I)
    numbers, scales = safe_weights(rows)
    values = numbers * scales
    limits = LARGEST * scales
    if not is_transposed:
        values = values.T
        limits = limits.T
    _replace(quantiser, 0, values)
    _set_range(quantiser, limits)


def _use_seven_bits(quantiser: "openvino.Node") -> None:
    """Double the range of weights, so that any two of them are a safe pair."""
    _set_range(quantiser, 2 * quantiser.input_value(2).get_node().get_data())


def _set_range(quantiser: "openvino.Node", limits: np.ndarray) -> None:
    """Give a FakeQuantize operation a symmetric range, for its inputs and its outputs."""
    for number, limit in enumerate((-limits, limits, -limits, limits), start=1):
        _replace(quantiser, number, limit)


def _replace(node: "openvino.Node", number: int, values: np.ndarray) -> None:
    """Replace an input of an operation with a float32 constant."""
    from openvino import opset13

    constant = opset13.constant(np.ascontiguousarray(values, np.float32))
    node.input(number).replace_source_output(constant.output(0))
