"""Hugging Face's Vision Transformers: ViT, DeiT (distilled too) and the encoders of ViT-MAE and ViT-MSN.

Written in the spelling of Transformers 4, which every later version reads; read in that of 5 too. The image processors
are in processors.py.
"""

import re
from math import prod
from pathlib import Path

from PIL import Image
from torch import Tensor, nn

from vitkit.models import ViTConfig
from vitkit.weights.classifier import Activation, Classifier
from vitkit.weights.description import Description, Hints
from vitkit.weights.files import Opened, Tensors
from vitkit.weights.formats.format import Elsewhere, Format, Tidied
from vitkit.weights.formats.limits import beyond_vit, those_of
from vitkit.weights.formats.processors import preprocessing_of, processor_json
from vitkit.weights.formats.shapes import shape_of
from vitkit.weights.labels import numbered
from vitkit.weights.rules import THREE, Rule, each, pairs, rows, rule

PATCHES = "embeddings.patch_embeddings.projection.weight"
TYPES = ("vit", "deit", "vit_mae", "vit_msn")
GELU = {
    "gelu": "erf",
    "gelu_python": "erf",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
}
PROBLEMS = {  # what its problem_type calls the three kinds of outputs
    "softmax": "single_label_classification",
    "sigmoid": "multi_label_classification",
    "none": "regression",
}
HEADS = ("classifier", "cls_classifier", "distillation_classifier")
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
    if "pooler.dense.weight" in tidied and _heads(tidied):
        tidied = {name: lazy for name, lazy in tidied.items() if not name.startswith("pooler.")}
        notes.append("left out: the pooler, which the classifier does not read")
    return Tidied(tidied, tuple(notes))


def _older(name: str) -> str:
    """A name of Transformers 5 as 4 has it."""
    for newer, older in NEWER.items():
        name = re.sub(newer, older, name)
    return name


def _heads(tensors: Tensors) -> list[str]:
    """The heads that there are: one, or a distilled model's two."""
    return [name for name in HEADS if f"{name}.weight" in tensors]


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
    config = _config(opened.config, tidied.tensors)
    preprocessing, notes = preprocessing_of(opened.preprocessor, config.image, kind)
    return Description(
        config,
        preprocessing,
        labels=_labels(opened.config, config.classes),
        notes=tuple(notes),
        activation=_activation(opened.config),
    )


def _config(json: dict, tensors: Tensors) -> ViTConfig:
    """The architecture of a config.json; heads, pooler and distillation token are where their tensors are."""
    act = json.get("hidden_act", "gelu")
    if act not in GELU:
        raise ValueError(
            f"its hidden_act is {act!r}; a Vision Transformer has one of {', '.join(GELU)}"
        )
    if not json.get("qkv_bias", True):
        raise ValueError("its q, k and v have no biases (qkv_bias false), which vitkit's have")
    heads = _heads(tensors)
    classes = shape_of(tensors, f"{heads[0]}.weight", 2)[0] if heads else 0
    distilled = "embeddings.distillation_token" in tensors
    return ViTConfig(
        width=json.get("hidden_size", 768),
        depth=json.get("num_hidden_layers", 12),
        mlp=json.get("intermediate_size", 3072),
        heads=json.get("num_attention_heads", 12),
        patch=_patch(json),
        image=json.get("image_size", 224),
        channels=json.get("num_channels", 3),
        classes=classes,
        pool="distilled" if len(heads) == 2 else "token",
        registers=int(distilled),
        representation=_representation(json, tensors),
        dropout=json.get("hidden_dropout_prob", 0.0),
        attention_dropout=json.get("attention_probs_dropout_prob", 0.0),
        gelu=GELU[act],
        eps=json.get("layer_norm_eps", 1e-12),
        resample="huggingface",
    )


def _patch(json: dict) -> int:
    """The side of a patch, which may be given twice."""
    patch = json.get("patch_size", 16)
    if not isinstance(patch, list):
        return patch
    if len(set(map(str, patch))) != 1:
        raise ValueError(f"its patch_size is {patch}; vitkit's patches are square")
    return patch[0]


def _representation(json: dict, tensors: Tensors) -> int:
    """The width of the pooler, which is the hidden layer of the paper's head; 0 without one."""
    if "pooler.dense.weight" not in tensors:
        return 0
    if json.get("pooler_act", "tanh") != "tanh":
        raise ValueError(
            f"its pooler_act is {json['pooler_act']!r}; the hidden layer of the paper's head has tanh"
        )
    return shape_of(tensors, "pooler.dense.weight", 2)[0]


def _labels(json: dict, classes: int) -> tuple[str, ...] | None:
    """The names in id2label; numbers for the names that Transformers makes up; None if they are not one a class."""
    names = json.get("id2label")
    if not isinstance(names, dict) or not classes or len(names) < classes:
        return None
    made_up = tuple(f"LABEL_{i}" for i in range(classes))
    labels = tuple(str(names.get(str(i), made_up[i])) for i in range(classes))
    return numbered(classes) if labels == made_up else labels


def _activation(json: dict) -> Activation:
    """Of its problem_type; a file without one is a classifier of one class among K."""
    problem = json.get("problem_type") or PROBLEMS["softmax"]
    activations = {name: activation for activation, name in PROBLEMS.items()}
    if problem not in activations:
        raise ValueError(f"its problem_type is {problem!r}; vitkit knows {', '.join(activations)}")
    return activations[problem]


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
    return {
        name if name.startswith(HEADS) else prefix + name: tensor
        for name, tensor in tensors.items()
    }


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


def config_json(config: ViTConfig, labels: tuple[str, ...], activation: Activation) -> dict:
    """config.json for Transformers."""
    values = {
        "architectures": [architecture(config)],
        "model_type": "deit" if config.registers else "vit",
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp,
        "hidden_act": "gelu" if config.gelu == "erf" else "gelu_pytorch_tanh",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "layer_norm_eps": config.eps,
        "image_size": list(config.image),
        "patch_size": config.patch,
        "num_channels": config.channels,
        "qkv_bias": True,
    }
    if config.image[0] == config.image[1]:
        values["image_size"] = config.image[0]
    if config.representation:
        values["pooler_output_size"] = config.representation
    if config.classes:
        values["id2label"] = {str(i): name for i, name in enumerate(labels)}
        values["label2id"] = {name: i for i, name in enumerate(labels)}
        values["problem_type"] = PROBLEMS[activation]
    return values


def architecture(config: ViTConfig) -> str:
    """The class of Transformers that computes this model."""
    family = "DeiT" if config.registers else "ViT"
    if not config.classes:
        return f"{family}Model"
    if config.pool == "distilled":
        return f"{family}ForImageClassificationWithTeacher"
    return f"{family}ForImageClassification"


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
    cannot=cannot,
    directory=directory,
    library="transformers",
    example=example,
    open_elsewhere=open_elsewhere,
    pixels_elsewhere=pixels_elsewhere,
)
