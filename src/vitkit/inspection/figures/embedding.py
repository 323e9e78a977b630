"""Figures of the embedding of Eq. 1: the principal components of the filters E (Fig. 7 left), and the
similarity of the position embeddings E_pos (Fig. 7 centre, Fig. 10). They need no images.

Legend: D filters, or the width; C channels of the image, (h, w) the pixels of a filter, or the grid of
N patches; P tokens before the patches that have a position, R = P + N, T tokens, D_h width of a head.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.inspection.figures.passes import check_number
from vitkit.inspection.plots import (
    LIGHT,
    Theme,
    draw_numbers,
    in_rows,
    mosaic,
    number_tiles,
    panels,
    themed,
)
from vitkit.models import (
    Conv,
    Grid,
    NoPositions,
    RotaryPositions,
    VisionTransformer,
    ViTConfig,
    standardised,
)
from vitkit.models.positions import RelativePositions
from vitkit.system.errors import BadSettings, Unsupported
from vitkit.weights import Classifier

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILTERS_IN_A_ROW = 7  # as in Fig. 7


@runtime_checkable
class AddedPositions(Protocol):
    """Positions that are added to tokens."""

    def add(self, z: Tensor, grid: Grid) -> Tensor:
        """(B, T, D) -> (B, T, D)."""


# Filters


@dataclass(frozen=True, eq=False)
class Filters:
    """Principal components of the filters of a model's first layer."""

    components: Tensor
    """float32 (count, C, h, w), each of length 1, in order of decreasing variance. As the sign of a
    component has no meaning, its entry of largest magnitude is positive."""
    values: Tensor
    """float32, all singular values in descending order. The square of a value, divided by the sum of all
    squares, is the share of the filters' variance that its component explains."""

    @property
    def shares(self) -> Tensor:
        """The share of the variance that each component explains; the shares of all components sum to 1."""
        squares = self.values.double().square()
        return squares / squares.sum().clamp(min=torch.finfo(torch.float64).tiny)


@torch.no_grad()
def filter_components(classifier: Classifier, count: int = 28, centred: bool = True) -> Filters:
    """The first principal components of the embedding filters, E of Eq. 1; Fig. 7 (left) shows 28.

    They are the singular vectors of a matrix whose rows are the D filters, of C·h·w numbers each.
    centred: whether the mean filter is subtracted first, as in principal component analysis; the paper
    does not say.

    For a hybrid or a ResNet they are the filters of the first convolution (standardised, as it computes),
    because a hybrid's own embedding acts on a feature map.

    Raises VitkitError if there are fewer components.
    """
    filters = first_filters(classifier.model)  # (D, C, h, w)
    rows = filters.flatten(1).cpu().double()  # (D, C·h·w)
    most = min(rows.shape)
    if not 1 <= count <= most:
        raise BadSettings(
            f"count is {count}; {rows.shape[0]} filters of {rows.shape[1]} numbers have 1 to "
            f"{most} principal components"
        )
    if centred:
        rows = rows - rows.mean(0)
    _, values, components = torch.linalg.svd(rows, full_matrices=False)
    components = with_positive_peak(components[:count])
    return Filters(components.unflatten(1, filters.shape[1:]).float(), values.float())


def first_filters(model: nn.Module) -> Tensor:
    """The kernels of a model's first layer, which are applied to pixels: (D, C, h, w)."""
    layer = next(each for each in model.modules() if isinstance(each, nn.Conv2d | Conv))
    if isinstance(layer, Conv) and layer.how != "none":
        return standardised(layer.weight, layer.how, layer.eps)
    return layer.weight


def with_positive_peak(rows: Tensor) -> Tensor:
    """Flip signs of vectors (n, p), so that the entry of largest magnitude is positive."""
    peaks = rows.gather(1, rows.abs().argmax(1, keepdim=True))  # (n, 1)
    return torch.where(peaks < 0, -rows, rows)


