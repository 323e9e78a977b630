"""Every setting of a Vision Transformer as one frozen value, and properties derived from them. zoo.py has
the sizes of Table 1, config_checks.py the conditions on the settings."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from vitkit.models.ancestors.backbone import Backbone, backbone_from
from vitkit.models.config_checks import POSITION_KINDS, PositionKind, are_sides, check
from vitkit.models.pooling import POOLS, Pool, PoolName
from vitkit.models.tiling import Grid, Tiling, as_pair, as_side
from vitkit.system.errors import BadSettings


@dataclass(frozen=True)
class ViTConfig:
    """Everything that decides a Vision Transformer's shape and arithmetic. The defaults are
    ViT-B/16 (Table 1)."""

    kind: ClassVar[str] = "vit"
    """The name of this kind of model in JSON."""
    title: ClassVar[str] = "Vision Transformer"
    """The usual name of such models."""

    width: int = 768
    """D, the width of every token's state."""
    depth: int = 12
    """L, the number of blocks; an axial block is two, one for rows and one for columns."""
    mlp: int = 3072
    """Hidden width of a block's MLP."""
    heads: int = 12
    """Attention heads; each is width / heads wide."""
    patch: int | tuple[int, int] = 16
    """P, the side of a patch in pixels, or its height and width; of a hybrid, in positions of the
    ResNet's last feature map, each of which is `stem.stride` pixels."""
    image: tuple[int, int] = (224, 224)
    """Height and width for which the position table is made; for other sizes it is resampled."""
    channels: int = 3
    """C, channels of the image."""
    classes: int = 1000
    """K; 0: no head, and the model returns its features."""
    pool: PoolName = "token"
    """What the head reads. "token": the class token; "distilled": that and the distillation token
    (DeiT: a classifier for each, averaged); "token-gap": the class token and the mean of the patches,
    concatenated (DINOv2's linear classifier); "token-quarters": the class token and the means of the
    patches in the four quarters of the image; "token-gap-quarters": all of these; "token-pyramid": these
    and the means in 4 x 4 parts of the image; "gap": the mean of the patches (App. D.3, trained with a
    learning rate of 3e-4, the token with 8e-4); "map": an attention pooling; "corner": the first patch
    (the published Axial-ViT); "memory": the anomaly score, one number: how far the image's patches are from
    those of a memory bank (PatchCore); "none": every token, each with its own output; "patches": every
    patch, whose logits are interpolated to the pixels of the image (semantic segmentation)."""
    read_blocks: int = 1
    """Number of blocks, counted from the last, from which the head reads the tokens of `pool`,
    concatenated, each after the last LayerNorm (4 in DINO's linear protocol); 1 in the paper."""
    memory: int = 0
    """M, the number of patches in the memory bank of the pooling "memory"; 0 for other poolings."""
    class_token: bool | None = None
    """Whether there is a class token; None: only if the pooling reads it, as in the official
    code."""
    registers: int = 0
    """Learned tokens after the class token; DeiT's distillation token is one, DINOv2's registers
    are four."""
    norm: Literal["tokens", "pooled"] = "tokens"
    """Input of the last LayerNorm: every token (Eq. 4), or the pooled vector (MAE and timm with
    mean pooling)."""
    representation: int = 0
    """Width of the hidden layer with tanh before the head, used in pre-training (Section 3.1); 0: no such
    layer."""
    head_bias: float = 0.0
    """Initial value of the head's bias; -10 is used with the sigmoid loss on ImageNet-21k."""
    dropout: float = 0.0
    """Rate of dropout after the positions and after every dense layer but q, k and v (App. B.1)."""
    attention_dropout: float = 0.0
    """Rate of dropout of the attention weights."""
    stochastic_depth: float = 0.0
    """Probability of dropping a residual branch of the last block; the probability grows linearly
    with the block's number, from 0 at the first."""
    gelu: Literal["tanh", "erf", "quick", "relu", "silu"] = "tanh"
    """Form of the GELU: "tanh" in Google's weights, "erf" in most others, and "quick", x
    sigmoid(1.702 x), in OpenAI's CLIP. Or a different activation: "relu" or "silu"."""
    qkv_bias: bool = True
    """Whether the queries, keys and values of the blocks have biases, as in the official code; the
    equations have none. Published weights without them are loaded with biases of zero."""
    swiglu: bool = False
    """Whether the blocks' MLP is a SwiGLU, silu(x W1) * (x W2) and then W3, instead of two layers with a
    GELU between them (DINOv2's giant). W1 and W2 have `mlp` outputs each. Does not change the MLP of a MAP
    head."""
    eps: float = 1e-6
    """Epsilon of every LayerNorm."""
    branch_norm: Literal["before", "after"] = "before"
    """Where the LayerNorm of a residual branch is: before attention and MLP (Eq. 2, 3), or after
    them (Swin v2, timm's "rpn")."""
    embedding_norm: bool = False
    """Whether there is a LayerNorm between the positions and the first block, as in CLIP; image
    patches are then projected without a bias."""
    rms_norm: bool = False
    """Whether every LayerNorm is an RMSNorm, which subtracts no mean and has no bias (ViT-5): x /
    sqrt(mean(x²) + eps), times a learned factor."""
    qk_norm: bool = False
    """Whether the queries and the keys of each head of the blocks are normalised (ViT-22B, ViT-5) before
    positions rotate them. Does not change the attention of a MAP head."""
    layer_scale: float | None = None
    """Initial value of a learned factor for every channel of a branch (LayerScale; DINOv2, DeiT
    III); None: no such factors."""
    positions: Literal[
        "none",
        "learned",
        "learned2d",
        "relative",
        "sincos",
        "sincos-1d",
        "sincos-moco",
        "sincos-mae",
        "rotary",
        "rotary-axial",
        "rotary-timm",
        "rotary-dinov3",
    ] = "learned"
    """Position embedding (App. D.4). A learned vector: "learned" for every token (the paper),
    "learned2d" for every column and row, "relative" for every offset between two tokens. Fixed
    sines and cosines: "sincos" (big_vision), "sincos-moco" (MoCo v3), "sincos-mae" (MAE), and
    "sincos-1d" of the patch's number in raster order (Vaswani et al. 2017). Rotated queries and keys:
    "rotary", which is stretched over other grids; "rotary-axial" (RoPE-ViT's axial form), which is
    extrapolated there; "rotary-timm" (timm's "rope_reg" models) and "rotary-dinov3". "none": no
    positions."""
    inject: Literal["stem", "every", "shared"] | None = None
    """Where positions are added. "stem": once, before the first block; "every": at every block, with a
    table for each; "shared": at every block, with one table for all. None: "stem", but "every" for
    relative and "shared" for rotary positions, which act within attention."""
    prefix_positions: int | None = None
    """Number of the tokens before the patches, counted from the first, that have a row in the
    position table; None: all if positions are learned or learned2d, else none."""
    position_grid: tuple[int, int] | None = None
    """(h, w), the grid on which rotary positions were trained; positions of another grid are scaled to its
    extent. None: the grid of `image`. A resized model keeps it."""
    resample: Literal["google", "timm", "huggingface", "torchvision", "siglip2"] = "google"
    """How positions are resampled to another grid."""
    stride: int | tuple[int, int] | None = None
    """Distance from one patch to the next, in the form of `patch`. If it is smaller than the patch,
    patches overlap, and there are more of them. None: the patch size, so that patches do not overlap
    (the paper)."""
    stem: Backbone | None = None
    """The ResNet of a hybrid, whose last feature map is cut into patches; None: the image itself is
    cut."""
    mixer: Literal["full", "axial"] = "full"
    """What a token attends to. "full": every token; "axial": its row, then its column (Axial-ViT,
    App. D.6)."""

    def __post_init__(self):
        self._accept_json_types()
        check(self)

    def _accept_json_types(self) -> None:
        """Accept JSON types, a list for a tuple and a dict for a stem, and one number for a square.

        Equal settings become identical: a patch of 16 x 16 becomes 16.
        """
        # The only way to set fields of a frozen dataclass
        object.__setattr__(self, "image", as_pair(self.image))
        object.__setattr__(self, "patch", as_side(self.patch))
        object.__setattr__(self, "stride", as_side(self.stride))
        if self.stride == self.patch:
            object.__setattr__(self, "stride", None)
        if isinstance(self.position_grid, list):
            object.__setattr__(self, "position_grid", tuple(self.position_grid))
        if self.stem is not None:
            object.__setattr__(self, "stem", backbone_from(self.stem))

    @property
    def grid(self) -> Grid:
        """(h, w), the patches of an image of the position table's size."""
        return self.tiling.grid(self.image)

    @property
    def patches(self) -> Tiling:
        """The tiling of the map that is cut into patches: the image, or the feature map of a
        hybrid's ResNet."""
        size = as_pair(self.patch)
        if self.stride is None:
            return Tiling(size, size)
        return Tiling(size, as_pair(self.stride))

    @property
    def tiling(self) -> Tiling:
        """The tiling of the image, in pixels; for a hybrid, the regions of the image under the
        patches of the feature map."""
        if self.stem is None:
            return self.patches
        return self.patches.scaled(self.stem.stride)

    @property
    def blocks_built(self) -> int:
        """The number of blocks and residual units that `build` makes, including those of a hybrid's stem."""
        if self.stem is None:
            return self.depth
        return self.depth + sum(self.stem.units)

    @property
    def has_class_token(self) -> bool:
        """Whether there is a class token: `class_token`, or whether the pooling reads one."""
        if self.class_token is None:
            return self.pooling.reads_class_token
        return self.class_token

    @property
    def prefix(self) -> int:
        """The number of tokens before the patches: the class token, if there is one, and the registers."""
        return int(self.has_class_token) + self.registers

    @property
    def position_kind(self) -> PositionKind:
        """The properties of this kind of position embedding."""
        return POSITION_KINDS[self.positions]

    @property
    def prefix_rows(self) -> int:
        """The number of tokens before the patches, counted from the first, that have a row in the
        position table."""
        if self.prefix_positions is not None:
            return self.prefix_positions
        if self.position_kind.has_prefix_rows:
            return self.prefix
        return 0

    @property
    def resolved_inject(self) -> Literal["stem", "every", "shared"]:
        """Where positions are added: `inject`, or the default of their kind."""
        return self.inject or self.position_kind.default_inject

    @property
    def pooling(self) -> Pool:
        """The properties of this kind of pooling."""
        return POOLS[self.pool]

    @property
    def pooled_width(self) -> int:
        """The width of the pooled state."""
        if self.pooling.compares_patches:
            return 1
        return self.read_blocks * self.pooling.states * self.width

    @property
    def reads(self) -> str:
        """A description of what the head reads."""
        if self.read_blocks == 1:
            return f'"{self.pool}"'
        return f'"{self.pool}" of {self.read_blocks} blocks'

    @property
    def pools(self) -> bool:
        """Whether the model has one output per image, rather than one for every token or pixel."""
        return self.pool != "none" and not self.segments

    @property
    def segments(self) -> bool:
        """Whether the model classifies every pixel: its logits are (B, K, H, W), a map for each class."""
        return self.pool == "patches"

    def fitting(self, image: Grid) -> Grid:
        """The largest (height, width) not above `image` that whole patches cover; at least one patch."""
        return self.tiling.fitting(image)

    def resized(self, image: Grid, method: str | None = None) -> "ViTConfig":
        """The configuration for images of this (height, width).

        `method` resamples its positions (one of RESAMPLE); None keeps the model's own. Raises VitkitError for
        a size that whole patches do not cover, and for a new grid if positions are relative.
        """
        return self._on_another_grid(image=tuple(image), resample=method or self.resample)

    def with_stride(
        self, stride: int | Grid | None, image: Grid | None = None, method: str | None = None
    ) -> "ViTConfig":
        """The configuration with patches at other distances, which may overlap; None: the patch size.

        The `stride` is in pixels of the image, also for a hybrid. Without `image` the configuration is for the
        largest image, not above its own, that the patches cover. Raises VitkitError as `resized` does, for a
        stride larger than the patch, and for one between the positions of a hybrid's feature map.
        """
        if self.stem is not None and stride is not None and are_sides(stride):
            stride = self._in_positions(as_pair(stride), self.stem.stride)
        if image is None:
            # Valid for every stride
            one_patch = replace(self, stride=stride, image=self.tiling.size)
            image = one_patch.fitting(self.image)
        return self._on_another_grid(
            stride=stride, image=tuple(image), resample=method or self.resample
        )

    def _in_positions(self, stride: Grid, apart: int) -> Grid:
        """Convert a hybrid's stride from pixels to positions, which are `apart` pixels apart."""
        height, width = self.tiling.size
        if stride[0] > height or stride[1] > width or stride[0] % apart or stride[1] % apart:
            raise BadSettings(
                f"a stride of {stride[0]} x {stride[1]} pixels does not go with this hybrid: its "
                f"patches are of {height} x {width} pixels, and begin where its ResNet's feature map "
                f"has a position, every {apart} pixels; choose a multiple of {apart}, up to the patch"
            )
        return stride[0] // apart, stride[1] // apart

    def _on_another_grid(self, **changes) -> "ViTConfig":
        """The configuration with changes that may change its grid."""
        new = replace(self, **changes)
        if new.grid == self.grid:
            return new
        kind = self.position_kind
        if not kind.any_grid:
            raise BadSettings(
                f"{self.positions} positions of {self.grid[0]} x {self.grid[1]} patches have no "
                f"meaning on {new.grid[0]} x {new.grid[1]}: in raster order an offset is another "
                "direction there"
            )
        if kind.keeps_trained_grid:
            new = replace(new, position_grid=self.position_grid or self.grid)
        return new

    def with_head(self, classes: int) -> "ViTConfig":
        """The configuration with a new head for this many classes directly on the pooled state (Section 3.2),
        or without a head for 0. A memory bank goes with its head: the new one reads the class token, or the
        mean of the patches."""
        config = self
        if self.pooling.compares_patches:
            pool: PoolName = "token" if self.has_class_token else "gap"
            config = replace(self, pool=pool, read_blocks=1, memory=0)
        return replace(config, classes=classes, head_bias=0.0, representation=0)

    def headless(self) -> "ViTConfig":
        """The configuration of the encoder without a head.

        If only a vitkit head combines several states, the class token of the last block remains, which every
        library can return.
        """
        headless = replace(self.with_head(0), read_blocks=1)
        if self.pooling.extends_class_token:
            headless = replace(headless, pool="token")
        return headless
