"""Position embeddings: where a patch is (Eq. 1, Appendix D.4), and the same table on another grid (Section 3.2).

Legend: B batch, T tokens, N = h·w patches, D width, (h, w) the grid of patches.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Grid = tuple[int, int]

# How each origin of weights resamples a table; they differ by more than rounding.
RESAMPLE = {
    "google": {"mode": "bilinear", "align_corners": True},  # scipy.ndimage.zoom(order=1): the official code
    "timm": {"mode": "bicubic", "antialias": True},
    "huggingface": {"mode": "bicubic"},
    "torchvision": {"mode": "bicubic", "align_corners": True},
}


def resample(table: Tensor, old: Grid, new: Grid, method: str = "google") -> Tensor:
    """A position table on another grid: (1, prefix + h·w, D) -> (1, prefix + h'·w', D).

    Rows before the patches (class token, registers) stay as they are; the patches' rows are interpolated in two
    dimensions "according to their location in the original image" (Section 3.2), in float64 where there is one.
    """
    if method not in RESAMPLE:
        raise ValueError(f"no resampling method {method!r}; there are {', '.join(RESAMPLE)}")
    prefix = table.shape[1] - old[0] * old[1] if table.ndim == 3 else -1
    if prefix < 0:
        raise ValueError(f"a table of shape {tuple(table.shape)} cannot hold a grid of {old[0]} x {old[1]} patches")
    if old == new:
        return table
    exact = torch.float32 if table.device.type == "mps" else torch.float64  # which Apple's GPUs do not have
    image = table[:, prefix:].to(exact).unflatten(1, old).permute(0, 3, 1, 2)  # (1, D, h, w)
    image = F.interpolate(image, size=new, **RESAMPLE[method])
    return torch.cat([table[:, :prefix], image.permute(0, 2, 3, 1).flatten(1, 2).to(table.dtype)], 1)


def sincos(grid: Grid, width: int, temperature: float = 10_000.0) -> Tensor:
    """Fixed 2-D positions as big_vision makes them: (h, w) -> (1, h·w, D), sines and cosines of x, then of y."""
    quarter = width // 4
    omega = temperature ** -(torch.arange(quarter, dtype=torch.float64) / max(quarter - 1, 1))
    y, x = torch.meshgrid(*(torch.arange(side, dtype=torch.float64) for side in grid), indexing="ij")
    angles = [place.flatten()[:, None] * omega for place in (x, y)]
    return torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], 1).float()[None]


class SinCosPositions(nn.Module):
    """Fixed 2-D positions (big_vision; App. D.4 has learned ones only): no parameters, any grid; none for the prefix."""

    def __init__(self, grid: Grid, prefix: int, rows: int, width: int, method: str):
        super().__init__()
        self.prefix, self.width = prefix, width
        self._cache: dict[tuple, Tensor] = {}

    def forward(self, grid: Grid, device: torch.device | None = None) -> Tensor:
        """-> (1, T, D) for this grid, on a device."""
        key = (grid, device)
        if key not in self._cache or torch.compiler.is_compiling():
            table = F.pad(sincos(grid, self.width), (0, 0, self.prefix, 0)).to(device)
            if torch.compiler.is_compiling():
                return table
            self._cache[key] = table
        return self._cache[key]


class LearnedPositions(nn.Module):
    """One learned vector a token, in raster order, the class token's first: E_pos of Eq. 1.

    Of the `prefix` tokens before the patches the first `rows` have one.
    """

    def __init__(self, grid: Grid, prefix: int, rows: int, width: int, method: str):
        super().__init__()
        self.grid, self.rows, self.bare, self.method = grid, rows, prefix - rows, method
        self.table = nn.Parameter(torch.empty(1, rows + grid[0] * grid[1], width))
        self._cache: dict[tuple, Tensor] = {}

    def forward(self, grid: Grid, device: torch.device | None = None) -> Tensor:
        """-> (1, T, D) for this grid. Another grid than the table's own is resampled, once per grid outside training."""
        table = self._on(grid)
        if not self.bare:
            return table
        bare = table.new_zeros(1, self.bare, table.shape[-1])
        return torch.cat([table[:, : self.rows], bare, table[:, self.rows :]], 1)

    def _on(self, grid: Grid) -> Tensor:
        """-> (1, rows + h·w, D)."""
        if torch.is_grad_enabled() and self._cache:  # an update may follow; a fused one leaves no trace on the table
            self._cache.clear()
        if grid == self.grid:
            return self.table
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return resample(self.table, self.grid, grid, self.method)
        key = (grid, self.table.data_ptr(), self.table._version)  # a changed table is another table
        if key not in self._cache:
            self._cache = {k: t for k, t in self._cache.items() if k[1:] == key[1:]}
            self._cache[key] = resample(self.table, self.grid, grid, self.method)
        return self._cache[key]

    def init_weights(self) -> None:
        nn.init.normal_(self.table, std=0.02)


POSITIONS = {"learned": LearnedPositions, "sincos": SinCosPositions}
