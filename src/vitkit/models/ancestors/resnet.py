"""ResNets as in BiT (Section 4.1): standardised kernels, GroupNorm, bottlenecks; alone, or as a hybrid's
stem.

A ResNet is a root, and residual units in stages; every stage but the first halves the sides. A 3 x 3
convolution, or a kind of attention, mixes the positions in a unit.

Legend: B batch, C channels, C' output channels, k side of a kernel, (H, W) sides of an image, (h, w) of a
feature map, D channels of the last one, which are a ResNet's width, N = h·w its positions, K classes.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitkit.models.ancestors.backbone import Backbone, ResNetConfig
from vitkit.models.ancestors.mixers import AugmentedMixer, AxialMixer, LocalMixer, split_channels
from vitkit.models.layers import (
    Dense,
    check_images,
    in_type_of_weights,
    init_children,
    init_head,
    lecun_normal_,
)
from vitkit.models.tiling import Grid, Tiling


class ResNet(nn.Module):
    """Images to class logits, with the methods of a VisionTransformer: `embed`, `encode`,
    `features` and `head`.

    Build one with `create()`: the constructor only gives the parameters their shapes.
    """

    def __init__(self, config: ResNetConfig):
        super().__init__()
        self.config = config
        backbone = config.backbone
        self.root = Root(config.channels, backbone)
        self.blocks = residual_units(backbone, config.image)
        self.norm = None  # the output of v2 units is not normalised yet
        if backbone.order == "pre":
            self.norm = normalise(backbone.features, backbone)
        self.head: nn.Module = nn.Identity()
        if config.classes:
            self.head = Dense(backbone.features, config.classes)

        # Activation checkpointing: keep only the units' inputs for the backward pass.
        self.recompute = False
        # Set by for_inference; such models cannot be trained or saved.
        self.inference_only = False

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, K) logits, or the features if there is no head."""
        return self.head(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """The features, which the head reads: the mean of the last feature map, (B, C, H, W) -> (B, D).

        With `pool="none"`, all of its positions, (B, N, D).
        """
        if self.config.pool == "none":
            return self.encode(images)
        return self.feature_map(images).mean((2, 3))  # (B, D, h, w) -> (B, D)

    def encode(self, images: Tensor) -> Tensor:
        """The last feature map in raster order: (B, C, H, W) -> (B, N, D)."""
        return self.feature_map(images).flatten(2).mT

    def embed(self, images: Tensor) -> Tensor:
        """Apply the root: (B, C, H, W) normalised images -> (B, channels, H/4, W/4), rounded up."""
        check_images(images, self.config.channels)
        return self.root(in_type_of_weights(images, self.root))

    def feature_map(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, h, w)."""
        x = self.embed(images)  # (B, channels, H/4, W/4)
        for block in self.blocks:
            if self.recompute and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        if self.norm is not None:
            x = F.relu(self.norm(x), inplace=True)
        return x

    def layer_of(self, name: str) -> int:
        """The layer that a parameter belongs to, by its name.

        0 is the root, 1 to L are the residual units, L + 1 is all that follows.
        """
        module, *rest = name.split(".")
        if module == "root":
            return 0
        if module == "blocks":
            return int(rest[0]) + 1
        return len(self.blocks) + 1

    def init_weights(self) -> None:
        """Initialise as the official code: zeros for the head, every other module by its own rule."""
        init_head(self.head, self.config.head_bias)
        init_children(self)


class ResNetStem(nn.Module):
    """A hybrid's stem: patches of a ResNet's feature map, projected."""

    def __init__(self, channels: int, width: int, patches: Tiling, config: Backbone, image: Grid):
        super().__init__()
        self.tiling = patches.scaled(config.stride)  # in pixels
        self.root = Root(channels, config)
        self.blocks = residual_units(config, image)
        self.norm = None  # the output of v2 units is not normalised yet
        if config.order == "pre" and config.units:
            self.norm = normalise(config.features, config)
        self.project = nn.Conv2d(config.features, width, patches.size, patches.stride)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, width, h, w), with (h, w) the grid of patches. Raises VitkitError for sides
        that give no whole patches."""
        self.tiling.check((images.shape[-2], images.shape[-1]))
        x = self.root(images)
        for block in self.blocks:
            x = block(x)  # (B, features, H/stride, W/stride) after the last
        if self.norm is not None:
            x = F.relu(self.norm(x), inplace=True)
        return self.project(x)  # E of Eq. 1, on a feature map

    def init_weights(self) -> None:
        """Initialise the projection like the projection of an image's patches."""
        lecun_normal_(self.project.weight)
        if self.project.bias is not None:
            nn.init.zeros_(self.project.bias)


def residual_units(config: Backbone, image: Grid) -> nn.ModuleList:
    """The residual units of all stages, in order.

    `image` is the size for which attention's positions are made.
    """
    modules = []
    inputs = config.channels
    for stage, (before, after) in enumerate(config.stage_grids(image)):
        inner = config.channels * 2**stage
        stage_config = replace(config, mixer=config.mixes(stage))

        # The first unit has the stride, except in the first stage: the root has it already.
        stride = 2
        if stage == 0:
            stride = 1
        modules.append(ResNetUnit(inputs, inner, stride, before, stage_config))
        inputs = 4 * inner
        for _ in range(config.units[stage] - 1):
            modules.append(ResNetUnit(inputs, inner, 1, after, stage_config))
    return nn.ModuleList(modules)


class Root(nn.Module):
    """A 7 x 7 convolution and a 3 x 3 max-pooling, each of stride 2."""

    def __init__(self, channels: int, config: Backbone):
        super().__init__()
        self.border = config.pool
        self.conv = Conv(channels, config.channels, 7, 2, config)
        self.norm = None  # pre-norm units normalise it themselves
        if config.order == "post":
            self.norm = normalise(config.channels, config)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, channels of the root, H/4, W/4), rounded up."""
        x = self.conv(images)  # (B, channels, H/2, W/2)
        if self.norm is not None:
            x = F.relu(self.norm(x), inplace=True)
        return self.max_pool(x)

    def max_pool(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C, h/2, w/2), rounded up, with the border of the source of the weights."""
        if self.border == "even":
            return F.max_pool2d(x, 3, 2, padding=1)
        if self.border == "zeros":  # zeros exceed negative numbers
            x = F.pad(x, (1, 1, 1, 1))
        else:
            x = pad_same(x, 3, 2, -torch.inf)
        return F.max_pool2d(x, 3, 2)


