"""What each kind of position embedding asks of a configuration.

The modules are in positions.py, by the same names.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PositionKind:
    """The defaults are those of fixed positions that are added at the stem."""

    default_inject: Literal["stem", "every", "shared"] = "stem"
    """Where it enters if ViTConfig.inject is left open."""
    adds_to_tokens: bool = True
    """Whether it is added to tokens; otherwise it acts within attention."""
    has_tables: bool = False
    """Whether it has parameters."""
    has_prefix_rows: bool = False
    """Whether its table has rows for the tokens before the patches, as ViTConfig.prefix_positions
    counts them. (Relative positions need none: such a token has offsets like any other.)"""
    any_grid: bool = True
    """Whether it has a meaning on another grid than the one it was made for."""
    keeps_trained_grid: bool = False
    """Whether a model for another size remembers the grid that it was trained on
    (ViTConfig.position_grid), as its positions cannot be resampled."""
    width_multiple: int = 1
    """What the width of a token must be a multiple of."""
    head_multiple: int = 1
    """What the width of a head must be a multiple of."""


POSITION_KINDS = {
    "none": PositionKind(),
    "learned": PositionKind(has_tables=True, has_prefix_rows=True),
    "learned2d": PositionKind(has_tables=True, has_prefix_rows=True, width_multiple=2),
    "relative": PositionKind("every", adds_to_tokens=False, has_tables=True, any_grid=False),
    "sincos": PositionKind(width_multiple=4),
    "sincos-1d": PositionKind(any_grid=False, width_multiple=2),
    "sincos-moco": PositionKind(width_multiple=4),
    "sincos-mae": PositionKind(width_multiple=4),
    "rotary": PositionKind(
        "shared", adds_to_tokens=False, keeps_trained_grid=True, head_multiple=4
    ),
    "rotary-dinov3": PositionKind("shared", adds_to_tokens=False, head_multiple=4),
}
