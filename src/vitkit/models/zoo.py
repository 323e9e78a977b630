"""Names to configurations, as the paper and its sibling projects write them."""

import re
from dataclasses import fields, replace
from difflib import get_close_matches

from vitkit.models.ancestors import LeNetConfig
from vitkit.models.backbone import DIALECTS, UNITS, Backbone, ResNetConfig
from vitkit.models.config import SIZES, ViTConfig

NAMES = [
    *(
        "mu/16 Ti/16 S/32 S/16 M/16 B/32 B/16 B/8 L/32 L/16 So400m/14 H/14 g/14 g-opt/14 G/14 G-opt/14 e/14 b/32".split()
    ),
    *("R+Ti/16 R26+S/32 R26+B/32 R50+B/32 R50+B/16 R50+L/32 R50+L/16".split()),
    *("R50x1 R50x2 R101x1 R152x1 R152x2 R200x3".split()),  # Table 6
    *(
        "BiT-R50x1 BiT-R50x3 BiT-R101x1 BiT-R101x3 BiT-R152x2 BiT-R152x4".split()
    ),  # those that were published
    *("Axial-B/32 Axial-B/16 Axial-R50 Local-R50 Augmented-R50 BN-R50 LeNet-5".split()),
]  # any other patch size, depth of ResNet and width works too
_VIT = re.compile(
    r"(?P<axial>Axial-)?((?P<resnet>R(?P<layers>\d+)?(x(?P<factor>\d+))?)\+)?(?P<size>[^/+]+)/(?P<patch>\d+)"
)
_RESNET = re.compile(
    r"(?P<kind>BiT-|BN-|Axial-|Local-|Augmented-)?R(?P<layers>\d+)(x(?P<factor>\d+))?"
)


