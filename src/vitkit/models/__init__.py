"""Names to configurations to models. torch only: no loss, optimiser, file format or process group
in this room."""

from dataclasses import asdict, fields
from itertools import chain

import torch

from vitkit.models.ancestors import LeNet, LeNetConfig
from vitkit.models.backbone import DIALECTS, UNITS, Backbone, ResNetConfig
from vitkit.models.build import KERNEL_LAYERS, Model, ModelConfig, build, parameters
from vitkit.models.config import SIZES, ViTConfig
from vitkit.models.cost import Cost, cost, exaflops
from vitkit.models.positions import RESAMPLE, resample
from vitkit.models.recording import Recording, recording
from vitkit.models.resize import for_inference, resized
from vitkit.models.resnet import ResNet
from vitkit.models.vit import VisionTransformer
from vitkit.models.zoo import NAMES, called, named, vit

KINDS = {config.kind: config for config in (ViTConfig, ResNetConfig, LeNetConfig)}


def plain(config: ModelConfig) -> dict:
    """A configuration as plain values, its kind among them; `config_from` is the way back."""
    return {"kind": config.kind, **asdict(config)}


def config_from(values: dict) -> ModelConfig:
    """A configuration from the plain values that `plain` or JSON has of it; without a kind a
    ViTConfig.

    Raises ValueError or TypeError for what is none.
    """
    values = {"kind": "vit", **values}
    if (kind := values.pop("kind")) not in KINDS:
        raise ValueError(f"it is a model of kind {kind!r}; there are {', '.join(KINDS)}")
    if unknown := values.keys() - {one.name for one in fields(KINDS[kind])}:
        raise ValueError(
            f"it has settings that this version does not know: {', '.join(sorted(unknown))}"
        )
    return KINDS[kind](**values)


def create(
    model: ModelConfig | str,
    device: torch.device | str = "cpu",
    seed: int | None = None,
    **changes,
) -> Model:
    """A model with the official initial weights: `create("B/16", classes=10)` or `create(config)`.

    Shapes are made without memory, the memory is filled with NaN, then every parameter is
    initialised; one that was forgotten is an error. `seed` makes the weights repeatable and leaves
    torch's own generator as it was.
    """
    if isinstance(model, str):
        model = named(model, **changes)
    elif changes:
        raise ValueError(
            f"changes ({', '.join(changes)}) go with a model's name; use dataclasses.replace on a config"
        )
    with torch.device("meta"):
        made = build(model)
    made.to_empty(device=device)
    devices = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices, enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        for tensor in chain(made.parameters(), made.buffers()):
            if tensor.is_floating_point():  # BatchNorm counts its batches in integers
                tensor.fill_(torch.nan)
        made.init_weights()
    if missed := [name for name, tensor in made.state_dict().items() if tensor.isnan().any()]:
        raise RuntimeError(f"init_weights() never touched {', '.join(missed)}")
    return made


__all__ = [
    "Backbone",
    "Cost",
    "DIALECTS",
    "KERNEL_LAYERS",
    "LeNet",
    "LeNetConfig",
    "Model",
    "ModelConfig",
    "NAMES",
    "RESAMPLE",
    "ResNet",
    "ResNetConfig",
    "SIZES",
    "UNITS",
    "Recording",
    "VisionTransformer",
    "ViTConfig",
    "build",
    "called",
    "config_from",
    "cost",
    "create",
    "exaflops",
    "for_inference",
    "named",
    "parameters",
    "plain",
    "recording",
    "resample",
    "resized",
    "vit",
]
