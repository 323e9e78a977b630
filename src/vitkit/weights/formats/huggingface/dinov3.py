"""Hugging Face's DINOv3 Vision Transformers.

Transformers' code: modeling_dinov3_vit.py.
"""

import re
from pathlib import Path

import torch
from torch import Tensor

from vitkit.models import ViTConfig
from vitkit.weights.adaptation.pretraining import mask_of
from vitkit.weights.adaptation.statements import Hints
from vitkit.weights.classifier import Classifier
from vitkit.weights.conversion.rules import Rule, for_each_block, layer, rule
from vitkit.weights.conversion.transforms import TWO
from vitkit.weights.files import Opened, Tensors
from vitkit.weights.formats.format import Elsewhere, Format, Tidied
from vitkit.weights.formats.huggingface.biases import (
    have_biases,
    qkv_rules,
    with_biases,
    with_qkv_biases,
)
from vitkit.weights.formats.huggingface.config import (
    HIDDEN_ACT,
    changed_fields,
    gelu_of,
    image_json,
    patch_json,
)
from vitkit.weights.formats.huggingface.opening import (
    example,
    open_in_transformers,
    pixels_elsewhere,
    pooler_output,
)
from vitkit.weights.formats.huggingface.processors import preprocessing_of, processor_json
from vitkit.weights.formats.limits import beyond_vit, reasons
from vitkit.weights.formats.shapes import shape_of
from vitkit.weights.provenance.description import Description

TYPE = "dinov3_vit"
PATCHES = "embeddings.patch_embeddings.weight"
MASK = "embeddings.mask_token"
QKV = ("q_proj", "k_proj", "v_proj")
OTHER_LAYERS = ("o_proj", "gate_proj", "up_proj", "down_proj")


def recognises(tensors: Tensors) -> bool:
    """By the convolution that makes patches, which has no layer of its own around it."""
    return any(name.endswith(PATCHES) for name in tensors)


def tidy(tensors: Tensors) -> Tidied:
    """The names of published files, in which blocks are "layer.0", without a prefix."""
    patches = next(name for name in tensors if name.endswith(PATCHES))
    prefix = patches.removesuffix(PATCHES)
    tidied = {}
    for name, lazy in tensors.items():
        name = re.sub(r"^model\.layer\.", "layer.", name.removeprefix(prefix))
        tidied[name] = lazy
    mask, notes = mask_of(tidied.pop(MASK, None))
    tidied, qkv_note = with_qkv_biases(tidied, QKV)
    tidied, others_note = with_biases(tidied, OTHER_LAYERS)
    return Tidied(tidied, (*notes, *qkv_note, *others_note), pretraining=mask)


def describe(opened: Opened, tidied: Tidied, hints: Hints) -> Description:
    """What config.json says. Raises ValueError for positions or an MLP that vitkit does not have."""
    json = opened.config
    tensors = tidied.tensors
    if json.get("model_type") != TYPE:
        raise ValueError(
            f"it has DINOv3's names and a config.json of type {json.get('model_type')!r}; vitkit "
            f"reads {TYPE}"
        )
    theta = json.get("rope_theta", 100.0)
    if theta != 100:
        raise ValueError(f"its rope_theta is {theta}; vitkit's positions of DINOv3 have 100")
    swiglu = json.get("use_gated_mlp", False)
    gelu = "erf"
    if not swiglu:
        gelu = gelu_of(json, "gelu")
    elif json.get("hidden_act", "gelu") != "silu":
        raise ValueError(
            f"its gated MLP has the activation {json.get('hidden_act', 'gelu')!r}; a SwiGLU has silu"
        )
    registers = 0
    if "embeddings.register_tokens" in tensors:
        registers = shape_of(tensors, "embeddings.register_tokens", 3)[1]
    config = ViTConfig(
        width=json.get("hidden_size", 384),
        depth=json.get("num_hidden_layers", 12),
        mlp=json.get("intermediate_size", 1536),
        heads=json.get("num_attention_heads", 6),
        patch=json.get("patch_size", 16),
        image=json.get("image_size", 224),
        channels=json.get("num_channels", 3),
        classes=0,
        registers=registers,
        positions="rotary-dinov3",
        attention_dropout=json.get("attention_dropout", 0.0),
        stochastic_depth=json.get("drop_path_rate", 0.0),
        qkv_bias=have_biases(tensors, QKV),
        gelu=gelu,
        swiglu=swiglu,
        eps=json.get("layer_norm_eps", 1e-5),
        layer_scale=json.get("layerscale_value", 1.0),
        resample="huggingface",
    )
    preprocessing, notes = preprocessing_of(opened.preprocessor, config.image, TYPE)
    return Description(config, preprocessing, notes=tuple(notes))


