"""From tokens to what the head reads (Eq. 4, Appendix D.3), and the head with two classifiers.

Legend: B batch, T tokens, D width, K classes.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitkit.models.attention import Attention
from vitkit.models.block import Mlp
from vitkit.models.config import ViTConfig


class AttentionPool(nn.Module):
    """MAP, multi-head attention pooling (big_vision): a learned probe asks every token: (B, T, D) -> (B, D)."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.probe = nn.Parameter(torch.empty(1, 1, config.width))
        self.attention = Attention(config.width, config.heads)
        self.norm = nn.LayerNorm(config.width, config.eps)
        self.mlp = Mlp(config.width, config.mlp, config.gelu, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x, self.probe.expand(x.shape[0], -1, -1))
        return (x + self.mlp(self.norm(x)))[:, 0]

    def init_weights(self) -> None:
        limit = (
            6 / (1 + self.probe.shape[-1])
        ) ** 0.5  # Glorot's for a 1 x D matrix, as flax counts its fans
        nn.init.uniform_(self.probe, -limit, limit)


class DistilledHead(nn.Module):
    """DeiT's: the class token and the distillation token have a classifier each; their mean counts: (B, 2·D) -> (B, K)."""

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.token = nn.Linear(width, classes)
        self.distilled = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        token, distilled = x.chunk(2, -1)
        return (self.token(token) + self.distilled(distilled)) / 2


POOL: dict[str, Callable[[Tensor, int], Tensor] | None] = {
    "token": lambda x, prefix: x[:, 0],
    "distilled": lambda x, prefix: x[:, :2].flatten(1),
    "gap": lambda x, prefix: x[:, prefix:].mean(1),
    "map": None,  # has weights of its own: AttentionPool
    "corner": lambda x, prefix: x[:, prefix],
    "none": lambda x, prefix: x,
}
