"""The vision towers of Hugging Face's CLIP, SigLIP and SigLIP 2 (of one fixed size of images).

Transformers' code: modeling_clip.py and modeling_siglip.py, whose encoders are the same. CLIP has a
class token and a norm before the first block, SigLIP a MAP head.
"""

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from vitkit.data import Preprocessing
from vitkit.models import ViTConfig
from vitkit.weights.adaptation.statements import Hints
from vitkit.weights.classifier import Classifier
from vitkit.weights.conversion.rules import Rule, for_each_block, gist, layer, rule
from vitkit.weights.conversion.transforms import TABLE, THREE, VECTOR
from vitkit.weights.files import Opened, Tensors
from vitkit.weights.formats.format import Elsewhere, Format, Tidied
from vitkit.weights.formats.huggingface.config import (
    HIDDEN_ACT,
    activation_of,
    changed_fields,
    gelu_of,
    labels_of,
    square_patch_of,
)
from vitkit.weights.formats.huggingface.opening import (
    example,
    open_in_transformers,
    pixels_elsewhere,
    pooler_output,
)
from vitkit.weights.formats.huggingface.processors import preprocessing_of, processor_json
from vitkit.weights.formats.limits import beyond_vit, reasons
from vitkit.weights.formats.shapes import length_of
from vitkit.weights.provenance.description import Description

TYPES = ("clip", "clip_vision_model", "siglip", "siglip_vision_model")
PATCHES = "embeddings.patch_embedding.weight"
PREFIX = "vision_model."
# What lies beside the vision tower, and what an old file has that is no weight
BESIDE = ("text_model.", "text_projection.", "visual_projection.", "logit_scale", "logit_bias")
INDICES = "embeddings.position_ids"


def recognises(tensors: Tensors) -> bool:
    """By the convolution that makes patches."""
    return any(name.endswith(PATCHES) for name in tensors)


def tidy(tensors: Tensors) -> Tidied:
    """The vision tower's tensors, without the prefix that they have beside a text tower."""
    patches = next(name for name in tensors if name.endswith(PATCHES))
    prefix = patches.removesuffix(PATCHES)
    tidied = {}
    beside = []
    for full_name, lazy in tensors.items():
        name = full_name.removeprefix(prefix)
        if full_name.startswith(BESIDE):
            beside.append(full_name)
        elif name != INDICES:
            tidied[name] = lazy
    notes = []
    if beside:
        notes.append(f"left out: {len(beside)} tensors beside the vision tower, as {min(beside)}")

    # SiglipForImageClassification reads the mean, and keeps a MAP head that nobody reads
    unread = [name for name in tidied if name.startswith("head.")]
    if unread and "classifier.weight" in tidied:
        tidied = {name: lazy for name, lazy in tidied.items() if name not in unread}
        notes.append(
            f"left out: {gist(unread[:1])} and the rest of its MAP head: its classifier reads the mean"
        )
    return Tidied(tidied, tuple(notes))


def describe(opened: Opened, tidied: Tidied, hints: Hints) -> Description:
    """What config.json says of the vision tower."""
    model_type = opened.config.get("model_type")
    tensors = tidied.tensors
    check_type(model_type)
    is_clip = model_type.startswith("clip")
    json = opened.config.get("vision_config", opened.config)
    if is_clip and "classifier.weight" in tensors:
        raise ValueError(
            "it is a CLIPForImageClassification, whose classifier reads the mean of states that no "
            "norm has seen; vitkit's models have a norm there. Its vision tower alone can be read"
        )

    # CLIP's and SigLIP's defaults in Transformers differ
    defaults = {"patch": 16, "act": "gelu_pytorch_tanh", "eps": 1e-6, "pool": "map"}
    if is_clip:
        defaults = {"patch": 32, "act": "quick_gelu", "eps": 1e-5, "pool": "token"}
    pool = defaults["pool"]
    notes = []
    if not is_clip and "head.probe" not in tensors:
        pool = "gap"
        if "classifier.weight" not in tensors:
            notes.append("pooling: there is no MAP head in the file, so the mean of the patches")
    patch = square_patch_of(json, defaults["patch"])
    side = json.get("image_size", 224)
    config = ViTConfig(
        width=json.get("hidden_size", 768),
        depth=json.get("num_hidden_layers", 12),
        mlp=json.get("intermediate_size", 3072),
        heads=json.get("num_attention_heads", 12),
        patch=patch,
        image=side // patch * patch,
        channels=json.get("num_channels", 3),
        classes=length_of(tensors, "classifier.bias"),
        pool=pool,
        attention_dropout=json.get("attention_dropout", 0.0),
        gelu=gelu_of(json, defaults["act"]),
        eps=json.get("layer_norm_eps", defaults["eps"]),
        embedding_norm=is_clip,
        resample="huggingface",
    )
    preprocessing, preprocessing_notes = preprocessing_of(
        opened.preprocessor, config.image, model_type
    )
    preprocessing, rest_note = without_rest(preprocessing, config)
    activation, activation_note = activation_of(opened.config, config.classes)
    notes += [*preprocessing_notes, *rest_note, *activation_note]
    labels = labels_of(opened.config, config.classes)
    return Description(config, preprocessing, labels, tuple(notes), activation)


