"""What a file of another format says about its model, and what has to be known beside it."""

import math
import re
from typing import NamedTuple

from vitkit.data import Preprocessing
from vitkit.models import SIZES, Backbone, ModelConfig, ViTConfig, config_from
from vitkit.models.positions import Grid
from vitkit.weights.classifier import Activation
from vitkit.weights.files import Tensors

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


class Hints(NamedTuple):
    """What the user says because the file does not."""

    image: tuple[int, int] | None = None
    """Height and width in pixels that the position table is made for."""
    heads: int | None = None
    """Attention heads."""


class Description(NamedTuple):
    """A model that is about to be read."""

    config: ModelConfig
    preprocessing: Preprocessing
    tensors: Tensors
    """Under the names that the format's rules use."""
    labels: tuple[str, ...] | None = None
    """Names of the classes, where the file gives them."""
    notes: tuple[str, ...] = ()
    """What was assumed, or left out, one sentence each."""
    layout: str = ""
    """Which of the format's spellings this is, for writing it back."""
    activation: Activation = "softmax"
    """How its logits become probabilities."""


def from_json(found: dict) -> tuple[ModelConfig, Preprocessing, tuple[str, ...], Activation, dict]:
    """vitkit's own description of a model: architecture, preprocessing, labels, activation, origin. Raises ValueError."""
    try:
        config = config_from(found["model"])
        preprocessing = Preprocessing.from_json(found["preprocessing"])
        labels = (
            numbered(config.classes)
            if found["labels"] is None
            else tuple(map(str, found["labels"]))
        )
        origin = dict(found["origin"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"it does not describe a vitkit model: {reason}") from error
    if len(labels) != config.classes:
        raise ValueError(f"it names {len(labels)} classes for a head of {config.classes}")
    activation = found.get("activation") or _recorded_activation(origin)
    return config, preprocessing, labels, activation, origin


def _recorded_activation(origin: dict) -> Activation:
    """The activation of a model that was saved before descriptions named it: that of the loss which trained it."""
    objective = origin.get("objective")
    if isinstance(objective, dict) and objective.get("loss") == "sigmoid":
        return "sigmoid"
    return "softmax"


def numbered(classes: int) -> tuple[str, ...]:
    """Names for classes that nobody named."""
    return tuple(map(str, range(classes)))


def imagenet_labels() -> tuple[str, ...]:
    """The names of ImageNet-1k's classes, in the order that every published model has; no name twice."""
    from torchvision.models import ViT_B_16_Weights

    names = list(ViT_B_16_Weights.IMAGENET1K_V1.meta["categories"])
    for i, name in {134: "crane (bird)", 517: "crane (machine)", 639: "maillot, tank suit"}.items():
        names[i] = name
    return tuple(names)


def count_blocks(tensors: Tensors, pattern: str) -> int:
    """How many blocks there are, by a pattern with the block's number in a group. Raises ValueError for a gap."""
    found = {
        int(match[1]) for name in tensors if len(name) < 500 and (match := re.match(pattern, name))
    }
    if not found or max(found) + 1 != len(found):
        raise ValueError(f"its blocks are not numbered from 0 without a gap: {sorted(found)[:8]}")
    return len(found)


def heads_of(width: int, mlp: int, hint: int | None) -> tuple[int, list[str]]:
    """Attention heads, which no shape gives away: of the published size, else 64 channels each. And the note about it."""
    known = next(
        (size["heads"] for size in SIZES.values() if (size["width"], size["mlp"]) == (width, mlp)),
        None,
    )
    heads = hint or known or (width // 64 if width % 64 == 0 else 0)
    if not heads:
        raise ValueError(
            f"nothing in it says how many attention heads share its width of {width}, and no published model has that width; "
            "say so: heads=..., or --heads"
        )
    return heads, [] if hint or known else [
        f"heads: {heads}, of 64 channels each; nothing in the file says so"
    ]


def grid_of(patches: int, patch: int, hint: tuple[int, int] | None) -> Grid:
    """(h, w) of a position table with so many patches: as the user says, else square."""
    if hint:
        grid = (hint[0] // patch, hint[1] // patch)
        if math.prod(grid) != patches:
            raise ValueError(
                f"its position table has {patches} patches, but {hint[0]} x {hint[1]} pixels make {grid[0]} x {grid[1]} of "
                f"{patch} x {patch}"
            )
        return grid
    side = math.isqrt(max(patches, 0))
    if side * side != patches or not side:
        raise ValueError(
            f"its position table has {patches} patches, which make no square; say the size in pixels that it is for: "
            "image=(height, width), or --image HEIGHT WIDTH"
        )
    return side, side


def prefix_rows(rows: int, prefix: int, patch: int, hint: tuple[int, int] | None) -> int:
    """How many of a position table's rows belong to tokens before the patches: all of those tokens, or none of them.

    Tables of both kinds exist (an embedding of the class token was dropped in DeiT III and big_vision); the one that
    leaves a whole grid is meant, and the older kind where both do.
    """
    fitting = []
    for kept in dict.fromkeys((prefix, 0)):
        try:
            grid_of(rows - kept, patch, hint)
            fitting.append(kept)
        except ValueError:
            pass
    return fitting[0] if fitting else prefix


def usual_labels(classes: int) -> tuple[tuple[str, ...] | None, list[str]]:
    """ImageNet-1k's names for a head of 1000, with the note about it; else nothing."""
    if classes != 1000:
        return None, []
    return imagenet_labels(), ["labels: ImageNet-1k's 1,000 classes; nothing in the file says so"]


def shape_of(tensors: Tensors, name: str, axes: int) -> tuple[int, ...]:
    """The shape of a tensor that has to be there, with so many axes. Raises ValueError."""
    if name not in tensors:
        raise ValueError(f"there is no {name} in it")
    if len(tensors[name].shape) != axes:
        raise ValueError(f"{name} has the shape {tensors[name].shape}; it should have {axes} axes")
    return tensors[name].shape


def beyond(
    config: ViTConfig, positions: tuple[str, ...] = ("learned",), stems: bool = False
) -> list[str]:
    """What of a model goes beyond the plain Vision Transformer of other libraries, or the hybrid where they have `stems`."""
    return (beyond_bit(config.stem, "post") if stems and config.stem else []) + [
        what
        for what, there in {
            "a ResNet stem": config.stem is not None and not stems,
            "axial attention": config.mixer != "full",
            f"{config.positions} positions": config.positions not in positions,
            "positions at every block": config.inject not in (None, "stem"),
            "pooling by the first patch": config.pool == "corner",
        }.items()
        if there
    ]


def beyond_bit(backbone: Backbone, *orders: str) -> list[str]:
    """What of a ResNet goes beyond BiT's, in one of these orders of norm and convolution."""
    return [
        what
        for what, there in {
            f'a ResNet in the order "{backbone.order}"': backbone.order not in orders,
            "a ResNet with BatchNorm": backbone.norm != "group",
            "kernels that are not standardised": backbone.standardise == "none",
            f"{backbone.mixer} attention in a ResNet": backbone.mixer != "conv",
        }.items()
        if there
    ]


def another_dialect(backbone: Backbone | None, theirs: dict) -> list[str]:
    """Settings in which a ResNet is not of their dialect: they would compute it a little differently."""
    settings = theirs if backbone else {}
    found = {name: (getattr(backbone, name), there) for name, there in settings.items()}
    return [
        f"the ResNet's {name}: {here} here, {there} there"
        for name, (here, there) in found.items()
        if here != there
    ]
