"""Common code of all tables of ResNets and hybrids: their parts, from the root to the last unit.

A format defines the names of the parts (`ResNetNames`).
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

from vitkit.models import Backbone, Tiling
from vitkit.weights.files.content import Tensors
from vitkit.weights.formats.shapes import shape_of
from vitkit.weights.rules import CONVOLUTION, Rule, Transform, layer, rule


class ResNetNames(NamedTuple):
    """Names of the parts of a ResNet in a format.

    In the names, {stage} and {unit} are replaced by numbers, and the convolution of a unit by {n}
    (1, 2, 3) or {letter} (a, b, c).
    """

    root: str
    unit: str
    conv: str
    norm: str
    shortcut: str
    norm_ends: tuple[str, str]
    """Ends of the names of a norm's weight and bias."""
    root_norm: str = ""
    shortcut_norm: str = ""
    last_norm: str = ""
    """The norm before the head. Only ResNets v2, which normalise before each convolution, have it."""
    prefix: str = ""
    """Prefix of every name."""
    first_number: int = 1
    """Number of the first stage, and of the first unit of each stage."""
    kernel_transform: Transform = CONVOLUTION
    """Transform of its kernels to PyTorch's."""

    def unit_prefix(self, stage: int, unit: int) -> str:
        """The prefix of every name of a unit; stage and unit count from 0."""
        first = self.first_number
        return self.prefix + self.unit.format(stage=stage + first, unit=unit + first)


def backbone_rules(config: Backbone, ours: str, names: ResNetNames) -> list[Rule]:
    """The rules of a ResNet without its head. `ours` is the prefix of vitkit's names."""
    # "post" (ResNet v1) normalises after each convolution, also after those of root and shortcut.
    # "pre" (ResNet v2) normalises before, so it needs a norm after the last unit instead.
    post = config.order == "post"

    # Root
    root = names.prefix + names.root
    table = [rule(f"{ours}root.conv.weight", root, transform=names.kernel_transform)]
    if post:
        table += layer(f"{ours}root.norm", names.prefix + names.root_norm, ends=names.norm_ends)

    # Units: vitkit numbers them consecutively, the format within each stage
    block = 0
    for stage, units in enumerate(config.units):
        for unit in range(units):
            table += _unit_rules(
                f"{ours}blocks.{block}",
                names.unit_prefix(stage, unit),
                names,
                shortcut=unit == 0,
                shortcut_norm=unit == 0 and post,
            )
            block += 1

    # The last norm
    if not post:
        table += layer(f"{ours}norm", names.prefix + names.last_norm, ends=names.norm_ends)
    return table


def _unit_rules(
    ours: str, theirs: str, names: ResNetNames, shortcut: bool, shortcut_norm: bool
) -> list[Rule]:
    """The rules of a unit: three convolutions, each with a norm, and in a stage's first unit a shortcut."""
    table = []
    for n, letter in enumerate("abc", 1):
        conv = theirs + names.conv.format(n=n, letter=letter)
        norm = theirs + names.norm.format(n=n, letter=letter)
        table.append(rule(f"{ours}.conv{n}.weight", conv, transform=names.kernel_transform))
        table += layer(f"{ours}.norm{n}", norm, ends=names.norm_ends)
    if shortcut:
        table.append(
            rule(
                f"{ours}.shortcut.weight", theirs + names.shortcut, transform=names.kernel_transform
            )
        )
    if shortcut_norm:
        table += layer(f"{ours}.shortcut_norm", theirs + names.shortcut_norm, ends=names.norm_ends)
    return table


def backbone_of(
    tensors: Tensors, names: ResNetNames, order: Literal["post", "pre"], dialect: dict
) -> tuple[Backbone, int]:
    """The ResNet that the shapes describe, and the channels of its images.

    dialect: settings that do not follow from shapes: padding, pooling and standardisation in the
        format's code.
    """
    # Root, with PyTorch's axes: (out, in, height, width)
    kernel = torch.empty(shape_of(tensors, names.prefix + names.root, 4), device="meta")
    outputs, inputs = names.kernel_transform.read(kernel).shape[:2]

    # Units of each stage: counted by their first convolutions
    first_conv = names.conv.format(n=1, letter="a")
    units: list[int] = []
    while names.unit_prefix(len(units), 0) + first_conv in tensors:
        count = 1
        while names.unit_prefix(len(units), count) + first_conv in tensors:
            count += 1
        units.append(count)

    width = outputs / 64  # a factor of ResNet-50's channels: BiT's x1, x3
    return Backbone(tuple(units), width, order, **dialect), inputs


def with_stem(
    settings: dict, tensors: Tensors, names: Sequence[ResNetNames], dialect: dict
) -> tuple[dict, Tiling]:
    """The settings of a Vision Transformer, with the ResNet before its patches if there is one with these
    names; and its patches in pixels."""
    tiling = Tiling(settings["patch"], settings["patch"])
    for spelling in names:
        if spelling.prefix + spelling.root in tensors:
            stem, channels = backbone_of(tensors, spelling, "post", dialect)
            return {**settings, "stem": stem, "channels": channels}, tiling.scaled(stem.stride)
    return settings, tiling


def assumed_size(image: tuple[int, int] | None) -> tuple[tuple[int, int], list[str]]:
    """The size of a ResNet's images if it is known, otherwise 224 x 224 with a note."""
    if image:
        return image, []
    note = "images: of 224 x 224 pixels, which the file does not state; a ResNet takes any size"
    return (224, 224), [note]
