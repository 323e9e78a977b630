"""Hugging Face's Vision Transformers: ViT, DeiT (distilled too), I-JEPA and the encoders of ViT-MAE
and ViT-MSN.

Names are written as in Transformers 4 (modeling_vit.py), which later versions read too; those of
Transformers 5 are read as well. config.json is in config.py, the image processors in processors.py.
"""

import re
from math import prod
from pathlib import Path

from torch import Tensor

from vitkit.models import ViTConfig
from vitkit.weights.adaptation.pretraining import decoder_of, mask_of
from vitkit.weights.adaptation.statements import Hints
from vitkit.weights.classifier import Classifier
from vitkit.weights.conversion.rules import Rule, for_each_block, layer, rule
from vitkit.weights.conversion.transforms import position_table
from vitkit.weights.files import Opened, Tensors
from vitkit.weights.formats.format import Elsewhere, Format, Tidied
from vitkit.weights.formats.huggingface.biases import QKV, qkv_rules, with_qkv_biases
from vitkit.weights.formats.huggingface.config import (
    CLASSIFIERS,
    activation_of,
    architecture,
    changed_fields,
    classifiers_in,
    config_json,
    config_of,
    labels_of,
    model_type,
    objective_of,
)
from vitkit.weights.formats.huggingface.opening import (
    example,
    first_token,
    logits,
    mean_of_tokens,
    open_in_transformers,
    pixels_elsewhere,
    pooler_output,
)
from vitkit.weights.formats.huggingface.processors import preprocessing_of, processor_json
from vitkit.weights.formats.limits import beyond_vit, reasons
from vitkit.weights.provenance.description import Description

TYPES = ("vit", "deit", "vit_mae", "vit_msn", "ijepa")
PATCHES = "embeddings.patch_embeddings.projection.weight"
# Transformers 5 has new names in memory, and still writes the old ones. A pattern of the name in a
# file -> the name that the rules use.
RENAMED = {
    r"^layers\.(\d+)\.": r"encoder.layer.\1.",
    r"\.attention\.q_proj\.": ".attention.attention.query.",
    r"\.attention\.k_proj\.": ".attention.attention.key.",
    r"\.attention\.v_proj\.": ".attention.attention.value.",
    r"\.attention\.o_proj\.": ".attention.output.dense.",
    r"\.mlp\.fc1\.": ".intermediate.dense.",
    r"\.mlp\.fc2\.": ".output.dense.",
}
MASK = "embeddings.mask_token"


def recognises(tensors: Tensors) -> bool:
    """By the convolution that makes patches (ViTPatchEmbeddings), without DINOv2's LayerScale."""
    if any(name.endswith(".layer_scale1.lambda1") for name in tensors):
        return False
    return any(name.endswith(PATCHES) for name in tensors)


def tidy(tensors: Tensors) -> Tidied:
    """Transformers 4's names, without the prefix that the encoder of a classifier has ("vit."), and
    without what no classifier reads."""
    patches = next(name for name in tensors if name.endswith(PATCHES))
    prefix = patches.removesuffix(PATCHES)
    tidied = {}
    decoder = {}
    for full_name, lazy in tensors.items():
        name = full_name.removeprefix(prefix)
        if name.startswith("decoder."):
            decoder[name.removeprefix("decoder.")] = lazy
        else:
            tidied[_older(name)] = lazy

    # What pre-training added: ViT-MAE's decoder, or the mask embedding of masked image modelling
    pretraining, notes = decoder_of(decoder)
    if decoder and not notes:
        notes = [f"left out: decoder.{min(decoder)}, which predicts from no state of vitkit's"]
    mask, mask_note = mask_of(tidied.pop(MASK, None))
    pretraining = {**mask, **pretraining}
    notes += mask_note
    if "pooler.dense.weight" in tidied and classifiers_in(tidied):
        tidied = {name: lazy for name, lazy in tidied.items() if not name.startswith("pooler.")}
        notes.append("left out: the pooler, which the classifier does not read")
    tidied, biases_note = with_qkv_biases(tidied, QKV)
    return Tidied(tidied, (*notes, *biases_note), pretraining=pretraining)


def _older(name: str) -> str:
    """A name of Transformers 5 as in Transformers 4; a name of 4 as it is."""
    for newer, older in RENAMED.items():
        name = re.sub(newer, older, name)
    return name


