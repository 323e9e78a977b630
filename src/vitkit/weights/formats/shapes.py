"""Infer an architecture from the shapes of its tensors.

All functions raise VitkitError for shapes that are not those of a model. A `hint` is a value that the user
sets because the file does not contain it, or None.
"""

import math
import re
from typing import TypedDict

from vitkit.models import Grid
from vitkit.models.zoo import SIZES
from vitkit.system.errors import BadWeights, VitkitError
from vitkit.weights.files.content import Tensors
from vitkit.weights.files.transformed import why_missing


class ChannelStatistics(TypedDict):
    """Mean and standard deviation of the channels, with which images are normalised."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


# ImageNet's mean and standard deviation, for models whose files do not contain theirs
IMAGENET: ChannelStatistics = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
# Values of the setting `statistics`. CLIP's are those of OpenAI's images.
STATISTICS: dict[str, ChannelStatistics] = {
    "imagenet": IMAGENET,
    "half": {"mean": (0.5,) * 3, "std": (0.5,) * 3},
    "clip": {
        "mean": (0.48145466, 0.4578275, 0.40821073),
        "std": (0.26862954, 0.26130258, 0.27577711),
    },
}
LONGEST_NAME = 500  # characters; names in an untrusted file may have any length


def shape_of(tensors: Tensors, name: str, axes: int) -> tuple[int, ...]:
    """The shape of a tensor that must exist with this number of axes."""
    if name not in tensors:
        raise BadWeights(why_missing(tensors, name) or f"there is no {name} in it")
    shape = tensors[name].shape
    if len(shape) != axes:
        raise BadWeights(f"{name} has the shape {shape}; it should have {axes} axes")
    return shape


def length_of(tensors: Tensors, name: str) -> int:
    """The length of a vector; 0 if it does not exist, such as the bias of a head."""
    if name not in tensors:
        return 0
    return shape_of(tensors, name, 1)[0]


def count_blocks(tensors: Tensors, pattern: str) -> int:
    """The number of blocks. pattern: a regular expression whose group is a block's number."""
    matches = [re.match(pattern, name) for name in tensors if len(name) < LONGEST_NAME]
    numbers = {int(match[1]) for match in matches if match}
    if not numbers or max(numbers) + 1 != len(numbers):
        raise BadWeights(f"its blocks are not numbered from 0 without gaps: {sorted(numbers)[:8]}")
    return len(numbers)


def heads_of(width: int, mlp: int, hint: int | None) -> tuple[int, list[str]]:
    """The number of attention heads, and a note unless the user set it.

    It does not follow from shapes: q, k and v are (D, D) for any number. It is the user's, or that of the
    published model with this width (Table 1 and similar), or one for every 64 channels.
    """
    if hint:
        return hint, []
    for name, size in SIZES.items():
        if (size["width"], size["mlp"]) == (width, mlp):
            heads = size["heads"]
            note = f"heads: {heads}, as in ViT-{name}; the file does not state it"
            if (name, heads) == ("S", 6):
                note += " (MoCo v3's has 12: `heads=12`)"
            return heads, [note]
    if width == 0 or width % 64:
        raise BadWeights(
            f"it does not state how many attention heads share its width of {width}, "
            "and no published model has that width; set it: `heads=N`"
        )
    heads = width // 64
    note = f"heads: {heads}, of 64 channels each; the file does not state it (otherwise: `heads`)"
    return heads, [note]


def grid_of(patches: int, patch: Grid, hint: tuple[int, int] | None) -> Grid:
    """The grid (h, w) of this many patches of (height, width): for the user's image size, otherwise for a
    square image."""
    down, across = patch
    if hint:
        height, width = hint
        grid = (height // down, width // across)
        if math.prod(grid) != patches:
            raise BadWeights(
                f"its position table has {patches} patches, but {height} x {width} pixels make "
                f"{grid[0]} x {grid[1]} of {down} x {across}"
            )
        return grid
    rows = math.isqrt(max(patches, 0) * across // down)
    columns = rows * down // across
    if rows * columns != patches or rows * down != columns * across or not rows:
        raise BadWeights(
            f"its position table has {patches} patches, which do not form a square; set the size in "
            "pixels that it is for: `image=(HEIGHT, WIDTH)`"
        )
    return rows, columns


def table_of(
    rows: int,
    tokens: tuple[int, ...],
    patch: Grid,
    hint: tuple[int, int] | None,
    either: bool = False,
) -> tuple[Grid, int | None, list[str]]:
    """Interpret a position table: the grid; the number of tokens before the patches that have a position,
    None for all; and a note if another interpretation is possible. Published tables have:

    - a row for each token: the paper's code, timm, DeiT, MAE and DINO;
    - rows for patches only: DeiT III (timm's no_embed_class), and big_vision;
    - a row for the class token but not for registers: DINOv2.

    tokens: possible numbers of tokens with a position, that of all tokens first. The first number that
        leaves the rows of a whole grid is used; if none does, the first.
    either: whether the last number is so common that a note mentions it if the rows allow it too.
    """
    with_position = next((n for n in tokens if _is_grid(rows - n, patch, hint)), tokens[0])
    grid = grid_of(rows - with_position, patch, hint)
    if with_position != tokens[0]:
        notes = _note_on_other_grid(rows, tokens[0], with_position, tokens[0], patch, hint)
        return grid, with_position, notes
    if either and tokens[-1] != tokens[0]:
        return grid, None, _note_on_other_grid(rows, tokens[0], tokens[0], tokens[-1], patch, hint)
    return grid, None, []


def _is_grid(patches: int, patch: Grid, hint: tuple[int, int] | None) -> bool:
    """Whether this many patches form a grid of the user's size, or without one a square image."""
    try:
        grid_of(patches, patch, hint)
    except VitkitError:
        return False
    return True


def _note_on_other_grid(
    rows: int, prefix: int, taken: int, other: int, patch: Grid, hint: tuple[int, int] | None
) -> list[str]:
    """A note if a position table that was interpreted with rows for `taken` of the `prefix` tokens before
    the patches may have rows for `other` of them and an image that is not square.

    For example, n x n patches without a class token have as many rows as (n - 1) x (n + 1) with one, and
    13 x 13 with one as 17 x 10 without.
    """
    patches = rows - other
    if hint or patch[0] != patch[1] or patches < 1:
        return []
    sides = range(math.isqrt(patches), 0, -1)
    width = next(side for side in sides if patches % side == 0)
    height = patches // width
    if height > 2 * width:  # an unlikely aspect ratio
        return []
    side = math.isqrt(rows - taken)
    tokens = f"all {prefix} tokens"
    if other < prefix:
        tokens = f"{other} of {prefix} tokens"
    return [
        f"positions: {rows} rows, read as {side} x {side} patches and {taken} of {prefix} tokens "
        f"before them; if they are {height} x {width} patches and {tokens}: "
        f"`image=({height * patch[0]}, {width * patch[1]})`"
    ]
