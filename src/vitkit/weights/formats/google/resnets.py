"""Google's .npz files of ResNets, from three code bases.

They are the published BiT (google-research/big_transfer), and big_vision's models/bit.py (ResNet v1) and
models/bit_paper.py (ResNet v2). Each has its own names, and its own dialect of padding and
standardisation.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from torch import Tensor

from vitkit.data import Preprocessing
from vitkit.models import DIALECTS, Backbone, ResNetConfig
from vitkit.system.errors import BadWeights
from vitkit.weights.classifier import Classifier, Description
from vitkit.weights.files.content import Lazy, Tensors
from vitkit.weights.files.directory import Opened
from vitkit.weights.formats.format import Elsewhere, Format, Tidied, another_dialect, beyond_bit
from vitkit.weights.formats.google.names import flat_norms, image_part, norms_to_4d
from vitkit.weights.formats.google.vit import ROOT, VIT_JAX_NAMES, as_google_computes
from vitkit.weights.formats.resnets import ResNetNames, assumed_size, backbone_of, backbone_rules
from vitkit.weights.formats.shapes import length_of
from vitkit.weights.hints import Hints
from vitkit.weights.outputs import usual_labels
from vitkit.weights.rules import DENSE, Rule, layer

BIT_PAPER_NAMES = VIT_JAX_NAMES._replace(
    root=f"root_block/{ROOT}", unit="block{stage}/unit{unit:02d}/", last_norm="norm-pre-head"
)
BIG_TRANSFER_NAMES = ResNetNames(
    root="root_block/standardized_conv2d/kernel",
    unit="block{stage}/unit{unit:02d}/",
    conv="{letter}/standardized_conv2d/kernel",
    norm="{letter}/group_norm",
    shortcut="a/proj/standardized_conv2d/kernel",
    norm_ends=("/gamma", "/beta"),
    last_norm="group_norm",
)
HEAD_KERNEL = "head/conv2d/kernel"  # BiT's head is a 1 x 1 convolution
# big_transfer is TensorFlow code, which may number layers of one kind: standardized_conv2d_1
NUMBERED = re.compile(r"(standardized_conv2d|group_norm|conv2d)_\d+(?=/)")


class Code(NamedTuple):
    """One of Google's code bases for ResNets."""

    names: ResNetNames
    order: Literal["post", "pre"]
    """Order of norm and convolution: "post" or "pre"."""
    dialect: dict
    """Settings of padding and standardisation."""
    head: str
    """Prefix of the names of the head."""
    prefix: str
    """Prefix of every name in its files."""
    norms_4d: bool
    """Whether its files store GroupNorms as (1, 1, 1, C)."""


BIG_TRANSFER = Code(
    BIG_TRANSFER_NAMES, "pre", DIALECTS["bit"], "head/conv2d", "resnet/", norms_4d=False
)
BIG_VISION_BIT_PAPER = Code(
    BIT_PAPER_NAMES, "pre", DIALECTS["big_vision"], "head", "params/", norms_4d=True
)
BIG_VISION_BIT = Code(VIT_JAX_NAMES, "post", DIALECTS["google"], "head", "params/", norms_4d=False)
CODES = (BIG_TRANSFER, BIG_VISION_BIT_PAPER, BIG_VISION_BIT)


def recognises(tensors: Tensors) -> bool:
    """Recognise a ResNet by its root. Hybrids have it too, so google/vit.py comes first."""
    names = (_without_number(name) for name in tensors)
    return any(name.endswith((ROOT, BIG_TRANSFER_NAMES.root)) for name in names)


def _without_number(name: str) -> str:
    """The name of an array as in the published files of big_transfer."""
    return NUMBERED.sub(r"\1", name)


