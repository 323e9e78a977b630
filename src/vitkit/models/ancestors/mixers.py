"""Attention in other places and shapes than the paper's: along rows, then along columns (Appendix D.6),
as layers of a Transformer (Axial-ViT) and for a ResNet's 3 x 3 convolutions (Axial-ResNet); and earlier
methods, local attention and attention beside a convolution.

A mixer maps (B, C, h, w) to (B, C, h', w'); with a stride of 2 each side is halved, rounded up.

Legend: B batch, C channels, H heads, D_h width of a head, D width, (h, w) the grid of patches or the
sides of a feature map, N = h·w number of patches or positions, Q number of queries (the first tokens),
W side of the window.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.attention import Attention, AttentionPositions, ScaledDotProduct
from vitkit.models.block import Block
from vitkit.models.config import ViTConfig
from vitkit.models.layers import lecun_normal_
from vitkit.models.positions import Offsets
from vitkit.models.tiling import Grid
from vitkit.system.errors import Unsupported

HEADS = 8  # of a mixer; the paper does not give the number
WINDOW = 7


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
        """(B, N, D), in raster order -> (B, Q, D), the first `queries` tokens, or all for None.

        Takes a Block's arguments, but raises VitkitError for a mask: masks, and positions that act within
        attention, are for attention among all tokens.
        """
        assert positions is None, "ViTConfig refuses positions within axial attention"
        if mask is not None:
            raise Unsupported(
                "a mask is for attention among all tokens; axial attention takes none"
            )
        z = z.unflatten(1, grid)  # (B, h, w, D)
        z = self.row(z)
        z = z.transpose(1, 2)  # (B, w, h, D)
        z = self.column(z)
        z = z.transpose(1, 2).flatten(1, 2)  # (B, N, D)
        return z[:, :queries]


class AxialMixer(nn.Module):
    """The replacement of a 3 x 3 convolution in Axial-ResNet: attention along rows, then along
    columns.

    Each has relative positions (App. D.4) along its axis. A stride of 2 is a 2 x 2 mean at the end.
    There is no norm here, because the residual unit around it has one.
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


class LocalMixer(nn.Module):
    """Stand-alone self-attention (Ramachandran et al. 2019): each position of the feature map attends to
    the 7 x 7 positions around it.

    An offset within the window has a vector for its row and one for its column, each half as wide as a
    head, which are added to the key; logits are not scaled, as in their Eq. 3. Positions outside of the
    image are masked. A stride of 2 is a 2 x 2 mean at the end.
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
        height, width = x.shape[-2:]
        qkv = self.qkv(x.permute(0, 2, 3, 1))  # (B, h, w, 3·C)
        q, k, v = qkv.unflatten(-1, (3, HEADS, -1)).unbind(3)  # (B, h, w, H, D_h) each
        k = windows(k)  # (B, h, w, H, W·W, D_h)
        v = windows(v)  # (B, h, w, H, W·W, D_h)

        # Every key of a window plus the vector of its offset
        logits = q[..., None, :] @ (k + self.offsets()).mT  # (B, h, w, H, 1, W·W)
        logits = logits.squeeze(-2)  # (B, h, w, H, W·W)

        # Positions outside of the image get no weight.
        inside = inside_windows(height, width, x.device)  # (h, w, W·W)
        weights = logits.masked_fill(~inside[:, :, None], -torch.inf).softmax(-1)

        mixed = weights[..., None, :] @ v  # (B, h, w, H, 1, D_h)
        mixed = mixed.flatten(-3).permute(0, 3, 1, 2)  # (B, C, h, w)
        if self.stride == 2:
            mixed = mean_2x2(mixed)
        return mixed

    def offsets(self) -> Tensor:
        """The vector of every offset within a window: (W·W, D_h)."""
        down = self.down[0, :, None].expand(-1, WINDOW, -1)  # (W, W, D_h/2)
        across = self.across.expand(WINDOW, -1, -1)  # (W, W, D_h/2)
        return torch.cat([down, across], -1).flatten(0, 1)

    def init_weights(self) -> None:
        """Initialise the projection by Flax's default, positions with a normal distribution."""
        lecun_normal_(self.qkv.weight)
        nn.init.normal_(self.down, std=0.02)
        nn.init.normal_(self.across, std=0.02)


