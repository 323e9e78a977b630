"""timm's Vision Transformers and hybrids; DeiT, MAE, DINO and DINOv2 have the same names as their authors publish them."""

import re
from dataclasses import replace
from math import floor, prod

from vitkit.data import Preprocessing
from vitkit.models import DIALECTS, Backbone, ViTConfig
from vitkit.weights.description import (
    IMAGENET,
    Description,
    Hints,
    another_dialect,
    beyond,
    count_blocks,
    grid_of,
    heads_of,
    prefix_rows,
    shape_of,
)  # fmt: skip
from vitkit.weights.files import Opened, Tensors
from vitkit.weights.formats.resnets import Names, backbone_of, backbone_rules
from vitkit.weights.formats.timm.files import input_size, labels_of, repository, said_preprocessing
from vitkit.weights.rules import QUERY_AND_REST, SAME, Rule, each, gist, pairs, rows, rule

NAME = "timm"
HOLDS = ("vit",)  # kinds of configurations
PATCHES = "patch_embed.proj.weight"
ASIDE = re.compile(
    r"(.*\.)?(decoder_.*|mask_token|head\.(mlp|last_layer)\..*|dino_head\..*|ibot_head\..*|projector\..*|predictor\..*)"
)
OTHERS = {  # parts of other models under the same names, with what to say
    r"blocks\.\d+\.mlp\.(w12|w3)\.": "a SwiGLU MLP (DINOv2's giant)",
    r"blocks\.\d+\.attn\.(q_norm|k_norm)\.": "normalised queries and keys",
    r"norm_pre\.": "a norm before the blocks (CLIP)",
    r"patch_embed\.backbone\.(?!(stem\.)?(conv|norm)\.|stages\.)": "a stem that is no BiT ResNet",
}
ACTS = {"gelu": "erf", "gelu_tanh": "tanh"}
SIZES = {  # timm's names, which say everything but the patch and the size of images
    (192, 12, 768, 3): "tiny", (384, 12, 1536, 6): "small", (768, 12, 3072, 12): "base", (1024, 24, 4096, 16): "large",
    (1280, 32, 5120, 16): "huge", (1408, 40, 6144, 16): "giant", (1664, 48, 8192, 16): "gigantic",
}  # fmt: skip
RESNET = Names(
    under="patch_embed.backbone.", root="stem.conv.weight", root_norm="stem.norm", unit="stages.{b}.blocks.{u}.",
    conv="conv{n}.weight", norm="norm{n}", shortcut="downsample.conv.weight", shortcut_norm="downsample.norm",
    ends=(".weight", ".bias"), last="norm", first=0, way=SAME,
)  # fmt: skip
BARE = RESNET._replace(root="conv.weight", root_norm="norm")  # of a root without stages
HYBRIDS = {  # of a ResNet's units: what timm calls it, and the sizes of Transformers that it has above it
    (): ("r_s16_p8", "tiny"), (2, 2, 2, 2): ("r26_s32", "small", "base"), (3, 4, 9): ("r50_s16", "base"),
    (3, 4, 6, 3): ("r50_s32", "large"),
}  # fmt: skip


def recognises(tensors: Tensors) -> bool:
    """Whether these are a Vision Transformer's names in this format."""
    return any(
        name.endswith((PATCHES, ".conv.weight")) and "patch_embed." in name for name in tensors
    )


def describe(opened: Opened, hints: Hints) -> Description:
    """What the shapes say, and timm's own config.json where it lies beside them."""
    tensors, notes, _ = tidy(opened.tensors)
    args = opened.config.get("model_args") or {}
    width, channels, patch, _ = shape_of(tensors, PATCHES, 4)
    stem, channels = _stem(tensors) or (None, channels)
    stride = patch * stem.stride if stem else patch
    mlp = shape_of(tensors, "blocks.0.mlp.fc1.weight", 2)[0]
    heads, note = heads_of(width, mlp, hints.heads or args.get("num_heads"))
    notes += note
    registers = shape_of(tensors, "registers", 3)[1] if "registers" in tensors else 0
    token = "cls_token" in tensors
    act = args.get("act_layer") or "gelu"
    if act not in ACTS:
        raise ValueError(f"its act_layer is {act!r}; vitkit knows {', '.join(ACTS)}")
    late = "fc_norm.weight" in tensors
    mean = late or not token or opened.config.get("global_pool", args.get("global_pool")) == "avg"
    pool = (
        "distilled"
        if "head_dist.weight" in tensors
        else "map"
        if "attn_pool.latent" in tensors
        else "gap"
        if mean
        else "token"
    )
    table = shape_of(tensors, "pos_embed", 3)[1]
    kept = _kept(table, token, registers, stride, hints.image or input_size(opened.config))
    grid = grid_of(table - kept, stride, hints.image or input_size(opened.config))
    classes = shape_of(tensors, "head.bias", 1)[0] if "head.bias" in tensors else 0
    config = ViTConfig(
        width=width, depth=count_blocks(tensors, r"blocks\.(\d+)\."), mlp=mlp, heads=heads, patch=patch,
        image=(grid[0] * stride, grid[1] * stride), channels=channels, stem=stem, classes=classes, pool=pool, class_token=token,
        registers=registers, norm="pooled" if late else "tokens", gelu=ACTS[act], eps=1e-6, resample="timm",
        representation=shape_of(tensors, "pre_logits.fc.bias", 1)[0] if "pre_logits.fc.bias" in tensors else 0,
        layer_scale=1e-5 if "blocks.0.ls1.gamma" in tensors else None, prefix_positions=kept,
    )  # fmt: skip
    if config.prefix == kept:
        config = replace(config, prefix_positions=None)
    preprocessing, said = _preprocessing(opened, config)
    labels, assumed = labels_of(opened.config, classes)
    return Description(config, preprocessing, tensors, labels, (*notes, *said, *assumed))


