"""`vitkit models`: every named model, and what it costs."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

if TYPE_CHECKING:
    from vitkit.models import ModelConfig


@dataclass
class Models:
    """List every named model with its parameters, its tokens and multiply-accumulates at each size,
    and what a training costs."""

    image: tuple[int, ...] = (224, 384)
    """Sides of square images in pixels. A side that the patch does not divide is rounded down."""
    classes: int = 1000
    """Classes of the head."""
    epochs: float = 7
    """Length of the training whose exaFLOPs are shown, at the first size; 7 epochs of JFT-300M in
    most of Table 6."""
    examples: float = 303e6
    """Images of an epoch."""
    names: Annotated[Positional[tuple[str, ...]], arg(metavar="NAME...")] = field(default=())
    """Models to list, any size with any patch, such as B/20 or R101+B/32. Default: all."""


def models(command: Models) -> int:
    """Print a table with a row for each model."""
    from vitkit.models import NAMES

    if not command.image or min(command.image) < 1:
        raise ValueError(
            f"image is {command.image}; give one or more sides in pixels, such as --image 224 384"
        )

    # The table
    table = Table("model", "parameters")
    for side in command.image:
        table.add_column(f"tokens\n{side}")
        table.add_column(f"GMACs\n{side}")
    table.add_column("exaFLOPs")
    for column in table.columns[1:]:
        column.justify = "right"
    for name in command.names or NAMES:
        table.add_row(name, *_columns(name, command))
    Console().print(table)

    # What it means
    side = command.image[0]
    images = f"{command.epochs:g} epochs of {command.examples:,.0f} images at {side} x {side}"
    print(f"exaFLOPs: {images}.")
    print(
        "LeNet-5 knows 32 x 32 only. "
        "Any size goes with any patch: vitkit models B/20 R101+B/32 R101x4."
    )
    print("next: vitkit train digits")
    return 0


def _columns(name: str, command: Models) -> list[str]:
    """A model's row of the table, after its name."""
    from vitkit.models import cost, exaflops, parameters

    sizes = [_at_side(name, side, command.classes) for side in command.image]
    columns = [f"{parameters(sizes[0]):,}"]
    for config in sizes:
        tokens, macs = cost(config)
        columns += [f"{tokens:,}", _number(macs / 1e9)]
    columns.append(_number(exaflops(sizes[0], command.epochs * command.examples)))
    return columns


def _at_side(name: str, side: int, classes: int) -> "ModelConfig":
    """A named model for square images of this side, or of the multiple of its patch just below."""
    from vitkit.models import named

    config = named(name, classes=classes)
    return config.resized(config.fitting((side, side)))


def _number(value: float) -> str:
    """With two decimals, or for thousands with none."""
    if value < 1000:
        return f"{value:,.2f}"
    return f"{value:,.0f}"
