"""timm's Vision Transformers and hybrids; DeiT, MAE, DINO and DINOv2 have the same names as their authors publish them."""

import re
from math import floor, prod
from pathlib import Path

from vitkit.data import Preprocessing
from vitkit.models import DIALECTS, ViTConfig
from vitkit.weights.classifier import Classifier
from vitkit.weights.description import Description, Hints
from vitkit.weights.files import Opened, Tensors
from vitkit.weights.formats.format import Elsewhere, Format, Tidied
from vitkit.weights.formats.limits import another_dialect, another_eps, beyond_vit, those_of
from vitkit.weights.formats.resnets import Names, backbone_of, backbone_rules
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
from vitkit.weights.formats.timm.architecture import HYBRIDS, architecture, first_convolution
from vitkit.weights.formats.timm.files import (
    input_size,
    labels_of,
    repository,
    written_preprocessing,
)
from vitkit.weights.formats.timm.names import BARE, PATCHES, RESNET, recognises, spell, tidy
from vitkit.weights.formats.timm.opening import example, open_in_timm, pixels_in_timm
from vitkit.weights.rules import QUERY_AND_REST, Rule, each, pairs, rows, rule

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
    class_token = "cls_token" in tensors
    registers = 0
    if "registers" in tensors:
        registers = shape_of(tensors, "registers", 3)[1]
    rows = shape_of(tensors, "pos_embed", 3)[1]
    with_position = _rows_before_patches(rows, class_token, registers, stride, image)
    grid = grid_of(rows - with_position, stride, image)

    # blocks
    mlp = shape_of(tensors, "blocks.0.mlp.fc1.weight", 2)[0]
    heads, heads_note = heads_of(width, mlp, hints.heads or arguments.get("num_heads"))
    act = arguments.get("act_layer") or "gelu"
    if act not in ACTS:
        raise ValueError(f"its act_layer is {act!r}; vitkit knows {', '.join(ACTS)}")

    config = ViTConfig(
        width=width,
        depth=count_blocks(tensors, r"blocks\.(\d+)\."),
        mlp=mlp,
        heads=heads,
        patch=patch,
        image=(grid[0] * stride, grid[1] * stride),
        channels=channels,
        stem=stem,
        classes=length_of(tensors, "head.bias"),
        pool=_pool(tensors, opened.config),
        class_token=class_token,
        registers=registers,
        norm="pooled" if "fc_norm.weight" in tensors else "tokens",
        gelu=ACTS[act],
        eps=1e-6,
        resample="timm",
        representation=length_of(tensors, "pre_logits.fc.bias"),
        layer_scale=1e-5 if "blocks.0.ls1.gamma" in tensors else None,
        prefix_positions=None if with_position == class_token + registers else with_position,
    )
    preprocessing, preprocessing_note = _preprocessing(opened, config)
    labels, labels_note = labels_of(opened.config, config.classes)
    notes = (*heads_note, *preprocessing_note, *labels_note)
    return Description(config, preprocessing, labels, notes)


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


def rules(config: ViTConfig) -> list[Rule]:
    """The table."""
    table = []
    if config.stem:
        names = RESNET if config.stem.units else BARE
        table += backbone_rules(config.stem, "stem.", names)
    table += pairs("stem.project", "patch_embed.proj")
    if config.prefix > config.registers:
        table.append(rule("cls", "cls_token"))
    if config.registers:
        table.append(rule("registers", "registers"))
    # timm has a position for all of the tokens before the patches, or, outside DeiT, for none
    bare = 0
    if config.position_rows or config.pool == "distilled":
        bare = config.prefix - config.position_rows
    positions = rows(config.position_rows, bare, prod(config.grid))
    table.append(rule("positions.table", "pos_embed", way=positions))
    table += each(config.depth, _block_rules(config))
    table += pairs("norm", "fc_norm" if config.norm == "pooled" else "norm")
    if config.pool == "map":
        table += _pool_rules()
    if config.representation:
        table += pairs("representation", "pre_logits.fc")
    if config.classes and config.pool == "distilled":
        table += pairs("head.token", "head")
        table += pairs("head.distilled", "head_dist")
    elif config.classes:
        table += pairs("head", "head")
    return table


