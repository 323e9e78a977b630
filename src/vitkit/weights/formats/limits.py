"""Where a model goes beyond what other libraries have, and where they compute it differently, in words."""

from vitkit.models import Backbone, ViTConfig


def those_of(conditions: dict[str, object]) -> list[str]:
    """The names whose condition holds."""
    return [name for name, holds in conditions.items() if holds]


def beyond_vit(
    config: ViTConfig, positions: tuple[str, ...] = ("learned",), stems: bool = False
) -> list[str]:
    """What of a model goes beyond the plain Vision Transformer of other libraries, or the hybrid of those with `stems`."""
    beyond = those_of(
        {
            "a ResNet stem": config.stem is not None and not stems,
            "axial attention": config.mixer != "full",
            f"{config.positions} positions": config.positions not in positions,
            "positions at every block": config.inject not in (None, "stem"),
            "pooling by the first patch": config.pool == "corner",
        }
    )
    if stems and config.stem:
        return beyond_bit(config.stem, "post") + beyond
    return beyond


def beyond_bit(backbone: Backbone, *orders: str) -> list[str]:
    """What of a ResNet goes beyond BiT's, in one of these orders of norm and convolution."""
    return those_of(
        {
            f'a ResNet in the order "{backbone.order}"': backbone.order not in orders,
            "a ResNet with BatchNorm": backbone.norm != "group",
            "kernels that are not standardised": backbone.standardise == "none",
            f"{backbone.mixer} attention in a ResNet": backbone.mixer != "conv",
        }
    )


def another_gelu(config: ViTConfig, theirs: str) -> list[str]:
    """The form of the GELU, if it is not theirs."""
    if config.gelu == theirs:
        return []
    return [f"GELU: the {config.gelu} form here, the {theirs} form there"]


def another_eps(config: ViTConfig) -> list[str]:
    """The LayerNorms' eps, if it is not the usual one."""
    return [] if config.eps == 1e-6 else [f"eps: {config.eps:g} here, 1e-06 there"]


def another_dialect(backbone: Backbone | None, theirs: dict) -> list[str]:
    """Settings in which a ResNet is not of their dialect: they would compute it a little differently."""
    if backbone is None:
        return []
    return [
        f"the ResNet's {name}: {getattr(backbone, name)} here, {setting} there"
        for name, setting in theirs.items()
        if getattr(backbone, name) != setting
    ]
