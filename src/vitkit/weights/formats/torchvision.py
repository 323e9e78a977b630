"""torchvision's Vision Transformers (vit_b_16 and its siblings), in the names of every version.

Its code: torchvision/models/vision_transformer.py.
"""

import re
from math import prod
from pathlib import Path

from torch import nn

from vitkit.data import Preprocessing
from vitkit.models import ViTConfig
from vitkit.weights.adaptation.statements import Hints
from vitkit.weights.classifier import Classifier
from vitkit.weights.conversion.rules import Rule, for_each_block, layer, rule
from vitkit.weights.conversion.transforms import position_table
from vitkit.weights.files import Opened, Tensors, load_state_dict
from vitkit.weights.formats.format import Elsewhere, Format, Tidied
from vitkit.weights.formats.limits import another_eps, another_gelu, beyond_vit, reasons
from vitkit.weights.formats.shapes import (
    IMAGENET,
    count_blocks,
    grid_of,
    heads_of,
    length_of,
    shape_of,
)
from vitkit.weights.labels import usual_labels
from vitkit.weights.provenance.description import Description

PATCHES = "conv_proj.weight"
BLOCK = "encoder.layers.encoder_layer_{i}"
# Version 1 of torchvision's MLPBlock named its layers, version 2 is a Sequential (as in
# MLPBlock._load_from_state_dict). A pattern of the name in a file -> the name that the rules use.
RENAMED = {r"\.mlp\.linear_1\.": ".mlp.0.", r"\.mlp\.linear_2\.": ".mlp.3."}


def recognises(tensors: Tensors) -> bool:
    """By the convolution that makes patches."""
    return any(name.endswith(PATCHES) for name in tensors)


def tidy(tensors: Tensors) -> Tidied:
    """The newest names, without a prefix that training added."""
    prefix = next(name for name in tensors if name.endswith(PATCHES)).removesuffix(PATCHES)
    tidied = {}
    for name, lazy in tensors.items():
        name = name.removeprefix(prefix)
        for old, new in RENAMED.items():
            name = re.sub(old, new, name)
        tidied[name] = lazy
    return Tidied(tidied)


def describe(opened: Opened, tidied: Tidied, hints: Hints) -> Description:
    """What the shapes say; the file says nothing of the preprocessing."""
    tensors = tidied.tensors

    # Patches and their positions; the class token has one too
    width, channels, patch, _ = shape_of(tensors, PATCHES, 4)
    positions = shape_of(tensors, "encoder.pos_embedding", 3)[1]
    grid = grid_of(positions - 1, (patch, patch), hints.image)

    # Blocks
    mlp = shape_of(tensors, f"{BLOCK.format(i=0)}.mlp.0.weight", 2)[0]
    heads, heads_note = heads_of(width, mlp, hints.heads)

    config = ViTConfig(
        width=width,
        depth=count_blocks(tensors, BLOCK.format(i=r"(\d+)") + r"\."),
        mlp=mlp,
        heads=heads,
        patch=patch,
        image=(grid[0] * patch, grid[1] * patch),
        channels=channels,
        classes=length_of(tensors, "heads.head.bias"),
        representation=length_of(tensors, "heads.pre_logits.bias"),
        # What torchvision's code fixes
        gelu="erf",
        eps=1e-6,
        resample="torchvision",
    )
    preprocessing, preprocessing_note = _usual_preprocessing(config.image)
    labels, labels_note = usual_labels(config.classes)
    notes = (*heads_note, preprocessing_note, *labels_note)
    return Description(config, preprocessing, labels, notes)


def _usual_preprocessing(image: tuple[int, int]) -> tuple[Preprocessing, str]:
    """The preprocessing of most of its models of this size, and the note about it.

    torchvision keeps it in its code (ViT_B_16_Weights and siblings), not in the files.
    """
    if image == (224, 224):
        resize = 256
        interpolation = "bilinear"
        usual = "256 to 224, bilinear"
    else:
        resize = max(image)
        interpolation = "bicubic"
        usual = f"{resize}, bicubic"
    preprocessing = Preprocessing(
        size=image, rule="shorter", resize=resize, interpolation=interpolation, **IMAGENET
    )
    note = (
        f"preprocessing: not in the file, so torchvision's usual one ({usual}); its L/16 has 242, "
        "its SWAG models bicubic (--resize, --interpolation)"
    )
    return preprocessing, note


def rules(config: ViTConfig) -> list[Rule]:
    """The names of torchvision's VisionTransformer."""
    positions = position_table(config.prefix_rows, config.prefix, prod(config.grid))
    table = [
        *layer("stem.project", "conv_proj"),
        rule("cls", "class_token"),
        rule("positions.table", "encoder.pos_embedding", transform=positions),
        *for_each_block(config.depth, _block_rules()),
        *layer("norm", "encoder.ln"),
    ]
    if config.representation:
        table += layer("representation", "heads.pre_logits")
    if config.classes:
        table += layer("head", "heads.head")
    return table


def _block_rules() -> list[Rule]:
    # torch.nn.MultiheadAttention has q, k and v in one matrix, as vitkit has, under an odd name
    in_proj = ("_weight", "_bias")
    return [
        *layer("blocks.{i}.norm1", f"{BLOCK}.ln_1"),
        *layer("blocks.{i}.attention.qkv", f"{BLOCK}.self_attention.in_proj", ends=in_proj),
        *layer("blocks.{i}.attention.out", f"{BLOCK}.self_attention.out_proj"),
        *layer("blocks.{i}.norm2", f"{BLOCK}.ln_2"),
        *layer("blocks.{i}.mlp.expand", f"{BLOCK}.mlp.0"),
        *layer("blocks.{i}.mlp.contract", f"{BLOCK}.mlp.3"),
    ]


def cannot(config: ViTConfig) -> list[str]:
    """VisionTransformer reads the class token of square colour images, and nothing else."""
    height, width = config.image
    return beyond_vit(config) + reasons(
        {
            f'pooling by "{config.pool}"': config.pool != "token",
            "registers": config.registers,
            f"images of {height} x {width}, no square": height != width,
            f"images of {config.channels} channels": config.channels != 3,
            "a representation layer without a head": config.representation and not config.classes,
        }
    )


def differs(config: ViTConfig) -> list[str]:
    """MLPBlock has nn.GELU, which is the erf form, and every LayerNorm eps 1e-6."""
    return another_gelu(config, "erf") + another_eps(config)


def open_elsewhere(classifier: Classifier, path: Path) -> Elsewhere:
    """torchvision's model with the file's tensors, every one of them and no other."""
    from torchvision import __version__
    from torchvision.models import VisionTransformer

    config = classifier.model.config
    model = VisionTransformer(
        image_size=config.image[0],
        patch_size=config.patch,
        num_layers=config.depth,
        num_heads=config.heads,
        hidden_dim=config.width,
        mlp_dim=config.mlp,
        num_classes=config.classes or 1,  # of a head that is replaced below if there is none
        representation_size=config.representation or None,
    )
    if not config.classes:  # torchvision always makes a head
        model.heads = nn.Identity()
    model.load_state_dict(load_state_dict(path), strict=True)
    return Elsewhere(f"torchvision {__version__}", model)


FORMAT = Format(
    name="torchvision",
    kinds=("vit",),
    recognises=recognises,
    describe=describe,
    rules=rules,
    tidy=tidy,
    cannot=cannot,
    differs=differs,
    endings=(".safetensors", ".pth", ".pt"),
    open_elsewhere=open_elsewhere,
)
