"""Position embeddings: where a patch is (Eq. 1, Appendix D.4), on any grid (Section 3.2).

There are two sorts. Those in this file are added to tokens, once at the stem (the paper) or at
every block. Those in attention_positions.py act on queries and keys within attention.

A kind with learned tables also has `resampled`: what its tables are on another grid. A model that
is fed images of another size, and one that `resized` made for them, then compute the same.

To add a kind: a class here, its name in POSITIONS below, and what it asks of a configuration in
position_kinds.py.

Legend: B batch, T tokens, N = h·w patches, D width, (h, w) the grid.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from vitkit.models.attention import AttentionPositions
from vitkit.models.attention_positions import RelativePositions, RotaryPositions
from vitkit.models.backbone import Grid
from vitkit.models.config import ViTConfig
from vitkit.models.resampling import exact_dtype, resample, resample_axis


class Positions(Protocol):
    """What every kind can do. Each needs one of the two methods; the other one does nothing."""

    def add(self, x: Tensor, grid: Grid) -> Tensor:
        """Tokens with positions added to them: (B, T, D) -> (B, T, D)."""

    def in_attention(self, grid: Grid) -> AttentionPositions | None:
        """What attention does to its queries and keys, or None for nothing."""


class NoPositions(nn.Module):
    """None at all: the patches are a set, and only the class token is told apart."""

    def __init__(self, config: ViTConfig | None = None):
        super().__init__()

    def add(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, T, D), unchanged."""
        return x

    def in_attention(self, grid: Grid) -> None:
        """Nothing."""
        return


class LearnedPositions(nn.Module):
    """E_pos of Eq. 1: one learned vector a token, in raster order, the class token's first.

    Some models have registers, or a class token, without a position: the table has no rows for
    them, and zeros are added to them.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.grid = config.grid
        self.method = config.resample
        self.with_position = config.prefix_with_position
        self.without_position = config.prefix_without_position
        rows = self.with_position + self.grid[0] * self.grid[1]
        self.table = nn.Parameter(torch.empty(1, rows, config.width))

    def add(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, T, D) -> (B, T, D); for another grid than its own the table is resampled."""
        table = resample(self.table, self.grid, grid, self.method)
        table = insert_zeros(table, self.with_position, self.without_position)  # (1, T, D)
        return x + table

    def in_attention(self, grid: Grid) -> None:
        """Nothing."""
        return

    def resampled(self, old: "LearnedPositions") -> dict[str, Tensor]:
        """The tables of `old`, which was made for another grid, on this one's."""
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
        height, width = config.grid
        self.method = config.resample
        self.with_position = config.prefix_with_position
        self.without_position = config.prefix_without_position
        self.down = nn.Parameter(torch.empty(1, height, config.width // 2))
        self.across = nn.Parameter(torch.empty(1, width, config.width // 2))
        self.prefix = None
        if self.with_position:
            self.prefix = nn.Parameter(torch.empty(1, self.with_position, config.width))

    def add(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, T, D) -> (B, T, D), on any grid."""
        return x + self.table(grid)

    def table(self, grid: Grid) -> Tensor:
        """The positions of all tokens of a grid, (1, T, D)."""
        height, width = grid
        # The row's vector at every column, and the column's at every row.
        down = resample_axis(self.down, height, self.method)  # (1, h, D/2)
        down = down[:, :, None].expand(-1, -1, width, -1)  # (1, h, w, D/2)
        across = resample_axis(self.across, width, self.method)  # (1, w, D/2)
        across = across[:, None].expand(-1, height, -1, -1)  # (1, h, w, D/2)

        table = torch.cat([across, down], -1).flatten(1, 2)  # (1, N, D)
        if self.prefix is not None:
            table = torch.cat([self.prefix, table], 1)
        return insert_zeros(table, self.with_position, self.without_position)

    def in_attention(self, grid: Grid) -> None:
        """Nothing."""
        return

    def resampled(self, old: "LearnedPositions2D") -> dict[str, Tensor]:
        """The tables of `old`, which was made for another grid, on this one's."""
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
        self.form = config.positions
        self.grid = config.grid
        self.width = config.width
        self.without_position = config.prefix  # tokens before the patches have no x and y
        self.stored_table: Tensor | None = None  # of the model's own grid, by store_table

    def add(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, T, D) -> (B, T, D), on any grid."""
        if self.stored_table is not None and grid == self.grid:
            return x + self.stored_table.to(x)
        return x + self.table(grid, x.device).to(x.dtype)

    def table(self, grid: Grid, device: torch.device) -> Tensor:
        """The positions of all tokens of a grid, float32 (1, T, D)."""
        patches = sincos(grid, self.width, self.form, device=device)  # (1, N, D)
        return insert_zeros(patches, 0, self.without_position)

    def store_table(self, device: torch.device) -> None:
        """For inference: compute the table of the model's own grid once and for all."""
        self.stored_table = self.table(self.grid, device)

    def in_attention(self, grid: Grid) -> None:
        """Nothing."""
        return


def sincos(
    grid: Grid,
    width: int,
    form: str = "sincos",
    temperature: float = 10_000.0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Fixed 2-D positions, float32 (1, N, D): sines and cosines of one axis, then of the other.

    "sincos" is big_vision's: x first, frequencies from 1 down to 1 / temperature. "sincos-moco" is
    MoCo v3's: y first, and the lowest frequency is left out.
    """
    # Frequencies: a quarter of D each for sin x, cos x, sin y, cos y.
    quarter = width // 4
    steps = quarter
    if form == "sincos":
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
    axes = [y, x]
    if form == "sincos":
        axes = [x, y]
    table = torch.cat(axes, -1).flatten(0, 1)  # (N, D), in raster order
    return table.float()[None]


def insert_zeros(table: Tensor, after: int, count: int) -> Tensor:
    """A table (1, n, D) with `count` rows of zeros after its first `after` rows: (1, n + count, D).

    These are for the tokens before the patches that have no position.
    """
    if count == 0:
        return table
    zeros = table.new_zeros(1, count, table.shape[-1])
    return torch.cat([table[:, :after], zeros, table[:, after:]], 1)


NO_POSITIONS = NoPositions()  # it has no state, so that all models can share one

POSITIONS: dict[str, type[nn.Module]] = {
    "none": NoPositions,
    "learned": LearnedPositions,
    "learned2d": LearnedPositions2D,
    "relative": RelativePositions,
    "sincos": SinCosPositions,
    "sincos-moco": SinCosPositions,
    "rotary": RotaryPositions,
}


def build_positions(config: ViTConfig) -> nn.Module:
    """The positions of a model: one module, or a list of one for every block, each with its own
    table."""
    kind = POSITIONS[config.positions]
    if config.resolved_inject == "every":
        return nn.ModuleList(kind(config) for _ in range(config.depth))
    return kind(config)
