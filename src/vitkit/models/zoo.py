"""Names to configurations, as the paper and its sibling projects write them, and back."""

import re
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any, TypeVar

from vitkit.models.ancestors.backbone import DIALECTS, UNITS, Backbone, ResNetConfig
from vitkit.models.ancestors.lenet import LeNetConfig
from vitkit.models.config import ViTConfig
from vitkit.models.tiling import Grid, as_pair
from vitkit.system.errors import BadSettings

ModelConfig = ViTConfig | ResNetConfig | LeNetConfig
AnyConfig = TypeVar("AnyConfig", ViTConfig, ResNetConfig, LeNetConfig)

# fmt: off
SIZES = {
    "mu": {"width": 32, "depth": 1, "mlp": 128, "heads": 2},
    "Ti": {"width": 192, "depth": 12, "mlp": 768, "heads": 3},
    "S": {"width": 384, "depth": 12, "mlp": 1536, "heads": 6},
    "M": {"width": 512, "depth": 12, "mlp": 2048, "heads": 8},
    "B": {"width": 768, "depth": 12, "mlp": 3072, "heads": 12},   # Table 1
    "L": {"width": 1024, "depth": 24, "mlp": 4096, "heads": 16},  # Table 1
    # Figure 4: B with all dimensions halved; the number of heads is our choice
    "b": {"width": 384, "depth": 12, "mlp": 1536, "heads": 6},
    "So400m": {"width": 1152, "depth": 27, "mlp": 4304, "heads": 16},
    "H": {"width": 1280, "depth": 32, "mlp": 5120, "heads": 16},  # Table 1
    "g": {"width": 1408, "depth": 40, "mlp": 6144, "heads": 16},
    "g-opt": {"width": 1536, "depth": 40, "mlp": 6144, "heads": 16},
    "G": {"width": 1664, "depth": 48, "mlp": 8192, "heads": 16},
    "G-opt": {"width": 1536, "depth": 48, "mlp": 8192, "heads": 16},
    "e": {"width": 1792, "depth": 56, "mlp": 15360, "heads": 16},
}
# The models that are listed. Any other patch size, depth of a ResNet and width works too.
NAMES = [
    "mu/16", "Ti/16", "S/32", "S/16", "M/16", "B/32", "B/16", "B/8", "L/32", "L/16", "So400m/14",
    "H/14", "g/14", "g-opt/14", "G/14", "G-opt/14", "e/14", "b/32",
    "R+Ti/16", "R26+S/32", "R26+B/32", "R50+B/32", "R50+B/16", "R50+L/32", "R50+L/16",
    "R50x1", "R50x2", "R101x1", "R152x1", "R152x2", "R200x3",  # Table 6
    "BiT-R50x1", "BiT-R50x3", "BiT-R101x1", "BiT-R101x3", "BiT-R152x2", "BiT-R152x4",  # published
    "Axial-B/32", "Axial-B/16", "Axial-R50", "Local-R50", "Augmented-R50", "BN-R50", "LeNet-5",
]
# fmt: on

# "B/16", "B/16x8", "B/16 (stride 8)", "R50x2+B/16", "R+Ti/16", "Axial-B/16"
VIT_NAME = re.compile(
    r"(?P<axial>Axial-)?"
    r"((?P<resnet>R(?P<layers>\d+)?(x(?P<factor>\d+))?)\+)?"
    r"(?P<size>[^/+]+)/(?P<patch>\d+(x\d+)?)"
    r"( \(stride (?P<stride>\d+(x\d+)?)\))?"
)
# "R50x1", "BiT-R152x4", "Axial-R50"
RESNET_NAME = re.compile(
    r"(?P<kind>BiT-|BN-|Axial-|Local-|Augmented-)?R(?P<layers>\d+)(x(?P<factor>\d+))?"
)
# fmt: off
# What the first word of a ResNet's name changes of a Backbone.
RESNET_KINDS: dict[str | None, dict[str, Any]] = {
    None: {},
    "BiT-": {"order": "pre", **DIALECTS["bit"]},
    "BN-": {"norm": "batch", "norm_eps": 1e-5, "standardise": "none",
            "padding": "even", "pool": "even"},
    "Axial-": {"mixer": "axial"},
    "Local-": {"mixer": "local"},
    "Augmented-": {"mixer": "augmented"},
}
# fmt: on


