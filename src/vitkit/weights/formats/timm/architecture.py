"""What `timm.create_model` must be told to make a given Vision Transformer or hybrid: name and
arguments."""

from vitkit.models import ViTConfig

# (width, depth, mlp, heads) -> timm's word for that size.
SIZES = {
    (192, 12, 768, 3): "tiny",
    (384, 12, 1536, 6): "small",
    (768, 12, 3072, 12): "base",
    (1024, 24, 4096, 16): "large",
    (1280, 32, 5120, 16): "huge",
    (1408, 40, 6144, 16): "giant",
    (1664, 48, 8192, 16): "gigantic",
}
# The patches that each size has in timm's names.
PATCHES = {
    "tiny": (16,),
    "small": (16, 32),
    "base": (16, 32, 8),
    "large": (16, 32, 14),
    "huge": (14,),
    "giant": (14,),
    "gigantic": (14,),
}
# Units of a hybrid's ResNet -> timm's word for it, and the sizes of Transformers that timm has on
# it.
HYBRIDS = {
    (): ("r_s16_p8", ("tiny",)),
    (2, 2, 2, 2): ("r26_s32", ("small", "base")),
    (3, 4, 9): ("r50_s16", ("base",)),
    (3, 4, 6, 3): ("r50_s32", ("large",)),
}
ACTS = {  # gelu -> act_layer
    "erf": "gelu",
    "tanh": "gelu_tanh",
    "quick": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
}
POOLS = {"token": "token", "gap": "avg", "map": "map", "none": ""}  # pool -> global_pool


def architecture(config: ViTConfig) -> tuple[str, dict]:
    """timm's name for a model, and the arguments of `timm.create_model` that make it this one."""
    arguments = {
        "img_size": list(config.image),
        "patch_size": _patch_size(config),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": config.mlp / config.width,
        "qkv_bias": config.qkv_bias,
    }
    if config.swiglu:
        arguments["mlp_ratio"] *= 2  # the gate and what it multiplies are one layer
    else:
        arguments["act_layer"] = ACTS[config.gelu]
    # VisionTransformerDistilled has none of the arguments below. Of its name only the class counts:
    # the size is in the arguments above
    if config.pool == "distilled":
        return "deit_base_distilled_patch16_224", arguments
    arguments["class_token"] = config.has_class_token
    arguments["global_pool"] = POOLS[config.pool]
    arguments["fc_norm"] = config.norm == "pooled"
    arguments["reg_tokens"] = config.registers
    arguments["no_embed_class"] = config.prefix > 0 and config.prefix_rows == 0
    arguments["init_values"] = config.layer_scale
    return _name(config), arguments


def _patch_size(config: ViTConfig) -> int | list[int]:
    """One number for a square."""
    if isinstance(config.patch, tuple):
        return list(config.patch)
    return config.patch


def _name(config: ViTConfig) -> str:
    """The nearest of timm's names; where the model differs from it, the arguments say so. Some names
    stand for what no argument in a config.json can say: a class of blocks, an eps."""
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


def first_convolution(config: ViTConfig) -> str:
    """timm's name of the layer that sees the image."""
    if config.stem is None:
        return "patch_embed.proj"
    if config.stem.units:
        return "patch_embed.backbone.stem.conv"
    return "patch_embed.backbone.conv"
