"""Hugging Face's Vision Transformers: ViT, DeiT (distilled too) and the encoders of ViT-MAE and ViT-MSN.

Written in the spelling of Transformers 4, which every later version reads; read in that of 5 too. config.json is
in config.py, the image processors in processors.py.
"""

import re
from math import prod
from pathlib import Path

from PIL import Image
from torch import Tensor, nn

from vitkit.models import ViTConfig
from vitkit.weights.classifier import Classifier
from vitkit.weights.description import Description, Hints
from vitkit.weights.files import Opened, Tensors
from vitkit.weights.formats.format import Elsewhere, Format, Tidied
from vitkit.weights.formats.huggingface.config import (
    HEADS,
    activation_of,
    architecture,
    config_json,
    config_of,
    contradictions,
    heads_in,
    labels_of,
)
from vitkit.weights.formats.huggingface.processors import preprocessing_of, processor_json
from vitkit.weights.formats.limits import beyond_vit, those_of
from vitkit.weights.rules import THREE, Rule, each, pairs, rows, rule

TYPES = ("vit", "deit", "vit_mae", "vit_msn")
PATCHES = "embeddings.patch_embeddings.projection.weight"
NEWER = {  # Transformers 5 in memory -> 4 and every file that it writes
    r"^layers\.(\d+)\.": r"encoder.layer.\1.",
    r"\.attention\.q_proj\.": ".attention.attention.query.",
    r"\.attention\.k_proj\.": ".attention.attention.key.",
    r"\.attention\.v_proj\.": ".attention.attention.value.",
    r"\.attention\.o_proj\.": ".attention.output.dense.",
    r"\.mlp\.fc1\.": ".intermediate.dense.",
    r"\.mlp\.fc2\.": ".output.dense.",
}
ASIDE = re.compile(r"(decoder\..*|.*mask_token)")  # of masked image modelling


def recognises(tensors: Tensors) -> bool:
    """Whether these are a Vision Transformer's names in this format."""
    return any(name.endswith(PATCHES) for name in tensors)


def tidy(tensors: Tensors) -> Tidied:
    """Transformers 4's names without the prefix of a classifier's encoder, and without what no classifier reads."""
    prefix = next(name for name in tensors if name.endswith(PATCHES)).removesuffix(PATCHES)
    aside = [name for name in tensors if ASIDE.fullmatch(name.removeprefix(prefix))]
    tidied = {
        _older(name.removeprefix(prefix)): lazy
        for name, lazy in tensors.items()
        if name not in aside
    }
    notes = []
    if aside:
        notes.append(
            f"left out: {len(aside)} tensors of masked image modelling, such as {aside[0]}"
        )
    if "pooler.dense.weight" in tidied and heads_in(tidied):
        tidied = {name: lazy for name, lazy in tidied.items() if not name.startswith("pooler.")}
        notes.append("left out: the pooler, which the classifier does not read")
    return Tidied(tidied, tuple(notes))


def _older(name: str) -> str:
    """A name of Transformers 5 as 4 has it."""
    for newer, older in NEWER.items():
        name = re.sub(newer, older, name)
    return name


def describe(opened: Opened, tidied: Tidied, hints: Hints) -> Description:
    """What config.json and preprocessor_config.json say, checked against the tensors later."""
    kind = opened.config.get("model_type")
    if not opened.config:
        raise ValueError(
            f"{opened.path} has Hugging Face's names and no config.json beside it; vitkit reads {', '.join(TYPES)}"
        )
    if kind not in TYPES:
        raise ValueError(
            f"{opened.path} has Hugging Face's names and a model of type {kind!r}; vitkit reads {', '.join(TYPES)}"
        )
    config = config_of(opened.config, tidied.tensors)
    preprocessing, notes = preprocessing_of(opened.preprocessor, config.image, kind)
    activation, assumed = activation_of(opened.config, config.classes)
    return Description(
        config,
        preprocessing,
        labels=labels_of(opened.config, config.classes),
        notes=(*notes, *assumed),
        activation=activation,
    )


