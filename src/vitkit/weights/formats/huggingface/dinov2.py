"""Hugging Face's DINOv2, without and with registers; its giant has SwiGLU MLPs.

Transformers' code: modeling_dinov2.py and modeling_dinov2_with_registers.py.
"""

import re
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from vitkit.models import ViTConfig
from vitkit.weights.adaptation.pretraining import mask_of
from vitkit.weights.adaptation.statements import Hints
from vitkit.weights.classifier import Activation, Classifier
from vitkit.weights.conversion.rules import Rule, for_each_block, layer, rule
from vitkit.weights.files import Opened, Tensors, joined
from vitkit.weights.formats.format import Elsewhere, Format, Tidied
from vitkit.weights.formats.huggingface.biases import (
    QKV,
    have_biases,
    qkv_rules,
    with_qkv_biases,
)
from vitkit.weights.formats.huggingface.config import (
    HIDDEN_ACT,
    activation_of,
    changed_fields,
    classes_json,
    gelu_of,
    image_json,
    labels_of,
    patch_json,
)
from vitkit.weights.formats.huggingface.opening import (
    example,
    logits,
    open_in_transformers,
    pixels_elsewhere,
    pooler_output,
)
from vitkit.weights.formats.huggingface.processors import preprocessing_of, processor_json
from vitkit.weights.formats.limits import beyond_vit, reasons
from vitkit.weights.formats.shapes import length_of, shape_of
from vitkit.weights.provenance.description import Description

TYPES = ("dinov2", "dinov2_with_registers")
PATCHES = "embeddings.patch_embeddings.projection.weight"
MASK = "embeddings.mask_token"
# Transformers 5 has new names in memory, and still writes the old ones.
RENAMED = {
    r"\.attention\.q_proj\.": ".attention.attention.query.",
    r"\.attention\.k_proj\.": ".attention.attention.key.",
    r"\.attention\.v_proj\.": ".attention.attention.value.",
    r"\.attention\.o_proj\.": ".attention.output.dense.",
    r"\.mlp\.down_proj\.": ".mlp.weights_out.",
}


def recognises(tensors: Tensors) -> bool:
    """By its LayerScale, beside the convolution that makes patches."""
    has_patches = any(name.endswith(PATCHES) for name in tensors)
    return has_patches and any(name.endswith(".layer_scale1.lambda1") for name in tensors)


def tidy(tensors: Tensors) -> Tidied:
    """Transformers 4's names, without the prefix that the encoder of a classifier has ("dinov2.")."""
    patches = next(name for name in tensors if name.endswith(PATCHES))
    prefix = patches.removesuffix(PATCHES)
    tidied = {}
    for name, lazy in tensors.items():
        name = name.removeprefix(prefix)
        for newer, older in RENAMED.items():
            name = re.sub(newer, older, name)
        tidied[name] = lazy

    # The gate and what it multiplies are one layer in files of version 4
    for name in list(tidied):
        if ".mlp.gate_proj." in name and name.replace("gate", "up") in tidied:
            gate = tidied.pop(name)
            up = tidied.pop(name.replace("gate", "up"))
            tidied[name.replace("gate_proj", "weights_in")] = joined(gate, up)

    mask, notes = mask_of(tidied.pop(MASK, None))
    tidied, biases_note = with_qkv_biases(tidied, QKV)
    return Tidied(tidied, (*notes, *biases_note), pretraining=mask)


def describe(opened: Opened, tidied: Tidied, hints: Hints) -> Description:
    """What config.json says; the width of the MLP, which it gives as a ratio, is read from the
    tensors."""
    json = opened.config
    tensors = tidied.tensors
    if json.get("model_type") not in TYPES:
        raise ValueError(
            f"it has DINOv2's names and a config.json of type {json.get('model_type')!r}; vitkit "
            f"reads {', '.join(TYPES)}"
        )
    swiglu = "encoder.layer.0.mlp.weights_out.weight" in tensors
    contract = "weights_out" if swiglu else "fc2"
    registers = 0
    if "embeddings.register_tokens" in tensors:
        registers = shape_of(tensors, "embeddings.register_tokens", 3)[1]
    pool = "token"
    resample = "huggingface"
    if "classifier.weight" in tensors:
        pool = "token-gap"
    if registers:
        resample = "timm"  # with antialiasing, which the code without registers does not have

    config = ViTConfig(
        width=json.get("hidden_size", 768),
        depth=json.get("num_hidden_layers", 12),
        mlp=shape_of(tensors, f"encoder.layer.0.mlp.{contract}.weight", 2)[1],
        heads=json.get("num_attention_heads", 12),
        patch=json.get("patch_size", 14),
        image=json.get("image_size", 224),
        channels=json.get("num_channels", 3),
        classes=length_of(tensors, "classifier.bias"),
        pool=pool,
        registers=registers,
        prefix_positions=1,  # the class token's; registers have none
        dropout=json.get("hidden_dropout_prob", 0.0),
        attention_dropout=json.get("attention_probs_dropout_prob", 0.0),
        stochastic_depth=json.get("drop_path_rate", 0.0),
        qkv_bias=have_biases(tensors, QKV),
        gelu=gelu_of(json, "gelu"),
        swiglu=swiglu,
        eps=json.get("layer_norm_eps", 1e-6),
        layer_scale=json.get("layerscale_value", 1.0),
        resample=resample,
    )
    config = with_simplest_positions(config)
    preprocessing, notes = preprocessing_of(opened.preprocessor, config.image, json["model_type"])
    activation, activation_note = activation_of(json, config.classes)
    labels = labels_of(json, config.classes)
    return Description(config, preprocessing, labels, (*notes, *activation_note), activation)


