"""What other libraries cannot express of a model, and what they would compute differently, in
words.

The formats' `cannot` and `differs` are made of these. An empty list means: nothing.
"""

from vitkit.models import Backbone, ViTConfig


def reasons(conditions: dict[str, object]) -> list[str]:
    """The names whose condition is true."""
    return [name for name, holds in conditions.items() if holds]


def beyond_vit(
    config: ViTConfig,
    positions: tuple[str, ...] = ("learned",),
    stems: bool = False,
    has: tuple[str, ...] = (),
) -> list[str]:
    """What of a model is not in other libraries' plain Vision Transformer, or, with `stems`, in
    their hybrid. `has` names the settings beyond the plain model that the library has.

    Pooling is each format's own matter, and with it a norm after the pooling: a format that knows
    the class token alone refuses both. None has patches that overlap.
    """
    height, width = config.patches.size
    later = {
        "layer_scale": ("LayerScale", config.layer_scale is not None),
        "swiglu": ("a SwiGLU MLP", config.swiglu),
        "branch_norm": ("norms after attention and MLP", config.branch_norm == "after"),
        "embedding_norm": ("a norm before the first block", config.embedding_norm),
        "token-gap": ('pooling by "token-gap"', config.pool == "token-gap"),
        "token-quarters": ('pooling by "token-quarters"', config.pool == "token-quarters"),
        "qkv_bias": ("queries, keys and values without biases", not config.qkv_bias),
        "rectangles": (f"patches of {height} x {width}, no squares", height != width),
    }
    beyond = reasons(
        {
            **{reason: holds for name, (reason, holds) in later.items() if name not in has},
            "a ResNet stem": config.stem is not None and not stems,
            f"patches that overlap (stride {config.stride})": config.patches.overlaps,
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
    """What of a ResNet is not in BiT's. `orders`: those of norm and convolution that the library
    has."""
    return reasons(
        {
            f'a ResNet in the order "{backbone.order}"': backbone.order not in orders,
            "a ResNet with BatchNorm": backbone.norm != "group",
            "kernels that are not standardised": backbone.standardise == "none",
            f"{backbone.mixer} attention in a ResNet": backbone.mixer != "conv",
        }
    )


def another_gelu(config: ViTConfig, theirs: str) -> list[str]:
    """A sentence if the GELU has another form ("erf" or "tanh") than theirs."""
    if config.gelu == theirs:
        return []
    if config.gelu in ("relu", "silu"):
        return [f"activation: {config.gelu} here, a GELU of the {theirs} form there"]
    return [f"GELU: the {config.gelu} form here, the {theirs} form there"]


def another_eps(config: ViTConfig, theirs: float = 1e-6) -> list[str]:
    """A sentence if the LayerNorms' eps is not theirs, which the library fixes."""
    if config.eps == theirs:
        return []
    return [f"eps: {config.eps:g} here, {theirs:g} there"]


def another_dialect(backbone: Backbone | None, theirs: dict) -> list[str]:
    """A sentence for each setting in which a ResNet differs from their dialect (padding, eps,
    ...)."""
    if backbone is None:
        return []
    sentences = []
    for name, setting in theirs.items():
        own = getattr(backbone, name)
        if own != setting:
            sentences.append(f"the ResNet's {name}: {own} here, {setting} there")
    return sentences
