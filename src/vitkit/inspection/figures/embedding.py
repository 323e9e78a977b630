"""The embedding of Eq. 1 as figures: the principal components of the filters E (Fig. 7 left), and how
much alike the position embeddings E_pos are (Fig. 7 centre, Fig. 10). They need no images.

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
    """float32 (count, C, h, w), each of length 1, the strongest first. As a component's sign means
    nothing, its largest number is positive."""
    values: Tensor
    """float32, all singular values, the largest first; a value's square by the sum of all squares
    is the share of the filters' variance that its component explains."""

    @property
    def shares(self) -> Tensor:
        """The share of the variance that each component explains, all of them: they sum to 1."""
        squares = self.values.double().square()
        return squares / squares.sum().clamp(min=torch.finfo(torch.float64).tiny)


@torch.no_grad()
def filter_components(classifier: Classifier, count: int = 28, centred: bool = True) -> Filters:
    """The first principal components of the embedding filters, E of Eq. 1, as Fig. 7 (left) has 28.

    The filters, one for each of the D numbers of an embedding, are the rows of a matrix of C·h·w
    columns, whose singular value decomposition this is. centred: whether the mean filter is
    subtracted first, as principal components have it; the paper does not say.

    Of a hybrid or a ResNet they are the filters of the first convolution, which sees the pixels (as
    it computes, standardised); a hybrid's own embedding sees a feature map, and has no picture.

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
    """The kernels that a model's first layer multiplies pixels with: (D, C, h, w)."""
    layer = next(each for each in model.modules() if isinstance(each, nn.Conv2d | Conv))
    if isinstance(layer, Conv) and layer.how != "none":
        return standardised(layer.weight, layer.how, layer.eps)
    return layer.weight


def with_positive_peak(rows: Tensor) -> Tensor:
    """Flips signs of vectors, (n, p), so that the entry of largest magnitude is positive."""
    peaks = rows.gather(1, rows.abs().argmax(1, keepdim=True))  # (n, 1)
    return torch.where(peaks < 0, -rows, rows)


def draw_filters(filters: Filters, theme: Theme = LIGHT) -> "Figure":
    """Fig. 7 (left): the principal components of the first filters, in rows of seven, the strongest
    first. Zero is grey; each is as strong in colour as can be.

    Raises VitkitError for filters whose channels are no colours.
    """
    count, channels = filters.components.shape[:2]
    if channels not in (1, 3):
        raise Unsupported(
            f"filters of {channels} channels have no colours to be drawn in; take their array"
        )

    # From -peak to peak becomes from black to white
    components = filters.components
    peaks = components.abs().amax((1, 2, 3), keepdim=True).clamp(min=1e-12)
    colours = (components / peaks / 2 + 0.5).expand(-1, 3, -1, -1)  # grey as three channels
    tiles = colours.permute(0, 2, 3, 1).numpy()  # (count, h, w, 3)

    # In rows; the cells that are left empty are not drawn
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
    """float32 (R, R): first those of the P tokens before the patches that have a position (the
    class token first), then those of the patches in raster order."""
    prefix: int
    """P; 0 if only patches have positions."""
    grid: Grid
    """(h, w), the patches."""
    meaning: str
    """What is compared, in a sentence."""

    @property
    def tiles(self) -> Tensor:
        """Patches alone, tile by tile as Fig. 10 draws them: float32 (h, w, h, w). tiles[y, x] is
        the map of the similarities of patch (y, x) with all patches."""
        patches = self.cosines[self.prefix :, self.prefix :]
        return patches.unflatten(1, self.grid).unflatten(0, self.grid)

    @property
    def prefix_maps(self) -> Tensor:
        """The similarities of the tokens before the patches with all patches: float32 (P, h, w)."""
        return self.cosines[: self.prefix, self.prefix :].unflatten(1, self.grid)


