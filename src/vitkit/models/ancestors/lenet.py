"""LeNet-5 (LeCun et al. 1998), an early convolutional network, as a small model for learning.

Legend: B batch, C channels, (h, w) sides of a feature map, K classes.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.layers import check_images, in_type_of_weights, init_head, lecun_normal_
from vitkit.models.tiling import Grid
from vitkit.system.errors import BadSettings
from vitkit.system.values import check_settings


@dataclass(frozen=True)
class LeNetConfig:
    """The configuration of LeNet-5, whose images are 32 x 32 pixels."""

    kind: ClassVar[str] = "lenet"
    """The name of this kind of model in JSON."""
    title: ClassVar[str] = "LeNet"
    """The usual name of such models."""

    channels: int = 1
    """C, channels of the image."""
    classes: int = 10
    """K; 0: no head, and the model returns its features."""
    head_bias: float = 0.0
    """First value of the head's bias."""

    def __post_init__(self):
        check_settings(self)
        if self.channels < 1 or self.classes < 0:
            raise BadSettings(
                f"{self.channels} channels and {self.classes} classes; at least 1 and 0 are needed"
            )

    @property
    def image(self) -> Grid:
        """(height, width), the only possible size."""
        return 32, 32

    @property
    def blocks_built(self) -> int:
        """The number of blocks that `build` makes."""
        return 3

    @property
    def pools(self) -> bool:
        """Whether the model has one output per image: always."""
        return True

    def fitting(self, image: Grid) -> Grid:
        """The valid size of images nearest to `image`: the only possible one."""
        return self.image

    def resized(self, image: Grid, method: str | None = None) -> "LeNetConfig":
        """The configuration for images of this size. Raises VitkitError for a size other than its own."""
        if tuple(image) != self.image:
            raise BadSettings(
                f"LeNet-5 takes images of 32 x 32 pixels, not {image[0]} x {image[1]}"
            )
        return self

    def with_head(self, classes: int) -> "LeNetConfig":
        """The configuration with a new head for this many classes, or without a head for 0."""
        return replace(self, classes=classes, head_bias=0.0)


class LeNet(nn.Module):
    """LeNet-5 in its usual modern form: every channel of a stage reads all channels of the stage before.

    Images to class logits, with the methods of a VisionTransformer: `embed`, `encode`, `features`
    and `head`. Build one with `create()`.
    """

    def __init__(self, config: LeNetConfig):
        super().__init__()
        self.config = config
        stages = [
            LeNetStage(config.channels, 6, pool=True),
            LeNetStage(6, 16, pool=True),
            LeNetStage(16, 120, pool=False),
        ]
        self.blocks = nn.ModuleList(stages)
        self.representation = nn.Linear(120, 84)
        self.head: nn.Module = nn.Identity()
        if config.classes:
            self.head = nn.Linear(84, config.classes)
        self.recompute = False  # a training loop may set it; here it changes nothing
        self.inference_only = False  # set by for_inference

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, K) logits, or the features if there is no head."""
        return self.head(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """The features, which the head reads: (B, C, H, W) -> (B, 84)."""
        x = self.encode(images)[:, 0]  # (B, 120)
        return torch.tanh(self.representation(x))  # (B, 84)

    def encode(self, images: Tensor) -> Tensor:
        """The only position of the last feature map: (B, C, H, W) -> (B, 1, 120)."""
        x = self.embed(images)  # (B, 6, 14, 14)
        for block in self.blocks[1:]:
            x = block(x)  # (B, 16, 5, 5), then (B, 120, 1, 1)
        return x.flatten(2).mT

    def embed(self, images: Tensor) -> Tensor:
        """The first feature map: (B, C, H, W) normalised images of 32 x 32 -> (B, 6, 14, 14)."""
        check_images(images, self.config.channels)
        if images.shape[-2:] != self.config.image:
            raise BadSettings(
                f"LeNet-5 takes images of 32 x 32 pixels; these are of shape {tuple(images.shape)}"
            )
        return self.blocks[0](in_type_of_weights(images, self.blocks[0]))

    def layer_of(self, name: str) -> int:
        """The layer that a parameter belongs to, by its name: the blocks are 1 to 3, what follows
        them is 4."""
        module, *rest = name.split(".")
        if module == "blocks":
            return int(rest[0]) + 1
        return len(self.blocks) + 1

    def init_weights(self) -> None:
        """Initialise all layers by Flax's default, and the head with zeros."""
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                lecun_normal_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        init_head(self.head, self.config.head_bias)


class LeNetStage(nn.Module):
    """A 5 x 5 convolution, tanh, and a 2 x 2 mean if `pool`."""

    def __init__(self, inputs: int, outputs: int, pool: bool):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 5)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C', h - 4, w - 4), with half of these sides after pooling."""
        x = torch.tanh(self.conv(x))
        if self.pool:
            x = F.avg_pool2d(x, 2)
        return x
