"""What was tried before the paper: LeNet-5, and attention in the place of a ResNet's convolutions.

Nothing of the Vision Transformer is here. The two mixers take (B, C, h, w) to (B, C, h', w'), each
side halved, rounded up, by a stride of 2.

Legend: B batch, C channels, H heads, E width of a head, N = h·w positions of the feature map, W
side of the window, K classes.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.attention import ScaledDotProduct
from vitkit.models.axial import halved
from vitkit.models.backbone import Grid
from vitkit.models.init import init_head, lecun_normal_
from vitkit.models.positions import Offsets
from vitkit.models.stems import check_images

HEADS = 8
WINDOW = 7


class LocalMixer(nn.Module):
    """Stand-alone self-attention (Ramachandran et al. 2019): each position of the feature map asks
    the 7 x 7 around it.

    An offset has a vector for its row and one for its column, each half of a head, which the query
    meets as it does the key; nothing is scaled, as in their Eq. 3. What is outside of the image
    does not exist. A 2 x 2 mean makes the stride.
    """

    def __init__(self, channels: int, stride: int):
        super().__init__()
        half = channels // HEADS // 2
        self.stride = stride
        self.qkv = nn.Linear(channels, 3 * channels, bias=False)
        self.down = nn.Parameter(torch.empty(1, WINDOW, half))
        self.across = nn.Parameter(torch.empty(1, WINDOW, half))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C, h', w')."""
        qkv = self.qkv(x.permute(0, 2, 3, 1)).unflatten(-1, (3, HEADS, -1))
        q, k, v = qkv.unbind(3)  # (B, h, w, H, E)
        k = windows(k)  # (B, h, w, H, W·W, E)
        v = windows(v)

        # every key of a window with its offset's vector
        down = self.down[0, :, None].expand(-1, WINDOW, -1)
        across = self.across.expand(WINDOW, -1, -1)
        offsets = torch.cat([down, across], -1).flatten(0, 1)  # (W·W, E)
        logits = (q[..., None, :] @ (k + offsets).mT).squeeze(-2)  # (B, h, w, H, W·W)

        # what is outside of the image has no weight
        inside = windows(x.new_ones(1, *x.shape[-2:], 1, 1))[0, ..., 0] > 0  # (h, w, 1, W·W)
        weights = logits.masked_fill(~inside, -torch.inf).softmax(-1)
        mixed = (weights[..., None, :] @ v).flatten(-3).permute(0, 3, 1, 2)
        if self.stride == 2:
            mixed = halved(mixed)
        return mixed

    def init_weights(self) -> None:
        lecun_normal_(self.qkv.weight)
        nn.init.normal_(self.down, std=0.02)
        nn.init.normal_(self.across, std=0.02)


def windows(x: Tensor) -> Tensor:
    """The 7 x 7 around every position, zeros outside: (B, h, w, H, E) -> (B, h, w, H, W·W, E)."""
    reach = WINDOW // 2
    x = F.pad(x, (0, 0, 0, 0, reach, reach, reach, reach))
    return x.unfold(1, WINDOW, 1).unfold(2, WINDOW, 1).flatten(-2).mT


