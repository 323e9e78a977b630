"""The Vision Transformer (Section 3.1), Equations 1 to 4 in order.

Legend: B batch, C channels, N patches, T tokens (N, plus the class token), D width, K classes, (h, w) grid, P patch size.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitkit.models.attention import Attention
from vitkit.models.init import lecun_normal_
from vitkit.models.positions import POSITIONS, RESAMPLE, Grid
from vitkit.models.stems import Patches

SIZES = {
    "mu": {"width": 32, "depth": 1, "mlp": 128, "heads": 2},
    "Ti": {"width": 192, "depth": 12, "mlp": 768, "heads": 3},
    "S": {"width": 384, "depth": 12, "mlp": 1536, "heads": 6},
    "M": {"width": 512, "depth": 12, "mlp": 2048, "heads": 8},
    "B": {"width": 768, "depth": 12, "mlp": 3072, "heads": 12},  # B, L, H: Table 1
    "L": {"width": 1024, "depth": 24, "mlp": 4096, "heads": 16},
    "So400m": {"width": 1152, "depth": 27, "mlp": 4304, "heads": 16},
    "H": {"width": 1280, "depth": 32, "mlp": 5120, "heads": 16},
    "g": {"width": 1408, "depth": 40, "mlp": 6144, "heads": 16},
    "g-opt": {"width": 1536, "depth": 40, "mlp": 6144, "heads": 16},
    "G": {"width": 1664, "depth": 48, "mlp": 8192, "heads": 16},
    "G-opt": {"width": 1536, "depth": 48, "mlp": 8192, "heads": 16},
    "e": {"width": 1792, "depth": 56, "mlp": 15360, "heads": 16},
}
GELU = {"tanh": partial(nn.GELU, approximate="tanh"), "erf": nn.GELU}


@dataclass(frozen=True)
class ViTConfig:
    """Everything that decides a Vision Transformer's shape and arithmetic. The defaults are ViT-B/16 (Table 1)."""

    width: int = 768
    """D, the size of every token's state."""
    depth: int = 12
    """L, the number of blocks."""
    mlp: int = 3072
    """Hidden width of a block's MLP."""
    heads: int = 12
    """Attention heads; each is width / heads wide."""
    patch: int = 16
    """P, the side of a square patch in pixels."""
    image: tuple[int, int] = (224, 224)
    """Height and width that the position table is made for; other sizes resample it."""
    channels: int = 3
    """C, channels of the image."""
    classes: int = 1000
    """K; 0 leaves the head out, and the model returns its features."""
    pool: Literal["token", "distilled", "gap", "map", "none"] = "token"
    """What the head reads: the class token, that and the distillation token (DeiT: a head each, averaged), the mean of the
    patches, an attention pooling, or every token."""
    class_token: bool | None = None
    """Whether there is one; left open: only where the head reads it, as in the official code."""
    registers: int = 0
    """Learned tokens after the class token; DeiT's distillation token is one, DINOv2's registers are four."""
    norm: Literal["tokens", "pooled"] = "tokens"
    """What the last LayerNorm sees: every token (Eq. 4), or the pooled vector (MAE and timm with mean pooling)."""
    representation: int = 0
    """Width of the hidden tanh layer before the head, used in pre-training (Section 3.1); 0 is none."""
    head_bias: float = 0.0
    """First value of the head's bias; -10 goes with the sigmoid loss on ImageNet-21k."""
    dropout: float = 0.0
    """After the positions and after every dense layer but q, k and v (App. B.1)."""
    attention_dropout: float = 0.0
    """Of the attention weights."""
    stochastic_depth: float = 0.0
    """Chance of leaving out a branch of the last block; grows linearly from 0 at the first."""
    gelu: Literal["tanh", "erf"] = "tanh"
    """Form of the GELU: tanh in Google's weights, erf in most others."""
    eps: float = 1e-6
    """Of every LayerNorm."""
    layer_scale: float | None = None
    """First value of a learned factor for every channel of a branch (LayerScale; DINOv2, DeiT III); None is none."""
    positions: Literal["learned", "sincos"] = "learned"
    """Position embedding: a learned table (the paper), or fixed sines and cosines (big_vision)."""
    prefix_positions: int | None = None
    """How many of the tokens before the patches have a position of their own; left open: all of a learned table."""
    resample: Literal["google", "timm", "huggingface", "torchvision"] = "google"
    """How positions are carried to another grid."""

    def __post_init__(self):
        if isinstance(self.image, int):
            object.__setattr__(self, "image", (self.image, self.image))
        object.__setattr__(self, "image", tuple(self.image))
        for name in ("width", "depth", "mlp", "heads", "patch", "channels"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be a whole number of at least 1")
        for name in ("classes", "representation", "registers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        for name in ("dropout", "attention_dropout", "stochastic_depth"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it is a probability from 0 up to, not including, 1")
        if self.width % self.heads:
            raise ValueError(f"a width of {self.width} cannot be split among {self.heads} heads; choose a divisor")
        if len(self.image) != 2 or any(side < self.patch or side % self.patch for side in self.image):
            raise ValueError(
                f"an image of {' x '.join(map(str, self.image))} pixels cannot be cut into patches of {self.patch} x "
                f"{self.patch}; choose multiples of {self.patch}"
            )
        choices = {
            "pool": POOL,
            "gelu": GELU,
            "positions": POSITIONS,
            "resample": RESAMPLE,
            "norm": ("tokens", "pooled"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it is one of {', '.join(known)}")
        if self.pool in READS and self.class_token is False:
            raise ValueError(
                f'pool is "{self.pool}" but class_token is False; choose "gap" or "map", or keep the token'
            )
        if self.pool == "distilled" and (not self.registers or self.representation):
            raise ValueError(
                f'pool is "distilled" with {self.registers} registers and a representation layer of {self.representation}; '
                "it reads the first register, and has no representation layer"
            )
        if self.positions == "sincos" and self.width % 4:
            raise ValueError(
                f"a width of {self.width} cannot hold sines and cosines of x and y; choose a multiple of 4"
            )
        if not 0 <= self.position_rows <= (0 if self.positions == "sincos" else self.prefix):
            raise ValueError(
                f"prefix_positions is {self.prefix_positions}; there are {self.prefix} tokens before the patches, and "
                f"{self.positions} positions"
            )

    @property
    def grid(self) -> Grid:
        """(h, w), the patches of the image that the position table is made for."""
        return self.image[0] // self.patch, self.image[1] // self.patch

    @property
    def prefix(self) -> int:
        """Tokens before the patches: the class token, if there is one, and the registers."""
        return int(self.pool in READS if self.class_token is None else self.class_token) + self.registers

    @property
    def position_rows(self) -> int:
        """How many of those have a row in the position table."""
        if self.prefix_positions is None:
            return self.prefix if self.positions == "learned" else 0
        return self.prefix_positions


def vit(name: str, **changes) -> ViTConfig:
    """The configuration of a named model: `vit("B/16")`, `vit("L/14", image=(256, 192), classes=10)`.

    A name is a size of Table 1 (or a later official one) and a patch size in pixels, as the paper writes it. The image
    is 224 x 224 unless told, and a patch that does not divide 224 takes the multiple just below.
    """
    size, _, patch = name.partition("/")
    if size not in SIZES or not patch.isdecimal() or int(patch) < 1:
        near = get_close_matches(name, [f"{s}/{patch or 16}" for s in SIZES], 1, 0.3)
        raise ValueError(
            f"no model {name!r}{f'; did you mean {near[0]!r}' if near else ''}? A name is SIZE/PATCH, such as 'B/16'; "
            f"sizes are {', '.join(SIZES)}"
        )
    patch = int(patch)
    config = ViTConfig(**SIZES[size], patch=patch, image=max(224 // patch, 1) * patch)
    known = [field.name for field in fields(ViTConfig)]
    if unknown := [key for key in changes if key not in known]:
        near = get_close_matches(unknown[0], known, 1)
        raise ValueError(f"no setting {unknown[0]!r}{f'; did you mean {near[0]!r}?' if near else ''}")
    return replace(config, **changes)


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
        stays = torch.rand(len(x), 1, 1, device=x.device) >= self.rate
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

    def forward(self, x: Tensor, first: int | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D), or (B, first, D): the new state of the first tokens only."""
        y = self.norm1(x)
        asking = None if first is None else y[:, :first]
        x = x[:, :first] + self.keep(self.scale1(self.dropout(self.attention(y, asking))))  # Eq. 2
        return x + self.keep(self.scale2(self.mlp(self.norm2(x))))  # Eq. 3


class AttentionPool(nn.Module):
    """MAP, multi-head attention pooling (big_vision): a learned probe asks every token: (B, T, D) -> (B, D)."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.probe = nn.Parameter(torch.empty(1, 1, config.width))
        self.attention = Attention(config.width, config.heads)
        self.norm = nn.LayerNorm(config.width, config.eps)
        self.mlp = Mlp(config.width, config.mlp, config.gelu, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x, self.probe.expand(len(x), -1, -1))
        return (x + self.mlp(self.norm(x)))[:, 0]

    def init_weights(self) -> None:
        limit = (6 / (1 + self.probe.shape[-1])) ** 0.5  # Glorot's for a 1 x D matrix, as flax counts its fans
        nn.init.uniform_(self.probe, -limit, limit)


class DistilledHead(nn.Module):
    """DeiT's: the class token and the distillation token have a classifier each; their mean counts: (B, 2·D) -> (B, K)."""

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.token = nn.Linear(width, classes)
        self.distilled = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        token, distilled = x.chunk(2, -1)
        return (self.token(token) + self.distilled(distilled)) / 2


READS = {"token": 1, "distilled": 2}  # how many of the first tokens a pooling reads; the others read all
POOL: dict[str, Callable[[Tensor, int], Tensor] | None] = {
    "token": lambda x, prefix: x[:, 0],
    "distilled": lambda x, prefix: x[:, :2].flatten(1),
    "gap": lambda x, prefix: x[:, prefix:].mean(1),
    "map": None,  # has weights of its own: AttentionPool
    "none": lambda x, prefix: x,
}


class VisionTransformer(nn.Module):
    """Images to class logits, by way of `embed`, `encode` or `features`, and `head`.

    Build one with `create()`: the constructor only gives the parameters their shapes.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = config
        self.stem = Patches(config.channels, config.patch, config.width)
        self.cls = nn.Parameter(torch.empty(1, 1, config.width)) if config.prefix > config.registers else None
        self.registers = nn.Parameter(torch.empty(1, config.registers, config.width)) if config.registers else None
        self.positions = POSITIONS[config.positions](
            config.grid, config.prefix, config.position_rows, config.width, config.resample
        )
        self.dropout = nn.Dropout(config.dropout)
        rates = [config.stochastic_depth * i / max(config.depth - 1, 1) for i in range(config.depth)]
        self.blocks = nn.ModuleList(Block(config, rate) for rate in rates)
        self.norm = nn.LayerNorm(config.width, config.eps)
        self.pool = AttentionPool(config) if config.pool == "map" else None
        self.representation = nn.Linear(config.width, config.representation) if config.representation else None
        head = DistilledHead if config.pool == "distilled" else nn.Linear
        self.head = head(config.representation or config.width, config.classes) if config.classes else nn.Identity()
        self.tokens_read = READS.get(config.pool)  # how many of the last states the pooling reads
        self.recompute = False  # activation checkpointing: keep only the blocks' inputs for the backward pass

    def embed(self, images: Tensor) -> Tensor:
        """Eq. 1: (B, C, H, W) normalised images -> (B, T, D) tokens with their positions."""
        if images.ndim != 4 or images.shape[1] != self.config.channels or not images.is_floating_point():
            raise ValueError(
                f"images must be floating point, normalised, of shape (batch, {self.config.channels}, height, width); "
                f"these are {images.dtype} of shape {tuple(images.shape)}"
            )
        grid = self.stem(images)  # (B, D, h, w)
        x = grid.flatten(2).mT  # (B, N, D), raster order
        prefix = [token.expand(len(x), -1, -1) for token in (self.cls, self.registers) if token is not None]
        if prefix:
            x = torch.cat([*prefix, x], 1)  # (B, T, D), the class token first
        else:
            x = x.contiguous()  # every block would inherit the transposed layout, and be up to a tenth slower
        return self.dropout(x + self.positions(tuple(grid.shape[-2:]), x.device))

    def encode(self, images: Tensor) -> Tensor:
        """Every token's final state: (B, C, H, W) -> (B, T, D), for inspection, masked patches or dense use."""
        x = self._blocks(self.embed(images), None)
        return self.norm(x) if self.config.norm == "tokens" else x

    def features(self, images: Tensor) -> Tensor:
        """What the head reads: (B, C, H, W) -> (B, D), and no more work than that needs.

        With a class token the last block answers for that token alone. `pool="none"` gives (B, T, D), "distilled" both
        tokens' states in a row, (B, 2·D); a representation layer makes D its width.
        """
        x, early = self._blocks(self.embed(images), self.tokens_read), self.config.norm == "tokens"
        x = self.norm(x) if early else x
        x = self.pool(x) if self.pool else POOL[self.config.pool](x, self.config.prefix)
        x = x if early else self.norm(x)  # y of Eq. 4, one way or the other
        return x if self.representation is None else torch.tanh(self.representation(x))

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, K) logits, or the features where there is no head."""
        return self.head(self.features(images))

    def _blocks(self, x: Tensor, first: int | None) -> Tensor:
        """Eq. 2 and 3, L times; the last block only for the `first` tokens, or for all."""
        last = len(self.blocks) - 1
        for i, block in enumerate(self.blocks):
            run = partial(checkpoint, block, use_reentrant=False) if self.recompute and self.training else block
            x = run(x, first if i == last else None)
        return x

    def init_weights(self) -> None:
        """The official initialisation: zero class token and head, the rest by each module's own rule."""
        if self.cls is not None:
            nn.init.zeros_(self.cls)
        if self.registers is not None:
            nn.init.normal_(self.registers, std=0.02)  # as the positions; they must not all be the same
        if self.representation is not None:
            lecun_normal_(self.representation.weight)
            nn.init.zeros_(self.representation.bias)
        for layer in self.head.modules():
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.weight)
                nn.init.constant_(layer.bias, self.config.head_bias)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif module is not self and hasattr(module, "init_weights"):
                module.init_weights()
