"""The formats there are. A format has a table for each kind of model that it holds: a module, all with the same functions."""

from types import ModuleType

from vitkit.models import ModelConfig, called
from vitkit.weights.formats import huggingface, native, torchvision
from vitkit.weights.formats.google import resnets as google_resnets
from vitkit.weights.formats.google import vit as google
from vitkit.weights.formats.timm import resnets as timm_resnets
from vitkit.weights.formats.timm import vit as timm

TABLES: tuple[ModuleType, ...] = (
    native,
    huggingface,
    google,
    google_resnets,
    timm,
    timm_resnets,
    torchvision,
)
FORMATS = tuple(dict.fromkeys(table.NAME for table in TABLES))
WHAT = {"vit": "a Vision Transformer", "resnet": "a ResNet", "lenet": "a LeNet"}


def table_of(name: str, config: ModelConfig) -> ModuleType | None:
    """The table of a format for this kind of model; None where it holds no such models."""
    return next(
        (table for table in TABLES if name == table.NAME and config.kind in table.HOLDS), None
    )


def cannot(name: str, config: ModelConfig) -> list[str]:
    """What of a model a format has no place for."""
    table = table_of(name, config)
    return table.cannot(config) if table else [f"{WHAT[config.kind]} ({called(config)})"]
