"""What timm's files say of a Vision Transformer or a hybrid: by shapes, by config.json, and by
habit."""

import re
from math import floor
from typing import NamedTuple

from vitkit.data import Preprocessing
from vitkit.models import DIALECTS, Backbone, ViTConfig
from vitkit.models.backbone import Grid
from vitkit.weights.description import Description, Hints
from vitkit.weights.files import Opened, Tensors
from vitkit.weights.formats.format import Tidied
from vitkit.weights.formats.resnets import backbone_of
from vitkit.weights.formats.shapes import (
    IMAGENET,
    count_blocks,
    grid_of,
    heads_of,
    length_of,
    prefix_rows,
    shape_of,
)
from vitkit.weights.formats.timm.files import input_size, labels_of, written_preprocessing
from vitkit.weights.formats.timm.names import PATCHES, RESNET, ROOT_ALONE

ACTS = {"gelu": "erf", "gelu_tanh": "tanh"}  # timm's act_layer -> the form of the GELU


def describe(opened: Opened, tidied: Tidied, hints: Hints) -> Description:
    """What the shapes say, and timm's own config.json if it lies beside them."""
    tensors = tidied.tensors
    arguments = opened.config.get("model_args") or {}

    # From the image to the tokens
    patches = _patches(tensors)
    image = hints.image or input_size(opened.config)
    tokens = _tokens(tensors, patches.stride, image)
    rows, columns = tokens.grid

    # Blocks
    mlp = shape_of(tensors, "blocks.0.mlp.fc1.weight", 2)[0]
    heads, heads_note = heads_of(patches.width, mlp, hints.heads or arguments.get("num_heads"))
    norm = "pooled" if "fc_norm.weight" in tensors else "tokens"

    config = ViTConfig(
        width=patches.width,
        depth=count_blocks(tensors, r"blocks\.(\d+)\."),
        mlp=mlp,
        heads=heads,
        patch=patches.size,
        image=(rows * patches.stride, columns * patches.stride),
        channels=patches.channels,
        stem=patches.stem,
        classes=length_of(tensors, "head.bias"),
        pool=_pool(tensors, opened.config),
        class_token=tokens.class_token,
        registers=tokens.registers,
        prefix_positions=tokens.prefix_positions,
        norm=norm,
        gelu=_gelu(arguments),
        eps=1e-6,
        resample="timm",
        representation=length_of(tensors, "pre_logits.fc.bias"),
        layer_scale=_layer_scale(tensors, arguments),
    )
    preprocessing, preprocessing_note = _preprocessing(opened, config)
    labels, labels_note = labels_of(opened.config, config.classes)
    notes = (*heads_note, *preprocessing_note, *labels_note)
    return Description(config, preprocessing, labels, notes)


class Patches(NamedTuple):
    """How an image becomes patches."""

    width: int
    size: int
    """Side of a patch, in pixels of the image or of the ResNet's feature map."""
    stride: int
    """Side of a patch in pixels of the image."""
    channels: int
    """Channels of the image."""
    stem: Backbone | None
    """A hybrid's ResNet."""


def _patches(tensors: Tensors) -> Patches:
    """By the convolution that makes patches, and the ResNet below it if there is one."""
    width, channels, size, _ = shape_of(tensors, PATCHES, 4)
    for names in (RESNET, ROOT_ALONE):
        if names.prefix + names.root in tensors:
            stem, channels = backbone_of(tensors, names, "post", DIALECTS["timm"])
            return Patches(width, size, size * stem.stride, channels, stem)
    return Patches(width, size, size, channels, None)


class Tokens(NamedTuple):
    """The tokens of a model, and their positions."""

    grid: Grid
    class_token: bool
    registers: int
    prefix_positions: int | None
    """How many of class token and registers have a position; None if all have."""


def _tokens(tensors: Tensors, stride: int, image: tuple[int, int] | None) -> Tokens:
    """By the class token, the registers and the position table."""
    class_token = "cls_token" in tensors
    registers = 0
    if "registers" in tensors:
        registers = shape_of(tensors, "registers", 3)[1]
    prefix = class_token + registers

    # Which of them have a position: all, none, or the class token alone
    candidates = (prefix, 0)
    if registers and class_token:
        candidates = (prefix, 0, 1)
    rows = shape_of(tensors, "pos_embed", 3)[1]
    with_position = prefix_rows(rows, candidates, stride, image)

    grid = grid_of(rows - with_position, stride, image)
    if with_position == prefix:
        return Tokens(grid, class_token, registers, prefix_positions=None)
    return Tokens(grid, class_token, registers, prefix_positions=with_position)


def _pool(tensors: Tensors, json: dict) -> str:
    """What the head reads: by its parameters, or as config.json says."""
    if "head_dist.weight" in tensors:
        return "distilled"
    if "attn_pool.latent" in tensors:
        return "map"
    arguments = json.get("model_args") or {}
    global_pool = json.get("global_pool", arguments.get("global_pool"))
    if "fc_norm.weight" in tensors or "cls_token" not in tensors or global_pool == "avg":
        return "gap"
    return "token"


def _gelu(arguments: dict) -> str:
    """The form of the GELU. Raises ValueError for another activation."""
    act = arguments.get("act_layer") or "gelu"
    if act not in ACTS:
        raise ValueError(f"its act_layer is {act!r}; vitkit knows {', '.join(ACTS)}")
    return ACTS[act]


def _layer_scale(tensors: Tensors, arguments: dict) -> float | None:
    """Where training from scratch would begin with LayerScale's factors: timm's init_values, and
    DINOv2's 1e-5 if config.json has none. The factors themselves are in the file."""
    if "blocks.0.ls1.gamma" not in tensors:
        return None
    return arguments.get("init_values") or 1e-5


def _preprocessing(opened: Opened, config: ViTConfig) -> tuple[Preprocessing, list[str]]:
    """What timm's config.json says; without one what such files usually need, with a note."""
    if written := written_preprocessing(opened.config, config.image):
        return written
    if _is_facebooks(opened, config):
        statistics = IMAGENET
        usual = "DeiT's, MAE's and DINO's: ImageNet's mean and deviation"
        other = "0.5"
    else:
        statistics = {}
        usual = "timm's for ViT: mean and deviation 0.5"
        other = "ImageNet's (DeiT, MAE, DINO)"
    resize = max(config.image)
    if config.image == (224, 224):
        resize = floor(224 / 0.9)  # timm's usual crop_pct
    preprocessing = Preprocessing(
        size=config.image, rule="shorter", resize=resize, interpolation="bicubic", **statistics
    )
    note = f"preprocessing: not in the file, so {usual}; for {other} give load() a preprocessing"
    return preprocessing, [note]


def _is_facebooks(opened: Opened, config: ViTConfig) -> bool:
    """Whether a file looks like one of DeiT, MAE or DINO, which nothing in it says: by its name, by
    what its training wrapped the model in, or as a .pth without a head."""
    if re.search(r"deit|dino|mae", opened.path.name.lower()):
        return True
    if opened.wrapper in ("model", "teacher"):
        return True
    return not config.classes and opened.path.suffix == ".pth"