def describe(opened: Opened, tidied: Tidied, hints: Hints) -> Description:
    """What config.json and preprocessor_config.json say. The shapes are checked when tensors are
    read."""
    their_type = opened.config.get("model_type")
    if not opened.config:
        raise ValueError(
            "it has Hugging Face's names and no config.json beside it, which says what it computes"
        )
    if their_type not in TYPES:
        raise ValueError(
            f"it has Hugging Face's names and a model of type {their_type!r}; with such names "
            f"vitkit reads {', '.join(TYPES)}"
        )
    config = config_of(opened.config, tidied.tensors)
    preprocessing, preprocessing_notes = preprocessing_of(
        opened.preprocessor, config.image, their_type
    )
    activation, activation_note = activation_of(opened.config, config.classes)
    return Description(
        config,
        preprocessing,
        labels=labels_of(opened.config, config.classes),
        notes=(*preprocessing_notes, *activation_note),
        activation=activation,
        objective=objective_of(opened.config),
    )


def rules(config: ViTConfig) -> list[Rule]:
    """The table of rules, without the prefix of a classifier's encoder."""
    # Tokens and positions
    positions = position_table(config.prefix_rows, config.prefix, prod(config.grid))
    table = [
        *layer("stem.project", "embeddings.patch_embeddings.projection"),
        rule("positions.table", "embeddings.position_embeddings", transform=positions),
    ]
    if config.has_class_token:
        table.append(rule("cls", "embeddings.cls_token"))
    if config.registers:
        table.append(rule("registers", "embeddings.distillation_token"))

    # Encoder
    table += for_each_block(config.depth, _block_rules(config))
    table += layer("norm", "layernorm")

    # Head
    if config.representation:
        table += layer("representation", "pooler.dense")
    if config.classes and config.pool == "distilled":
        table += layer("head.token", "cls_classifier")
        table += layer("head.distilled", "distillation_classifier")
    elif config.classes:
        table += layer("head", "classifier")
    return table


def _block_rules(config: ViTConfig) -> list[Rule]:
    block = "encoder.layer.{i}"
    attention = f"{block}.attention"
    qkv = [f"{attention}.attention.{part}" for part in ("query", "key", "value")]
    return [
        *layer("blocks.{i}.norm1", f"{block}.layernorm_before"),
        *qkv_rules(config, qkv),
        *layer("blocks.{i}.attention.out", f"{attention}.output.dense"),
        *layer("blocks.{i}.norm2", f"{block}.layernorm_after"),
        *layer("blocks.{i}.mlp.expand", f"{block}.intermediate.dense"),
        *layer("blocks.{i}.mlp.contract", f"{block}.output.dense"),
    ]


def spell(tensors: dict[str, Tensor], config: ViTConfig, layout: str) -> dict[str, Tensor]:
    """Tensors under the names of Transformers' class. Of a classifier all but the heads' have a
    prefix."""
    if not config.classes:
        return tensors
    prefix = f"{model_type(config)}."
    spelled = {}
    for name, tensor in tensors.items():
        if not name.startswith(CLASSIFIERS):
            name = prefix + name
        spelled[name] = tensor
    return spelled


def cannot(config: ViTConfig) -> list[str]:
    """What Transformers' ViT and DeiT, and without a class token I-JEPA, cannot express of a
    model."""
    poolings = ("token", "distilled")
    if not config.has_class_token:
        poolings = ("gap",)
    return beyond_vit(config, has=("qkv_bias", "rectangles")) + reasons(
        {
            f'pooling by "{config.pool}"': config.pool not in poolings,
            "a norm after the pooling": config.norm == "pooled",
            "more than one register": config.registers > 1,
            "a register without a class token": config.registers and not config.has_class_token,
            "a representation layer before the head": config.representation and config.classes,
            "a representation layer after the mean": (
                config.representation and config.pool == "gap"
            ),
        }
    )


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
    if config.classes:
        return open_in_transformers(path, architecture(config), logits)
    pooler = bool(config.representation)
    read = first_token
    if pooler:
        read = pooler_output
    elif not config.has_class_token:
        read = mean_of_tokens
    return open_in_transformers(path, architecture(config), read, add_pooling_layer=pooler)


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
)
