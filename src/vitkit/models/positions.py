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


class LearnedPositions(nn.Module):
    """One learned vector a token, in raster order, the class token's first: E_pos of Eq. 1."""

    def __init__(self, grid: Grid, prefix: int, width: int, method: str):
        super().__init__()
        self.grid, self.method = grid, method
        self.table = nn.Parameter(torch.empty(1, prefix + grid[0] * grid[1], width))
        self._cache: dict[tuple, Tensor] = {}

    def forward(self, grid: Grid) -> Tensor:
        """-> (1, T, D) for this grid. Another grid than the table's own is resampled, once per grid outside training."""
        if (
            torch.is_grad_enabled() and self._cache
        ):  # an update may follow, and a fused one leaves no trace on the table
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
