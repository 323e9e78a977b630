"""ResNets as BiT has them (Section 4.1): standardised kernels, GroupNorm, bottlenecks; alone, or as
a hybrid's stem.

Legend: B batch, C channels, D channels of the last feature map, N its positions, K classes, (h, w)
its sides.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitkit.models.ancestors import AugmentedMixer, LocalMixer, split_channels
from vitkit.models.axial import AxialMixer
from vitkit.models.backbone import Backbone, Grid, ResNetConfig
from vitkit.models.init import init_children, init_head, lecun_normal_
from vitkit.models.stems import check_divisible, check_images


def same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """TensorFlow's SAME padding of one side, (before, after): so much that ceil(size / stride)
    places come out."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def padded(x: Tensor, kernel: int, stride: int, value: float) -> Tensor:
    """(..., h, w) with SAME padding."""
    top, bottom = same(x.shape[-2], kernel, stride)
    left, right = same(x.shape[-1], kernel, stride)
    return F.pad(x, (left, right, top, bottom), value=value) if max(bottom, right) else x


def standardised(weight: Tensor, how: str, eps: float) -> Tensor:
    """Every output channel's kernel with mean 0 and spread 1, in float32 at least.

    (out, in, k, k) as it came. how: "std" divides by std + eps, "variance" by sqrt(variance + eps).
    """
    exact = weight.to(torch.promote_types(weight.dtype, torch.float32))
    exact = exact - exact.mean((1, 2, 3), keepdim=True)
    variance = exact.square().mean((1, 2, 3), keepdim=True)  # of the population, in every origin
    if how == "std":
        spread = variance.sqrt() + eps
    else:
        spread = (variance + eps).sqrt()
    return (exact / spread).to(weight.dtype)


class Conv(nn.Module):
    """A convolution without bias whose kernel is standardised in every pass."""

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
        kernel = self.weight
        if self.how != "none":
            kernel = standardised(kernel, self.how, self.eps)
        if self.same and self.stride > 1:
            return F.conv2d(padded(x, size, self.stride, 0.0), kernel, stride=self.stride)
        # SAME with a stride of 1 pads odd kernels by as much on both sides
        return F.conv2d(x, kernel, stride=self.stride, padding=size // 2)

    def prepare(self, device: torch.device) -> None:
        """For inference: standardise the kernel once and for all. The weight is another then."""
        if self.how != "none":
            kernel = standardised(self.weight.detach(), self.how, self.eps)
            self.weight = nn.Parameter(kernel, requires_grad=False)
            self.how = "none"

    def init_weights(self) -> None:
        if self.how == "none":  # He et al., for BatchNorm
            nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")
        else:
            lecun_normal_(self.weight)


def normalise(channels: int, config: Backbone) -> nn.Module:
    """GroupNorm with 32 groups, or BatchNorm."""
    if config.norm == "batch":
        return nn.BatchNorm2d(channels, config.norm_eps)
    return nn.GroupNorm(32, channels, config.norm_eps)


class Root(nn.Module):
    """A 7 x 7 convolution and a max-pooling, each of stride 2: (B, C, H, W) -> (B, D, H/4, W/4),
    rounded up."""

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


def conv_mixer(channels: int, stride: int, grid: Grid, config: Backbone) -> nn.Module:
    """A 3 x 3 convolution."""
    return Conv(channels, channels, 3, stride, config)


def axial_mixer(channels: int, stride: int, grid: Grid, config: Backbone) -> nn.Module:
    """Attention along rows, then along columns (App. D.6)."""
    return AxialMixer(channels, stride, grid)


def local_mixer(channels: int, stride: int, grid: Grid, config: Backbone) -> nn.Module:
    """Attention to the 7 x 7 around."""
    return LocalMixer(channels, stride)


def augmented_mixer(channels: int, stride: int, grid: Grid, config: Backbone) -> nn.Module:
    """A convolution for most channels, attention for the rest."""
    _, values = split_channels(channels)
    conv = Conv(channels, channels - values, 3, stride, config)
    return AugmentedMixer(channels, stride, grid, conv)


MIXERS: dict[str, Callable[[int, int, Grid, Backbone], nn.Module]] = {
    "conv": conv_mixer,
    "axial": axial_mixer,
    "local": local_mixer,
    "augmented": augmented_mixer,
}


class Unit(nn.Module):
    """A bottleneck: 1 x 1, 3 x 3 (with the stride), 1 x 1, around a shortcut.

    Normalised after each convolution ("post"), or before ("pre"), where the shortcut has no norm of
    its own.
    """

    def __init__(self, inputs: int, inner: int, stride: int, grid: Grid, config: Backbone):
        super().__init__()
        outputs = 4 * inner
        self.pre = config.order == "pre"
        self.conv1 = Conv(inputs, inner, 1, 1, config)
        self.conv2 = MIXERS[config.mixer](inner, stride, grid, config)
        self.conv3 = Conv(inner, outputs, 1, 1, config)
        normed = [inner, inner, outputs]
        if self.pre:
            normed = [inputs, inner, inner]
        self.norm1 = normalise(normed[0], config)
        self.norm2 = normalise(normed[1], config)
        self.norm3 = normalise(normed[2], config)
        self.shortcut = None
        self.shortcut_norm = None
        if stride != 1 or inputs != outputs:
            self.shortcut = Conv(inputs, outputs, 1, stride, config)
            if not self.pre:
                self.shortcut_norm = normalise(outputs, config)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, 4·inner, h', w')."""
        if self.pre:
            return self.normalised_first(x)
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = F.relu(self.norm2(self.conv2(y)), inplace=True)
        y = self.norm3(self.conv3(y))
        if self.shortcut is not None:
            x = self.shortcut_norm(self.shortcut(x))
        return F.relu(y + x, inplace=True)

    def normalised_first(self, x: Tensor) -> Tensor:
        """ResNet v2, as BiT has it."""
        y = F.relu(self.norm1(x), inplace=True)
        if self.shortcut is not None:
            x = self.shortcut(y)
        y = F.relu(self.norm2(self.conv1(y)), inplace=True)
        y = F.relu(self.norm3(self.conv2(y)), inplace=True)
        return x + self.conv3(y)

    def init_weights(self) -> None:
        """Every unit starts as its shortcut where it normalises last (the official code); BiT's v2
        units do not."""
        if not self.pre:
            nn.init.zeros_(self.norm3.weight)


def units(config: Backbone, image: Grid) -> nn.ModuleList:
    """The residual units of every stage, one after the other.

    `image` is the size that attention's positions are made for.
    """
    made = []
    inputs = config.channels
    for stage, count in enumerate(config.units):
        inner = config.channels * 2**stage
        before, after = config.sides(image)[stage + 1 : stage + 3]
        of_stage = replace(config, mixer=config.mixes(stage))
        for unit in range(count):
            if unit == 0:
                stride = 2 if stage else 1
                made.append(Unit(inputs, inner, stride, before, of_stage))
            else:
                made.append(Unit(inputs, inner, 1, after, of_stage))
            inputs = 4 * inner
    return nn.ModuleList(made)


class ResNetStem(nn.Module):
    """A hybrid's stem: patches of a ResNet's feature map, projected."""

    def __init__(self, channels: int, patch: int, width: int, config: Backbone, image: Grid):
        super().__init__()
        self.side = patch * config.stride
        self.root = Root(channels, config)
        self.blocks = units(config, image)
        self.norm = None
        if config.order == "pre" and config.units:
            self.norm = normalise(config.features, config)
        self.project = nn.Conv2d(config.features, width, patch, stride=patch)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, h, w). Raises ValueError for sides that give no whole patches."""
        check_divisible(images, self.side)
        x = self.root(images)
        for block in self.blocks:
            x = block(x)
        if self.norm is not None:
            x = F.relu(self.norm(x), inplace=True)
        return self.project(x)

    def init_weights(self) -> None:
        lecun_normal_(self.project.weight)
        nn.init.zeros_(self.project.bias)


