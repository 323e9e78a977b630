"""The Vision Transformer (Section 3.1): Equations 1 to 4, in the paper's order.

Read `features` first: it is the whole model. Equation 1 is `embed`, Equations 2 and 3 are in
block.py, attention is in attention.py, and what the head reads (Equation 4) is in pooling.py.

Legend: B batch, C channels, P side of a patch in pixels, (h, w) the grid of patches, so that images
are (B, C, h·P, w·P) if patches are squares without overlap; N = h·w patches, T tokens (the class token
and registers, then the patches), Q number of tokens that the last block computes (all, unless the
pooling reads fewer), D width, H heads, L blocks, K classes. As in the paper, x are patches, z the
tokens' states, and y is what the head reads.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitkit.models.ancestors.mixers import AxialBlock
from vitkit.models.ancestors.resnet import ResNetStem
from vitkit.models.attention import AttentionPositions
from vitkit.models.block import Block
from vitkit.models.config import ViTConfig
from vitkit.models.head import DistilledHead, MemoryPool, build_pool
from vitkit.models.layers import (
    Dense,
    build_norm,
    check_images,
    in_type_of_weights,
    init_children,
    init_head,
    lecun_normal_,
)
from vitkit.models.positions import build_positions
from vitkit.models.tiling import Grid, Tiling

BLOCKS = {"full": Block, "axial": AxialBlock}


class VisionTransformer(nn.Module):
    """Images to class logits, through `embed`, `encoder`, `pool` and `head`.

    Build one with `create()`: the constructor only gives the parameters their shapes.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = config

        # Eq. 1: E, which projects patches of the image, or of a ResNet's feature map (the hybrid)
        self.stem: nn.Module
        if config.stem is None:
            bias = not config.embedding_norm
            self.stem = Patches(config.channels, config.width, config.patches, bias)
        else:
            self.stem = ResNetStem(
                config.channels, config.width, config.patches, config.stem, config.image
            )

        # Eq. 1: x_class, and E_pos
        self.cls = None
        if config.has_class_token:
            self.cls = nn.Parameter(torch.empty(1, 1, config.width))
        self.registers = None
        if config.registers:
            self.registers = nn.Parameter(torch.empty(1, config.registers, config.width))
        self.positions: Any = build_positions(config)  # one module, or one for each block
        self.dropout = nn.Dropout(config.dropout)
        self.embedding_norm = None
        if config.embedding_norm:
            self.embedding_norm = build_norm(config.width, config.eps, config.rms_norm)

        # Eq. 2 and 3: L blocks. The rate of stochastic depth grows linearly, from 0 at the first.
        last = max(config.depth - 1, 1)
        rates = [config.stochastic_depth * i / last for i in range(config.depth)]
        self.blocks = nn.ModuleList(BLOCKS[config.mixer](config, rate) for rate in rates)

        # Eq. 4: LN, and the choice of y
        self.norm = build_norm(config.width, config.eps, config.rms_norm)
        self.pool = build_pool(config)

        # The head: one layer, in pre-training after a hidden layer
        self.representation = None
        if config.representation:
            self.representation = Dense(config.width, config.representation)
        self.head: nn.Module = nn.Identity()
        if config.classes and config.pool == "distilled":
            self.head = DistilledHead(config.width, config.classes)
        elif config.classes:
            features = config.representation or config.pooled_width
            self.head = Dense(features, config.classes)

        # Activation checkpointing: keep only the blocks' inputs for the backward pass.
        self.recompute = False
        # Under autocast, the dtype of z between the layers; None is that of the weights.
        self.residual_dtype: torch.dtype | None = None
        # Set by for_inference; such models cannot be trained or saved.
        self.inference_only = False

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, h·P, w·P) normalised images -> (B, K) logits, or the features if there is no
        head. With `pool="patches"` every pixel has logits: (B, K, h·P, w·P)."""
        logits = self.head(self.features(images))
        if self.config.segments and self.config.classes:
            return self.over_pixels(logits, self.grid(images))
        return logits

    def over_pixels(self, logits: Tensor, grid: Grid) -> Tensor:
        """The logits of patches, (B, N, K), bilinearly interpolated to pixels: (B, K, h·P, w·P)."""
        maps = logits.mT.unflatten(2, grid)  # (B, K, h, w)
        height, width = self.config.tiling.size
        return F.interpolate(maps, scale_factor=(float(height), float(width)), mode="bilinear")

    def features(self, images: Tensor) -> Tensor:
        """The features, which the head reads: (B, C, h·P, w·P) -> (B, D).

        If the pooling reads only the class token, the last block computes only that. `pool="none"` gives
        (B, T, D), `pool="patches"` (B, N, D), and a pooling of S states (B, S·D); `read_blocks` multiplies the
        width, with the last block's states last; with a representation layer D is its width. A memory bank gives
        (B, 1), the anomaly score.
        """
        if isinstance(self.pool, MemoryPool):
            return self.pool(self.distances(images))
        z = self.embed(images)  # (B, T, D)  Eq. 1
        # Eq. 2 and 3, L times
        grid = self.grid(images)
        states = self.last_states(z, grid, self.config.read_blocks, queries=self.pool.tokens_read)
        # LN of Eq. 4, and the class token; or the mean (App. D.3), MAP, etc.
        read = [self.pool(self.normed(z), grid) for z in states]
        y = read[0] if len(read) == 1 else torch.cat(read, -1)  # (B, D)
        if self.config.norm == "pooled":
            y = self.norm(y)  # MAE, and timm with mean pooling: LN here, not in `encoder`
        if self.representation is not None:
            y = torch.tanh(self.representation(y))
        return y

    def distances(self, images: Tensor) -> Tensor:
        """The distance of each patch to the nearest in the memory bank: (B, C, h·P, w·P) -> float32
        (B, h, w). For a model whose pooling is "memory"."""
        assert isinstance(self.pool, MemoryPool)
        return self.pool.distances(self.patch_states(images), self.grid(images))

    def with_patch_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of images, and those that the head gives each patch alone: (B, C, h·P, w·P) -> (B, K)
        and (B, h, w, K). For a model whose pooling is "memory"."""
        distances = self.distances(images)
        return self.head(self.pool(distances)), self.head(distances[..., None])

    def patch_states(self, images: Tensor) -> list[Tensor]:
        """The tokens of the last `read_blocks` blocks, each after the last LayerNorm: (B, C, h·P, w·P) ->
        L times (B, T, D)."""
        z = self.embed(images)
        states = self.last_states(z, self.grid(images), self.config.read_blocks)
        return [self.normed(z) for z in states]

    def encode(self, images: Tensor) -> Tensor:
        """The final states of all tokens, for inspection or dense tasks: (B, C, h·P, w·P) -> (B, T, D)."""
        return self.encoder(self.embed(images), self.grid(images))

    def embed(self, images: Tensor) -> Tensor:
        """Eq. 1: (B, C, h·P, w·P) normalised images -> z_0, (B, T, D)."""
        x = self.patch_embed(images)  # (B, N, D)  x_p E
        return self.add_positions(x, self.grid(images))  # (B, T, D)  [x_class; x_p E] + E_pos

    def patch_embed(self, images: Tensor) -> Tensor:
        """x_p E of Eq. 1: (B, C, h·P, w·P) -> (B, N, D), in raster order, before anything is added.

        Raises VitkitError for images that are not normalised floating point numbers, or that cannot
        be cut into patches.
        """
        check_images(images, self.config.channels)
        images = in_type_of_weights(images, self.stem)
        x = self.stem(images)  # (B, D, h, w)
        return x.flatten(2).mT  # (B, N, D)

    def add_positions(self, x: Tensor, grid: Grid) -> Tensor:
        """The rest of Eq. 1, [x_class; x_p E] + E_pos: (B, N, D) -> z_0, (B, T, D).

        The class token and registers come before the patches. Positions are added to all of them, followed by
        dropout and CLIP's LayerNorm.
        """
        # Under autocast patches are bfloat16; the residual stream keeps the weights' precision.
        x = x.to(self.norm.weight.dtype)
        z = self.prepend_tokens(x)  # (B, T, D)
        if self.config.resolved_inject == "stem":
            z = self.positions.add(z, grid)
        # App. B.1. Our choice: also for a model that adds no positions here (App. D.4).
        z = self.dropout(z)
        if self.embedding_norm is not None:
            z = self.embedding_norm(z)  # CLIP
        return self.in_stream(z)

    def in_stream(self, z: Tensor) -> Tensor:
        """Convert tokens to the dtype of the residual stream: `residual_dtype` under autocast, if it is set."""
        if self.residual_dtype is None or not torch.is_autocast_enabled(z.device.type):
            return z
        return z.to(self.residual_dtype)

    def prepend_tokens(self, x: Tensor) -> Tensor:
        """Prepend the class token and the registers to the patches: (B, N, D) -> (B, T, D)."""
        tokens: list[Tensor] = [token for token in (self.cls, self.registers) if token is not None]
        if not tokens:
            # The transposed layout from `.mT` would make every block up to a tenth slower.
            return x.contiguous()
        batch = x.shape[0]  # not len(x), which would be a constant in an export
        expanded = [token.expand(batch, -1, -1) for token in tokens]
        return torch.cat([*expanded, x], 1)

    def encoder(
        self, z: Tensor, grid: Grid, mask: Tensor | None = None, queries: int | None = None
    ) -> Tensor:
        """Eq. 2 and 3, L times, and the LayerNorm of Eq. 4: z_0, (B, T, D) -> LN(z_L), (B, T, D).

        queries: compute only this many tokens, the first ones, (B, Q, D), which saves most of the last
            block's work; None computes all.
        mask: bool, broadcast to (B, H, T, T), True where a token (row) may attend to another (column): for
            several images in one sequence, or images of several sizes in a batch.

        If positions are added at the stem, z may also be a part of an image's patches, as in masked
        autoencoders. If config.norm is "pooled", the LayerNorm comes after the pooling.
        """
        [z] = self.last_states(z, grid, 1, mask, queries)
        return self.normed(z)

    def last_states(
        self,
        z: Tensor,
        grid: Grid,
        count: int,
        mask: Tensor | None = None,
        queries: int | None = None,
    ) -> list[Tensor]:
        """Eq. 2 and 3, L times: the tokens after the last `count` blocks, (B, T, D) each, for the last block
        only the first `queries` tokens; see `encoder`."""
        states = []
        last = len(self.blocks) - 1
        for i, block in enumerate(self.blocks):
            # App. D.4: positions that are added at every block; the paper's are already in z_0.
            positions = None
            if self.config.resolved_inject != "stem":
                z, positions = self.positions_at_block(i, z, grid)
                z = self.in_stream(z)

            # Every block reads all tokens of the one before, so only the last may skip some.
            block_queries = None
            if i == last:
                block_queries = queries

            # Eq. 2 and 3
            compute = self.with_checkpointing(block)
            z = compute(z, grid=grid, positions=positions, mask=mask, queries=block_queries)
            if i > last - count:
                states.append(z)
        return states

    def normed(self, z: Tensor) -> Tensor:
        """LN of Eq. 4, unless it comes after the pooling: (B, T, D) -> (B, T, D)."""
        if self.config.norm == "tokens":
            return self.norm(z)
        return z

    def positions_at_block(
        self, i: int, z: Tensor, grid: Grid
    ) -> tuple[Tensor, AttentionPositions | None]:
        """The tokens (B, T, D) plus the positions of block i, and None; or unchanged tokens, and positions
        that act within the block's attention."""
        positions = self.positions
        if isinstance(positions, nn.ModuleList):  # one per block
            positions = positions[i]
        if self.config.position_kind.adds_to_tokens:
            return positions.add(z, grid), None
        return z, positions.in_attention(grid)

    def with_checkpointing(self, block: nn.Module) -> Callable[..., Tensor]:
        """The block, or with `recompute` a version that is computed again in the backward pass."""
        if self.recompute and self.training:
            return partial(checkpoint, block, use_reentrant=False)
        return block

    def grid(self, images: Tensor) -> Grid:
        """(h, w), the patches of these images."""
        return self.config.tiling.grid((images.shape[-2], images.shape[-1]))

    def layer_of(self, name: str) -> int:
        """The layer that a parameter belongs to, by its name.

        0 is the embedding (Eq. 1), 1 to L are the blocks, L + 1 is all that follows.
        """
        module, *rest = name.split(".")
        # With a table for every block, "positions.3.table" is the fourth block's.
        if module == "blocks" or (module == "positions" and self.config.resolved_inject == "every"):
            return int(rest[0]) + 1
        if module in ("stem", "cls", "registers", "positions", "embedding_norm"):
            return 0
        return len(self.blocks) + 1

    def init_weights(self) -> None:
        """Initialise as the official code: zeros for class token and head, every other module by its own
        `init_weights`."""
        if self.cls is not None:
            nn.init.zeros_(self.cls)
        if self.registers is not None:
            # Like positions: equal registers would stay equal in training.
            nn.init.normal_(self.registers, std=0.02)
        if self.representation is not None:
            lecun_normal_(self.representation.weight)
            nn.init.zeros_(self.representation.bias)
        init_head(self.head, self.config.head_bias)
        init_children(self)


class Patches(nn.Module):
    """x_p E of Eq. 1: cut the image into P x P patches and project each.

    A convolution does both. In the paper its stride is its kernel.
    """

    def __init__(self, channels: int, width: int, patches: Tiling, bias: bool = True):
        super().__init__()
        self.patches = patches
        self.project = nn.Conv2d(channels, width, patches.size, patches.stride, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, h, w); without overlap H is h·P. Raises VitkitError for sides that whole
        patches do not cover."""
        self.patches.check((images.shape[-2], images.shape[-1]))
        return self.project(images)

    def init_weights(self) -> None:
        """Initialise by Flax's default for a dense layer with P·P·C inputs."""
        lecun_normal_(self.project.weight)
        if self.project.bias is not None:
            nn.init.zeros_(self.project.bias)
