"""Every setting of a ResNet as frozen values: `Backbone` is its convolutions, below a hybrid's
Transformer (Section 3.1) or in a `ResNetConfig`, a classifier on its own (BiT)."""

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

from vitkit.models.tiling import Grid, as_pair
from vitkit.system.errors import BadSettings, BadWeights
from vitkit.system.values import check_settings

# How each source of weights pads and standardises; they differ by more than rounding. The published BiT
# has two official implementations: its own pads the max-pooling with zeros, which exceed negative numbers;
# big_vision's pads with nothing.
# fmt: off
DIALECTS: dict[str, dict[str, Any]] = {
    "google": {"norm_eps": 1e-6, "standardise": "std", "weight_eps": 1e-5,
               "padding": "same", "pool": "same"},
    "timm": {"norm_eps": 1e-5, "standardise": "variance", "weight_eps": 1e-8,
             "padding": "same", "pool": "same"},
    "big_vision": {"norm_eps": 1e-5, "standardise": "variance", "weight_eps": 1e-10,
                   "padding": "even", "pool": "even"},
    "bit": {"norm_eps": 1e-5, "standardise": "variance", "weight_eps": 1e-10,
            "padding": "even", "pool": "zeros"},
    "timm_bit": {"norm_eps": 1e-5, "standardise": "variance", "weight_eps": 1e-8,
                 "padding": "even", "pool": "zeros"},
}
# fmt: on
# Residual units of each stage, by the number of layers in a ResNet's name.
UNITS: dict[int, tuple[int, ...]] = {
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
Mixer = Literal["conv", "axial", "local", "augmented"]


@dataclass(frozen=True)
class Backbone:
    """The convolutions of a ResNet, alone or below a hybrid's Transformer. The defaults are the R50x1
    of the official hybrids."""

    units: tuple[int, ...] = (3, 4, 6, 3)
    """Residual units of each stage; every stage but the first halves the sides. Without stages there is
    only the root."""
    width: float = 1.0
    """Factor of every stage's channels, x1 to x4 in BiT's names; the root has 64 times this."""
    order: Literal["post", "pre"] = "post"
    """Normalise after each convolution (the official hybrids, ResNet v1), or before (BiT, ResNet
    v2)."""
    norm: Literal["group", "batch"] = "group"
    """GroupNorm with 32 groups (BiT), or BatchNorm (the plain ResNet)."""
    norm_eps: float = 1e-6
    """Eps of every norm."""
    standardise: Literal["std", "variance", "none"] = "std"
    """How a kernel is divided by its spread: by std + eps (Google), by sqrt(variance + eps) (BiT,
    timm), or not at all."""
    weight_eps: float = 1e-5
    """Eps of the standardisation."""
    padding: Literal["same", "even"] = "same"
    """How convolutions pad. "same": TensorFlow's SAME, which pads an even side more at its end;
    "even": as much on both sides."""
    pool: Literal["same", "zeros", "even"] = "same"
    """Border of the max-pooling. "same": TensorFlow's SAME; "zeros": a zero on every side (BiT); "even":
    one position on every side, which is never the maximum (torchvision)."""
    mixer: Mixer = "conv"
    """What mixes the positions of the feature map in a unit. "conv": a 3 x 3 convolution; "axial":
    attention along rows, then columns (App. D.6); "local": attention to the surrounding 7 x 7 positions;
    "augmented": from the second stage on, a convolution for some channels and attention to all positions
    for the others."""

    def __post_init__(self):
        if isinstance(self.units, list):  # JSON has no tuples
            object.__setattr__(self, "units", tuple(self.units))
        check_settings(self)
        if any(count < 1 for count in self.units):
            raise BadSettings(f"units is {self.units}; every stage has at least one residual unit")
        root = f"a width of {self.width} makes {self.channels} channels in the root"
        if self.norm == "group" and (self.channels < 32 or self.channels % 32):
            raise BadSettings(
                f"{root}, which GroupNorm cannot split among 32 groups; choose a multiple of 0.5"
            )
        if self.mixer != "conv" and self.channels % 64:
            raise BadSettings(
                f"{root}, which {self.mixer} attention cannot split among its heads; choose a "
                "whole number"
            )
        for name in ("norm_eps", "weight_eps", "width"):
            if not getattr(self, name) > 0:
                raise BadSettings(f"{name} is {getattr(self, name)}; it must be above 0")

    @property
    def channels(self) -> int:
        """Channels of the root, and of the bottlenecks of the first stage's units."""
        return int(64 * self.width)

    @property
    def features(self) -> int:
        """Channels of the last feature map."""
        if not self.units:
            return self.channels
        return 4 * self.channels * 2 ** (len(self.units) - 1)

    @property
    def stride(self) -> int:
        """Pixels along a side of the image for each position of the last feature map."""
        # 2 by the root's convolution, 2 by its pooling, 2 by every stage but the first
        return 4 * 2 ** max(len(self.units) - 1, 0)

    def mixes(self, stage: int) -> Mixer:
        """The kind of layer that mixes the feature map of this stage, counted from 0.

        Attention to all of the first stage's large map would be too expensive (Bello et al.).
        """
        if self.mixer == "augmented" and stage == 0:
            return "conv"
        return self.mixer

    def stage_grids(self, image: Grid) -> list[tuple[Grid, Grid]]:
        """(h, w) of the feature map before and after every stage."""
        grids = []
        before = self.root_grid(image)
        for stage in range(len(self.units)):
            after = before  # the first stage has no stride
            if stage > 0:
                after = halved(before)
            grids.append((before, after))
            before = after
        return grids

    def root_grid(self, image: Grid) -> Grid:
        """(h, w) after the root, whose convolution and pooling halve each side."""
        return halved(halved(image))

    def last_grid(self, image: Grid) -> Grid:
        """(h, w) of the last feature map."""
        if not self.units:
            return self.root_grid(image)
        _, after = self.stage_grids(image)[-1]
        return after


def halved(grid: Grid) -> Grid:
    """Half of both sides, rounded up."""
    return -(-grid[0] // 2), -(-grid[1] // 2)


@dataclass(frozen=True)
class ResNetConfig:
    """Everything that decides a ResNet's shape and arithmetic. The defaults are R50x1."""

    kind: ClassVar[str] = "resnet"
    """The name of this kind of model in JSON."""
    title: ClassVar[str] = "ResNet"
    """The usual name of such models."""

    backbone: Backbone = Backbone()
    """The convolutions."""
    image: tuple[int, int] = (224, 224)
    """Height and width that the positions of an attention mixer are made for; others resample
    them."""
    channels: int = 3
    """C, channels of the image."""
    classes: int = 1000
    """K; 0: no head, and the model returns its features."""
    pool: Literal["gap", "none"] = "gap"
    """What the head reads: the mean of the last feature map, or every position of it, each with its own
    output."""
    head_bias: float = 0.0
    """First value of the head's bias."""

    def __post_init__(self):
        # JSON has lists and dicts; one number is a square image
        object.__setattr__(self, "image", as_pair(self.image))
        object.__setattr__(self, "backbone", backbone_from(self.backbone))
        check_settings(self)
        sizes_are_possible = min(self.image) >= 1 and self.channels >= 1
        if not sizes_are_possible or self.classes < 0:
            sides = " x ".join(map(str, self.image))
            raise BadSettings(
                f"an image of {sides} pixels with {self.channels} channels and {self.classes} "
                "classes is not an image classifier; sides and channels are at least 1, classes 0 or "
                "more"
            )

    @property
    def grid(self) -> Grid:
        """(h, w) of the last feature map."""
        return self.backbone.last_grid(self.image)

    @property
    def blocks_built(self) -> int:
        """How many residual units `build` makes."""
        return sum(self.backbone.units)

    @property
    def pools(self) -> bool:
        """Whether the model has one output per image, rather than one for every position."""
        return self.pool != "none"

    def fitting(self, image: Grid) -> Grid:
        """The largest size of images that is not above `image`: `image`, because every size is valid."""
        return image[0], image[1]

    def resized(self, image: Grid, method: str | None = None) -> "ResNetConfig":
        """The configuration for images of this (height, width).

        `method` exists for the same signature as ViTConfig's: positions here are always resampled as Google
        does.
        """
        return replace(self, image=self.fitting(image))

    def with_head(self, classes: int) -> "ResNetConfig":
        """The configuration with a new head for this many classes, or without a head for 0."""
        return replace(self, classes=classes, head_bias=0.0)


def backbone_from(value: object) -> Backbone:
    """A Backbone, unchanged or from its JSON dict. Raises VitkitError for anything else."""
    if isinstance(value, dict):
        known = {field.name for field in fields(Backbone)}
        unknown = sorted(map(repr, value.keys() - known))
        if unknown:
            raise BadWeights(f"a Backbone has no setting {', '.join(unknown)}")
        value = Backbone(**value)
    if not isinstance(value, Backbone):
        raise BadWeights(f"{value!r} is not a Backbone, nor its settings")
    return value
