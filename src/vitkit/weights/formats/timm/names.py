"""timm's names for Vision Transformers and hybrids, which DeiT, MAE, DINO and DINOv2 share.

Files of the latter are often training checkpoints: their names have prefixes, and they hold more
than the encoder.
"""

import re

from torch import Tensor

from vitkit.models import ViTConfig
from vitkit.weights.files import Tensors
from vitkit.weights.formats.format import Tidied
from vitkit.weights.formats.resnets import Names
from vitkit.weights.rules import gist
from vitkit.weights.transforms import SAME

PATCHES = "patch_embed.proj.weight"
# What training needs and no classifier reads: MAE's decoder, the projection heads of DINO and
# others.
NOT_READ = re.compile(
    r"(.*\.)?(decoder_.*|mask_token|head\.(mlp|last_layer)\..*"
    r"|dino_head\..*|ibot_head\..*|projector\..*|predictor\..*)"
)
# Other models have the same names for most of their tensors. Where they differ -> what they are.
OTHER_MODELS = {
    r"blocks\.\d+\.mlp\.(w12|w3)\.": "a SwiGLU MLP (DINOv2's giant)",
    r"blocks\.\d+\.attn\.(q_norm|k_norm)\.": "normalised queries and keys",
    r"norm_pre\.": "a norm before the blocks (CLIP)",
    r"patch_embed\.backbone\.(?!(stem\.)?(conv|norm)\.|stages\.)": "a stem that is not a BiT ResNet",
}
REGISTERS = ("dist_token", "reg_token", "register_tokens")  # DeiT's, timm's, DINOv2's
RESNET = Names(
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
# The R + ViT of timm (vit_tiny_r_s16_p8_224) has a root without stages, and no "stem" in its names.
ROOT_ALONE = RESNET._replace(root="conv.weight", root_norm="norm")


def recognises(tensors: Tensors) -> bool:
    """Whether these are a Vision Transformer's names in this format."""
    ends = (PATCHES, ".conv.weight")
    return any(name.endswith(ends) and "patch_embed." in name for name in tensors)


def tidy(tensors: Tensors) -> Tidied:
    """timm's names, whatever trained the model: without a prefix, with one name for registers, and
    without what no classifier reads. Raises ValueError for models of another architecture."""
    # The prefix is what comes before the patches' name
    patches = next((name for name in tensors if name.endswith(PATCHES)), PATCHES)
    prefix = patches.removesuffix(PATCHES)
    tensors = {name.removeprefix(prefix): lazy for name, lazy in tensors.items()}

    # Other architectures
    for pattern, architecture in OTHER_MODELS.items():
        for name in tensors:
            if re.match(pattern, name):
                raise ValueError(f"it has {architecture}: {name}; vitkit does not read that")

    # What no classifier reads
    not_read = [name for name in tensors if NOT_READ.fullmatch(name)]
    if not_read and "head.mlp.0.weight" in tensors:  # DINO's projection head, all of it
        not_read = [name for name in tensors if name in not_read or name.startswith("head.")]
    notes = []
    if not_read:
        notes.append(f"left out: {gist(not_read)}, which no classifier reads")
    tidied = {name: lazy for name, lazy in tensors.items() if name not in not_read}

    # One name for registers. Of a model with two kinds, no rule will read the second.
    registers = next((name for name in REGISTERS if name in tidied), None)
    if registers:
        tidied["registers"] = tidied.pop(registers)
    return Tidied(tidied, tuple(notes))


def spell(tensors: dict[str, Tensor], config: ViTConfig, layout: str) -> dict[str, Tensor]:
    """Tensors under timm's names: the rules' "registers" are DeiT's distillation token or timm's
    registers."""
    if "registers" not in tensors:
        return tensors
    name = "reg_token"
    if config.pool == "distilled":
        name = "dist_token"
    spelled = dict(tensors)
    spelled[name] = spelled.pop("registers")
    return spelled
