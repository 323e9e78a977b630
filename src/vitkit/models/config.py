"""Every setting of a Vision Transformer as one frozen value, and the sizes of Table 1."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from vitkit.models.backbone import Backbone, Grid, backbone_from, check_choices

SIZES = {
    "mu": {"width": 32, "depth": 1, "mlp": 128, "heads": 2},
    "Ti": {"width": 192, "depth": 12, "mlp": 768, "heads": 3},
    "S": {"width": 384, "depth": 12, "mlp": 1536, "heads": 6},
    "M": {"width": 512, "depth": 12, "mlp": 2048, "heads": 8},
    "B": {"width": 768, "depth": 12, "mlp": 3072, "heads": 12},  # B, L, H: Table 1
    "L": {"width": 1024, "depth": 24, "mlp": 4096, "heads": 16},
    "b": {
        "width": 384,
        "depth": 12,
        "mlp": 1536,
        "heads": 6,
    },  # Fig. 4: B with halved dimensions; heads are our choice
    "So400m": {"width": 1152, "depth": 27, "mlp": 4304, "heads": 16},
    "H": {"width": 1280, "depth": 32, "mlp": 5120, "heads": 16},
    "g": {"width": 1408, "depth": 40, "mlp": 6144, "heads": 16},
    "g-opt": {"width": 1536, "depth": 40, "mlp": 6144, "heads": 16},
    "G": {"width": 1664, "depth": 48, "mlp": 8192, "heads": 16},
    "G-opt": {"width": 1536, "depth": 48, "mlp": 8192, "heads": 16},
    "e": {"width": 1792, "depth": 56, "mlp": 15360, "heads": 16},
}
READS = {
    "token": 1,
    "distilled": 2,
}  # how many of the first tokens a pooling reads; the others read all
WITHIN = ("relative", "rotary")  # positions that act within attention, at every block


@dataclass(frozen=True)
class ViTConfig:
    """Everything that decides a Vision Transformer's shape and arithmetic. The defaults are ViT-B/16 (Table 1)."""

    kind: ClassVar[str] = "vit"
    """What this configuration is called where only its values are kept."""

    width: int = 768
    """D, the size of every token's state."""
    depth: int = 12
    """L, the number of blocks."""
    mlp: int = 3072
    """Hidden width of a block's MLP."""
    heads: int = 12
    """Attention heads; each is width / heads wide."""
    patch: int = 16
    """P, the side of a square patch in pixels; of a hybrid, in places of the ResNet's last feature map."""
    image: tuple[int, int] = (224, 224)
    """Height and width that the position table is made for; other sizes resample it."""
    channels: int = 3
    """C, channels of the image."""
    classes: int = 1000
    """K; 0 leaves the head out, and the model returns its features."""
    pool: Literal["token", "distilled", "gap", "map", "corner", "none"] = "token"
    """What the head reads: the class token, that and the distillation token (DeiT: a head each, averaged), the mean of the
    patches (which wants another learning rate: 3e-4 where the token has 8e-4, App. D.3), an attention pooling, the first patch
    (the published Axial-ViT), or every token."""
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
    positions: Literal[
        "none", "learned", "learned2d", "relative", "sincos", "sincos-moco", "rotary"
    ] = "learned"
    """Position embedding (App. D.4): a learned vector for every token (the paper), for every column and row, for every
    offset between two tokens; fixed sines and cosines (big_vision's, MoCo v3's); rotated queries and keys; or none."""
    inject: Literal["stem", "every", "shared"] | None = None
    """Where: added once before the first block, at every block from a table of its own, or at every block from a shared one;
    left open: the first for what is added to tokens; relative and rotary act within attention, so at every block."""
    prefix_positions: int | None = None
    """How many of the tokens before the patches have a position of their own; left open: all of a learned table."""
    resample: Literal["google", "timm", "huggingface", "torchvision"] = "google"
    """How positions are carried to another grid."""
    stem: Backbone | None = None
    """The ResNet of a hybrid, whose last feature map is cut into patches; None cuts the image itself."""
    mixer: Literal["full", "axial"] = "full"
    """Whom a token asks: every token, or in every layer its row, through a block, then its column, through another
    (Axial-ViT, App. D.6)."""

    def __post_init__(self):
        if isinstance(self.image, int):
            object.__setattr__(self, "image", (self.image, self.image))
        object.__setattr__(self, "image", tuple(self.image))
        if self.stem is not None:
            object.__setattr__(self, "stem", backbone_from(self.stem))
        if not isinstance(self.layer_scale, int | float | None):
            raise ValueError(f"layer_scale is {self.layer_scale!r}; it is a number, or None")
        check_choices(self)
        for name in ("width", "depth", "mlp", "heads", "patch", "channels"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; it must be a whole number of at least 1"
                )
        for name in ("classes", "representation", "registers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        for name in ("dropout", "attention_dropout", "stochastic_depth"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; it is a probability from 0 up to, not including, 1"
                )
        if self.width % self.heads:
            raise ValueError(
                f"a width of {self.width} cannot be split among {self.heads} heads; choose a divisor"
            )
        if len(self.image) != 2 or any(
            side < self.stride or side % self.stride for side in self.image
        ):
            raise ValueError(
                f"an image of {' x '.join(map(str, self.image))} pixels cannot be cut into patches of {self.stride} x "
                f"{self.stride}; choose multiples of {self.stride}"
            )
        if self.pool in READS and self.class_token is False:
            raise ValueError(
                f'pool is "{self.pool}" but class_token is False; choose "gap" or "map", or keep the token'
            )
        if self.pool == "distilled" and (not self.registers or self.representation):
            raise ValueError(
                f'pool is "distilled" with {self.registers} registers and a representation layer of {self.representation}; '
                "it reads the first register, and has no representation layer"
            )
        self._check_positions()

    def _check_positions(self):
        parts = {"learned2d": (self.width, 2), "rotary": (self.width // self.heads, 4)}
        parts |= dict.fromkeys(("sincos", "sincos-moco"), (self.width, 4))
        size, divisor = parts.get(self.positions, (0, 1))
        if size % divisor:
            whose = "a head's width" if self.positions == "rotary" else "a width"
            raise ValueError(
                f"{whose} of {size} cannot hold {self.positions} positions, for x and for y; choose a multiple of {divisor}"
            )
        if (
            not 0
            <= self.position_rows
            <= (self.prefix if self.positions in ("learned", "learned2d") else 0)
        ):
            raise ValueError(
                f"prefix_positions is {self.prefix_positions}; there are {self.prefix} tokens before the patches, and "
                f"{self.positions} positions"
            )
        if self.inject == "stem" and self.positions in WITHIN:
            raise ValueError(
                f'inject is "stem" but {self.positions} positions act within attention; choose "every" or "shared"'
            )
        if self.inject == "every" and self.positions in ("sincos", "sincos-moco", "rotary", "none"):
            raise ValueError(
                f'inject is "every" but {self.positions} positions have no parameters to differ by; choose "stem" or "shared"'
            )
        if self.mixer == "axial":
            if self.prefix:
                raise ValueError(
                    f"an axial model has no place in its rows and columns for {self.prefix} tokens before the patches; "
                    'choose pool "gap", "map", "corner" or "none", and no registers'
                )
            if self.positions in WITHIN:
                raise ValueError(
                    f"{self.positions} positions are made for attention among all tokens; an axial model takes those "
                    "that are added to tokens: learned, learned2d, sincos, or none"
                )

    @property
    def grid(self) -> Grid:
        """(h, w), the patches of the image that the position table is made for."""
        return self.image[0] // self.stride, self.image[1] // self.stride

    @property
    def stride(self) -> int:
        """Pixels of the image along a token's side: the patch size, times the stride of the ResNet below it."""
        return self.patch * (self.stem.stride if self.stem else 1)

    @property
    def injected(self) -> str:
        """Where the positions enter: `inject`, or what goes with their kind."""
        return self.inject or {"relative": "every", "rotary": "shared"}.get(self.positions, "stem")

    @property
    def prefix(self) -> int:
        """Tokens before the patches: the class token, if there is one, and the registers."""
        return (
            int(self.pool in READS if self.class_token is None else self.class_token)
            + self.registers
        )

    @property
    def position_rows(self) -> int:
        """How many of those have a row in the position table."""
        if self.prefix_positions is None:
            return self.prefix if self.positions in ("learned", "learned2d") else 0
        return self.prefix_positions
