"""The Vision Transformer (Section 3.1), Equations 1 to 4 in order.

Legend: B batch, C channels, N patches, T tokens (N, plus the class token), D width, K classes, (h, w) grid, P patch size.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitkit.models.attention import Within
from vitkit.models.axial import AxialBlock
from vitkit.models.backbone import Grid
from vitkit.models.block import Block
from vitkit.models.config import READS, WITHIN, ViTConfig
from vitkit.models.init import init_children, lecun_normal_
from vitkit.models.pooling import POOL, AttentionPool, DistilledHead
from vitkit.models.positions import positions
from vitkit.models.resnet import ResNetStem
from vitkit.models.stems import Patches

BLOCKS = {"full": Block, "axial": AxialBlock}


class VisionTransformer(nn.Module):
    """Images to class logits, by way of `embed`, `encode` or `features`, and `head`.

    Build one with `create()`: the constructor only gives the parameters their shapes.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = config
        self.stem = (
            ResNetStem(config.channels, config.patch, config.width, config.stem, config.image)
            if config.stem
            else Patches(config.channels, config.patch, config.width)
        )
        self.cls = (
            nn.Parameter(torch.empty(1, 1, config.width))
            if config.prefix > config.registers
            else None
        )
        self.registers = (
            nn.Parameter(torch.empty(1, config.registers, config.width))
            if config.registers
            else None
        )
        self.positions = positions(config)
        self.dropout = nn.Dropout(config.dropout)
        rates = [
            config.stochastic_depth * i / max(config.depth - 1, 1) for i in range(config.depth)
        ]
        self.blocks = nn.ModuleList(BLOCKS[config.mixer](config, rate) for rate in rates)
        self.norm = nn.LayerNorm(config.width, config.eps)
        self.pool = AttentionPool(config) if config.pool == "map" else None
        self.representation = (
            nn.Linear(config.width, config.representation) if config.representation else None
        )
        head = DistilledHead if config.pool == "distilled" else nn.Linear
        self.head = (
            head(config.representation or config.width, config.classes)
            if config.classes
            else nn.Identity()
        )
        self.tokens_read = READS.get(config.pool)  # how many of the last states the pooling reads
        self.recompute = (
            False  # activation checkpointing: keep only the blocks' inputs for the backward pass
        )

    def embed(self, images: Tensor) -> Tensor:
        """Eq. 1: (B, C, H, W) normalised images -> (B, T, D) tokens with their positions."""
        return self.place(self.patches(images), self.grid(images))

    def patches(self, images: Tensor) -> Tensor:
        """x_p E of Eq. 1: (B, C, H, W) -> (B, N, D), the patches' embeddings in raster order, before anything is added."""
        if (
            images.ndim != 4
            or images.shape[1] != self.config.channels
            or not images.is_floating_point()
        ):
            raise ValueError(
                f"images must be floating point, normalised, of shape (batch, {self.config.channels}, height, width); "
                f"these are {images.dtype} of shape {tuple(images.shape)}"
            )
        return self.stem(images).flatten(2).mT  # (B, D, h, w) -> (B, N, D)

    def place(self, x: Tensor, grid: Grid) -> Tensor:
        """The rest of Eq. 1: (B, N, D) -> (B, T, D), tokens before the patches, and every token's position in the grid."""
        # x.shape[0], for an exporter takes len(x) for a constant
        prefix = [
            token.expand(x.shape[0], -1, -1)
            for token in (self.cls, self.registers)
            if token is not None
        ]
        if prefix:
            x = torch.cat([*prefix, x], 1)  # (B, T, D), the class token first
        else:
            x = (
                x.contiguous()
            )  # every block would inherit the transposed layout, and be up to a tenth slower
        if self.config.injected == "stem" and self.positions is not None:
            x = x + self._added(self.positions, grid, x.device)
        return self.dropout(x)

    def encode(self, images: Tensor) -> Tensor:
        """Every token's final state: (B, C, H, W) -> (B, T, D), for inspection or dense use."""
        return self.states(self.embed(images), self.grid(images))

    def states(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Eq. 2 and 3, and the norm of Eq. 4 where it is every token's: (B, T, D) -> (B, T, D). With positions that were
        added at the stem, any part of an image's tokens will do, as masked autoencoders do."""
        x = self._blocks(tokens, grid)
        return self.norm(x) if self.config.norm == "tokens" else x

    def features(self, images: Tensor) -> Tensor:
        """What the head reads: (B, C, H, W) -> (B, D), and no more work than that needs.

        With a class token the last block answers for that token alone. `pool="none"` gives (B, T, D), "distilled" both
        tokens' states in a row, (B, 2·D); a representation layer makes D its width.
        """
        x, early = (
            self._blocks(self.embed(images), self.grid(images), self.tokens_read),
            self.config.norm == "tokens",
        )
        x = self.norm(x) if early else x
        x = self.pool(x) if self.pool else POOL[self.config.pool](x, self.config.prefix)
        x = x if early else self.norm(x)  # y of Eq. 4, one way or the other
        return x if self.representation is None else torch.tanh(self.representation(x))

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, K) logits, or the features where there is no head."""
        return self.head(self.features(images))

    def grid(self, images: Tensor) -> Grid:
        """(h, w), the patches of these images."""
        return images.shape[-2] // self.config.stride, images.shape[-1] // self.config.stride

    def _blocks(self, x: Tensor, grid: Grid, first: int | None = None) -> Tensor:
        """Eq. 2 and 3, L times; the last block only for the `first` tokens, or for all."""
        last = len(self.blocks) - 1
        for i, block in enumerate(self.blocks):
            run = (
                partial(checkpoint, block, use_reentrant=False)
                if self.recompute and self.training
                else block
            )
            x, within = self._placed(x, i, grid)
            x = (
                run(x, grid)
                if self.config.mixer == "axial"
                else run(x, first if i == last else None, within)
            )
        return x

    def _placed(self, x: Tensor, layer: int, grid: Grid) -> tuple[Tensor, Within | None]:
        """The tokens with what is added to them at this block, and what acts within its attention."""
        if self.config.injected == "stem" or self.positions is None:
            return x, None
        where = self.positions[layer] if self.config.injected == "every" else self.positions
        if self.config.positions in WITHIN:
            return x, partial(where, grid=grid)
        return x + self._added(where, grid, x.device), None

    def _added(self, where: nn.Module, grid: Grid, device: torch.device) -> Tensor:
        """(1, T, D), in the weights' precision, which fixed positions cannot know."""
        return where(grid, device).to(self.norm.weight.dtype)

    def init_weights(self) -> None:
        """The official initialisation: zero class token and head, the rest by each module's own rule."""
        if self.cls is not None:
            nn.init.zeros_(self.cls)
        if self.registers is not None:
            nn.init.normal_(
                self.registers, std=0.02
            )  # as the positions; they must not all be the same
        if self.representation is not None:
            lecun_normal_(self.representation.weight)
            nn.init.zeros_(self.representation.bias)
        for layer in self.head.modules():
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.weight)
                nn.init.constant_(layer.bias, self.config.head_bias)
        init_children(self)
