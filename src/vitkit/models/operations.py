"""The costs of a forward pass, by formula: no model is built and no pass is run.

The literature's convention: MACs (multiply-accumulates) of matrix products and convolutions, for
every token in every block. Norms, activations, pooling, softmax and biases are excluded. vitkit's
`features` computes less in the last block. One MAC is two FLOPs.

Libraries also count the taps of a convolution on zero padding. The compiler that probably counted the
paper's exaFLOPs does not: `padded_taps=False`.
"""

from math import prod
from typing import NamedTuple

from vitkit.models.ancestors.backbone import Backbone, ResNetConfig
from vitkit.models.ancestors.lenet import LeNetConfig
from vitkit.models.ancestors.mixers import WINDOW, split_channels
from vitkit.models.ancestors.resnet import same_padding
from vitkit.models.config import ViTConfig
from vitkit.models.tiling import Grid
from vitkit.models.zoo import ModelConfig


class Cost(NamedTuple):
    """The cost of one image."""

    tokens: int
    """Length of the sequence, or number of positions of a ResNet's last feature map."""
    macs: int
    """Multiply-accumulates of a forward pass."""


def cost(config: ModelConfig, image: Grid | None = None, padded_taps: bool = True) -> Cost:
    """Tokens and MACs of a model on images of `image` (height, width) pixels, its own by default.

    `padded_taps=False` excludes multiplications of convolutions with the zeros of their padding.
    """
    image = image or config.image
    if isinstance(config, LeNetConfig):
        return lenet_cost(config)
    if isinstance(config, ResNetConfig):
        return resnet_cost(config, image, padded_taps)
    rows, columns = config.tiling.grid(image)
    macs = sum(vit_macs(config, image, padded_taps).values())
    return Cost(rows * columns + config.prefix, macs)


def exaflops(config: ModelConfig, images: float) -> float:
    """Floating-point operations of a training run on this many images, in units of 10^18, as in Table 6.

    The paper does not give its method of counting; this reproduces its numbers with 303 million images per
    epoch of JFT-300M.
    """
    forward = 2 * cost(config, padded_taps=False).macs  # two operations per MAC
    backward = 2 * forward  # the gradients of the inputs, and of the weights
    return (forward + backward) * images / 1e18


def vit_macs(config: ViTConfig, image: Grid, padded_taps: bool = True) -> dict[str, int]:
    """The MACs of each part of a Vision Transformer, in the order of the data: "backbone" (of a
    hybrid), "projection", "attention" and "mlp" (of all blocks), "pool", "representation", "head"."""
    width = config.width
    mlp = config.mlp
    rows, columns = config.tiling.grid(image)
    patches = rows * columns
    tokens = patches + config.prefix
    macs = {}

    # Eq. 1: pixels, or a ResNet's features, to embeddings
    channels = config.channels
    macs["backbone"] = 0
    if config.stem:
        of_stages = stage_macs(config.stem, config.channels, image, padded_taps)
        macs["backbone"] = sum(of_stages)
        channels = config.stem.features
    macs["projection"] = patches * prod(config.patches.size) * channels * width

    # Eq. 2 and 3, the dense layers: q, k, v and U_msa; the MLP. Pairs are of a query and a key.
    layers = config.depth
    pairs = tokens**2
    if config.mixer == "axial":  # a layer for the rows and one for the columns
        layers = 2 * config.depth
        pairs = patches * (rows + columns)
    mlp_layers = 2
    if config.swiglu:
        mlp_layers = 3
    macs["attention"] = layers * 4 * tokens * width**2
    macs["mlp"] = layers * mlp_layers * tokens * width * mlp

    # Eq. 6 and 7: a product per pair for the logits, and one for the weighted mean of the values
    macs["attention"] += config.depth * 2 * pairs * width
    if config.positions == "relative":  # and one for its offset
        macs["attention"] += config.depth * pairs * width

    # The pooling: Eq. 4 costs nothing, MAP attends to the patches with one query, and a memory bank
    # compares each patch with each of its own
    macs["pool"] = 0
    if config.pool == "map":
        probe = 2 * width**2 + 2 * width * mlp  # q and U_msa of one token; its MLP
        keys_and_values = 2 * patches * width**2
        macs["pool"] = probe + keys_and_values + 2 * patches * width

    elif config.pooling.compares_patches:
        macs["pool"] = patches * config.memory * config.read_blocks * width

    # The head, for one output per image, or one per token
    answers = 1
    if config.pool == "none":
        answers = tokens
    features = config.pooled_width  # two classifiers of D, or one of 2·D, cost the same
    macs["representation"] = 0
    if config.representation:
        features = config.representation
        macs["representation"] = answers * width * features
    macs["head"] = answers * features * config.classes
    return macs


