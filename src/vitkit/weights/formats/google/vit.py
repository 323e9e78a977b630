"""Google's .npz files: google-research/vision_transformer (original, AugReg, SAM, fine-tuned, hybrids) and big_vision.

The same arrays under several spellings: google_names.py. Legend: as in rules.py.
"""

from dataclasses import replace

from vitkit.data import Preprocessing
from vitkit.models import DIALECTS, ViTConfig
from vitkit.weights.description import (
    Description,
    Hints,
    another_dialect,
    beyond,
    count_blocks,
    grid_of,
    prefix_rows,
    shape_of,
    usual_labels,
)
from vitkit.weights.files import Opened, Tensors
from vitkit.weights.formats.google.names import BIG_VISION, ORIGINAL, TABLES, Layout, spelled, tidy
from vitkit.weights.formats.resnets import Names, backbone_of, backbone_rules
from vitkit.weights.rules import (
    CONVOLUTION,
    DENSE,
    Rule,
    each,
    flax_out,
    flax_qkv,
    flax_qkv_bias,
    pairs,
    rule,
)

NAME = "google"
HOLDS = ("vit",)  # kinds of configurations
ROOT = "conv_root/kernel"
V1 = Names(
    root=ROOT, root_norm="gn_root", unit="block{b}/unit{u}/", conv="conv{n}/kernel", norm="gn{n}",
    shortcut="conv_proj/kernel", shortcut_norm="gn_proj", ends=("/scale", "/bias"),
)  # fmt: skip


def recognises(tensors: Tensors) -> bool:
    """Whether these are a Vision Transformer's names in this format."""
    return any(name.endswith("embedding/kernel") for name in tensors)