def check_type(model_type: object) -> None:
    """Raises ValueError for a type of model that vitkit does not read."""
    if isinstance(model_type, str) and model_type.startswith("siglip2"):
        raise ValueError(
            "it is a SigLIP 2 for images of any proportions (NaFlex), which come as lists of patches; "
            "vitkit reads SigLIP 2's models of one size, whose config.json says siglip"
        )
    if model_type not in TYPES:
        raise ValueError(
            f"it has the names of CLIP's vision tower and a config.json of type {model_type!r}; "
            f"vitkit reads {', '.join(TYPES)}"
        )


def without_rest(
    preprocessing: Preprocessing, config: ViTConfig
) -> tuple[Preprocessing, list[str]]:
    """The preprocessing for the part of an image that patches cover, and a note if that is not all.

    SigLIP's so400m has images of 384 pixels and patches of 14, and does not look at the last 6.
    """
    height, width = preprocessing.size
    size = (height // config.patch * config.patch, width // config.patch * config.patch)
    if size == preprocessing.size:
        return preprocessing, []
    note = (
        f"preprocessing: patches of {config.patch} leave out {height - size[0]} of {height} pixels, "
        "in Transformers those at the right and below; here half of them at each side"
    )
    resize = preprocessing.resize or max(preprocessing.size)
    return replace(preprocessing, size=size, resize=resize), [note]


def rules(config: ViTConfig) -> list[Rule]:
    """The table of rules, without a prefix."""
    table = [
        rule("stem.project.weight", PATCHES),
        rule("positions.table", "embeddings.position_embedding.weight", transform=TABLE),
        *for_each_block(config.depth, _block_rules()),
        *layer("norm", "post_layernorm"),
    ]
    if config.embedding_norm:
        table.append(rule("cls", "embeddings.class_embedding", transform=VECTOR))
        table += layer("embedding_norm", "pre_layrnorm")
    else:
        table.append(rule("stem.project.bias", "embeddings.patch_embedding.bias"))
    if config.pool == "map":
        table += _pool_rules()
    if config.classes:
        table += layer("head", "classifier")
    return table


def _block_rules() -> list[Rule]:
    block = "encoder.layers.{i}"
    qkv = [f"{block}.self_attn.{part}_proj" for part in "qkv"]
    weights = [f"{part}.weight" for part in qkv]
    biases = [f"{part}.bias" for part in qkv]
    return [
        *layer("blocks.{i}.norm1", f"{block}.layer_norm1"),
        rule("blocks.{i}.attention.qkv.weight", *weights, transform=THREE),
        rule("blocks.{i}.attention.qkv.bias", *biases, transform=THREE),
        *layer("blocks.{i}.attention.out", f"{block}.self_attn.out_proj"),
        *layer("blocks.{i}.norm2", f"{block}.layer_norm2"),
        *layer("blocks.{i}.mlp.expand", f"{block}.mlp.fc1"),
        *layer("blocks.{i}.mlp.contract", f"{block}.mlp.fc2"),
    ]


def _pool_rules() -> list[Rule]:
    # torch.nn.MultiheadAttention has q, k and v in one matrix, as vitkit has, under an odd name
    in_proj = ("_weight", "_bias")
    return [
        rule("pool.probe", "head.probe"),
        *layer("pool.attention.qkv", "head.attention.in_proj", ends=in_proj),
        *layer("pool.attention.out", "head.attention.out_proj"),
        *layer("pool.norm", "head.layernorm"),
        *layer("pool.mlp.expand", "head.mlp.fc1"),
        *layer("pool.mlp.contract", "head.mlp.fc2"),
    ]


def spell(tensors: dict[str, Tensor], config: ViTConfig, layout: str) -> dict[str, Tensor]:
    """Tensors with the prefix that Transformers 4 wants and 5 reads."""
    return {PREFIX + name: tensor for name, tensor in tensors.items()}


def cannot(config: ViTConfig) -> list[str]:
    """What the vision towers cannot express of a model: CLIP's if it has a norm before the first
    block, else SigLIP's. Neither has a head."""
    height, width = config.image
    is_clip = config.embedding_norm
    pool = "map"
    if is_clip:
        pool = "token"
    return beyond_vit(config, has=("embedding_norm",)) + reasons(
        {
            "a head": config.classes,
            f'pooling by "{config.pool}"': config.pool != pool,
            "a class token": config.has_class_token and not is_clip,
            "registers": config.registers,
            "tokens without a position": config.prefix_rows != config.prefix,
            "a norm after the pooling": config.norm == "pooled",
            "a representation layer": config.representation,
            "dropout": config.dropout,
            f"images of {height} x {width}, no square": height != width,
        }
    )


def config_json(config: ViTConfig) -> dict:
    """config.json for Transformers."""
    family = "siglip"
    if config.embedding_norm:
        family = "clip"
    return {
        "architectures": [architecture(config)],
        "model_type": f"{family}_vision_model",
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp,
        "hidden_act": HIDDEN_ACT[config.gelu],
        "attention_dropout": config.attention_dropout,
        "layer_norm_eps": config.eps,
        "image_size": config.image[0],
        "patch_size": config.patch,
        "num_channels": config.channels,
    }


def architecture(config: ViTConfig) -> str:
    """The class of Transformers that computes this model."""
    if config.embedding_norm:
        return "CLIPVisionModel"
    return "SiglipVisionModel"


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
    """The class that the directory's config.json names."""
    return open_in_transformers(path, architecture(classifier.model.config), pooler_output)


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