def named(name: str, **changes) -> ModelConfig:
    """The configuration of any named model: `vit`'s, the ResNets and LeNet-5.

    "R50x1" is the ResNet of the hybrids with a head (post-activation), "BiT-R50x1" the published
    BiT (pre-activation), "BN-R50" the plain one with BatchNorm. "Axial-R50" has axial attention for
    3 x 3 convolutions (App. D.6), "Local-R50" local attention, "Augmented-R50" some attention
    beside them. Raises VitkitError for a name that does not exist.
    """
    if name == "LeNet-5":
        return changed(LeNetConfig(), changes)
    match = RESNET_NAME.fullmatch(name)
    if not match or int(match["layers"]) not in UNITS:
        return vit(name, **changes)
    backbone = Backbone(
        units=UNITS[int(match["layers"])],
        width=float(match["factor"] or 1),
        **RESNET_KINDS[match["kind"]],
    )
    return changed(ResNetConfig(backbone), changes)


def vit(name: str, **changes) -> ViTConfig:
    """The configuration of a named Vision Transformer: `vit("B/16")`, `vit("L/14", image=(256,
    192), classes=10)`.

    A name is a size of Table 1 (or a later official one) and a patch size in pixels, as the paper
    writes it; "B/16x8" has patches of 16 x 8 (height and width), "B/16 (stride 8)" such as overlap.
    "R50+B/16" puts a ResNet below it (Section 3.1), "Axial-B/16" attends along rows and columns
    (App. D.6). The result of `called`, such as "ViT-B/16", is a name too.

    The image is 224 x 224 unless told; if whole patches do not cover that, it is the next smaller
    size that they do. Raises VitkitError for a name that does not exist.
    """
    match = VIT_NAME.fullmatch(short_name(name))
    if not match or match["size"] not in SIZES:
        raise BadSettings(no_such_model(name))
    patch = from_words(match["patch"])
    stride = from_words(match["stride"] or match["patch"])
    if min(*patch, *stride) < 1:
        raise BadSettings(no_such_model(name))
    stem = None
    if match["resnet"]:
        stem = hybrid_stem(name, match["layers"], float(match["factor"] or 1), (*patch, *stride))
        patch = in_positions(stem, patch)
        stride = in_positions(stem, stride)
    mixing: dict[str, Any] = {}
    if match["axial"]:
        mixing = {"mixer": "axial", "pool": "gap"}
    if match["stride"]:
        changes = {"stride": stride, **changes}
    changes = {"patch": patch, **changes}

    # An image of one patch fits every stride; the largest one up to 224 x 224 is then known
    one_patch = as_pair(changes["patch"])
    if stem is not None and isinstance(one_patch, tuple):
        one_patch = tuple(side * stem.stride for side in one_patch)
    smallest = {"image": one_patch, **changes}
    config = changed(ViTConfig(patch=1, stem=stem), SIZES[match["size"]] | mixing)
    config = changed(config, smallest)
    if "image" in changes:
        return config
    return replace(config, image=config.fitting((224, 224)))


def hybrid_stem(name: str, layers: str | None, width: float, pixels: tuple[int, ...]) -> Backbone:
    """The ResNet of a hybrid, from its layers and the sides in pixels that its name gives: of a patch,
    and from one to the next.

    Multiples of 32 pixels read the last stage. Other multiples of 16 read a third stage that has the
    fourth's units too, so that no layer is lost. "R" alone is the root without stages.
    """
    if layers is None and all(side % 2 == 0 for side in pixels):
        return Backbone(units=(), width=width)
    if layers is None or int(layers) not in UNITS or any(side % 16 for side in pixels):
        raise BadSettings(
            f"no hybrid {name!r}: its ResNet has {', '.join(map(str, UNITS))} layers and its "
            "patches are multiples of 16, as in 'R50+B/32', or it is a root alone with even "
            "patches, as in 'R+Ti/16'"
        )
    units: tuple[int, ...] = UNITS[int(layers)]
    if any(side % 32 for side in pixels):
        units = three_stages(units)
    return Backbone(units=units, width=width)


def in_positions(stem: Backbone, pixels: Grid) -> Grid:
    """Sides on a ResNet's last feature map, from the pixels that a hybrid's name gives."""
    apart = pixels_of_position(stem)
    return pixels[0] // apart, pixels[1] // apart


def pixels_of_position(stem: Backbone) -> int:
    """From one position of a ResNet's last feature map to the next, in pixels as a hybrid's name
    counts them.

    The name of a root alone counts its convolution's stride, 2, and not its pooling's: R+Ti/16 has
    patches of 8, and 32 pixels to a patch.
    """
    if not stem.units:
        return 2
    return stem.stride


