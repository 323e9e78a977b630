"""timm's Vision Transformers and hybrids (timm/models/vision_transformer.py and its hybrid): the table of
their names, and the arguments of `timm.create_model` for a model.

DeiT, MAE, DINO and DINOv2, as their authors publish them, have the same names.
"""

import re
from math import prod
from pathlib import Path

from vitkit.models import DIALECTS, Backbone, ViTConfig
from vitkit.weights.classifier import Classifier
from vitkit.weights.formats.encoders import PYTORCH, encoder_rules
from vitkit.weights.formats.format import (
    Elsewhere,
    Format,
    another_dialect,
    another_eps,
    beyond_vit,
    reasons,
)
from vitkit.weights.formats.resnets import ResNetNames, backbone_rules
from vitkit.weights.formats.timm.config import (
    ACTS,
    ENDINGS,
    POOLS,
    config_json,
    example,
    example_of_states,
    open_in_timm,
    pixels_in_timm,
)
from vitkit.weights.formats.timm.description import describe
from vitkit.weights.formats.timm.names import NAMES, RESNET, ROOT_ALONE, recognises, spell, tidy
from vitkit.weights.formats.timm.names import PATCHES as FIRST
from vitkit.weights.rules import INTERLEAVED_VECTOR, Rule, interleaved, position_table

# (width, depth, mlp, heads) -> timm's name of that size
SIZES = {
    (192, 12, 768, 3): "tiny",
    (384, 12, 1536, 6): "small",
    (768, 12, 3072, 12): "base",
    (1024, 24, 4096, 16): "large",
    (1280, 32, 5120, 16): "huge",
    (1408, 40, 6144, 16): "giant",
    (1664, 48, 8192, 16): "gigantic",
}
# Patches of each size in timm's names
PATCHES = {
    "tiny": (16,),
    "small": (16, 32),
    "base": (16, 32, 8),
    "large": (16, 32, 14),
    "huge": (14,),
    "giant": (14,),
    "gigantic": (14,),
}
# Units of a hybrid's ResNet -> timm's name of it, and the sizes of Transformers that timm combines with it
HYBRIDS = {
    (): ("r_s16_p8", ("tiny",)),
    (2, 2, 2, 2): ("r26_s32", ("small", "base")),
    (3, 4, 9): ("r50_s16", ("base",)),
    (3, 4, 6, 3): ("r50_s32", ("large",)),
}
# Rotary positions for which timm's code rotates pairs of adjacent elements
INTERLEAVED = ("rotary-axial", "rotary-timm")


def rules(config: ViTConfig) -> list[Rule]:
    """The names of VisionTransformer."""
    table = []
    if config.stem:
        table += backbone_rules(config.stem, "stem.", stem_names(config.stem))

    # Before the patches come a class token and registers, config.prefix of them. timm's table has a row
    # for each, or for none (no_embed_class, as in DeiT III); VisionTransformerDistilled's always for each.
    # For a model in which only some have a position (DINOv2), the rows of the others are zeros.
    their_rows = config.prefix_rows
    if config.prefix_rows or config.pool == "distilled":
        their_rows = config.prefix
    positions = position_table(config.prefix_rows, their_rows, prod(config.grid))

    # The name of the norm differs if it comes after the pooling
    names = NAMES
    if config.norm == "pooled":
        names = NAMES._replace(norm="fc_norm")

    arrays = PYTORCH
    if config.positions in INTERLEAVED:
        transform = interleaved(config.heads)
        arrays = PYTORCH._replace(qkv=lambda heads, layers: (transform, transform))
    table += encoder_rules(config, names, arrays, positions)
    if config.positions in INTERLEAVED and config.qk_norm:
        is_of_head = re.compile(r".*\.attention\.[qk]_norm\.(weight|bias)")
        table = [
            rule._replace(transform=INTERLEAVED_VECTOR) if is_of_head.fullmatch(rule.ours) else rule
            for rule in table
        ]
    return table


def stem_names(stem: Backbone) -> ResNetNames:
    """The names of a hybrid's ResNet."""
    if stem.units:
        return RESNET
    return ROOT_ALONE


def cannot(config: ViTConfig) -> list[str]:
    """The parts of a model that timm cannot express; for example, its VisionTransformer has no layer between
    pooling and head."""
    stem = config.stem
    other_stem = stem is not None and (stem.width != 1 or stem.units not in HYBRIDS)
    unread_token = config.registers == 1 and config.pool == "token" and config.prefix_rows == 0
    settings = (
        "layer_scale", "swiglu", "branch_norm", "embedding_norm", "rms_norm", "qk_norm", "qkv_bias",
        "rectangles",
    )  # fmt: skip
    beyond = beyond_vit(config, stems=True, has=settings)
    settled_by_name = [config.swiglu, config.branch_norm == "after", config.embedding_norm]
    return beyond + reasons(
        {
            # Each of these is part of one of timm's names, and a model has one name
            "more than one of SwiGLU, norms after the branches, a norm before the blocks, a "
            "distillation head and a ResNet": (
                sum([*settled_by_name, config.pool == "distilled", stem is not None]) > 1
            ),
            "RMSNorms or norms of queries and keys beside a distillation head or a ResNet": (
                (config.rms_norm or config.qk_norm)
                and (config.pool == "distilled" or stem is not None)
            ),
            "a SwiGLU MLP beside attention pooling": config.swiglu and config.pool == "map",
            "LayerScale in blocks with norms after the branches": (
                config.branch_norm == "after" and config.layer_scale is not None
            ),
            "a ResNet stem that none of its hybrids has": other_stem,
            "a representation layer (timm dropped it)": config.representation,
            "a norm after a pooling other than the mean": (
                config.norm == "pooled" and config.pool != "gap"
            ),
            "a distillation token that no head reads": unread_token,
            "more registers than the distillation token": (
                config.pool == "distilled" and config.registers > 1
            ),
        }
    )


