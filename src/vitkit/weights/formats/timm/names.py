"""timm's names for Vision Transformers and hybrids, which DeiT, MAE, DINO and DINOv2 share, as training leaves them."""

import re

from torch import Tensor

from vitkit.models import ViTConfig
from vitkit.weights.files import Tensors
from vitkit.weights.formats.format import Tidied
from vitkit.weights.formats.resnets import Names
from vitkit.weights.rules import SAME, gist

PATCHES = "patch_embed.proj.weight"
ASIDE = re.compile(
    r"(.*\.)?(decoder_.*|mask_token|head\.(mlp|last_layer)\..*|dino_head\..*|ibot_head\..*|projector\..*|predictor\..*)"
)
OTHERS = {  # parts of other models under the same names, and what to call them
    r"blocks\.\d+\.mlp\.(w12|w3)\.": "a SwiGLU MLP (DINOv2's giant)",
    r"blocks\.\d+\.attn\.(q_norm|k_norm)\.": "normalised queries and keys",
    r"norm_pre\.": "a norm before the blocks (CLIP)",
    r"patch_embed\.backbone\.(?!(stem\.)?(conv|norm)\.|stages\.)": "a stem that is no BiT ResNet",
}
REGISTERS = ("dist_token", "reg_token", "register_tokens")  # DeiT's, timm's, DINOv2's
RESNET = Names(
    under="patch_embed.backbone.",
    root="stem.conv.weight",
    root_norm="stem.norm",
    unit="stages.{b}.blocks.{u}.",
    conv="conv{n}.weight",
    norm="norm{n}",
    shortcut="downsample.conv.weight",
    shortcut_norm="downsample.norm",
    ends=(".weight", ".bias"),
    last="norm",
    first=0,
    way=SAME,
)
BARE = RESNET._replace(root="conv.weight", root_norm="norm")  # of a root without stages


def recognises(tensors: Tensors) -> bool:
    """Whether these are a Vision Transformer's names in this format."""
    ends = (PATCHES, ".conv.weight")
    return any(name.endswith(ends) and "patch_embed." in name for name in tensors)


def tidy(tensors: Tensors) -> Tidied:
    """timm's names, whatever trained the model: no prefix, one name for registers, and nothing that no classifier reads."""
    patches = next((name for name in tensors if name.endswith(PATCHES)), PATCHES)
    prefix = patches.removesuffix(PATCHES)
    tensors = {name.removeprefix(prefix): lazy for name, lazy in tensors.items()}
    for part, what in OTHERS.items():
        if other := next((name for name in tensors if re.match(part, name)), None):
            raise ValueError(f"it has {what}: {other}; vitkit does not read that")
    aside = [name for name in tensors if ASIDE.fullmatch(name)]
    if aside and "head.mlp.0.weight" in tensors:  # DINO's whole projection head
        aside = [name for name in tensors if name in aside or name.startswith("head.")]
    notes = []
    if aside:
        notes.append(f"left out: {gist(aside)}, which no classifier reads")
    tidied = {name: lazy for name, lazy in tensors.items() if name not in aside}
    if registers := next((name for name in REGISTERS if name in tidied), None):
        tidied["registers"] = tidied.pop(registers)
    return Tidied(tidied, tuple(notes))


def spell(tensors: dict[str, Tensor], config: ViTConfig, layout: str) -> dict[str, Tensor]:
    """Tensors under timm's names: what the rules call registers is a distillation token or register tokens."""
    if "registers" not in tensors:
        return tensors
    spelled = dict(tensors)
    name = "dist_token" if config.pool == "distilled" else "reg_token"
    spelled[name] = spelled.pop("registers")
    return spelled
