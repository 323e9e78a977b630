"""Attention along rows, then along columns (Appendix D.6): as layers of a Transformer, and in place of 3 x 3 convolutions.

Legend: B batch, C channels, N = h·w places, D width, (h, w) the grid.
"""

from torch import Tensor, nn

from vitkit.models.attention import Attention
from vitkit.models.backbone import Grid
from vitkit.models.block import Block
from vitkit.models.config import ViTConfig
from vitkit.models.mixers import HEADS, halved
from vitkit.models.positions import Offsets


class AxialBlock(nn.Module):
    """A layer of Axial-ViT: a Block whose tokens see their row only, then another, for their column."""

    def __init__(self, config: ViTConfig, stochastic_depth: float):
        super().__init__()
        self.row = Block(config, stochastic_depth)
        self.column = Block(config, stochastic_depth)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, N, D), in raster order -> (B, N, D)."""
        x = self.row(x.unflatten(1, grid))  # (B, h, w, D)
        x = self.column(x.transpose(1, 2))  # (B, w, h, D)
        return x.transpose(1, 2).flatten(1, 2)


class AxialMixer(nn.Module):
    """What a 3 x 3 convolution becomes in Axial-ResNet: (B, C, h, w) -> (B, C, h', w'), each side halved by a stride of 2.

    Rows, then columns, with 8 heads (the paper does not say how many), each with the offsets of App. D.4 along its axis; a
    2 x 2 mean makes the stride. No normalisation within, as the unit has its own.
    """

    def __init__(self, channels: int, stride: int, grid: Grid):
        super().__init__()
        self.stride = stride
        self.row, self.column = Attention(channels, HEADS), Attention(channels, HEADS)
        self.row_offsets, self.column_offsets = (
            Offsets(side, channels // HEADS) for side in reversed(grid)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.row(x.permute(0, 2, 3, 1), within=self.row_offsets)  # (B, h, w, C)
        x = self.column(x.transpose(1, 2), within=self.column_offsets)  # (B, w, h, C)
        x = x.permute(0, 3, 2, 1)
        return halved(x) if self.stride == 2 else x
