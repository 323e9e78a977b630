"""Position embeddings: where a patch is (Eq. 1, Appendix D.4), on any grid (Section 3.2).

Every kind is a module with two methods, of which it needs one: `add` puts positions into tokens,
`within` gives what acts within attention. A kind that has tables also says, by `resampled`, what
they are on another grid: a model that is fed images of another size and one that was made for them
by `resized` compute the same.

To add a kind: a class here, its name in POSITIONS below, and what it asks of a configuration in
config.py (POSITION_KINDS).

Legend: B batch, T tokens, N = h·w patches, D width, H heads, E width of a head, (h, w) the grid.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.attention import AttentionPositions
from vitkit.models.backbone import Grid
from vitkit.models.config import ViTConfig

# How each origin of weights resamples a table; they differ by more than rounding.
RESAMPLE = {
    "google": {"mode": "bilinear", "align_corners": True},  # scipy.ndimage.zoom(order=1)
    "timm": {"mode": "bicubic", "antialias": True},
    "huggingface": {"mode": "bicubic"},
    "torchvision": {"mode": "bicubic", "align_corners": True},
}


def resample(table: Tensor, old: Grid, new: Grid, method: str = "google") -> Tensor:
    """A position table on another grid: (1, prefix + h·w, D) -> (1, prefix + h'·w', D).

    Rows before the patches (class token, registers) stay as they are; the patches' rows are
    interpolated in two dimensions, "according to their location in the original image" (Section
    3.2). Raises ValueError for an unknown method, or a table that cannot hold the old grid.
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
    image = table[:, prefix:].to(exact_dtype(table.device))
    image = image.unflatten(1, old).permute(0, 3, 1, 2)  # (1, D, h, w)
    image = F.interpolate(image, size=new, **RESAMPLE[method])
    patches = image.permute(0, 2, 3, 1).flatten(1, 2).to(table.dtype)  # (1, h'·w', D)
    return torch.cat([table[:, :prefix], patches], 1)


def exact_dtype(device: torch.device) -> torch.dtype:
    """float64 where the device has it; Apple's GPUs do not."""
    if device.type == "mps":
        return torch.float32
    return torch.float64


class NoPositions(nn.Module):
    """None at all: the patches are a set, and only the class token is told apart."""

    def __init__(self, config: ViTConfig | None = None):
        super().__init__()

    def add(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, T, D), as they are."""
        return x

    def within(self, grid: Grid) -> AttentionPositions | None:
        """Nothing acts within attention."""
        return None


class LearnedPositions(nn.Module):
    """One learned vector a token, in raster order, the class token's first: E_pos of Eq. 1.

    Of the tokens before the patches the first `rows` have one; the others, `bare`, have none.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.grid = config.grid
        self.method = config.resample
        self.rows = config.position_rows
        self.bare = config.prefix - config.position_rows
        patches = self.grid[0] * self.grid[1]
        self.table = nn.Parameter(torch.empty(1, self.rows + patches, config.width))

    def add(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, T, D) -> (B, T, D); the table is resampled for another grid than its own."""
        table = resample(self.table, self.grid, grid, self.method)
        return x + with_bare_rows(table, self.rows, self.bare)

    def within(self, grid: Grid) -> AttentionPositions | None:
        """Nothing acts within attention."""
        return None

    def resampled(self, old: "LearnedPositions") -> dict[str, Tensor]:
        """The tables of `old`, made for another grid, on this one's."""
        return {"table": resample(old.table, old.grid, self.grid, self.method)}

    def init_weights(self) -> None:
        nn.init.normal_(self.table, std=0.02)


