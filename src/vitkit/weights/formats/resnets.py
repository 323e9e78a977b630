"""What the tables of ResNets and of hybrids share: one walk through root, stages and units, under anybody's names."""

from typing import NamedTuple

from vitkit.models import Backbone
from vitkit.weights.files import Tensors
from vitkit.weights.formats.shapes import shape_of
from vitkit.weights.rules import CONVOLUTION, SAME, Rule, Way, pairs, rule


class Names(NamedTuple):
    """How a format spells the parts of a ResNet: {b} is the stage, {u} the unit, {n} the convolution from 1, {x} from "a"."""

    root: str
    unit: str
    conv: str
    norm: str
    shortcut: str
    ends: tuple[str, str]
    """A norm's factor and its bias."""
    root_norm: str = ""
    shortcut_norm: str = ""
    last: str = ""
    """The norm before the head, of those that normalise first."""
    under: str = ""
    """What every name begins with."""
    first: int = 1
    """Number of the first stage and of its first unit."""
    way: Way = CONVOLUTION
    """Of kernels."""

    def of_unit(self, stage: int, unit: int) -> str:
        """What every name of a unit begins with, both from 0."""
        return self.under + self.unit.format(b=stage + self.first, u=unit + self.first)


def backbone_rules(config: Backbone, ours: str, names: Names) -> list[Rule]:
    """The table of a ResNet below its head; every name of ours begins with `ours`."""
    normalises_last = config.order == "post"
    table = [rule(f"{ours}root.conv.weight", names.under + names.root, way=names.way)]
    if normalises_last:
        table += pairs(f"{ours}root.norm", names.under + names.root_norm, names=names.ends)
    units = [(stage, unit) for stage, count in enumerate(config.units) for unit in range(count)]
    for block, (stage, unit) in enumerate(units):
        table += _unit_rules(
            f"{ours}blocks.{block}",
            names.of_unit(stage, unit),
            names,
            shortcut=unit == 0,
            shortcut_norm=unit == 0 and normalises_last,
        )
    if not normalises_last:
        table += pairs(f"{ours}norm", names.under + names.last, names=names.ends)
    return table


def _unit_rules(
    ours: str, theirs: str, names: Names, shortcut: bool, shortcut_norm: bool
) -> list[Rule]:
    """The table of a residual unit: three convolutions and norms, and in the first of a stage a projected shortcut."""
    table = []
    for n, x in enumerate("abc", 1):
        conv = theirs + names.conv.format(n=n, x=x)
        norm = theirs + names.norm.format(n=n, x=x)
        table.append(rule(f"{ours}.conv{n}.weight", conv, way=names.way))
        table += pairs(f"{ours}.norm{n}", norm, names=names.ends)
    if shortcut:
        table.append(rule(f"{ours}.shortcut.weight", theirs + names.shortcut, way=names.way))
    if shortcut_norm:
        table += pairs(f"{ours}.shortcut_norm", theirs + names.shortcut_norm, names=names.ends)
    return table


def backbone_of(tensors: Tensors, names: Names, order: str, dialect: dict) -> tuple[Backbone, int]:
    """The ResNet that the shapes say, in a dialect, and the channels of its images."""
    kernel = shape_of(tensors, names.under + names.root, 4)
    if names.way is SAME:
        outputs, inputs = kernel[0], kernel[1]
    else:  # flax: (height, width, in, out)
        outputs, inputs = kernel[3], kernel[2]
    first_conv = names.conv.format(n=1, x="a")
    units = []  # of each stage
    while names.of_unit(len(units), 0) + first_conv in tensors:
        count = 1
        while names.of_unit(len(units), count) + first_conv in tensors:
            count += 1
        units.append(count)
    return Backbone(tuple(units), outputs / 64, order, **dialect), inputs


def assumed_size(image: tuple[int, int] | None) -> tuple[tuple[int, int], list[str]]:
    """The size of a ResNet's images, as far as it is known, and the note if it is not."""
    if image:
        return image, []
    note = "images: of 224 x 224 pixels; nothing in the file says so, and a ResNet takes any"
    return (224, 224), [note]