def describe(opened: Opened, hints: Hints) -> Description:
    """What the shapes say; every released file has 0.5 as mean and standard deviation, tanh GELU and eps 1e-6."""
    tensors, notes, spelling = tidy(opened.tensors)
    layout = Layout.parse(spelling)
    patch, _, channels, width = shape_of(tensors, "embedding/kernel", 4)
    stem, channels = (
        backbone_of(tensors, V1, "post", DIALECTS["google"])
        if ROOT in tensors
        else (None, channels)
    )
    stride = patch * stem.stride if stem else patch
    _, heads, _ = shape_of(
        tensors, "Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel", 3
    )
    mlp = shape_of(tensors, "Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel", 2)[1]
    depth = count_blocks(tensors, r"Transformer/encoderblock_(\d+)/")
    pool = "map" if "MAPHead_0/probe" in tensors else "token" if "cls" in tensors else "gap"
    prefix = int("cls" in tensors)
    if "pos_embedding" in tensors:
        table = shape_of(tensors, "pos_embedding", 3)[1]
        kept = (
            prefix if layout.table == TABLES[2] else prefix_rows(table, prefix, stride, hints.image)
        )
        grid = grid_of(table - kept, stride, hints.image)
        positions = {"positions": "learned", "prefix_positions": None if kept == prefix else kept}
    else:
        side = 224 // stride
        grid = (hints.image[0] // stride, hints.image[1] // stride) if hints.image else (side, side)
        positions = {"positions": "sincos"}
        notes.append("positions: none in the file, so big_vision's fixed sines and cosines")
    image = (grid[0] * stride, grid[1] * stride)
    classes = shape_of(tensors, "head/bias", 1)[0] if "head/bias" in tensors else 0
    config = ViTConfig(
        width=width, depth=depth, mlp=mlp, heads=heads, patch=patch, image=image, channels=channels, classes=classes,
        pool=pool, class_token=bool(prefix), gelu="tanh", eps=1e-6, resample="google", stem=stem,
        representation=shape_of(tensors, "pre_logits/bias", 1)[0] if "pre_logits/bias" in tensors else 0, **positions,
    )  # fmt: skip
    labels, note = usual_labels(classes)
    return Description(
        config, Preprocessing(size=image), tensors, labels, (*notes, *note), spelling
    )


def rules(config: ViTConfig) -> list[Rule]:
    """The table, in big_vision's spelling."""
    heads, norm = config.heads, ("/scale", "/bias")

    def attention(ours: str, theirs: str) -> list[Rule]:
        parts = [f"{theirs}/{part}" for part in ("query", "key", "value")]
        return [
            rule(f"{ours}.qkv.weight", *(f"{part}/kernel" for part in parts), way=flax_qkv(heads)),
            rule(f"{ours}.qkv.bias", *(f"{part}/bias" for part in parts), way=flax_qkv_bias(heads)),
            *pairs(f"{ours}.out", f"{theirs}/out", flax_out(heads), ("/kernel", "/bias")),
        ]

    def dense(ours: str, theirs: str) -> list[Rule]:
        return pairs(ours, theirs, DENSE, ("/kernel", "/bias"))

    def mlp(ours: str, theirs: str) -> list[Rule]:
        return [
            *dense(f"{ours}.expand", f"{theirs}/Dense_0"),
            *dense(f"{ours}.contract", f"{theirs}/Dense_1"),
        ]

    block = "Transformer/encoderblock_{i}"
    found = [
        *(backbone_rules(config.stem, "stem.", V1) if config.stem else []),
        *pairs("stem.project", "embedding", CONVOLUTION, ("/kernel", "/bias")),
        *([rule("cls", "cls")] if config.prefix else []),
        *each(config.depth, [
            *pairs("blocks.{i}.norm1", f"{block}/LayerNorm_0", names=norm),
            *attention("blocks.{i}.attention", f"{block}/MultiHeadDotProductAttention_0"),
            *pairs("blocks.{i}.norm2", f"{block}/LayerNorm_1", names=norm),
            *mlp("blocks.{i}.mlp", f"{block}/MlpBlock_0"),
        ]),
        *pairs("norm", "Transformer/encoder_norm", names=norm),
    ]  # fmt: skip
    if config.positions == "learned":
        found.append(rule("positions.table", "pos_embedding"))
    if config.pool == "map":
        found += [
            rule("pool.probe", "MAPHead_0/probe"),
            *attention("pool.attention", "MAPHead_0/MultiHeadDotProductAttention_0"),
            *pairs("pool.norm", "MAPHead_0/LayerNorm_0", names=norm),
            *mlp("pool.mlp", "MAPHead_0/MlpBlock_0"),
        ]
    found += dense("representation", "pre_logits") if config.representation else []
    return found + (dense("head", "head") if config.classes else [])


def cannot(config: ViTConfig) -> list[str]:
    """What of a model Google's code has no place for."""
    return beyond(config, ("learned", "sincos"), stems=True) + [
        what
        for what, there in {
            "registers": config.registers,
            "LayerScale": config.layer_scale is not None,
            "a norm after the pooling": config.norm == "pooled",
            "a class token that the head does not read": config.prefix
            and config.pool not in ("token", "none"),
        }.items()
        if there
    ]


def differs(config: ViTConfig) -> list[str]:
    """What Google's code would compute a little differently."""
    gelu = ["GELU: the erf form here, the tanh form there"] if config.gelu == "erf" else []
    eps = [f"eps: {config.eps:g} here, 1e-06 there"] if config.eps != 1e-6 else []
    return gelu + eps + another_dialect(config.stem, DIALECTS["google"])


def computed(config: ViTConfig) -> ViTConfig:
    """The same model as Google's code computes it."""
    stem = replace(config.stem, **DIALECTS["google"]) if config.stem else None
    return replace(config, gelu="tanh", eps=1e-6, stem=stem)


def spell(tensors: dict, config: ViTConfig, layout: str = "") -> dict:
    """Tensors under the names of a layout: that of their origin, or the oldest that has a place for all."""
    plain = (
        config.positions == "learned"
        and config.position_rows == config.prefix
        and config.pool != "map"
    )
    how = Layout.parse(layout) if layout else ORIGINAL if plain else BIG_VISION
    return spelled(tensors, how, config.depth)