def differs(config: ViTConfig) -> list[str]:
    """Settings that differ from timm's: eps is 1e-6 (VisionTransformer.__init__), 1e-5 for CLIP; the
    hybrids' ResNet has a dialect."""
    theirs = 1e-6
    if config.embedding_norm:
        theirs = 1e-5
    return another_eps(config, theirs) + another_dialect(config.stem, DIALECTS["timm"])


def directory(classifier: Classifier) -> dict[str, dict]:
    """config.json for the hub, and for `timm.create_model("local-dir:...")`."""
    config = classifier.model.config
    assert isinstance(config, ViTConfig)  # by FORMAT.kinds
    name, arguments = architecture(config)
    model = {"architecture": name, "num_features": config.width, "model_args": arguments}
    # Fields that timm needs to change channels, classes and image size
    layers: dict = {
        "fixed_input_size": True,
        "pool_size": None,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }
    if config.stem:
        root = stem_names(config.stem).root.removesuffix(".weight")
        layers["first_conv"] = RESNET.prefix + root
    if config.pool == "distilled":
        layers["classifier"] = ["head", "head_dist"]
    json = config_json(config, classifier.preprocessing, classifier.labels, model, layers)
    return {"config.json": json}


def architecture(config: ViTConfig) -> tuple[str, dict]:
    """timm's name of a model, and the further arguments of `timm.create_model` for it."""
    arguments: dict = {
        "img_size": list(config.image),
        "patch_size": config.patch,
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": config.mlp / config.width,
        "qkv_bias": config.qkv_bias,
    }
    if isinstance(config.patch, tuple):
        arguments["patch_size"] = list(config.patch)
    if config.swiglu:
        arguments["mlp_ratio"] *= 2  # the gate and the layer that it multiplies are one layer
    else:
        arguments["act_layer"] = ACTS[config.gelu]
    # VisionTransformerDistilled has none of the arguments below. Its name only selects the class; the
    # size is in the arguments above
    if config.pool == "distilled":
        return "deit_base_distilled_patch16_224", arguments
    arguments["class_token"] = config.has_class_token
    arguments["global_pool"] = POOLS[config.pool]
    arguments["fc_norm"] = config.norm == "pooled"
    arguments["reg_tokens"] = config.registers
    arguments["no_embed_class"] = config.prefix > 0 and config.prefix_rows == 0
    arguments["init_values"] = config.layer_scale
    if config.qk_norm:
        arguments["qk_norm"] = True
    if config.rms_norm:
        arguments["norm_layer"] = "rmsnorm"
    return _name(config), arguments


def _name(config: ViTConfig) -> str:
    """The nearest of timm's names; the arguments contain the differences. Some names are needed for
    properties without an argument in config.json: a class of blocks, an eps."""
    if config.swiglu:
        return "vit_giant_patch14_dinov2"
    if config.branch_norm == "after":
        return "vit_base_patch16_rpn_224"
    if config.embedding_norm:
        return "vit_base_patch16_clip_224"
    size = SIZES.get((config.width, config.depth, config.mlp, config.heads), "base")
    if config.stem:
        resnet, sizes = HYBRIDS[config.stem.units]
        if size not in sizes:
            size = sizes[0]
        return f"vit_{size}_{resnet}_224"
    patch = config.patch
    if patch not in PATCHES[size]:
        patch = PATCHES[size][0]
    return f"vit_{size}_patch{patch}_224"


def open_elsewhere(classifier: Classifier, path: Path) -> Elsewhere:
    """The model as timm opens it."""
    config = classifier.model.config
    assert isinstance(config, ViTConfig)  # by FORMAT.kinds
    return open_in_timm(classifier, path, *architecture(config))


FORMAT = Format(
    name="timm",
    kinds=("vit",),
    recognises=recognises,
    describe=describe,
    rules=rules,
    tidy=tidy,
    spell=spell,
    first=FIRST,
    head=NAMES.head,
    cannot=cannot,
    differs=differs,
    endings=ENDINGS,
    directory=directory,
    library="timm",
    example=example,
    example_of_states=example_of_states,
    open_elsewhere=open_elsewhere,
    pixels_elsewhere=pixels_in_timm,
)
