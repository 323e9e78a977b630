"""What a ResNet is, as frozen values: alone as a classifier (BiT), or below a Transformer as a
hybrid's stem (Section 3.1)."""

from dataclasses import dataclass, fields, replace
from types import NoneType, UnionType
from typing import ClassVar, Literal, Union, get_args, get_origin

Grid = tuple[int, int]


def check_choices(config: object) -> None:
    """Raise ValueError where a field typed as a Literal, or None, holds something else."""
    for field in fields(config):
        types = (field.type,)
        if get_origin(field.type) in (Union, UnionType):
            types = get_args(field.type)
        choices = []
        for kind in types:
            if get_origin(kind) is Literal:
                choices += get_args(kind)
        if NoneType in types:
            choices.append(None)
        value = getattr(config, field.name)
        if any(isinstance(choice, str) for choice in choices) and value not in choices:
            known = ", ".join(choice for choice in choices if choice is not None)
            raise ValueError(f"{field.name} is {value!r}; it is one of {known}")


def backbone_from(value: object) -> "Backbone":
    """A Backbone as it is, or from the dict that JSON has of it. Raises ValueError for neither."""
    if isinstance(value, dict):
        known = {field.name for field in fields(Backbone)}
        unknown = sorted(map(repr, value.keys() - known))
        if unknown:
            raise ValueError(f"a Backbone has no setting {', '.join(unknown)}")
        value = Backbone(**value)
    if not isinstance(value, Backbone):
        raise ValueError(f"{value!r} is no Backbone, nor its settings")
    return value


# How each origin of weights pads and standardises; they differ by more than rounding. The published
# BiT has two official implementations: its own surrounds the max-pooling by zeros, which win where
# the rest is negative, big_vision's by nothing.
DIALECTS = {
    "google": {
        "norm_eps": 1e-6,
        "standardise": "std",
        "weight_eps": 1e-5,
        "padding": "same",
        "pool": "same",
    },
    "timm": {
        "norm_eps": 1e-5,
        "standardise": "variance",
        "weight_eps": 1e-8,
        "padding": "same",
        "pool": "same",
    },
    "big_vision": {
        "norm_eps": 1e-5,
        "standardise": "variance",
        "weight_eps": 1e-10,
        "padding": "even",
        "pool": "even",
    },
    "bit": {
        "norm_eps": 1e-5,
        "standardise": "variance",
        "weight_eps": 1e-10,
        "padding": "even",
        "pool": "zeros",
    },
    "timm_bit": {
        "norm_eps": 1e-5,
        "standardise": "variance",
        "weight_eps": 1e-8,
        "padding": "even",
        "pool": "zeros",
    },
}
UNITS = {  # residual units a stage, by the number of layers in the name
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}


