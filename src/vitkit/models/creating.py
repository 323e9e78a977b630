"""Names to configurations to models: `create("B/16")`.

This room needs torch only. It has no loss, optimiser, file format or process group.
"""

from dataclasses import asdict, fields
from itertools import chain

import torch

from vitkit.models.ancestors.lenet import LeNet, LeNetConfig
from vitkit.models.config import ViTConfig
from vitkit.models.construction import KERNEL_LAYERS, Model, ModelConfig, build, parameters
from vitkit.models.inference.dense import Dense
from vitkit.models.inference.resize import for_inference, resized, with_stride
from vitkit.models.operations import Cost, cost, exaflops
from vitkit.models.positions.resampling import RESAMPLE, resample
from vitkit.models.resnets.backbone import DIALECTS, UNITS, Backbone, ResNetConfig
from vitkit.models.resnets.resnet import ResNet
from vitkit.models.states.hidden import hidden_states
from vitkit.models.states.recording import Recording, recording
from vitkit.models.vision_transformer import VisionTransformer
from vitkit.models.zoo import NAMES, SIZES, called, named, vit

KINDS = {config.kind: config for config in (ViTConfig, ResNetConfig, LeNetConfig)}


def config_to_dict(config: ModelConfig) -> dict:
    """A configuration as a dict of JSON values, its kind among them; `config_from` is the way back."""
    return {"kind": config.kind, **asdict(config)}


def config_from(values: dict) -> ModelConfig:
    """A configuration from what `config_to_dict` made of it, or JSON of that. Without a kind a ViTConfig.

    Raises ValueError or TypeError for anything else.
    """
    settings = dict(values)
    kind = settings.pop("kind", "vit")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"it is a model of kind {kind!r}; there are {', '.join(KINDS)}")
    known = {field.name for field in fields(KINDS[kind])}
    unknown = settings.keys() - known
    if unknown:
        raise ValueError(
            f"it has settings that this version does not know: {', '.join(sorted(unknown))}"
        )
    return KINDS[kind](**settings)


def create(
    model: ModelConfig | str,
    device: torch.device | str = "cpu",
    seed: int | None = None,
    **changes,
) -> Model:
    """A model with the official initial weights: `create("B/16", classes=10)` or `create(config)`.

    `seed` makes the weights repeatable, whatever the device, and leaves torch's own generator as it
    was. Raises ValueError for an unknown name or setting.
    """
    config = model
    if isinstance(model, str):
        config = named(model, **changes)
    elif changes:
        raise ValueError(
            f"changes ({', '.join(changes)}) go with a model's name; use dataclasses.replace on a "
            "config"
        )

    # Shapes first, then memory. On the CPU: a GPU would draw other numbers from the same seed
    with torch.device("meta"):
        network = build(config)
    network.to_empty(device="cpu")

    # NaN everywhere, so that a parameter without an initialisation cannot go unnoticed
    with torch.no_grad():
        for tensor in chain(network.parameters(), network.buffers()):
            if tensor.is_floating_point():  # BatchNorm counts its batches in integers
                tensor.fill_(torch.nan)

    # The weights, and torch's generator as it was
    with torch.no_grad(), torch.random.fork_rng([], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        network.init_weights()
    missed = [name for name, tensor in network.state_dict().items() if tensor.isnan().any()]
    if missed:
        raise RuntimeError(f"init_weights() never touched {', '.join(missed)}")
    return network.to(device)


__all__ = [
    "Backbone",
    "Cost",
    "DIALECTS",
    "Dense",
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
    "config_to_dict",
    "cost",
    "create",
    "exaflops",
    "for_inference",
    "hidden_states",
    "named",
    "parameters",
    "recording",
    "resample",
    "resized",
    "vit",
    "with_stride",
]
