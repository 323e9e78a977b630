"""Multi-head self-attention (Appendix A, Eq. 5-8) and a way to see its weights.

Legend: B batch, T tokens, Q tokens that ask, D width, H heads, E = D / H width of a head.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Within = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor | None]]
"""Positions that act within attention: queries and keys -> the same with positions in them, and a bias of the logits."""


def fused(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, bias: Tensor | None = None
) -> Tensor:
    """softmax(q kᵀ / √E) v in one kernel: (B, H, Q, E), (B, H, T, E), (B, H, T, E) -> (B, H, Q, E).

    A bias (B, H, Q, T), such as relative positions make, is added before the softmax.
    """
    return F.scaled_dot_product_attention(q, k, v, bias, dropout)


def plain(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, bias: Tensor | None = None
) -> Tensor:
    """The same numbers from two matrix products, as Eq. 6 and 7 are written."""
    return F.dropout(weights(q, k, bias), dropout) @ v


def fastest(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, bias: Tensor | None = None
) -> Tensor:
    """The faster of the two. In bfloat16 on a CPU that is the plain one, by up to 2.5 times in training, until its T x T
    weights outgrow the cache; in float32, and on a GPU, the fused one (benchmarks/attention.py), but for the short rows
    with a bias of late ResNet stages (benchmarks/axial.py)."""
    most = 600 if q.dtype == torch.bfloat16 else 0 if bias is None else 16
    few = q.device.type == "cpu" and most > 0 and k.shape[-2] <= most
    return plain(q, k, v, dropout, bias) if few else fused(q, k, v, dropout, bias)


def weights(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """Eq. 6: A = softmax(q kᵀ / √E), shape (B, H, Q, T). The query is scaled first, as in the official code."""
    logits = q * q.shape[-1] ** -0.5 @ k.mT
    return (logits if bias is None else logits + bias).softmax(-1)


class Attention(nn.Module):
    """MSA of Eq. 8: q, k and v for all heads from one product, then the output projection U_msa.

    The rows of `qkv` are the queries' weights, then the keys', then the values'.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mix = fastest  # attention_maps() puts a visible one here

    def forward(
        self, x: Tensor, asking: Tensor | None = None, within: Within | None = None
    ) -> Tensor:
        """(B, T, D) -> (B, Q, D): every token asks every token, or only those `asking` (B, Q, D) do.

        Asking less is how the last block serves the class token alone, and how a learned probe pools (MAP). With more axes
        before the tokens, as (B, h, w, D) for rows, each of them is a sequence of its own.
        """
        if x.ndim > 3:
            return self(x.flatten(0, -3), within=within).unflatten(0, x.shape[:-2])
        if asking is None:
            q, k, v = self.split(self.qkv(x)).unbind(2)
        else:  # the keys and values are the same numbers; only the queries that nobody reads are left out
            rows = x.shape[-1]
            q = self.split(F.linear(asking, self.qkv.weight[:rows], self.qkv.bias[:rows])).squeeze(
                2
            )
            k, v = self.split(F.linear(x, self.qkv.weight[rows:], self.qkv.bias[rows:])).unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # (B, H, T, E)
        q, k, bias = (q, k, None) if within is None else within(q, k)
        mixed = self.mix(q, k, v, self.dropout if self.training else 0.0, bias)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> Tensor:
        """(B, T, n·D) -> (B, T, n, H, E)."""
        return x.unflatten(-1, (-1, self.heads, self.qkv.in_features // self.heads))

    def init_weights(self) -> None:
        """q, k, v and out are Glorot-uniform, each as its own D x D matrix (limit √(3/D)); biases zero."""
        limit = (3 / self.qkv.in_features) ** 0.5
        for layer in (self.qkv, self.out):
            nn.init.uniform_(layer.weight, -limit, limit)
            nn.init.zeros_(layer.bias)


@contextmanager
def attention_maps(model: nn.Module) -> Iterator[list[Tensor]]:
    """Make the attention weights of every block visible, without changing what the model computes.

        with attention_maps(model) as maps:
            model(images)
        maps[3]                        # fourth block: (B, H, T, T), rows sum to one; token 0 is the class token

    The list holds the last forward pass, one map a block, in order; a MAP head's (B, H, 1, T) comes last. While it is
    open the last block computes every token's row, and compiled models run eagerly. Weights are before dropout. Axial
    attention has two maps a layer, (B·h, H, w, w) for the rows, then (B·w, H, h, h) for the columns.

    Raises ValueError for a model without vitkit attention, RuntimeError when no forward pass ran inside.
    """
    layers = [m for m in model.modules() if isinstance(m, Attention)]
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no vitkit attention layer, so there are no weights to show"
        )
    trimmed = [m for m in model.modules() if getattr(m, "tokens_read", None) is not None]
    kept, maps, seen = [m.tokens_read for m in trimmed], [], {}

    def visible(layer: Attention):
        def mix(
            q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, bias: Tensor | None = None
        ) -> Tensor:
            seen[layer] = weights(q, k, bias)
            maps[:] = [seen[one] for one in layers if one in seen]
            return F.dropout(seen[layer], dropout) @ v

        return mix

    before = [layer.mix for layer in layers]
    for layer in layers:
        layer.mix = visible(layer)
    for one in trimmed:
        one.tokens_read = None
    try:
        with torch.compiler.set_stance("force_eager"):
            yield maps
        if not maps:
            raise RuntimeError(
                "no forward pass ran inside attention_maps(model), so there are no weights to show"
            )
    finally:
        for layer, mix in zip(layers, before, strict=True):
            layer.mix = mix
        for one, tokens in zip(trimmed, kept, strict=True):
            one.tokens_read = tokens