def windows(x: Tensor) -> Tensor:
    """The 7 x 7 positions around every position, zeros outside: (B, h, w, H, D_h) -> (B, h, w, H, W·W, D_h)."""
    reach = WINDOW // 2
    x = F.pad(x, (0, 0, 0, 0, reach, reach, reach, reach))
    x = x.unfold(1, WINDOW, 1).unfold(2, WINDOW, 1)  # (B, h, w, H, E, W, W)
    return x.flatten(-2).mT


def inside_windows(height: int, width: int, device: torch.device) -> Tensor:
    """Whether each position of each window is inside the image: bool, (h, w, W·W).

    Cuts a map of ones, padded with zeros, into windows as keys are cut: 0 is outside.
    """
    ones = torch.ones(1, height, width, 1, 1, device=device)
    return windows(ones)[0, :, :, 0, :, 0] > 0


class AugmentedMixer(nn.Module):
    """Attention-augmented convolution (Bello et al. 2019): some channels come from a convolution, the
    others from attention to the whole feature map.

    Of C channels, C/8 come from attention, with 8 heads and C/4 channels of all keys (the paper recommends a
    tenth and a fifth). Position terms for offsets along rows and columns are added to the logits. With a
    stride of 2, attention uses 2 x 2 means.
    """

    def __init__(self, channels: int, stride: int, grid: Grid, conv: nn.Module):
        super().__init__()
        height = -(-grid[0] // stride)  # rounded up
        width = -(-grid[1] // stride)
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
            y = mean_2x2(y)
        attended = self.attention(y)  # (B, values, h', w')
        convolved = self.conv(x)  # (B, C - values, h', w')
        return torch.cat([convolved, attended], 1)

    def attention(self, x: Tensor) -> Tensor:
        """Attention of every position to all: (B, C, h, w) -> (B, values, h, w)."""
        grid = x.shape[-2:]
        qkv = self.qkv(x.permute(0, 2, 3, 1))
        q, k, v = qkv.split([self.keys, self.keys, self.values], -1)
        q = split_heads(q)  # (B, H, h, w, D_h)
        position_bias = self.position_bias(q)  # (B, H, N, N)
        q = q.flatten(2, 3)  # (B, H, N, D_h)
        k = split_heads(k).flatten(2, 3)
        v = split_heads(v).flatten(2, 3)
        y = self.attend(q, k, v, position_bias)  # (B, H, N, values / H)
        y = self.out(y.transpose(1, 2).flatten(2))  # (B, N, values)
        return y.unflatten(1, grid).permute(0, 3, 1, 2)

    def position_bias(self, q: Tensor) -> Tensor:
        """The bias for the offset along the row, plus that along the column.

        (B, H, h, w, D_h) -> (B, H, N, N)."""
        batch, _, height, width, _ = q.shape
        rows = q.flatten(1, 2)  # (B, H·h, w, D_h)  each row is a sequence
        columns = q.transpose(2, 3).flatten(1, 2)  # (B, H·w, h, D_h)
        across = self.across.bias(rows)  # (B, H·h, w, w)
        down = self.down.bias(columns)  # (B, H·w, h, h)

        # As (B, H, query's row, query's column, key's row, key's column)
        across = across.view(batch, HEADS, height, width, 1, width)
        down = down.view(batch, HEADS, width, height, height, 1).transpose(2, 3)
        return (across + down).flatten(4, 5).flatten(2, 3)

    def init_weights(self) -> None:
        """Initialise by Flax's default."""
        lecun_normal_(self.qkv.weight)
        lecun_normal_(self.out.weight)


def split_heads(x: Tensor) -> Tensor:
    """(B, h, w, H·D_h) -> (B, H, h, w, D_h)."""
    return x.unflatten(-1, (HEADS, -1)).permute(0, 3, 1, 2, 4)


def split_channels(channels: int) -> tuple[int, int]:
    """For an attention-augmented convolution: the channels of all keys and of all values."""
    return channels // 4, channels // 8


def mean_2x2(x: Tensor) -> Tensor:
    """The mean of every 2 x 2 window: (B, C, h, w) -> half of each side, rounded up. At an odd end the
    window is smaller."""
    return F.avg_pool2d(x, 2, 2, ceil_mode=True)
