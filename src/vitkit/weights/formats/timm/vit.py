"""timm's Vision Transformers and hybrids; DeiT, MAE, DINO and DINOv2 have the same names as their authors publish them."""

from math import prod
from pathlib import Path

from vitkit.models import DIALECTS, ViTConfig
from vitkit.weights.classifier import Classifier
from vitkit.weights.formats.format import Elsewhere, Format
from vitkit.weights.formats.limits import another_dialect, another_eps, beyond_vit, those_of
from vitkit.weights.formats.resnets import backbone_rules
from vitkit.weights.formats.timm.architecture import HYBRIDS, architecture, first_convolution
from vitkit.weights.formats.timm.describing import describe
from vitkit.weights.formats.timm.files import repository
from vitkit.weights.formats.timm.names import BARE, RESNET, recognises, spell, tidy
from vitkit.weights.formats.timm.opening import example, open_in_timm, pixels_in_timm
from vitkit.weights.rules import QUERY_AND_REST, Rule, each, pairs, rows, rule


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
    last_norm = "fc_norm" if config.norm == "pooled" else "norm"
    table += pairs("norm", last_norm)
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
    classifier_layers = ["head", "head_dist"] if config.pool == "distilled" else "head"
    layers = {
        "fixed_input_size": True,
        "pool_size": None,
        "first_conv": first_convolution(config),
        "classifier": classifier_layers,
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
