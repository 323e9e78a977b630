"""Names of models in the paper and related projects, converted to configurations and back."""

import re
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any, TypeVar

from vitkit.models.ancestors.backbone import DIALECTS, UNITS, Backbone, ResNetConfig
from vitkit.models.ancestors.lenet import LeNetConfig
from vitkit.models.config import ViTConfig
from vitkit.models.tiling import Grid, as_pair
from vitkit.system.errors import BadSettings, WrongArgument

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
# The listed models. All other patch sizes, depths of a ResNet and widths are valid too.
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
# Changes of a Backbone by the first word of a ResNet's name.
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
    """The configuration of any named model: those of `vit`, the ResNets and LeNet-5.

    "R50x1" is the ResNet of the hybrids with a head (post-activation), "BiT-R50x1" the published BiT
    (pre-activation), "BN-R50" the plain one with BatchNorm. "Axial-R50" has axial attention instead of
    3 x 3 convolutions (App. D.6), "Local-R50" local attention, "Augmented-R50" some attention beside them.
    Raises VitkitError for a name that does not exist.
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

    A name is a size of Table 1 (or a later official one) and a patch size in pixels, as in the paper;
    "B/16x8" has patches of 16 x 8 (height and width), "B/16 (stride 8)" has overlapping patches.
    "R50+B/16" has a ResNet below it (Section 3.1), "Axial-B/16" attends along rows and columns
    (App. D.6). The result of `called`, such as "ViT-B/16", is a name too.

    The default image is 224 x 224, or the next smaller size that whole patches cover. Raises VitkitError
    for a name that does not exist.
    """
    if not isinstance(name, str):
        raise WrongArgument(f"name is {name!r}; give the name of a model, such as 'B/16'")
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

    # An image of one patch is valid for every stride; then the largest one up to 224 x 224 is computed
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
    """The ResNet of a hybrid, from its number of layers and the sides in pixels in its name: of a patch, and
    the distances of patches.

    For multiples of 32 pixels, patches are cut from the last stage. For other multiples of 16 it is a third
    stage that includes the fourth's units, so that no layer is lost. "R" alone is the root without stages.
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
    """Convert the pixels in a hybrid's name to positions of a ResNet's last feature map."""
    apart = pixels_of_position(stem)
    return pixels[0] // apart, pixels[1] // apart


def pixels_of_position(stem: Backbone) -> int:
    """The distance of positions of a ResNet's last feature map, in pixels as in a hybrid's name.

    The name of a root alone includes only its convolution's stride, 2, not its pooling's: R+Ti/16 has
    patches of 8 positions, and 32 pixels per patch.
    """
    if not stem.units:
        return 2
    return stem.stride


def three_stages(units: tuple[int, ...]) -> tuple[int, ...]:
    """Move the units of a ResNet's fourth stage to the third: (3, 4, 6, 3) -> (3, 4, 9)."""
    return (*units[:2], units[2] + units[3])


def no_such_model(name: str) -> str:
    """The error message for a name that does not exist, with the most similar name that does."""
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
    """The configuration with new values of some settings. Raises VitkitError for an unknown one, with the
    most similar name that exists."""
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

    The inverse of `named` if the architecture has a name; `named` accepts the result.
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
    """Shorten a Vision Transformer's name from `called`: "B/16" for "ViT-B/16", "Axial-R50+B/16" for
    "R50+Axial-ViT-B/16". Other names are unchanged."""
    below, marker, size = name.partition("ViT-")
    if below.endswith("Axial-"):
        return "Axial-" + below.removesuffix("Axial-") + size
    if not marker or below.startswith("Axial-"):  # no short name exists for an axial ResNet
        return name
    return below + size


def vit_name(config: ViTConfig) -> str:
    """A name such as ViT-B/16, or a description of a shape without a name."""
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
    """Pixels of a patch: 16, or 16x8 (height and width), and the stride if patches overlap."""
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
    """(16, 16) for "16", (16, 8) for "16x8"."""
    height, _, width = text.partition("x")
    return int(height), int(width or height)


def backbone_name(backbone: Backbone) -> str:
    """A name such as R50x1, or the units of each stage if there is none: ResNet(1,2)x0.5."""
    prefixes = {"conv": "", "axial": "Axial-", "local": "Local-", "augmented": "Augmented-"}
    prefix = prefixes[backbone.mixer]
    if backbone.norm == "batch":
        prefix += "BN-"
    elif backbone.order == "pre":
        prefix += "BiT-"

    layers: dict[tuple[int, ...], str] = {(): ""}  # "R" is only the root
    for number, units in UNITS.items():
        layers[units] = str(number)
        layers[three_stages(units)] = str(number)
    name = f"ResNet({','.join(map(str, backbone.units))})"
    if backbone.units in layers:
        name = f"R{layers[backbone.units]}"
    return f"{prefix}{name}x{backbone.width:g}"
