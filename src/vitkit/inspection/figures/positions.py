"""Similarity of position embeddings (Fig. 7 centre, Fig. 10): for each patch, how much alike its
position and all others are to the model.

Legend: N patches, P tokens before them that have a position, R = P + N, T tokens, D width,
D_h width of a head, (h, w) the grid of patches.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models import Grid, NoPositions, RelativePositions, RotaryPositions, ViTConfig
from vitkit.weights import Classifier


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

    Raises ValueError for a model without positions, for a block that is not there, and for a grid
    that the positions have no meaning on.
    """
    config = classifier.model.config
    if not isinstance(config, ViTConfig):
        raise ValueError(
            f"a {config.title} has no position embeddings; Vision Transformers and their hybrids "
            "have them"
        )
    grid = tuple(grid or config.grid)
    positions = _of_block(classifier.model.positions, block)
    if isinstance(positions, NoPositions):
        raise ValueError(
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
    vectors = positions.add(zeros, grid)[0].float()  # (T, D)
    with_rows = torch.cat([vectors[: config.prefix_rows], vectors[config.prefix :]])  # (R, D)
    meaning = "cosine of the vectors that are added to two tokens"
    return PositionSimilarity(cosines(with_rows), config.prefix_rows, grid, meaning)


def _of_block(positions: nn.Module, block: int) -> nn.Module:
    """The positions of a block, by its number from 0. Raises ValueError."""
    if not isinstance(positions, nn.ModuleList):
        if block != 0:
            raise ValueError(
                f"block is {block}; the model has one set of positions for all blocks, number 0"
            )
        return positions
    if not 0 <= block < len(positions):
        raise ValueError(
            f"block is {block}; the model's {len(positions)} blocks are numbered 0 to "
            f"{len(positions) - 1}"
        )
    return positions[block]


def _of_rotations(positions: RotaryPositions, config: ViTConfig, grid: Grid) -> PositionSimilarity:
    """Of rotary positions, which the tokens before the patches have not."""
    head_width = config.width // config.heads
    angles = positions.angles(grid, head_width, torch.device("cpu")).float()  # (N, D_h / 2)
    vectors = torch.cat([angles.cos(), angles.sin()], 1)  # (N, D_h)
    meaning = "mean cosine of the angle between two rotations of a head's pairs"
    return PositionSimilarity(cosines(vectors), 0, grid, meaning)


def _of_offsets(positions: RelativePositions, config: ViTConfig, grid: Grid) -> PositionSimilarity:
    """Of relative positions, which all tokens have. Raises ValueError for another grid."""
    offsets = positions.in_attention(grid)
    tokens = config.prefix + grid[0] * grid[1]
    with_zero = cosines(offsets.table[0].float())[tokens - 1]  # (2T - 1,), with the offset 0
    index = torch.arange(tokens)
    between = with_zero[index[:, None] - index + tokens - 1]  # (T, T), of query minus key
    meaning = "cosine of the vector of the offset between two tokens with that of the offset 0"
    return PositionSimilarity(between, config.prefix, grid, meaning)


def cosines(vectors: Tensor) -> Tensor:
    """Between every two vectors: (R, D) -> float32 (R, R) on the CPU."""
    unit = F.normalize(vectors.cpu().double(), dim=1)
    return (unit @ unit.T).float()