def draw_filters(filters: Filters, theme: Theme = LIGHT) -> "Figure":
    """Fig. 7 (left): the principal components of the first filters, in rows of seven, in order of decreasing
    variance. Zero is grey; each component is scaled to full contrast.

    Raises VitkitError for filters whose channels are not colours.
    """
    count, channels = filters.components.shape[:2]
    if channels not in (1, 3):
        raise Unsupported(
            f"filters of {channels} channels cannot be drawn in colours; use their array"
        )

    # Map [-peak, peak] to black to white
    components = filters.components
    peaks = components.abs().amax((1, 2, 3), keepdim=True).clamp(min=1e-12)
    colours = (components / peaks / 2 + 0.5).expand(-1, 3, -1, -1)  # grey as three channels
    tiles = colours.permute(0, 2, 3, 1).numpy()  # (count, h, w, 3)

    # In rows, without drawing empty cells
    picture = in_rows(tiles, FILTERS_IN_A_ROW)
    visible = ~np.isnan(picture[..., :1])
    picture = np.concatenate([np.nan_to_num(picture), visible], -1)  # with alpha

    share = float(filters.shares[:count].sum())
    columns = min(FILTERS_IN_A_ROW, count)
    rows = -(-count // columns)
    figure, (axes,) = panels(0.8 * columns, height=0.8 * rows + 0.5)
    axes.imshow(picture, interpolation="nearest")
    axes.axis("off")
    figure.suptitle(
        f"First {count} principal components of the filters, {share:.0%} of their variance",
        fontsize=10,
    )
    return themed(figure, theme)


# Positions


@dataclass(frozen=True, eq=False)
class PositionSimilarity:
    """Cosines, from -1 to 1, between the positions of tokens."""

    cosines: Tensor
    """float32 (R, R): first the P tokens before the patches that have a position (the class token first),
    then the patches in raster order."""
    prefix: int
    """P; 0 if only patches have positions."""
    grid: Grid
    """(h, w), the grid of patches."""
    meaning: str
    """What is compared, as text."""

    @property
    def tiles(self) -> Tensor:
        """The cosines among patches, as Fig. 10 draws them: float32 (h, w, h, w). tiles[y, x] is the map of the
        similarities of patch (y, x) with all patches."""
        patches = self.cosines[self.prefix :, self.prefix :]
        return patches.unflatten(1, self.grid).unflatten(0, self.grid)

    @property
    def prefix_maps(self) -> Tensor:
        """The cosines of the tokens before the patches with all patches: float32 (P, h, w)."""
        return self.cosines[: self.prefix, self.prefix :].unflatten(1, self.grid)


@torch.no_grad()
def position_similarity(
    classifier: Classifier, grid: Grid | None = None, block: int = 0
) -> PositionSimilarity:
    """The cosine similarity of the position embeddings of every two tokens.

    grid: (rows, columns) of patches to which positions are resampled; None is the model's own.
    block: number of a block from 0, for a model with a table for each block.

    Learned and sine-cosine positions: the cosine of the vectors that are added to the two tokens. Tokens
    without a position (registers, or a class token beside sine-cosine positions) are left out.

    Rotary positions: the mean over a head's pairs of cos(θ_i - θ_j). This is the cosine of a vector of equal
    pairs, rotated to position i and to position j.

    Relative positions have a vector for each offset between two tokens: the cosine of this vector with
    that of the offset 0. It is 1 on the diagonal, and constant along diagonals.

    Raises VitkitError for a model without positions, for a block that does not exist, and for a grid that
    the positions do not support.
    """
    model = classifier.model
    if not isinstance(model, VisionTransformer):
        raise Unsupported(
            f"a {model.config.title} has no position embeddings; Vision Transformers and their hybrids "
            "have them"
        )
    config = model.config
    grid = grid or config.grid
    positions = _of_block(model.positions, block)
    if isinstance(positions, NoPositions):
        raise Unsupported(
            'the model has no positions (its positions are "none"): it treats patches as a set, so '
            "there is nothing to compare"
        )
    if isinstance(positions, RotaryPositions):
        return _of_rotations(positions, config, grid)
    if isinstance(positions, RelativePositions):
        return _of_offsets(positions, config, grid)

    # The vectors that are added to tokens, found by adding them to zeros
    tokens = config.prefix + grid[0] * grid[1]
    zeros = torch.zeros(1, tokens, config.width, device=classifier.device)
    assert isinstance(positions, AddedPositions)  # all other kinds were handled above
    vectors = positions.add(zeros, grid)[0].float()  # (T, D)
    with_rows = torch.cat([vectors[: config.prefix_rows], vectors[config.prefix :]])  # (R, D)
    meaning = "cosine of the vectors that are added to two tokens"
    return PositionSimilarity(cosines(with_rows), config.prefix_rows, grid, meaning)


def _of_block(positions: nn.Module, block: int) -> nn.Module:
    """The positions of a block, by number from 0. Raises VitkitError if it does not exist."""
    if not isinstance(positions, nn.ModuleList):
        if block != 0:
            raise BadSettings(
                f"block is {block}; the model has one set of positions for all blocks, number 0"
            )
        return positions
    check_number("block", block, len(positions), "blocks")
    return positions[block]


def _of_rotations(positions: RotaryPositions, config: ViTConfig, grid: Grid) -> PositionSimilarity:
    """The similarity of rotary positions, which only patches have."""
    head_width = config.width // config.heads
    angles = positions.angles(grid, head_width, torch.device("cpu")).float()  # (N, D_h / 2)
    vectors = torch.cat([angles.cos(), angles.sin()], 1)  # (N, D_h)
    meaning = "mean cosine of the angle between two rotations of a head's pairs"
    return PositionSimilarity(cosines(vectors), 0, grid, meaning)


def _of_offsets(positions: RelativePositions, config: ViTConfig, grid: Grid) -> PositionSimilarity:
    """The similarity of relative positions, which all tokens have. Raises VitkitError for another grid."""
    positions.in_attention(grid)  # raises for another grid
    tokens = config.prefix + grid[0] * grid[1]
    table = positions.offsets.table[0].float()
    with_zero = cosines(table)[tokens - 1]  # (2T - 1,), with the offset 0
    index = torch.arange(tokens)
    between = with_zero[index[:, None] - index + tokens - 1]  # (T, T), of query minus key
    meaning = "cosine of the vector of the offset between two tokens with that of the offset 0"
    return PositionSimilarity(between, config.prefix, grid, meaning)


def cosines(vectors: Tensor) -> Tensor:
    """Cosines between every two vectors: (R, D) -> float32 (R, R) on the CPU."""
    unit = F.normalize(vectors.cpu().double(), dim=1)
    return (unit @ unit.T).float()


def draw_positions(similarity: PositionSimilarity, theme: Theme = LIGHT) -> "Figure":
    """Fig. 7 (centre) and Fig. 10: a tile for each patch at its place in the image, with the cosines between
    its position and those of all patches; and beside it the cosines of the tokens before the patches, if
    these have positions."""
    h, w = similarity.grid
    prefix = similarity.prefix
    tiles = mosaic(similarity.tiles.numpy())
    side = 5.2
    widths = [side + 1]
    if prefix:
        widths = [side, side / 2]
    figure, cells = panels(*widths, height=side * max(h / w, 0.4) + 0.5)
    figure.suptitle("Position embedding similarity", fontsize=11)

    # The tiles. Text is large, because a telephone shows it at two thirds of its size
    image = draw_numbers(cells[0], tiles, (-1, 1), theme)
    number_tiles(cells[0], (h, w))
    cells[0].set_xlabel("patch column", fontsize=12)
    cells[0].set_ylabel("patch row", fontsize=12)

    # Tokens that have a position, but no place in the image
    if prefix:
        maps = similarity.prefix_maps.numpy()  # (P, h, w)
        column = mosaic(maps[:, None])
        draw_numbers(cells[1], column, (-1, 1), theme)
        cells[1].set(xticks=[], yticks=[])
        title = "class token"
        if prefix > 1:
            title = f"the {prefix} tokens\nbefore the patches"
        cells[1].set_title(title, fontsize=9)
    figure.colorbar(
        image, ax=cells[-1], label="cosine similarity", orientation="horizontal", shrink=0.8
    )
    return themed(figure, theme)
