"""Position embeddings: where a patch is (Eq. 1, Appendix D.4), on any grid (Section 3.2).

The kinds in this file are added to tokens, once at the stem (the paper) or at every block: each has
`add`. Those in attention_positions.py act on queries and keys: each has `in_attention` instead.

A kind with learned tables also has `resampled`: what its tables are on another grid. A model that
is fed images of another size, and one that `resized` made for them, then compute the same.

To add a kind: a class here, its name in POSITIONS below, and what it asks of a configuration in
position_kinds.py.

Legend: B batch, T tokens, N = h·w patches, D width, (h, w) the grid, "prefix" the tokens before the
patches: the class token and registers.
"""

import torch
from torch import Tensor, nn

from vitkit.models.config import ViTConfig
from vitkit.models.positions.resampling import exact_dtype, resample, resample_axis
from vitkit.models.positions.within_attention import (
    RelativePositions,
    RotaryPositions,
    check_raster_order,
)
from vitkit.models.resnets.backbone import Grid


class NoPositions(nn.Module):
    """No positions (App. D.4): the patches are a set, whose order means nothing."""

    def __init__(self, config: ViTConfig):
        super().__init__()

    def add(self, z: Tensor, grid: Grid) -> Tensor:
        """(B, T, D) -> (B, T, D), unchanged."""
        return z