@dataclass(frozen=True)
class Backbone:
    """The convolutions of a ResNet, alone or below a hybrid's Transformer. The defaults are R50x1
    as in the official hybrids."""

    units: tuple[int, ...] = (3, 4, 6, 3)
    """Residual units of each stage; every stage but the first halves the sides, none at all leaves
    the root."""
    width: float = 1.0
    """Factor of every stage's channels, x1 to x4 in BiT's names; the root has 64 times this."""
    order: Literal["post", "pre"] = "post"
    """Normalise after each convolution (the official hybrids, ResNet v1), or before (BiT, ResNet
    v2)."""
    norm: Literal["group", "batch"] = "group"
    """GroupNorm with 32 groups (BiT), or BatchNorm (the plain ResNet)."""
    norm_eps: float = 1e-6
    """Of every one of them."""
    standardise: Literal["std", "variance", "none"] = "std"
    """How a kernel is divided by its spread: by std + eps (Google), by sqrt(variance + eps) (BiT,
    timm), or not at all."""
    weight_eps: float = 1e-5
    """That eps."""
    padding: Literal["same", "even"] = "same"
    """Of convolutions: TensorFlow's SAME, which pads more at the end where the sides are even, or
    the same on both sides."""
    pool: Literal["same", "zeros", "even"] = "same"
    """Border of the max-pooling: SAME, one zero on every side (BiT), or nothing, one on every side
    (torchvision)."""
    mixer: Literal["conv", "axial", "local", "augmented"] = "conv"
    """What mixes the feature map in a unit: a 3 x 3 convolution, attention along rows, then columns
    (App. D.6), attention to the 7 x 7 around, or a convolution with attention to everything beside
    it, from the second stage on."""

    def __post_init__(self):
        object.__setattr__(self, "units", tuple(self.units))
        check_choices(self)
        if any(not isinstance(count, int) or count < 1 for count in self.units):
            raise ValueError(f"units is {self.units}; every stage has at least one residual unit")
        if self.norm == "group" and (self.channels < 32 or self.channels % 32):
            raise ValueError(
                f"a width of {self.width} makes {self.channels} channels in the root, which GroupNorm cannot split among "
                "32 groups; choose a multiple of 0.5"
            )
        if self.mixer != "conv" and self.channels % 64:
            raise ValueError(
                f"a width of {self.width} makes {self.channels} channels in the root, which {self.mixer} attention cannot split "
                "among its heads; choose a whole number"
            )
        for name in ("norm_eps", "weight_eps", "width"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")

    @property
    def channels(self) -> int:
        """Of the root, and inside the first stage's units."""
        return int(64 * self.width)

    @property
    def features(self) -> int:
        """Channels of the last feature map."""
        return self.channels * 4 * 2 ** (len(self.units) - 1) if self.units else self.channels

    @property
    def stride(self) -> int:
        """Pixels of the image, along a side, for one place of the last feature map."""
        return 4 * 2 ** max(len(self.units) - 1, 0)

    def mixes(self, stage: int) -> str:
        """What mixes the feature map of a stage, from 0: attention to all of it is too dear for the
        first (Bello et al.)."""
        if self.mixer == "augmented" and stage == 0:
            return "conv"
        return self.mixer

    def sides(self, image: Grid) -> list[Grid]:
        """(h, w) after the root's convolution, after its pooling, and after every stage: each half
        of the last, rounded up."""
        convolved = halved(image)
        pooled = halved(convolved)
        sizes = [convolved, pooled]
        for stage in range(len(self.units)):
            before = sizes[-1]
            sizes.append(halved(before) if stage else before)
        return sizes


def halved(grid: Grid) -> Grid:
    """Half of both sides, rounded up."""
    return -(-grid[0] // 2), -(-grid[1] // 2)


@dataclass(frozen=True)
class ResNetConfig:
    """A ResNet as a classifier: the convolutions, and what stands around them."""

    kind: ClassVar[str] = "resnet"
    """What this configuration is called where only its values are kept."""
    title: ClassVar[str] = "ResNet"
    """What people call such models."""

    backbone: Backbone = Backbone()
    """The convolutions."""
    image: tuple[int, int] = (224, 224)
    """Height and width that positions of an attention mixer are made for; any size from one last
    place on can be used."""
    channels: int = 3
    """C, channels of the image."""
    classes: int = 1000
    """K; 0 leaves the head out, and the model returns its features."""
    pool: Literal["gap", "none"] = "gap"
    """What the head reads: the mean of the last feature map, or every place of it."""
    head_bias: float = 0.0
    """First value of the head's bias."""

    def __post_init__(self):
        image = (self.image, self.image) if isinstance(self.image, int) else tuple(self.image)
        object.__setattr__(self, "image", image)
        object.__setattr__(self, "backbone", backbone_from(self.backbone))
        check_choices(self)
        if len(image) != 2 or min(image) < 1 or self.channels < 1 or self.classes < 0:
            raise ValueError(
                f"an image of {' x '.join(map(str, image))} pixels with {self.channels} channels and {self.classes} classes "
                "is no image classifier; sides and channels are at least 1, classes 0 or more"
            )

    @property
    def grid(self) -> Grid:
        """(h, w) of the last feature map."""
        return self.backbone.sides(self.image)[-1]

    @property
    def blocks(self) -> int:
        """How many residual units the model has."""
        return sum(self.backbone.units)

    @property
    def pools(self) -> bool:
        """Whether the model has one answer an image, rather than one for every position."""
        return self.pool != "none"

    def fitting(self, image: Grid) -> Grid:
        """The size of images that comes nearest to `image` and is not above it: any will do."""
        return tuple(image)

    def resized(self, image: Grid, method: str | None = None) -> "ResNetConfig":
        """The same model for images of this (height, width); there is nothing to resample by a
        method."""
        return replace(self, image=tuple(image))

    def with_head(self, classes: int) -> "ResNetConfig":
        """The same model with a new head of so many classes; 0 is none."""
        return replace(self, classes=classes, head_bias=0.0)
