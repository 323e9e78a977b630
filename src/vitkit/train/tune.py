"""Which of a model's parameters a run trains: all of them in the paper; the last blocks, the head
alone, or low-rank adapters.

Adapters are peft's. They stand beside the model's own weights while it trains and are added to them
before it is saved, so that what a run leaves behind is an ordinary model.
"""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Tune:
    """What is trained; the rest stays as it began."""

    blocks: int = -1
    """The last blocks that are trained, with the norm, pooling and head that follow; 0 is the head
    alone, a linear probe; -1 is the whole model."""
    lora: int = 0
    """Rank of the adapters (LoRA) that are trained in place of the blocks' matrices, with the head;
    0 is none (extra `lora`)."""
    lora_alpha: float = 16.0
    """What an adapter's product is multiplied by, over its rank."""

    def __post_init__(self):
        if self.blocks < -1:
            raise ValueError(
                f"tune.blocks is {self.blocks}; it is a number of blocks, 0 for the head, -1 for "
                "everything"
            )
        if self.lora < 0 or not self.lora_alpha > 0:
            raise ValueError(
                f"tune.lora is {self.lora} and lora_alpha {self.lora_alpha}; a rank is 0 or more, "
                "alpha above 0"
            )
        if self.lora and self.blocks != -1:
            raise ValueError(
                "tune.lora adapts every block and tune.blocks freezes some; choose one of them"
            )


def apply_tuning(model: nn.Module, tune: Tune, seed: int = 0) -> None:
    """Freeze what is not trained and put adapters, drawn by `seed`, where they are asked for.

    Raises ValueError for a part that the model does not have.
    """
    depth = len(model.blocks)
    if tune.blocks > depth:
        raise ValueError(f"tune.blocks is {tune.blocks}; the model has {depth} blocks")
    own = dict(model.named_parameters())  # without those of adapters
    if tune.lora:
        _adapt(model, tune, seed)
    for name, parameter in own.items():
        of_head = name.partition(".")[0] == "head"
        if tune.lora or tune.blocks == 0:
            parameter.requires_grad_(of_head)
        elif tune.blocks > 0:
            parameter.requires_grad_(of_head or model.layer_of(name) > depth - tune.blocks)
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("tune.blocks 0 trains the head alone, and this model has none")


def _adapt(model: nn.Module, tune: Tune, seed: int) -> None:
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ValueError("tune.lora needs the extra `lora`: pip install 'vitkit[lora]'") from None
    matrices = [
        name
        for name, part in model.named_modules()
        if name.startswith("blocks.") and isinstance(part, nn.Linear)
    ]
    if not matrices:
        raise ValueError(
            f"tune.lora adapts the dense layers of blocks; a {type(model).__name__} has none"
        )
    with torch.random.fork_rng(devices=[]):  # peft draws from PyTorch's global generator
        torch.manual_seed(seed)
        settings = LoraConfig(r=tune.lora, lora_alpha=tune.lora_alpha, target_modules=matrices)
        inject_adapter_in_model(settings, model)


def merged(model: nn.Module) -> nn.Module:
    """The model itself, its adapters added to its own weights and gone."""
    for name, part in list(model.named_modules()):
        if hasattr(part, "get_base_layer"):
            part.merge()
            model.set_submodule(name, part.get_base_layer())
    return model
