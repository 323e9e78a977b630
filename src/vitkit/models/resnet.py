"""ResNets as BiT has them (Section 4.1): standardised kernels, GroupNorm, bottlenecks; alone, or as a hybrid's stem.

Legend: B batch, C channels, D channels of the last feature map, N its places, K classes, (h, w) its sides.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitkit.models.axial import AxialMixer
from vitkit.models.backbone import Backbone, Grid, ResNetConfig
from vitkit.models.init import init_children, lecun_normal_
from vitkit.models.mixers import AugmentedMixer, LocalMixer, split


def same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """TensorFlow's SAME padding of one side, (before, after): so much that ceil(size / stride) places come out."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def padded(x: Tensor, kernel: int, stride: int, value: float) -> Tensor:
    """(..., h, w) with SAME padding."""
    top, bottom = same(x.shape[-2], kernel, stride)
    left, right = same(x.shape[-1], kernel, stride)
    return F.pad(x, (left, right, top, bottom), value=value) if max(bottom, right) else x


def standardised(weight: Tensor, how: str, eps: float) -> Tensor:
    """Every output channel's kernel with mean 0 and spread 1, in float32 at least: (out, in, k, k) as it came."""
    exact = weight.to(torch.promote_types(weight.dtype, torch.float32))
    exact = exact - exact.mean((1, 2, 3), keepdim=True)
    variance = exact.square().mean(
        (1, 2, 3), keepdim=True
    )  # of the population, as every origin has it
    spread = variance.sqrt() + eps if how == "std" else (variance + eps).sqrt()
    return (exact / spread).to(weight.dtype)


