"""Multi-head self-attention (Appendix A, Equations 5 to 8).

Legend: B batch, T tokens, Q of them that ask (queries), D width, H heads, E = D / H width of a
head.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

AttentionPositions = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor | None]]
"""Positions that act within attention: queries (B, H, T, E) and keys -> both with positions in
them, and a bias of their logits (B, H, T, T) or None."""


class Attention(nn.Module):
    """MSA of Eq. 8: q, k and v of all heads from one product, then the output projection U_msa.

    The rows of `qkv` are the queries' weights, then the keys', then the values'.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.attend = ScaledDotProduct(dropout)
        self.out = nn.Linear(width, width)

    def forward(
        self,
        x: Tensor,
        positions: AttentionPositions | None = None,
        mask: Tensor | None = None,
        queries: int | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, Q, D): every token asks every token, or only the first `queries` ask.

        That is how the last block serves the class token alone. With more axes before the tokens,
        as (B, h, w, D) for rows, each of them is a sequence of its own, and counts as B.

        mask: bool, (T, T) or what broadcasts to (B, H, T, T), True where a query (row) may look at a
        key (column). A query that may look at none gets zeros. Raises ValueError for another mask.
        """
        check_mask(mask)
        if x.ndim > 3:
            sequences = self(x.flatten(0, -3), positions, mask, queries)
            return sequences.unflatten(0, x.shape[:-2])
        q, k, v = self.project(x)  # Eq. 5
        position_bias = None
        if positions is not None:
            q, k, position_bias = positions(q, k)
        mixed = self.attend(q, k, v, position_bias, mask, queries)  # Eq. 6, 7   (B, H, Q, E)
        return self.join(mixed)  # Eq. 8      (B, Q, D)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Eq. 5, [q, k, v] = z U_qkv: (B, T, D) -> three times (B, H, T, E)."""
        size = self.qkv.in_features // self.heads
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, size))  # (B, T, 3, H, E)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
        return q, k, v

    def join(self, mixed: Tensor) -> Tensor:
        """Eq. 8: all heads side by side, through U_msa: (B, H, Q, E) -> (B, Q, D)."""
        return self.out(mixed.transpose(1, 2).flatten(2))

    def init_weights(self) -> None:
        """q, k, v and out are Glorot-uniform, each as its own D x D matrix; biases are zero."""
        limit = (3 / self.qkv.in_features) ** 0.5
        for layer in (self.qkv, self.out):
            nn.init.uniform_(layer.weight, -limit, limit)
            nn.init.zeros_(layer.bias)


class ScaledDotProduct(nn.Module):
    """softmax(q kᵀ / √E) v (Eq. 6, 7), by whichever of two ways is faster.

    A module without parameters, so that `recording` can look at what goes in and out of it.
    """

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.dropout = dropout

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        position_bias: Tensor | None = None,
        mask: Tensor | None = None,
        queries: int | None = None,
    ) -> Tensor:
        """(B, H, T, E) three times -> (B, H, Q, E): what the first `queries` tokens get, or all.

        position_bias: added to the logits, (B, H, T, T). mask: bool, True where a query may look.
        """
        bias = position_bias
        if mask is not None:
            bias = masked(position_bias, mask, q.dtype)
        if queries is not None:
            q = q[:, :, :queries]
            bias = first_rows(bias, queries)
        dropout = self.dropout if self.training else 0.0
        if two_products_are_faster(q, k, bias):
            return plain(q, k, v, dropout, bias)
        return fused(q, k, v, dropout, bias)


def check_mask(mask: Tensor | None) -> None:
    """Raise ValueError for a mask of numbers, or of a single row."""
    if mask is not None and (mask.dtype != torch.bool or mask.ndim < 2):
        raise ValueError(
            f"the mask is {mask.dtype} of shape {tuple(mask.shape)}; it is bool, (T, T) or what "
            "broadcasts to (B, H, T, T), True where a query may look at a key"
        )


def masked(position_bias: Tensor | None, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A bias of the logits that is -inf where a query may not look: (..., T, T)."""
    if position_bias is None:
        position_bias = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, position_bias, -torch.inf)


def first_rows(bias: Tensor | None, queries: int) -> Tensor | None:
    """The rows (..., T, T) of the first queries; a single row stands for all of them."""
    if bias is None or bias.shape[-2] == 1:
        return bias
    return bias[..., :queries, :]


def fused(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, bias: Tensor | None = None
) -> Tensor:
    """Eq. 6 and 7 in one kernel: (B, H, Q, E), (B, H, T, E), (B, H, T, E) -> (B, H, Q, E).

    A bias (B, H, Q, T), such as relative positions and masks make, is added before the softmax.
    """
    return F.scaled_dot_product_attention(q, k, v, bias, dropout)


def plain(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, bias: Tensor | None = None
) -> Tensor:
    """The same numbers from two matrix products, as Eq. 6 and 7 are written."""
    return F.dropout(attention_weights(q, k, bias), dropout) @ v


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """Eq. 6: A = softmax(q kᵀ / √E), (B, H, Q, T). The query is scaled first, as in Google's
    code."""
    logits = (q * q.shape[-1] ** -0.5) @ k.mT
    if bias is None:
        return logits.softmax(-1)
    logits = logits + bias
    nowhere = (logits == -torch.inf).all(-1, keepdim=True)
    # a query that may look at no key has no weights, where softmax would make NaN of it
    return logits.masked_fill(nowhere, 0).softmax(-1).masked_fill(nowhere, 0)


def two_products_are_faster(q: Tensor, k: Tensor, bias: Tensor | None) -> bool:
    """Whether `plain` beats `fused` here; measured by benchmarks/attention.py and axial.py.

    On a CPU in bfloat16 it does, by up to 2.5 times in training, until its T x T weights outgrow
    the cache; in float32 only for the short rows with a bias of late ResNet stages. Never on a GPU.
    """
    if q.device.type != "cpu":
        return False
    longest = 0
    if bias is not None:
        longest = 16
    if q.dtype == torch.bfloat16:
        longest = 600
    return k.shape[-2] <= longest
