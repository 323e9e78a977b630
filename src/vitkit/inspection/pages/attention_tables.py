"""The attention of an image in all layers and heads, compressed for the page of explorer.py.

Each number is the share of attention that a token, or a cell of patches, gives to another. A cell is one
patch, or a square of several if the page would become too large: attention to the patches of a cell is
summed, and attention of the patches of a cell is averaged.

Legend: T tokens (the prefix and N patches), (h, w) the grid of patches, C cells, (h', w') their
grid, H heads.
"""

import zlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vitkit.inspection.figures.attention_maps import rolled
from vitkit.inspection.figures.passes import (
    POOLING,
    among_all_tokens,
    attention_by_layer,
    check_transformer,
    in_float32,
    is_of_columns,
    layer_names,
    of_heads,
)
from vitkit.models import Grid, ViTConfig
from vitkit.weights import Classifier

Reach = Literal["all", "row", "column"]
ROLLOUT = "all layers"  # the last position of the slider
SCALE = 4  # bytes of the scale of a row


@dataclass(frozen=True)
class Detail:
    """The detail in which the attention is kept."""

    block: int = 1
    """Patches along the side of a cell."""
    heads: bool = True
    """Whether each head is shown, or only the mean of the heads."""
    step: int = 1
    """Interval between the layers shown; the last layer is always included."""

    def cells(self, grid: Grid) -> Grid:
        """(h', w'), the grid of cells; the last cells of a row or column may be smaller."""
        return -(-grid[0] // self.block), -(-grid[1] // self.block)

    def layers(self, config: ViTConfig) -> list[int]:
        """The numbers of the layers that are kept, without a MAP head's pooling."""
        count = len(layer_names(config)) - int(config.pool == "map")
        return [i for i in range(count) if (count - 1 - i) % self.step == 0]


# The finest first: layers are left out, then cells become four patches, then heads are averaged
DETAILS = tuple(
    Detail(block, heads, step)
    for blocks in ((1, 2), (4, 8))
    for heads, steps in ((True, (1, 2, 3, 4)), (False, (1, 2)))
    for block in blocks
    for step in steps
)


@dataclass(frozen=True)
class Layer:
    """One position of the slider."""

    name: str
    heads: int
    """Number of heads; tables are ordered by head. 1 for the mean of all."""
    reach: Reach
    """The tokens that a cell attends to: "all", or in an axial layer the cells of its "row" or
    "column"."""
    reader: bytes
    """The row of the token that the head reads, (H, prefix + C); empty if it reads each token."""
    patches: bytes
    """A row for each cell as query, (H, C, columns); empty in a MAP head's pooling."""


@dataclass(frozen=True)
class Explored:
    """The output for an image, and its attention."""

    logits: Tensor
    """float32 (K,) on the CPU; (T, K) for a model with an output for each token."""
    layers: tuple[Layer, ...]
    """Positions of the slider: the kept layers, a MAP head's pooling, and the rollout."""


def packed(table: Tensor) -> bytes:
    """Compress non-negative numbers, float (R, C), to 8 bits each: R scales as little-endian float32, then
    R·C integers, deflated. A number is (integer / 255)² times its row's scale, which is the row's maximum.

    So the square root of a number is exact up to 1/510 of the maximum's, and small numbers beside a large
    one, such as the patches' beside the class token's, keep their order down to 1/260,000 of it.
    """
    rows = table.double().cpu().numpy()
    scales = rows.max(axis=1).astype("<f4")
    divisors = np.where(scales > 0, scales, 1)
    integers = np.rint(255 * np.sqrt(rows / divisors[:, None])).clip(0, 255).astype(np.uint8)
    return zlib.compress(scales.tobytes() + integers.tobytes())


def most_bytes(config: ViTConfig, grid: Grid, detail: Detail) -> int:
    """An upper bound of the size of `explored` for one image, in bytes as base64."""
    height, width = detail.cells(grid)
    cells = height * width
    tokens = config.prefix + cells
    reach = {"all": tokens, "row": width, "column": height}
    heads = len(_heads(config, detail))

    # Compressed rows are at most a few bytes longer than uncompressed ones
    total = (cells + 1) * (tokens + SCALE)  # the rollout
    for layer in detail.layers(config):
        of_patches = cells * (reach[_reach(layer, config)] + SCALE)
        total += heads * (of_patches + tokens + SCALE)
    if config.pool == "map":
        total += heads * (tokens + SCALE)
    return total * 4 // 3 + total // 1000 + 200 * len(layer_names(config))


@torch.no_grad()
def explored(classifier: Classifier, images: Tensor, detail: Detail) -> Explored:
    """The output for one image and its attention: prepared images, uint8 (1, 3, H, W).

    Two passes, with the attention of one layer in memory at a time. Raises VitkitError for a model
    without attention among patches.
    """
    model = check_transformer(classifier)
    config = model.config
    grid = model.grid(images)
    names = layer_names(config)

    # First pass: the output, the rollout, and the tokens that the head reads
    first = rolled(classifier, images)
    coarse = _Coarse(config, grid, detail, first.shares)
    rollout = coarse.layer(ROLLOUT, first.product)

    # Second pass: each layer to keep
    layers = []
    wanted = set(detail.layers(config))

    def keep(number: int, weights: Tensor) -> None:
        if number not in wanted:
            return
        heads = []
        for head in _heads(config, detail):
            heads.append(among_all_tokens(of_heads(weights, head), number, config, grid)[0])
        layers.append(coarse.layer(names[number], torch.stack(heads), _reach(number, config)))

    with attention_by_layer(model, keep) as record:
        classifier.features(images)
    if config.pool == "map":
        layers.append(coarse.pooling(record.attention[-1]))
    return Explored(first.logits[0].cpu(), (*layers, rollout))


class _Coarse:
    """Converts attention matrices to layers with the cells of a grid."""

    def __init__(self, config: ViTConfig, grid: Grid, detail: Detail, shares: Tensor):
        """shares: how much of each token the head reads, (1, T)."""
        self.config = config
        self.detail = detail
        self.cells = detail.cells(grid)
        self.shares = shares
        self.cell_of = _cell_of(config.prefix, grid, detail.block).to(shares.device)

    def layer(self, name: str, weights: Tensor, reach: Reach = "all") -> Layer:
        """A layer of attention among all tokens: (H, T, T)."""
        to_cells = self._sum_over_cells(weights, 2)  # (H, T, prefix + C)
        with in_float32(to_cells):
            reader = self.shares @ to_cells  # (H, 1, prefix + C)
        patches_in = self.cell_of.bincount()[:, None]  # (prefix + C, 1)
        looks = self._sum_over_cells(to_cells, 1) / patches_in  # (H, prefix + C, prefix + C)
        patches = looks[:, self.config.prefix :]  # (H, C, prefix + C)
        if reach != "all":
            patches = self._within(patches, reach)
        packed_reader = b""
        if self.config.pools:
            packed_reader = packed(reader.flatten(0, 1))
        return Layer(name, len(weights), reach, packed_reader, packed(patches.flatten(0, 1)))

    def pooling(self, weights: Tensor) -> Layer:
        """The layer of a MAP head, whose learned query attends to patches: (1, H, 1, N)."""
        heads = [of_heads(weights, head)[0] for head in _heads(self.config, self.detail)]
        rows = torch.cat(heads)  # (H, N)
        rows = torch.nn.functional.pad(rows, (self.config.prefix, 0))  # (H, T)
        return Layer(POOLING, len(rows), "all", packed(self._sum_over_cells(rows, 1)), b"")

    def _sum_over_cells(self, weights: Tensor, axis: int) -> Tensor:
        """Sum weights over the tokens of each cell along an axis: T becomes prefix + C."""
        if self.detail.block == 1:
            return weights
        shape = list(weights.shape)
        shape[axis] = self.config.prefix + self.cells[0] * self.cells[1]
        return weights.new_zeros(shape).index_add_(axis, self.cell_of, weights)

    def _within(self, patches: Tensor, reach: Reach) -> Tensor:
        """The attention of cells of an axial layer within their row, (H, C, w'), or column, (H, C, h'). The
        matrix (H, C, C) has zeros elsewhere."""
        height, width = self.cells
        cells = patches.unflatten(2, (height, width)).unflatten(1, (height, width))
        if reach == "row":
            own = cells.diagonal(dim1=1, dim2=3)  # (H, w', w', h'): from, to, row
            return own.permute(0, 3, 1, 2).flatten(1, 2)
        own = cells.diagonal(dim1=2, dim2=4)  # (H, h', h', w'): from, to, column
        return own.permute(0, 1, 3, 2).flatten(1, 2)


def _cell_of(prefix: int, grid: Grid, block: int) -> Tensor:
    """The number of each token's cell: int64 (T,). Each token before the patches is a cell of its own."""
    _, width = Detail(block).cells(grid)
    rows = torch.arange(grid[0]) // block
    columns = torch.arange(grid[1]) // block
    of_patch = (rows[:, None] * width + columns).flatten()  # (N,)
    return torch.cat([torch.arange(prefix), prefix + of_patch])


def _heads(config: ViTConfig, detail: Detail) -> list[int | None]:
    """The heads that are kept; None is the mean of all."""
    if detail.heads:
        return list(range(config.heads))
    return [None]


def _reach(layer: int, config: ViTConfig) -> Reach:
    """The tokens that a patch attends to in a layer."""
    if config.mixer != "axial":
        return "all"
    return "column" if is_of_columns(layer, config) else "row"
