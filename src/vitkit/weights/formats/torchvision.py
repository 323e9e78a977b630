"""torchvision's Vision Transformers (vit_b_16 and its siblings), in the names of every version."""

import re
from math import prod

from vitkit.data import Preprocessing
from vitkit.models import ViTConfig
from vitkit.weights.description import (
    IMAGENET,
    Description,
    Hints,
    beyond,
    count_blocks,
    grid_of,
    heads_of,
    shape_of,
    usual_labels,
)
from vitkit.weights.files import Opened, Tensors
from vitkit.weights.rules import Rule, each, pairs, rows, rule

NAME = "torchvision"
HOLDS = ("vit",)  # kinds of configurations
PATCHES = "conv_proj.weight"
BLOCK = "encoder.layers.encoder_layer_{i}"
OLD = {r"\.mlp\.linear_1\.": ".mlp.0.", r"\.mlp\.linear_2\.": ".mlp.3."}


def recognises(tensors: Tensors) -> bool:
    """Whether these are a Vision Transformer's names in this format."""
    return any(name.endswith(PATCHES) for name in tensors)


def describe(opened: Opened, hints: Hints) -> Description:
    """What the shapes say; the file says nothing of the preprocessing."""
    tensors, _, _ = tidy(opened.tensors)
    width, channels, patch, _ = shape_of(tensors, PATCHES, 4)
    mlp = shape_of(tensors, f"{BLOCK.format(i=0)}.mlp.0.weight", 2)[0]
    heads, notes = heads_of(width, mlp, hints.heads)
    grid = grid_of(shape_of(tensors, "encoder.pos_embedding", 3)[1] - 1, patch, hints.image)
    classes = shape_of(tensors, "heads.head.bias", 1)[0] if "heads.head.bias" in tensors else 0
    image = (grid[0] * patch, grid[1] * patch)
    hidden = "heads.pre_logits.bias"
    config = ViTConfig(
        width=width, depth=count_blocks(tensors, BLOCK.format(i=r"(\d+)") + r"\."), mlp=mlp, heads=heads, patch=patch,
        image=image, channels=channels, classes=classes, gelu="erf", eps=1e-6, resample="torchvision",
        representation=shape_of(tensors, hidden, 1)[0] if hidden in tensors else 0,
    )  # fmt: skip
    small = image == (224, 224)
    preprocessing = Preprocessing(
        size=image, rule="shorter", resize=256 if small else max(image), interpolation="bilinear" if small else "bicubic",
        **IMAGENET,
    )  # fmt: skip
    said = "256 to 224, bilinear" if small else f"{max(image)}, bicubic"
    notes.append(
        f"preprocessing: not in the file, so torchvision's usual one ({said}); its L/16 has 242, its SWAG models bicubic: "
        "give load() a preprocessing for those"
    )
    labels, assumed = usual_labels(classes)
    return Description(config, preprocessing, tensors, labels, (*notes, *assumed))


def rules(config: ViTConfig) -> list[Rule]:
    """The table."""
    bare = config.prefix - config.position_rows
    found = [
        *pairs("stem.project", "conv_proj"),
        rule("cls", "class_token"),
        rule("positions.table", "encoder.pos_embedding", way=rows(config.position_rows, bare, prod(config.grid))),
        *each(config.depth, [
            *pairs("blocks.{i}.norm1", f"{BLOCK}.ln_1"),
            *pairs("blocks.{i}.attention.qkv", f"{BLOCK}.self_attention.in_proj", names=("_weight", "_bias")),
            *pairs("blocks.{i}.attention.out", f"{BLOCK}.self_attention.out_proj"),
            *pairs("blocks.{i}.norm2", f"{BLOCK}.ln_2"),
            *pairs("blocks.{i}.mlp.expand", f"{BLOCK}.mlp.0"),
            *pairs("blocks.{i}.mlp.contract", f"{BLOCK}.mlp.3"),
        ]),
        *pairs("norm", "encoder.ln"),
    ]  # fmt: skip
    found += pairs("representation", "heads.pre_logits") if config.representation else []
    return found + (pairs("head", "heads.head") if config.classes else [])


def cannot(config: ViTConfig) -> list[str]:
    """What of a model torchvision's code has no place for."""
    return beyond(config) + [
        what
        for what, there in {
            f'pooling by "{config.pool}"': config.pool != "token",
            "registers": config.registers,
            "LayerScale": config.layer_scale is not None,
            f"images of {config.image[0]} x {config.image[1]}, no square": config.image[0]
            != config.image[1],
            f"images of {config.channels} channels": config.channels != 3,
            "a representation layer without a head": config.representation and not config.classes,
        }.items()
        if there
    ]


def differs(config: ViTConfig) -> list[str]:
    """What torchvision would compute a little differently."""
    gelu = ["GELU: the tanh form here, the erf form there"] if config.gelu == "tanh" else []
    return gelu + ([f"eps: {config.eps:g} here, 1e-06 there"] if config.eps != 1e-6 else [])


def spell(tensors: dict, config: ViTConfig, layout: str = "") -> dict:
    """The rules' names are torchvision's own."""
    return tensors


def tidy(tensors: Tensors) -> tuple[Tensors, list[str], str]:
    """The newest names, without a prefix that training put before them."""
    prefix = next(name for name in tensors if name.endswith(PATCHES)).removesuffix(PATCHES)
    found = {name.removeprefix(prefix): lazy for name, lazy in tensors.items()}
    for old, new in OLD.items():
        found = {re.sub(old, new, name): lazy for name, lazy in found.items()}
    return found, [], ""
