"""Hugging Face's DINOv2, without and with registers, and DINOv3; their giants have SwiGLU MLPs.

Transformers' code: modeling_dinov2.py, modeling_dinov2_with_registers.py and modeling_dinov3_vit.py.
"""

from vitkit.models import ViTConfig
from vitkit.system.errors import BadWeights
from vitkit.weights.files.content import Tensors, joined
from vitkit.weights.formats.encoders import BlockNames, PartNames
from vitkit.weights.formats.format import Tidied, has_end
from vitkit.weights.formats.huggingface.config import HIDDEN_ACT, gelu_of
from vitkit.weights.formats.huggingface.family import Family, with_biases
from vitkit.weights.formats.huggingface.vit import DROPOUTS, NEWER_ATTENTION, PATCHES, QKV, SIZES
from vitkit.weights.formats.shapes import shape_of

SCALES = ("layer_scale1.lambda1", "layer_scale2.lambda1")


# DINOv2


def _with_joined_gates(tensors: Tensors) -> Tidied:
    """Join the gate and the layer that it multiplies: one layer in files of version 4, two in version 5."""
    tidied = dict(tensors)
    for name in tensors:
        up = name.replace("gate", "up")
        if ".mlp.gate_proj." in name and up in tensors:
            layer = joined(tidied.pop(name), tidied.pop(up))
            tidied[name.replace("gate_proj", "weights_in")] = layer
    return Tidied(tidied)


def _dinov2_settings(json: dict, tensors: Tensors) -> dict:
    """The settings that follow from tensors; config.json has the width of the MLP only as a ratio."""
    swiglu = "encoder.layer.0.mlp.weights_out.weight" in tensors
    contract = "weights_out" if swiglu else "fc2"
    settings: dict = {
        "mlp": shape_of(tensors, f"encoder.layer.0.mlp.{contract}.weight", 2)[1],
        "swiglu": swiglu,
    }
    if "classifier.weight" in tensors:
        settings["pool"] = "token-gap"
    if "embeddings.register_tokens" in tensors:
        settings["prefix_positions"] = 1  # for the class token; registers have no position
    if json.get("model_type") == "dinov2_with_registers":
        settings["resample"] = "timm"  # with antialiasing, unlike the code without registers
    return settings


def _mlp_ratio(config: ViTConfig) -> int | None:
    """The integer from which Transformers computes the width of the MLP; None if there is none."""
    for ratio in range(1, 17):
        hidden = config.width * ratio
        if config.swiglu:
            hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
        if hidden == config.mlp:
            return ratio
    return None


def _dinov2_fields(config: ViTConfig) -> dict:
    """Fields of config.json beyond DINOV2_FIELDS."""
    fields = {
        "mlp_ratio": _mlp_ratio(config),
        "qkv_bias": config.qkv_bias,
        "use_swiglu_ffn": config.swiglu,
    }
    if config.registers:
        fields["num_register_tokens"] = config.registers
    return fields


def _dinov2_class(config: ViTConfig) -> tuple[str, str]:
    """See `Family.class_of`."""
    if config.registers:
        return "dinov2_with_registers", "Dinov2WithRegisters"
    return "dinov2", "Dinov2"


def _dinov2_pools(config: ViTConfig) -> tuple[str, ...]:
    """See `Family.pools`."""
    if config.classes:
        return ("token-gap",)
    return ("token",)


def _dinov2_lacks(config: ViTConfig) -> dict[str, object]:
    """See `Family.cannot`."""
    height, width = config.image
    return {
        "positions of other tokens than class token and patches": config.prefix_rows != 1,
        f"an MLP of {config.mlp}": _mlp_ratio(config) is None,
        f"images of {height} x {width}, not square": height != width,
    }


