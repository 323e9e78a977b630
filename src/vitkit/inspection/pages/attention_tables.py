"""The attention of an image in all layers and heads, small enough to be sent: what the page of
explorer.py shows.

Each number is the share of its attention that a token, or a cell of patches, gives to another. A
cell is one patch, or a square of some if the page would become too large: what several patches of
a cell get is added up, and of several that look the mean is taken.

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
ROLLOUT = "all layers"  # the last place of the slider
SCALE = 4  # bytes of a row's scale


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
        """(h', w') of a grid of patches; the last cells of a row or column may be smaller."""
        return -(-grid[0] // self.block), -(-grid[1] // self.block)

    def layers(self, config: ViTConfig) -> list[int]:
        """The numbers of the layers that are kept, without a MAP head's pooling."""
        count = len(layer_names(config)) - int(config.pool == "map")
        return [i for i in range(count) if (count - 1 - i) % self.step == 0]


# The finest first: layers are thinned, then cells are four patches, before heads are averaged
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
    """Tables follow each other by heads; 1 is a mean."""
    reach: Reach
    """What a cell looks at: "all" tokens, or of an axial layer the cells of its "row" or
    "column"."""
    reader: bytes
    """The row of what the model's head reads, (H, prefix + C); empty if it reads each token."""
    patches: bytes
    """A row for each cell that looks, (H, C, columns); empty in a MAP head's pooling."""


@dataclass(frozen=True)
class Explored:
    """The answer to an image, and its attention."""

    logits: Tensor
    """float32 (K,) on the CPU; (T, K) for a model that answers for each token."""
    layers: tuple[Layer, ...]
    """As the slider has them: the kept layers, a MAP head's pooling, and the rollout."""


def packed(table: Tensor) -> bytes:
    """Numbers that are not negative, float (R, C), in 8 bits each: R scales as little-endian
    float32, then R·C integers, deflated. A number is its row's scale, the maximum, times the square of
    its integer's 255th.

    So its root is off by a 510th of the maximum's at most, and small numbers beside a large one, such
    as the patches' beside the class token's, keep their order down to a 260,000th of it.
    """
    rows = table.double().cpu().numpy()
    scales = rows.max(axis=1).astype("<f4")
    divisors = np.where(scales > 0, scales, 1)
    integers = np.rint(255 * np.sqrt(rows / divisors[:, None])).clip(0, 255).astype(np.uint8)
    return zlib.compress(scales.tobytes() + integers.tobytes())


def most_bytes(config: ViTConfig, grid: Grid, detail: Detail) -> int:
    """An upper bound of what `explored` gives for one image, in bytes as base64."""
    height, width = detail.cells(grid)
    cells = height * width
    tokens = config.prefix + cells
    reach = {"all": tokens, "row": width, "column": height}
    heads = len(_heads(config, detail))

    # Rows are not longer than they are without compression, but for a few bytes
    total = (cells + 1) * (tokens + SCALE)  # the rollout
    for layer in detail.layers(config):
        of_patches = cells * (reach[_reach(layer, config)] + SCALE)
        total += heads * (of_patches + tokens + SCALE)
    if config.pool == "map":
        total += heads * (tokens + SCALE)
    return total * 4 // 3 + total // 1000 + 200 * len(layer_names(config))


@torch.no_grad()
def explored(classifier: Classifier, images: Tensor, detail: Detail) -> Explored:
    """The answer to one image and its attention: prepared images, uint8 (1, 3, H, W).

    Two passes, with the attention of one layer in memory at a time. Raises VitkitError for a model
    without attention among patches.
    """
    model = check_transformer(classifier)
    config = model.config
    grid = model.grid(images)
    names = layer_names(config)

    # First pass: the answer, the rollout, and where the model's head reads
    first = rolled(classifier, images)
    coarse = _Coarse(config, grid, detail, first.shares)
    rollout = coarse.layer(ROLLOUT, first.product)

    # Second pass: each layer that is kept
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
    """Makes layers of attention matrices, by the cells of a grid."""

    def __init__(self, config: ViTConfig, grid: Grid, detail: Detail, shares: Tensor):
        """shares: how much of each token the model's head reads, (1, T)."""
        self.config = config
        self.detail = detail
        self.cells = detail.cells(grid)
        self.shares = shares
        self.cell_of = _cell_of(config.prefix, grid, detail.block).to(shares.device)

    def layer(self, name: str, weights: Tensor, reach: Reach = "all") -> Layer:
        """A layer of attention among all tokens: (H, T, T)."""
        to_cells = self._added_up(weights, 2)  # (H, T, prefix + C)
        with in_float32(to_cells):
            reader = self.shares @ to_cells  # (H, 1, prefix + C)
        patches_in = self.cell_of.bincount()[:, None]  # (prefix + C, 1)
        looks = self._added_up(to_cells, 1) / patches_in  # (H, prefix + C, prefix + C)
        patches = looks[:, self.config.prefix :]  # (H, C, prefix + C)
        if reach != "all":
            patches = self._within(patches, reach)
        packed_reader = b""
        if self.config.pools:
            packed_reader = packed(reader.flatten(0, 1))
        return Layer(name, len(weights), reach, packed_reader, packed(patches.flatten(0, 1)))

    def pooling(self, weights: Tensor) -> Layer:
        """The layer of a MAP head, whose learned query looks at patches: (1, H, 1, N)."""
        heads = [of_heads(weights, head)[0] for head in _heads(self.config, self.detail)]
        rows = torch.cat(heads)  # (H, N)
        rows = torch.nn.functional.pad(rows, (self.config.prefix, 0))  # (H, T)
        return Layer(POOLING, len(rows), "all", packed(self._added_up(rows, 1)), b"")

    def _added_up(self, weights: Tensor, axis: int) -> Tensor:
        """Sums weights over the tokens of each cell along an axis: T becomes prefix + C."""
        if self.detail.block == 1:
            return weights
        shape = list(weights.shape)
        shape[axis] = self.config.prefix + self.cells[0] * self.cells[1]
        return weights.new_zeros(shape).index_add_(axis, self.cell_of, weights)

    def _within(self, patches: Tensor, reach: Reach) -> Tensor:
        """What the cells of an axial layer give to those of their row, (H, C, w'), or of their
        column, (H, C, h'): (H, C, C) has zeros elsewhere."""
        height, width = self.cells
        cells = patches.unflatten(2, (height, width)).unflatten(1, (height, width))
        if reach == "row":
            own = cells.diagonal(dim1=1, dim2=3)  # (H, w', w', h'): from, to, row
            return own.permute(0, 3, 1, 2).flatten(1, 2)
        own = cells.diagonal(dim1=2, dim2=4)  # (H, h', h', w'): from, to, column
        return own.permute(0, 1, 3, 2).flatten(1, 2)


def _cell_of(prefix: int, grid: Grid, block: int) -> Tensor:
    """The number of each token's cell: int64 (T,). A token before the patches is by itself."""
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
    """What a patch looks at in a layer."""
    if config.mixer != "axial":
        return "all"
    return "column" if is_of_columns(layer, config) else "row"
