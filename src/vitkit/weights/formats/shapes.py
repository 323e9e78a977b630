"""Reading an architecture from the shapes of its tensors. Everything raises ValueError for shapes that make no model."""

import math
import re

from vitkit.models import SIZES
from vitkit.models.backbone import Grid
from vitkit.weights.files import Tensors

# What channels are normalised by, where the file of a model that was trained so does not say it.
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
LONGEST_NAME = 500  # characters; a file that nobody should trust may have any


def shape_of(tensors: Tensors, name: str, axes: int) -> tuple[int, ...]:
    """The shape of a tensor that has to be there, with so many axes."""
    if name not in tensors:
        raise ValueError(f"there is no {name} in it")
    shape = tensors[name].shape
    if len(shape) != axes:
        raise ValueError(f"{name} has the shape {shape}; it should have {axes} axes")
    return shape


def length_of(tensors: Tensors, name: str) -> int:
    """The length of a vector; 0 if it is not there, as the bias of a layer that a model may lack."""
    return shape_of(tensors, name, 1)[0] if name in tensors else 0


def count_blocks(tensors: Tensors, pattern: str) -> int:
    """How many blocks there are, by a pattern with the block's number in a group."""
    matches = [re.match(pattern, name) for name in tensors if len(name) < LONGEST_NAME]
    numbers = {int(match[1]) for match in matches if match}
    if not numbers or max(numbers) + 1 != len(numbers):
        raise ValueError(f"its blocks are not numbered from 0 without a gap: {sorted(numbers)[:8]}")
    return len(numbers)


def heads_of(width: int, mlp: int, hint: int | None) -> tuple[int, list[str]]:
    """Attention heads, which no shape gives away: of the published size, else 64 channels each. And the note about it."""
    if hint:
        return hint, []
    for size in SIZES.values():
        if (size["width"], size["mlp"]) == (width, mlp):
            return size["heads"], []
    if width == 0 or width % 64:
        raise ValueError(
            f"nothing in it says how many attention heads share its width of {width}, and no published model has that width; "
            "say so: heads=..., or --heads"
        )
    heads = width // 64
    return heads, [f"heads: {heads}, of 64 channels each; nothing in the file says so"]


def grid_of(patches: int, patch: int, hint: tuple[int, int] | None) -> Grid:
    """(h, w) of a position table with so many patches: as the user says, else square."""
    if hint:
        grid = (hint[0] // patch, hint[1] // patch)
        if math.prod(grid) != patches:
            raise ValueError(
                f"its position table has {patches} patches, but {hint[0]} x {hint[1]} pixels make {grid[0]} x {grid[1]} of "
                f"{patch} x {patch}"
            )
        return grid
    side = math.isqrt(max(patches, 0))
    if side * side != patches or not side:
        raise ValueError(
            f"its position table has {patches} patches, which make no square; say the size in pixels that it is for: "
            "image=(height, width), or --image HEIGHT WIDTH"
        )
    return side, side


def is_grid(patches: int, patch: int, hint: tuple[int, int] | None) -> bool:
    """Whether so many patches make the grid that the user says, else a square."""
    try:
        grid_of(patches, patch, hint)
    except ValueError:
        return False
    return True


def prefix_rows(rows: int, prefix: int, patch: int, hint: tuple[int, int] | None) -> int:
    """How many of a position table's rows belong to tokens before the patches: all of those tokens, or none of them.

    Tables of both kinds exist (DeiT III and big_vision dropped the class token's embedding); the one that leaves a
    whole grid is meant, and the older kind if both do.
    """
    for count in (prefix, 0):
        if is_grid(rows - count, patch, hint):
            return count
    return prefix
