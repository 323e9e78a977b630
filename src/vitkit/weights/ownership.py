"""Which models can be saved: those whose weights are exactly what their configuration says.

A model that PEFT, a quantiser or torch.compile has changed has other tensors. Saved as if it were
vitkit's, it would not open, or compute something else.
"""

import torch
from torch import Tensor, nn

from vitkit.models import Model, build
from vitkit.weights.conversion.rules import gist


def check_own_weights(model: nn.Module) -> None:
    """Raises ValueError for a model that was made for inference, and for one that something else
    wrapped or changed."""
    if getattr(model, "inference_only", False):
        raise ValueError("the model was made for inference; save the one it was made from")
    if not isinstance(model, Model):
        raise ValueError(
            f"the model is wrapped in a {type(model).__name__}, and vitkit saves its own models; "
            "unwrap it, or save the one that it was made from"
        )
    with torch.device("meta"):
        expected = build(model.config).state_dict()
    state = model.state_dict()
    wrong = expected.keys() ^ state.keys()  # only in one of them
    wrong |= {name for name, tensor in state.items() if not _fits(tensor, expected.get(name))}
    if wrong:
        raise ValueError(
            f"the model's weights are not those that it was built with: {gist(sorted(wrong))}; "
            "merge adapters, or save the model that was quantised"
        )


def check_finite(state: dict[str, Tensor]) -> None:
    """Raises ValueError, with their names, if tensors hold NaN or infinity: a model of such weights
    answers every image with nothing."""
    broken = []
    for name, tensor in state.items():
        # The sum is not finite if any number is not, and sometimes of large ones; it is much faster
        if not tensor.sum().isfinite() and not tensor.isfinite().all():
            broken.append(name)
    if broken:
        raise ValueError(f"its weights hold NaN or infinity: {gist(broken)}")


def _fits(tensor: object, expected: Tensor | None) -> bool:
    """Whether a weight is a plain tensor of the expected shape, of floating-point numbers where
    those are expected."""
    if expected is None or type(tensor) is not Tensor or tensor.shape != expected.shape:
        return False
    return tensor.is_floating_point() == expected.is_floating_point()