class AugmentedMixer(nn.Module):
    """Attention-augmented convolution (Bello et al. 2019): some channels from a convolution, the
    others from attention.

    Of C channels C/8 come from 8 heads over the whole feature map, with keys of C/4 in all (they
    advise a tenth and a fifth); offsets along rows and along columns are added to the logits. With
    a stride the attention works on the 2 x 2 means.
    """

    def __init__(self, channels: int, stride: int, grid: Grid, conv: nn.Module):
        super().__init__()
        height, width = (-(-side // stride) for side in grid)
        self.stride = stride
        self.keys, self.values = split_channels(channels)
        self.conv = conv  # to channels - values
        self.qkv = nn.Linear(channels, 2 * self.keys + self.values, bias=False)
        self.attend = ScaledDotProduct()
        self.out = nn.Linear(self.values, self.values, bias=False)
        self.down = Offsets(height, self.keys // HEADS)
        self.across = Offsets(width, self.keys // HEADS)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C, h', w')."""
        y = x
        if self.stride == 2:
            y = halved(y)
        height, width = y.shape[-2:]
        qkv = self.qkv(y.permute(0, 2, 3, 1))
        q, k, v = qkv.split([self.keys, self.keys, self.values], -1)
        q = heads(q)  # (B, H, h, w, E)
        bias = self.bias(q)
        mixed = self.attend(q.flatten(2, 3), heads(k).flatten(2, 3), heads(v).flatten(2, 3), bias)
        mixed = self.out(mixed.transpose(1, 2).flatten(2)).unflatten(1, (height, width))
        return torch.cat([self.conv(x), mixed.permute(0, 3, 1, 2)], 1)

    def bias(self, q: Tensor) -> Tensor:
        """Affinity to the offset along the row, and to that along the column.

        (B, H, h, w, E) -> (B, H, N, N)."""
        batch, _, height, width, _ = q.shape
        rows = q.flatten(1, 2)  # (B, H·h, w, E)
        columns = q.transpose(2, 3).flatten(1, 2)  # (B, H·w, h, E)
        _, _, across = self.across(rows, rows)
        _, _, down = self.down(columns, columns)
        across = across.view(batch, HEADS, height, width, 1, width)
        down = down.view(batch, HEADS, width, height, height, 1).transpose(2, 3)
        return (across + down).flatten(4, 5).flatten(2, 3)

    def init_weights(self) -> None:
        lecun_normal_(self.qkv.weight)
        lecun_normal_(self.out.weight)


def heads(x: Tensor) -> Tensor:
    """(B, h, w, H·E) -> (B, H, h, w, E)."""
    return x.unflatten(-1, (HEADS, -1)).permute(0, 3, 1, 2, 4)


def split_channels(channels: int) -> tuple[int, int]:
    """Of an attention-augmented convolution: channels of all keys, and of all values."""
    return channels // 4, channels // 8


@dataclass(frozen=True)
class LeNetConfig:
    """What decides LeNet-5; its images are 32 x 32 pixels."""

    kind: ClassVar[str] = "lenet"
    """What this configuration is called where only its values are kept."""
    title: ClassVar[str] = "LeNet"
    """What people call such models."""

    channels: int = 1
    """C, channels of the image."""
    classes: int = 10
    """K; 0 leaves the head out, and the model returns its features."""
    head_bias: float = 0.0
    """First value of the head's bias."""

    def __post_init__(self):
        if self.channels < 1 or self.classes < 0:
            raise ValueError(
                f"{self.channels} channels and {self.classes} classes; at least 1 and 0 are needed"
            )

    @property
    def image(self) -> Grid:
        """(height, width), the only ones there are."""
        return 32, 32

    @property
    def blocks(self) -> int:
        """How many blocks the model has."""
        return 3

    @property
    def pools(self) -> bool:
        """The model has one answer an image."""
        return True

    def fitting(self, image: Grid) -> Grid:
        """The size of images that comes nearest to `image`: the only one there is."""
        return self.image

    def resized(self, image: Grid, method: str | None = None) -> "LeNetConfig":
        """The same model for images of this size. Raises ValueError for another size than its
        own."""
        if tuple(image) != self.image:
            raise ValueError(f"LeNet-5 takes images of 32 x 32 pixels, not {image[0]} x {image[1]}")
        return self

    def with_head(self, classes: int) -> "LeNetConfig":
        """The same model with a new head of so many classes; 0 is none."""
        return replace(self, classes=classes, head_bias=0.0)


class LeNet(nn.Module):
    """LeNet-5 (LeCun et al. 1998) in its usual modern reading: every map is joined with every
    other.

    Images to class logits, by way of `embed`, `encode` or `features`, and `head`, as a
    VisionTransformer. Build one with `create()`.
    """

    def __init__(self, config: LeNetConfig):
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(
            [
                LeNetStage(config.channels, 6, pool=True),
                LeNetStage(6, 16, pool=True),
                LeNetStage(16, 120, pool=False),
            ]
        )
        self.representation = nn.Linear(120, 84)
        self.head = nn.Identity()
        if config.classes:
            self.head = nn.Linear(84, config.classes)
        self.recompute = False  # nothing here is worth it
        self.prepared = False  # made by for_inference

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, K) logits, or the features where there is no head."""
        return self.head(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """What the head reads: (B, C, H, W) -> (B, 84)."""
        return torch.tanh(self.representation(self.encode(images)[:, 0]))

    def encode(self, images: Tensor) -> Tensor:
        """The only position that remains: (B, C, H, W) -> (B, 1, 120)."""
        x = self.embed(images)
        for block in self.blocks[1:]:
            x = block(x)
        return x.flatten(2).mT

    def embed(self, images: Tensor) -> Tensor:
        """The first maps: (B, C, H, W) normalised images of 32 x 32 -> (B, 6, 14, 14)."""
        check_images(images, self.config.channels)
        if images.shape[-2:] != self.config.image:
            raise ValueError(
                f"LeNet-5 takes images of 32 x 32 pixels; these are of shape {tuple(images.shape)}"
            )
        return self.blocks[0](images)

    def layer_of(self, name: str) -> int:
        """The layer that a parameter belongs to, by its name: blocks from 1, then what follows."""
        part, _, rest = name.partition(".")
        if part == "blocks":
            return int(rest.partition(".")[0]) + 1
        return len(self.blocks) + 1

    def init_weights(self) -> None:
        """lecun_normal everywhere, and a head of zeros."""
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                lecun_normal_(layer.weight)
                nn.init.zeros_(layer.bias)
        init_head(self.head, self.config.head_bias)


class LeNetStage(nn.Module):
    """A 5 x 5 convolution, tanh, and a 2 x 2 mean where it pools."""

    def __init__(self, inputs: int, outputs: int, pool: bool):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 5)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C', h - 4, w - 4), or half of that."""
        x = torch.tanh(self.conv(x))
        if self.pool:
            x = F.avg_pool2d(x, 2)
        return x
