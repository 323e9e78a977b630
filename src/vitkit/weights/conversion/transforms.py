"""How a tensor of another library becomes one of vitkit's, and how to get it back, to the bit.

Legend: D width, H heads, E = D / H width of a head, N patches.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor


class Transform(NamedTuple):
    """How tensors of a format become one of vitkit's, and how to get them back, to the bit."""

    read: Callable[..., Tensor]
    """theirs, one or several -> ours"""
    write: Callable[[Tensor], Sequence[Tensor]]
    """ours -> theirs, always a sequence"""


# Joining what a format has in several tensors


def join(parts: Sequence[Tensor]) -> Tensor:
    """torch.cat along the first axis, without a copy if the parts lie in memory one after the
    other (`rules._read_tensors` reads them so).

    Not torch.cat itself: for tensors on meta it imports a compiler, which takes a second.
    """
    lengths = [len(part) for part in parts]
    first = parts[0]
    shape = (sum(lengths), *first.shape[1:])
    if _adjacent(parts):
        return first.as_strided(shape, first.stride())
    whole = first.new_empty(shape)
    for part, target in zip(parts, whole.split(lengths), strict=True):
        if part.shape != target.shape:
            raise ValueError(f"{tuple(part.shape)} cannot be joined to {tuple(first.shape)}")
        target.copy_(part)
    return whole


def _adjacent(parts: Sequence[Tensor]) -> bool:
    """Whether tensors lie in memory as their join would: one after the other, in the same
    storage."""
    first = parts[0]
    if any(part.is_meta for part in parts):
        return False
    storage = first.untyped_storage().data_ptr()
    offset = first.storage_offset()
    for part in parts:
        same_storage = part.untyped_storage().data_ptr() == storage
        same_rows = part.is_contiguous() and part.shape[1:] == first.shape[1:]
        if not same_storage or not same_rows or part.storage_offset() != offset:
            return False
        offset += part.numel()
    return True


# The transforms


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _third_and_rest(ours: Tensor) -> Sequence[Tensor]:
    """qkv -> q, and k and v together."""
    third = len(ours) // 3
    return ours.split([third, 2 * third])


SAME = Transform(_same, lambda ours: (ours,))
# flax.linen.Dense computes x @ kernel, torch.nn.Linear x @ weight.T: (in, out) -> (out, in)
DENSE = Transform(lambda kernel: kernel.mT, lambda ours: (ours.mT,))
# flax.linen.Conv puts channels last: (height, width, in, out) -> (out, in, height, width)
CONVOLUTION = Transform(
    lambda kernel: kernel.permute(3, 2, 0, 1),
    lambda ours: (ours.permute(2, 3, 1, 0),),
)
# Transformers has some vectors and tables without the axis of the batch: (D,) and (T, D)
VECTOR = Transform(lambda vector: vector[None, None], lambda ours: (ours[0, 0],))
TABLE = Transform(lambda table: table[None], lambda ours: (ours[0],))
# vitkit projects to q, k and v with one matrix. Others have three (Transformers), or one for q and
# one for k and v (timm's attention pooling, whose query is a parameter).
THREE = Transform(lambda *qkv: join(qkv), lambda ours: ours.chunk(3))
# The gate of a SwiGLU and what it multiplies, which are two layers in some files
TWO = Transform(lambda *gate_and_rest: join(gate_and_rest), lambda ours: ours.chunk(2))
QUERY_AND_REST = Transform(lambda q, kv: join([q, kv]), _third_and_rest)


def flax_qkv(heads: int) -> Transform:
    """flax.linen.MultiHeadDotProductAttention has a kernel (D, H, E) for each of q, k and v.

    three of (D, H, E) -> (3 H E, D)
    """
    return Transform(
        lambda *qkv: join([kernel.flatten(1).mT for kernel in qkv]),
        lambda ours: [part.mT.unflatten(1, (heads, -1)) for part in ours.chunk(3)],
    )


def flax_qkv_bias(heads: int) -> Transform:
    """And a bias (H, E) for each: three of (H, E) -> (3 H E,)"""
    return Transform(
        lambda *qkv: join([bias.flatten() for bias in qkv]),
        lambda ours: [part.unflatten(0, (heads, -1)) for part in ours.chunk(3)],
    )


def flax_out(heads: int) -> Transform:
    """Its output projection keeps the heads apart: (H, E, D) -> (D, H E)"""
    return Transform(
        lambda kernel: kernel.flatten(0, 1).mT,
        lambda ours: (ours.mT.unflatten(0, (heads, -1)),),
    )


def position_table(prefix_rows: int, prefix: int, patches: int) -> Transform:
    """A table with rows of zeros for the tokens without a position.

    Of the tokens before the patches (class token, registers), of which there are `prefix`, vitkit's
    table has rows only for the first `prefix_rows`: (1, prefix_rows + N, D). Other libraries add
    the table to all tokens at once, so theirs have a row for each: (1, prefix + N, D).
    """
    if prefix_rows == prefix:
        return SAME

    def read(table: Tensor) -> Tensor:
        # DINOv2's own files have a row for the class token and none for registers, as vitkit has
        if table.shape[1] == prefix_rows + patches:
            return table
        zeros = table[:, prefix_rows:prefix]
        if not table.is_meta and zeros.any():
            raise ValueError("the position table has values for tokens that have no position")
        return _join_rows([table[:, :prefix_rows], table[:, prefix:]])

    def write(ours: Tensor) -> Sequence[Tensor]:
        zeros = ours.new_zeros(1, prefix - prefix_rows, ours.shape[-1])
        return (_join_rows([ours[:, :prefix_rows], zeros, ours[:, prefix_rows:]]),)

    return Transform(read, write)


def _join_rows(tables: Sequence[Tensor]) -> Tensor:
    """Position tables (1, rows, D), one below the other."""
    return join([table.transpose(0, 1) for table in tables]).transpose(0, 1)
