"""Google's .npz files: google-research/vision_transformer (original, AugReg, SAM, fine-tuned, hybrids) and big_vision.

The same arrays under several spellings: names.py. Legend: as in rules.py.
"""

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from vitkit.data import Preprocessing
from vitkit.models import DIALECTS, ViTConfig
from vitkit.models.backbone import Grid
from vitkit.weights.classifier import Classifier
from vitkit.weights.description import Description, Hints
from vitkit.weights.files import Opened, Tensors
from vitkit.weights.formats.format import Elsewhere, Format, Tidied
from vitkit.weights.formats.google.arithmetic import as_google_computes
from vitkit.weights.formats.google.names import BIG_VISION, ORIGINAL, Layout, spelled, tidy_names
from vitkit.weights.formats.limits import (
    another_dialect,
    another_eps,
    another_gelu,
    beyond_vit,
    those_of,
)
from vitkit.weights.formats.resnets import Names, backbone_of, backbone_rules
from vitkit.weights.formats.shapes import (
    count_blocks,
    grid_of,
    length_of,
    prefix_rows,
    shape_of,
)
from vitkit.weights.labels import usual_labels
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

ROOT = "conv_root/kernel"
V1 = Names(
    root=ROOT,
    root_norm="gn_root",
    unit="block{b}/unit{u}/",
    conv="conv{n}/kernel",
    norm="gn{n}",
    shortcut="conv_proj/kernel",
    shortcut_norm="gn_proj",
    ends=("/scale", "/bias"),
)
BLOCK = "Transformer/encoderblock_{i}"
ATTENTION = "MultiHeadDotProductAttention_0"


def recognises(tensors: Tensors) -> bool:
    """Whether these are a Vision Transformer's names in this format."""
    return any(name.endswith("embedding/kernel") for name in tensors)


def tidy(tensors: Tensors) -> Tidied:
    """The image model's tensors in big_vision's spelling."""
    tidied, notes, layout = tidy_names(tensors)
    return Tidied(tidied, tuple(notes), str(layout))


def describe(opened: Opened, tidied: Tidied, hints: Hints) -> Description:
    """What the shapes say; every released file has 0.5 as mean and standard deviation, tanh GELU and eps 1e-6."""
    tensors = tidied.tensors
    patch, _, channels, width = shape_of(tensors, "embedding/kernel", 4)
    stem = None
    stride = patch
    if ROOT in tensors:
        stem, channels = backbone_of(tensors, V1, "post", DIALECTS["google"])
        stride = patch * stem.stride
    block = BLOCK.format(i=0)
    heads = shape_of(tensors, f"{block}/{ATTENTION}/query/kernel", 3)[1]
    mlp = shape_of(tensors, f"{block}/MlpBlock_0/Dense_0/kernel", 2)[1]
    grid, positions, notes = _positions(tidied, stride, hints.image)
    config = ViTConfig(
        width=width,
        depth=count_blocks(tensors, r"Transformer/encoderblock_(\d+)/"),
        mlp=mlp,
        heads=heads,
        patch=patch,
        image=(grid[0] * stride, grid[1] * stride),
        channels=channels,
        classes=length_of(tensors, "head/bias"),
        pool=_pool(tensors),
        class_token="cls" in tensors,
        gelu="tanh",
        eps=1e-6,
        resample="google",
        stem=stem,
        representation=length_of(tensors, "pre_logits/bias"),
        **positions,
    )
    labels, labels_note = usual_labels(config.classes)
    return Description(config, Preprocessing(size=config.image), labels, tuple(notes + labels_note))


def _pool(tensors: Tensors) -> str:
    """What the head reads, by the parameters that it takes."""
    if "MAPHead_0/probe" in tensors:
        return "map"
    return "token" if "cls" in tensors else "gap"