def with_simplest_positions(config: ViTConfig) -> ViTConfig:
    """The same configuration, in which "all tokens have a position" is not said by a number."""
    if config.prefix_positions == config.prefix:
        return replace(config, prefix_positions=None)
    return config


def rules(config: ViTConfig) -> list[Rule]:
    """The table of rules, without the prefix of a classifier's encoder."""
    table = [
        *layer("stem.project", "embeddings.patch_embeddings.projection"),
        rule("cls", "embeddings.cls_token"),
        rule("positions.table", "embeddings.position_embeddings"),
    ]
    if config.registers:
        table.append(rule("registers", "embeddings.register_tokens"))
    table += for_each_block(config.depth, _block_rules(config))
    table += layer("norm", "layernorm")
    if config.classes:
        table += layer("head", "classifier")
    return table


def _block_rules(config: ViTConfig) -> list[Rule]:
    block = "encoder.layer.{i}"
    qkv = [f"{block}.attention.attention.{part}" for part in QKV]
    expand = "fc1"
    contract = "fc2"
    if config.swiglu:
        expand = "weights_in"
        contract = "weights_out"
    return [
        *layer("blocks.{i}.norm1", f"{block}.norm1"),
        *qkv_rules(config, qkv),
        *layer("blocks.{i}.attention.out", f"{block}.attention.output.dense"),
        rule("blocks.{i}.scale1.gamma", f"{block}.layer_scale1.lambda1"),
        *layer("blocks.{i}.norm2", f"{block}.norm2"),
        *layer("blocks.{i}.mlp.expand", f"{block}.mlp.{expand}"),
        *layer("blocks.{i}.mlp.contract", f"{block}.mlp.{contract}"),
        rule("blocks.{i}.scale2.gamma", f"{block}.layer_scale2.lambda1"),
    ]


def spell(tensors: dict[str, Tensor], config: ViTConfig, layout: str) -> dict[str, Tensor]:
    """Tensors under the names of Transformers' class: its mask token among them, of zeros as new ones
    are, and with a prefix for all but the head of a classifier."""
    tensors = {**tensors, MASK: torch.zeros(1, config.width)}
    if not config.classes:
        return tensors
    spelled = {}
    for name, tensor in tensors.items():
        if not name.startswith("classifier."):
            name = f"{model_type(config)}.{name}"
        spelled[name] = tensor
    return spelled


def model_type(config: ViTConfig) -> str:
    """What Transformers calls the model."""
    if config.registers:
        return "dinov2_with_registers"
    return "dinov2"


def mlp_ratio(config: ViTConfig) -> int | None:
    """The whole number of which Transformers makes the width of the MLP; None if there is none."""
    for ratio in range(1, 17):
        hidden = config.width * ratio
        if config.swiglu:
            hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
        if hidden == config.mlp:
            return ratio
    return None


def cannot(config: ViTConfig) -> list[str]:
    """What Transformers' DINOv2 cannot express of a model."""
    height, width = config.image
    pool = "token"
    if config.classes:
        pool = "token-gap"
    return beyond_vit(
        config, has=("layer_scale", "swiglu", "token-gap", "qkv_bias", "rectangles")
    ) + reasons(
        {
            f'pooling by "{config.pool}"': config.pool != pool,
            "no LayerScale": config.layer_scale is None,
            "a norm after the pooling": config.norm == "pooled",
            "a representation layer": config.representation,
            "positions of other tokens than class token and patches": config.prefix_rows != 1,
            f"an MLP of {config.mlp}": mlp_ratio(config) is None,
            f"images of {height} x {width}, no square": height != width,
        }
    )


def config_json(config: ViTConfig, labels: tuple[str, ...], activation: Activation) -> dict:
    """config.json for Transformers."""
    values = {
        "architectures": [architecture(config)],
        "model_type": model_type(config),
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "mlp_ratio": mlp_ratio(config),
        "hidden_act": HIDDEN_ACT[config.gelu],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "drop_path_rate": config.stochastic_depth,
        "layer_norm_eps": config.eps,
        "image_size": image_json(config),
        "patch_size": patch_json(config),
        "num_channels": config.channels,
        "qkv_bias": config.qkv_bias,
        "layerscale_value": config.layer_scale,
        "use_swiglu_ffn": config.swiglu,
    }
    if config.registers:
        values["num_register_tokens"] = config.registers
    if config.classes:
        values |= classes_json(labels, activation)
    return values


def architecture(config: ViTConfig) -> str:
    """The class of Transformers that computes this model."""
    family = "Dinov2WithRegisters" if config.registers else "Dinov2"
    if config.classes:
        return f"{family}ForImageClassification"
    return f"{family}Model"


def contradictions(described: Description, opened: Opened) -> list[str]:
    """The fields of config.json that say something else than vitkit's description."""
    ours = config_json(described.config, described.labels, described.activation)
    return changed_fields(ours, opened.config)


def directory(classifier: Classifier) -> dict[str, dict]:
    """The JSON files of a model directory."""
    config = config_json(classifier.model.config, classifier.labels, classifier.activation)
    return {
        "config.json": config,
        "preprocessor_config.json": processor_json(classifier.preprocessing),
    }


def open_elsewhere(classifier: Classifier, path: Path) -> Elsewhere:
    """The class that the directory's config.json names."""
    config = classifier.model.config
    read = pooler_output
    if config.classes:
        read = logits
    return open_in_transformers(path, architecture(config), read)


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
