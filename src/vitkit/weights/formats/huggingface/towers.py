"""The vision towers of Hugging Face's CLIP, SigLIP and SigLIP 2: those for one size of images, whose type
is SigLIP, and those for images in their own aspect ratios (NaFlex).

Transformers' code: modeling_clip.py, modeling_siglip.py and modeling_siglip2.py, whose encoders are
equal. CLIP has a class token and a norm before the first block, SigLIP a MAP head. NaFlex takes lists of
patches, which a dense layer projects, and a mask for images with fewer patches than others of their
batch. Here images with equal grids are computed together, so no mask is needed.
"""

from math import isqrt, prod

import torch
from torch import Tensor

from vitkit.models import ViTConfig
from vitkit.models.tiling import as_side
from vitkit.system.errors import BadWeights
from vitkit.weights.files.content import Tensors
from vitkit.weights.formats.encoders import PYTORCH, BlockNames, PartNames
from vitkit.weights.formats.format import Tidied, has_end
from vitkit.weights.formats.huggingface.family import Family
from vitkit.weights.formats.huggingface.vit import SIZES
from vitkit.weights.rules import TABLE, VECTOR, gist, listed_patches

# Names of tensors beside the vision tower, and of one in old files that is not a weight
BESIDE = ("text_model.", "text_projection.", "visual_projection.", "logit_scale", "logit_bias")
INDICES = "embeddings.position_ids"
# Transformers' defaults for CLIP where they differ from SigLIP's
CLIPS_DEFAULTS = {"patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
CLIPS_CLASS_TOKEN = "embeddings.class_embedding"


def _tower_alone(tensors: Tensors) -> Tidied:
    """Remove a text tower, and a MAP head that the classifier does not read."""
    tidied = {}
    beside = []
    for name, lazy in tensors.items():
        if name.startswith(BESIDE):
            beside.append(name)
        elif name != INDICES:
            tidied[name] = lazy
    notes = []
    if beside:
        notes.append(
            f"left out: {len(beside)} tensors beside the vision tower, such as {min(beside)}"
        )

    # SiglipForImageClassification, also of SigLIP 2, reads the mean, but contains an unused MAP head
    unread = [name for name in tidied if name.startswith("head.")]
    passed_by: tuple[str, ...] = ()
    if unread and "classifier.weight" in tidied:
        tidied = {name: lazy for name, lazy in tidied.items() if name not in unread}
        passed_by = tuple(unread)
        notes.append(
            f"left out: {gist(unread[:1])} and the rest of its MAP head: its classifier reads the mean"
        )
    has_pool = any(
        name in tidied for name in ("head.probe", "classifier.weight", CLIPS_CLASS_TOKEN)
    )
    if not has_pool:
        notes.append("pooling: the file has no MAP head, so the mean of the patches is used")
    return Tidied(tidied, tuple(notes), passed_by=passed_by)


def _check_classifier(config: dict, tidied: Tidied) -> None:
    """Raise VitkitError for a classifier and a MAP head, unless config.json names Transformers' own class:
    a user's class may read either output."""
    architectures = config.get("architectures")
    if tidied.passed_by and "ForImageClassification" not in str(architectures):
        raise BadWeights(
            f"it has a classifier and a MAP head, and its class is {str(architectures)[:100]} by config.json, so "
            "it is unknown which output the classifier reads; if it is the mean of the patches, save the "
            "file again without the MAP head. To read the encoder without the classifier: `part='encoder'`"
        )


def _vision_json(json: dict) -> dict:
    """The part of config.json that describes the vision tower."""
    vision = json.get("vision_config") or json
    return {**vision, "model_type": json["model_type"]}


def _settings(json: dict, tensors: Tensors) -> dict:
    """The settings in which CLIP and SigLIP differ, and the image size that whole patches cover."""
    is_clip = json["model_type"].startswith("clip")
    if is_clip and "classifier.weight" in tensors:
        raise BadWeights(
            "it is a CLIPForImageClassification, whose classifier reads the mean of states without a "
            "norm; vitkit's models have a norm there. Only its vision tower can be read"
        )
    pool = "gap"
    if is_clip:
        pool = "token"
    elif "head.probe" in tensors:
        pool = "map"
    patch = _square_patch(json)
    side = json.get("image_size", 224)
    return {
        "patch": patch,
        "image": side // patch * patch,
        "pool": pool,
        "embedding_norm": is_clip,
    }


def _square_patch(json: dict) -> int:
    """The side of the patches. Raises VitkitError if they are not square."""
    patch = as_side(json.get("patch_size", 16))
    if not isinstance(patch, int):
        raise BadWeights(
            f"its patch_size is {json['patch_size']!r}; Transformers' class of this model supports only squares"
        )
    return patch


def _class_of(config: ViTConfig) -> tuple[str, str]:
    """See `Family.class_of`."""
    if config.embedding_norm:
        return "clip_vision_model", "CLIPVision"
    return "siglip_vision_model", "SiglipVision"


def _pools(config: ViTConfig) -> tuple[str, ...]:
    """See `Family.pools`."""
    if config.embedding_norm:
        return ("token",)
    return ("map",)


def _lacks(config: ViTConfig) -> dict[str, object]:
    """See `Family.cannot`. Neither CLIP nor SigLIP has a head of classes."""
    height, width = config.image
    return {
        "a head": config.classes,
        "a class token": config.has_class_token and not config.embedding_norm,
        "registers": config.registers,
        "tokens without a position": config.prefix_rows != config.prefix,
        f"images of {height} x {width}, not square": height != width,
    }


BLOCK = BlockNames(
    prefix="encoder.layers.{i}.",
    first_norm="layer_norm1",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    out="self_attn.out_proj",
    norm="layer_norm2",
    expand="mlp.fc1",
    contract="mlp.fc2",
)
# torch.nn.MultiheadAttention stores q, k and v in one matrix, as vitkit does, under an unusual name
POOL = BlockNames(
    prefix="head.",
    qkv=("attention.in_proj",),
    qkv_ends=("_weight", "_bias"),
    out="attention.out_proj",
    norm="layernorm",
    expand="mlp.fc1",
    contract="mlp.fc2",
)
NAMES = PartNames(
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
FIELDS = {
    **SIZES,
    "gelu": ("hidden_act", "gelu_pytorch_tanh"),
    "attention_dropout": ("attention_dropout", 0.0),
    "eps": ("layer_norm_eps", 1e-6),
}
TOWERS = Family(
    title="the vision tower of CLIP and SigLIP",
    types=("clip", "clip_vision_model", "siglip", "siglip_vision_model"),
    class_of=_class_of,
    recognises=lambda tensors: has_end(tensors, "embeddings.patch_embedding.weight"),
    names=NAMES,
    fields=FIELDS,
    pools=_pools,
    settings=_settings,
    has=("embedding_norm",),
    cannot=_lacks,
    tidy=_tower_alone,
    check=_check_classifier,
    vision_json=_vision_json,
    of_types={"clip": CLIPS_DEFAULTS, "clip_vision_model": CLIPS_DEFAULTS},
    prefix="vision_model.",
    arrays=lambda config: PYTORCH._replace(cls=VECTOR),
    position_table=lambda config: TABLE,
    cuts_rest=True,
)


# SigLIP 2's NaFlex


PATCHES = f"{NAMES.patches}.weight"


def _naflex_settings(json: dict, tensors: Tensors) -> dict:
    """The settings that follow from the square table of positions. Raises VitkitError if it is not square."""
    patch = _square_patch(json)
    patches = json.get("num_patches", 256)
    side = isqrt(max(patches, 0))
    if side < 1 or side**2 != patches:
        raise BadWeights(
            f"its num_patches is {patches}; Transformers' class of this model has positions of a square"
        )
    pool = "gap"
    if "head.probe" in tensors:
        pool = "map"
    return {"patch": patch, "image": side * patch, "pool": pool, "resample": "siglip2"}


def _naflex_fields(config: ViTConfig) -> dict:
    """Fields of config.json beyond FIELDS. Its classifier reads the mean, and needs no MAP head."""
    return {"num_patches": prod(config.grid), "vision_use_head": config.pool == "map"}


def _naflex_class(config: ViTConfig) -> tuple[str, str]:
    """See `Family.class_of`."""
    if config.classes:
        return "siglip2", "Siglip2"
    return "siglip2_vision_model", "Siglip2Vision"


def _naflex_pools(config: ViTConfig) -> tuple[str, ...]:
    """See `Family.pools`."""
    if config.classes:
        return ("gap",)
    return ("map", "gap")


def _naflex_lacks(config: ViTConfig) -> dict[str, object]:
    """See `Family.cannot`."""
    rows, columns = config.grid
    return {
        "a class token": config.has_class_token,
        "registers": config.registers,
        f"positions of {rows} x {columns} patches, not square": rows != columns,
        f"positions that are resampled as {config.resample} does": config.resample != "siglip2",
    }


def _as_lists(images: Tensor, config: ViTConfig) -> dict[str, Tensor]:
    """Convert normalised images (B, C, h, w) to the arguments of Transformers' class: lists of patches
    (B, N, P P C) without padding, and the grid of each image."""
    side, _ = config.patches.size
    patches = images.unfold(2, side, side).unfold(3, side, side)  # (B, C, rows, columns, P, P)
    rows, columns = patches.shape[2:4]
    patches = patches.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)  # (B, N, P P C)
    grids = torch.tensor([[rows, columns]] * len(images))
    mask = torch.ones(patches.shape[:2], dtype=torch.int32)
    return {"pixel_values": patches, "pixel_attention_mask": mask, "spatial_shapes": grids}


def _as_image(batch: dict[str, Tensor]) -> Tensor:
    """Convert the list of patches of Transformers' processor back to an image (1, 3, h, w)."""
    rows, columns = batch["spatial_shapes"][0].tolist()
    patches = batch["pixel_values"][:, : rows * columns]  # (1, N, P P 3)
    side = isqrt(patches.shape[2] // 3)
    patches = patches.unflatten(2, (side, side, 3)).unflatten(1, (rows, columns))
    return patches.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)


NAFLEX = Family(
    title="SigLIP 2's vision tower (NaFlex)",
    types=("siglip2", "siglip2_vision_model"),
    images=("naflex",),
    class_of=_naflex_class,
    recognises=lambda tensors: any(
        name.endswith(PATCHES) and len(lazy.shape) == 2 for name, lazy in tensors.items()
    ),
    names=NAMES,
    fields={setting: field for setting, field in FIELDS.items() if setting != "image"},
    pools=_naflex_pools,
    settings=_naflex_settings,
    more_fields=_naflex_fields,
    cannot=_naflex_lacks,
    tidy=_tower_alone,
    check=_check_classifier,
    vision_json=_vision_json,
    classifier_nests="vision_config",
    prefix="vision_model.",
    arrays=lambda config: PYTORCH._replace(
        cls=VECTOR, convolution=listed_patches(config.patches.size)
    ),
    position_table=lambda config: TABLE,
    given=_as_lists,
    image_of=_as_image,
)
