"""timm's Vision Transformers and hybrids (timm/models/vision_transformer.py and its hybrid).

DeiT, MAE, DINO and DINOv2, as their authors publish them, have the same names.
"""

from math import prod
from pathlib import Path

from vitkit.models import DIALECTS, ViTConfig
from vitkit.weights.classifier import Classifier
from vitkit.weights.conversion.rules import Rule, for_each_block, layer, rule
from vitkit.weights.conversion.transforms import QUERY_AND_REST, position_table
from vitkit.weights.formats.format import Elsewhere, Format
from vitkit.weights.formats.limits import another_dialect, another_eps, beyond_vit, reasons
from vitkit.weights.formats.resnets import backbone_rules
from vitkit.weights.formats.timm.architecture import HYBRIDS, architecture, first_convolution
from vitkit.weights.formats.timm.describing import describe
from vitkit.weights.formats.timm.files import config_json
from vitkit.weights.formats.timm.names import RESNET, ROOT_ALONE, recognises, spell, tidy
from vitkit.weights.formats.timm.opening import example, open_in_timm, pixels_in_timm


def rules(config: ViTConfig) -> list[Rule]:
    """The names of VisionTransformer; a distilled model's are those of VisionTransformerDistilled
    (timm/models/deit.py)."""
    # Patches
    table = []
    if config.stem:
        names = RESNET
        if not config.stem.units:
            names = ROOT_ALONE
        table += backbone_rules(config.stem, "stem.", names)
    table.append(rule("stem.project.weight", "patch_embed.proj.weight"))
    if config.stem or not config.embedding_norm:
        table.append(rule("stem.project.bias", "patch_embed.proj.bias"))

    # Tokens and positions. Before the patches come a class token and registers, config.prefix of
    # them. timm's table has a row for each, or for none (no_embed_class, as DeiT III);
    # VisionTransformerDistilled always for each. A model in which only some have a position (DINOv2)
    # gets rows of zeros for the others.
    if config.has_class_token:
        table.append(rule("cls", "cls_token"))
    if config.registers:
        table.append(rule("registers", "registers"))
    their_rows = config.prefix_rows
    if config.prefix_rows or config.pool == "distilled":
        their_rows = config.prefix
    if config.positions == "learned":
        positions = position_table(config.prefix_rows, their_rows, prod(config.grid))
        table.append(rule("positions.table", "pos_embed", transform=positions))
    if config.embedding_norm:
        table += layer("embedding_norm", "norm_pre")

    # Encoder; the norm is called otherwise after the pooling
    table += for_each_block(config.depth, _block_rules(config))
    last_norm = "norm"
    if config.norm == "pooled":
        last_norm = "fc_norm"
    table += layer("norm", last_norm)

    # Pooling and head
    if config.pool == "map":
        table += _pool_rules()
    if config.representation:
        table += layer("representation", "pre_logits.fc")
    if config.classes and config.pool == "distilled":
        table += layer("head.token", "head")
        table += layer("head.distilled", "head_dist")
    elif config.classes:
        table += layer("head", "head")
    return table


def _block_rules(config: ViTConfig) -> list[Rule]:
    table = [
        *layer("blocks.{i}.norm1", "blocks.{i}.norm1"),
        rule("blocks.{i}.attention.qkv.weight", "blocks.{i}.attn.qkv.weight"),
        *layer("blocks.{i}.attention.out", "blocks.{i}.attn.proj"),
        *layer("blocks.{i}.norm2", "blocks.{i}.norm2"),
        *layer("blocks.{i}.mlp.expand", "blocks.{i}.mlp.fc1"),
        *layer("blocks.{i}.mlp.contract", "blocks.{i}.mlp.fc2"),
    ]
    if config.qkv_bias:
        table.append(rule("blocks.{i}.attention.qkv.bias", "blocks.{i}.attn.qkv.bias"))
    if config.layer_scale is not None:
        table.append(rule("blocks.{i}.scale1.gamma", "blocks.{i}.ls1.gamma"))
        table.append(rule("blocks.{i}.scale2.gamma", "blocks.{i}.ls2.gamma"))
    return table


def _pool_rules() -> list[Rule]:
    """The rules of attention pooling (AttentionPoolLatent), where q has a layer of its own, k and v
    one together."""

    def qkv(kind: str) -> Rule:
        parts = (f"attn_pool.q.{kind}", f"attn_pool.kv.{kind}")
        return rule(f"pool.attention.qkv.{kind}", *parts, transform=QUERY_AND_REST)

    return [
        rule("pool.probe", "attn_pool.latent"),
        qkv("weight"),
        qkv("bias"),
        *layer("pool.attention.out", "attn_pool.proj"),
        *layer("pool.norm", "attn_pool.norm"),
        *layer("pool.mlp.expand", "attn_pool.mlp.fc1"),
        *layer("pool.mlp.contract", "attn_pool.mlp.fc2"),
    ]


def cannot(config: ViTConfig) -> list[str]:
    """VisionTransformer has no layer between pooling and head, for example."""
    stem = config.stem
    other_stem = stem is not None and (stem.width != 1 or stem.units not in HYBRIDS)
    unread_token = config.registers == 1 and config.pool == "token" and config.prefix_rows == 0
    settings = ("layer_scale", "swiglu", "branch_norm", "embedding_norm", "qkv_bias", "rectangles")
    beyond = beyond_vit(config, stems=True, has=settings)
    settled_by_name = [config.swiglu, config.branch_norm == "after", config.embedding_norm]
    return beyond + reasons(
        {
            # Each of these comes with one of timm's names, and a model has one name
            "more than one of SwiGLU, norms after the branches, a norm before the blocks, a "
            "distillation head and a ResNet": (
                sum([*settled_by_name, config.pool == "distilled", stem is not None]) > 1
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
    """Its LayerNorms have eps 1e-6 (VisionTransformer.__init__), CLIP's 1e-5, and its hybrids' ResNet
    a dialect."""
    theirs = 1e-6
    if config.embedding_norm:
        theirs = 1e-5
    return another_eps(config, theirs) + another_dialect(config.stem, DIALECTS["timm"])


def directory(classifier: Classifier) -> dict[str, dict]:
    """The JSON file of a model directory, for the hub and for
    `timm.create_model("local-dir:...")`."""
    config = classifier.model.config
    name, arguments = architecture(config)
    model = {"architecture": name, "num_features": config.width, "model_args": arguments}
    # What timm wants to know for other channels, classes and sizes of images
    head = "head"
    if config.pool == "distilled":
        head = ["head", "head_dist"]
    layers = {
        "fixed_input_size": True,
        "pool_size": None,
        "first_conv": first_convolution(config),
        "classifier": head,
    }
    json = config_json(config, classifier.preprocessing, classifier.labels, model, layers)
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