def lenet_cost(config: LeNetConfig) -> Cost:
    """The cost of LeNet-5: three convolutions of 5 x 5 and two dense layers."""
    layers = [  # (inputs, outputs, positions)
        (config.channels * 25, 6, 28**2),
        (6 * 25, 16, 10**2),
        (16 * 25, 120, 1),
        (120, 84, 1),
        (84, config.classes, 1),
    ]
    macs = sum(inputs * outputs * positions for inputs, outputs, positions in layers)
    return Cost(1, macs)


def resnet_cost(config: ResNetConfig, image: Grid, padded_taps: bool) -> Cost:
    """The cost of a ResNet and its head."""
    backbone = config.backbone
    height, width = backbone.last_grid(image)
    macs = sum(stage_macs(backbone, config.channels, image, padded_taps))
    answers = 1
    if config.pool == "none":
        answers = height * width
    macs += answers * backbone.features * config.classes
    return Cost(height * width, macs)


def stage_macs(config: Backbone, channels: int, image: Grid, padded_taps: bool = True) -> list[int]:
    """The MACs of a backbone's root and of each of its stages, for images with this many channels."""

    def conv(inputs: int, outputs: int, kernel: int, stride: int, grid: Grid) -> int:
        """The MACs of a convolution on a feature map whose sides are `grid`."""
        down = taps(grid[0], kernel, stride, config.padding, padded_taps)
        across = taps(grid[1], kernel, stride, config.padding, padded_taps)
        return inputs * outputs * down * across

    def mixer(inner: int, stride: int, stage: int, before: Grid, after: Grid) -> int:
        """The MACs of a unit's mixer, whose feature map has sides `before` and `after` its stride."""
        kind = config.mixes(stage)
        if kind == "axial":  # its stride is applied at the end
            return axial_macs(inner, before)
        if kind == "local":  # likewise
            return local_macs(inner, before)
        if kind == "augmented":  # its attention uses 2 x 2 means
            _, values = split_channels(inner)
            return conv(inner, inner - values, 3, stride, before) + augmented_macs(inner, after)
        return conv(inner, inner, 3, stride, before)

    inputs = config.channels
    macs = [conv(channels, inputs, 7, 2, image)]
    for stage, (before, after) in enumerate(config.stage_grids(image)):
        inner = config.channels * 2**stage

        # The first unit: with a shortcut, and the stride, except in the first stage
        stride = 2
        if stage == 0:
            stride = 1
        first = conv(inputs, inner, 1, 1, before)
        first += mixer(inner, stride, stage, before, after)
        first += conv(inner, 4 * inner, 1, 1, after)
        first += conv(inputs, 4 * inner, 1, stride, before)
        inputs = 4 * inner

        # The other units, which are identical
        unit = conv(inputs, inner, 1, 1, after)
        unit += mixer(inner, 1, stage, after, after)
        unit += conv(inner, 4 * inner, 1, 1, after)
        macs.append(first + (config.units[stage] - 1) * unit)
    return macs


def axial_macs(channels: int, grid: Grid) -> int:
    """The MACs of attention along rows, then along columns."""
    height, width = grid
    dense = 8 * height * width * channels**2  # twice q, k, v and U_msa
    pairs = height * width * (height + width)
    return dense + 3 * pairs * channels  # for the logit, the offset and the value


def local_macs(channels: int, grid: Grid) -> int:
    """The MACs of attention within a window, whose offsets are added to the keys."""
    height, width = grid
    return height * width * channels * (3 * channels + 2 * WINDOW**2)


def augmented_macs(channels: int, grid: Grid) -> int:
    """The MACs of attention beside a convolution."""
    height, width = grid
    positions = height * width
    keys, values = split_channels(channels)
    dense = positions * (channels * (2 * keys + values) + values**2)
    pairs = positions**2
    offsets = positions * (height + width)
    return dense + pairs * (keys + values) + offsets * keys


def taps(side: int, kernel: int, stride: int, padding: str, padded_taps: bool) -> int:
    """The number of products of a kernel's taps with positions along one side, including those of the
    padding if `padded_taps`."""
    outputs = -(-side // stride)
    if padded_taps:
        return outputs * kernel
    before = kernel // 2
    if padding == "same":
        before, _ = same_padding(side, kernel, stride)
    count = 0
    for output in range(outputs):
        start = output * stride - before
        end = start + kernel
        count += min(end, side) - max(start, 0)
    return count