def rules(config: ViTConfig) -> list[Rule]:
    """The table."""
    # timm has a position for all of the tokens before the patches, or, outside DeiT, for none
    bare = (
        config.prefix - config.position_rows
        if config.position_rows or config.pool == "distilled"
        else 0
    )
    below = (
        backbone_rules(config.stem, "stem.", RESNET if config.stem.units else BARE)
        if config.stem
        else []
    )
    found = [
        *below,
        *pairs("stem.project", "patch_embed.proj"),
        *([rule("cls", "cls_token")] if config.prefix > config.registers else []),
        *([rule("registers", "registers")] if config.registers else []),
        rule("positions.table", "pos_embed", way=rows(config.position_rows, bare, prod(config.grid))),
        *each(config.depth, [
            *pairs("blocks.{i}.norm1", "blocks.{i}.norm1"),
            *pairs("blocks.{i}.attention.qkv", "blocks.{i}.attn.qkv"),
            *pairs("blocks.{i}.attention.out", "blocks.{i}.attn.proj"),
            *pairs("blocks.{i}.norm2", "blocks.{i}.norm2"),
            *pairs("blocks.{i}.mlp.expand", "blocks.{i}.mlp.fc1"),
            *pairs("blocks.{i}.mlp.contract", "blocks.{i}.mlp.fc2"),
            *([rule(f"blocks.{{i}}.scale{n}.gamma", f"blocks.{{i}}.ls{n}.gamma") for n in (1, 2)]
              if config.layer_scale is not None else []),
        ]),
        *pairs("norm", "fc_norm" if config.norm == "pooled" else "norm"),
    ]  # fmt: skip
    if config.pool == "map":
        found += [
            rule("pool.probe", "attn_pool.latent"),
            rule("pool.attention.qkv.weight", "attn_pool.q.weight", "attn_pool.kv.weight", way=QUERY_AND_REST),
            rule("pool.attention.qkv.bias", "attn_pool.q.bias", "attn_pool.kv.bias", way=QUERY_AND_REST),
            *pairs("pool.attention.out", "attn_pool.proj"),
            *pairs("pool.norm", "attn_pool.norm"),
            *pairs("pool.mlp.expand", "attn_pool.mlp.fc1"),
            *pairs("pool.mlp.contract", "attn_pool.mlp.fc2"),
        ]  # fmt: skip
    found += pairs("representation", "pre_logits.fc") if config.representation else []
    if not config.classes:
        return found
    if config.pool == "distilled":
        return [*found, *pairs("head.token", "head"), *pairs("head.distilled", "head_dist")]
    return found + pairs("head", "head")


def cannot(config: ViTConfig) -> list[str]:
    """What of a model timm has no place for."""
    return beyond(config, stems=True) + [
        what
        for what, there in {
            "a ResNet stem that none of its hybrids has": config.stem
            and (config.stem.width != 1 or config.stem.units not in HYBRIDS),
            "a representation layer (timm dropped it)": config.representation,
            "a norm after a pooling other than the mean": config.norm == "pooled"
            and config.pool != "gap",
            "a distillation token that no head reads": config.registers == 1
            and config.pool == "token"
            and config.position_rows == 0,
            "more registers than the distillation token": config.pool == "distilled"
            and config.registers > 1,
        }.items()
        if there
    ]


def differs(config: ViTConfig) -> list[str]:
    """What timm would compute a little differently."""
    eps = [f"eps: {config.eps:g} here, 1e-06 there"] if config.eps != 1e-6 else []
    return eps + another_dialect(config.stem, DIALECTS["timm"])


def spell(tensors: dict, config: ViTConfig, layout: str = "") -> dict:
    """Tensors under timm's names: what the rules call registers is a distillation token or register tokens."""
    name = "dist_token" if config.pool == "distilled" else "reg_token"
    return {name if key == "registers" else key: tensor for key, tensor in tensors.items()}


