"""One block of the encoder (Section 3.1, Equations 2 and 3).

Legend: B batch, T tokens, Q number of queries, which are the first tokens (all, unless `queries` limits
them), D width, (h, w) the grid of patches. As in the paper, z are the states of the tokens.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.attention import Attention, AttentionPositions
from vitkit.models.config import ViTConfig
from vitkit.models.layers import Dense, build_norm
from vitkit.models.tiling import Grid


class QuickGelu(nn.Module):
    """x sigmoid(1.702 x), an approximation of the GELU (OpenAI's CLIP)."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same shape."""
        return x * torch.sigmoid(1.702 * x)


GELU: dict[str, Callable[[], nn.Module]] = {
    "tanh": partial(nn.GELU, approximate="tanh"),
    "erf": nn.GELU,
    "quick": QuickGelu,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
}


class Block(nn.Module):
    """Attention, then MLP, each after a LayerNorm and inside a residual connection (Eq. 2, 3)."""

    def __init__(self, config: ViTConfig, drop_rate: float):
        super().__init__()
        # Eq. 2
        norm = partial(build_norm, eps=config.eps, rms=config.rms_norm)
        self.norm1 = norm(config.width)
        self.attention = Attention(
            config.width,
            config.heads,
            config.attention_dropout,
            config.qkv_bias,
            head_norm=norm if config.qk_norm else None,
        )
        self.dropout = nn.Dropout(config.dropout)

        # Eq. 3
        self.norm2 = norm(config.width)
        self.mlp: SwiGlu | Mlp
        if config.swiglu:
            self.mlp = SwiGlu(config.width, config.mlp, config.dropout)
        else:
            self.mlp = Mlp(config.width, config.mlp, config.gelu, config.dropout)

        # Later models' additions to both residual branches; the paper has a LayerNorm before each.
        self.norm_after = config.branch_norm == "after"
        self.scale1 = layer_scale(config)
        self.scale2 = layer_scale(config)
        self.stochastic_depth = StochasticDepth(drop_rate)

    def forward(
        self,
        z: Tensor,
        grid: Grid | None = None,
        positions: AttentionPositions | None = None,
        mask: Tensor | None = None,
        queries: int | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, Q, D): the new states of the first `queries` tokens, or of all for None.

        positions: those that act within attention. mask: see Attention. `grid` is unused here; AxialBlock,
        which has the same interface, needs it.
        """
        if self.norm_after:
            return self.forward_norm_after(z, positions, mask, queries)

        # Eq. 2: z' = MSA(LN(z)) + z
        branch = self.attention(self.norm1(z), positions, mask, queries)  # (B, Q, D)
        branch = self.scale1(self.dropout(branch))
        z = added(z[:, :queries], self.stochastic_depth(branch))  # [:None] is all

        # Eq. 3: z = MLP(LN(z')) + z'
        branch = self.mlp(self.norm2(z))
        branch = self.scale2(branch)
        return added(z, self.stochastic_depth(branch))

    def forward_norm_after(
        self,
        z: Tensor,
        positions: AttentionPositions | None,
        mask: Tensor | None,
        queries: int | None,
    ) -> Tensor:
        """The block with each LayerNorm at the end of its branch: z' = LN(MSA(z)) + z, and so for the MLP."""
        branch = self.attention(z, positions, mask, queries)  # (B, Q, D)
        branch = self.scale1(self.norm1(self.dropout(branch)))
        z = added(z[:, :queries], self.stochastic_depth(branch))

        branch = self.norm2(self.mlp(z))
        branch = self.scale2(branch)
        return added(z, self.stochastic_depth(branch))


def added(z: Tensor, branch: Tensor) -> Tensor:
    """Add a residual connection. A bfloat16 stream stays bfloat16, even if LayerScale or a norm made the
    branch float32."""
    if z.dtype == torch.bfloat16:
        branch = branch.to(torch.bfloat16)
    return z + branch


class Mlp(nn.Module):
    """Two dense layers with a GELU between them, dropout after each (Section 3.1)."""

    def __init__(self, width: int, hidden: int, gelu: str, dropout: float):
        super().__init__()
        self.expand = Dense(width, hidden)
        self.gelu = GELU[gelu]()
        self.contract = Dense(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        x = self.gelu(self.expand(x))  # (..., hidden)
        x = self.dropout(x)
        x = self.contract(x)  # (..., D)
        return self.dropout(x)

    def init_weights(self) -> None:
        """Initialise weights Glorot-uniformly and biases close to zero, as the official code."""
        for layer in (self.expand, self.contract):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.normal_(layer.bias, std=1e-6)


class SwiGlu(nn.Module):
    """An MLP with a gate: silu(x W1) * (x W2), then W3 (Shazeer 2020; DINOv2's giant)."""

    def __init__(self, width: int, hidden: int, dropout: float):
        super().__init__()
        self.expand = Dense(width, 2 * hidden)  # W1, the gate, above W2
        self.contract = Dense(hidden, width)  # W3
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        gate, x = self.expand(x).chunk(2, -1)  # (..., hidden) each
        x = F.silu(gate) * x
        x = self.contract(self.dropout(x))  # (..., D)
        return self.dropout(x)

    def init_weights(self) -> None:
        """Initialise like Mlp: each of the three matrices Glorot-uniformly, biases close to zero."""
        limit = (6 / (self.contract.in_features + self.contract.out_features)) ** 0.5
        for layer in (self.expand, self.contract):
            nn.init.uniform_(layer.weight, -limit, limit)
            nn.init.normal_(layer.bias, std=1e-6)


class StochasticDepth(nn.Module):
    """Drops a residual branch for random examples and scales it up for the others, so that the mean stays
    the same (Huang et al. 2016; AugReg uses it)."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """(B, ...) -> the same shape; in evaluation, unchanged."""
        if not self.training or self.rate == 0:
            return x
        shape = [len(x)] + [1] * (x.ndim - 1)  # one random number per example: (B, 1, 1)
        keep = torch.rand(shape, device=x.device) >= self.rate
        factor = keep / (1 - self.rate)  # 0 for dropped branches
        return x * factor.to(x.dtype)


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
    """The LayerScale of a branch, or the identity if the configuration has none."""
    if config.layer_scale is None:
        return nn.Identity()
    return LayerScale(config.width, config.layer_scale)
