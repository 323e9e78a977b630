"""The table of formats, and how to choose one: by a file's tensors, or by name."""

from vitkit.models import ModelConfig, called
from vitkit.weights.files import Tensors
from vitkit.weights.formats import native, torchvision
from vitkit.weights.formats.format import Format
from vitkit.weights.formats.google import resnets as google_resnets
from vitkit.weights.formats.google import vit as google_vit
from vitkit.weights.formats.huggingface.dino import DINOV2, DINOV3
from vitkit.weights.formats.huggingface.towers import TOWERS
from vitkit.weights.formats.huggingface.vit import VIT
from vitkit.weights.formats.timm import resnets as timm_resnets
from vitkit.weights.formats.timm import vit as timm_vit

FORMATS: tuple[Format, ...] = (
    native.FORMAT,
    VIT.format(),
    DINOV2.format(),
    DINOV3.format(),
    TOWERS.format(),
    google_vit.FORMAT,  # before google's ResNets, whose names hybrids have too
    google_resnets.FORMAT,
    timm_vit.FORMAT,
    timm_resnets.FORMAT,
    torchvision.FORMAT,
)


def names() -> list[str]:
    """The formats' names, each once: a format has an entry for each kind of model."""
    return list(dict.fromkeys(format.name for format in FORMATS))


def recognise(tensors: Tensors) -> Format | None:
    """The format whose names these tensors have; None if there is none."""
    return next((format for format in FORMATS if format.recognises(tensors)), None)


def format_of(name: str, config: ModelConfig) -> Format | None:
    """The format of this name, for this kind of model; None if it stores no such models. Of several
    the one that can express it, or lacks least for it."""
    matching = [format for format in FORMATS if format.name == name and config.kind in format.kinds]
    return min(matching, key=lambda format: len(format.cannot(config)), default=None)


def formats_for(config: ModelConfig) -> list[Format]:
    """The formats that can express all of a model."""
    return [
        format for format in FORMATS if config.kind in format.kinds and not format.cannot(config)
    ]


def cannot(name: str, config: ModelConfig) -> list[str]:
    """What the format of this name cannot express of a model."""
    format = format_of(name, config)
    if format is None:
        return [f"a {config.title} ({called(config)})"]
    return format.cannot(config)