def tidy(tensors: Tensors) -> Tidied:
    """The model's tensors without a prefix, with norms as vectors and the head as a matrix."""
    unnumbered = {_without_number(name): lazy for name, lazy in tensors.items()}
    if len(unnumbered) != len(tensors):
        raise BadWeights("it has two arrays of the same layer, whose names differ by a number")
    tensors = unnumbered

    # The prefix is the text before the name of the root convolution. One of these names ends in another,
    # so the longest that matches is used
    roots = sorted((code.names.root for code in CODES), key=len, reverse=True)
    name = next(name for name in tensors if name.endswith(tuple(roots)))
    root = next(root for root in roots if name.endswith(root))
    prefix = name.removesuffix(root)
    tensors, notes = image_part(tensors, prefix)

    # Vectors and a matrix
    tensors, norms_4d = flat_norms(tensors)
    if HEAD_KERNEL in tensors and tensors[HEAD_KERNEL].shape[:2] == (1, 1):
        kernel = tensors[HEAD_KERNEL]
        tensors[HEAD_KERNEL] = Lazy(kernel.shape[2:], kernel.dtype, lambda: kernel.read()[0, 0])

    # "resnet/ wide": the prefix, or "-" without one; "wide" if norms were (1, 1, 1, C)
    layout = prefix or "-"
    if norms_4d:
        layout += " wide"
    return Tidied(tensors, tuple(notes), layout)


def describe(opened: Opened, tidied: Tidied, hints: Hints) -> Description:
    """The description that follows from names and shapes. Images are square, with pixels from -1 to 1, as
    in BiT's own evaluation."""
    tensors = tidied.tensors
    code = next(code for code in CODES if code.names.root in tensors)
    backbone, channels = backbone_of(tensors, code.names, code.order, code.dialect)
    classes = length_of(tensors, f"{code.head}/bias")
    image, image_note = assumed_size(hints.image or None)
    labels, labels_note = usual_labels(classes)
    return Description(
        ResNetConfig(backbone, image, channels, classes),
        Preprocessing(size=image),
        labels,
        notes=(*image_note, *labels_note),
    )


def nearest(config: Backbone) -> Code:
    """The code base whose arithmetic is closest to a model's."""
    if config.order == "post":
        return BIG_VISION_BIT
    # The two ResNets v2 differ only in the border of the max-pooling
    if config.pool == "even":
        return BIG_VISION_BIT_PAPER
    return BIG_TRANSFER


def rules(config: ResNetConfig) -> list[Rule]:
    """The table of rules, with the names of the nearest code base."""
    code = nearest(config.backbone)
    table = backbone_rules(config.backbone, "", code.names)
    if config.classes:
        table += layer("head", code.head, DENSE, ("/kernel", "/bias"))
    return table


def spell(tensors: dict[str, Tensor], config: ResNetConfig, layout: str) -> dict[str, Tensor]:
    """Tensors in a layout (see `tidy`); without one, with the names of the nearest code base."""
    code = nearest(config.backbone)
    prefix = code.prefix
    norms_4d = code.norms_4d
    if layout:
        prefix = layout.removesuffix(" wide").removeprefix("-")
        norms_4d = layout.endswith(" wide")
    if norms_4d:
        tensors = norms_to_4d(tensors)
    spelled = {prefix + name: tensor for name, tensor in tensors.items()}
    if HEAD_KERNEL in tensors:  # a 1 x 1 convolution again
        spelled[prefix + HEAD_KERNEL] = tensors[HEAD_KERNEL][None, None]
    return spelled


def cannot(config: ResNetConfig) -> list[str]:
    """The parts of a model that Google's code lacks: all of its ResNets have GroupNorm and standardised
    kernels."""
    return beyond_bit(config.backbone, "post", "pre")


def differs(config: ResNetConfig) -> list[str]:
    """The paddings, epsilons and divisors that differ from the nearest code base (see DIALECTS)."""
    return another_dialect(config.backbone, nearest(config.backbone).dialect)


def open_elsewhere(classifier: Classifier, path: Path) -> Elsewhere | None:
    """The weights with the arithmetic of Google's code; None if that is vitkit's too."""
    config = classifier.model.config
    assert isinstance(config, ResNetConfig)  # by FORMAT.kinds
    if not differs(config):
        return None
    backbone = replace(config.backbone, **nearest(config.backbone).dialect)
    return as_google_computes(classifier, replace(config, backbone=backbone))


FORMAT = Format(
    name="google",
    kinds=("resnet",),
    recognises=recognises,
    describe=describe,
    rules=rules,
    tidy=tidy,
    spell=spell,
    cannot=cannot,
    differs=differs,
    endings=(".npz",),
    open_elsewhere=open_elsewhere,
)