DINOV2_BLOCK = BlockNames(
    prefix="encoder.layer.{i}.",
    first_norm="norm1",
    qkv=QKV,
    out="attention.output.dense",
    norm="norm2",
    expand="mlp.fc1",
    contract="mlp.fc2",
    gated=(("mlp.weights_in",), "mlp.weights_out"),
    scales=SCALES,
)
DINOV2_NAMES = PartNames(
    patches=PATCHES,
    cls="embeddings.cls_token",
    registers="embeddings.register_tokens",
    positions="embeddings.position_embeddings",
    block=DINOV2_BLOCK,
    norm="layernorm",
    head="classifier",
)
DINOV2_FIELDS = {
    **{setting: field for setting, field in SIZES.items() if setting != "mlp"},
    **DROPOUTS,
    "patch": ("patch_size", 14),
    "stochastic_depth": ("drop_path_rate", 0.0),
    "eps": ("layer_norm_eps", 1e-6),
    "layer_scale": ("layerscale_value", 1.0),
}
DINOV2 = Family(
    title="DINOv2",
    types=("dinov2", "dinov2_with_registers"),
    class_of=_dinov2_class,
    recognises=lambda tensors: (
        has_end(tensors, f"{PATCHES}.weight") and has_end(tensors, f".{SCALES[0]}")
    ),
    names=DINOV2_NAMES,
    renamed={**NEWER_ATTENTION, r"\.mlp\.down_proj\.": ".mlp.weights_out."},
    fields=DINOV2_FIELDS,
    of_types={"dinov2_with_registers": {"patch_size": 16}},
    pools=_dinov2_pools,
    settings=_dinov2_settings,
    more_fields=_dinov2_fields,
    has=("layer_scale", "swiglu", "token-gap", "qkv_bias", "rectangles"),
    cannot=_dinov2_lacks,
    tidy=_with_joined_gates,
    mask_axes=2,
)


# DINOv3


def _with_all_biases(tensors: Tensors) -> Tidied:
    """Add missing biases of other layers too (mlp_bias: false)."""
    layers = ("o_proj", "gate_proj", "up_proj", "down_proj")
    tensors, notes = with_biases(tensors, layers)
    return Tidied(tensors, tuple(notes))


def _dinov3_settings(json: dict, tensors: Tensors) -> dict:
    """The settings of DINOv3's positions and MLP. Raises VitkitError for those that vitkit lacks."""
    theta = json.get("rope_theta", 100.0)
    if theta != 100:
        raise BadWeights(f"its rope_theta is {theta}; vitkit's positions of DINOv3 have 100")
    act = json.get("hidden_act", "gelu")
    if not json.get("use_gated_mlp", False):
        return {"gelu": gelu_of(act)}
    if act != "silu":
        raise BadWeights(f"its gated MLP has the activation {act!r}; a SwiGLU has silu")
    return {"swiglu": True, "gelu": "erf"}


def _dinov3_fields(config: ViTConfig) -> dict:
    """Fields of config.json beyond DINOV3_FIELDS."""
    hidden_act = HIDDEN_ACT[config.gelu]
    if config.swiglu:
        hidden_act = "silu"
    return {
        "hidden_act": hidden_act,
        "query_bias": config.qkv_bias,
        "key_bias": config.qkv_bias,
        "value_bias": config.qkv_bias,
        "proj_bias": True,
        "mlp_bias": True,
        "use_gated_mlp": config.swiglu,
        "num_register_tokens": config.registers,
        "rope_theta": 100.0,
    }


DINOV3_BLOCK = BlockNames(
    prefix="layer.{i}.",
    first_norm="norm1",
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    out="attention.o_proj",
    norm="norm2",
    expand="mlp.up_proj",
    contract="mlp.down_proj",
    gated=(("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj"),
    scales=SCALES,
)
DINOV3_NAMES = PartNames(
    patches="embeddings.patch_embeddings",
    cls="embeddings.cls_token",
    registers="embeddings.register_tokens",
    positions="",
    block=DINOV3_BLOCK,
    norm="norm",
)
DINOV3_FIELDS = {
    **{setting: field for setting, field in SIZES.items() if setting != "gelu"},
    "width": ("hidden_size", 384),
    "heads": ("num_attention_heads", 6),
    "mlp": ("intermediate_size", 1536),
    "attention_dropout": ("attention_dropout", 0.0),
    "stochastic_depth": ("drop_path_rate", 0.0),
    "eps": ("layer_norm_eps", 1e-5),
    "layer_scale": ("layerscale_value", 1.0),
}
DINOV3 = Family(
    title="DINOv3",
    types=("dinov3_vit",),
    class_of=lambda config: ("dinov3_vit", "DINOv3ViT"),
    recognises=lambda tensors: has_end(tensors, "embeddings.patch_embeddings.weight"),
    names=DINOV3_NAMES,
    renamed={r"^model\.layer\.": "layer."},
    fields=DINOV3_FIELDS,
    pools=lambda config: ("token",),
    settings=_dinov3_settings,
    more_fields=_dinov3_fields,
    has=("layer_scale", "swiglu", "qkv_bias", "rectangles"),
    cannot=lambda config: {"a head": config.classes},
    always_registers=True,
    tidy=_with_all_biases,
    positions="rotary-dinov3",
    mask_axes=3,
)