class Conv(nn.Module):
    """A convolution without bias whose kernel is standardised in every pass: (B, C, h, w) -> (B, C', h', w').

    Outside training the standardised kernel is kept, as long as the weight stays what it was.
    """

    def __init__(self, inputs: int, outputs: int, size: int, stride: int, config: Backbone):
        super().__init__()
        self.stride, self.same = stride, config.padding == "same"
        self.how, self.eps = config.standardise, config.weight_eps
        self.weight = nn.Parameter(torch.empty(outputs, inputs, size, size))
        self._kept: tuple[tuple, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        size, kernel = self.weight.shape[-1], self.kernel()
        if not self.same:
            return F.conv2d(x, kernel, stride=self.stride, padding=size // 2)
        if self.stride == 1:  # odd kernels: the same on both sides
            return F.conv2d(x, kernel, padding=size // 2)
        return F.conv2d(padded(x, size, self.stride, 0.0), kernel, stride=self.stride)

    def kernel(self) -> Tensor:
        """What the image is convolved with."""
        if self.how == "none":
            return self.weight
        if torch.is_grad_enabled() and self._kept is not None:
            self._kept = None  # an update may follow; a fused one leaves no trace on the weight
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return standardised(self.weight, self.how, self.eps)
        key = (self.weight.data_ptr(), self.weight._version, self.weight.dtype)
        if self._kept is None or self._kept[0] != key:
            self._kept = key, standardised(self.weight, self.how, self.eps)
        return self._kept[1]

    def init_weights(self) -> None:
        if self.how == "none":
            nn.init.kaiming_normal_(
                self.weight, mode="fan_out", nonlinearity="relu"
            )  # He et al., for BatchNorm
        else:
            lecun_normal_(self.weight)


def normalise(channels: int, config: Backbone) -> nn.Module:
    """GroupNorm with 32 groups, or BatchNorm."""
    if config.norm == "batch":
        return nn.BatchNorm2d(channels, config.norm_eps)
    return nn.GroupNorm(32, channels, config.norm_eps)


class Root(nn.Module):
    """A 7 x 7 convolution and a max-pooling, each of stride 2: (B, C, H, W) -> (B, D, H/4, W/4), rounded up."""

    def __init__(self, channels: int, config: Backbone):
        super().__init__()
        self.border = config.pool
        self.conv = Conv(channels, config.channels, 7, 2, config)
        self.norm = normalise(config.channels, config) if config.order == "post" else None

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv(images)
        if self.norm is not None:
            x = F.relu(self.norm(x), inplace=True)
        if self.border == "even":
            return F.max_pool2d(x, 3, 2, padding=1)
        x = F.pad(x, (1, 1, 1, 1)) if self.border == "zeros" else padded(x, 3, 2, -torch.inf)
        return F.max_pool2d(x, 3, 2)


def augmented(channels: int, stride: int, grid: Grid, config: Backbone) -> nn.Module:
    """A convolution for most channels, attention for the rest."""
    left = channels - split(channels)[1]
    return AugmentedMixer(channels, stride, grid, Conv(channels, left, 3, stride, config))


MIXERS: dict[str, Callable[[int, int, Grid, Backbone], nn.Module]] = {
    "conv": lambda channels, stride, grid, config: Conv(channels, channels, 3, stride, config),
    "axial": lambda channels, stride, grid, config: AxialMixer(channels, stride, grid),
    "local": lambda channels, stride, grid, config: LocalMixer(channels, stride),
    "augmented": augmented,
}


class Unit(nn.Module):
    """A bottleneck: 1 x 1, 3 x 3 (with the stride), 1 x 1, around a shortcut: (B, C, h, w) -> (B, 4·inner, h', w').

    Normalised after each convolution ("post"), or before ("pre"), where the shortcut has no norm of its own.
    """

    def __init__(self, inputs: int, inner: int, stride: int, grid: Grid, config: Backbone):
        super().__init__()
        self.pre, outputs = config.order == "pre", 4 * inner
        self.conv1 = Conv(inputs, inner, 1, 1, config)
        self.conv2 = MIXERS[config.mixer](inner, stride, grid, config)
        self.conv3 = Conv(inner, outputs, 1, 1, config)
        self.norm1, self.norm2, self.norm3 = (
            normalise(c, config)
            for c in ((inputs, inner, inner) if self.pre else (inner, inner, outputs))
        )
        changes = stride != 1 or inputs != outputs
        self.shortcut = Conv(inputs, outputs, 1, stride, config) if changes else None
        self.shortcut_norm = normalise(outputs, config) if changes and not self.pre else None

    def forward(self, x: Tensor) -> Tensor:
        if self.pre:
            y = F.relu(self.norm1(x), inplace=True)
            x = x if self.shortcut is None else self.shortcut(y)
            y = F.relu(self.norm2(self.conv1(y)), inplace=True)
            return x + self.conv3(F.relu(self.norm3(self.conv2(y)), inplace=True))
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = F.relu(self.norm2(self.conv2(y)), inplace=True)
        y = self.norm3(self.conv3(y))
        return F.relu(
            y + (x if self.shortcut is None else self.shortcut_norm(self.shortcut(x))), inplace=True
        )

    def init_weights(self) -> None:
        """Every unit starts as its shortcut where it normalises last (the official code); BiT's v2 units do not."""
        if not self.pre:
            nn.init.zeros_(self.norm3.weight)


def units(config: Backbone, image: Grid) -> nn.ModuleList:
    """The residual units of every stage, one after the other. `image` is what attention's positions are made for."""
    made, inputs = [], config.channels
    for stage, count in enumerate(config.units):
        inner, sides = config.channels * 2**stage, config.sides(image)[stage + 1 :]
        here = replace(config, mixer=config.mixes(stage))
        for unit in range(count):
            first = unit == 0
            stride = 2 if first and stage else 1
            made.append(Unit(inputs, inner, stride, sides[0] if first else sides[1], here))
            inputs = 4 * inner
    return nn.ModuleList(made)


class ResNetStem(nn.Module):
    """A hybrid's stem: patches of a ResNet's feature map, projected: (B, C, H, W) -> (B, D, h, w)."""

    def __init__(self, channels: int, patch: int, width: int, config: Backbone, image: Grid):
        super().__init__()
        self.side = patch * config.stride
        self.root, self.blocks = Root(channels, config), units(config, image)
        self.norm = (
            normalise(config.features, config) if config.order == "pre" and config.units else None
        )
        self.project = nn.Conv2d(config.features, width, patch, stride=patch)

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        if height % self.side or width % self.side:
            raise ValueError(
                f"an image of {height} x {width} pixels cannot be cut into patches of {self.side} x {self.side}; "
                f"resize it to multiples of {self.side} (its Preprocessing does)"
            )
        x = self.root(images)
        for block in self.blocks:
            x = block(x)
        return self.project(x if self.norm is None else F.relu(self.norm(x), inplace=True))

    def init_weights(self) -> None:
        lecun_normal_(self.project.weight)
        nn.init.zeros_(self.project.bias)


class ResNet(nn.Module):
    """Images to class logits, by way of `embed`, `encode` or `features`, and `head`, as a VisionTransformer.

    Build one with `create()`: the constructor only gives the parameters their shapes.
    """

    def __init__(self, config: ResNetConfig):
        super().__init__()
        self.config, backbone = config, config.backbone
        self.root = Root(config.channels, backbone)
        self.blocks = units(backbone, config.image)
        self.norm = normalise(backbone.features, backbone) if backbone.order == "pre" else None
        self.head = (
            nn.Linear(backbone.features, config.classes) if config.classes else nn.Identity()
        )
        self.recompute = (
            False  # activation checkpointing: keep only the units' inputs for the backward pass
        )

    def embed(self, images: Tensor) -> Tensor:
        """The root: (B, C, H, W) normalised images -> (B, D, H/4, W/4), rounded up."""
        if (
            images.ndim != 4
            or images.shape[1] != self.config.channels
            or not images.is_floating_point()
        ):
            raise ValueError(
                f"images must be floating point, normalised, of shape (batch, {self.config.channels}, height, width); "
                f"these are {images.dtype} of shape {tuple(images.shape)}"
            )
        return self.root(images)

    def encode(self, images: Tensor) -> Tensor:
        """Every place of the last feature map, in raster order: (B, C, H, W) -> (B, N, D)."""
        return self._map(images).flatten(2).mT

    def features(self, images: Tensor) -> Tensor:
        """What the head reads, the mean of those: (B, C, H, W) -> (B, D). `pool="none"` gives all, (B, N, D)."""
        return self._map(images).mean((2, 3)) if self.config.pool == "gap" else self.encode(images)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, K) logits, or the features where there is no head."""
        return self.head(self.features(images))

    def _map(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, h, w)."""
        x = self.embed(images)
        for block in self.blocks:
            x = (
                partial(checkpoint, block, use_reentrant=False)(x)
                if self.recompute and self.training
                else block(x)
            )
        return x if self.norm is None else F.relu(self.norm(x), inplace=True)

    def init_weights(self) -> None:
        """The official initialisation: zero head, the rest by each module's own rule, which comes after its norms'."""
        if self.config.classes:
            nn.init.zeros_(self.head.weight)
            nn.init.constant_(self.head.bias, self.config.head_bias)
        init_children(self)
