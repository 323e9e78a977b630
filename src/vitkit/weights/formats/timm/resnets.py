"""timm's BiT ResNets, `resnetv2_*_bit`. Legend: as in rules.py."""

from vitkit.data import Preprocessing
from vitkit.models import DIALECTS, UNITS, ResNetConfig
from vitkit.weights.description import Description, Hints, another_dialect, beyond_bit, shape_of
from vitkit.weights.files import Opened, Tensors
from vitkit.weights.formats.resnets import backbone_of, backbone_rules
from vitkit.weights.formats.timm.files import input_size, labels_of, repository, said_preprocessing
from vitkit.weights.formats.timm.vit import RESNET
from vitkit.weights.rules import Rule, Way, pairs

NAME = "timm"
HOLDS = ("resnet",)  # kinds of configurations
NAMES = RESNET._replace(under="")
POINT = Way(
    lambda kernel: kernel.flatten(1), lambda ours: (ours[..., None, None],)
)  # the head is a 1 x 1 convolution
KNOWN = [
    (50, 1),
    (50, 3),
    (101, 1),
    (101, 3),
    (152, 2),
    (152, 4),
]  # layers and width of those that timm has


def recognises(tensors: Tensors) -> bool:
    """Whether these are a ResNetV2's names in this format."""
    return any(name.endswith(NAMES.root) for name in tensors) and any(
        "stages.0.blocks.0.conv1" in n for n in tensors
    )


def describe(opened: Opened, hints: Hints) -> Description:
    """What the shapes say, and timm's own config.json where it lies beside them."""
    tensors, notes, _ = tidy(opened.tensors)
    if "norm.running_mean" in tensors:
        raise ValueError(
            "it is a ResNetV2 with BatchNorm; of timm's ResNets vitkit reads BiT's (resnetv2_*_bit)"
        )
    backbone, channels = backbone_of(tensors, NAMES, "pre", DIALECTS["timm_bit"])
    image, classes = hints.image or input_size(opened.config), 0
    if "head.fc.bias" in tensors:
        classes = shape_of(tensors, "head.fc.bias", 1)[0]
    if image is None:
        notes.append(
            "images: of 224 x 224 pixels; nothing in the file says so, and a ResNet takes any"
        )
    config = ResNetConfig(backbone, image or (224, 224), channels, classes)
    usual = Preprocessing(
        size=config.image, rule="shorter", resize=round(max(config.image) / 0.875)
    )
    note = ["preprocessing: not in the file, so timm's for BiT: mean and deviation 0.5"]
    preprocessing, said = said_preprocessing(opened.config, config.image) or (usual, note)
    labels, assumed = labels_of(opened.config, classes)
    return Description(config, preprocessing, tensors, labels, (*notes, *said, *assumed))


def rules(config: ResNetConfig) -> list[Rule]:
    """The table."""
    return backbone_rules(config.backbone, "", NAMES) + (
        pairs("head", "head.fc", POINT) if config.classes else []
    )


def cannot(config: ResNetConfig) -> list[str]:
    """What of a model timm has no place for."""
    found = beyond_bit(config.backbone, "pre")
    other = (config.backbone.units, config.backbone.width) not in [
        (UNITS[layers], width) for layers, width in KNOWN
    ]
    return found + ["a ResNet of other depth or width than its own"] * other


def differs(config: ResNetConfig) -> list[str]:
    """What timm would compute a little differently."""
    return another_dialect(config.backbone, DIALECTS["timm_bit"])


def spell(tensors: dict, config: ResNetConfig, layout: str = "") -> dict:
    """The rules' names are timm's own."""
    return tensors


def architecture(config: ResNetConfig) -> tuple[str, dict]:
    """timm's name for a model, and the arguments of `timm.create_model` that make it this one."""
    layers = next(layers for layers, units in UNITS.items() if units == config.backbone.units)
    return f"resnetv2_{layers}x{config.backbone.width:g}_bit", {"in_chans": config.channels}


def config_json(
    config: ResNetConfig, preprocessing: Preprocessing, labels: tuple[str, ...]
) -> dict:
    """config.json for timm's hub and for `timm.create_model("local-dir:...")`."""
    name, arguments = architecture(config)
    said = {"architecture": name, "num_features": config.backbone.features, "model_args": arguments}
    places = {"pool_size": list(config.grid), "first_conv": "stem.conv", "classifier": "head.fc"}
    return repository(config, preprocessing, labels, said, places)


def tidy(tensors: Tensors) -> tuple[Tensors, list[str], str]:
    """timm's names without a prefix that training put before them."""
    prefix = next(name for name in tensors if name.endswith(NAMES.root)).removesuffix(NAMES.root)
    return {name.removeprefix(prefix): lazy for name, lazy in tensors.items()}, [], ""
