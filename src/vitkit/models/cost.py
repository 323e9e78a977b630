"""What a model costs, by formula: no model is built, no pass is run.

MACs count matrix products and convolutions only, for every token in every block, the convention in which the literature quotes
numbers; norms, activations, pooling, softmax and biases are left out, and vitkit's `features` does less in the last block. One
MAC is two FLOPs. A convolution's taps that fall on zero padding are counted, as libraries do; the paper's exaFLOPs leave them
out, as the compiler's cost analysis does that they come from.
"""

from typing import NamedTuple

from vitkit.models.ancestors import HEADS, WINDOW, LeNetConfig
from vitkit.models.ancestors import split_channels as split
from vitkit.models.backbone import Backbone, Grid, ResNetConfig
from vitkit.models.config import ViTConfig
from vitkit.models.resnet import same


class Cost(NamedTuple):
    """Of one image: parameters of the model, tokens of the sequence (places of a ResNet), multiply-accumulates of a pass."""

    parameters: int
    tokens: int
    macs: int


def cost(
    config: ViTConfig | ResNetConfig | LeNetConfig,
    image: Grid | None = None,
    padded_taps: bool = True,
) -> Cost:
    """Parameters, tokens and MACs of a model on images of `image` (height, width) pixels, its own size by default.

    `padded_taps=False` leaves out what convolutions multiply with the zeros of their padding.
    """
    image = image or config.image
    if isinstance(config, LeNetConfig):
        return _lenet(config)
    if isinstance(config, ResNetConfig):
        return _resnet(config, image, padded_taps)
    width, mlp = config.width, config.mlp
    grid = image[0] // config.stride, image[1] // config.stride
    patches, axial = grid[0] * grid[1], config.mixer == "axial"
    tokens, hidden = patches + config.prefix, config.representation or width

    attention, dense = 4 * (width**2 + width), 2 * width * mlp + mlp + width
    block = 4 * width + attention + dense + (0 if config.layer_scale is None else 2 * width)
    blocks = config.depth * (2 if axial else 1)
    parameters = config.prefix * width + _positions(config) + blocks * block + 2 * width
    pairs = patches * (grid[0] + grid[1]) if axial else tokens**2  # of tokens, that meet in a layer
    macs = (
        blocks * (4 * tokens * width**2 + 2 * tokens * width * mlp)
        + config.depth * 2 * pairs * width
    )
    if config.positions == "relative":
        macs += config.depth * tokens**2 * width

    inputs = config.patch**2 * config.channels
    if config.stem:
        inputs = config.patch**2 * config.stem.features
        below = _backbone(config.stem, config.channels, image, config.image, padded_taps)
        parameters, macs = parameters + below[0], macs + below[1]
    parameters += inputs * width + width
    macs += patches * inputs * width

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


def exaflops(config: ViTConfig | ResNetConfig | LeNetConfig, images: float) -> float:
    """Floating-point operations of a training that sees so many images, in units of 10^18, as Table 6 counts them.

    Three times a forward pass, for the backward pass costs two, at two operations a MAC, without taps on padding. The paper
    does not say how it counted; this meets its numbers with 303 million images to an epoch of JFT-300M.
    """
    return 6 * cost(config, padded_taps=False).macs * images / 1e18