class ResNet(nn.Module):
    """Images to class logits, by way of `embed`, `encode` or `features`, and `head`, as a
    VisionTransformer.

    Build one with `create()`: the constructor only gives the parameters their shapes.
    """

    def __init__(self, config: ResNetConfig):
        super().__init__()
        self.config = config
        backbone = config.backbone
        self.root = Root(config.channels, backbone)
        self.blocks = units(backbone, config.image)
        self.norm = None
        if backbone.order == "pre":
            self.norm = normalise(backbone.features, backbone)
        self.head = nn.Identity()
        if config.classes:
            self.head = nn.Linear(backbone.features, config.classes)

        # Activation checkpointing: keep only the units' inputs for the backward pass.
        self.recompute = False
        # Made by for_inference: not to be trained or saved.
        self.prepared = False

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, K) logits, or the features where there is no head."""
        return self.head(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """What the head reads, the mean of the last feature map: (B, C, H, W) -> (B, D).

        `pool="none"` gives every position of it, (B, N, D).
        """
        if self.config.pool == "none":
            return self.encode(images)
        return self.feature_map(images).mean((2, 3))

    def encode(self, images: Tensor) -> Tensor:
        """The last feature map in raster order: (B, C, H, W) -> (B, N, D)."""
        return self.feature_map(images).flatten(2).mT

    def embed(self, images: Tensor) -> Tensor:
        """The root: (B, C, H, W) normalised images -> (B, D, H/4, W/4), rounded up."""
        check_images(images, self.config.channels)
        return self.root(images)

    def feature_map(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, h, w)."""
        x = self.embed(images)
        for block in self.blocks:
            if self.recompute and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        if self.norm is not None:
            x = F.relu(self.norm(x), inplace=True)
        return x

    def layer_of(self, name: str) -> int:
        """The layer that a parameter belongs to, by its name: 0 is the root, then the units from 1,
        their number + 1 is what follows them."""
        part, _, rest = name.partition(".")
        if part == "root":
            return 0
        if part == "blocks":
            return int(rest.partition(".")[0]) + 1
        return len(self.blocks) + 1

    def init_weights(self) -> None:
        """The official initialisation: zero head, the rest by each module's own rule."""
        init_head(self.head, self.config.head_bias)
        init_children(self)
