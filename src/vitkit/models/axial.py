"""Attention along rows, then along columns (Appendix D.6): as layers of a Transformer, and in place
of a ResNet's 3 x 3 convolutions.

Legend: B batch, C channels, N = h·w positions of the grid (h, w), D width.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.attention import Attention, AttentionPositions
from vitkit.models.backbone import Grid
from vitkit.models.block import Block
from vitkit.models.config import ViTConfig
from vitkit.models.positions import Offsets

HEADS = 8  # of a mixer in a ResNet; the paper does not say how many


class AxialBlock(nn.Module):
    """A layer of Axial-ViT: a Block whose tokens see their row only, then another, for columns."""

    def __init__(self, config: ViTConfig, stochastic_depth: float):
        super().__init__()
        self.row = Block(config, stochastic_depth)
        self.column = Block(config, stochastic_depth)

    def forward(
        self,
        x: Tensor,
        grid: Grid,
        positions: AttentionPositions | None = None,
        mask: Tensor | None = None,
        queries: int | None = None,
    ) -> Tensor:
        """(B, N, D), in raster order -> (B, N, D), or of the first `queries`.

        Positions within attention and masks are made for attention among all tokens: ViTConfig
        refuses the first. Raises ValueError for a mask.
        """
        assert positions is None, "ViTConfig refuses positions within axial attention"
        if mask is not None:
            raise ValueError("a mask is for attention among all tokens; axial attention takes none")
        x = self.row(x.unflatten(1, grid))  # (B, h, w, D)
        x = self.column(x.transpose(1, 2))  # (B, w, h, D)
        return x.transpose(1, 2).flatten(1, 2)[:, :queries]


class AxialMixer(nn.Module):
    """What a 3 x 3 convolution becomes in Axial-ResNet: rows, then columns.

    Each has the offsets of App. D.4 along its axis; a 2 x 2 mean makes the stride. There is no
    normalisation within, as the residual unit has its own.
    """

    def __init__(self, channels: int, stride: int, grid: Grid):
        super().__init__()
        height, width = grid
        self.stride = stride
        self.row = Attention(channels, HEADS)
        self.column = Attention(channels, HEADS)
        self.row_offsets = Offsets(width, channels // HEADS)
        self.column_offsets = Offsets(height, channels // HEADS)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C, h', w'), each side halved, rounded up, by a stride of 2."""
        x = self.row(x.permute(0, 2, 3, 1), self.row_offsets)  # (B, h, w, C)
        x = self.column(x.transpose(1, 2), self.column_offsets)  # (B, w, h, C)
        x = x.permute(0, 3, 2, 1)
        if self.stride == 2:
            x = halved(x)
        return x


def halved(x: Tensor) -> Tensor:
    """The mean of every 2 x 2 window; at an odd end, of what there is."""
    return F.avg_pool2d(x, 2, 2, ceil_mode=True)
