"""Every setting of a Vision Transformer as one frozen value, and the sizes of Table 1."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from vitkit.models.backbone import Backbone, Grid, backbone_from, check_choices

SIZES = {
    "mu": {"width": 32, "depth": 1, "mlp": 128, "heads": 2},
    "Ti": {"width": 192, "depth": 12, "mlp": 768, "heads": 3},
    "S": {"width": 384, "depth": 12, "mlp": 1536, "heads": 6},
    "M": {"width": 512, "depth": 12, "mlp": 2048, "heads": 8},
    "B": {"width": 768, "depth": 12, "mlp": 3072, "heads": 12},  # B, L and H are Table 1's
    "L": {"width": 1024, "depth": 24, "mlp": 4096, "heads": 16},
    # Figure 4: B with all dimensions halved; the number of heads is our choice
    "b": {"width": 384, "depth": 12, "mlp": 1536, "heads": 6},
    "So400m": {"width": 1152, "depth": 27, "mlp": 4304, "heads": 16},
    "H": {"width": 1280, "depth": 32, "mlp": 5120, "heads": 16},
    "g": {"width": 1408, "depth": 40, "mlp": 6144, "heads": 16},
    "g-opt": {"width": 1536, "depth": 40, "mlp": 6144, "heads": 16},
    "G": {"width": 1664, "depth": 48, "mlp": 8192, "heads": 16},
    "G-opt": {"width": 1536, "depth": 48, "mlp": 8192, "heads": 16},
    "e": {"width": 1792, "depth": 56, "mlp": 15360, "heads": 16},
}
READS = {"token": 1, "distilled": 2}  # how many first tokens a pooling reads; others read all


@dataclass(frozen=True)
class PositionKind:
    """What a kind of position embedding asks of a configuration, and where it enters."""

    inject: Literal["stem", "every", "shared"] = "stem"
    """Where it enters unless told: before the first block, or at every block with tables of its own
    or shared ones."""
    within: bool = False
    """Whether it acts within attention, rather than being added to tokens."""
    tables: bool = False
    """Whether it has parameters."""
    prefix_rows: bool = False
    """Whether the tokens before the patches have positions too."""
    any_grid: bool = True
    """Whether it has a meaning on another grid than the one it was made for."""
    width_multiple: int = 1
    """What the width of a token must be a multiple of."""
    head_multiple: int = 1
    """What the width of a head must be a multiple of."""


POSITION_KINDS = {
    "none": PositionKind(),
    "learned": PositionKind(tables=True, prefix_rows=True),
    "learned2d": PositionKind(tables=True, prefix_rows=True, width_multiple=2),
    "relative": PositionKind("every", within=True, tables=True, any_grid=False),
    "sincos": PositionKind(width_multiple=4),
    "sincos-moco": PositionKind(width_multiple=4),
    "rotary": PositionKind("shared", within=True, head_multiple=4),
}


@dataclass(frozen=True)
class ViTConfig:
    """Everything that decides a Vision Transformer's shape and arithmetic. The defaults are
    ViT-B/16 (Table 1)."""

    kind: ClassVar[str] = "vit"
    """What this configuration is called where only its values are kept."""
    title: ClassVar[str] = "Vision Transformer"
    """What people call such models."""

    width: int = 768
    """D, the size of every token's state."""
    depth: int = 12
    """L, the number of blocks."""
    mlp: int = 3072
    """Hidden width of a block's MLP."""
    heads: int = 12
    """Attention heads; each is width / heads wide."""
    patch: int = 16
    """P, the side of a square patch in pixels; of a hybrid, in positions of the ResNet's last
    feature map."""
    image: tuple[int, int] = (224, 224)
    """Height and width that the position table is made for; other sizes resample it."""
    channels: int = 3
    """C, channels of the image."""
    classes: int = 1000
    """K; 0 leaves the head out, and the model returns its features."""
    pool: Literal["token", "distilled", "gap", "map", "corner", "none"] = "token"
    """What the head reads: the class token, that and the distillation token (DeiT: a head each,
    averaged), the mean of the patches (which wants another learning rate: 3e-4 where the token has
    8e-4, App. D.3), an attention pooling, the first patch (the published Axial-ViT), or every
    token."""
    class_token: bool | None = None
    """Whether there is one; left open: only where the head reads it, as in the official code."""
    registers: int = 0
    """Learned tokens after the class token; DeiT's distillation token is one, DINOv2's registers
    are four."""
    norm: Literal["tokens", "pooled"] = "tokens"
    """What the last LayerNorm sees: every token (Eq. 4), or the pooled vector (MAE and timm with
    mean pooling)."""
    representation: int = 0
    """Width of the hidden tanh layer before the head, used in pre-training (Section 3.1); 0 is
    none."""
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
    """First value of a learned factor for every channel of a branch (LayerScale; DINOv2, DeiT III);
    None is none."""
    positions: Literal[
        "none", "learned", "learned2d", "relative", "sincos", "sincos-moco", "rotary"
    ] = "learned"
    """Position embedding (App. D.4): a learned vector for every token (the paper), for every column
    and row, for every offset between two tokens; fixed sines and cosines (big_vision's, MoCo v3's);
    rotated queries and keys; or none."""
    inject: Literal["stem", "every", "shared"] | None = None
    """Where: added once before the first block, at every block from a table of its own, or at every
    block from a shared one; left open: the first for what is added to tokens; relative and rotary
    act within attention, so at every block."""
    prefix_positions: int | None = None
    """How many of the tokens before the patches have a position of their own; left open: all of a
    learned table."""
    position_grid: tuple[int, int] | None = None
    """(h, w), the grid that rotary positions were trained on, over whose extent others are
    stretched; left open: that of `image`. A model that is made to fit another size keeps it."""
    resample: Literal["google", "timm", "huggingface", "torchvision"] = "google"
    """How positions are carried to another grid."""
    stem: Backbone | None = None
    """The ResNet of a hybrid, whose last feature map is cut into patches; None cuts the image
    itself."""
    mixer: Literal["full", "axial"] = "full"
    """Whom a token asks: every token, or in every layer its row, through a block, then its column,
    through another (Axial-ViT, App. D.6)."""

    def __post_init__(self):
        self._normalise_types()
        check_choices(self)
        self._check_numbers()
        self._check_image()
        self._check_pooling()
        self._check_positions()
        self._check_axial()

    def _normalise_types(self) -> None:
        """One number for a square image, lists for tuples, and a dict for a stem, as JSON has
        them."""
        image = self.image
        if isinstance(image, int):
            image = (image, image)
        object.__setattr__(self, "image", tuple(image))
        if self.position_grid is not None:
            object.__setattr__(self, "position_grid", tuple(self.position_grid))
        if self.stem is not None:
            object.__setattr__(self, "stem", backbone_from(self.stem))

    def _check_numbers(self) -> None:
        if not isinstance(self.layer_scale, int | float | None):
            raise ValueError(f"layer_scale is {self.layer_scale!r}; it is a number, or None")
        for name in ("width", "depth", "mlp", "heads", "patch", "channels"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value}; it must be a whole number of at least 1")
        for name in ("classes", "representation", "registers"):
            value = getattr(self, name)
            if value < 0:
                raise ValueError(f"{name} is {value}; it must be 0 or more")
        for name in ("dropout", "attention_dropout", "stochastic_depth"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ValueError(
                    f"{name} is {value}; it is a probability from 0 up to, not including, 1"
                )
        if self.width % self.heads:
            raise ValueError(
                f"a width of {self.width} cannot be split among {self.heads} heads; choose a divisor"
            )

    def _check_image(self) -> None:
        stride = self.stride
        if len(self.image) != 2 or any(side < stride or side % stride for side in self.image):
            raise ValueError(
                f"an image of {' x '.join(map(str, self.image))} pixels cannot be cut into patches of "
                f"{stride} x {stride}; choose multiples of {stride}"
            )

    def _check_pooling(self) -> None:
        if self.pool in READS and self.class_token is False:
            raise ValueError(
                f'pool is "{self.pool}" but class_token is False; choose "gap" or "map", or keep the '
                "token"
            )
        if self.pool == "distilled" and (not self.registers or self.representation):
            raise ValueError(
                f'pool is "distilled" with {self.registers} registers and a representation layer of '
                f"{self.representation}; it reads the first register, and has no representation layer"
            )

    def _check_positions(self) -> None:
        kind = POSITION_KINDS[self.positions]
        sizes = (
            ("a width", self.width, kind.width_multiple),
            ("a head's width", self.width // self.heads, kind.head_multiple),
        )
        for whose, size, multiple in sizes:
            if size % multiple:
                raise ValueError(
                    f"{whose} of {size} cannot hold {self.positions} positions, for x and for y; "
                    f"choose a multiple of {multiple}"
                )
        most = self.prefix if kind.prefix_rows else 0
        if not 0 <= self.position_rows <= most:
            raise ValueError(
                f"prefix_positions is {self.prefix_positions}; there are {self.prefix} tokens before "
                f"the patches, and {self.positions} positions"
            )
        if self.inject == "stem" and kind.within:
            raise ValueError(
                f'inject is "stem" but {self.positions} positions act within attention; choose '
                '"every" or "shared"'
            )
        if self.inject == "every" and not kind.tables:
            raise ValueError(
                f'inject is "every" but {self.positions} positions have no parameters to differ by; '
                'choose "stem" or "shared"'
            )
        if self.position_grid is not None and self.positions != "rotary":
            raise ValueError(
                f"position_grid is {self.position_grid}, which is for rotary positions; "
                f"{self.positions} ones take the grid of the image"
            )
        if self.position_grid is not None and (
            len(self.position_grid) != 2 or min(self.position_grid) < 1
        ):
            raise ValueError(
                f"position_grid is {self.position_grid}; it is a height and a width in patches"
            )

    def _check_axial(self) -> None:
        if self.mixer != "axial":
            return
        if self.prefix:
            raise ValueError(
                f"an axial model has no place in its rows and columns for {self.prefix} tokens before "
                'the patches; choose pool "gap", "map", "corner" or "none", and no registers'
            )
        if POSITION_KINDS[self.positions].within:
            raise ValueError(
                f"{self.positions} positions are made for attention among all tokens; an axial model "
                "takes those that are added to tokens: learned, learned2d, sincos, or none"
            )

    @property
    def grid(self) -> Grid:
        """(h, w), the patches of the image that the position table is made for."""
        return self.image[0] // self.stride, self.image[1] // self.stride

    @property
    def stride(self) -> int:
        """Pixels along a token's side: the patch size, times the stride of the ResNet below it."""
        if self.stem is None:
            return self.patch
        return self.patch * self.stem.stride

    @property
    def blocks(self) -> int:
        """How many blocks the model has, and residual units below them."""
        if self.stem is None:
            return self.depth
        return self.depth + sum(self.stem.units)

    @property
    def injected(self) -> str:
        """Where the positions enter: `inject`, or what goes with their kind."""
        return self.inject or POSITION_KINDS[self.positions].inject

    @property
    def prefix(self) -> int:
        """Tokens before the patches: the class token, if there is one, and the registers."""
        class_token = self.class_token
        if class_token is None:
            class_token = self.pool in READS
        return int(class_token) + self.registers

    @property
    def position_rows(self) -> int:
        """How many of those have a row in the position table."""
        if self.prefix_positions is not None:
            return self.prefix_positions
        return self.prefix if POSITION_KINDS[self.positions].prefix_rows else 0

    @property
    def tokens_read(self) -> int | None:
        """How many of the first tokens the pooling reads; None is all."""
        return READS.get(self.pool)

    @property
    def pools(self) -> bool:
        """Whether the model has one answer an image, rather than one for every token."""
        return self.pool != "none"

    def fitting(self, image: Grid) -> Grid:
        """The largest (height, width) that patches divide and that is not above `image`; at least
        one patch."""
        height, width = (max(side // self.stride, 1) * self.stride for side in image)
        return height, width

    def resized(self, image: Grid, method: str | None = None) -> "ViTConfig":
        """The same model for images of this (height, width).

        `method` resamples its positions; the origin's own unless told. Raises ValueError for a size
        that patches do not divide, or that relative positions have no meaning for.
        """
        new = replace(self, image=tuple(image), resample=method or self.resample)
        if new.grid == self.grid:
            return new
        if not POSITION_KINDS[self.positions].any_grid:
            raise ValueError(
                f"{self.positions} positions of {self.grid[0]} x {self.grid[1]} patches have no "
                f"meaning on {new.grid[0]} x {new.grid[1]}: in raster order an offset is another "
                "direction there"
            )
        if self.positions == "rotary":
            new = replace(new, position_grid=self.position_grid or self.grid)
        return new

    def with_head(self, classes: int) -> "ViTConfig":
        """The same model with a new head of so many classes straight on the pooled state (Section
        3.2); 0 is none."""
        return replace(self, classes=classes, head_bias=0.0, representation=0)
