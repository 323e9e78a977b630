"""Initialisers of the official code that torch does not have, and `init_children`, which calls the
`init_weights` of every module of a model."""

from torch import Tensor, nn

# The standard deviation that is left of a unit normal cut off at two standard deviations.
STD_OF_TRUNCATED = 0.87962566103423978


def lecun_normal_(weight: Tensor) -> Tensor:
    """Truncated normal of variance 1 / fan_in, flax's default for Dense and Conv.

    weight: (out, in, ...), filled in place and returned.
    """
    fan_in = weight[0].numel()
    std = fan_in**-0.5 / STD_OF_TRUNCATED
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def init_head(head: nn.Module, bias: float) -> None:
    """Zero weights for every dense layer of a head, and this bias (-10 goes with the sigmoid
    loss)."""
    for layer in head.modules():
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.weight)
            nn.init.constant_(layer.bias, bias)


def init_children(model: nn.Module) -> None:
    """Initialise every module below `model`: norms as the identity, others by their own
    `init_weights`.

    A unit may set its norms to zero, so that norms come first.
    """
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.BatchNorm2d):
            module.reset_parameters()
    for module in model.modules():
        if module is not model and hasattr(module, "init_weights"):
            module.init_weights()
