"""Conditions on the settings of a model, alone and together: each error is one sentence with the value.

`check` is for Vision Transformers.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vitkit.models.pooling import POOLS
from vitkit.models.tiling import as_pair
from vitkit.system.errors import BadSettings
from vitkit.system.values import check_settings

if TYPE_CHECKING:
    from vitkit.models.config import ViTConfig


@dataclass(frozen=True)
class PositionKind:
    """A kind of position embedding. The defaults are those of fixed positions that are added at the stem."""

    default_inject: Literal["stem", "every", "shared"] = "stem"
    """Where the positions are added if ViTConfig.inject is None."""
    adds_to_tokens: bool = True
    """Whether the positions are added to tokens; otherwise they act within attention."""
    has_tables: bool = False
    """Whether the positions have parameters."""
    has_prefix_rows: bool = False
    """Whether the table has rows for the tokens before the patches, see ViTConfig.prefix_positions.
    (Relative positions need none: such a token has offsets like all others.)"""
    any_grid: bool = True
    """Whether the positions have a meaning on grids other than their own."""
    keeps_trained_grid: bool = False
    """Whether a model for another size keeps the grid of its training (ViTConfig.position_grid),
    because its positions cannot be resampled."""
    width_multiple: int = 1
    """Required divisor of the width of a token."""
    head_multiple: int = 1
    """Required divisor of the width of a head."""


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
    "rotary-axial": PositionKind("shared", adds_to_tokens=False, head_multiple=4),
    "rotary-timm": PositionKind(
        "shared", adds_to_tokens=False, keeps_trained_grid=True, head_multiple=4
    ),
    "rotary-dinov3": PositionKind("shared", adds_to_tokens=False, head_multiple=4),
}


def check(config: "ViTConfig") -> None:
    """Raise VitkitError for a setting of the wrong type, out of its range, or in conflict with others."""
    _check_sides(config)
    check_settings(config)
    _check_numbers(config)
    _check_patches(config)
    if not config.tiling.fits(config.image):
        misfit = config.tiling.misfit(config.image)
        raise BadSettings(f"{misfit}; choose {config.tiling.sizes(config.image)}")
    _check_pooling(config)
    _check_positions(config)
    _check_axial(config)


def _check_sides(config: "ViTConfig") -> None:
    """Check patch and stride before the types of all settings: they may be one number or two."""
    for name in ("patch", "stride"):
        value = getattr(config, name)
        if name == "stride" and value is None:
            continue
        if not are_sides(value):
            raise BadSettings(
                f"{name} is {repr(value)[:200]}; it is a whole number of at least 1, or two of them: "
                "height and width"
            )


def are_sides(value: object) -> bool:
    """Whether a value can be the sides of a patch: a whole number of at least 1, or two."""
    sides = as_pair(value)
    if not isinstance(sides, tuple) or len(sides) != 2:
        return False
    return all(isinstance(side, int) and not isinstance(side, bool) and side >= 1 for side in sides)


def _check_numbers(config: "ViTConfig") -> None:
    if config.eps <= 0:
        raise BadSettings(f"eps is {config.eps!r}; it must be a number above 0")
    for name in ("width", "depth", "mlp", "heads", "channels"):
        value = getattr(config, name)
        if value < 1:
            raise BadSettings(f"{name} is {value}; it must be a whole number of at least 1")
    for name in ("classes", "representation", "registers"):
        value = getattr(config, name)
        if value < 0:
            raise BadSettings(f"{name} is {value}; it must be 0 or more")
    for name in ("dropout", "attention_dropout", "stochastic_depth"):
        value = getattr(config, name)
        if not 0 <= value < 1:
            raise BadSettings(
                f"{name} is {value}; it is a probability from 0 up to, not including, 1"
            )
    if config.width % config.heads:
        raise BadSettings(
            f"a width of {config.width} cannot be split among {config.heads} heads; choose a "
            "divisor"
        )


def _check_patches(config: "ViTConfig") -> None:
    size, stride = config.patches
    unit = "pixels"
    if config.stem is not None:
        unit = "positions of the ResNet's feature map"
    if stride[0] > size[0] or stride[1] > size[1]:
        raise BadSettings(
            f"a stride of {config.stride} leaves {unit} between patches of {config.patch} that no "
            "patch sees; choose the patch, or less"
        )


def _check_pooling(config: "ViTConfig") -> None:
    pool = config.pooling
    if pool.reads_class_token and config.class_token is False:
        raise BadSettings(
            f'pool is "{config.pool}" but class_token is False; choose "gap" or "map", or keep '
            "the token"
        )
    if config.pool == "distilled" and (not config.registers or config.representation):
        raise BadSettings(
            f'pool is "distilled" with {config.registers} registers and a representation layer '
            f"of {config.representation}; it reads the first register, and has no representation "
            "layer"
        )
    if config.pool == "distilled" and (not config.classes or config.norm == "pooled"):
        raise BadSettings(
            f'pool is "distilled" with {config.classes} classes and norm "{config.norm}"; its head '
            "is a classifier for each of two tokens, which the last norm sees one by one: say "
            'how many classes there are, and choose norm "tokens". Without a head, "token" reads '
            "the class token"
        )
    if not 1 <= config.read_blocks <= config.depth:
        raise BadSettings(
            f"read_blocks is {config.read_blocks}; a head reads the last of {config.depth} blocks, from 1 "
            "to all"
        )
    if config.read_blocks > 1 and not pool.can_read_blocks:
        names = [f'"{each.name}"' for each in POOLS.values() if each.can_read_blocks]
        raise BadSettings(
            f'read_blocks is {config.read_blocks} with pool "{config.pool}"; states of several blocks '
            f"are read with {', '.join(names[:-1])} or {names[-1]}"
        )
    if config.segments and config.tiling.overlaps:
        raise BadSettings(
            f'pool is "patches" with patches that overlap (stride {config.stride}); logits are '
            "interpolated between patches side by side: leave out stride"
        )
    if config.memory < 0 or (config.memory > 0) != pool.compares_patches:
        raise BadSettings(
            f'memory is {config.memory} with pool "{config.pool}"; it is the number of patches in the memory '
            'bank of the pool "memory", at least 1, and 0 with every other pool'
        )
    if pool.compares_patches and config.classes not in (0, 2):
        raise BadSettings(
            f'classes is {config.classes} with pool "memory", whose anomaly score tells two: good images and '
            "all others"
        )
    joins = pool.can_read_blocks and (pool.states > 1 or config.read_blocks > 1)
    joins = joins or pool.compares_patches
    if joins and (config.norm == "pooled" or config.representation):
        raise BadSettings(
            f'pool is "{config.pool}" with norm "{config.norm}" and a representation layer of '
            f"{config.representation}; its head reads {config.pooled_width // config.width} states of "
            f"{config.width} as they are: "
            'choose norm "tokens" and no representation layer'
        )


def _check_positions(config: "ViTConfig") -> None:
    kind = config.position_kind

    # Kinds with an x and a y split a width between them.
    if config.width % kind.width_multiple:
        raise BadSettings(
            f"a width of {config.width} cannot be split between the x and the y of "
            f"{config.positions} positions; choose a multiple of {kind.width_multiple}"
        )
    head_width = config.width // config.heads
    if head_width % kind.head_multiple:
        raise BadSettings(
            f"a head's width of {head_width} cannot be split between the x and the y of "
            f"{config.positions} positions; choose a multiple of {kind.head_multiple}"
        )

    # Rows of the table for tokens before the patches
    if config.prefix_positions and not kind.has_prefix_rows:
        raise BadSettings(
            f"prefix_positions is {config.prefix_positions}; {config.positions} positions have no "
            "table with rows for the tokens before the patches: leave it out"
        )
    if not 0 <= config.prefix_rows <= config.prefix:
        raise BadSettings(
            f"prefix_positions is {config.prefix_positions}; it is at least 0, and at most "
            f"{config.prefix}, the tokens before the patches"
        )

    # Where they are added
    if config.inject == "stem" and not kind.adds_to_tokens:
        raise BadSettings(
            f'inject is "stem" but {config.positions} positions act within attention; choose '
            '"every" or "shared"'
        )
    if config.inject == "every" and not kind.has_tables:
        raise BadSettings(
            f'inject is "every" but {config.positions} positions have no parameters to differ '
            'by; choose "stem" or "shared"'
        )

    # The grid of their training
    if config.position_grid is None:
        return
    if not kind.keeps_trained_grid:
        raise BadSettings(
            f"position_grid is {config.position_grid}, which is for rotary positions; "
            f"{config.positions} ones take the grid of the image"
        )
    if min(config.position_grid) < 1:
        raise BadSettings(
            f"position_grid is {config.position_grid}; it is a height and a width in patches"
        )


def _check_axial(config: "ViTConfig") -> None:
    if config.mixer != "axial":
        return
    if config.prefix:
        raise BadSettings(
            f"an axial model has no place in its rows and columns for {config.prefix} tokens "
            'before the patches; choose pool "gap", "map", "corner" or "none", and no registers'
        )
    if not config.position_kind.adds_to_tokens:
        raise BadSettings(
            f"{config.positions} positions are made for attention among all tokens; an axial "
            "model takes those that are added to tokens: learned, learned2d, sincos, or none"
        )
