"""How a model's logits become probabilities, of PyTorch's tensors and of numpy's arrays.

Legend: B batch, K classes.
"""

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Activation = Literal["softmax", "sigmoid", "none"]


def activate(logits: "Tensor", activation: Activation) -> "Tensor":
    """(B, K) -> (B, K): probabilities, or for "none" the same numbers."""
    if activation == "softmax":
        return logits.softmax(-1)
    if activation == "sigmoid":
        return logits.sigmoid()
    return logits


def activate_array(logits: np.ndarray, activation: Activation) -> np.ndarray:
    """`activate` for arrays: float32 (B, K) -> float32 (B, K)."""
    if activation == "none":
        return logits
    if activation == "sigmoid":
        # exp of a number that is not positive never overflows
        small = np.exp(-np.abs(logits))
        return np.where(logits >= 0, 1 / (1 + small), small / (1 + small))
    with np.errstate(invalid="ignore"):  # of infinite logits: NaN, which the caller finds
        powers = np.exp(logits - logits.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)
