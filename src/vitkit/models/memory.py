"""What a Vision Transformer's forward pass keeps for its backward pass, by formula: no model is built, no pass is run.

Counted is every tensor that PyTorch's autograd holds on to, in bytes, each memory once. In bfloat16 the matrix products keep
bfloat16, the stream of residuals stays float32. Parameters are not counted here.

Legend: T tokens, D width, M hidden width of the MLP, H heads, N patches, K classes.
"""

from dataclasses import replace
from typing import Literal

from vitkit.models.ancestors import LeNetConfig
from vitkit.models.backbone import ResNetConfig
from vitkit.models.config import READS, ViTConfig
from vitkit.models.cost import cost


def activations(
    config: ViTConfig | ResNetConfig | LeNetConfig,
    precision: Literal["float32", "bfloat16"] = "float32",
    recompute: bool = False,
) -> int:
    """Bytes that one image needs until its backward pass, fused attention taken for granted.

    With `recompute` every block keeps its input alone, and the block whose backward pass runs keeps all. Raises
    ValueError for a model that no formula is here for: ResNets, hybrids, axial ones and positions within attention.
    """
    if (
        not isinstance(config, ViTConfig)
        or config.stem
        or config.mixer != "full"
        or config.injected != "stem"
    ):
        raise ValueError(
            "there is a formula for the memory of plain Vision Transformers with positions added once only"
        )
    tokens, low = cost(replace(config, classes=0)).tokens, 2 if precision == "bfloat16" else 4
    asking = READS.get(config.pool) or tokens  # the last block answers for those alone
    whole, last = _block(config, tokens, tokens, low), _block(config, tokens, asking, low)
    if recompute:
        blocks = config.depth * 4 * tokens * config.width + (whole if config.depth > 1 else last)
    else:
        blocks = (config.depth - 1) * whole + last
    return _embedding(config, tokens, low) + blocks + _head(config, tokens, asking, low)


def _block(config: ViTConfig, tokens: int, asking: int, low: int) -> int:
    """Eq. 2 and 3, where `asking` tokens get an answer; `low` bytes for what a matrix product reads."""
    width, mlp, heads = config.width, config.mlp, config.heads
    # both LayerNorms keep their input, and a mean and a deviation a token
    norms = (tokens + asking) * (4 * width + 2 * 4)
    queries = 3 * tokens * low * width  # q, k, v, from which attention is computed again
    inputs = tokens * low * width  # of the products that make them
    attention = asking * (
        low * width + 4 * heads
    )  # its output, which the next product reads, and the softmax's sums
    dense = asking * low * (width + 2 * mlp)  # input of the MLP, before and after the GELU
    masks = asking * (2 * width + mlp) if config.dropout else 0  # one byte each
    scales = 0 if config.layer_scale is None else 2 * asking * low * width
    return norms + inputs + queries + attention + dense + masks + scales


def _embedding(config: ViTConfig, tokens: int, low: int) -> int:
    """Eq. 1: the image, and with dropout a mask."""
    height, width = config.image
    return low * config.channels * height * width + (tokens * config.width if config.dropout else 0)


def _head(config: ViTConfig, tokens: int, asking: int, low: int) -> int:
    """Eq. 4 and the loss: the LayerNorm's input, what each dense layer reads, and the logits' softmax."""
    width, hidden, rows = (
        config.width,
        config.representation,
        tokens if config.pool == "none" else 1,
    )
    normed = asking if config.norm == "tokens" else rows
    read = low * width * (2 if config.pool == "distilled" else 1)
    answers = (
        read + low * hidden + 4 * config.classes + 8 if config.classes else 0
    )  # a label is 8 bytes
    pooling = _map(config, tokens, low) if config.pool == "map" else 0
    return normed * (4 * width + 2 * 4) + pooling + rows * answers


def _map(config: ViTConfig, tokens: int, low: int) -> int:
    """Attention pooling: one query asks every token, and goes through an MLP."""
    width, mlp = config.width, config.mlp
    once = 1 if low == 4 else 0  # what a float32 product reads again
    attention = low * width * (4 * tokens + once) + 4 * config.heads
    return attention + 4 * width + 2 * 4 + low * (width + 2 * mlp)