@torch.no_grad()
def position_similarity(
    classifier: Classifier, grid: Grid | None = None, block: int = 0
) -> PositionSimilarity:
    """The cosine similarity of the position embeddings of every two tokens.

    grid: (rows, columns) of patches, to which positions are carried as the model carries them; None
    is the model's own. block: which block's, from 0, of a model that has a table for each.

    Learned positions, and fixed sines and cosines: the cosine of the vectors that are added to the
    two tokens. A token without a position (a register, or a class token beside fixed positions) is
    left out.

    Rotary positions: the mean over a head's pairs of cos(θ_i - θ_j), which is the cosine of a
    vector, rotated to position i and to position j, with all of its pairs alike.

    Relative positions: there is a vector for each offset between two tokens; the cosine of that of
    their offset with that of the offset 0. It is 1 on the diagonal, and the same along it.

    Raises VitkitError for a model without positions, for a block that is not there, and for a grid
    that the positions have no meaning on.
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
            'the model has no positions (its positions are "none"): to it the patches are a set, and '
            "there is nothing to compare"
        )
    if isinstance(positions, RotaryPositions):
        return _of_rotations(positions, config, grid)
    if isinstance(positions, RelativePositions):
        return _of_offsets(positions, config, grid)

    # The vectors that are added to the tokens: those that are added to tokens of zeros
    tokens = config.prefix + grid[0] * grid[1]
    zeros = torch.zeros(1, tokens, config.width, device=classifier.device)
    assert isinstance(positions, AddedPositions)  # as all others are
    vectors = positions.add(zeros, grid)[0].float()  # (T, D)
    with_rows = torch.cat([vectors[: config.prefix_rows], vectors[config.prefix :]])  # (R, D)
    meaning = "cosine of the vectors that are added to two tokens"
    return PositionSimilarity(cosines(with_rows), config.prefix_rows, grid, meaning)


def _of_block(positions: nn.Module, block: int) -> nn.Module:
    """The positions of a block, by its number from 0. Raises VitkitError."""
    if not isinstance(positions, nn.ModuleList):
        if block != 0:
            raise BadSettings(
                f"block is {block}; the model has one set of positions for all blocks, number 0"
            )
        return positions
    check_number("block", block, len(positions), "blocks")
    return positions[block]


def _of_rotations(positions: RotaryPositions, config: ViTConfig, grid: Grid) -> PositionSimilarity:
    """Of rotary positions, which the tokens before the patches have not."""
    head_width = config.width // config.heads
    angles = positions.angles(grid, head_width, torch.device("cpu")).float()  # (N, D_h / 2)
    vectors = torch.cat([angles.cos(), angles.sin()], 1)  # (N, D_h)
    meaning = "mean cosine of the angle between two rotations of a head's pairs"
    return PositionSimilarity(cosines(vectors), 0, grid, meaning)


def _of_offsets(positions: RelativePositions, config: ViTConfig, grid: Grid) -> PositionSimilarity:
    """Of relative positions, which all tokens have. Raises VitkitError for another grid."""
    positions.in_attention(grid)  # refuses another
    tokens = config.prefix + grid[0] * grid[1]
    table = positions.offsets.table[0].float()
    with_zero = cosines(table)[tokens - 1]  # (2T - 1,), with the offset 0
    index = torch.arange(tokens)
    between = with_zero[index[:, None] - index + tokens - 1]  # (T, T), of query minus key
    meaning = "cosine of the vector of the offset between two tokens with that of the offset 0"
    return PositionSimilarity(between, config.prefix, grid, meaning)


def cosines(vectors: Tensor) -> Tensor:
    """Between every two vectors: (R, D) -> float32 (R, R) on the CPU."""
    unit = F.normalize(vectors.cpu().double(), dim=1)
    return (unit @ unit.T).float()


def draw_positions(similarity: PositionSimilarity, theme: Theme = LIGHT) -> "Figure":
    """Fig. 7 (centre) and Fig. 10: a tile for each patch, where it lies in the image, with the
    cosines between its position and those of all patches; beside it those of the tokens before the
    patches, if these have positions."""
    h, w = similarity.grid
    prefix = similarity.prefix
    tiles = mosaic(similarity.tiles.numpy())
    side = 5.2
    widths = [side + 1]
    if prefix:
        widths = [side, side / 2]
    figure, cells = panels(*widths, height=side * max(h / w, 0.4) + 0.5)
    figure.suptitle("Position embedding similarity", fontsize=11)

    # The tiles; letters are large, as a telephone shows them at two thirds of that
    image = draw_numbers(cells[0], tiles, (-1, 1), theme)
    number_tiles(cells[0], (h, w))
    cells[0].set_xlabel("patch column", fontsize=12)
    cells[0].set_ylabel("patch row", fontsize=12)

    # What has a position, but is nowhere
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
