"""Modules that pre-training added to a model and that no classifier reads: a mask embedding, a decoder, the
layer that predicts. They are saved with the model, so that pre-training can be continued.

A model directory has a file of its own for them, which other libraries ignore. The names are those of the
objective's learner.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from vitkit.models import sincos
from vitkit.system.errors import BadWeights
from vitkit.weights.classifier import check_finite
from vitkit.weights.files.content import FLOATS, Lazy, Tensors, joined

# Names of MAE's decoder in Hugging Face's ViT-MAE and in MAE's own code: pattern -> the learner's name
# (objectives/autoencoder.py)
LAYER = r"(?:decoder_layers|decoder_encoder\.layer|decoder_blocks)\.(\d+)\."
DECODER = {
    r"decoder_embed\.": "enter.",
    r"decoder_pred\.": "predict.",
    r"decoder_norm\.": "decoder.norm.",
    r"mask_token$": "mask",
    LAYER + r"(?:layernorm_before|norm1)\.": r"decoder.blocks.\1.norm1.",
    LAYER + r"(?:layernorm_after|norm2)\.": r"decoder.blocks.\1.norm2.",
    LAYER + r"(?:attention\.attention\.query|attention\.q_proj)\.": r"decoder.blocks.\1.q.",
    LAYER + r"(?:attention\.attention\.key|attention\.k_proj)\.": r"decoder.blocks.\1.k.",
    LAYER + r"(?:attention\.attention\.value|attention\.v_proj)\.": r"decoder.blocks.\1.v.",
    LAYER + r"attn\.qkv\.": r"decoder.blocks.\1.attention.qkv.",
    LAYER + r"(?:attention\.output\.dense|attention\.o_proj|attn\.proj)\.": (
        r"decoder.blocks.\1.attention.out."
    ),
    LAYER + r"(?:intermediate\.dense|mlp\.fc1)\.": r"decoder.blocks.\1.mlp.expand.",
    LAYER + r"(?:output\.dense|mlp\.fc2)\.": r"decoder.blocks.\1.mlp.contract.",
}
POSITIONS = "decoder_pos_embed"
PREDICTION = "decoder_pred.weight"


def decoder_of(tensors: Tensors) -> tuple[Tensors, list[str]]:
    """MAE's decoder with the learner's names, and notes; {} if the learner has no place for a part of it."""
    if PREDICTION not in tensors:
        return {}, []
    decoder = {}
    unknown = []
    for name, lazy in tensors.items():
        pattern = next((pattern for pattern in DECODER if re.match(pattern, name)), None)
        if pattern:
            decoder[re.sub(pattern, DECODER[pattern], name)] = lazy
        elif name != POSITIONS:
            unknown.append(name)

    # Join q, k and v to one layer
    for name in [name for name in decoder if re.search(r"\.q\.(weight|bias)$", name)]:
        parts = [name.replace(".q.", f".{part}.") for part in "qkv"]
        if all(part in decoder for part in parts):
            qkv = joined(*(decoder.pop(part) for part in parts))
            decoder[name.replace(".q.", ".attention.qkv.")] = qkv
    if unknown:
        return {}, [f"left out: a decoder with {unknown[0]}, which vitkit's decoder lacks"]
    if POSITIONS in tensors and not _has_maes_positions(tensors[POSITIONS]):
        return {}, ["left out: a decoder with other positions than MAE's fixed sines and cosines"]
    return decoder, [f"kept for further pre-training: its decoder, {len(decoder)} tensors"]


def _has_maes_positions(table: Lazy) -> bool:
    """Whether a table (1, 1 + N, W) is MAE's: zeros for the class token, sines and cosines for patches."""
    if len(table.shape) != 3 or table.shape[2] % 4:
        return False
    side = round((table.shape[1] - 1) ** 0.5)
    if side * side != table.shape[1] - 1:
        return False
    values = table.read().float()
    patches = sincos((side, side), table.shape[2], "sincos-mae")
    return not values[:, :1].any() and torch.allclose(values[:, 1:], patches, atol=1e-5)


def mask_of(lazy: Lazy | None) -> tuple[Tensors, list[str]]:
    """A mask embedding of patches, (1, D) or (1, 1, D), with the learner's name and shape (D,), and a note.
    {} if there is none, or if it is untrained: all zeros."""
    if lazy is None or lazy.dtype not in FLOATS or not lazy.read().any():
        return {}, []
    mask = Lazy(lazy.shape[-1:], lazy.dtype, lambda: lazy.read().flatten())
    return {"mask": mask}, ["kept for further pre-training: its mask embedding"]


def read_pretraining(tensors: Mapping[str, Lazy]) -> dict[str, Tensor]:
    """Read the tensors as float32. Raises VitkitError for values that are not finite numbers."""
    others = [name for name, lazy in tensors.items() if lazy.dtype not in FLOATS]
    if others:
        raise BadWeights(
            f"{others[0]} holds {tensors[others[0]].dtype}, not floating-point numbers"
        )
    state = {name: lazy.read().float() for name, lazy in tensors.items()}
    check_finite(state)
    return state
