"""Google's .npz files of ResNets: the published BiT, and big_vision's two, bit.py (v1) and bit_paper.py (v2).

Each has names of its own, and with them goes the dialect: how it pads and standardises. Legend: as in rules.py.
"""

import re
from dataclasses import replace

from vitkit.data import Preprocessing
from vitkit.models import DIALECTS, Backbone, ResNetConfig
from vitkit.weights.description import (
    Description,
    Hints,
    another_dialect,
    beyond_bit,
    shape_of,
    usual_labels,
)
from vitkit.weights.files import Lazy, Opened, Tensors
from vitkit.weights.formats.google.names import flat_norms, image_part, wide_norms
from vitkit.weights.formats.google.vit import ROOT, V1
from vitkit.weights.formats.resnets import Names, backbone_of, backbone_rules
from vitkit.weights.rules import DENSE, Rule, pairs

NAME = "google"
HOLDS = ("resnet",)  # kinds of configurations
V2 = V1._replace(root=f"root_block/{ROOT}", unit="block{b}/unit{u:02d}/", last="norm-pre-head")
BIT = Names(
    root="root_block/standardized_conv2d/kernel", unit="block{b}/unit{u:02d}/", conv="{x}/standardized_conv2d/kernel",
    norm="{x}/group_norm", shortcut="a/proj/standardized_conv2d/kernel", ends=("/gamma", "/beta"), last="group_norm",
)  # fmt: skip
POINT = "head/conv2d/kernel"  # BiT's head is a 1 x 1 convolution


def _spelling(config: Backbone) -> tuple[Names, str, str]:
    """Names, dialect and head of the code that comes nearest to a model."""
    if config.order == "post":
        return V1, "google", "head"
    return (V2, "big_vision", "head") if config.pool == "even" else (BIT, "bit", "head/conv2d")


def recognises(tensors: Tensors) -> bool:
    """Whether these are a ResNet's names in this format; hybrids have them too."""
    return any(name.endswith((ROOT, BIT.root)) for name in tensors)


def describe(opened: Opened, hints: Hints) -> Description:
    """What names and shapes say; values from -1 to 1 and square images, as in BiT's own evaluation."""
    tensors, notes, layout = tidy(opened.tensors)
    names, dialect = next(
        (n, d) for n, d in ((BIT, "bit"), (V2, "big_vision"), (V1, "google")) if n.root in tensors
    )
    backbone, channels = backbone_of(
        tensors, names, "post" if names is V1 else "pre", DIALECTS[dialect]
    )
    head = "head/conv2d/bias" if names is BIT else "head/bias"
    classes = shape_of(tensors, head, 1)[0] if head in tensors else 0
    config = ResNetConfig(backbone, hints.image or (224, 224), channels, classes)
    if not hints.image:
        notes.append(
            "images: of 224 x 224 pixels; nothing in the file says so, and a ResNet takes any"
        )
    labels, note = usual_labels(classes)
    return Description(
        config, Preprocessing(size=config.image), tensors, labels, (*notes, *note), layout
    )


def rules(config: ResNetConfig) -> list[Rule]:
    """The table, in the spelling of the code that comes nearest."""
    names, _, head = _spelling(config.backbone)
    found = backbone_rules(config.backbone, "", names)
    return found + (pairs("head", head, DENSE, ("/kernel", "/bias")) if config.classes else [])


def cannot(config: ResNetConfig) -> list[str]:
    """What of a model Google's code has no place for."""
    return beyond_bit(config.backbone, "post", "pre")


def differs(config: ResNetConfig) -> list[str]:
    """What Google's code would compute a little differently."""
    return another_dialect(config.backbone, DIALECTS[_spelling(config.backbone)[1]])


def computed(config: ResNetConfig) -> ResNetConfig:
    """The same model as Google's code computes it."""
    return replace(
        config, backbone=replace(config.backbone, **DIALECTS[_spelling(config.backbone)[1]])
    )


def spell(tensors: dict, config: ResNetConfig, layout: str = "") -> dict:
    """Tensors as the layout has them: that of their origin, or of the published files."""
    names = _spelling(config.backbone)[0]
    prefix, *how = (
        layout or f"{'resnet/' if names is BIT else 'params/'}{' wide' if names is V2 else ''}"
    ).split(" ")
    tensors = wide_norms(tensors) if "wide" in how else tensors
    return {prefix + name: t[None, None] if name == POINT else t for name, t in tensors.items()}


def tidy(tensors: Tensors) -> tuple[Tensors, list[str], str]:
    """The model's tensors without a prefix, norms as vectors and the head as a matrix; how they were spelled."""
    end = next(name for name in tensors if name.endswith((ROOT, BIT.root)))
    prefix = re.sub(rf"({BIT.root}|(root_block/)?{ROOT})$", "", end)
    found, notes = image_part(tensors, prefix)
    found, wide = flat_norms(found)
    if POINT in found and found[POINT].shape[:2] == (1, 1):
        head = found[POINT]
        found[POINT] = Lazy(head.shape[2:], head.dtype, lambda: head.read()[0, 0])
    return found, notes, f"{prefix}{' wide' if wide else ''}"