def architecture(config: ViTConfig) -> tuple[str, dict]:
    """timm's name for a model, and the arguments of `timm.create_model` that make it this one."""
    size = SIZES.get((config.width, config.depth, config.mlp, config.heads), "base")
    known = {
        "tiny": (16,),
        "small": (16, 32),
        "base": (16, 32, 8),
        "large": (16, 32, 14),
        "huge": (14,),
        "giant": (14,),
        "gigantic": (14,),
    }
    patch = config.patch if config.patch in known[size] else known[size][0]
    arguments = {
        "img_size": list(config.image), "patch_size": config.patch, "in_chans": config.channels,
        "embed_dim": config.width, "depth": config.depth, "num_heads": config.heads, "mlp_ratio": config.mlp / config.width,
    }  # fmt: skip
    if config.gelu == "tanh":
        arguments["act_layer"] = "gelu_tanh"
    if config.pool == "distilled":
        return "deit_base_distilled_patch16_224", arguments
    name = f"vit_{size}_patch{patch}_224"
    if config.stem:
        below, *sizes = HYBRIDS[config.stem.units]
        name = f"vit_{size if size in sizes else sizes[0]}_{below}_224"
    pools = {"token": "token", "gap": "avg", "map": "map", "none": ""}
    arguments |= {
        "class_token": config.prefix > config.registers,
        "global_pool": pools[config.pool],
    }
    arguments |= {"fc_norm": config.norm == "pooled", "reg_tokens": config.registers}
    arguments |= {"no_embed_class": config.prefix > 0 and config.position_rows == 0}
    if config.layer_scale is not None:
        arguments["init_values"] = config.layer_scale
    return name, arguments


def config_json(config: ViTConfig, preprocessing: Preprocessing, labels: tuple[str, ...]) -> dict:
    """config.json for timm's hub and for `timm.create_model("local-dir:...")`."""
    name, arguments = architecture(config)
    said = {"architecture": name, "num_features": config.width, "model_args": arguments}
    first = ["patch_embed.proj", "patch_embed.backbone.stem.conv", "patch_embed.backbone.conv"]
    places = {
        "fixed_input_size": True,
        "pool_size": None,
        "first_conv": first[0] if config.stem is None else first[1 if config.stem.units else 2],
        "classifier": ["head", "head_dist"] if config.pool == "distilled" else "head",
    }
    return repository(config, preprocessing, labels, said, places)


def tidy(tensors: Tensors) -> tuple[Tensors, list[str], str]:
    """timm's names, whatever trained the model: no prefix, one name for registers; what was left out is said."""
    end = next((name for name in tensors if name.endswith(PATCHES)), None)
    prefix = "" if end is None else end.removesuffix(PATCHES)
    found = {name.removeprefix(prefix): lazy for name, lazy in tensors.items()}
    for part, what in OTHERS.items():
        if other := next((name for name in found if re.match(part, name)), None):
            raise ValueError(f"it has {what}: {other}; vitkit does not read that")
    aside = [name for name in found if ASIDE.fullmatch(name)]
    if aside and "head.mlp.0.weight" in found:  # DINO's whole projection head
        aside = [name for name in found if name in aside or name.startswith("head.")]
    notes = [f"left out: {gist(aside)}, which no classifier reads"] if aside else []
    other = {"dist_token": "registers", "reg_token": "registers", "register_tokens": "registers"}
    return (
        {other.get(name, name): lazy for name, lazy in found.items() if name not in aside},
        notes,
        "",
    )


def _stem(tensors: Tensors) -> tuple[Backbone, int] | None:
    """The ResNet below a hybrid, and the channels of its images."""
    names = next((names for names in (RESNET, BARE) if names.under + names.root in tensors), None)
    return backbone_of(tensors, names, "post", DIALECTS["timm"]) if names else None


def _kept(
    table: int, token: bool, registers: int, patch: int, image: tuple[int, int] | None
) -> int:
    """Rows of the position table before the patches': of all such tokens, of none, or of the class token alone (DINOv2)."""
    kept = prefix_rows(table, token + registers, patch, image)
    if registers and token:
        try:
            grid_of(table - kept, patch, image)
        except ValueError:
            return 1
    return kept


def _preprocessing(opened: Opened, config: ViTConfig) -> tuple[Preprocessing, list[str]]:
    """What timm's config.json says; without one what this origin usually has, with a note that says so."""
    if found := said_preprocessing(opened.config, config.image):
        return found
    others = re.search(r"deit|dino|mae", opened.path.name.lower())
    facebook = (
        bool(others)
        or opened.wrapper in ("model", "teacher")
        or (not config.classes and opened.path.suffix == ".pth")
    )
    side = max(config.image)
    resize = floor(side / 0.9) if config.image[0] == config.image[1] == 224 else side
    statistics, who = (
        (IMAGENET, "DeiT's, MAE's and DINO's: ImageNet's mean and deviation")
        if facebook
        else ({}, "timm's for ViT: mean and deviation 0.5")
    )
    made = Preprocessing(
        size=config.image, rule="shorter", resize=resize, interpolation="bicubic", **statistics
    )
    other = "0.5" if facebook else "ImageNet's (DeiT, MAE, DINO)"
    return made, [
        f"preprocessing: not in the file, so {who}; for {other} give load() a preprocessing"
    ]