class LearnedPositions2D(nn.Module):
    """A learned vector of D/2 for every column, and one for every row; a patch has both, x first
    (App. D.4).

    Tokens before the patches have a whole vector of their own. Each axis is resampled alone.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        height, width = config.grid
        self.method = config.resample
        self.rows = config.position_rows
        self.bare = config.prefix - config.position_rows
        self.down = nn.Parameter(torch.empty(1, height, config.width // 2))
        self.across = nn.Parameter(torch.empty(1, width, config.width // 2))
        self.prefix = None
        if self.rows:
            self.prefix = nn.Parameter(torch.empty(1, self.rows, config.width))

    def add(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, T, D) -> (B, T, D), on any grid."""
        return x + self.table(grid)

    def table(self, grid: Grid) -> Tensor:
        """The positions of all tokens of a grid, (1, T, D)."""
        down = along(self.down, grid[0], self.method)[:, :, None].expand(-1, -1, grid[1], -1)
        across = along(self.across, grid[1], self.method)[:, None].expand(-1, grid[0], -1, -1)
        table = torch.cat([across, down], -1).flatten(1, 2)  # (1, N, D) in raster order
        if self.prefix is not None:
            table = torch.cat([self.prefix, table], 1)
        return with_bare_rows(table, self.rows, self.bare)

    def within(self, grid: Grid) -> AttentionPositions | None:
        """Nothing acts within attention."""
        return None

    def resampled(self, old: "LearnedPositions2D") -> dict[str, Tensor]:
        """The tables of `old`, made for another grid, on this one's."""
        return {
            "down": along(old.down, self.down.shape[1], self.method),
            "across": along(old.across, self.across.shape[1], self.method),
        }

    def init_weights(self) -> None:
        for table in self.parameters():
            nn.init.normal_(table, std=0.02)


class SinCosPositions(nn.Module):
    """Fixed sines and cosines of x and y (App. D.4 has learned positions only): no parameters."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.form = config.positions
        self.grid = config.grid
        self.width = config.width
        self.bare = config.prefix
        self.prepared: Tensor | None = None  # by `prepare`: the table of the model's own grid

    def add(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, T, D) -> (B, T, D), on any grid; tokens before the patches have no position."""
        if self.prepared is not None and grid == self.grid:
            return x + self.prepared.to(x)
        return x + self.table(grid, x.device).to(x.dtype)

    def table(self, grid: Grid, device: torch.device) -> Tensor:
        """The positions of all tokens of a grid, float32 (1, T, D)."""
        patches = sincos(grid, self.width, self.form, device=device)
        return with_bare_rows(patches, 0, self.bare)

    def prepare(self, device: torch.device) -> None:
        """For inference: compute the table of the model's own grid once and for all."""
        self.prepared = self.table(self.grid, device)

    def within(self, grid: Grid) -> AttentionPositions | None:
        """Nothing acts within attention."""
        return None