def rules(config: ViTConfig) -> list[Rule]:
    """The table of rules."""
    table = [
        *layer("stem.project", "embeddings.patch_embeddings"),
        rule("cls", "embeddings.cls_token"),
    ]
    if config.registers:
        table.append(rule("registers", "embeddings.register_tokens"))
    table += for_each_block(config.depth, _block_rules(config))
    return table + layer("norm", "norm")


def _block_rules(config: ViTConfig) -> list[Rule]:
    block = "layer.{i}"
    qkv = [f"{block}.attention.{part}" for part in QKV]
    table = [
        *layer("blocks.{i}.norm1", f"{block}.norm1"),
        *qkv_rules(config, qkv),
        *layer("blocks.{i}.attention.out", f"{block}.attention.o_proj"),
        rule("blocks.{i}.scale1.gamma", f"{block}.layer_scale1.lambda1"),
        *layer("blocks.{i}.norm2", f"{block}.norm2"),
        *layer("blocks.{i}.mlp.contract", f"{block}.mlp.down_proj"),
        rule("blocks.{i}.scale2.gamma", f"{block}.layer_scale2.lambda1"),
    ]
    if not config.swiglu:
        return table + layer("blocks.{i}.mlp.expand", f"{block}.mlp.up_proj")
    for kind in ("weight", "bias"):
        parts = (f"{block}.mlp.gate_proj.{kind}", f"{block}.mlp.up_proj.{kind}")
        table.append(rule(f"blocks.{{i}}.mlp.expand.{kind}", *parts, transform=TWO))
    return table


def spell(tensors: dict[str, Tensor], config: ViTConfig, layout: str) -> dict[str, Tensor]:
    """Tensors under Transformers' names, its mask token among them, of zeros as new ones are."""
    spelled = {**tensors, MASK: torch.zeros(1, 1, config.width)}
    if not config.registers:
        spelled["embeddings.register_tokens"] = torch.zeros(1, 0, config.width)
    return spelled


def cannot(config: ViTConfig) -> list[str]:
    """What Transformers' DINOv3 cannot express of a model: it has no head."""
    beyond = beyond_vit(
        config, ("rotary-dinov3",), has=("layer_scale", "swiglu", "qkv_bias", "rectangles")
    )
    return beyond + reasons(
        {
            f'pooling by "{config.pool}"': config.pool != "token",
            "a head": config.classes,
            "no LayerScale": config.layer_scale is None,
            "no registers": not config.registers,
            "a norm after the pooling": config.norm == "pooled",
            "a representation layer": config.representation,
            "dropout": config.dropout,
        }
    )


def config_json(config: ViTConfig) -> dict:
    """config.json for Transformers."""
    hidden_act = HIDDEN_ACT[config.gelu]
    if config.swiglu:
        hidden_act = "silu"
    return {
        "architectures": ["DINOv3ViTModel"],
        "model_type": TYPE,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp,
        "hidden_act": hidden_act,
        "attention_dropout": config.attention_dropout,
        "drop_path_rate": config.stochastic_depth,
        "layer_norm_eps": config.eps,
        "image_size": image_json(config),
        "patch_size": patch_json(config),
        "num_channels": config.channels,
        "query_bias": config.qkv_bias,
        "key_bias": config.qkv_bias,
        "value_bias": config.qkv_bias,
        "proj_bias": True,
        "mlp_bias": True,
        "layerscale_value": config.layer_scale,
        "use_gated_mlp": config.swiglu,
        "num_register_tokens": config.registers,
        "rope_theta": 100.0,
    }


def contradictions(described: Description, opened: Opened) -> list[str]:
    """The fields of config.json that say something else than vitkit's description."""
    return changed_fields(config_json(described.config), opened.config)


def directory(classifier: Classifier) -> dict[str, dict]:
    """The JSON files of a model directory."""
    return {
        "config.json": config_json(classifier.model.config),
        "preprocessor_config.json": processor_json(classifier.preprocessing),
    }


def open_elsewhere(classifier: Classifier, path: Path) -> Elsewhere:
    """Transformers' only class of it."""
    return open_in_transformers(path, "DINOv3ViTModel", pooler_output)


FORMAT = Format(
    name="huggingface",
    kinds=("vit",),
    recognises=recognises,
    describe=describe,
    rules=rules,
    tidy=tidy,
    spell=spell,
    contradictions=contradictions,
    cannot=cannot,
    directory=directory,
    library="transformers",
    example=example,
    open_elsewhere=open_elsewhere,
    pixels_elsewhere=pixels_elsewhere,
    mask=MASK,
)
