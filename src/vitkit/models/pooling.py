"""From the tokens to what the head reads: y of Eq. 4, and what Appendix D.3 and others put there.

A pooling says in `tokens_read` how many of the first tokens it reads (None for all), so that the
last block need not compute the others. DeiT's head, which reads two tokens, is here too.

Legend: B batch, N patches, T tokens, D width, H heads, D_h width of a head, K classes, (h, w) the
grid of patches. z are the tokens' final states, y is what the head reads.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitkit.models.attention import Attention
from vitkit.models.block import Mlp
from vitkit.models.config import ViTConfig
from vitkit.models.layers import Dense, build_norm
from vitkit.models.tiling import Grid


class Pooling(nn.Module):
    """A pooling without parameters: one of the functions in POOL, by the name in the configuration."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.prefix = config.prefix
        self.tokens_read = config.tokens_read
        self.read = POOL[config.pool]

    def forward(self, z: Tensor, grid: Grid) -> Tensor:
        """(B, T, D) -> y: (B, D), several times D, or (B, T, D) without a pooling."""
        return self.read(z, self.prefix, grid)


# From the states of all tokens, (B, T, D), `prefix` of them before the patches, to y


def class_token(z: Tensor, prefix: int, grid: Grid) -> Tensor:
    """(B, D). Eq. 4: y = LN(z_L^0), where LN came before."""
    return z[:, 0]


def two_tokens(z: Tensor, prefix: int, grid: Grid) -> Tensor:
    """(B, 2·D): the class token and the distillation token after it (DeiT)."""
    return z[:, :2].flatten(1)


def mean(z: Tensor, prefix: int, grid: Grid) -> Tensor:
    """(B, D): global average pooling, the mean of the patches (App. D.3)."""
    return z[:, prefix:].mean(1)


def token_and_mean(z: Tensor, prefix: int, grid: Grid) -> Tensor:
    """(B, 2·D): the class token and the mean of the patches (DINOv2's linear classifier)."""
    return torch.cat([z[:, 0], z[:, prefix:].mean(1)], -1)


def token_and_quarters(z: Tensor, prefix: int, grid: Grid) -> Tensor:
    """(B, 5·D): the class token and the means of the patches in the upper left, upper right, lower
    left and lower right of the image, so that the head can tell where in it something is. The middle
    row or column of an odd side is in both halves."""
    return torch.cat([z[:, 0], *quarters(z, prefix, grid)], -1)


def token_mean_and_quarters(z: Tensor, prefix: int, grid: Grid) -> Tensor:
    """(B, 6·D): the class token, the mean of the patches, and their means in the four quarters."""
    return torch.cat([z[:, 0], z[:, prefix:].mean(1), *quarters(z, prefix, grid)], -1)


def token_and_pyramid(z: Tensor, prefix: int, grid: Grid) -> Tensor:
    """(B, 22·D): the class token and a spatial pyramid (Lazebnik et al. 2006): the mean of the patches,
    their means in the four quarters, and in sixteen parts, row by row."""
    levels = [z[:, prefix:].mean(1), *quarters(z, prefix, grid), *parts(z, prefix, grid, 4)]
    return torch.cat([z[:, 0], *levels], -1)


def quarters(z: Tensor, prefix: int, grid: Grid) -> list[Tensor]:
    """(B, D) each: the means of the patches in the four quarters of the image."""
    return parts(z, prefix, grid, 2)


def parts(z: Tensor, prefix: int, grid: Grid, sides: int) -> list[Tensor]:
    """(B, D) each: the means of the patches in `sides` x `sides` parts of the image, row by row. A row or
    column of patches that a border goes through is in both parts."""
    patches = z[:, prefix:].unflatten(1, grid)  # (B, h, w, D)
    means = []
    for rows in shares(grid[0], sides):
        for columns in shares(grid[1], sides):
            means.append(patches[:, rows, columns].mean((1, 2)))
    return means


def shares(length: int, count: int) -> list[slice]:
    """A side of this many patches in `count` parts, each from the patch in which it begins to
    the one in which it ends."""
    parts = []
    for i in range(count):
        end = ((i + 1) * length + count - 1) // count  # rounded up
        parts.append(slice(i * length // count, end))
    return parts  # of an exported model the length is a variable, and ONNX divides towards zero


def first_patch(z: Tensor, prefix: int, grid: Grid) -> Tensor:
    """(B, D): the patch in the top left corner, as in the published Axial-ViT (App. D.6)."""
    return z[:, prefix]


def every_token(z: Tensor, prefix: int, grid: Grid) -> Tensor:
    """(B, T, D), unchanged: no pooling, the head answers for every token."""
    return z


POOL: dict[str, Callable[[Tensor, int, Grid], Tensor]] = {
    "token": class_token,
    "distilled": two_tokens,
    "gap": mean,
    "token-gap": token_and_mean,
    "token-quarters": token_and_quarters,
    "token-gap-quarters": token_mean_and_quarters,
    "token-pyramid": token_and_pyramid,
    "corner": first_patch,
    "none": every_token,
}


def build_pool(config: ViTConfig) -> nn.Module:
    """The pooling of a configuration."""
    if config.pool == "map":
        return AttentionPool(config)
    return Pooling(config)


class AttentionPool(nn.Module):
    """MAP, multi-head attention pooling (big_vision): one learned query, the probe, attends to
    the patches: big_vision has no other tokens here, and timm leaves them out."""

    tokens_read = None

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.prefix = config.prefix
        self.probe = nn.Parameter(torch.empty(1, 1, config.width))
        self.attention = Attention(config.width, config.heads)
        self.norm = build_norm(config.width, config.eps, config.rms_norm)
        self.mlp = Mlp(config.width, config.mlp, config.gelu, 0.0)

    def forward(self, z: Tensor, grid: Grid) -> Tensor:
        """(B, T, D) -> (B, D)."""
        # The same query to every image; keys and values are the patches.
        q, _, _ = self.attention.project(self.probe)  # (1, H, 1, D_h)
        q = q.expand(z.shape[0], -1, -1, -1)  # (B, H, 1, D_h)
        patches = z[:, self.prefix :]  # (B, N, D)
        _, k, v = self.attention.project(patches)  # (B, H, N, D_h) each
        y = self.attention.attend(q, k, v)  # (B, H, 1, D_h)
        y = self.attention.join(y)  # (B, 1, D)

        # Eq. 3 as in a block; unlike Eq. 2, the probe is not added to what attention gives.
        y = y + self.mlp(self.norm(y))
        return y[:, 0]

    def init_weights(self) -> None:
        """Glorot-uniform, for a probe that is a 1 x D matrix, as flax counts it."""
        limit = (6 / (1 + self.probe.shape[-1])) ** 0.5
        nn.init.uniform_(self.probe, -limit, limit)


class DistilledHead(nn.Module):
    """A classifier for the class token and one for the distillation token, averaged (DeiT)."""

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.token = Dense(width, classes)
        self.distilled = Dense(width, classes)

    def forward(self, y: Tensor) -> Tensor:
        """(B, 2·D) -> (B, K)."""
        token, distilled = y.chunk(2, -1)  # (B, D) each
        return (self.token(token) + self.distilled(distilled)) / 2