def sincos(
    grid: Grid,
    width: int,
    form: str = "sincos",
    temperature: float = 10_000.0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Fixed 2-D positions: (h, w) -> float32 (1, h·w, D), sines and cosines of one axis, then of
    the other.

    "sincos" is big_vision's: x first, frequencies from 1 down to 1 / temperature. "sincos-moco" is
    MoCo v3's: y first, and the lowest frequency is left out.
    """
    quarter = width // 4
    steps = quarter
    if form == "sincos":
        steps = max(quarter - 1, 1)
    exact = exact_dtype(torch.device(device))
    omega = temperature ** -(torch.arange(quarter, dtype=exact, device=device) / steps)

    def waves(side: int) -> Tensor:
        """Of one axis: (side, D/2)."""
        angles = torch.arange(side, dtype=exact, device=device)[:, None] * omega
        return torch.cat([angles.sin(), angles.cos()], 1)

    height, across = grid
    y = waves(height)[:, None].expand(-1, across, -1)  # (h, w, D/2)
    x = waves(across)[None].expand(height, -1, -1)
    axes = [x, y] if form == "sincos" else [y, x]
    return torch.cat(axes, -1).flatten(0, 1).float()[None]


class RotaryPositions(nn.Module):
    """Queries and keys turned by angles that grow with x and with y, so that their products depend
    on offsets (RoPE, in 2-D).

    Half of a head's pairs turn with x, half with y, at frequencies from 1 down to 1 / 100
    (RoPE-ViT's axial form). Tokens before the patches are not turned. Another grid is stretched
    over the extent of the one that the model was trained on, corner to corner.
    """

    def __init__(self, config: ViTConfig, temperature: float = 100.0):
        super().__init__()
        self.trained_grid = config.position_grid or config.grid
        self.prefix = config.prefix
        self.temperature = temperature

    def add(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, T, D), as they are."""
        return x

    def within(self, grid: Grid) -> AttentionPositions | None:
        """Turns queries and keys (B, H, T, E), and adds no bias."""

        def turn(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, None]:
            angles = self.angles(grid, q.shape[-1], q.device)
            return self.turned(q, angles), self.turned(k, angles), None

        return turn

    def angles(self, grid: Grid, size: int, device: torch.device) -> Tensor:
        """The angle of every pair of a head at every patch: (N, E / 2)."""
        pairs = torch.arange(size // 4, device=device)
        omega = self.temperature ** -(pairs / (size // 4))
        y = stretched(grid[0], self.trained_grid[0], device)[:, None].expand(-1, grid[1])  # (h, w)
        x = stretched(grid[1], self.trained_grid[1], device)[None].expand(grid[0], -1)
        return torch.cat([x.flatten()[:, None] * omega, y.flatten()[:, None] * omega], 1)

    def turned(self, x: Tensor, angles: Tensor) -> Tensor:
        """(B, H, T, E) -> the same; the i-th pair is elements i and i + E / 2."""
        if x.shape[-2] <= self.prefix:
            return x
        cos = angles.cos().to(x.dtype)
        sin = angles.sin().to(x.dtype)
        prefix = x[..., : self.prefix, :]
        a, b = x[..., self.prefix :, :].chunk(2, -1)
        patches = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
        return torch.cat([prefix, patches], -2)


def stretched(side: int, trained: int, device: torch.device) -> Tensor:
    """`side` coordinates, (side,), over the extent of `trained` patches: from 0 to trained - 1."""
    return torch.arange(side, device=device) * ((trained - 1) / max(side - 1, 1))


class Offsets(nn.Module):
    """Relative positions of a sequence (App. D.4): a query's affinity to the offset from a key is
    added to their logit.

    One vector of a head's width for each of 2L - 1 offsets, query minus key, shared by all heads
    and scaled as the content is. Other lengths stretch the offsets over the same extent.
    """

    def __init__(self, length: int, size: int):
        super().__init__()
        self.length = length
        self.table = nn.Parameter(torch.empty(1, 2 * length - 1, size))

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, H, T, E) twice -> both, and the bias of their logits, (B, H, T, T)."""
        tokens = k.shape[-2]
        table = along(self.table, 2 * tokens - 1, "google")[0].to(q.dtype)  # (2T - 1, E)
        index = torch.arange(tokens, device=q.device)
        offsets = table[index[:, None] - index + tokens - 1]  # (T, T, E)
        scaled = q * q.shape[-1] ** -0.5
        return q, k, torch.einsum("bhqe,qte->bhqt", scaled, offsets)

    def resampled(self, old: "Offsets") -> dict[str, Tensor]:
        """The table of `old`, made for another length, on this one's."""
        return {"table": along(old.table, self.table.shape[1], "google")}

    def init_weights(self) -> None:
        nn.init.normal_(self.table, std=0.02)


class RelativePositions(nn.Module):
    """Offsets of the tokens' 1-D order, class token first: the paper's 1-D relative attention."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.grid = config.grid
        tokens = config.prefix + config.grid[0] * config.grid[1]
        self.offsets = Offsets(tokens, config.width // config.heads)

    def add(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, T, D), as they are."""
        return x

    def within(self, grid: Grid) -> AttentionPositions | None:
        """The offsets' bias. Raises ValueError on another grid than its own."""
        if grid != self.grid:
            raise ValueError(
                f"relative positions of {self.grid[0]} x {self.grid[1]} patches have no meaning on "
                f"{grid[0]} x {grid[1]}: in raster order an offset is another direction there; use "
                "images of the size that the model was made for"
            )
        return self.offsets


def along(table: Tensor, length: int, method: str) -> Tensor:
    """A table of one axis, (1, n, size), resampled to another length."""
    return resample(table, (1, table.shape[1]), (1, length), method)


def with_bare_rows(table: Tensor, rows: int, bare: int) -> Tensor:
    """A table with rows of zeros for the `bare` tokens, without a position, after the first."""
    if bare == 0:
        return table
    zeros = table.new_zeros(1, bare, table.shape[-1])
    return torch.cat([table[:, :rows], zeros, table[:, rows:]], 1)


NO_POSITIONS = NoPositions()  # has no state, so one is enough
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
    """The positions of a model: one module, or one for every block, each with its own table."""
    kind = POSITIONS[config.positions]
    if config.injected == "every":
        return nn.ModuleList(kind(config) for _ in range(config.depth))
    return kind(config)
