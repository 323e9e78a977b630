"""One layer of the encoder (Section 3.1, Eq. 2 and 3).

Legend: B batch, T tokens, D width.
"""

from functools import partial

import torch
from torch import Tensor, nn

from vitkit.models.attention import Attention, Within
from vitkit.models.config import ViTConfig

GELU = {"tanh": partial(nn.GELU, approximate="tanh"), "erf": nn.GELU}


class Mlp(nn.Module):
    """Two dense layers with one GELU between them, dropout after each (Section 3.1): (..., D) -> (..., D)."""

    def __init__(self, width: int, hidden: int, gelu: str, dropout: float):
        super().__init__()
        self.expand = nn.Linear(width, hidden)
        self.gelu = GELU[gelu]()
        self.contract = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.contract(self.dropout(self.gelu(self.expand(x)))))

    def init_weights(self) -> None:
        for layer in (self.expand, self.contract):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.normal_(layer.bias, std=1e-6)


class StochasticDepth(nn.Module):
    """Leaves a residual branch out for whole examples, and scales the rest so that the mean stays (AugReg)."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        stays = torch.rand(len(x), *[1] * (x.ndim - 1), device=x.device) >= self.rate
        return x * (stays / (1 - self.rate)).to(x.dtype)


class LayerScale(nn.Module):
    """A learned factor for every channel of a residual branch (CaiT): (..., D) -> (..., D)."""

    def __init__(self, width: int, initial: float):
        super().__init__()
        self.initial = initial
        self.gamma = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma

    def init_weights(self) -> None:
        nn.init.constant_(self.gamma, self.initial)


class Block(nn.Module):
    """One layer of the encoder: attention, then MLP, each after a LayerNorm and inside a residual (Eq. 2, 3)."""

    def __init__(self, config: ViTConfig, stochastic_depth: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, config.eps)
        self.attention = Attention(config.width, config.heads, config.attention_dropout)
        self.dropout = nn.Dropout(config.dropout)
        self.norm2 = nn.LayerNorm(config.width, config.eps)
        self.mlp = Mlp(config.width, config.mlp, config.gelu, config.dropout)
        self.keep = StochasticDepth(stochastic_depth)
        initial = config.layer_scale
        self.scale1, self.scale2 = (
            nn.Identity() if initial is None else LayerScale(config.width, initial) for _ in "12"
        )

    def forward(self, x: Tensor, first: int | None = None, within: Within | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D), or (B, first, D): the new state of the first tokens only."""
        y = self.norm1(x)
        asking = None if first is None else y[:, :first]
        x = x[:, :first] + self.keep(
            self.scale1(self.dropout(self.attention(y, asking, within)))
        )  # Eq. 2
        return x + self.keep(self.scale2(self.mlp(self.norm2(x))))  # Eq. 3