def _positions(
    tidied: Tidied, stride: int, image: tuple[int, int] | None
) -> tuple[Grid, dict, list[str]]:
    """The grid of patches, the settings of the positions, and notes about them."""
    tensors = tidied.tensors
    if "pos_embedding" not in tensors:
        height, width = image or (224, 224)
        grid = (height // stride, width // stride)
        note = "positions: none in the file, so big_vision's fixed sines and cosines"
        return grid, {"positions": "sincos"}, [note]
    rows = shape_of(tensors, "pos_embedding", 3)[1]
    prefix = int("cls" in tensors)
    with_position = prefix
    if Layout.parse(tidied.layout).table != ORIGINAL.table:  # there every token has a position
        with_position = prefix_rows(rows, prefix, stride, image)
    grid = grid_of(rows - with_position, stride, image)
    if with_position == prefix:
        return grid, {"positions": "learned"}, []
    return grid, {"positions": "learned", "prefix_positions": with_position}, []


def rules(config: ViTConfig) -> list[Rule]:
    """The table, in big_vision's spelling."""
    table = []
    if config.stem:
        table += backbone_rules(config.stem, "stem.", V1)
    table += pairs("stem.project", "embedding", CONVOLUTION, ("/kernel", "/bias"))
    if config.prefix:
        table.append(rule("cls", "cls"))
    if config.positions == "learned":
        table.append(rule("positions.table", "pos_embedding"))
    block = [
        *_norm("blocks.{i}.norm1", f"{BLOCK}/LayerNorm_0"),
        *_attention("blocks.{i}.attention", f"{BLOCK}/{ATTENTION}", config.heads),
        *_norm("blocks.{i}.norm2", f"{BLOCK}/LayerNorm_1"),
        *_mlp("blocks.{i}.mlp", f"{BLOCK}/MlpBlock_0"),
    ]
    table += each(config.depth, block)
    table += _norm("norm", "Transformer/encoder_norm")
    if config.pool == "map":
        table.append(rule("pool.probe", "MAPHead_0/probe"))
        table += _attention("pool.attention", f"MAPHead_0/{ATTENTION}", config.heads)
        table += _norm("pool.norm", "MAPHead_0/LayerNorm_0")
        table += _mlp("pool.mlp", "MAPHead_0/MlpBlock_0")
    if config.representation:
        table += _dense("representation", "pre_logits")
    if config.classes:
        table += _dense("head", "head")
    return table


def _norm(ours: str, theirs: str) -> list[Rule]:
    return pairs(ours, theirs, names=("/scale", "/bias"))


def _dense(ours: str, theirs: str) -> list[Rule]:
    return pairs(ours, theirs, DENSE, ("/kernel", "/bias"))


def _mlp(ours: str, theirs: str) -> list[Rule]:
    return _dense(f"{ours}.expand", f"{theirs}/Dense_0") + _dense(
        f"{ours}.contract", f"{theirs}/Dense_1"
    )


def _attention(ours: str, theirs: str, heads: int) -> list[Rule]:
    parts = [f"{theirs}/{part}" for part in ("query", "key", "value")]
    kernels = [f"{part}/kernel" for part in parts]
    biases = [f"{part}/bias" for part in parts]
    return [
        rule(f"{ours}.qkv.weight", *kernels, way=flax_qkv(heads)),
        rule(f"{ours}.qkv.bias", *biases, way=flax_qkv_bias(heads)),
        *pairs(f"{ours}.out", f"{theirs}/out", flax_out(heads), ("/kernel", "/bias")),
    ]


def spell(tensors: dict[str, Tensor], config: ViTConfig, layout: str) -> dict[str, Tensor]:
    """Tensors under the names of a layout: that of their origin, or the oldest that has a place for all."""
    fits_original = (
        config.positions == "learned"
        and config.position_rows == config.prefix
        and config.pool != "map"
    )
    if layout:
        chosen = Layout.parse(layout)
    elif fits_original:
        chosen = ORIGINAL
    else:
        chosen = BIG_VISION
    return spelled(tensors, chosen, config.depth)


def cannot(config: ViTConfig) -> list[str]:
    """What of a model Google's code has no place for."""
    unread_token = config.prefix and config.pool not in ("token", "none")
    return beyond_vit(config, ("learned", "sincos"), stems=True) + those_of(
        {
            "registers": config.registers,
            "LayerScale": config.layer_scale is not None,
            "a norm after the pooling": config.norm == "pooled",
            "a class token that the head does not read": unread_token,
        }
    )


def differs(config: ViTConfig) -> list[str]:
    """What Google's code would compute a little differently."""
    dialect = another_dialect(config.stem, DIALECTS["google"])
    return another_gelu(config, "tanh") + another_eps(config) + dialect


def computed(config: ViTConfig) -> ViTConfig:
    """The same model as Google's code computes it."""
    stem = config.stem
    if stem is not None:
        stem = replace(stem, **DIALECTS["google"])
    return replace(config, gelu="tanh", eps=1e-6, stem=stem)


def open_elsewhere(classifier: Classifier, path: Path) -> Elsewhere | None:
    """The same weights with the arithmetic of Google's code."""
    config = classifier.model.config
    return as_google_computes(classifier, computed(config)) if differs(config) else None


FORMAT = Format(
    name="google",
    kinds=("vit",),
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
