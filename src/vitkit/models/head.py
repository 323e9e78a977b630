"""From the tokens to what the head reads: y of Eq. 4, and its replacements in Appendix D.3 and elsewhere
(pooling.py has the table). DeiT's head, which reads two tokens, is here too.

The attribute `tokens_read` of a pooling is the number of first tokens that it reads (None for all); the
last block does not have to compute the others.

Legend: B batch, N patches, T tokens, D width, H heads, D_h width of a head, K classes, (h, w) the
grid of patches. z are the tokens' final states, y is what the head reads.
"""

import torch
from torch import Tensor, nn

from vitkit.models.attention import Attention
from vitkit.models.block import Mlp
from vitkit.models.config import ViTConfig
from vitkit.models.layers import Dense, build_norm
from vitkit.models.pooling import EachPatch, Means, Patch, States, Token
from vitkit.models.tiling import Grid

WORST = 0.005  # share of an image's patches whose distances make its anomaly score
COMPARED = 2_048  # rows of a memory bank that all patches are compared with at the same time


class Pooling(nn.Module):
    """A pooling without parameters: concatenates the states that the table of poolings names."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.prefix = config.prefix
        self.tokens_read = config.pooling.tokens_read
        self.reads = config.pooling.reads

    def forward(self, z: Tensor, grid: Grid) -> Tensor:
        """(B, T, D) -> y: (B, S·D) of S states, (B, N, D) of every patch, or (B, T, D) without a
        pooling."""
        if not self.reads:
            return z
        states = []
        for part in self.reads:
            states += states_of(part, z, self.prefix, grid)
        if len(states) == 1:
            return states[0]
        return torch.cat(states, -1)


def states_of(part: States, z: Tensor, prefix: int, grid: Grid) -> list[Tensor]:
    """The states of one part of a pooling, (B, D) each, or (B, N, D) of every patch, from those of all
    tokens, (B, T, D), of which `prefix` come before the patches."""
    match part:
        case Token(number):  # Eq. 4: y = LN(z_L^0); LN is applied before
            return [z[:, number]]
        case Patch(number):
            return [z[:, prefix + number]]
        case EachPatch():  # semantic segmentation
            return [z[:, prefix:]]
        case Means(1):  # global average pooling (App. D.3)
            return [z[:, prefix:].mean(1)]
        case Means(sides):
            return means_of_parts(z[:, prefix:].unflatten(1, grid), sides)


def means_of_parts(patches: Tensor, sides: int) -> list[Tensor]:
    """(B, h, w, D) -> (B, D) each: the means of the patches in `sides` x `sides` parts of the image, row by
    row. A row or column of patches across a border belongs to both parts."""
    means = []
    for rows in shares(patches.shape[1], sides):
        for columns in shares(patches.shape[2], sides):
            means.append(patches[:, rows, columns].mean((1, 2)))
    return means


def shares(length: int, count: int) -> list[slice]:
    """Divide a side of this many patches into `count` parts, from the patch where a part begins to the
    one where it ends."""
    parts = []
    for i in range(count):
        end = ((i + 1) * length + count - 1) // count  # rounded up
        parts.append(slice(i * length // count, end))
    return parts  # `length` is a variable in an exported model, and ONNX divides towards zero


def build_pool(config: ViTConfig) -> "Pooling | AttentionPool | MemoryPool":
    """The pooling of a configuration."""
    if config.pooling.compares_patches:
        return MemoryPool(config)
    if config.pool == "map":
        return AttentionPool(config)
    return Pooling(config)


class AttentionPool(nn.Module):
    """MAP, multi-head attention pooling (big_vision): one learned query, the probe, attends to the
    patches. big_vision has no other tokens here, and timm excludes them."""

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
        # The same query for every image; keys and values are the patches.
        q, _, _ = self.attention.project(self.probe)  # (1, H, 1, D_h)
        q = q.expand(z.shape[0], -1, -1, -1)  # (B, H, 1, D_h)
        patches = z[:, self.prefix :]  # (B, N, D)
        _, k, v = self.attention.project(patches)  # (B, H, N, D_h) each
        y = self.attention.attend(q, k, v)  # (B, H, 1, D_h)
        y = self.attention.join(y)  # (B, 1, D)

        # Eq. 3 as in a block; unlike Eq. 2, the probe is not added to the attention's output.
        y = y + self.mlp(self.norm(y))
        return y[:, 0]

    def init_weights(self) -> None:
        """Initialise the probe Glorot-uniformly, as a 1 x D matrix, like flax."""
        limit = (6 / (1 + self.probe.shape[-1])) ** 0.5
        nn.init.uniform_(self.probe, -limit, limit)


class MemoryPool(nn.Module):
    """PatchCore (Roth et al. 2022): the distance of each patch to the nearest of a memory bank, and the
    anomaly score of an image, which is the mean of its largest distances.

    A distance is one minus the cosine similarity, as in AnomalyDINO (Damm et al. 2025); of several blocks
    it is the mean, as each block's states are scaled to length 1.
    """

    tokens_read = None
    memory: Tensor

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.prefix = config.prefix
        self.blocks = config.read_blocks
        self.register_buffer("memory", torch.empty(config.memory, self.blocks * config.width))

    def directions(self, states: list[Tensor]) -> Tensor:
        """What is compared of each patch: the tokens of L blocks, (B, T, D) each -> (B, N, L·D), of length
        1."""
        patches = torch.stack([z[:, self.prefix :].float() for z in states], 2)  # (B, N, L, D)
        return nn.functional.normalize(patches, dim=-1).flatten(2) / len(states) ** 0.5

    def distances(self, states: list[Tensor], grid: Grid) -> Tensor:
        """The distance of each patch to the nearest in memory: L times (B, T, D) -> (B, h, w), from 0 to
        2."""
        patches = self.directions(states)
        return distances_to(patches, self.memory).unflatten(1, grid)

    def forward(self, distances: Tensor) -> Tensor:
        """(B, h, w) -> y, the anomaly score: (B, 1)."""
        rows = distances.flatten(1)  # (B, N)
        return rows.topk(worst_count(rows.shape[1]), 1).values.mean(1, keepdim=True)

    def init_weights(self) -> None:
        """Random directions, until patches of images replace them."""
        nn.init.normal_(self.memory)
        self.memory /= self.memory.norm(dim=1, keepdim=True)


def worst_count(patches: int) -> int:
    """The number of patches whose distances make an anomaly score, of an image of N patches."""
    return max(1, round(WORST * patches))


def distances_to(patches: Tensor, memory: Tensor) -> Tensor:
    """One minus the cosine similarity of each row to the most similar in memory, all of length 1:
    (B, N, D) and (M, D) -> (B, N). In float32 under autocast too: similar patches differ by less than
    bfloat16 tells apart."""
    highest = []
    with torch.autocast(patches.device.type, enabled=False):
        for rows in memory.split(COMPARED):
            highest.append((patches @ rows.mT).amax(2))  # (B, N)
    return 1 - torch.stack(highest).amax(0)


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