def three_stages(units: tuple[int, ...]) -> tuple[int, ...]:
    """The units of a ResNet with the fourth stage's in the third: (3, 4, 6, 3) -> (3, 4, 9)."""
    return (*units[:2], units[2] + units[3])


def no_such_model(name: str) -> str:
    """The message for a name that does not exist, with the nearest one that does."""
    patch = name.partition("/")[2]
    if not patch.isdigit():
        patch = "16"
    candidates = [*NAMES, *(f"{size}/{patch}" for size in SIZES)]
    near = get_close_matches(name, candidates, 1, 0.3)
    question = ""
    if near:
        question = f"; did you mean {near[0]!r}"
    return (
        f"no model {name!r}{question}? A name is SIZE/PATCH, such as 'B/16'; sizes are "
        f"{', '.join(SIZES)}"
    )


def changed(config: AnyConfig, changes: dict) -> AnyConfig:
    """The configuration with other values of some settings. Raises VitkitError for an unknown one,
    with the nearest that exists."""
    known = [field.name for field in fields(config)]
    unknown = [name for name in changes if name not in known]
    if unknown:
        near = get_close_matches(unknown[0], known, 1)
        question = ""
        if near:
            question = f"; did you mean {near[0]!r}?"
        raise BadSettings(f"no setting {unknown[0]!r}{question}")
    return replace(config, **changes)


def called(config: ModelConfig) -> str:
    """The usual name of an architecture: ViT-B/16, R50+ViT-B/16, BiT-R50x1.

    The way back from `named`, as far as there is one; `named` reads it again.
    """
    if isinstance(config, LeNetConfig):
        return "LeNet-5"
    if isinstance(config, ResNetConfig):
        return backbone_name(config.backbone)
    if config.stem is None:
        return vit_name(config)
    below = backbone_name(config.stem).removesuffix("x1")
    return f"{below}+{vit_name(config)}"


def short_name(name: str) -> str:
    """A Vision Transformer's name as people type it, from one that `called` prints: "B/16" of
    "ViT-B/16", "Axial-R50+B/16" of "R50+Axial-ViT-B/16". Another as it is."""
    below, marker, size = name.partition("ViT-")
    if below.endswith("Axial-"):
        return "Axial-" + below.removesuffix("Axial-") + size
    if not marker or below.startswith("Axial-"):  # whose ResNet is axial, which no short name says
        return name
    return below + size


def vit_name(config: ViTConfig) -> str:
    """ViT-B/16 and its like, or a description of a shape that has no name."""
    kind = "ViT"
    if config.mixer == "axial":
        kind = "Axial-ViT"
    patch = patch_name(config)
    shape = {name: getattr(config, name) for name in ("width", "depth", "mlp", "heads")}
    for size, values in SIZES.items():
        if values == shape:
            return f"{kind}-{size}/{patch}"
    description = ", ".join(f"{name} {value}" for name, value in shape.items())
    return f"{kind} of {description}, patch {patch}"


def patch_name(config: ViTConfig) -> str:
    """Pixels to a patch: 16, or 16x8 (height and width), and the stride if patches overlap."""
    tiling = config.patches
    if config.stem is not None:
        tiling = tiling.scaled(pixels_of_position(config.stem))
    size = in_words(tiling.size)
    if not tiling.overlaps:
        return size
    return f"{size} (stride {in_words(tiling.stride)})"


def in_words(sides: Grid) -> str:
    """A pair as text: 16 for (16, 16), 16x8 for (16, 8)."""
    height, width = sides
    if height == width:
        return str(height)
    return f"{height}x{width}"


def from_words(text: str) -> Grid:
    """(16, 16) of "16", (16, 8) of "16x8"."""
    height, _, width = text.partition("x")
    return int(height), int(width or height)


def backbone_name(backbone: Backbone) -> str:
    """R50x1 and its like, or the units of each stage if that has no name: ResNet(1,2)x0.5."""
    prefixes = {"conv": "", "axial": "Axial-", "local": "Local-", "augmented": "Augmented-"}
    prefix = prefixes[backbone.mixer]
    if backbone.norm == "batch":
        prefix += "BN-"
    elif backbone.order == "pre":
        prefix += "BiT-"

    layers: dict[tuple[int, ...], str] = {(): ""}  # the root alone is "R"
    for number, units in UNITS.items():
        layers[units] = str(number)
        layers[three_stages(units)] = str(number)
    name = f"ResNet({','.join(map(str, backbone.units))})"
    if backbone.units in layers:
        name = f"R{layers[backbone.units]}"
    return f"{prefix}{name}x{backbone.width:g}"
