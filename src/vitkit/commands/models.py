"""`vitkit models`."""

from dataclasses import dataclass, field
from typing import Annotated

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg


@dataclass
class Models:
    """Every named model with its parameters, its tokens and multiply-accumulates at each size, and what a training costs."""

    image: tuple[int, ...] = (224, 384)
    """Sides of square images in pixels; a patch that does not divide one takes the multiple just below."""
    classes: int = 1000
    """Classes of the head."""
    epochs: float = 7
    """Length of the training whose exaFLOPs are shown, at the first size; 7 epochs of JFT-300M in most of Table 6."""
    examples: float = 303e6
    """Images of an epoch."""
    names: Annotated[Positional[tuple[str, ...]], arg(metavar="NAME")] = field(default=())
    """Only these; any size with any patch, such as B/20 or R101+B/32."""


def models(command: Models) -> int:
    """`vitkit models`."""
    from dataclasses import replace

    from vitkit.models import NAMES, ViTConfig, cost, exaflops, named

    def number(value: float) -> str:
        return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"

    if not command.image or min(command.image) < 1:
        raise ValueError(
            f"image is {command.image}; give one or more sides in pixels, such as --image 224 384"
        )
    sizes = [column for side in command.image for column in (f"tokens\n{side}", f"GMACs\n{side}")]
    table = Table("model", "parameters", *sizes, "exaFLOPs")
    for column in table.columns[1:]:
        column.justify = "right"
    for name in command.names or NAMES:
        config = named(name, classes=command.classes)
        stride = config.stride if isinstance(config, ViTConfig) else 1
        sides = [max(side // stride, 1) * stride for side in command.image]
        made = [
            config if name == "LeNet-5" else replace(config, image=(side, side)) for side in sides
        ]
        found = [cost(one) for one in made]
        columns = [text for one in found for text in (f"{one.tokens:,}", number(one.macs / 1e9))]
        training = exaflops(made[0], command.epochs * command.examples)
        table.add_row(name, f"{found[0].parameters:,}", *columns, number(training))
    Console().print(table)
    print(
        f"exaFLOPs: {command.epochs:g} epochs of {command.examples:,.0f} images at {command.image[0]} x {command.image[0]}."
    )
    print(
        "LeNet-5 knows 32 x 32 only. Any size goes with any patch: vitkit models B/20 R101+B/32 R101x4."
    )
    print("next: vitkit train digits")
    return 0
