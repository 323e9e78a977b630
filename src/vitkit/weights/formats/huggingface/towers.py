"""The vision towers of Hugging Face's CLIP, SigLIP and SigLIP 2 (of one fixed size of images).

Transformers' code: modeling_clip.py and modeling_siglip.py, whose encoders are the same. CLIP has a
class token and a norm before the first block, SigLIP a MAP head.
"""

from vitkit.models import ViTConfig, as_side
from vitkit.weights.files import Tensors
from vitkit.weights.formats.encoders import PYTORCH, Block, Names
from vitkit.weights.formats.format import Tidied, has_end
from vitkit.weights.formats.huggingface.family import Family
from vitkit.weights.formats.huggingface.vit import SIZES
from vitkit.weights.rules import TABLE, VECTOR, gist

# What lies beside the vision tower, and what an old file has that is no weight
BESIDE = ("text_model.", "text_projection.", "visual_projection.", "logit_scale", "logit_bias")
INDICES = "embeddings.position_ids"
# What Transformers takes for CLIP where it differs from SigLIP
CLIPS_DEFAULTS = {"patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
CLIPS_CLASS_TOKEN = "embeddings.class_embedding"


def _tower_alone(tensors: Tensors) -> Tidied:
    """Without a text tower, and without a MAP head that the classifier does not read."""
    tidied = {}
    beside = []
    for name, lazy in tensors.items():
        if name.startswith(BESIDE):
            beside.append(name)
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
    has_pool = any(
        name in tidied for name in ("head.probe", "classifier.weight", CLIPS_CLASS_TOKEN)
    )
    if not has_pool:
        notes.append("pooling: there is no MAP head in the file, so the mean of the patches")
    return Tidied(tidied, tuple(notes))


def _vision_json(json: dict) -> dict:
    """The part about the vision tower, with CLIP's defaults if it is one."""
    defaults = {}
    if json["model_type"].startswith("clip"):
        defaults = CLIPS_DEFAULTS
    vision = json.get("vision_config", json)
    return {**defaults, **vision, "model_type": json["model_type"]}


def _settings(json: dict, tensors: Tensors) -> dict:
    """What CLIP and SigLIP differ in, and the image that whole patches cover."""
    is_clip = json["model_type"].startswith("clip")
    if is_clip and "classifier.weight" in tensors:
        raise ValueError(
            "it is a CLIPForImageClassification, whose classifier reads the mean of states that no "
            "norm has seen; vitkit's models have a norm there. Its vision tower alone can be read"
        )
    pool = "gap"
    if is_clip:
        pool = "token"
    elif "head.probe" in tensors:
        pool = "map"
    patch = as_side(json.get("patch_size", 16))
    if isinstance(patch, tuple):
        raise ValueError(
            f"its patch_size is {list(patch)}; Transformers' class of this model takes squares alone"
        )
    side = json.get("image_size", 224)
    return {
        "patch": patch,
        "image": side // patch * patch,
        "pool": pool,
        "embedding_norm": is_clip,
    }


def _class_of(config: ViTConfig) -> tuple[str, str]:
    if config.embedding_norm:
        return "clip_vision_model", "CLIPVision"
    return "siglip_vision_model", "SiglipVision"


def _pools(config: ViTConfig) -> tuple[str, ...]:
    if config.embedding_norm:
        return ("token",)
    return ("map",)


def _lacks(config: ViTConfig) -> dict[str, object]:
    """Neither has a head of classes."""
    height, width = config.image
    return {
        "a head": config.classes,
        "a class token": config.has_class_token and not config.embedding_norm,
        "registers": config.registers,
        "tokens without a position": config.prefix_rows != config.prefix,
        f"images of {height} x {width}, no square": height != width,
    }


BLOCK = Block(
    prefix="encoder.layers.{i}.",
    first_norm="layer_norm1",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    out="self_attn.out_proj",
    norm="layer_norm2",
    expand="mlp.fc1",
    contract="mlp.fc2",
)
# torch.nn.MultiheadAttention has q, k and v in one matrix, as vitkit has, under an odd name
POOL = Block(
    prefix="head.",
    qkv=("attention.in_proj",),
    qkv_ends=("_weight", "_bias"),
    out="attention.out_proj",
    norm="layernorm",
    expand="mlp.fc1",
    contract="mlp.fc2",
)
NAMES = Names(
    patches="embeddings.patch_embedding",
    cls=CLIPS_CLASS_TOKEN,
    positions="embeddings.position_embedding.weight",
    embedding_norm="pre_layrnorm",
    block=BLOCK,
    norm="post_layernorm",
    probe="head.probe",
    pool=POOL,
    head="classifier",
)
TOWERS = Family(
    title="CLIP's vision tower",
    types=("clip", "clip_vision_model", "siglip", "siglip_vision_model"),
    refused={
        "siglip2": (
            "it is a SigLIP 2 for images of any proportions (NaFlex), which come as lists of patches; "
            "vitkit reads SigLIP 2's models of one size, whose config.json says siglip"
        )
    },
    class_of=_class_of,
    recognises=lambda tensors: has_end(tensors, "embeddings.patch_embedding.weight"),
    names=NAMES,
    fields={
        **SIZES,
        "gelu": ("hidden_act", "gelu_pytorch_tanh"),
        "attention_dropout": ("attention_dropout", 0.0),
        "eps": ("layer_norm_eps", 1e-6),
    },
    pools=_pools,
    settings=_settings,
    has=("embedding_norm",),
    cannot=_lacks,
    tidy=_tower_alone,
    vision_json=_vision_json,
    prefix="vision_model.",
    arrays=PYTORCH._replace(cls=VECTOR),
    position_table=lambda config: TABLE,
    cuts_rest=True,
)
