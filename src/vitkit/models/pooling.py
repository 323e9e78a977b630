"""From the tokens to what the head reads: y of Eq. 4, and what Appendix D.3 and others put there.

A pooling says in `queries` how many of the first tokens it reads (None for all), so that the last
block need not compute the others.

Legend: B batch, N patches, T tokens, D width, H heads, E width of a head, K classes.
"""

import torch
from torch import Tensor, nn

from vitkit.models.attention import Attention
from vitkit.models.block import Mlp
from vitkit.models.config import ViTConfig


class FirstTokens(nn.Module):
    """The class token (the paper), or that and the distillation token after it (DeiT)."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.queries = config.tokens_read

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, D), or of two tokens (B, 2·D)."""
        return x[:, : self.queries].flatten(1)  # Eq. 4: y = z_0


class Mean(nn.Module):
    """Global average pooling: the mean of the patches (App. D.3)."""

    queries = None

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.prefix = config.prefix

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, D)."""
        patches = x[:, self.prefix :]  # (B, N, D)
        return patches.mean(1)


class Corner(nn.Module):
    """The first patch, as the published Axial-ViT has it (App. D.6)."""

    queries = None

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.prefix = config.prefix

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, D)."""
        return x[:, self.prefix]


class EveryToken(nn.Module):
    """No pooling: the head answers for every token."""

    queries = None

    def __init__(self, config: ViTConfig):
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D), as it is."""
        return x


class AttentionPool(nn.Module):
    """MAP, multi-head attention pooling (big_vision): one learned query, the probe, attends to all
    tokens."""

    queries = None

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.probe = nn.Parameter(torch.empty(1, 1, config.width))
        self.attention = Attention(config.width, config.heads)
        self.norm = nn.LayerNorm(config.width, config.eps)
        self.mlp = Mlp(config.width, config.mlp, config.gelu, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, D)."""
        # The same query to every image; keys and values are the tokens.
        q, _, _ = self.attention.project(self.probe)  # (1, H, 1, E)
        q = q.expand(x.shape[0], -1, -1, -1)  # (B, H, 1, E)
        _, k, v = self.attention.project(x)  # (B, H, T, E)
        y = self.attention.attend(q, k, v)  # (B, H, 1, E)
        y = self.attention.join(y)  # (B, 1, D)

        # As in a block, but nothing is added to the attention's result: a probe has no state.
        y = y + self.mlp(self.norm(y))
        return y[:, 0]

    def init_weights(self) -> None:
        """Glorot-uniform."""
        # The limit is that of a 1 x D matrix, as flax counts its inputs and outputs.
        limit = (6 / (1 + self.probe.shape[-1])) ** 0.5
        nn.init.uniform_(self.probe, -limit, limit)


class DistilledHead(nn.Module):
    """A classifier for the class token and one for the distillation token, averaged (DeiT)."""

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.token = nn.Linear(width, classes)
        self.distilled = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 2·D) -> (B, K)."""
        token, distilled = x.chunk(2, -1)
        return (self.token(token) + self.distilled(distilled)) / 2


POOL: dict[str, type[nn.Module]] = {
    "token": FirstTokens,
    "distilled": FirstTokens,
    "gap": Mean,
    "map": AttentionPool,
    "corner": Corner,
    "none": EveryToken,
}
