"""What timm's files say of a Vision Transformer or a hybrid: by shapes, by config.json, and by habit."""

import re
from math import floor
from typing import NamedTuple

from vitkit.data import Preprocessing
from vitkit.models import DIALECTS, ViTConfig
from vitkit.models.backbone import Grid
from vitkit.weights.description import Description, Hints
from vitkit.weights.files import Opened, Tensors
from vitkit.weights.formats.format import Tidied
from vitkit.weights.formats.resnets import Names, backbone_of
from vitkit.weights.formats.shapes import (
    IMAGENET,
    count_blocks,
    grid_of,
    heads_of,
    is_grid,
    length_of,
    prefix_rows,
    shape_of,
)
from vitkit.weights.formats.timm.files import input_size, labels_of, written_preprocessing
from vitkit.weights.formats.timm.names import BARE, PATCHES, RESNET

ACTS = {"gelu": "erf", "gelu_tanh": "tanh"}


def describe(opened: Opened, tidied: Tidied, hints: Hints) -> Description:
    """What the shapes say, and timm's own config.json if it lies beside them."""
    tensors = tidied.tensors
    arguments = opened.config.get("model_args") or {}
    image = hints.image or input_size(opened.config)

    # the patches: of the image, or of a ResNet's feature map
    width, channels, patch, _ = shape_of(tensors, PATCHES, 4)
    stride = patch
    stem = None
    if names := _stem_names(tensors):
        stem, channels = backbone_of(tensors, names, "post", DIALECTS["timm"])
        stride = patch * stem.stride

    # tokens and their positions
    tokens = _tokens(tensors, stride, image)

    # blocks
    mlp = shape_of(tensors, "blocks.0.mlp.fc1.weight", 2)[0]
    heads, heads_note = heads_of(width, mlp, hints.heads or arguments.get("num_heads"))
    act = arguments.get("act_layer") or "gelu"
    if act not in ACTS:
        raise ValueError(f"its act_layer is {act!r}; vitkit knows {', '.join(ACTS)}")

    # settings that are there or not
    layer_scale = None
    if "blocks.0.ls1.gamma" in tensors:
        layer_scale = 1e-5  # only where training would begin: the factors are in the file
    norm = "pooled" if "fc_norm.weight" in tensors else "tokens"

    config = ViTConfig(
        width=width,
        depth=count_blocks(tensors, r"blocks\.(\d+)\."),
        mlp=mlp,
        heads=heads,
        patch=patch,
        image=(tokens.grid[0] * stride, tokens.grid[1] * stride),
        channels=channels,
        stem=stem,
        classes=length_of(tensors, "head.bias"),
        pool=_pool(tensors, opened.config),
        class_token=tokens.class_token,
        registers=tokens.registers,
        norm=norm,
        gelu=ACTS[act],
        eps=1e-6,
        resample="timm",
        representation=length_of(tensors, "pre_logits.fc.bias"),
        layer_scale=layer_scale,
        prefix_positions=tokens.prefix_positions,
    )
    preprocessing, preprocessing_note = _preprocessing(opened, config)
    labels, labels_note = labels_of(opened.config, config.classes)
    notes = (*heads_note, *preprocessing_note, *labels_note)
    return Description(config, preprocessing, labels, notes)


class Tokens(NamedTuple):
    """The tokens of a model, and their positions."""

    grid: Grid
    class_token: bool
    registers: int
    prefix_positions: int | None
    """How many of class token and registers have a position; None if all have."""


def _tokens(tensors: Tensors, stride: int, image: tuple[int, int] | None) -> Tokens:
    """What the class token, the registers and the position table say."""
    class_token = "cls_token" in tensors
    registers = 0
    if "registers" in tensors:
        registers = shape_of(tensors, "registers", 3)[1]
    rows = shape_of(tensors, "pos_embed", 3)[1]
    with_position = _rows_before_patches(rows, class_token, registers, stride, image)
    grid = grid_of(rows - with_position, stride, image)
    if with_position == class_token + registers:
        return Tokens(grid, class_token, registers, None)
    return Tokens(grid, class_token, registers, with_position)


def _stem_names(tensors: Tensors) -> Names | None:
    """How the ResNet below a hybrid is spelled; None if there is none."""
    spellings = (names for names in (RESNET, BARE) if names.under + names.root in tensors)
    return next(spellings, None)


def _pool(tensors: Tensors, json: dict) -> str:
    """What the head reads: by its parameters, or as config.json says."""
    if "head_dist.weight" in tensors:
        return "distilled"
    if "attn_pool.latent" in tensors:
        return "map"
    arguments = json.get("model_args") or {}
    written = json.get("global_pool", arguments.get("global_pool"))
    if "fc_norm.weight" in tensors or "cls_token" not in tensors or written == "avg":
        return "gap"
    return "token"


def _rows_before_patches(
    rows: int, class_token: bool, registers: int, patch: int, image: tuple[int, int] | None
) -> int:
    """Rows of the position table before the patches': of all such tokens, of none, or of the class token alone (DINOv2)."""
    count = prefix_rows(rows, class_token + registers, patch, image)
    if registers and class_token and not is_grid(rows - count, patch, image):
        return 1
    return count


def _preprocessing(opened: Opened, config: ViTConfig) -> tuple[Preprocessing, list[str]]:
    """What timm's config.json says; without one what this origin usually has, with a note that says so."""
    if written := written_preprocessing(opened.config, config.image):
        return written
    facebook = (
        re.search(r"deit|dino|mae", opened.path.name.lower())
        or opened.wrapper in ("model", "teacher")
        or (not config.classes and opened.path.suffix == ".pth")
    )
    if facebook:
        statistics = IMAGENET
        usual = "DeiT's, MAE's and DINO's: ImageNet's mean and deviation"
        other = "0.5"
    else:
        statistics = {}
        usual = "timm's for ViT: mean and deviation 0.5"
        other = "ImageNet's (DeiT, MAE, DINO)"
    resize = max(config.image)
    if config.image == (224, 224):
        resize = floor(224 / 0.9)
    preprocessing = Preprocessing(
        size=config.image, rule="shorter", resize=resize, interpolation="bicubic", **statistics
    )
    note = f"preprocessing: not in the file, so {usual}; for {other} give load() a preprocessing"
    return preprocessing, [note]
