"""`vitkit models`: every named model with its cost, and the published weights."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Unpack

from rich.table import Table

from vitkit.models import NAMES, ModelConfig, cost, exaflops, named, parameters
from vitkit.system.errors import BadSettings
from vitkit.system.functions.public import public
from vitkit.system.functions.results import Rows
from vitkit.system.functions.steps import step
from vitkit.system.functions.types import Messages, Several
from vitkit.weights.published import (
    SOURCES,
    Published,
    all_published,
    find_published,
    is_pattern,
    nearest_published,
)


@dataclass(frozen=True, repr=False)
class ModelList(Rows):
    """Named models, and the cost of each."""

    configs: dict[str, tuple[ModelConfig, ...]]
    """Name -> the model at each image size."""
    image: tuple[int, ...]
    """Sides of the images in pixels."""
    epochs: float
    """Length of the training that exaFLOPs are computed for."""
    examples: float
    """Images in an epoch."""

    def rows(self) -> list[dict]:
        """A row for each model and image size, with its tokens and operations."""
        images = self.epochs * self.examples
        rows = []
        for name, configs in self.configs.items():
            for side, config in zip(self.image, configs, strict=True):
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
        table = Table("model", "parameters")
        for side in self.image:
            table.add_column(f"tokens\n{side}")
            table.add_column(f"GMACs\n{side}")
        table.add_column("exaFLOPs")
        for column in table.columns[1:]:
            column.justify = "right"
        for name, configs in self.configs.items():
            table.add_row(name, *_columns(configs, self.epochs * self.examples))
        yield table

        # Explanation of the columns
        side = self.image[0]
        images = f"{self.epochs:g} epochs of {self.examples:,.0f} images at {side} x {side}"
        yield f"exaFLOPs: {images}."
        yield (
            "LeNet-5 knows 32 x 32 only. "
            f"Any size goes with any patch: {step('list_models', 'B/20', 'R101+B/32', 'R101x4')}."
        )
        published = step("list_models", published=True)
        yield f"next: {step('train', 'digits')}, or {published}, the weights to begin with"


@dataclass(frozen=True, repr=False)
class PublishedList(Rows):
    """Published weights that vitkit opens."""

    weights: tuple[Published, ...]
    """A row of the table for each."""
    by_family: bool
    """Whether families are listed instead of individual weights."""

    def rows(self) -> list[dict]:
        """A row for each of the weights, with all of its fields."""
        return [
            {**vars(each), "address": each.where, "here": each.is_here} for each in self.weights
        ]

    def shown(self) -> Iterator[str | Table]:
        """A line for each family, or two for each of the weights."""
        if self.by_family:
            yield self._families()
            yield "top-1: on ImageNet, in percent, the best that is stated."
            yield "MB: 10^6 bytes of a file; if unknown, four bytes for each parameter."
            each = step("list_models", "dinov2", published=True)
            yield f"next: {each}, or any other NAME, lists each"
            return
        for row in self.weights:
            yield row.name
            yield f"    {description(row)}"

        # Sources, and the next command
        sources = sorted({each.source for each in self.weights} - {""})
        for source in sources:
            yield f"{source}: {SOURCES[source]}"
        first = self.weights[0]
        if first.library == "torchvision":
            yield f"torchvision's are files: download one from its address, such as {first.where}"
        yield f"next: {step('finetune', first.name, 'photos/')}"

    def _families(self) -> Table:
        """A table of the families in the order of their first weights."""
        table = Table("family", "weights", "pixels", "MB", "top-1", "licence")
        for column in table.columns[1:5]:
            column.justify = "right"
        families: dict[str, list[Published]] = {}
        for each in self.weights:
            families.setdefault(each.family, []).append(each)
        for family, members in families.items():
            best = max((each.top1 for each in members if each.top1), default=None)
            table.add_row(
                family,
                str(len(members)),
                _range([each.pixels for each in members]),
                _range([each.megabytes for each in members if each.megabytes]),
                f"{best:.1f}" if best else "",
                ", ".join(sorted({each.licence for each in members} - {""})),
            )
        return table


@public
def list_models(
    *names: str,
    published: bool = False,
    image: Several[int] = (224, 384),
    classes: int = 1000,
    epochs: float = 7,
    examples: float = 303e6,
    **messages: Unpack[Messages],
) -> ModelList | PublishedList:
    """List every named model with its parameters, its tokens and multiply-accumulates at each image
    size, and the cost of its training; or, with `published`, the weights that you can begin with.

    Args:
        names: Models to list, any size with any patch, such as B/20 or R101+B/32; or patterns, such as
            'B/*', or 'vit_*', which fits published weights. Default: all.
        published: List published weights instead: those whose name, family, architecture or pre-training
            contains one of the names, such as dinov2 or B/16; without a name, one line for each family.
        image: Sides of square images in pixels. A side that the patch does not divide is rounded down.
        classes: Classes of the head.
        epochs: Length of the training for which exaFLOPs are shown, at the first image size; in most of
            Table 6, 7 epochs of JFT-300M.
        examples: Images in an epoch.
        **messages: Where messages go.

    Raises:
        BadSettings: If there is no model, and are no published weights, of a name.
    """
    if published:
        return list_published(names)
    if not image or min(image) < 1:
        raise BadSettings(
            f"`image` is {image}; give one or more sides in pixels, such as `image=(224, 384)`"
        )
    listed = []
    for name in names or NAMES:
        fitting = fnmatch.filter(NAMES, name)
        if is_pattern(name) and not fitting:  # a pattern of timm's names, for example
            return list_published(names)
        listed += fitting or [name]
    configs = {}
    for name in listed:
        configs[name] = tuple(_at_side(name, side, classes) for side in image)
    return ModelList(configs, image, epochs, examples)


def list_published(names: tuple[str, ...]) -> PublishedList:
    """The published weights that match any of these texts. Raises VitkitError if one matches none."""
    if not names:
        return PublishedList(all_published(), by_family=True)
    found: dict[str, Published] = {}
    for name in names:
        rows = find_published(name)
        if not rows:
            near = nearest_published(name)
            question = f"; did you mean {near}?" if near else ""
            raise BadSettings(
                f"no published weights have {name!r} in their name, family, architecture or "
                f"pre-training{question}; `published` without a name lists the families"
            )
        found |= {row.name: row for row in rows}
    return PublishedList(tuple(found.values()), by_family=False)


def description(weights: Published) -> str:
    """A description of weights in a line: "ViT-S/14, 518 pixels; LVD-142M; 81.1 % (a linear probe,
    DINOv2); apache-2.0; 88 MB; here"."""
    parts = [f"{weights.model}, {weights.pixels} pixels"]
    if weights.pretraining:
        parts.append(weights.pretraining)
    if weights.top1 is not None:
        parts.append(f"{weights.top1:.1f} % ({weights.measured}, {weights.source})")
    if weights.licence:
        parts.append(weights.licence)
    if weights.megabytes:
        parts.append(f"{weights.megabytes:,} MB")
    if weights.is_here:
        parts.append("here")
    return "; ".join(parts)


def _range(numbers: list[int]) -> str:
    """The smallest and the largest number: "224 to 518"; "" without numbers."""
    if not numbers:
        return ""
    least = min(numbers)
    most = max(numbers)
    if least == most:
        return f"{least:,}"
    return f"{least:,} to {most:,}"


def _columns(sizes: tuple[ModelConfig, ...], images: float) -> list[str]:
    """The cells of a model after its name. images: number of training images in all epochs."""
    columns = [f"{parameters(sizes[0]):,}"]
    for config in sizes:
        tokens, macs = cost(config)
        columns += [f"{tokens:,}", _number(macs / 1e9)]
    columns.append(_number(exaflops(sizes[0], images)))
    return columns


def _at_side(name: str, side: int, classes: int) -> ModelConfig:
    """A named model for square images of this side, rounded down to a multiple of its patch."""
    config = named(name, classes=classes)
    return config.resized(config.fitting((side, side)))


def _number(value: float) -> str:
    """A number with two decimals, or from a thousand on without."""
    if value < 1000:
        return f"{value:,.2f}"
    return f"{value:,.0f}"
