"""Weights that a library has replaced by others, from which it computes them: quantised, pruned and parametrised
layers. vitkit reads plain weights only."""

from collections.abc import Container
from typing import NamedTuple


class Transformed(NamedTuple):
    """A way in which libraries replace a layer's weight."""

    instead: tuple[str, ...]
    """The names of the tensors in its place. {layer} is the layer's name, {name} the tensor's, {last} its last
    word."""
    sentence: str
    """What was done, and the remedy."""


WAYS = (
    Transformed(
        ("{layer}.scale", "{layer}.zero_point"),
        "the layer {layer} is quantised; save the state dict of the model before it is quantised",
    ),
    Transformed(
        ("{name}_orig", "{name}_mask"),
        "{name} is pruned; make that permanent before the state dict is saved: "
        "torch.nn.utils.prune.remove(layer, '{last}') for each layer",
    ),
    Transformed(
        ("{name}_g", "{name}_v"),
        "{name} is normalised by torch.nn.utils.weight_norm; save the state dict after "
        "torch.nn.utils.remove_weight_norm(layer) for each layer",
    ),
    *(
        Transformed(
            (f"{{layer}}.parametrizations.{{last}}.{original}",),
            "{name} is computed by a parametrisation; save the state dict after "
            "torch.nn.utils.parametrize.remove_parametrizations(layer, '{last}') for each layer",
        )
        for original in ("original", "original0")
    ),
)


def why_missing(names: Container[str], name: str) -> str:
    """What was done to a tensor that is missing, and the remedy, by the names of the others; "" if nothing
    known."""
    layer, _, last = name.rpartition(".")
    words = {"layer": layer, "name": name, "last": last}
    for way in WAYS:
        if all(instead.format(**words) in names for instead in way.instead):
            return way.sentence.format(**words)
    return ""
