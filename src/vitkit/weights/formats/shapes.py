"""Reading an architecture from the shapes of its tensors.

Everything here raises VitkitError for shapes that make no model. A `hint` is what the user says
because the file does not, or None.
"""

import math
import re
from typing import TypedDict

from vitkit.models import Grid
from vitkit.models.zoo import SIZES
from vitkit.system.errors import BadWeights, VitkitError
from vitkit.weights.files.content import Tensors


class ChannelStatistics(TypedDict):
    """Mean and standard deviation of the channels, by which images are normalised."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


# ImageNet's mean and standard deviation, for models whose files do not say that they need them.
IMAGENET: ChannelStatistics = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
# What a user may say of a file that does not. CLIP's are those of OpenAI's images.
STATISTICS: dict[str, ChannelStatistics] = {
    "imagenet": IMAGENET,
    "half": {"mean": (0.5,) * 3, "std": (0.5,) * 3},
    "clip": {
        "mean": (0.48145466, 0.4578275, 0.40821073),
        "std": (0.26862954, 0.26130258, 0.27577711),
    },
}
LONGEST_NAME = 500  # characters; a file that nobody should trust may have any


def shape_of(tensors: Tensors, name: str, axes: int) -> tuple[int, ...]:
    """The shape of a tensor that must exist and have this many axes."""
    if name not in tensors:
        raise BadWeights(f"there is no {name} in it")
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
    """The number of blocks. `pattern` matches names, and its group is the block's number."""
    matches = [re.match(pattern, name) for name in tensors if len(name) < LONGEST_NAME]
    numbers = {int(match[1]) for match in matches if match}
    if not numbers or max(numbers) + 1 != len(numbers):
        raise BadWeights(f"its blocks are not numbered from 0 without a gap: {sorted(numbers)[:8]}")
    return len(numbers)


def heads_of(width: int, mlp: int, hint: int | None) -> tuple[int, list[str]]:
    """The number of attention heads, and a note unless the user gave it.

    No shape tells it: q, k and v are (D, D) for any number. It is the user's, or that of the
    published model of this width (Table 1 and its siblings), or one for every 64 channels.
    """
    if hint:
        return hint, []
    for name, size in SIZES.items():
        if (size["width"], size["mlp"]) == (width, mlp):
            heads = size["heads"]
            note = f"heads: {heads}, as ViT-{name} has; nothing in the file says so"
            if (name, heads) == ("S", 6):
                note += " (MoCo v3's has 12: `heads=12`)"
            return heads, [note]
    if width == 0 or width % 64:
        raise BadWeights(
            f"nothing in it says how many attention heads share its width of {width}, "
            "and no published model has that width; say so: `heads=N`"
        )
    heads = width // 64
    note = f"heads: {heads}, of 64 channels each; nothing in the file says so (otherwise: `heads`)"
    return heads, [note]


def grid_of(patches: int, patch: Grid, hint: tuple[int, int] | None) -> Grid:
    """(h, w) of this many patches of (height, width): for the user's size, else for a square
    image."""
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
            f"its position table has {patches} patches, which make no square; say the size in "
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
    """How a position table of so many rows is read: the grid; how many of the tokens before the patches
    have a position, None if all; and a note if there is another reading. Published are:

    - a row for each token: the paper's code, timm, DeiT, MAE and DINO;
    - none: DeiT III (timm's no_embed_class), and big_vision;
    - one for the class token, none for registers: DINOv2.

    `tokens` are the numbers that may have one, all of them first. The first that leaves the rows of a
    whole grid counts; if none does, the first. `either`: the last is so usual that it is told where
    the first counts and the rows may be the last's, too.
    """
    with_position = next((n for n in tokens if _is_grid(rows - n, patch, hint)), tokens[0])
    grid = grid_of(rows - with_position, patch, hint)
    if with_position != tokens[0]:
        notes = _other_reading(rows, tokens[0], with_position, tokens[0], patch, hint)
        return grid, with_position, notes
    if either and tokens[-1] != tokens[0]:
        return grid, None, _other_reading(rows, tokens[0], tokens[0], tokens[-1], patch, hint)
    return grid, None, []


def _is_grid(patches: int, patch: Grid, hint: tuple[int, int] | None) -> bool:
    """Whether so many patches make a grid of the user's size, or without one a square image."""
    try:
        grid_of(patches, patch, hint)
    except VitkitError:
        return False
    return True


def _other_reading(
    rows: int, prefix: int, taken: int, other: int, patch: Grid, hint: tuple[int, int] | None
) -> list[str]:
    """A note if a position table that is read with a row for `taken` of the `prefix` tokens before the
    patches may have one for `other` of them, for an image that is no square. So n x n patches without
    a class token are as many rows as (n - 1) x (n + 1) with one, and 13 x 13 with one as 17 x 10
    without."""
    patches = rows - other
    if hint or patch[0] != patch[1] or patches < 1:
        return []
    sides = range(math.isqrt(patches), 0, -1)
    width = next(side for side in sides if patches % side == 0)
    height = patches // width
    if height > 2 * width:  # hardly an image's proportions
        return []
    side = math.isqrt(rows - taken)
    tokens = f"all {prefix} tokens"
    if other < prefix:
        tokens = f"{other} of {prefix} tokens"
    return [
        f"positions: {rows} rows, taken for {side} x {side} patches and {taken} of {prefix} tokens "
        f"before them; if they are {height} x {width} patches and {tokens}: "
        f"`image=({height * patch[0]}, {width * patch[1]})`"
    ]
