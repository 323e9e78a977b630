"""What a forward pass costs, by formula: no model is built, no pass is run.

MACs count matrix products and convolutions only, for every token in every block, the convention in
which the literature quotes numbers; norms, activations, pooling, softmax and biases are left out,
and vitkit's `features` does less in the last block. One MAC is two FLOPs. A convolution's taps that
fall on zero padding are counted, as libraries do; the paper's exaFLOPs leave them out, as the
compiler's cost analysis does that they come from.
"""

from typing import NamedTuple

from vitkit.models.ancestors import WINDOW, LeNetConfig, split_channels
from vitkit.models.backbone import Backbone, Grid, ResNetConfig
from vitkit.models.build import ModelConfig
from vitkit.models.config import ViTConfig
from vitkit.models.resnet import same


class Cost(NamedTuple):
    """What one image costs."""

    tokens: int
    """Tokens of the sequence; positions of a ResNet's last feature map."""
    macs: int
    """Multiply-accumulates of a forward pass."""


def cost(config: ModelConfig, image: Grid | None = None, padded_taps: bool = True) -> Cost:
    """Tokens and MACs of a model on images of `image` (height, width) pixels, its own by default.

    `padded_taps=False` leaves out what convolutions multiply with the zeros of their padding.
    """
    image = image or config.image
    if isinstance(config, LeNetConfig):
        return _lenet(config)
    if isinstance(config, ResNetConfig):
        return _resnet(config, image, padded_taps)
    return _vit(config, image, padded_taps)


def exaflops(config: ModelConfig, images: float) -> float:
    """Floating-point operations of a training that sees so many images, in units of 10^18, as
    Table 6 counts them.

    Three times a forward pass, for the backward pass costs two, at two operations a MAC, without
    taps on padding. The paper does not say how it counted; this meets its numbers with 303 million
    images to an epoch of JFT-300M.
    """
    return 6 * cost(config, padded_taps=False).macs * images / 1e18


def _vit(config: ViTConfig, image: Grid, padded_taps: bool) -> Cost:
    """A Vision Transformer: stem, blocks, pooling, head."""
    width = config.width
    mlp = config.mlp
    height, across = image[0] // config.stride, image[1] // config.stride
    patches = height * across
    tokens = patches + config.prefix

    # Eq. 1: pixels, or a ResNet's features, to embeddings
    inputs = config.patch**2 * config.channels
    macs = 0
    if config.stem:
        inputs = config.patch**2 * config.stem.features
        macs += _backbone(config.stem, config.channels, image, padded_taps)
    macs += patches * inputs * width

    # Eq. 2 and 3: q, k, v and U_msa, the MLP, and the pairs of tokens that meet, once for their
    # logit and once for the mean of values
    layers = config.depth
    pairs = tokens**2
    if config.mixer == "axial":  # a layer for the rows and one for the columns
        layers = 2 * config.depth
        pairs = patches * (height + across)
    macs += layers * (4 * tokens * width**2 + 2 * tokens * width * mlp)
    macs += config.depth * 2 * pairs * width
    if config.positions == "relative":
        macs += config.depth * tokens**2 * width

    # Eq. 4
    rows = tokens if config.pool == "none" else 1
    if config.pool == "map":  # a probe asks every token, and goes through an MLP
        macs += 2 * width**2 + 2 * tokens * width**2 + 2 * tokens * width + 2 * width * mlp
    hidden = config.representation or width
    if config.representation:
        macs += rows * width * hidden
    heads = 2 if config.pool == "distilled" else 1
    macs += heads * rows * hidden * config.classes
    return Cost(tokens, macs)


def _lenet(config: LeNetConfig) -> Cost:
    """LeNet-5: three convolutions and two dense layers, as (inputs, outputs, positions)."""
    layers = [
        (config.channels * 25, 6, 28**2),
        (6 * 25, 16, 10**2),
        (16 * 25, 120, 1),
        (120, 84, 1),
        (84, config.classes, 1),
    ]
    macs = sum(inputs * outputs * positions for inputs, outputs, positions in layers)
    return Cost(1, macs)


def _resnet(config: ResNetConfig, image: Grid, padded_taps: bool) -> Cost:
    """A ResNet and its head."""
    backbone = config.backbone
    height, width = backbone.sides(image)[-1]
    rows = height * width if config.pool == "none" else 1
    macs = _backbone(backbone, config.channels, image, padded_taps)
    macs += rows * backbone.features * config.classes
    return Cost(height * width, macs)


def _backbone(config: Backbone, channels: int, image: Grid, padded_taps: bool) -> int:
    """MACs of a root and its stages."""

    def conv(inputs: int, outputs: int, kernel: int, stride: int, sides: Grid) -> int:
        """A convolution of a feature map with these sides."""
        down, across = (_taps(side, kernel, stride, config.padding, padded_taps) for side in sides)
        return inputs * outputs * down * across

    sides = config.sides(image)
    inputs = config.channels
    macs = conv(channels, inputs, 7, 2, image)
    for stage, count in enumerate(config.units):
        inner = config.channels * 2**stage
        for unit in range(count):
            # the first unit of a stage halves the sides, but in the first stage
            stride = 2 if stage and unit == 0 else 1
            before = sides[stage + 1] if unit == 0 else sides[stage + 2]
            after = sides[stage + 2]
            macs += conv(inputs, inner, 1, 1, before)
            mixer = config.mixes(stage)
            if mixer == "conv":
                macs += conv(inner, inner, 3, stride, before)
            elif mixer == "augmented":
                _, values = split_channels(inner)
                macs += conv(inner, inner - values, 3, stride, before)
                macs += _augmented(inner, after)  # its attention comes after the stride
            else:
                macs += MIXERS[mixer](inner, before)
            macs += conv(inner, 4 * inner, 1, 1, after)
            if unit == 0:  # the shortcut, where channels or sides change
                macs += conv(inputs, 4 * inner, 1, stride, before)
            inputs = 4 * inner
    return macs


def _axial(channels: int, grid: Grid) -> int:
    """MACs of attention along rows, then columns, with offsets."""
    height, width = grid
    dense = 8 * height * width * channels**2
    pairs = height * width * (height + width)
    return dense + 3 * pairs * channels


def _local(channels: int, grid: Grid) -> int:
    """MACs of attention to a window."""
    height, width = grid
    return height * width * channels * (3 * channels + 2 * WINDOW**2)


def _augmented(channels: int, grid: Grid) -> int:
    """MACs of the attention beside a convolution."""
    height, width = grid
    positions = height * width
    keys, values = split_channels(channels)
    dense = channels * (2 * keys + values) + values**2
    pairs = positions * (keys + values)
    offsets = (height + width) * keys
    return positions * (dense + pairs + offsets)


MIXERS = {"axial": _axial, "local": _local}


def _taps(side: int, kernel: int, stride: int, padding: str, padded_taps: bool) -> int:
    """How often, along a side, a kernel's tap meets a position: of the image, or of its padding
    too."""
    outputs = -(-side // stride)
    if padded_taps:
        return outputs * kernel
    before = same(side, kernel, stride)[0] if padding == "same" else kernel // 2
    meets = 0
    for output in range(outputs):
        first = output * stride - before
        meets += len(range(max(first, 0), min(first + kernel, side)))
    return meets