class LearnedPositions(nn.Module):
    """E_pos of Eq. 1: one learned vector a token, in raster order, the class token's first.

    Some models have registers, or a class token, without a position: the table has no rows for
    them, and zeros are added to them.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.grid = config.grid
        self.method = config.resample
        self.prefix_rows = config.prefix_rows
        self.prefix_tokens = config.prefix
        rows = self.prefix_rows + self.grid[0] * self.grid[1]
        self.table = nn.Parameter(torch.empty(1, rows, config.width))

    def add(self, z: Tensor, grid: Grid) -> Tensor:
        """(B, T, D) -> (B, T, D); for another grid than its own the table is resampled."""
        table = resample(self.table, self.grid, grid, self.method)  # (1, prefix_rows + N, D)
        return z + insert_zeros(table, self.prefix_rows, self.prefix_tokens)  # E_pos of Eq. 1

    def resampled(self, old: "LearnedPositions") -> dict[str, Tensor]:
        """The table of `old`, which was made for another grid, on this one's: (1, prefix_rows + N,
        D)."""
        return {"table": resample(old.table, old.grid, self.grid, self.method)}

    def init_weights(self) -> None:
        """Normal, of the official standard deviation."""
        nn.init.normal_(self.table, std=0.02)


class LearnedPositions2D(nn.Module):
    """A learned vector of D/2 for every column, and one for every row; a patch has both, its
    column's first (App. D.4).

    Tokens before the patches have a whole vector of their own. Each axis is resampled alone.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        rows, columns = config.grid
        self.method = config.resample
        self.prefix_rows = config.prefix_rows
        self.prefix_tokens = config.prefix
        self.down = nn.Parameter(torch.empty(1, rows, config.width // 2))
        self.across = nn.Parameter(torch.empty(1, columns, config.width // 2))
        self.prefix = None
        if self.prefix_rows:
            self.prefix = nn.Parameter(torch.empty(1, self.prefix_rows, config.width))

    def add(self, z: Tensor, grid: Grid) -> Tensor:
        """(B, T, D) -> (B, T, D), on any grid."""
        return z + self.full_table(grid)

    def full_table(self, grid: Grid) -> Tensor:
        """The positions of all tokens of a grid, (1, T, D)."""
        rows, columns = grid
        down = resample_axis(self.down, rows, self.method)  # (1, h, D/2)
        down = down[:, :, None].expand(-1, -1, columns, -1)  # (1, h, w, D/2)
        across = resample_axis(self.across, columns, self.method)  # (1, w, D/2)
        across = across[:, None].expand(-1, rows, -1, -1)  # (1, h, w, D/2)

        table = torch.cat([across, down], -1).flatten(1, 2)  # (1, N, D)
        if self.prefix is not None:
            table = torch.cat([self.prefix, table], 1)  # (1, prefix_rows + N, D)
        return insert_zeros(table, self.prefix_rows, self.prefix_tokens)

    def resampled(self, old: "LearnedPositions2D") -> dict[str, Tensor]:
        """The tables of `old`, which was made for another grid, on this one's: (1, h, D/2) and
        (1, w, D/2)."""
        return {
            "down": resample_axis(old.down, self.down.shape[1], self.method),
            "across": resample_axis(old.across, self.across.shape[1], self.method),
        }

    def init_weights(self) -> None:
        """Normal, as the other learned positions."""
        for table in self.parameters():
            nn.init.normal_(table, std=0.02)


class SinCosPositions(nn.Module):
    """Fixed sines and cosines of x and y, without parameters. The paper's are all learned; these
    are what MAE, MoCo v3 and big_vision use."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.kind = config.positions
        self.grid = config.grid
        self.width = config.width
        self.prefix_tokens = config.prefix
        self.stored_table: Tensor | None = None  # of the model's own grid, by store_table

    def add(self, z: Tensor, grid: Grid) -> Tensor:
        """(B, T, D) -> (B, T, D), on any grid."""
        if self.stored_table is not None and grid == self.grid:
            return z + self.stored_table.to(z)
        return z + self.full_table(grid, z.device).to(z.dtype)

    def full_table(self, grid: Grid, device: torch.device) -> Tensor:
        """The positions of all tokens of a grid, float32 (1, T, D)."""
        if self.kind == "sincos-1d":
            check_raster_order(self.kind, self.grid, grid)
            table = sincos_1d(grid[0] * grid[1], self.width, device=device)  # (1, N, D)
        else:
            table = sincos(grid, self.width, self.kind, device=device)  # (1, N, D)
        return insert_zeros(table, 0, self.prefix_tokens)  # tokens before the patches have no x, y

    def store_table(self, device: torch.device) -> None:
        """For inference: compute the table of the model's own grid once and for all."""
        self.stored_table = self.full_table(self.grid, device)


def sincos(
    grid: Grid,
    width: int,
    kind: str = "sincos",
    temperature: float = 10_000.0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Fixed 2-D positions, float32 (1, N, D): sines and cosines of one axis, then of the other.

    "sincos" is big_vision's: x first, frequencies from 1 down to 1 / temperature. "sincos-moco" is
    MoCo v3's: y first, and the lowest frequency is left out. "sincos-mae" is MAE's: as MoCo v3's,
    but x first.
    """
    # Frequencies: a quarter of D each for sin x, cos x, sin y, cos y.
    quarter = width // 4
    steps = quarter
    if kind == "sincos":
        steps = max(quarter - 1, 1)
    exact = exact_dtype(torch.device(device))
    omega = temperature ** -(torch.arange(quarter, dtype=exact, device=device) / steps)  # (D/4,)

    def waves(side: int) -> Tensor:
        """Sines and cosines of the coordinates of one axis: (side, D/2)."""
        angles = torch.arange(side, dtype=exact, device=device)[:, None] * omega  # (side, D/4)
        return torch.cat([angles.sin(), angles.cos()], 1)

    # The same waves of y for every column, and of x for every row: (h, w, D/2) each.
    rows, columns = grid
    y = waves(rows)[:, None].expand(-1, columns, -1)
    x = waves(columns)[None].expand(rows, -1, -1)
    axes = [x, y]
    if kind == "sincos-moco":
        axes = [y, x]
    table = torch.cat(axes, -1).flatten(0, 1)  # (N, D), in raster order
    return table.float()[None]


def sincos_1d(
    length: int, width: int, temperature: float = 10_000.0, device: torch.device | str = "cpu"
) -> Tensor:
    """Fixed positions in a sequence, float32 (1, T, D), as Vaswani et al. (2017) have them: element 2i
    is the sine of pos / temperature^(2i / D), and element 2i + 1 its cosine."""
    exact = exact_dtype(torch.device(device))
    omega = temperature ** -(
        torch.arange(0, width, 2, dtype=exact, device=device) / width
    )  # (D/2,)
    angles = torch.arange(length, dtype=exact, device=device)[:, None] * omega  # (T, D/2)
    table = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)  # (T, D)
    return table.float()[None]


def insert_zeros(table: Tensor, prefix_rows: int, prefix_tokens: int) -> Tensor:
    """A table with rows for all tokens: (1, prefix_rows + N, D) -> (1, prefix_tokens + N, D).

    The first `prefix_rows` tokens before the patches have a row; the others get zeros.
    """
    if prefix_rows == prefix_tokens:
        return table
    zeros = table.new_zeros(1, prefix_tokens - prefix_rows, table.shape[-1])
    return torch.cat([table[:, :prefix_rows], zeros, table[:, prefix_rows:]], 1)


POSITIONS: dict[str, type[nn.Module]] = {
    "none": NoPositions,
    "learned": LearnedPositions,
    "learned2d": LearnedPositions2D,
    "relative": RelativePositions,
    "sincos": SinCosPositions,
    "sincos-1d": SinCosPositions,
    "sincos-moco": SinCosPositions,
    "sincos-mae": SinCosPositions,
    "rotary": RotaryPositions,
    "rotary-dinov3": RotaryPositions,
}


def build_positions(config: ViTConfig) -> nn.Module | nn.ModuleList:
    """The positions of a model: one module, or a list of one for every block, each with its own
    table."""
    kind = POSITIONS[config.positions]
    if config.resolved_inject == "every":
        return nn.ModuleList(kind(config) for _ in range(config.depth))
    return kind(config)
