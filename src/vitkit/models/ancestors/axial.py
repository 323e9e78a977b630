"""Axial attention, along rows, then along columns (Appendix D.6): as layers of a Transformer
(Axial-ViT), and in the place of a ResNet's 3 x 3 convolutions (Axial-ResNet).

Legend: B batch, C channels, (h, w) the grid, N = h·w its patches or positions, Q the first of them,
those that are computed, D width.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.attention import Attention, AttentionPositions
from vitkit.models.block import Block
from vitkit.models.config import ViTConfig
from vitkit.models.positions.within_attention import Offsets
from vitkit.models.resnets.backbone import Grid

HEADS = 8  # of a mixer in a ResNet; the paper does not say how many


class AxialBlock(nn.Module):
    """A layer of Axial-ViT: a Block whose tokens attend to their row, then one for their column."""

    def __init__(self, config: ViTConfig, drop_rate: float):
        super().__init__()
        self.row = Block(config, drop_rate)
        self.column = Block(config, drop_rate)

    def forward(
        self,
        z: Tensor,
        grid: Grid,
        positions: AttentionPositions | None = None,
        mask: Tensor | None = None,
        queries: int | None = None,
    ) -> Tensor:
        """(B, N, D), in raster order -> (B, Q, D), the first `queries` tokens, or all, if None.

        Its parameters are a Block's, but masks and positions that act within attention are made
        for attention among all tokens. Raises ValueError for a mask.
        """
        assert positions is None, "ViTConfig refuses positions within axial attention"
        if mask is not None:
            raise ValueError("a mask is for attention among all tokens; axial attention takes none")
        z = z.unflatten(1, grid)  # (B, h, w, D)
        z = self.row(z)
        z = z.transpose(1, 2)  # (B, w, h, D)
        z = self.column(z)
        z = z.transpose(1, 2).flatten(1, 2)  # (B, N, D)
        return z[:, :queries]


class AxialMixer(nn.Module):
    """What a 3 x 3 convolution becomes in Axial-ResNet: attention along rows, then along columns.

    Each has relative positions (App. D.4) along its axis. A stride of 2 is a 2 x 2 mean at the end.
    There is no norm here, as the residual unit around it has its own.
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
        x = x.permute(0, 2, 3, 1)  # (B, h, w, C)
        x = self.row(x, self.row_offsets)
        x = x.transpose(1, 2)  # (B, w, h, C)
        x = self.column(x, self.column_offsets)
        x = x.permute(0, 3, 2, 1)  # (B, C, h, w)
        if self.stride == 2:
            x = mean_2x2(x)
        return x


def mean_2x2(x: Tensor) -> Tensor:
    """The mean of every 2 x 2 window, at an odd end of what there is of it: (B, C, h, w) -> half of
    each side, rounded up."""
    return F.avg_pool2d(x, 2, 2, ceil_mode=True)
