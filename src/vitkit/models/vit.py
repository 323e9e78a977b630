"""The Vision Transformer (Section 3.1), Equations 1 to 4 in order.

Legend: B batch, C channels, N patches, T tokens (N, plus the class token), D width, K classes,
(h, w) the grid of patches, P patch size.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitkit.models.axial import AxialBlock
from vitkit.models.backbone import Grid
from vitkit.models.block import Block
from vitkit.models.config import ViTConfig
from vitkit.models.init import init_children, init_head, lecun_normal_
from vitkit.models.pooling import POOL, DistilledHead
from vitkit.models.positions import NO_POSITIONS, build_positions
from vitkit.models.resnet import ResNetStem
from vitkit.models.stems import Patches, check_images

BLOCKS = {"full": Block, "axial": AxialBlock}


class VisionTransformer(nn.Module):
    """Images to class logits, by way of `embed`, `encoder` and the pooling, and `head`.

    Build one with `create()`: the constructor only gives the parameters their shapes.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = config

        # Eq. 1: patches, the tokens before them, positions
        if config.stem:
            self.stem = ResNetStem(
                config.channels, config.patch, config.width, config.stem, config.image
            )
        else:
            self.stem = Patches(config.channels, config.patch, config.width)
        self.cls = None
        if config.prefix > config.registers:
            self.cls = nn.Parameter(torch.empty(1, 1, config.width))
        self.registers = None
        if config.registers:
            self.registers = nn.Parameter(torch.empty(1, config.registers, config.width))
        self.positions = build_positions(config)
        self.dropout = nn.Dropout(config.dropout)

        # Eq. 2 and 3: L blocks; the rate of stochastic depth grows linearly
        rates = [
            config.stochastic_depth * i / max(config.depth - 1, 1) for i in range(config.depth)
        ]
        self.blocks = nn.ModuleList(BLOCKS[config.mixer](config, rate) for rate in rates)

        # Eq. 4, and the head
        self.norm = nn.LayerNorm(config.width, config.eps)
        self.pool = POOL[config.pool](config)
        self.representation = None
        if config.representation:
            self.representation = nn.Linear(config.width, config.representation)
        self.head = nn.Identity()
        if config.classes:
            head = DistilledHead if config.pool == "distilled" else nn.Linear
            self.head = head(config.representation or config.width, config.classes)

        # Activation checkpointing: keep only the blocks' inputs for the backward pass.
        self.recompute = False
        # Made by for_inference: not to be trained or saved.
        self.prepared = False

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) normalised images -> (B, K) logits, or the features where there is no
        head."""
        return self.head(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """What the head reads: (B, C, H, W) -> (B, D), and no more work than that needs.

        With a class token the last block answers for that token alone. `pool="none"` gives
        (B, T, D), "distilled" both tokens' states in a row, (B, 2·D); a representation layer makes
        D its width.
        """
        x = self.embed(images)  # Eq. 1          (B, T, D)
        x = self.encoder(x, self.grid(images), queries=self.pool.queries)  # Eq. 2, 3, and LN
        y = self.pool(x)  # Eq. 4          (B, D)
        if self.config.norm == "pooled":
            y = self.norm(y)  # MAE, and timm with mean pooling
        if self.representation is not None:
            y = torch.tanh(self.representation(y))  # the hidden layer of pre-training (Section 3.1)
        return y

    def encode(self, images: Tensor) -> Tensor:
        """Every token's final state, for inspection or dense use: (B, C, H, W) -> (B, T, D)."""
        return self.encoder(self.embed(images), self.grid(images))

    def embed(self, images: Tensor) -> Tensor:
        """Eq. 1: (B, C, H, W) normalised images -> (B, T, D) tokens with their positions."""
        return self.add_positions(self.patch_embed(images), self.grid(images))

    def patch_embed(self, images: Tensor) -> Tensor:
        """x_p E of Eq. 1: (B, C, H, W) -> (B, N, D), in raster order, before anything is added.

        Raises ValueError for images that are no normalised floating point numbers, or that cannot
        be cut into patches.
        """
        check_images(images, self.config.channels)
        return self.stem(images).flatten(2).mT  # (B, D, h, w) -> (B, N, D)

    def add_positions(self, x: Tensor, grid: Grid) -> Tensor:
        """The rest of Eq. 1, [x_class; x_p E] + E_pos: (B, N, D) -> (B, T, D)."""
        # Under autocast patches come in bfloat16; the stream of residuals stays as the weights are.
        x = x.to(self.norm.weight.dtype)
        before = [token for token in (self.cls, self.registers) if token is not None]
        if before:
            batch = x.shape[0]  # not len(x), which an exporter takes for a constant
            x = torch.cat([*(token.expand(batch, -1, -1) for token in before), x], 1)
        else:
            # Every block would inherit the transposed layout, and be up to a tenth slower.
            x = x.contiguous()
        if self.config.injected == "stem":
            x = self.positions.add(x, grid)
        return self.dropout(x)

    def encoder(
        self, x: Tensor, grid: Grid, mask: Tensor | None = None, queries: int | None = None
    ) -> Tensor:
        """Eq. 2 and 3, L times, and the LayerNorm of Eq. 4 where it is every token's.

        (B, T, D) -> (B, T, D), or with `queries` the final states of the first tokens only,
        (B, Q, D). With positions that were added at the stem any part of an image's tokens will
        do, as for masked autoencoders.

        mask: bool, broadcast to (B, H, T, T), True where a token (row) may look at another
        (column): several images in one sequence, or images of several sizes in a batch.
        """
        last = len(self.blocks) - 1
        for i, positions in enumerate(self.block_positions()):
            block = self.run(self.blocks[i])
            # Only the last block may leave tokens out: the next one asks for those of the others.
            answered = None
            if i == last:
                answered = queries
            x = positions.add(x, grid)  # nothing, if positions were added at the stem
            in_attention = positions.within(grid)
            x = block(x, grid=grid, positions=in_attention, mask=mask, queries=answered)
        if self.config.norm == "tokens":
            x = self.norm(x)
        return x

    def block_positions(self) -> list[nn.Module]:
        """The positions that enter at each block; none where they were added before the first."""
        if self.config.injected == "every":
            return list(self.positions)
        if self.config.injected == "shared":
            return [self.positions] * len(self.blocks)
        return [NO_POSITIONS] * len(self.blocks)

    def run(self, block: nn.Module) -> Callable[..., Tensor]:
        """The block itself, or in training, if asked for, the block with activation
        checkpointing."""
        if self.recompute and self.training:
            return partial(checkpoint, block, use_reentrant=False)
        return block

    def grid(self, images: Tensor) -> Grid:
        """(h, w), the patches of these images."""
        return images.shape[-2] // self.config.stride, images.shape[-1] // self.config.stride

    def layer_of(self, name: str) -> int:
        """The layer that a parameter belongs to, by its name: 0 is the embedding, then the blocks
        from 1, L + 1 is what follows them."""
        part, _, rest = name.partition(".")
        if part == "blocks" or (part == "positions" and self.config.injected == "every"):
            return int(rest.partition(".")[0]) + 1
        if part in ("stem", "cls", "registers", "positions"):
            return 0
        return len(self.blocks) + 1

    def init_weights(self) -> None:
        """The official initialisation: zero class token and head, the rest by each module's
        rule."""
        if self.cls is not None:
            nn.init.zeros_(self.cls)
        if self.registers is not None:
            nn.init.normal_(self.registers, std=0.02)  # as positions: they must not all be the same
        if self.representation is not None:
            lecun_normal_(self.representation.weight)
            nn.init.zeros_(self.representation.bias)
        init_head(self.head, self.config.head_bias)
        init_children(self)
