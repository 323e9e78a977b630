"""timm's BiT ResNets, `resnetv2_*_bit` (timm/models/resnetv2.py)."""

from pathlib import Path

from vitkit.data import Preprocessing
from vitkit.models import DIALECTS, ResNetConfig
from vitkit.models.ancestors.backbone import UNITS
from vitkit.system.errors import BadWeights
from vitkit.weights.classifier import Classifier, Description
from vitkit.weights.files.content import Tensors
from vitkit.weights.files.directory import Opened
from vitkit.weights.formats.format import (
    Elsewhere,
    Format,
    Tidied,
    another_dialect,
    beyond_bit,
    has_end,
    without_prefix,
)
from vitkit.weights.formats.resnets import assumed_size, backbone_of, backbone_rules
from vitkit.weights.formats.shapes import length_of
from vitkit.weights.formats.timm.config import (
    ENDINGS,
    config_json,
    example,
    input_size,
    labels_of,
    open_in_timm,
    pixels_in_timm,
    written_preprocessing,
)
from vitkit.weights.formats.timm.names import RESNET
from vitkit.weights.hints import Hints
from vitkit.weights.rules import Rule, Transform, layer

NAMES = RESNET._replace(prefix="")
# Its head is a 1 x 1 convolution: (K, D, 1, 1) -> (K, D)
POINT = Transform(lambda kernel: kernel.flatten(1), lambda ours: (ours[..., None, None],))
# (layers, width) of timm's models
KNOWN = ((50, 1), (50, 3), (101, 1), (101, 3), (152, 2), (152, 4))


def recognises(tensors: Tensors) -> bool:
    """Whether tensors have the names of a ResNetV2 in this format."""
    has_units = any("stages.0.blocks.0.conv1" in name for name in tensors)
    return has_units and has_end(tensors, NAMES.root)


def tidy(tensors: Tensors) -> Tidied:
    """timm's names without a prefix that training added."""
    return Tidied(without_prefix(tensors, NAMES.root))


def describe(opened: Opened, tidied: Tidied, hints: Hints) -> Description:
    """The description that follows from the shapes, and from timm's own config.json if there is one."""
    tensors = tidied.tensors
    if "norm.running_mean" in tensors:
        raise BadWeights(
            "it is a ResNetV2 with BatchNorm; vitkit reads timm's BiT ResNets (resnetv2_*_bit)"
        )
    backbone, channels = backbone_of(tensors, NAMES, "pre", DIALECTS["timm_bit"])
    classes = length_of(tensors, "head.fc.bias")
    image, image_note = assumed_size(hints.image or input_size(opened.config))
    preprocessing, preprocessing_note = _preprocessing(opened.config, image)
    labels, labels_note = labels_of(opened.config, classes)
    return Description(
        ResNetConfig(backbone, image, channels, classes),
        preprocessing,
        labels,
        notes=(*image_note, *preprocessing_note, *labels_note),
    )


def _preprocessing(json: dict, image: tuple[int, int]) -> tuple[Preprocessing, list[str]]:
    """The preprocessing in timm's config.json; without one, that of BiT in timm, with a note."""
    if written := written_preprocessing(json, image):
        return written
    resize = round(max(image) / 0.875)  # crop_pct of _cfg in timm/models/resnetv2.py
    usual = Preprocessing(size=image, rule="shorter", resize=resize)
    return usual, ["preprocessing: not in the file, so timm's for BiT: mean and deviation 0.5"]


def rules(config: ResNetConfig) -> list[Rule]:
    """The names of timm's ResNetV2."""
    table = backbone_rules(config.backbone, "", NAMES)
    if config.classes:
        table += layer("head", "head.fc", POINT)
    return table


def cannot(config: ResNetConfig) -> list[str]:
    """The parts of a model that timm cannot express: it has a ResNet v2 in six sizes, by name."""
    beyond = beyond_bit(config.backbone, "pre")
    sizes = [(UNITS[layers], width) for layers, width in KNOWN]
    if (config.backbone.units, config.backbone.width) not in sizes:
        beyond.append("a ResNet of other depth or width than its own")
    return beyond


def differs(config: ResNetConfig) -> list[str]:
    """The paddings, epsilons and divisors that differ from timm's (StdConv2d in
    timm/layers/std_conv.py)."""
    return another_dialect(config.backbone, DIALECTS["timm_bit"])


def architecture(config: ResNetConfig) -> tuple[str, dict]:
    """timm's name of a model, and the further arguments of `timm.create_model` for it."""
    layers = next(layers for layers, units in UNITS.items() if units == config.backbone.units)
    return f"resnetv2_{layers}x{config.backbone.width:g}_bit", {"in_chans": config.channels}


def directory(classifier: Classifier) -> dict[str, dict]:
    """The JSON file of a model directory."""
    config = classifier.model.config
    assert isinstance(config, ResNetConfig)  # by FORMAT.kinds
    name, arguments = architecture(config)
    model = {
        "architecture": name,
        "num_features": config.backbone.features,
        "model_args": arguments,
    }
    layers = {"pool_size": list(config.grid), "first_conv": "stem.conv", "classifier": "head.fc"}
    json = config_json(config, classifier.preprocessing, classifier.labels, model, layers)
    return {"config.json": json}


def open_elsewhere(classifier: Classifier, path: Path) -> Elsewhere:
    """The model as timm opens it."""
    config = classifier.model.config
    assert isinstance(config, ResNetConfig)  # by FORMAT.kinds
    return open_in_timm(classifier, path, *architecture(config))


FORMAT = Format(
    name="timm",
    kinds=("resnet",),
    recognises=recognises,
    describe=describe,
    rules=rules,
    tidy=tidy,
    first=NAMES.root,
    head="head.fc",
    cannot=cannot,
    differs=differs,
    endings=ENDINGS,
    directory=directory,
    library="timm",
    example=example,
    open_elsewhere=open_elsewhere,
    pixels_elsewhere=pixels_in_timm,
)
