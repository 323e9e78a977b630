"""Hugging Face's Vision Transformers: ViT, DeiT (also distilled), I-JEPA and the encoders of ViT-MAE and
ViT-MSN.

Transformers' code: modeling_vit.py.
"""

from math import prod

from vitkit.models import ViTConfig
from vitkit.system.errors import BadWeights
from vitkit.weights.files.content import Tensors
from vitkit.weights.formats.encoders import BlockNames, PartNames
from vitkit.weights.formats.format import Tidied, has_end
from vitkit.weights.formats.huggingface.config import classifiers_in
from vitkit.weights.formats.huggingface.family import Family
from vitkit.weights.formats.shapes import shape_of
from vitkit.weights.pretraining import decoder_of
from vitkit.weights.rules import Transform, position_table

# Fields that ViT, the towers and DINO share. Setting of a ViTConfig -> its field in config.json, and
# Transformers' default for it
SIZES = {
    "width": ("hidden_size", 768),
    "depth": ("num_hidden_layers", 12),
    "heads": ("num_attention_heads", 12),
    "mlp": ("intermediate_size", 3072),
    "image": ("image_size", 224),
    "patch": ("patch_size", 16),
    "channels": ("num_channels", 3),
    "gelu": ("hidden_act", "gelu"),
}
DROPOUTS = {
    "dropout": ("hidden_dropout_prob", 0.0),
    "attention_dropout": ("attention_probs_dropout_prob", 0.0),
}
# Patterns of names in Transformers 5 -> names in version 4
NEWER_ATTENTION = {
    r"\.attention\.q_proj\.": ".attention.attention.query.",
    r"\.attention\.k_proj\.": ".attention.attention.key.",
    r"\.attention\.v_proj\.": ".attention.attention.value.",
    r"\.attention\.o_proj\.": ".attention.output.dense.",
}
QKV = ("attention.attention.query", "attention.attention.key", "attention.attention.value")
PATCHES = "embeddings.patch_embeddings.projection"


def _without_unread_parts(tensors: Tensors) -> Tidied:
    """Separate ViT-MAE's decoder. Raises VitkitError for a classifier beside a pooler, which no class of
    Transformers has: a user's class may read either output."""
    tidied = {}
    decoder = {}
    for name, lazy in tensors.items():
        if name.startswith("decoder."):
            decoder[name.removeprefix("decoder.")] = lazy
        else:
            tidied[name] = lazy
    pretraining, notes = decoder_of(decoder)
    if decoder and not notes:
        notes = [f"left out: decoder.{min(decoder)}, which does not read a state that vitkit has"]
    if "pooler.dense.weight" in tidied and classifiers_in(tidied):
        raise BadWeights(
            "it has a classifier and a pooler, unlike any class of Transformers, so it is unknown which "
            "output the classifier reads; if it is the class token (last_hidden_state[:, 0]), save the "
            "file again without the pooler. To read the encoder without the classifier: `part='encoder'`"
        )
    return Tidied(tidied, tuple(notes), pretraining=pretraining)


def _settings(json: dict, tensors: Tensors) -> dict:
    """Whether there are a head, a second head and a pooler, for which config.json is not reliable."""
    classifiers = classifiers_in(tensors)
    classes = 0
    if classifiers:
        classes = shape_of(tensors, f"{classifiers[0]}.weight", 2)[0]
    pool = "token"
    if len(classifiers) == 2:
        pool = "distilled"
    elif "embeddings.cls_token" not in tensors:
        pool = "gap"  # I-JEPA
    return {
        "classes": classes,
        "pool": pool,
        "representation": _representation(json, tensors),
    }


def _representation(json: dict, tensors: Tensors) -> int:
    """The width of the pooler, the hidden layer of the paper's head (Section 3.1); 0 without one."""
    if "pooler.dense.weight" not in tensors:
        return 0
    if "embeddings.cls_token" not in tensors:
        raise BadWeights(
            "its pooler reads the first patch (pooler.dense.weight in a model without a class "
            "token), which vitkit's hidden layer does not; save the model without its pooler"
        )
    act = json.get("pooler_act", "tanh")
    if act != "tanh":
        raise BadWeights(
            f"its pooler_act is {act!r}; the hidden layer of the paper's head has tanh"
        )
    return shape_of(tensors, "pooler.dense.weight", 2)[0]


def _more_fields(config: ViTConfig) -> dict:
    """Fields of config.json beyond those in `fields`."""
    fields: dict = {"qkv_bias": config.qkv_bias}
    if config.representation:
        fields["pooler_output_size"] = config.representation
    return fields


def _class_of(config: ViTConfig) -> tuple[str, str]:
    """See `Family.class_of`: DeiT with a distillation token, I-JEPA without a class token."""
    if config.registers:
        return "deit", "DeiT"
    if not config.has_class_token:
        return "ijepa", "IJepa"
    return "vit", "ViT"


def _pools(config: ViTConfig) -> tuple[str, ...]:
    """See `Family.pools`."""
    if config.has_class_token:
        return ("token", "distilled")
    return ("gap",)


def _lacks(config: ViTConfig) -> dict[str, object]:
    """See `Family.cannot`."""
    return {
        "more than one register": config.registers > 1,
        "a register without a class token": config.registers and not config.has_class_token,
        "a representation layer before the head": config.representation and config.classes,
        "a representation layer after the mean": config.representation and config.pool == "gap",
    }


def _position_table(config: ViTConfig) -> Transform:
    """The transform of Transformers' position table, which has a row for every token."""
    return position_table(config.prefix_rows, config.prefix, prod(config.grid))


BLOCK = BlockNames(
    prefix="encoder.layer.{i}.",
    first_norm="layernorm_before",
    qkv=QKV,
    out="attention.output.dense",
    norm="layernorm_after",
    expand="intermediate.dense",
    contract="output.dense",
)
NAMES = PartNames(
    patches=PATCHES,
    cls="embeddings.cls_token",
    registers="embeddings.distillation_token",
    positions="embeddings.position_embeddings",
    block=BLOCK,
    norm="layernorm",
    representation="pooler.dense",
    head="classifier",
    distilled=("cls_classifier", "distillation_classifier"),
)
VIT = Family(
    title="Hugging Face's ViT",
    types=("vit", "deit", "vit_mae", "vit_msn", "ijepa"),
    class_of=_class_of,
    recognises=lambda tensors: (
        has_end(tensors, f"{PATCHES}.weight") and not has_end(tensors, ".layer_scale1.lambda1")
    ),
    names=NAMES,
    renamed={
        r"^layers\.(\d+)\.": r"encoder.layer.\1.",
        **NEWER_ATTENTION,
        r"\.mlp\.fc1\.": ".intermediate.dense.",
        r"\.mlp\.fc2\.": ".output.dense.",
    },
    fields={**SIZES, **DROPOUTS, "eps": ("layer_norm_eps", 1e-12)},
    of_types={"vit_msn": {"layer_norm_eps": 1e-6}},
    pools=_pools,
    settings=_settings,
    more_fields=_more_fields,
    has=("qkv_bias", "rectangles"),
    cannot=_lacks,
    tidy=_without_unread_parts,
    position_table=_position_table,
    pooler_is_optional=True,
)
