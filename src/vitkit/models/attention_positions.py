"""Positions that act on queries and keys within attention, rather than being added to tokens:
rotary ones, and the relative ones of Appendix D.4.

Legend: B batch, T tokens, N = h·w patches, D width, H heads, E width of a head, (h, w) the grid.
"""

import torch
from torch import Tensor, nn

from vitkit.models.attention import AttentionPositions
from vitkit.models.backbone import Grid
from vitkit.models.config import ViTConfig
from vitkit.models.resampling import resample_axis


class RotaryPositions(nn.Module):
    """Rotates queries and keys by angles that grow with x and with y, so that their products depend
    on the offset between two patches (RoPE, in 2-D).

    Half of a head's pairs rotate with x, half with y, at frequencies from 1 down to 1 / 100
    (RoPE-ViT's axial form). Tokens before the patches are not rotated. The patches of another grid
    are spread over the extent of the grid that the model was trained on, corner to corner.
    """

    def __init__(self, config: ViTConfig, temperature: float = 100.0):
        super().__init__()
        self.trained_grid = config.position_grid or config.grid
        self.prefix = config.prefix
        self.temperature = temperature

    def add(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, T, D), unchanged."""
        return x

    def in_attention(self, grid: Grid) -> AttentionPositions:
        """Rotates q and k, each (B, H, T, E), and adds no bias."""

        def rotate(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, None]:
            angles = self.angles(grid, q.shape[-1], q.device)
            return self.rotated(q, angles), self.rotated(k, angles), None

        return rotate

    def angles(self, grid: Grid, size: int, device: torch.device) -> Tensor:
        """The angle of every pair of a head of width `size` = E, at every patch: (N, E / 2)."""
        pairs = torch.arange(size // 4, device=device)
        omega = self.temperature ** -(pairs / (size // 4))  # (E / 4,)
        rows, columns = grid
        y = coordinates(rows, self.trained_grid[0], device)[:, None].expand(-1, columns)  # (h, w)
        x = coordinates(columns, self.trained_grid[1], device)[None].expand(rows, -1)  # (h, w)
        x_angles = x.flatten()[:, None] * omega  # (N, E / 4)
        y_angles = y.flatten()[:, None] * omega
        return torch.cat([x_angles, y_angles], 1)

    def rotated(self, x: Tensor, angles: Tensor) -> Tensor:
        """(B, H, T, E) -> the same; the i-th pair is elements i and i + E / 2."""
        if x.shape[-2] <= self.prefix:
            return x
        cos = angles.cos().to(x.dtype)
        sin = angles.sin().to(x.dtype)
        prefix = x[..., : self.prefix, :]
        a, b = x[..., self.prefix :, :].chunk(2, -1)  # (B, H, N, E / 2) each
        patches = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
        return torch.cat([prefix, patches], -2)


def coordinates(side: int, trained: int, device: torch.device) -> Tensor:
    """`side` coordinates, evenly from 0 to trained - 1, of which the training had one a patch."""
    return torch.arange(side, device=device) * ((trained - 1) / max(side - 1, 1))


class Offsets(nn.Module):
    """Relative positions in a sequence (App. D.4): a learned vector for each of the 2T - 1 offsets,
    query minus key, whose product with the query is added to the logit.

    Vectors are as wide as a head, shared by all heads, and scaled as keys are. For a sequence of
    another length they are spread over the same extent.
    """

    def __init__(self, length: int, size: int):
        super().__init__()
        self.table = nn.Parameter(torch.empty(1, 2 * length - 1, size))

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As attention asks for it: q and k, (B, H, T, E) each, unchanged, and the bias."""
        return q, k, self.bias(q)

    def bias(self, q: Tensor) -> Tensor:
        """What is added to the logits of these queries: (B, H, T, E) -> (B, H, T, T)."""
        tokens = q.shape[-2]
        table = resample_axis(self.table, 2 * tokens - 1, "google")[0].to(q.dtype)  # (2T - 1, E)
        index = torch.arange(tokens, device=q.device)
        offset = index[:, None] - index  # (T, T)  from 1 - T to T - 1
        vectors = table[offset + tokens - 1]  # (T, T, E)
        scaled = q * q.shape[-1] ** -0.5
        return torch.einsum("bhqe,qte->bhqt", scaled, vectors)

    def resampled(self, old: "Offsets") -> dict[str, Tensor]:
        """The table of `old`, which was made for another length, on this one's."""
        return {"table": resample_axis(old.table, self.table.shape[1], "google")}

    def init_weights(self) -> None:
        """Normal, as the other learned positions."""
        nn.init.normal_(self.table, std=0.02)


class RelativePositions(nn.Module):
    """Offsets of the tokens' 1-D order, class token first: the paper's 1-D relative attention."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.grid = config.grid
        tokens = config.prefix + config.grid[0] * config.grid[1]
        self.offsets = Offsets(tokens, config.width // config.heads)

    def add(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, T, D), unchanged."""
        return x

    def in_attention(self, grid: Grid) -> AttentionPositions:
        """The offsets' bias. Raises ValueError on another grid than its own."""
        if grid != self.grid:
            raise ValueError(
                f"relative positions of {self.grid[0]} x {self.grid[1]} patches have no meaning on "
                f"{grid[0]} x {grid[1]}: in raster order an offset is another direction there; use "
                "images of the size that the model was made for"
            )
        return self.offsets
