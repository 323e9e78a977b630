"""Attention in the place of a ResNet's 3 x 3 convolutions, as tried before the paper: local, and beside a convolution.

Both take (B, C, h, w) to (B, C, h', w'), each side halved, rounded up, by a stride of 2.
Legend: B batch, C channels, H heads, E width of a head, N = h·w places, W side of the window.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.attention import fused
from vitkit.models.backbone import Grid
from vitkit.models.init import lecun_normal_
from vitkit.models.positions import Offsets

HEADS, WINDOW = 8, 7


def halved(x: Tensor) -> Tensor:
    """The mean of every 2 x 2 window; at an odd end, of what there is."""
    return F.avg_pool2d(x, 2, 2, ceil_mode=True)


class LocalMixer(nn.Module):
    """Stand-alone self-attention (Ramachandran et al. 2019): a place asks the 7 x 7 places around it.

    An offset has a vector for its row and one for its column, each half of a head, which the query meets as it does the key;
    nothing is scaled, as in their Eq. 3. Places outside the image do not exist. A 2 x 2 mean makes the stride.
    """

    def __init__(self, channels: int, stride: int):
        super().__init__()
        self.stride, half = stride, channels // HEADS // 2
        self.qkv = nn.Linear(channels, 3 * channels, bias=False)
        self.down, self.across = (nn.Parameter(torch.empty(1, WINDOW, half)) for _ in "yx")

    def forward(self, x: Tensor) -> Tensor:
        reach = WINDOW // 2
        q, k, v = (
            self.qkv(x.permute(0, 2, 3, 1)).unflatten(-1, (3, HEADS, -1)).unbind(3)
        )  # (B, h, w, H, E)
        k, v = (
            F.pad(t, (0, 0, 0, 0, reach, reach, reach, reach))
            .unfold(1, WINDOW, 1)
            .unfold(2, WINDOW, 1)
            for t in (k, v)
        )
        y, x_ = self.down[0, :, None].expand(-1, WINDOW, -1), self.across.expand(WINDOW, -1, -1)
        offsets = torch.cat([y, x_], -1).flatten(0, 1)  # (W·W, E)
        k, v = (t.flatten(-2).mT for t in (k, v))  # (B, h, w, H, W·W, E)
        logits = (q[..., None, :] @ (k + offsets).mT).squeeze(-2)  # (B, h, w, H, W·W)
        inside = (
            F.pad(x.new_ones(x.shape[-2:]), (reach,) * 4)
            .unfold(0, WINDOW, 1)
            .unfold(1, WINDOW, 1)
            .flatten(-2)
            > 0
        )
        weights = logits.masked_fill(~inside[:, :, None], -torch.inf).softmax(-1)
        mixed = (weights[..., None, :] @ v).flatten(-3).permute(0, 3, 1, 2)
        return halved(mixed) if self.stride == 2 else mixed

    def init_weights(self) -> None:
        lecun_normal_(self.qkv.weight)
        nn.init.normal_(self.down, std=0.02)
        nn.init.normal_(self.across, std=0.02)


class AugmentedMixer(nn.Module):
    """Attention-augmented convolution (Bello et al. 2019): some channels from a convolution, the others from attention.

    Of C channels C/8 come from 8 heads over all places, with keys of C/4 in all (they advise a tenth and a fifth); offsets
    along rows and along columns are added to the logits. With a stride the attention works on the 2 x 2 means.
    """

    def __init__(self, channels: int, stride: int, grid: Grid, conv: nn.Module):
        super().__init__()
        self.stride, self.keys, self.values = stride, *split(channels)
        sides = [-(-side // stride) for side in grid]
        self.conv = conv  # to channels - values
        self.qkv = nn.Linear(channels, 2 * self.keys + self.values, bias=False)
        self.out = nn.Linear(self.values, self.values, bias=False)
        self.down, self.across = (Offsets(side, self.keys // HEADS) for side in sides)

    def forward(self, x: Tensor) -> Tensor:
        y = (halved(x) if self.stride == 2 else x).permute(0, 2, 3, 1)
        q, k, v = (
            t.unflatten(-1, (HEADS, -1)).permute(0, 3, 1, 2, 4)  # (B, H, h, w, E)
            for t in self.qkv(y).split([self.keys, self.keys, self.values], -1)
        )
        mixed = fused(*(t.flatten(2, 3) for t in (q, k, v)), bias=self.bias(q))
        mixed = self.out(mixed.transpose(1, 2).flatten(2)).unflatten(1, y.shape[1:3])
        return torch.cat([self.conv(x), mixed.permute(0, 3, 1, 2)], 1)

    def bias(self, q: Tensor) -> Tensor:
        """(B, H, h, w, E) -> (B, H, N, N): affinity to the offset along the row, and to that along the column."""
        rows = q.flatten(1, 2)  # (B, H·h, w, E)
        columns = q.transpose(2, 3).flatten(1, 2)  # (B, H·w, h, E)
        across = self.across(rows, rows)[2].unflatten(1, q.shape[1:3])  # (B, H, h, w, w')
        down = (
            self.down(columns, columns)[2].unflatten(1, (q.shape[1], q.shape[3])).transpose(2, 3)
        )  # (B, H, h, w, h')
        return (across[..., None, :] + down[..., None]).flatten(4, 5).flatten(2, 3)

    def init_weights(self) -> None:
        lecun_normal_(self.qkv.weight)
        lecun_normal_(self.out.weight)


def split(channels: int) -> tuple[int, int]:
    """Of an attention-augmented convolution: channels of all keys, and of all values."""
    return channels // 4, channels // 8