def _positions(config: ViTConfig) -> int:
    """Parameters of the position embedding."""
    (height, across), rows, width = config.grid, config.position_rows, config.width
    offsets = 2 * (height * across + config.prefix) - 1
    sizes = {
        "learned": (rows + height * across) * width,
        "learned2d": (height + across) * (width // 2) + rows * width,
        "relative": offsets * (width // config.heads),
    }
    return sizes.get(config.positions, 0) * (config.depth if config.injected == "every" else 1)


def _lenet(config: LeNetConfig) -> Cost:
    kernels = [
        (config.channels * 25, 6, 28**2),
        (6 * 25, 16, 10**2),
        (16 * 25, 120, 1),
        (120, 84, 1),
    ]
    kernels += [(84, config.classes, 1)] if config.classes else []
    return Cost(
        sum(i * o + o for i, o, _ in kernels), 1, sum(i * o * places for i, o, places in kernels)
    )


def _resnet(config: ResNetConfig, image: Grid, padded_taps: bool) -> Cost:
    backbone, (height, width) = config.backbone, config.backbone.sides(image)[-1]
    parameters, macs = _backbone(backbone, config.channels, image, config.image, padded_taps)
    if config.classes:
        parameters += backbone.features * config.classes + config.classes
        macs += (
            backbone.features * config.classes * (height * width if config.pool == "none" else 1)
        )
    return Cost(parameters, height * width, macs)


def _backbone(
    config: Backbone, channels: int, image: Grid, made_for: Grid, padded_taps: bool
) -> tuple[int, int]:
    """Parameters and MACs of a root and its stages."""
    parameters = macs = 0

    def conv(inputs: int, outputs: int, kernel: int, stride: int, sides: Grid, norm: int) -> None:
        """A convolution, and the norm of so many channels that goes with it."""
        nonlocal parameters, macs
        parameters += inputs * outputs * kernel**2 + 2 * norm
        meets = [_taps(side, kernel, stride, config.padding, padded_taps) for side in sides]
        macs += inputs * outputs * meets[0] * meets[1]

    sides, tables = config.sides(image), config.sides(made_for)
    pre, inputs = config.order == "pre", config.channels
    conv(channels, inputs, 7, 2, image, norm=0 if pre else inputs)
    for stage, count in enumerate(config.units):
        inner = config.channels * 2**stage
        for unit in range(count):
            stride, at = (2 if stage else 1, stage + 1) if unit == 0 else (1, stage + 2)
            conv(inputs, inner, 1, 1, sides[at], norm=inputs if pre else inner)
            mixer, outputs = config.mixes(stage), inner
            if mixer != "conv":
                met = (
                    stage + 2 if mixer == "augmented" else at
                )  # its attention comes after the stride
                mixed = MIXED[mixer](inner, sides[met], tables[met])
                parameters, macs = parameters + mixed[0], macs + mixed[1]
                outputs = inner - split(inner)[1] if mixer == "augmented" else 0
            conv(inner, outputs, 3, stride, sides[at], norm=inner)
            conv(inner, 4 * inner, 1, 1, sides[stage + 2], norm=inner if pre else 4 * inner)
            if unit == 0:  # channels or stride change
                conv(inputs, 4 * inner, 1, stride, sides[at], norm=0 if pre else 4 * inner)
            inputs = 4 * inner
    if pre:
        parameters += 2 * config.features
    return parameters, macs


def _axial(channels: int, grid: Grid, made_for: Grid) -> tuple[int, int]:
    """Parameters and MACs of attention along rows, then columns, with their offsets."""
    places = grid[0] * grid[1]
    parameters = 8 * (channels**2 + channels) + sum(2 * side - 1 for side in made_for) * (
        channels // HEADS
    )
    macs = 8 * places * channels**2 + 3 * places * channels * sum(grid)
    return parameters, macs


def _local(channels: int, grid: Grid, made_for: Grid) -> tuple[int, int]:
    """Of attention to a window."""
    places, size = grid[0] * grid[1], channels // HEADS // 2 * 2
    return 3 * channels**2 + WINDOW * size, places * channels * (3 * channels + 2 * WINDOW**2)


def _augmented(channels: int, grid: Grid, made_for: Grid) -> tuple[int, int]:
    """Of the attention beside a convolution."""
    places, (keys, values) = grid[0] * grid[1], split(channels)
    dense = channels * (2 * keys + values) + values**2
    offsets = sum(2 * side - 1 for side in made_for)
    return dense + offsets * (keys // HEADS), places * (
        dense + places * (keys + values) + sum(grid) * keys
    )


MIXED = {"axial": _axial, "local": _local, "augmented": _augmented}


def _taps(side: int, kernel: int, stride: int, padding: str, padded_taps: bool) -> int:
    """How often, along a side, a kernel's tap meets a place: of the image, or also of its padding."""
    out = -(-side // stride)
    if padded_taps:
        return out * kernel
    low = same(side, kernel, stride)[0] if padding == "same" else kernel // 2
    return sum(
        0 <= place * stride - low + tap < side for place in range(out) for tap in range(kernel)
    )
