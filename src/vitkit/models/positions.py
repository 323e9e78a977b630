"""Position embeddings: where a patch is (Eq. 1, Appendix D.4), and the same table on another grid (Section 3.2).

Those that are added to tokens are modules (grid, device) -> (1, T, D); those that act within attention (queries, keys, grid)
-> the same two, and a bias of the logits.

Legend: B batch, T tokens, Q tokens that ask, N = h·w patches, D width, H heads, E width of a head, (h, w) the grid of patches.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.backbone import Grid
from vitkit.models.config import ViTConfig

# How each origin of weights resamples a table; they differ by more than rounding.
RESAMPLE = {
    "google": {
        "mode": "bilinear",
        "align_corners": True,
    },  # scipy.ndimage.zoom(order=1): the official code
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
        raise ValueError(
            f"a table of shape {tuple(table.shape)} cannot hold a grid of {old[0]} x {old[1]} patches"
        )
    if old == new:
        return table
    exact = (
        torch.float32 if table.device.type == "mps" else torch.float64
    )  # which Apple's GPUs do not have
    image = table[:, prefix:].to(exact).unflatten(1, old).permute(0, 3, 1, 2)  # (1, D, h, w)
    image = F.interpolate(image, size=new, **RESAMPLE[method])
    return torch.cat(
        [table[:, :prefix], image.permute(0, 2, 3, 1).flatten(1, 2).to(table.dtype)], 1
    )


def sincos(grid: Grid, width: int, form: str = "sincos", temperature: float = 10_000.0) -> Tensor:
    """Fixed 2-D positions: (h, w) -> (1, h·w, D), sines and cosines of one axis, then of the other.

    "sincos" is big_vision's: x first, frequencies from 1 down to 1 / temperature. "sincos-moco" is MoCo v3's: y first, and
    the lowest frequency is left out.
    """
    quarter = width // 4
    steps = max(quarter - 1, 1) if form == "sincos" else quarter
    omega = temperature ** -(torch.arange(quarter, dtype=torch.float64) / steps)
    y, x = torch.meshgrid(
        *(torch.arange(side, dtype=torch.float64) for side in grid), indexing="ij"
    )
    angles = [
        place.flatten()[:, None] * omega for place in ((x, y) if form == "sincos" else (y, x))
    ]
    return torch.cat(
        [wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], 1
    ).float()[None]


class SinCosPositions(nn.Module):
    """Fixed 2-D positions (App. D.4 has learned ones only): no parameters, any grid; none for the prefix."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.prefix, self.width, self.form = config.prefix, config.width, config.positions
        self._cache: dict[tuple, Tensor] = {}

    def forward(self, grid: Grid, device: torch.device | None = None) -> Tensor:
        """-> (1, T, D) for this grid, on a device."""
        key = (grid, device)
        if key not in self._cache or torch.compiler.is_compiling():
            table = F.pad(sincos(grid, self.width, self.form), (0, 0, self.prefix, 0)).to(device)
            if torch.compiler.is_compiling():
                return table
            self._cache[key] = table
        return self._cache[key]


class LearnedPositions(nn.Module):
    """One learned vector a token, in raster order, the class token's first: E_pos of Eq. 1.

    Of the `prefix` tokens before the patches the first `rows` have one.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.grid, self.rows, self.method = config.grid, config.position_rows, config.resample
        self.bare = config.prefix - self.rows
        self.table = nn.Parameter(
            torch.empty(1, self.rows + self.grid[0] * self.grid[1], config.width)
        )
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
        if (
            torch.is_grad_enabled() and self._cache
        ):  # an update may follow; a fused one leaves no trace on the table
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


class LearnedPositions2D(nn.Module):
    """A learned vector of D/2 for every column, and one for every row; a patch has both, x before y (App. D.4).

    Tokens before the patches have a whole vector of their own. Other grids resample each axis alone.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        half, rows = config.width // 2, config.position_rows
        self.bare, self.method = config.prefix - rows, config.resample
        self.down, self.across = (nn.Parameter(torch.empty(1, side, half)) for side in config.grid)
        self.prefix = nn.Parameter(torch.empty(1, rows, config.width)) if rows else None

    def forward(self, grid: Grid, device: torch.device | None = None) -> Tensor:
        """-> (1, T, D) for this grid."""
        down, across = (
            resample(table, (1, table.shape[1]), (1, side), self.method)
            for table, side in zip((self.down, self.across), grid, strict=True)
        )
        x, y = (
            across[:, None].expand(-1, grid[0], -1, -1),
            down[:, :, None].expand(-1, -1, grid[1], -1),
        )
        patches = torch.cat([x, y], -1).flatten(1, 2)  # raster order
        bare = patches.new_zeros(1, self.bare, patches.shape[-1])
        return torch.cat([*([] if self.prefix is None else [self.prefix]), bare, patches], 1)

    def init_weights(self) -> None:
        for table in self.parameters():
            nn.init.normal_(table, std=0.02)


