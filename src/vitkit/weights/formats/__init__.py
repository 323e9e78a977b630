"""The table of formats, vitkit's own first, and the choice of one: by a file's tensors, or by name."""

from vitkit.models import ModelConfig, called
from vitkit.models.construction import blueprint
from vitkit.system.errors import BadWeights
from vitkit.weights.classifier import Classifier, Description
from vitkit.weights.files.content import Tensors
from vitkit.weights.files.directory import Opened
from vitkit.weights.formats import torchvision
from vitkit.weights.formats.format import CROPS, Format, Tidied
from vitkit.weights.formats.google import resnets as google_resnets
from vitkit.weights.formats.google import vit as google_vit
from vitkit.weights.formats.huggingface.dino import DINOV2, DINOV3
from vitkit.weights.formats.huggingface.processors import processor_json
from vitkit.weights.formats.huggingface.towers import NAFLEX, TOWERS
from vitkit.weights.formats.huggingface.vit import VIT
from vitkit.weights.formats.timm import resnets as timm_resnets
from vitkit.weights.formats.timm import vit as timm_vit
from vitkit.weights.hints import Hints
from vitkit.weights.rules import Rule, rule

# The native format stores tensors of every architecture under vitkit's own names. The shapes alone do not
# determine the model, so these files always contain a description.

# The first weights of a Vision Transformer or hybrid, of a ResNet, and of LeNet
FIRST = ("stem.project.weight", "root.conv.weight", "blocks.0.conv.weight")


def _describe(opened: Opened, tidied: Tidied, hints: Hints) -> Description:
    """Raise VitkitError: a model of this format is described by its own description or not at all."""
    raise BadWeights(
        "it has vitkit's names but lacks the description that vitkit writes into its config.json"
    )


def _rules(config: ModelConfig) -> list[Rule]:
    """Rules that keep every tensor under its own name."""
    return [rule(name, name) for name in blueprint(config).state_dict()]


def _directory(classifier: Classifier) -> dict[str, dict]:
    """The JSON files of a model directory."""
    return {
        "config.json": {"model_type": "vitkit"},
        "preprocessor_config.json": processor_json(classifier.preprocessing),
    }


NATIVE = Format(
    name="native",
    kinds=("vit", "resnet", "lenet"),
    recognises=lambda tensors: any(name in tensors for name in FIRST),
    describe=_describe,
    rules=_rules,
    directory=_directory,
    library="vitkit",
    images=(*CROPS, "native", "naflex"),
)


# All of them

FORMATS: tuple[Format, ...] = (
    NATIVE,
    VIT.format(),
    DINOV2.format(),
    DINOV3.format(),
    NAFLEX.format(),  # before the towers for whole images, which have the same names
    TOWERS.format(),
    google_vit.FORMAT,  # before Google's ResNets, whose names hybrids have too
    google_resnets.FORMAT,
    timm_vit.FORMAT,
    timm_resnets.FORMAT,
    torchvision.FORMAT,
)


def names() -> list[str]:
    """The names of the formats without repetitions: a format may have several entries."""
    return list(dict.fromkeys(format.name for format in FORMATS))


def recognise(tensors: Tensors) -> Format | None:
    """The first format that recognises these tensors; None if there is none."""
    return next((format for format in FORMATS if format.recognises(tensors)), None)


def format_of(name: str, config: ModelConfig, rule: str = "square") -> Format | None:
    """The format with this name for this kind of model; None if it stores no such models. Among several,
    the one whose library prepares images by the `rule` of a Preprocessing and that can express the most
    of the model."""
    matching = [format for format in FORMATS if format.name == name and config.kind in format.kinds]

    def lack(format: Format) -> tuple[bool, int]:
        return rule not in format.images, len(format.cannot(config))

    return min(matching, key=lack, default=None)


def formats_for(config: ModelConfig, rule: str = "square") -> list[Format]:
    """The formats that can express all of a model and whose libraries prepare images by the `rule`."""
    return [
        format
        for format in FORMATS
        if config.kind in format.kinds and rule in format.images and not format.cannot(config)
    ]


def cannot(name: str, config: ModelConfig, rule: str = "square") -> list[str]:
    """The parts of a model, with images prepared by the `rule`, that the format with this name cannot
    express."""
    format = format_of(name, config, rule)
    if format is None:
        return [f"a {config.title} ({called(config)})"]
    missing = list(format.cannot(config))
    if rule not in format.images:
        missing.append("images in their own aspect ratios")
    return missing
