"""One layer of the encoder (Section 3.1, Equations 2 and 3).

Legend: B batch, T tokens, Q of them that ask (queries), D width, (h, w) the grid of patches.
"""

from functools import partial

import torch
from torch import Tensor, nn

from vitkit.models.attention import Attention, AttentionPositions
from vitkit.models.backbone import Grid
from vitkit.models.config import ViTConfig

GELU = {"tanh": partial(nn.GELU, approximate="tanh"), "erf": nn.GELU}


class Block(nn.Module):
    """Attention, then MLP, each after a LayerNorm and inside a residual connection (Eq. 2, 3)."""

    def __init__(self, config: ViTConfig, stochastic_depth: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, config.eps)
        self.attention = Attention(config.width, config.heads, config.attention_dropout)
        self.dropout = nn.Dropout(config.dropout)
        self.norm2 = nn.LayerNorm(config.width, config.eps)
        self.mlp = Mlp(config.width, config.mlp, config.gelu, config.dropout)
        self.keep = StochasticDepth(stochastic_depth)
        self.scale1 = layer_scale(config)
        self.scale2 = layer_scale(config)

    def forward(
        self,
        x: Tensor,
        grid: Grid | None = None,
        positions: AttentionPositions | None = None,
        mask: Tensor | None = None,
        queries: int | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D), or (B, Q, D), the new states of the first `queries` tokens.

        `grid` is what mixers that work on rows and columns need; attention among all does not.
        """
        y = self.attention(self.norm1(x), positions, mask, queries)
        x = x[:, :queries] + self.keep(self.scale1(self.dropout(y)))  # Eq. 2
        return x + self.keep(self.scale2(self.mlp(self.norm2(x))))  # Eq. 3


class Mlp(nn.Module):
    """Two dense layers with a GELU between them, dropout after each (Section 3.1)."""

    def __init__(self, width: int, hidden: int, gelu: str, dropout: float):
        super().__init__()
        self.expand = nn.Linear(width, hidden)
        self.gelu = GELU[gelu]()
        self.contract = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        x = self.dropout(self.gelu(self.expand(x)))
        return self.dropout(self.contract(x))

    def init_weights(self) -> None:
        for layer in (self.expand, self.contract):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.normal_(layer.bias, std=1e-6)


class StochasticDepth(nn.Module):
    """Leaves a residual branch out for whole examples, and scales the rest to keep the mean."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """(B, ...) -> the same shape; nothing happens in evaluation (AugReg)."""
        if not self.training or self.rate == 0:
            return x
        one_an_example = (len(x), *[1] * (x.ndim - 1))
        stays = torch.rand(one_an_example, device=x.device) >= self.rate
        return x * (stays / (1 - self.rate)).to(x.dtype)


class LayerScale(nn.Module):
    """A learned factor for every channel of a residual branch (CaiT)."""

    def __init__(self, width: int, initial: float):
        super().__init__()
        self.initial = initial
        self.gamma = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return x * self.gamma

    def init_weights(self) -> None:
        nn.init.constant_(self.gamma, self.initial)


def layer_scale(config: ViTConfig) -> nn.Module:
    """The LayerScale of a branch, or the identity where the configuration has none."""
    if config.layer_scale is None:
        return nn.Identity()
    return LayerScale(config.width, config.layer_scale)