class Offsets(nn.Module):
    """Relative positions of a sequence (App. D.4): a query's affinity to the offset from a key is added to their logit.

    One vector of a head's width for each of 2L - 1 offsets, query minus key, shared by all heads and scaled as the content
    is. Along an axis, other lengths stretch the offsets over the same extent.
    """

    def __init__(self, length: int, size: int):
        super().__init__()
        self.length = length
        self.table = nn.Parameter(torch.empty(1, 2 * length - 1, size))

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, H, Q, E), (B, H, T, E) -> both, and the bias (B, H, Q, T); the tokens that ask are the first Q of T."""
        asking, tokens = q.shape[-2], k.shape[-2]
        table = resample(self.table, (1, 2 * self.length - 1), (1, 2 * tokens - 1), "google")
        place = torch.arange(tokens, device=q.device)
        offsets = table[0].to(q.dtype)[place[:asking, None] - place + tokens - 1]  # (Q, T, E)
        return q, k, torch.einsum("bhqe,qte->bhqt", q * q.shape[-1] ** -0.5, offsets)

    def init_weights(self) -> None:
        nn.init.normal_(self.table, std=0.02)


class RelativePositions(nn.Module):
    """Offsets of the tokens' 1-D order, class token first, as the paper's 1-D relative attention (App. D.4)."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.grid = config.grid
        self.offsets = Offsets(
            config.prefix + config.grid[0] * config.grid[1], config.width // config.heads
        )

    def forward(self, q: Tensor, k: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """(B, H, Q, E), (B, H, T, E) -> both, and a bias (B, H, Q, T). Raises ValueError on another grid than its own."""
        if grid != self.grid:
            raise ValueError(
                f"relative positions of {self.grid[0]} x {self.grid[1]} patches have no meaning on {grid[0]} x {grid[1]}: in "
                "raster order an offset is another direction there; use images of the size that the model was made for"
            )
        return self.offsets(q, k)


class RotaryPositions(nn.Module):
    """Queries and keys turned by angles that grow with x and with y, so that products depend on offsets (RoPE, in 2-D).

    Half of a head's pairs turn with x, half with y, at frequencies from 1 down to 1 / 100 (RoPE-ViT's axial form). Tokens
    before the patches are not turned. Another grid is stretched over the extent of the model's own, corner to corner.
    """

    def __init__(self, config: ViTConfig, temperature: float = 100.0):
        super().__init__()
        self.grid, self.prefix, self.temperature = config.grid, config.prefix, temperature

    def forward(self, q: Tensor, k: Tensor, grid: Grid) -> tuple[Tensor, Tensor, None]:
        """(B, H, Q, E), (B, H, T, E) -> both, turned, and no bias."""
        angles = self.angles(grid, q.shape[-1], q.device)
        return self.turned(q, angles), self.turned(k, angles), None

    def angles(self, grid: Grid, size: int, device: torch.device) -> Tensor:
        """-> (N, E / 2), the angle of every pair of a head at every patch."""
        omega = self.temperature ** -(torch.arange(size // 4, device=device) / (size // 4))
        places = [
            torch.arange(new, device=device) * ((old - 1) / max(new - 1, 1))
            for old, new in zip(self.grid, grid, strict=True)
        ]
        y, x = torch.meshgrid(*places, indexing="ij")
        return torch.cat([place.flatten()[:, None] * omega for place in (x, y)], 1)

    def turned(self, x: Tensor, angles: Tensor) -> Tensor:
        """(B, H, T, E) -> the same; the i-th pair is elements i and i + E / 2."""
        if x.shape[-2] <= self.prefix:
            return x
        a, b = x[..., self.prefix :, :].chunk(2, -1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        return torch.cat(
            [x[..., : self.prefix, :], torch.cat([a * cos - b * sin, a * sin + b * cos], -1)], -2
        )


POSITIONS = {
    "learned": LearnedPositions,
    "learned2d": LearnedPositions2D,
    "relative": RelativePositions,
    "sincos": SinCosPositions,
    "sincos-moco": SinCosPositions,
    "rotary": RotaryPositions,
}


def positions(config: ViTConfig) -> nn.Module | None:
    """The positions of a model: one module, or one for every block where each has a table of its own."""
    if config.positions == "none":
        return None
    made = POSITIONS[config.positions]
    return (
        nn.ModuleList(made(config) for _ in range(config.depth))
        if config.injected == "every"
        else made(config)
    )
