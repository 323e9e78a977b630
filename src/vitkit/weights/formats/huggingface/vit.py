"""Hugging Face's Vision Transformers: ViT, DeiT (distilled too) and the encoders of ViT-MAE and
ViT-MSN.

Names are written as in Transformers 4 (modeling_vit.py), which later versions read too; those of
Transformers 5 are read as well. config.json is in config.py, the image processors in processors.py.
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
    CLASSIFIERS,
    activation_of,
    architecture,
    classifiers_in,
    config_json,
    config_of,
    contradictions,
    labels_of,
)
from vitkit.weights.formats.huggingface.processors import preprocessing_of, processor_json
from vitkit.weights.formats.limits import beyond_vit, reasons
from vitkit.weights.rules import Rule, for_each_block, layer, rule
from vitkit.weights.transforms import THREE, position_table

TYPES = ("vit", "deit", "vit_mae", "vit_msn")
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
NOT_READ = re.compile(r"(decoder\..*|.*mask_token)")  # ViT-MAE's decoder, masked image modelling


def recognises(tensors: Tensors) -> bool:
    """By the convolution that makes patches (ViTPatchEmbeddings)."""
    return any(name.endswith(PATCHES) for name in tensors)


def tidy(tensors: Tensors) -> Tidied:
    """Transformers 4's names, without the prefix that the encoder of a classifier has ("vit."), and
    without what no classifier reads."""
    patches = next(name for name in tensors if name.endswith(PATCHES))
    prefix = patches.removesuffix(PATCHES)
    tidied = {}
    not_read = []
    for full_name, lazy in tensors.items():
        name = full_name.removeprefix(prefix)
        if NOT_READ.fullmatch(name):
            not_read.append(full_name)
        else:
            tidied[_older(name)] = lazy

    notes = []
    if not_read:
        kind = "tensors of masked image modelling"
        notes.append(f"left out: {len(not_read)} {kind}, such as {not_read[0]}")
    if "pooler.dense.weight" in tidied and classifiers_in(tidied):
        tidied = {name: lazy for name, lazy in tidied.items() if not name.startswith("pooler.")}
        notes.append("left out: the pooler, which the classifier does not read")
    return Tidied(tidied, tuple(notes))


def _older(name: str) -> str:
    """A name of Transformers 5 as in Transformers 4; a name of 4 as it is."""
    for newer, older in RENAMED.items():
        name = re.sub(newer, older, name)
    return name


def describe(opened: Opened, tidied: Tidied, hints: Hints) -> Description:
    """What config.json and preprocessor_config.json say. The shapes are checked when tensors are
    read."""
    model_type = opened.config.get("model_type")
    if not opened.config:
        raise ValueError(
            "it has Hugging Face's names and no config.json beside it; "
            f"vitkit reads {', '.join(TYPES)}"
        )
    if model_type not in TYPES:
        raise ValueError(
            f"it has Hugging Face's names and a model of type {model_type!r}; "
            f"vitkit reads {', '.join(TYPES)}"
        )
    config = config_of(opened.config, tidied.tensors)
    preprocessing, preprocessing_notes = preprocessing_of(
        opened.preprocessor, config.image, model_type
    )
    activation, activation_note = activation_of(opened.config, config.classes)
    return Description(
        config,
        preprocessing,
        labels=labels_of(opened.config, config.classes),
        notes=(*preprocessing_notes, *activation_note),
        activation=activation,
    )


def rules(config: ViTConfig) -> list[Rule]:
    """The table of rules, without the prefix of a classifier's encoder."""
    # Tokens and positions
    positions = position_table(config.prefix_rows, config.prefix, prod(config.grid))
    table = [
        *layer("stem.project", "embeddings.patch_embeddings.projection"),
        rule("cls", "embeddings.cls_token"),
        rule("positions.table", "embeddings.position_embeddings", transform=positions),
    ]
    if config.registers:
        table.append(rule("registers", "embeddings.distillation_token"))

    # Encoder
    table += for_each_block(config.depth, _block_rules())
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


def _block_rules() -> list[Rule]:
    block = "encoder.layer.{i}"
    attention = f"{block}.attention"
    qkv = [f"{attention}.attention.{part}" for part in ("query", "key", "value")]
    weights = [f"{part}.weight" for part in qkv]
    biases = [f"{part}.bias" for part in qkv]
    return [
        *layer("blocks.{i}.norm1", f"{block}.layernorm_before"),
        rule("blocks.{i}.attention.qkv.weight", *weights, transform=THREE),
        rule("blocks.{i}.attention.qkv.bias", *biases, transform=THREE),
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
    prefix = "deit." if config.registers else "vit."
    spelled = {}
    for name, tensor in tensors.items():
        if not name.startswith(CLASSIFIERS):
            name = prefix + name
        spelled[name] = tensor
    return spelled


def cannot(config: ViTConfig) -> list[str]:
    """What Transformers' ViT and DeiT cannot express of a model."""
    return beyond_vit(config) + reasons(
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
    """A model of Transformers that returns a tensor, as vitkit's do, and not a record."""

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
    """What the image processor of a written directory makes of an image, (1, 3, h, w)."""
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
