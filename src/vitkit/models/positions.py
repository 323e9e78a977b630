"""Position embeddings of Eq. 1 and Appendix D.4, on any grid (Section 3.2).

Some kinds are added to tokens, once at the stem (the paper) or at every block: each has `add`. Others
change queries and keys within attention: each has `in_attention`, which returns a function of q and k
for a grid.

Kinds with learned tables also have `resampled`, their tables on another grid. A model that gets images
of another size then has the same results as one that `resized` made for that size.

To add a kind: a class here, its name in POSITIONS at the end and in ViTConfig.positions (config.py), and
its requirements in POSITION_KINDS (config_checks.py).

Legend: B batch, T tokens, N = h·w patches, D width, H heads, D_h width of a head, (h, w) the grid,
"prefix" the tokens before the patches: the class token and registers.
"""

from math import pi
from typing import Literal, NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.attention import AttentionPositions
from vitkit.models.config import ViTConfig
from vitkit.models.tiling import Grid
from vitkit.system.errors import BadSettings

# Added to tokens


class NoPositions(nn.Module):
    """No positions (App. D.4): the patches are a set without an order."""

    def __init__(self, config: ViTConfig):
        super().__init__()

    def add(self, z: Tensor, grid: Grid) -> Tensor:
        """(B, T, D) -> (B, T, D), unchanged."""
        return z


class LearnedPositions(nn.Module):
    """E_pos of Eq. 1: one learned vector per token, in raster order, the class token's first.

    Some models have registers, or a class token, without a position: zeros are added to them.
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
        """(B, T, D) -> (B, T, D); the table is resampled for other grids than its own."""
        table = resample(self.table, self.grid, grid, self.method)  # (1, prefix_rows + N, D)
        return z + insert_zeros(table, self.prefix_rows, self.prefix_tokens)  # E_pos of Eq. 1

    def resampled(self, old: "LearnedPositions") -> dict[str, Tensor]:
        """The table of `old`, made for another grid, resampled to this grid: (1, prefix_rows + N, D)."""
        return {"table": resample(old.table, old.grid, self.grid, self.method)}

    def init_weights(self) -> None:
        """Initialise with a normal distribution of the official standard deviation."""
        nn.init.normal_(self.table, std=0.02)


class LearnedPositions2D(nn.Module):
    """A learned vector of D/2 for every column and one for every row; a patch has both, its column's
    first (App. D.4).

    Tokens before the patches have a whole vector each. The axes are resampled separately.
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
        """The tables of `old`, made for another grid, resampled to this grid: (1, h, D/2) and (1, w, D/2)."""
        return {
            "down": resample_axis(old.down, self.down.shape[1], self.method),
            "across": resample_axis(old.across, self.across.shape[1], self.method),
        }

    def init_weights(self) -> None:
        """Initialise with a normal distribution, like the other learned positions."""
        for table in self.parameters():
            nn.init.normal_(table, std=0.02)


class SinCosPositions(nn.Module):
    """Fixed sines and cosines of x and y, without parameters, as in MAE, MoCo v3 and big_vision. The
    paper's positions are all learned."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.kind = config.positions
        self.grid = config.grid
        self.width = config.width
        self.prefix_tokens = config.prefix
        self.stored_table: Tensor | None = None  # for the model's own grid, set by store_table

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
        """Compute and keep the table of the model's own grid, for inference."""
        self.stored_table = self.full_table(self.grid, device)


TEMPERATURE = 10_000.0  # of fixed positions: the lowest frequency is about 1 / TEMPERATURE


def sincos(grid: Grid, width: int, kind: str, device: torch.device | str = "cpu") -> Tensor:
    """Fixed 2-D positions, float32 (1, N, D): sines and cosines of one axis, then of the other.

    "sincos" is big_vision's: x first, frequencies from 1 down to 1 / TEMPERATURE. "sincos-moco" is
    MoCo v3's: y first, without the lowest frequency. "sincos-mae" is MAE's: as MoCo v3's, but x first.
    """
    # Frequencies: a quarter of D each for sin x, cos x, sin y, cos y.
    quarter = width // 4
    steps = quarter
    if kind == "sincos":
        steps = max(quarter - 1, 1)
    exact = exact_dtype(torch.device(device))
    omega = TEMPERATURE ** -(torch.arange(quarter, dtype=exact, device=device) / steps)  # (D/4,)

    def waves(side: int) -> Tensor:
        """Sines and cosines of the coordinates of one axis: (side, D/2)."""
        angles = torch.arange(side, dtype=exact, device=device)[:, None] * omega  # (side, D/4)
        return torch.cat([angles.sin(), angles.cos()], 1)

    # The same waves of y in every column, and of x in every row: (h, w, D/2) each.
    rows, columns = grid
    y = waves(rows)[:, None].expand(-1, columns, -1)
    x = waves(columns)[None].expand(rows, -1, -1)
    axes = [x, y]
    if kind == "sincos-moco":
        axes = [y, x]
    table = torch.cat(axes, -1).flatten(0, 1)  # (N, D), in raster order
    return table.float()[None]


