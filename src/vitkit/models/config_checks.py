"""What a Vision Transformer's settings must be, alone and together: each refusal is one sentence with
the value. `ViTConfig` (config.py) calls `check` on whatever is made of it."""

from typing import TYPE_CHECKING

from vitkit.models.positions.kinds import POSITION_KINDS
from vitkit.models.resnets.backbone import as_pair, check_types

if TYPE_CHECKING:
    from vitkit.models.config import ViTConfig

# Poolings that read the class token
NEEDS_CLASS_TOKEN = ("token", "distilled", "token-gap", "token-quarters")
# How many states of D numbers a pooling puts side by side, if more than one
STATES = {"distilled": 2, "token-gap": 2, "token-quarters": 5}


def check(config: "ViTConfig") -> None:
    """Raises ValueError for a setting that is not of its type, is out of its range, or cannot go with
    the others."""
    _check_sides(config)
    check_types(config)
    _check_numbers(config)
    _check_patches(config)
    _check_image(config)
    _check_pooling(config)
    _check_positions(config)
    _check_axial(config)


def _check_sides(config: "ViTConfig") -> None:
    """Before the types of all settings: these two take one number or two."""
    for name in ("patch", "stride"):
        value = getattr(config, name)
        if name == "stride" and value is None:
            continue
        if not are_sides(value):
            raise ValueError(
                f"{name} is {repr(value)[:200]}; it is a whole number of at least 1, or two of them: "
                "height and width"
            )


def are_sides(value: object) -> bool:
    """Whether a value can be the sides of a patch: a whole number from 1 on, or two."""
    sides = as_pair(value)
    if not isinstance(sides, tuple) or len(sides) != 2:
        return False
    return all(isinstance(side, int) and not isinstance(side, bool) and side >= 1 for side in sides)


def _check_numbers(config: "ViTConfig") -> None:
    if config.eps <= 0:
        raise ValueError(f"eps is {config.eps!r}; it must be a number above 0")
    for name in ("width", "depth", "mlp", "heads", "channels"):
        value = getattr(config, name)
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be a whole number of at least 1")
    for name in ("classes", "representation", "registers"):
        value = getattr(config, name)
        if value < 0:
            raise ValueError(f"{name} is {value}; it must be 0 or more")
    for name in ("dropout", "attention_dropout", "stochastic_depth"):
        value = getattr(config, name)
        if not 0 <= value < 1:
            raise ValueError(
                f"{name} is {value}; it is a probability from 0 up to, not including, 1"
            )
    if config.width % config.heads:
        raise ValueError(
            f"a width of {config.width} cannot be split among {config.heads} heads; choose a "
            "divisor"
        )


def _check_patches(config: "ViTConfig") -> None:
    size, stride = config.patches
    unit = "pixels"
    if config.stem is not None:
        unit = "positions of the ResNet's feature map"
    if stride[0] > size[0] or stride[1] > size[1]:
        raise ValueError(
            f"a stride of {config.stride} leaves {unit} between patches of {config.patch} that no "
            "patch sees; choose the patch, or less"
        )


def _check_image(config: "ViTConfig") -> None:
    tiling = config.tiling
    if not tiling.fits(config.image):
        raise ValueError(f"{tiling.misfit(config.image)}; choose {tiling.sizes(config.image)}")


def _check_pooling(config: "ViTConfig") -> None:
    if config.pool in NEEDS_CLASS_TOKEN and config.class_token is False:
        raise ValueError(
            f'pool is "{config.pool}" but class_token is False; choose "gap" or "map", or keep '
            "the token"
        )
    if config.pool == "distilled" and (not config.registers or config.representation):
        raise ValueError(
            f'pool is "distilled" with {config.registers} registers and a representation layer '
            f"of {config.representation}; it reads the first register, and has no representation "
            "layer"
        )
    if config.pool == "distilled" and (not config.classes or config.norm == "pooled"):
        raise ValueError(
            f'pool is "distilled" with {config.classes} classes and norm "{config.norm}"; its head '
            "is a classifier for each of two tokens, which the last norm sees one by one: say "
            'how many classes there are, and choose norm "tokens". Without a head, "token" reads '
            "the class token"
        )
    joins = config.pool in ("token-gap", "token-quarters")
    if joins and (config.norm == "pooled" or config.representation):
        raise ValueError(
            f'pool is "{config.pool}" with norm "{config.norm}" and a representation layer of '
            f"{config.representation}; its head reads {STATES[config.pool]} states of {config.width} "
            "as they are: "
            'choose norm "tokens" and no representation layer'
        )


def _check_positions(config: "ViTConfig") -> None:
    kind = POSITION_KINDS[config.positions]

    # Kinds with an x and a y split a width between them.
    if config.width % kind.width_multiple:
        raise ValueError(
            f"a width of {config.width} cannot be split between the x and the y of "
            f"{config.positions} positions; choose a multiple of {kind.width_multiple}"
        )
    head_width = config.width // config.heads
    if head_width % kind.head_multiple:
        raise ValueError(
            f"a head's width of {head_width} cannot be split between the x and the y of "
            f"{config.positions} positions; choose a multiple of {kind.head_multiple}"
        )

    # Rows of the table for tokens before the patches
    if config.prefix_positions and not kind.has_prefix_rows:
        raise ValueError(
            f"prefix_positions is {config.prefix_positions}; {config.positions} positions have no "
            "table with rows for the tokens before the patches: leave it out"
        )
    if not 0 <= config.prefix_rows <= config.prefix:
        raise ValueError(
            f"prefix_positions is {config.prefix_positions}; it is at least 0, and at most "
            f"{config.prefix}, the tokens before the patches"
        )

    # Where they enter
    if config.inject == "stem" and not kind.adds_to_tokens:
        raise ValueError(
            f'inject is "stem" but {config.positions} positions act within attention; choose '
            '"every" or "shared"'
        )
    if config.inject == "every" and not kind.has_tables:
        raise ValueError(
            f'inject is "every" but {config.positions} positions have no parameters to differ '
            'by; choose "stem" or "shared"'
        )

    # The grid they were trained on
    if config.position_grid is None:
        return
    if not kind.keeps_trained_grid:
        raise ValueError(
            f"position_grid is {config.position_grid}, which is for rotary positions; "
            f"{config.positions} ones take the grid of the image"
        )
    if min(config.position_grid) < 1:
        raise ValueError(
            f"position_grid is {config.position_grid}; it is a height and a width in patches"
        )


def _check_axial(config: "ViTConfig") -> None:
    if config.mixer != "axial":
        return
    if config.prefix:
        raise ValueError(
            f"an axial model has no place in its rows and columns for {config.prefix} tokens "
            'before the patches; choose pool "gap", "map", "corner" or "none", and no registers'
        )
    if not POSITION_KINDS[config.positions].adds_to_tokens:
        raise ValueError(
            f"{config.positions} positions are made for attention among all tokens; an axial "
            "model takes those that are added to tokens: learned, learned2d, sincos, or none"
        )
