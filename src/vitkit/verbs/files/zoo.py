"""Every named model, and what it costs."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from rich.table import Table
from tyro.conf import Positional, arg

from vitkit.models import NAMES, ModelConfig, cost, exaflops, named, parameters
from vitkit.verbs.definition import result, verb


@dataclass(frozen=True)
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


@result
@dataclass(frozen=True)
class ModelList:
    """Named models, and what each costs."""

    settings: Models
    configs: dict[str, tuple[ModelConfig, ...]]
    """By name: the model at each size."""

    def rows(self) -> list[dict]:
        """A row for each model and size: its tokens, and operations."""
        images = self.settings.epochs * self.settings.examples
        rows = []
        for name, configs in self.configs.items():
            for side, config in zip(self.settings.image, configs, strict=True):
                tokens, macs = cost(config)
                rows.append(
                    {
                        "model": name,
                        "parameters": parameters(config),
                        "image": side,
                        "tokens": tokens,
                        "macs": macs,
                        "exaflops": exaflops(config, images),
                    }
                )
        return rows

    def shown(self) -> Iterator[str | Table]:
        """A table with a row for each model."""
        settings = self.settings
        table = Table("model", "parameters")
        for side in settings.image:
            table.add_column(f"tokens\n{side}")
            table.add_column(f"GMACs\n{side}")
        table.add_column("exaFLOPs")
        for column in table.columns[1:]:
            column.justify = "right"
        for name, configs in self.configs.items():
            table.add_row(name, *_columns(configs, settings))
        yield table

        # What it means
        side = settings.image[0]
        images = f"{settings.epochs:g} epochs of {settings.examples:,.0f} images at {side} x {side}"
        yield f"exaFLOPs: {images}."
        yield (
            "LeNet-5 knows 32 x 32 only. "
            "Any size goes with any patch: vitkit models B/20 R101+B/32 R101x4."
        )
        yield "next: vitkit train digits"


@verb
def list_models(settings: Models) -> ModelList:
    """Named models with their parameters, tokens and multiply-accumulates at each size, and the
    operations of a training. Raises ValueError if a name does not exist."""
    if not settings.image or min(settings.image) < 1:
        raise ValueError(
            f"image is {settings.image}; give one or more sides in pixels, such as --image 224 384"
        )
    configs = {}
    for name in settings.names or NAMES:
        configs[name] = tuple(_at_side(name, side, settings.classes) for side in settings.image)
    return ModelList(settings, configs)


def _columns(sizes: tuple[ModelConfig, ...], settings: Models) -> list[str]:
    """A model's row of the table, after its name."""
    columns = [f"{parameters(sizes[0]):,}"]
    for config in sizes:
        tokens, macs = cost(config)
        columns += [f"{tokens:,}", _number(macs / 1e9)]
    columns.append(_number(exaflops(sizes[0], settings.epochs * settings.examples)))
    return columns


def _at_side(name: str, side: int, classes: int) -> ModelConfig:
    """A named model for square images of this side, or of the multiple of its patch just below."""
    config = named(name, classes=classes)
    return config.resized(config.fitting((side, side)))


def _number(value: float) -> str:
    """With two decimals, or for thousands with none."""
    if value < 1000:
        return f"{value:,.2f}"
    return f"{value:,.0f}"
