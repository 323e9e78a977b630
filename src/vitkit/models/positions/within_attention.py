"""Positions that act on queries and keys within attention, rather than being added to tokens:
rotary ones, and the relative ones of Appendix D.4.

Each has `in_attention`: from a grid to a function of q and k that attention calls.

Legend: B batch, T tokens, N = h·w patches, H heads, D_h width of a head, (h, w) the grid.
"""

from math import pi

import torch
from torch import Tensor, nn

from vitkit.models.attention import AttentionPositions
from vitkit.models.config import ViTConfig
from vitkit.models.positions.resampling import resample_axis
from vitkit.models.resnets.backbone import Grid


class RotaryPositions(nn.Module):
    """Rotates queries and keys by angles that grow with x and with y, so that their products depend
    on the offset between two patches (RoPE, in 2-D).

    Half of a head's pairs rotate with x, half with y, at frequencies 100^(-i / (D_h / 4)): from 1
    down to a little above 1 / 100. Tokens before the patches are not rotated. There are two kinds:

    - "rotary" (RoPE-ViT's axial form): x first; coordinates 0, 1, 2, ... The patches of another grid
      are spread over the extent of the grid that the model was trained on, corner to corner.
    - "rotary-dinov3": y first; on every grid the centres of patches lie between -2 pi and 2 pi.
      DINOv3 scales them at random while it trains, which is not done here.
    """

    def __init__(self, config: ViTConfig, temperature: float = 100.0):
        super().__init__()
        self.kind = config.positions
        self.trained_grid = config.position_grid or config.grid
        self.prefix = config.prefix
        self.temperature = temperature

    def in_attention(self, grid: Grid) -> AttentionPositions:
        """A function that rotates q and k, (B, H, T, D_h) each, and adds no bias."""

        def rotate(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, None]:
            angles = self.angles(grid, q.shape[-1], q.device)
            return self.rotated(q, angles), self.rotated(k, angles), None

        return rotate

    def angles(self, grid: Grid, head_width: int, device: torch.device) -> Tensor:
        """The angle of every pair of a head, at every patch: (N, D_h / 2)."""
        quarter = head_width // 4  # pairs that rotate with x, and as many with y
        omega = self.temperature ** -(torch.arange(quarter, device=device) / quarter)  # (D_h / 4,)
        rows, columns = grid
        if self.kind == "rotary-dinov3":
            y = centres(rows, device)
            x = centres(columns, device)
        else:
            y = coordinates(rows, self.trained_grid[0], device)
            x = coordinates(columns, self.trained_grid[1], device)
        y = y[:, None].expand(-1, columns)  # (h, w)
        x = x[None].expand(rows, -1)  # (h, w)
        axes = [x, y]
        if self.kind == "rotary-dinov3":
            axes = [y, x]
        angles = [axis.flatten()[:, None] * omega for axis in axes]  # (N, D_h / 4) each
        return torch.cat(angles, 1)

    def rotated(self, x: Tensor, angles: Tensor) -> Tensor:
        """q or k, (B, H, T, D_h) -> the same shape; the i-th pair is elements i and i + D_h / 2."""
        cos = angles.cos().to(x.dtype)
        sin = angles.sin().to(x.dtype)
        prefix = x[..., : self.prefix, :]
        a, b = x[..., self.prefix :, :].chunk(2, -1)  # (B, H, N, D_h / 2) each
        patches = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
        return torch.cat([prefix, patches], -2)


def coordinates(side: int, trained: int, device: torch.device) -> Tensor:
    """`side` coordinates, evenly from 0 to trained - 1: in training, patches were 0, 1, 2, ..."""
    return torch.arange(side, device=device) * ((trained - 1) / max(side - 1, 1))


def centres(side: int, device: torch.device) -> Tensor:
    """The centres of `side` patches on an axis from -2 pi to 2 pi, as in DINOv3."""
    parts = (torch.arange(side, device=device) + 0.5) / side  # from 0 to 1
    return 2 * pi * (2 * parts - 1)


class Offsets(nn.Module):
    """Relative positions in a sequence (App. D.4): a learned vector for each of the 2T - 1 offsets,
    query minus key, whose product with the query is added to the logit.

    The paper does not say more. Our choice: all heads share the vectors, which are scaled as keys
    are, and for a sequence of another length they are spread over the same extent.
    """

    def __init__(self, length: int, head_width: int):
        super().__init__()
        self.table = nn.Parameter(torch.empty(1, 2 * length - 1, head_width))

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As AttentionPositions: q and k, (B, H, T, D_h) each, unchanged, and the bias."""
        return q, k, self.bias(q)

    def bias(self, q: Tensor) -> Tensor:
        """What is added to the logits of these queries: (B, H, T, D_h) -> (B, H, T, T)."""
        tokens = q.shape[-2]
        table = resample_axis(self.table, 2 * tokens - 1, "google")[0].to(q.dtype)  # (2T - 1, D_h)
        index = torch.arange(tokens, device=q.device)
        offset = index[:, None] - index  # (T, T)  from 1 - T to T - 1
        vectors = table[offset + tokens - 1]  # (T, T, D_h)
        scaled = q * q.shape[-1] ** -0.5
        return torch.einsum("bhqe,qte->bhqt", scaled, vectors)

    def resampled(self, old: "Offsets") -> dict[str, Tensor]:
        """The table of `old`, which was made for another length, on this one's: (1, 2T - 1, D_h)."""
        return {"table": resample_axis(old.table, self.table.shape[1], "google")}

    def init_weights(self) -> None:
        """Normal, as the other learned positions."""
        nn.init.normal_(self.table, std=0.02)


class RelativePositions(nn.Module):
    """Offsets in the sequence of tokens. The paper does not say what order that is; our choice is
    that of Eq. 1, the class token first, then patches in raster order."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.grid = config.grid
        tokens = config.prefix + config.grid[0] * config.grid[1]
        self.offsets = Offsets(tokens, config.width // config.heads)

    def in_attention(self, grid: Grid) -> AttentionPositions:
        """The offsets' bias. Raises ValueError on another grid than its own."""
        check_raster_order("relative", self.grid, grid)
        return self.offsets


def check_raster_order(kind: str, own: Grid, grid: Grid) -> None:
    """Raise ValueError for positions in raster order on another grid than their own."""
    if grid != own:
        raise ValueError(
            f"{kind} positions of {own[0]} x {own[1]} patches have no meaning on "
            f"{grid[0]} x {grid[1]}: in raster order an offset is another direction there; use "
            "images of the size that the model was made for"
        )
