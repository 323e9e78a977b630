"""timm's names for Vision Transformers and hybrids, which DeiT, MAE, DINO and DINOv2 share.

Files of DeiT, MAE, DINO and DINOv2 are often training checkpoints, with prefixes in the names and with
further tensors.
"""

import re

from torch import Tensor

from vitkit.models import ViTConfig
from vitkit.system.errors import BadWeights
from vitkit.weights.files.content import Tensors, joined, lazy_zeros
from vitkit.weights.formats.encoders import BlockNames, PartNames
from vitkit.weights.formats.format import Tidied, has_end, without_prefix
from vitkit.weights.formats.resnets import ResNetNames
from vitkit.weights.pretraining import decoder_of, mask_of
from vitkit.weights.rules import SAME, gist

PATCHES = "patch_embed.proj.weight"
BLOCK = BlockNames(
    prefix="blocks.{i}.",
    first_norm="norm1",
    qkv=("attn.qkv",),
    out="attn.proj",
    norm="norm2",
    expand="mlp.fc1",
    contract="mlp.fc2",
    qk_norms=("attn.q_norm", "attn.k_norm"),
    scales=("ls1.gamma", "ls2.gamma"),
)
# AttentionPoolLatent has a layer for q, and one for k and v
POOL = BlockNames(
    prefix="attn_pool.",
    qkv=("q", "kv"),
    out="proj",
    norm="norm",
    expand="mlp.fc1",
    contract="mlp.fc2",
)
NAMES = PartNames(
    patches="patch_embed.proj",
    cls="cls_token",
    registers="registers",
    positions="pos_embed",
    embedding_norm="norm_pre",
    block=BLOCK,
    norm="norm",
    probe="attn_pool.latent",
    pool=POOL,
    representation="pre_logits.fc",
    head="head",
    distilled=("head", "head_dist"),  # VisionTransformerDistilled (timm/models/deit.py)
)
# Tensors that only training needs: MAE's decoder, and DINO's projection in place of a head.
# weights/beside.py decides about projections beside a head
NOT_READ = re.compile(r"(.*\.)?(decoder_.*|mask_token|head\.(mlp|last_layer)\..*)")
# Names of other models, most of whose names are the same: pattern -> description
OTHER_MODELS = {
    r"blocks\.\d+\.mlp\.norm\.": "a norm within the MLP (EVA-02)",
    r"blocks\.\d+\.attn\.norm\.": "a norm within attention",
    r".*relative_position_bias_table": "a table of biases for offsets (BEiT)",
    r"(.*\.)?embeds\.proj\.weight": (
        "a list of patches as its input (NaFlexVit; for SigLIP 2's NaFlex, use Hugging Face's files)"
    ),
    r"patch_embed\.norm\.": "a norm of patches",
    r"patch_embed\.backbone\.(?!(stem\.)?(conv|norm)\.|stages\.)": "a stem that is not a BiT ResNet",
}
# Names of DINOv2's SwiGLU, and of DeiT III's and DINOv3's LayerScale -> timm's names
RENAMED = {
    r"(blocks\.\d+\.mlp\.)w12\.": r"\1fc1.",
    r"(blocks\.\d+\.mlp\.)w3\.": r"\1fc2.",
    r"(blocks\.\d+\.)gamma_([12])$": r"\1ls\2.gamma",
}
MAE = r"decoder_|mask_token$"
REGISTERS = ("dist_token", "reg_token", "register_tokens")  # of DeiT, timm and DINOv2
RESNET = ResNetNames(
    prefix="patch_embed.backbone.",
    root="stem.conv.weight",
    root_norm="stem.norm",
    unit="stages.{stage}.blocks.{unit}.",
    conv="conv{n}.weight",
    norm="norm{n}",
    shortcut="downsample.conv.weight",
    shortcut_norm="downsample.norm",
    norm_ends=(".weight", ".bias"),
    last_norm="norm",
    first_number=0,
    kernel_transform=SAME,
)
# timm's R + ViT (vit_tiny_r_s16_p8_224) has a root without stages, and no "stem" in its names
ROOT_ALONE = RESNET._replace(root="conv.weight", root_norm="norm")


def recognises(tensors: Tensors) -> bool:
    """Whether tensors have the names of a Vision Transformer in this format."""
    ends = (PATCHES, ".conv.weight")
    of_images = any(name.endswith(ends) and "patch_embed." in name for name in tensors)
    return of_images or has_end(tensors, "embeds.proj.weight")  # NaFlexVit, which `tidy` refuses


def tidy(tensors: Tensors) -> Tidied:
    """Convert names to timm's: without a prefix, with one name for registers, and without tensors that no
    classifier reads. Raises VitkitError for models of another architecture."""
    tensors = without_prefix(tensors, PATCHES, RENAMED)

    # Other architectures
    for pattern, architecture in OTHER_MODELS.items():
        for name in tensors:
            if re.match(pattern, name):
                raise BadWeights(f"it has {architecture}: {name}; vitkit cannot read that")

    # Tensors that no classifier reads
    not_read = [name for name in tensors if NOT_READ.fullmatch(name)]
    if not_read and "head.mlp.0.weight" in tensors:  # all of DINO's projection head
        not_read = [name for name in tensors if name in not_read or name.startswith("head.")]
    pretraining, notes = mask_of(tensors.get("mask_token"))
    if any(name.startswith("decoder_") for name in not_read):
        mae = {name: tensors[name] for name in not_read if re.match(MAE, name)}
        pretraining, notes = decoder_of(mae)
    left_out = not_read
    if pretraining:
        left_out = [name for name in not_read if not name.startswith(("decoder_", "mask_token"))]
    if left_out:
        notes.append(f"left out: {gist(left_out)}, which no classifier reads")
    tidied = {name: lazy for name, lazy in tensors.items() if name not in not_read}

    # Join layers that timm splits, and add biases that it omits
    tidied = _whole_layers(tidied)

    # One name for registers. If a model has two kinds, no rule reads the second
    registers = next((name for name in REGISTERS if name in tidied), None)
    if registers:
        tidied["registers"] = tidied.pop(registers)
    return Tidied(tidied, tuple(notes), pretraining=pretraining)


def _whole_layers(tensors: Tensors) -> Tensors:
    """Join the gate of a SwiGLU and the layer that it multiplies, and the biases of q and v with zeros for
    those of k (DINOv3, EVA)."""
    whole = dict(tensors)
    for name in tensors:
        if name.endswith((".mlp.fc1_g.weight", ".mlp.fc1_g.bias")):
            gated = name.replace("fc1_g", "fc1_x")
            if gated in tensors:
                whole[name.replace("fc1_g", "fc1")] = joined(whole.pop(name), whole.pop(gated))
        elif name.endswith(".attn.q_bias") and name.replace("q_bias", "v_bias") in tensors:
            q = whole.pop(name)
            v = whole.pop(name.replace("q_bias", "v_bias"))
            whole[name.replace("q_bias", "qkv.bias")] = joined(q, lazy_zeros(*q.shape), v)
    return whole


def spell(tensors: dict[str, Tensor], config: ViTConfig, layout: str) -> dict[str, Tensor]:
    """Rename the rules' "registers" to DeiT's distillation token or timm's registers."""
    if "registers" not in tensors:
        return tensors
    name = "reg_token"
    if config.pool == "distilled":
        name = "dist_token"
    spelled = dict(tensors)
    spelled[name] = spelled.pop("registers")
    return spelled