def vit(name: str, **changes) -> ViTConfig:
    """The configuration of a named Vision Transformer: `vit("B/16")`, `vit("L/14", image=(256,
    192), classes=10)`.

    A name is a size of Table 1 (or a later official one) and a patch size in pixels, as the paper
    writes it. "R50+B/16" puts a ResNet below it (Section 3.1), "Axial-B/16" attends along rows and
    columns (App. D.6). The image is 224 x 224 unless told, and a patch that does not divide 224
    takes the multiple just below.
    """
    found = _VIT.fullmatch(name)
    if not found or found["size"] not in SIZES or int(found["patch"]) < 1:
        patch = name.partition("/")[2]
        near = get_close_matches(name, [*NAMES, *(f"{s}/{patch or 16}" for s in SIZES)], 1, 0.3)
        raise ValueError(
            f"no model {name!r}{f'; did you mean {near[0]!r}' if near else ''}? A name is SIZE/PATCH, such as 'B/16'; "
            f"sizes are {', '.join(SIZES)}"
        )
    patch, stem = int(found["patch"]), None
    if found["resnet"]:
        stem, patch = _hybrid(name, found["layers"], float(found["factor"] or 1), patch)
    axial = {"mixer": "axial", "pool": "gap"} if found["axial"] else {}
    stride = patch * (stem.stride if stem else 1)
    config = ViTConfig(
        **SIZES[found["size"]],
        patch=patch,
        image=max(224 // stride, 1) * stride,
        stem=stem,
        **axial,
    )
    return _changed(config, changes)


def _hybrid(name: str, layers: str | None, factor: float, total: int) -> tuple[Backbone, int]:
    """The ResNet of a hybrid and the patch size on its feature map, from the pixels to a patch that
    its name gives.

    A multiple of 32 reads the last stage; another multiple of 16 a third stage that has the
    fourth's units too, so that no layer is lost. "R" alone is the root, whose name counts its
    convolution's stride only: R+Ti/16 has patches of 8, and 32 pixels to a patch.
    """
    if layers is None and total % 2 == 0:
        return Backbone(units=(), width=factor), total // 2
    if layers is None or int(layers) not in UNITS or total % 16:
        raise ValueError(
            f"no hybrid {name!r}: its ResNet has {', '.join(map(str, UNITS))} layers and its patches are multiples of 16, as "
            "in 'R50+B/32', or it is a root alone with even patches, as in 'R+Ti/16'"
        )
    units = UNITS[int(layers)]
    if total % 32 == 0:
        return Backbone(units=units, width=factor), total // 32
    return Backbone(units=(*units[:2], units[2] + units[3]), width=factor), total // 16


def named(name: str, **changes) -> ViTConfig | ResNetConfig | LeNetConfig:
    """The configuration of any named model: `vit`'s, and the ResNets.

    "R50x1" is the ResNet of the hybrids with a head (post-activation), "BiT-R50x1" the published
    BiT (pre-activation), "BN-R50" the plain one with BatchNorm. "Axial-R50" has axial attention for
    3 x 3 convolutions (App. D.6), "Local-R50" local attention, "Augmented-R50" some attention
    beside them. "LeNet-5" is where it began.
    """
    if name == "LeNet-5":
        return _changed(LeNetConfig(), changes)
    found = _RESNET.fullmatch(name)
    if not found or int(found["layers"]) not in UNITS:
        return vit(name, **changes)
    settings = {
        None: {},
        "BiT-": {"order": "pre", **DIALECTS["bit"]},
        "BN-": {
            "norm": "batch",
            "norm_eps": 1e-5,
            "standardise": "none",
            "padding": "even",
            "pool": "even",
        },
        "Axial-": {"mixer": "axial"},
        "Local-": {"mixer": "local"},
        "Augmented-": {"mixer": "augmented"},
    }[found["kind"]]
    backbone = Backbone(
        units=UNITS[int(found["layers"])], width=float(found["factor"] or 1), **settings
    )
    return _changed(ResNetConfig(backbone), changes)


def called(config: ViTConfig | ResNetConfig | LeNetConfig) -> str:
    """What people call an architecture: ViT-B/16, R50+ViT-B/16, BiT-R50x1.

    The way back from `named`, as far as there is one.
    """
    return NAME_OF[type(config)](config)


def _vit_name(config: ViTConfig) -> str:
    shape = {key: getattr(config, key) for key in ("width", "depth", "mlp", "heads")}
    kind = "Axial-ViT" if config.mixer == "axial" else "ViT"
    patch = config.stride
    if config.stem and not config.stem.units:
        patch //= 2  # as R+Ti/16 is named
    name = f"{kind} of {', '.join(f'{key} {value}' for key, value in shape.items())}, patch {patch}"
    for size, values in SIZES.items():
        if values == shape:
            name = f"{kind}-{size}/{patch}"
            break
    if config.stem:
        name = f"{_backbone_name(config.stem).removesuffix('x1')}+{name}"
    return name


def _backbone_name(backbone: Backbone) -> str:
    """R50x1 and its like, or the units of each stage if that has no name: ResNet(1,2)x0.5."""
    kind = {"conv": "", "axial": "Axial-", "local": "Local-", "augmented": "Augmented-"}
    prefix = kind[backbone.mixer]
    if backbone.norm == "batch":
        prefix += "BN-"
    elif backbone.order == "pre":
        prefix += "BiT-"

    layers = {(): ""}
    for number, units in UNITS.items():
        layers[*units[:2], units[2] + units[3]] = number  # a hybrid's, with three stages
        layers[units] = number
    name = f"ResNet({','.join(map(str, backbone.units))})"
    if backbone.units in layers:
        name = f"R{layers[backbone.units]}"
    return f"{prefix}{name}x{backbone.width:g}"


def _resnet_name(config: ResNetConfig) -> str:
    return _backbone_name(config.backbone)


def _lenet_name(config: LeNetConfig) -> str:
    return "LeNet-5"


NAME_OF = {ViTConfig: _vit_name, ResNetConfig: _resnet_name, LeNetConfig: _lenet_name}


def _changed(
    config: ViTConfig | ResNetConfig | LeNetConfig, changes: dict
) -> ViTConfig | ResNetConfig | LeNetConfig:
    known = [field.name for field in fields(config)]
    if unknown := [key for key in changes if key not in known]:
        near = get_close_matches(unknown[0], known, 1)
        raise ValueError(
            f"no setting {unknown[0]!r}{f'; did you mean {near[0]!r}?' if near else ''}"
        )
    return replace(config, **changes)
