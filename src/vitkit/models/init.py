"""Initialisers of the official code that torch does not have, and the order in which a model's
parts take their turns."""

from torch import Tensor, nn

_STD_OF_TRUNCATED = 0.87962566103423978  # of a unit normal cut at two standard deviations


def lecun_normal_(weight: Tensor) -> Tensor:
    """Truncated normal of variance 1 / fan_in, the default of flax's Dense and Conv. weight: (out,
    in, ...)."""
    std = weight[0].numel() ** -0.5 / _STD_OF_TRUNCATED
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def init_head(head: nn.Module, bias: float) -> None:
    """Every classifier of a head: zero weights, and a bias of its own (-10 with the sigmoid
    loss)."""
    for layer in head.modules():
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.weight)
            nn.init.constant_(layer.bias, bias)


def init_children(model: nn.Module) -> None:
    """Norms start as the identity, then every module below `model` by its own `init_weights`."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.BatchNorm2d):
            module.reset_parameters()
    for module in model.modules():
        if module is not model and hasattr(module, "init_weights"):
            module.init_weights()