def _block_rules(config: ViTConfig) -> list[Rule]:
    table = [
        *pairs("blocks.{i}.norm1", "blocks.{i}.norm1"),
        *pairs("blocks.{i}.attention.qkv", "blocks.{i}.attn.qkv"),
        *pairs("blocks.{i}.attention.out", "blocks.{i}.attn.proj"),
        *pairs("blocks.{i}.norm2", "blocks.{i}.norm2"),
        *pairs("blocks.{i}.mlp.expand", "blocks.{i}.mlp.fc1"),
        *pairs("blocks.{i}.mlp.contract", "blocks.{i}.mlp.fc2"),
    ]
    if config.layer_scale is not None:
        table.append(rule("blocks.{i}.scale1.gamma", "blocks.{i}.ls1.gamma"))
        table.append(rule("blocks.{i}.scale2.gamma", "blocks.{i}.ls2.gamma"))
    return table


def _pool_rules() -> list[Rule]:
    """Of attention pooling, whose query has a layer of its own there."""

    def qkv(kind: str) -> Rule:
        parts = (f"attn_pool.q.{kind}", f"attn_pool.kv.{kind}")
        return rule(f"pool.attention.qkv.{kind}", *parts, way=QUERY_AND_REST)

    return [
        rule("pool.probe", "attn_pool.latent"),
        qkv("weight"),
        qkv("bias"),
        *pairs("pool.attention.out", "attn_pool.proj"),
        *pairs("pool.norm", "attn_pool.norm"),
        *pairs("pool.mlp.expand", "attn_pool.mlp.fc1"),
        *pairs("pool.mlp.contract", "attn_pool.mlp.fc2"),
    ]


def cannot(config: ViTConfig) -> list[str]:
    """What of a model timm has no place for."""
    stem = config.stem
    other_stem = stem is not None and (stem.width != 1 or stem.units not in HYBRIDS)
    unread = config.registers == 1 and config.pool == "token" and config.position_rows == 0
    return beyond_vit(config, stems=True) + those_of(
        {
            "a ResNet stem that none of its hybrids has": other_stem,
            "a representation layer (timm dropped it)": config.representation,
            "a norm after a pooling other than the mean": (
                config.norm == "pooled" and config.pool != "gap"
            ),
            "a distillation token that no head reads": unread,
            "more registers than the distillation token": (
                config.pool == "distilled" and config.registers > 1
            ),
        }
    )


def differs(config: ViTConfig) -> list[str]:
    """What timm would compute a little differently."""
    return another_eps(config) + another_dialect(config.stem, DIALECTS["timm"])


def directory(classifier: Classifier) -> dict[str, dict]:
    """The JSON file of a model directory, for timm's hub and for `timm.create_model("local-dir:...")`."""
    config = classifier.model.config
    name, arguments = architecture(config)
    model = {"architecture": name, "num_features": config.width, "model_args": arguments}
    layers = {
        "fixed_input_size": True,
        "pool_size": None,
        "first_conv": first_convolution(config),
        "classifier": ["head", "head_dist"] if config.pool == "distilled" else "head",
    }
    json = repository(config, classifier.preprocessing, classifier.labels, model, layers)
    return {"config.json": json}


def open_elsewhere(classifier: Classifier, path: Path) -> Elsewhere:
    """The model as timm opens it."""
    config = classifier.model.config
    name, arguments = architecture(config)
    return open_in_timm(path, name, config.classes, arguments)


FORMAT = Format(
    name="timm",
    kinds=("vit",),
    recognises=recognises,
    describe=describe,
    rules=rules,
    tidy=tidy,
    spell=spell,
    cannot=cannot,
    differs=differs,
    endings=(".safetensors", ".pth", ".pt"),
    directory=directory,
    library="timm",
    example=example,
    open_elsewhere=open_elsewhere,
    pixels_elsewhere=pixels_in_timm,
)