def sincos_1d(length: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """Fixed positions in a sequence, float32 (1, T, D), as in Vaswani et al. (2017): element 2i is the sine of
    pos / TEMPERATURE^(2i / D), and element 2i + 1 its cosine."""
    exact = exact_dtype(torch.device(device))
    exponents = torch.arange(0, width, 2, dtype=exact, device=device) / width
    omega = TEMPERATURE**-exponents  # (D/2,)
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


# Within attention


class Rotation(NamedTuple):
    """A kind of rotary positions."""

    first: Literal["x", "y"]
    """The axis with which the first half of a head's pairs rotates."""
    temperature: float
    """Frequencies decrease from 1 to slightly above 1 / temperature."""
    other_grids: Literal["stretched", "scaled", "continued", "centred"]
    """The coordinates on a grid other than the training grid: stretched from its first patch to its last;
    scaled by the ratio of the sides; continued as 0, 1, 2, ...; or, on every grid, the centres of patches
    between -2 pi and 2 pi."""


ROTATIONS = {
    "rotary": Rotation("x", 100.0, "stretched"),
    "rotary-axial": Rotation("x", 100.0, "continued"),  # RoPE-ViT's (Heo et al. 2024)
    "rotary-timm": Rotation("y", 10_000.0, "scaled"),  # timm's vit_*_rope_reg*_gap_*
    "rotary-dinov3": Rotation("y", 100.0, "centred"),
}


class RotaryPositions(nn.Module):
    """Rotates queries and keys by angles proportional to x and to y, so that their products depend on the
    offset between two patches (RoPE, in 2-D).

    Half of a head's pairs rotate with x, half with y, at frequencies t^(-i / (D_h / 4)): from 1 down to
    slightly above 1 / t, where t is 100 in most kinds. Tokens before the patches are not rotated. The kinds
    differ in the first axis, in the lowest frequency, and in the coordinates of patches on other grids than
    the training grid (ROTATIONS). DINOv3 scales coordinates randomly in training; vitkit does not.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.rotation = ROTATIONS[config.positions]
        self.trained_grid = config.position_grid or config.grid
        self.prefix = config.prefix

    def in_attention(self, grid: Grid) -> AttentionPositions:
        """A function that rotates q and k, (B, H, T, D_h) each, without a bias."""

        def rotate(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, None]:
            angles = self.angles(grid, q.shape[-1], q.device)
            return self.rotated(q, angles), self.rotated(k, angles), None

        return rotate

    def angles(self, grid: Grid, head_width: int, device: torch.device) -> Tensor:
        """The angle of every pair of a head, at every patch: (N, D_h / 2)."""
        quarter = head_width // 4  # the number of pairs that rotate with x, and with y
        exponents = torch.arange(quarter, device=device) / quarter
        omega = self.rotation.temperature**-exponents  # (D_h / 4,)
        rows, columns = grid
        y = self.coordinates(rows, self.trained_grid[0], device)  # (h,)
        x = self.coordinates(columns, self.trained_grid[1], device)  # (w,)
        y = y[:, None].expand(-1, columns)  # (h, w)
        x = x[None].expand(rows, -1)  # (h, w)
        axes = [x, y]
        if self.rotation.first == "y":
            axes = [y, x]
        angles = [axis.flatten()[:, None] * omega for axis in axes]  # (N, D_h / 4) each
        return torch.cat(angles, 1)

    def coordinates(self, side: int, trained: int, device: torch.device) -> Tensor:
        """The coordinates of `side` patches along an axis; the training grid had `trained`: (side,)."""
        index = torch.arange(side, device=device)
        match self.rotation.other_grids:
            case "stretched":
                return index * ((trained - 1) / max(side - 1, 1))
            case "scaled":
                return index * (trained / side)
            case "continued":
                return index.float()
            case "centred":
                return 2 * pi * (2 * ((index + 0.5) / side) - 1)

    def rotated(self, x: Tensor, angles: Tensor) -> Tensor:
        """Rotate q or k, (B, H, T, D_h) -> the same shape; the i-th pair is elements i and i + D_h / 2."""
        cos = angles.cos().to(x.dtype)
        sin = angles.sin().to(x.dtype)
        prefix = x[..., : self.prefix, :]
        a, b = x[..., self.prefix :, :].chunk(2, -1)  # (B, H, N, D_h / 2) each
        patches = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
        return torch.cat([prefix, patches], -2)


class Offsets(nn.Module):
    """Relative positions in a sequence (App. D.4): a learned vector for each of the 2T - 1 offsets,
    query minus key, whose product with the query is added to the logit.

    The paper gives no details. Our choice: all heads share the vectors, which are scaled like keys; for a
    sequence of another length they are resampled to the same extent.
    """

    def __init__(self, length: int, head_width: int):
        super().__init__()
        self.table = nn.Parameter(torch.empty(1, 2 * length - 1, head_width))

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q and k unchanged, (B, H, T, D_h) each, and the bias; an AttentionPositions."""
        return q, k, self.bias(q)

    def bias(self, q: Tensor) -> Tensor:
        """The bias of the logits of these queries: (B, H, T, D_h) -> (B, H, T, T)."""
        tokens = q.shape[-2]
        table = resample_axis(self.table, 2 * tokens - 1, "google")[0].to(q.dtype)  # (2T - 1, D_h)
        index = torch.arange(tokens, device=q.device)
        offset = index[:, None] - index  # (T, T)  from 1 - T to T - 1
        vectors = table[offset + tokens - 1]  # (T, T, D_h)
        scaled = q * q.shape[-1] ** -0.5
        return torch.einsum("bhqe,qte->bhqt", scaled, vectors)

    def resampled(self, old: "Offsets") -> dict[str, Tensor]:
        """The table of `old`, made for another length, resampled to this one: (1, 2T - 1, D_h)."""
        return {"table": resample_axis(old.table, self.table.shape[1], "google")}

    def init_weights(self) -> None:
        """Initialise with a normal distribution, like the other learned positions."""
        nn.init.normal_(self.table, std=0.02)


class RelativePositions(nn.Module):
    """Offsets in the sequence of tokens. The paper does not define the order; our choice is that of Eq. 1,
    the class token first, then patches in raster order."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.grid = config.grid
        tokens = config.prefix + config.grid[0] * config.grid[1]
        self.offsets = Offsets(tokens, config.width // config.heads)

    def in_attention(self, grid: Grid) -> AttentionPositions:
        """The bias for the offsets between tokens. Raises VitkitError on a grid other than its own."""
        check_raster_order("relative", self.grid, grid)
        return self.offsets


def check_raster_order(kind: str, own: Grid, grid: Grid) -> None:
    """Raise VitkitError for positions in raster order on a grid other than their own."""
    if grid != own:
        raise BadSettings(
            f"{kind} positions of {own[0]} x {own[1]} patches have no meaning on "
            f"{grid[0]} x {grid[1]}: in raster order an offset is another direction there; use "
            "images of the size that the model was made for"
        )


# Tables on other grids (Section 3.2)


# How each source of weights resamples a table; they differ by more than rounding.
class Resampling(TypedDict, total=False):
    """Arguments of torch.nn.functional.interpolate."""

    mode: str
    align_corners: bool
    antialias: bool


RESAMPLE: dict[str, Resampling] = {
    "google": {"mode": "bilinear", "align_corners": True},  # scipy.ndimage.zoom(order=1)
    "timm": {"mode": "bicubic", "antialias": True},
    "huggingface": {"mode": "bicubic"},
    "torchvision": {"mode": "bicubic", "align_corners": True},
    "siglip2": {"mode": "bilinear", "antialias": True},
}


def resample(table: Tensor, old: Grid, new: Grid, method: str = "google") -> Tensor:
    """A position table on another grid: (1, prefix + h·w, D) -> (1, prefix + h'·w', D).

    Rows before the patches (class token, registers) are unchanged; the patches' rows are interpolated in
    two dimensions, "according to their location in the original image" (Section 3.2). Raises VitkitError
    for an unknown method, or for a table that is too short for the old grid.
    """
    if method not in RESAMPLE:
        raise BadSettings(f"no resampling method {method!r}; there are {', '.join(RESAMPLE)}")
    patches = old[0] * old[1]
    if table.ndim != 3 or table.shape[1] < patches:
        raise BadSettings(
            f"a table of shape {tuple(table.shape)} cannot hold a grid of {old[0]} x {old[1]} "
            "patches"
        )
    if old == new:
        return table
    prefix = table.shape[1] - patches
    image = table[:, prefix:].to(exact_dtype(table.device))  # (1, h·w, D)
    image = image.unflatten(1, old).permute(0, 3, 1, 2)  # (1, D, h, w)
    image = F.interpolate(image, size=new, **RESAMPLE[method])  # (1, D, h', w')
    image = image.permute(0, 2, 3, 1).flatten(1, 2)  # (1, h'·w', D)
    return torch.cat([table[:, :prefix], image.to(table.dtype)], 1)


def resample_axis(table: Tensor, length: int, method: str) -> Tensor:
    """Resample a table of one axis to another length: (1, n, D) -> (1, length, D)."""
    return resample(table, (1, table.shape[1]), (1, length), method)


def exact_dtype(device: torch.device) -> torch.dtype:
    """float64 if the device supports it; Apple's GPUs do not."""
    if device.type == "mps":
        return torch.float32
    return torch.float64


# The kinds by their names in a configuration


POSITIONS: dict[str, type[nn.Module]] = {
    "none": NoPositions,
    "learned": LearnedPositions,
    "learned2d": LearnedPositions2D,
    "relative": RelativePositions,
    "sincos": SinCosPositions,
    "sincos-1d": SinCosPositions,
    "sincos-moco": SinCosPositions,
    "sincos-mae": SinCosPositions,
    **dict.fromkeys(ROTATIONS, RotaryPositions),
}


def build_positions(config: ViTConfig) -> nn.Module | nn.ModuleList:
    """The positions of a model: one module, or a list of one for every block, each with its own
    table."""
    kind = POSITIONS[config.positions]
    if config.resolved_inject == "every":
        return nn.ModuleList(kind(config) for _ in range(config.depth))
    return kind(config)