class ResNetUnit(nn.Module):
    """A bottleneck with a shortcut: a 1 x 1 convolution to `inner` channels, the mixer (3 x 3, with the
    stride), and a 1 x 1 convolution to four times as many channels.

    Each is followed by a norm ("post", ResNet v1) or follows one ("pre", ResNet v2).
    """

    def __init__(self, inputs: int, inner: int, stride: int, grid: Grid, config: Backbone):
        super().__init__()
        outputs = 4 * inner
        self.pre = config.order == "pre"

        self.conv1 = Conv(inputs, inner, 1, 1, config)
        self.conv2 = mixer(inner, stride, grid, config)
        self.conv3 = Conv(inner, outputs, 1, 1, config)

        # The width of a norm is that of its convolution's output, or of its input ("pre").
        channels = [inner, inner, outputs]
        if self.pre:
            channels = [inputs, inner, inner]
        self.norm1 = normalise(channels[0], config)
        self.norm2 = normalise(channels[1], config)
        self.norm3 = normalise(channels[2], config)

        # The shortcut is projected only if the shape changes; in v2 it has no norm of its own.
        self.shortcut: Conv | None = None
        self.shortcut_norm: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = Conv(inputs, outputs, 1, stride, config)
            if not self.pre:
                self.shortcut_norm = normalise(outputs, config)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, 4·inner, h', w')."""
        if self.pre:
            return self.forward_pre(x)
        return self.forward_post(x)

    def forward_post(self, x: Tensor) -> Tensor:
        """ResNet v1: convolution, norm, ReLU."""
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)  # (B, inner, h, w)
        y = F.relu(self.norm2(self.conv2(y)), inplace=True)  # (B, inner, h', w')
        y = self.norm3(self.conv3(y))  # (B, 4·inner, h', w')
        if self.shortcut is not None:
            x = self.shortcut(x)
        if self.shortcut_norm is not None:
            x = self.shortcut_norm(x)
        return F.relu(y + x, inplace=True)

    def forward_pre(self, x: Tensor) -> Tensor:
        """ResNet v2, as in BiT: norm, ReLU, convolution."""
        y = F.relu(self.norm1(x), inplace=True)
        if self.shortcut is not None:
            x = self.shortcut(y)  # its input is already normalised
        y = F.relu(self.norm2(self.conv1(y)), inplace=True)  # (B, inner, h, w)
        y = F.relu(self.norm3(self.conv2(y)), inplace=True)  # (B, inner, h', w')
        return x + self.conv3(y)  # (B, 4·inner, h', w')

    def init_weights(self) -> None:
        """Initialise a v1 unit such that it starts as its shortcut, as in the official code."""
        if not self.pre:
            nn.init.zeros_(self.norm3.weight)


def mixer(channels: int, stride: int, grid: Grid, config: Backbone) -> nn.Module:
    """The layer that mixes the positions of a unit: a 3 x 3 convolution, or a kind of attention."""
    if config.mixer == "axial":
        return AxialMixer(channels, stride, grid)
    if config.mixer == "local":
        return LocalMixer(channels, stride)
    if config.mixer == "augmented":
        _, values = split_channels(channels)
        conv = Conv(channels, channels - values, 3, stride, config)
        return AugmentedMixer(channels, stride, grid, conv)
    return Conv(channels, channels, 3, stride, config)


def normalise(channels: int, config: Backbone) -> nn.GroupNorm | nn.BatchNorm2d:
    """GroupNorm with 32 groups, or BatchNorm."""
    if config.norm == "batch":
        return nn.BatchNorm2d(channels, config.norm_eps)
    return nn.GroupNorm(32, channels, config.norm_eps)


# Convolutions


class Conv(nn.Module):
    """A convolution without bias whose kernel is standardised in every pass (weight
    standardisation, as in BiT)."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int, config: Backbone):
        super().__init__()
        self.stride = stride
        self.same = config.padding == "same"
        self.how = config.standardise
        self.eps = config.weight_eps
        self.weight = nn.Parameter(torch.empty(outputs, inputs, size, size))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C', h', w')."""
        size = self.weight.shape[-1]
        kernel: Tensor = self.weight  # (C', C, k, k)
        if self.how != "none":
            kernel = standardised(kernel, self.how, self.eps)
        if self.same and self.stride > 1:
            x = pad_same(x, size, self.stride, 0.0)
            return F.conv2d(x, kernel, stride=self.stride)
        # With a stride of 1, SAME is the same on both sides too.
        return F.conv2d(x, kernel, stride=self.stride, padding=size // 2)

    def standardise_once(self) -> None:
        """Standardise the kernel once, for inference, and store it as the weight."""
        if self.how != "none":
            kernel = standardised(self.weight.detach(), self.how, self.eps)
            self.weight = nn.Parameter(kernel, requires_grad=False)
            self.how = "none"

    def init_weights(self) -> None:
        """Initialise by Flax's default, or by He et al.'s for a plain kernel, which is used with BatchNorm."""
        if self.how == "none":
            nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")
        else:
            lecun_normal_(self.weight)


def standardised(weight: Tensor, how: str, eps: float) -> Tensor:
    """Standardise each output channel's kernel to mean 0 and deviation 1, computed in float32 or wider.

    (C', C, k, k) -> the same shape and dtype. how: "std" divides by std + eps, "variance" by
    sqrt(variance + eps).
    """
    exact = weight.to(torch.promote_types(weight.dtype, torch.float32))
    exact = exact - exact.mean((1, 2, 3), keepdim=True)
    # The variance of the population (not of a sample), in every source of weights.
    variance = exact.square().mean((1, 2, 3), keepdim=True)  # (C', 1, 1, 1)
    if how == "std":
        spread = variance.sqrt() + eps
    else:
        spread = (variance + eps).sqrt()
    return (exact / spread).to(weight.dtype)


def pad_same(x: Tensor, kernel: int, stride: int, value: float) -> Tensor:
    """A feature map (..., h, w) with TensorFlow's SAME padding around it."""
    top, bottom = same_padding(x.shape[-2], kernel, stride)
    left, right = same_padding(x.shape[-1], kernel, stride)
    if bottom == 0 and right == 0:  # then top and left are 0 too
        return x
    return F.pad(x, (left, right, top, bottom), value=value)


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """TensorFlow's SAME padding along one side, (before, after): such that the output is
    ceil(size / stride) long."""
    outputs = -(-size // stride)
    total = max((outputs - 1) * stride + kernel - size, 0)
    before = total // 2
    return before, total - before
