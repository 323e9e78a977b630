"""The Vision Transformer (Section 3.1): Equations 1 to 4, in the paper's order.

Read `features` first: it is the whole model. Equation 1 is `embed`, Equations 2 and 3 are in
block.py, attention in attention.py, and what the head reads (Equation 4) in pooling.py.

Legend: B batch, C channels, P patch size, (h, w) the grid of patches, N = h·w patches, T tokens
(the patches, and the class token and registers before them), Q the first tokens that the last block
answers for, D width, L blocks, K classes.
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
    """Images to class logits, by way of `embed`, `encoder`, the pooling, and `head`.

    Build one with `create()`: the constructor only gives the parameters their shapes.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = config

        # Eq. 1: E, which projects patches of the image, or of a ResNet's feature map (the hybrid)
        if config.stem is None:
            self.stem = Patches(config.channels, config.patch, config.width)
        else:
            self.stem = ResNetStem(
                config.channels, config.patch, config.width, config.stem, config.image
            )

        # Eq. 1: x_class, and E_pos
        self.cls = None
        if config.has_class_token:
            self.cls = nn.Parameter(torch.empty(1, 1, config.width))
        self.registers = None
        if config.registers:
            self.registers = nn.Parameter(torch.empty(1, config.registers, config.width))
        self.positions = build_positions(config)
        self.dropout = nn.Dropout(config.dropout)

        # Eq. 2 and 3: L blocks. The rate of stochastic depth grows linearly, from 0 at the first.
        last = max(config.depth - 1, 1)
        rates = [config.stochastic_depth * i / last for i in range(config.depth)]
        self.blocks = nn.ModuleList(BLOCKS[config.mixer](config, rate) for rate in rates)

        # Eq. 4: LN, and y
        self.norm = nn.LayerNorm(config.width, config.eps)
        self.pool = POOL[config.pool](config)

        # The head: one layer, with a hidden one before it in pre-training
        self.representation = None
        if config.representation:
            self.representation = nn.Linear(config.width, config.representation)
        features = config.representation or config.width
        self.head = nn.Identity()
        if config.classes and config.pool == "distilled":
            self.head = DistilledHead(features, config.classes)
        elif config.classes:
            self.head = nn.Linear(features, config.classes)

        # Activation checkpointing: keep only the blocks' inputs for the backward pass.
        self.recompute = False
        # Set by for_inference, whose models must be neither trained nor saved.
        self.inference_only = False

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) normalised images -> (B, K) logits, or the features if there is no head."""
        return self.head(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """What the head reads: (B, C, H, W) -> (B, D).

        With a class token the last block computes that token alone. `pool="none"` gives (B, T, D),
        "distilled" the states of two tokens in a row, (B, 2·D); a representation layer makes D its
        width.
        """
        grid = self.grid(images)
        z = self.embed(images)  # (B, T, D)  Eq. 1
        z = self.encoder(z, grid, queries=self.pool.queries)  # (B, Q, D)  Eq. 2 and 3, L times; LN
        y = self.pool(z)  # (B, D)     Eq. 4: the class token, the mean of the patches, or MAP
        if self.config.norm == "pooled":
            y = self.norm(y)  # MAE, and timm with mean pooling, normalise here
        if self.representation is not None:
            y = torch.tanh(self.representation(y))  # the hidden layer of pre-training
        return y

    def encode(self, images: Tensor) -> Tensor:
        """Every token's final state, for inspection or dense use: (B, C, H, W) -> (B, T, D)."""
        return self.encoder(self.embed(images), self.grid(images))

    def embed(self, images: Tensor) -> Tensor:
        """Eq. 1: (B, C, H, W) normalised images -> (B, T, D), tokens with their positions."""
        x = self.patch_embed(images)  # (B, N, D)  x_p E
        return self.add_positions(x, self.grid(images))  # (B, T, D)  [x_class; x_p E] + E_pos

    def patch_embed(self, images: Tensor) -> Tensor:
        """x_p E of Eq. 1: (B, C, H, W) -> (B, N, D), in raster order, before anything is added.

        Raises ValueError for images that are not normalised floating point numbers, or that cannot
        be cut into patches.
        """
        check_images(images, self.config.channels)
        x = self.stem(images)  # (B, D, h, w)
        return x.flatten(2).mT  # (B, N, D)

    def add_positions(self, x: Tensor, grid: Grid) -> Tensor:
        """The rest of Eq. 1, [x_class; x_p E] + E_pos: (B, N, D) -> (B, T, D)."""
        # Under autocast patches come in bfloat16; the residual stream keeps the weights' precision.
        x = x.to(self.norm.weight.dtype)
        x = self.prepend_tokens(x)  # (B, T, D)
        if self.config.resolved_inject == "stem":
            x = self.positions.add(x, grid)
        return self.dropout(x)

    def prepend_tokens(self, x: Tensor) -> Tensor:
        """The class token, then the registers, before the patches: (B, N, D) -> (B, T, D)."""
        tokens = [token for token in (self.cls, self.registers) if token is not None]
        if not tokens:
            # `.mT` left a transposed layout, which would make every block up to a tenth slower.
            return x.contiguous()
        batch = x.shape[0]  # not len(x), which an exporter takes for a constant
        tokens = [token.expand(batch, -1, -1) for token in tokens]
        return torch.cat([*tokens, x], 1)

    def encoder(
        self, x: Tensor, grid: Grid, mask: Tensor | None = None, queries: int | None = None
    ) -> Tensor:
        """Eq. 2 and 3, L times, and the LayerNorm of Eq. 4: (B, T, D) -> (B, T, D).

        queries: how many of the first tokens are wanted, (B, Q, D); None for all. Saves most of the
        last block's work.

        mask: bool, broadcast to (B, H, T, T), True where a token (row) may look at another
        (column): several images in one sequence, or images of several sizes in a batch.

        If positions were added at the stem, some of an image's tokens will do, as in masked
        autoencoders. If config.norm is "pooled", the LayerNorm comes after the pooling instead.
        """
        last = len(self.blocks) - 1
        for i, positions in enumerate(self.block_positions()):
            # Every block reads all tokens of the one before, so only the last may leave some out.
            block_queries = None
            if i == last:
                block_queries = queries
            x = positions.add(x, grid)  # nothing, if they were added at the stem
            block = self.with_checkpointing(self.blocks[i])
            x = block(
                x,
                grid=grid,
                positions=positions.in_attention(grid),
                mask=mask,
                queries=block_queries,
            )
        if self.config.norm == "tokens":
            x = self.norm(x)
        return x

    def block_positions(self) -> list[nn.Module]:
        """The positions that enter at each block; none if they were added at the stem."""
        if self.config.resolved_inject == "every":
            return list(self.positions)
        if self.config.resolved_inject == "shared":
            return [self.positions] * len(self.blocks)
        return [NO_POSITIONS] * len(self.blocks)

    def with_checkpointing(self, block: nn.Module) -> Callable[..., Tensor]:
        """The block, which is computed again in the backward pass if `recompute` asks for that."""
        if self.recompute and self.training:
            return partial(checkpoint, block, use_reentrant=False)
        return block

    def grid(self, images: Tensor) -> Grid:
        """(h, w), the patches of these images."""
        return images.shape[-2] // self.config.stride, images.shape[-1] // self.config.stride

    def layer_of(self, name: str) -> int:
        """The layer that a parameter belongs to, by its name.

        0 is the embedding (Eq. 1), 1 to L are the blocks, L + 1 is what follows them.
        """
        part, _, rest = name.partition(".")
        # With a table for every block, "positions.3.table" is the fourth block's.
        if part == "blocks" or (part == "positions" and self.config.resolved_inject == "every"):
            return int(rest.partition(".")[0]) + 1
        if part in ("stem", "cls", "registers", "positions"):
            return 0
        return len(self.blocks) + 1

    def init_weights(self) -> None:
        """The official initialisation: class token and head of zeros, the rest by each module's
        own."""
        if self.cls is not None:
            nn.init.zeros_(self.cls)
        if self.registers is not None:
            # As positions: if they were all the same, they would stay the same.
            nn.init.normal_(self.registers, std=0.02)
        if self.representation is not None:
            lecun_normal_(self.representation.weight)
            nn.init.zeros_(self.representation.bias)
        init_head(self.head, self.config.head_bias)
        init_children(self)
