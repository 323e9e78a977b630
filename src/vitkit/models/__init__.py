"""Names to configurations to models. torch only: no loss, optimiser, file format or process group in this room."""

from itertools import chain

import torch

from vitkit.models.attention import attention_maps
from vitkit.models.cost import Cost, cost
from vitkit.models.positions import RESAMPLE, resample
from vitkit.models.vit import SIZES, VisionTransformer, ViTConfig, vit

NAMES = [
    "mu/16",
    "Ti/16",
    "S/32",
    "S/16",
    "M/16",
    "B/32",
    "B/16",
    "B/8",
    "L/32",
    "L/16",
    "So400m/14",
    "H/14",
    "g/14",
    "g-opt/14",
    "G/14",
    "G-opt/14",
    "e/14",
]  # any other patch size works too


def create(
    model: ViTConfig | str, device: torch.device | str = "cpu", seed: int | None = None, **changes
) -> VisionTransformer:
    """A model with the official initial weights: `create("B/16", classes=10)` or `create(config)`.

    Shapes are made without memory, the memory is filled with NaN, then every parameter is initialised; one that was
    forgotten is an error. `seed` makes the weights repeatable and leaves torch's own generator as it was.
    """
    if isinstance(model, str):
        model = vit(model, **changes)
    elif changes:
        raise ValueError(f"changes ({', '.join(changes)}) go with a model's name; use dataclasses.replace on a config")
    with torch.device("meta"):
        made = VisionTransformer(model)
    made.to_empty(device=device)
    devices = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices, enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        for tensor in chain(made.parameters(), made.buffers()):
            tensor.fill_(torch.nan)
        made.init_weights()
    if missed := [name for name, tensor in made.state_dict().items() if tensor.isnan().any()]:
        raise RuntimeError(f"init_weights() never touched {', '.join(missed)}")
    return made


__all__ = [
    "Cost",
    "NAMES",
    "RESAMPLE",
    "SIZES",
    "VisionTransformer",
    "ViTConfig",
    "attention_maps",
    "cost",
    "create",
    "resample",
    "vit",
]
