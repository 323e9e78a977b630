"""What the tables of ResNets and of hybrids share: one walk through root, stages and units, under anybody's names."""

from typing import NamedTuple

from vitkit.models import Backbone
from vitkit.weights.description import shape_of
from vitkit.weights.files import Tensors
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
    found = [rule(f"{ours}root.conv.weight", names.under + names.root, way=names.way)]
    if config.order == "post":
        found += pairs(f"{ours}root.norm", names.under + names.root_norm, names=names.ends)
    block = 0
    for stage, count in enumerate(config.units):
        for unit in range(count):
            here, there = f"{ours}blocks.{block}", names.of_unit(stage, unit)
            for n, x in enumerate("abc", 1):
                found.append(
                    rule(
                        f"{here}.conv{n}.weight", there + names.conv.format(n=n, x=x), way=names.way
                    )
                )
                found += pairs(
                    f"{here}.norm{n}", there + names.norm.format(n=n, x=x), names=names.ends
                )
            if unit == 0:
                found.append(rule(f"{here}.shortcut.weight", there + names.shortcut, way=names.way))
            if unit == 0 and config.order == "post":
                found += pairs(
                    f"{here}.shortcut_norm", there + names.shortcut_norm, names=names.ends
                )
            block += 1
    last = pairs(f"{ours}norm", names.under + names.last, names=names.ends)
    return found + (last if config.order == "pre" else [])


def backbone_of(tensors: Tensors, names: Names, order: str, dialect: dict) -> tuple[Backbone, int]:
    """The ResNet that the shapes say, in a dialect, and the channels of its images."""
    kernel = shape_of(tensors, names.under + names.root, 4)
    outputs, inputs = kernel[:2] if names.way is SAME else kernel[:1:-1]
    first, units = names.conv.format(n=1, x="a"), []
    while names.of_unit(len(units), 0) + first in tensors:
        count = 1
        while names.of_unit(len(units), count) + first in tensors:
            count += 1
        units.append(count)
    return Backbone(tuple(units), outputs / 64, order, **dialect), inputs
