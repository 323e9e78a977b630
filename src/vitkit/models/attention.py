"""Multi-head self-attention (Appendix A, Equations 5 to 8).

`Attention` has the dense layers, Eq. 5 and 8. `ScaledDotProduct`, between them, is Eq. 6 and 7, in which
tokens exchange information. It calls one of two functions for the same formula, `fused` and `unfused`.

Legend: B batch, T tokens, Q number of queries, which are the first tokens (all, unless `queries` limits
them), D width, H heads (k in the paper), D_h = D / H width of a head.
As in the paper, z are the states of the tokens, here after a LayerNorm.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.layers import Dense
from vitkit.system.errors import BadSettings

AttentionPositions = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor | None]]
"""Positions that act within attention: q and k, (B, H, T, D_h) each -> q and k that include positions,
and a bias to add to their logits, (B, H, T, T), or None."""


class Attention(nn.Module):
    """Multi-head self-attention, MSA of Eq. 8.

    Its dense layers have biases, as in the official code, although the equations have none; `qkv_bias=False`
    omits those of Eq. 5. `head_norm` makes a norm of a given width, for the queries and for the keys of a
    head (ViTConfig.qk_norm).
    """

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float = 0.0,
        qkv_bias: bool = True,
        head_norm: Callable[[int], nn.Module] | None = None,
    ):
        super().__init__()
        self.heads = heads
        # U_qkv of all heads in one layer; its rows produce queries, then keys, then values
        self.qkv = Dense(width, 3 * width, qkv_bias)
        self.q_norm: nn.Module | None = None
        self.k_norm: nn.Module | None = None
        if head_norm is not None:
            self.q_norm = head_norm(width // heads)
            self.k_norm = head_norm(width // heads)
        self.attend = ScaledDotProduct(dropout)
        self.out = Dense(width, width)  # U_msa

    def forward(
        self,
        z: Tensor,
        positions: AttentionPositions | None = None,
        mask: Tensor | None = None,
        queries: int | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, Q, D): each of the first `queries` tokens attends to all tokens.

        `queries` is None for all tokens. More axes before the tokens of z are part of the batch: in a grid,
        (B, h, w, D), each row is a sequence of its own.

        mask: bool, (T, T) or a shape that broadcasts to (B, H, T, T), True where a query (row) may attend to a
            key (column). A query that may attend to no key gets zeros. Raises VitkitError for another mask.
        """
        check_mask(mask)
        if z.ndim > 3:
            # All sequences in one batch: (B, h, w, D) -> (B·h, w, D), and back.
            attended = self(z.flatten(0, -3), positions, mask, queries)
            return attended.unflatten(0, z.shape[:-2])
        q, k, v = self.project(z)  # (B, H, T, D_h) each  Eq. 5
        bias = None
        if positions is not None:
            q, k, bias = positions(q, k)
        if mask is not None:
            bias = masked(bias, mask, q.dtype)
        if queries is not None:
            # The other tokens are keys and values only. The projections are sliced, not the weights:
            # adapters, quantisers and tensor parallelism need calls of whole dense layers.
            q = q[:, :, :queries]
            # A single row of a mask applies to every query
            if bias is not None and bias.shape[-2] > 1:
                bias = bias[..., :queries, :]
        attended = self.attend(q, k, v, bias)  # (B, H, Q, D_h)  Eq. 6 and 7
        return self.join(attended)  # (B, Q, D)  Eq. 8

    def project(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Eq. 5, [q, k, v] = z U_qkv: (B, T, D) -> three times (B, H, T, D_h)."""
        head_width = self.qkv.in_features // self.heads  # D_h
        qkv = self.qkv(z).unflatten(-1, (3, self.heads, head_width))  # (B, T, 3, H, D_h)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()  # from (3, B, H, T, D_h)
        return *self.normed(q, k), v

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the norms of each head, if there are any, to queries and keys: (B, H, T, D_h) each."""
        if self.q_norm is not None and self.k_norm is not None:
            # Norms may return float32 where autocast computes the rest in bfloat16
            q = self.q_norm(q).to(q.dtype)
            k = self.k_norm(k).to(k.dtype)
        return q, k

    def join(self, attended: Tensor) -> Tensor:
        """Eq. 8: concatenate the heads and apply U_msa: (B, H, Q, D_h) -> (B, Q, D)."""
        side_by_side = attended.transpose(1, 2).flatten(2)  # (B, Q, H·D_h)
        return self.out(side_by_side)

    def init_weights(self) -> None:
        """Initialise q, k, v and out Glorot-uniformly, each as its own D x D matrix, and biases with zeros."""
        limit = (3 / self.qkv.in_features) ** 0.5
        for layer in (self.qkv, self.out):
            nn.init.uniform_(layer.weight, -limit, limit)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class ScaledDotProduct(nn.Module):
    """softmax(q kᵀ / √D_h) v (Eq. 6 and 7), by the faster of two functions.

    A module without parameters, so that `recording` can hook its inputs and outputs.
    """

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        """q (B, H, Q, D_h), k and v (B, H, T, D_h) each -> (B, H, Q, D_h).

        The bias, which broadcasts to (B, H, Q, T), is added to the logits.
        """
        dropout = 0.0
        if self.training:
            dropout = self.dropout
        if unfused_is_faster(q, k, bias):
            return unfused(q, k, v, bias, dropout)
        return fused(q, k, v, bias, dropout)


def check_mask(mask: Tensor | None) -> None:
    """Raise VitkitError for a mask that is not boolean, or that has a single row."""
    if mask is not None and (mask.dtype != torch.bool or mask.ndim < 2):
        raise BadSettings(
            f"the mask is {mask.dtype} of shape {tuple(mask.shape)}; it must be bool, (T, T) or a shape "
            "that broadcasts to (B, H, T, T), True where a query may attend to a key"
        )


def masked(bias: Tensor | None, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The bias of the logits with -inf where a query may not attend; the bias before, (B, H, T, T), may be
    None."""
    if bias is None:
        bias = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, bias, -torch.inf)


def fused(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """Eq. 6 and 7 in one kernel: q (B, H, Q, D_h), k and v (B, H, T, D_h) each -> (B, H, Q, D_h).

    The bias, which broadcasts to (B, H, Q, T), is added before the softmax.
    """
    return F.scaled_dot_product_attention(q, k, v, bias, dropout)


def unfused(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """Eq. 6 and 7 as they are written, from two matrix products. Equals `fused` up to rounding, and drops
    other weights if there is dropout."""
    weights = attention_weights(q, k, bias)  # (B, H, Q, T)  Eq. 6
    return F.dropout(weights, dropout) @ v  # (B, H, Q, D_h)  Eq. 7


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """Eq. 6, A = softmax(q kᵀ / √D_h): q (B, H, Q, D_h), k (B, H, T, D_h) -> (B, H, Q, T).

    The bias, which broadcasts to (B, H, Q, T), is added inside the softmax.
    """
    q = q * q.shape[-1] ** -0.5  # scale the query, not the product, as in Google's code
    logits = q @ k.mT  # (B, H, Q, T)
    if bias is None:
        return logits.softmax(-1)
    logits = logits + bias
    # The softmax of a query that may attend to no key would be NaN; its weights are set to zero.
    sees_nothing = (logits == -torch.inf).all(-1, keepdim=True)  # (B, H, Q, 1)
    weights = logits.masked_fill(sees_nothing, 0).softmax(-1)
    return weights.masked_fill(sees_nothing, 0)


def unfused_is_faster(q: Tensor, k: Tensor, bias: Tensor | None) -> bool:
    """Whether `unfused` is faster than `fused` here; measured by benchmarks/attention.py and axial.py."""
    tokens = k.shape[-2]
    if q.device.type != "cpu":
        return False
    if q.dtype == torch.bfloat16:
        # Up to 2.5 times as fast in training, until its T x T weights exceed the cache.
        return tokens <= 600
    # In float32 only for the short rows, with a bias, in a ResNet's late stages.
    return bias is not None and tokens <= 16
