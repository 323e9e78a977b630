"""What a model costs, by formula: no model is built, no pass is run."""

from typing import NamedTuple

from vitkit.models.vit import ViTConfig


class Cost(NamedTuple):
    """Of one image: parameters of the model, tokens of the sequence, multiply-accumulates of a forward pass."""

    parameters: int
    tokens: int
    macs: int


def cost(config: ViTConfig, image: tuple[int, int] | None = None) -> Cost:
    """Parameters, tokens and MACs of a model on images of `image` (height, width) pixels, its own size by default.

    MACs count matrix products only, for every token in every block: the convention in which the literature quotes
    numbers. vitkit's `features` does less in the last block. One MAC is two FLOPs.
    """
    width, mlp, patch = config.width, config.mlp, config.patch
    height, across = image or config.image
    patches = (height // patch) * (across // patch)
    tokens = patches + config.prefix
    table = config.grid[0] * config.grid[1] + config.position_rows if config.positions == "learned" else 0
    hidden = config.representation or width
    inputs = patch * patch * config.channels

    attention, dense = 4 * (width**2 + width), 2 * width * mlp + mlp + width
    block = 4 * width + attention + dense + (0 if config.layer_scale is None else 2 * width)
    parameters = inputs * width + width + config.prefix * width + table * width + config.depth * block + 2 * width
    macs = patches * inputs * width
    macs += config.depth * (4 * tokens * width**2 + 2 * tokens * width * mlp + 2 * tokens**2 * width)
    rows = tokens if config.pool == "none" else 1
    if config.pool == "map":
        parameters += width + attention + 2 * width + dense  # probe, attention, norm, MLP
        macs += 2 * width**2 + 2 * tokens * width**2 + 2 * tokens * width + 2 * width * mlp
    if config.representation:
        parameters += width * hidden + hidden
        macs += rows * width * hidden
    heads = 2 if config.pool == "distilled" else 1
    if config.classes:
        parameters += heads * (hidden * config.classes + config.classes)
        macs += heads * rows * hidden * config.classes
    return Cost(parameters, tokens, macs)