def rules(config: ViTConfig) -> list[Rule]:
    """The table, without the prefix that a classifier's encoder has."""
    block = "encoder.layer.{i}"
    attention = f"{block}.attention"
    bare = config.prefix - config.position_rows  # tokens without a position
    positions = rows(config.position_rows, bare, prod(config.grid))

    def qkv(kind: str) -> Rule:
        parts = [f"{attention}.attention.{part}.{kind}" for part in ("query", "key", "value")]
        return rule(f"blocks.{{i}}.attention.qkv.{kind}", *parts, way=THREE)

    table = [
        *pairs("stem.project", "embeddings.patch_embeddings.projection"),
        rule("cls", "embeddings.cls_token"),
        rule("positions.table", "embeddings.position_embeddings", way=positions),
        *each(config.depth, [
            *pairs("blocks.{i}.norm1", f"{block}.layernorm_before"),
            qkv("weight"),
            qkv("bias"),
            *pairs("blocks.{i}.attention.out", f"{attention}.output.dense"),
            *pairs("blocks.{i}.norm2", f"{block}.layernorm_after"),
            *pairs("blocks.{i}.mlp.expand", f"{block}.intermediate.dense"),
            *pairs("blocks.{i}.mlp.contract", f"{block}.output.dense"),
        ]),
        *pairs("norm", "layernorm"),
    ]  # fmt: skip
    if config.registers:
        table.append(rule("registers", "embeddings.distillation_token"))
    if config.representation:
        table += pairs("representation", "pooler.dense")
    if config.classes and config.pool == "distilled":
        table += pairs("head.token", "cls_classifier")
        table += pairs("head.distilled", "distillation_classifier")
    elif config.classes:
        table += pairs("head", "classifier")
    return table


def spell(tensors: dict[str, Tensor], config: ViTConfig, layout: str) -> dict[str, Tensor]:
    """Tensors under the names that the architecture's class has: an encoder's have a prefix beside a head."""
    if not config.classes:
        return tensors
    prefix = "deit." if config.registers else "vit."
    spelled = {}
    for name, tensor in tensors.items():
        if not name.startswith(HEADS):
            name = prefix + name
        spelled[name] = tensor
    return spelled


def cannot(config: ViTConfig) -> list[str]:
    """What of a model Transformers' ViT and DeiT have no place for."""
    return beyond_vit(config) + those_of(
        {
            f'pooling by "{config.pool}"': config.pool not in ("token", "distilled"),
            "more than one register": config.registers > 1,
            "LayerScale": config.layer_scale is not None,
            "a representation layer before the head": config.representation and config.classes,
        }
    )


def directory(classifier: Classifier) -> dict[str, dict]:
    """The JSON files of a model directory."""
    config = config_json(classifier.model.config, classifier.labels, classifier.activation)
    return {
        "config.json": config,
        "preprocessor_config.json": processor_json(classifier.preprocessing),
    }


# the proof: the model as Transformers opens it


class _Answer(nn.Module):
    """Transformers' models answer with a record; vitkit's with a tensor."""

    def __init__(self, model: nn.Module, config: ViTConfig):
        super().__init__()
        self.model = model
        self.config = config

    def forward(self, images: Tensor) -> Tensor:
        record = self.model(images)
        if self.config.classes:
            return record.logits
        if self.config.representation:
            return record.pooler_output
        return record.last_hidden_state[:, 0]


def open_elsewhere(classifier: Classifier, path: Path) -> Elsewhere:
    """The class that the directory's config.json names, opened by Transformers itself."""
    import transformers

    config = classifier.model.config
    arguments = {}
    if not config.classes:
        arguments["add_pooling_layer"] = bool(config.representation)
    kind = getattr(transformers, architecture(config))
    model = kind.from_pretrained(path, local_files_only=True, **arguments)
    return Elsewhere(f"Transformers {transformers.__version__}", _Answer(model, config))


def pixels_elsewhere(path: Path, image: Image.Image) -> Tensor:
    """What the image processor of a written directory makes of an image."""
    from transformers import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(path, local_files_only=True)
    return processor(image, return_tensors="pt")["pixel_values"]


def example(config: ViTConfig) -> str:
    """How to open a directory with Transformers."""
    kind = "AutoModelForImageClassification" if config.classes else "AutoModel"
    return f"""\
from transformers import AutoImageProcessor, {kind}

model = {kind}.from_pretrained("DIRECTORY")
processor = AutoImageProcessor.from_pretrained("DIRECTORY")
"""


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
