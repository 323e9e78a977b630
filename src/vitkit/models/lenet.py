"""LeNet-5 (LeCun et al. 1998), the first of the ancestors, in its usual modern reading: every map is joined with every other.

Legend: B batch, C channels, K classes.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.init import lecun_normal_


@dataclass(frozen=True)
class LeNetConfig:
    """What decides LeNet-5; its images are 32 x 32 pixels."""

    kind: ClassVar[str] = "lenet"
    """What this configuration is called where only its values are kept."""

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
    def image(self) -> tuple[int, int]:
        """(height, width), the only ones there are."""
        return 32, 32


class LeNet(nn.Module):
    """Images to class logits, by way of `embed`, `encode` or `features`, and `head`, as a VisionTransformer."""

    def __init__(self, config: LeNetConfig):
        super().__init__()
        self.config = config
        layers = nn.Conv2d(config.channels, 6, 5), nn.Conv2d(6, 16, 5), nn.Conv2d(16, 120, 5)
        self.blocks = nn.ModuleList(nn.ModuleDict({"conv": layer}) for layer in layers)
        self.representation = nn.Linear(120, 84)
        self.head = nn.Linear(84, config.classes) if config.classes else nn.Identity()
        self.recompute = False  # nothing here is worth it

    def embed(self, images: Tensor) -> Tensor:
        """The first maps: (B, C, H, W) normalised images of 32 x 32 -> (B, 6, 14, 14)."""
        if images.shape[1:] != (self.config.channels, 32, 32) or not images.is_floating_point():
            raise ValueError(
                f"LeNet-5 takes floating point images of shape (batch, {self.config.channels}, 32, 32); these are "
                f"{images.dtype} of shape {tuple(images.shape)}"
            )
        return F.avg_pool2d(torch.tanh(self.blocks[0]["conv"](images)), 2)

    def encode(self, images: Tensor) -> Tensor:
        """The only place that is left: (B, C, H, W) -> (B, 1, 120)."""
        x = F.avg_pool2d(torch.tanh(self.blocks[1]["conv"](self.embed(images))), 2)
        return torch.tanh(self.blocks[2]["conv"](x)).flatten(2).mT

    def features(self, images: Tensor) -> Tensor:
        """What the head reads: (B, C, H, W) -> (B, 84)."""
        return torch.tanh(self.representation(self.encode(images)[:, 0]))

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, K) logits, or the features where there is no head."""
        return self.head(self.features(images))

    def init_weights(self) -> None:
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                lecun_normal_(layer.weight)
                nn.init.zeros_(layer.bias)
        if self.config.classes:
            nn.init.zeros_(self.head.weight)
            nn.init.constant_(self.head.bias, self.config.head_bias)
